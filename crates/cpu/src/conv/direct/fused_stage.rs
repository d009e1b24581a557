//! [`Stage`]: a convolution as a stage of a fused kernel, some rows at a time.

use std::ops::Range;

use super::{ConvBlocked, Job};
use crate::gemm::tile::Word;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::shared_slice::SharedMut;

/// The operands of a fused `f32` convolution and its output.
pub(crate) struct Stage<'a> {
    pub(crate) isa: Isa,
    pub(crate) x: &'a [f32],
    pub(crate) weights: &'a [Word],
    pub(crate) bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    pub(crate) residual: Option<Option<&'a [f32]>>,
    pub(crate) limits: Option<[f32; 2]>,
    pub(crate) out: &'a SharedMut<'a, u8>,
    /// Pixels that each block of the output has room for.
    pub(crate) out_plane: usize,
}

impl ConvBlocked {
    /// Computes a panel of some rows of an image, with bounds as the only function. The first pixel of its first block
    /// goes to element `to` of the output.
    ///
    /// # Panics
    /// `x`, weights or bias of another size; operands and results other than `f32`.
    ///
    /// # Safety
    /// From `to` on, the output and a separate residual must have the rows' pixels in each block of the panel. No other
    /// task uses those of the output meanwhile.
    pub(crate) unsafe fn run_rows(&self, stage: &Stage, panel: usize, image: usize, rows: Range<usize>, to: usize) {
        let Stage { isa, x, weights, bias, residual, limits, out, out_plane } = *stage;
        assert_eq!([self.operands, self.result], [StorageType::F32; 2], "a fused stage must be f32");
        assert_eq!(x.len(), self.batch * self.input_image(), "x must have its size");
        let (weights, scales) = self.split_weights(weights);
        assert!(bias.is_none_or(|bias| bias.len() == self.lanes()), "the bias must have an element for each lane");
        let (panel, window) = (self.panel(panel), self.geometry());
        // If `geometry` made the image one column, a row is as many of its rows as the image has columns.
        let lines = if window.output == self.window.output { 1 } else { self.window.output[1] };
        let rows = rows.start * lines..rows.end * lines;
        let first = (image * self.out_blocks() + panel.block) * out_plane + rows.start * window.output[1];
        let job = Job {
            conv: self,
            window,
            isa,
            by_taps: false,
            x: bytemuck::cast_slice(x),
            weights,
            scales,
            marks: None,
            corners: &[],
            scale: None,
            bias,
            residual: residual.map(|items| items.map(bytemuck::cast_slice)),
            limits,
            functions: &[],
            out,
            out_plane,
            out_row: window.output[1],
            out_column: 1,
            origin: to.wrapping_sub(first * LANES),
        };
        job.run(panel, image..image + 1, rows, None);
    }
}
