//! [`Pool`]: the maximum or the mean of windows.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::PoolGradient;
use super::common::{
    arity, f32_or_half, for_each_index, from_f64, one, product, stored_numbers, window_fits, window_places,
};
use super::pool_gradient::for_each_cell;
use crate::axes::{Along, AxisChange, AxisMap, Window, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The function of a window's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The largest cell, padding excluded.
    Max,
    /// The mean of the cells inside the input.
    Mean,
    /// The mean of the cells inside the input and its padding, which is 0; a last window's overhang is excluded.
    MeanWithPadding,
}

/// Slides a window over the spatial dimensions.
///
/// `x: [n, c, ..spatial]` of `f32`, `f16` or `bf16`, for a maximum also of `u8` or `i8` -> `[n, c, ..out]`. With `ceil`, a last window may extend beyond the end if it
/// begins inside the input or its front padding. Source: ONNX `MaxPool`, `AveragePool`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// The function of a window's cells.
    pub kind: PoolKind,
    /// Cells of the window, one number a spatial dimension.
    pub kernel: SmallVec<[usize; 2]>,
    /// Steps of the window.
    pub stride: SmallVec<[usize; 2]>,
    /// Distance between the window's cells.
    pub dilation: SmallVec<[usize; 2]>,
    /// Padding in front of and behind each spatial dimension.
    pub pad: SmallVec<[[usize; 2]; 2]>,
    /// Whether a last window that extends beyond the end counts.
    pub ceil: bool,
}

impl Pool {
    /// A window over images with one extent, stride and padding for all sides.
    pub fn square(kind: PoolKind, kernel: usize, stride: usize, pad: usize) -> Pool {
        Pool {
            kind,
            kernel: SmallVec::from_elem(kernel, 2),
            stride: SmallVec::from_elem(stride, 2),
            dilation: SmallVec::from_elem(1, 2),
            pad: SmallVec::from_elem([pad, pad], 2),
            ceil: false,
        }
    }

    fn output_shape(&self, x: &Shape) -> Result<Shape, Refusal> {
        let spatial = self.kernel.len();
        let lengths = [self.stride.len(), self.dilation.len(), self.pad.len()];
        if !(1..=3).contains(&spatial) || lengths.iter().any(|&length| length != spatial) || x.rank() != spatial + 2 {
            refuse!(
                "input must have one to three spatial axes, each with kernel, stride, dilation and padding, got {x} and {spatial} kernel extents"
            );
        }
        let mut shape: Shape = x[..2].into();
        for axis in 0..spatial {
            let (extent, kernel, stride, pad) = (x[axis + 2], self.kernel[axis], self.stride[axis], self.pad[axis]);
            window_fits(kernel, stride, self.dilation[axis], pad)?;
            let reach = (kernel - 1) * self.dilation[axis] + 1;
            let fits_only_hanging = self.ceil && extent + pad[0] + pad[1] < reach;
            let full = match fits_only_hanging {
                true => 1,
                false => window_places(extent, kernel, stride, self.dilation[axis], pad)?,
            };
            let covered = (full - 1) * stride + reach;
            let begins = full * stride;
            let hangs = self.ceil && covered < extent + pad[0] + pad[1] && begins < extent + pad[0];
            shape.push(full + usize::from(hangs));
        }
        Ok(shape)
    }
}

impl Operator for Pool {
    const NAME: &'static str = "pool";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        match self.kind {
            PoolKind::Max => stored_numbers(inputs)?,
            PoolKind::Mean | PoolKind::MeanWithPadding => f32_or_half(inputs)?,
        }
        Ok(one(TensorType { dtype: inputs[0].dtype, shape: self.output_shape(&inputs[0].shape)? }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let shape = self.output_shape(x.shape()).expect("infer refuses what does not fit");
        let items = x.to_f64();
        let mut out = Vec::with_capacity(shape.elements());
        for_each_index(&shape, |index| {
            let (mut largest, mut sum, mut inside) = (f64::NEG_INFINITY, 0.0, 0usize);
            let padded = for_each_cell(self, x.shape(), index, |_, at| {
                inside += 1;
                sum += items[at];
                if items[at] > largest || items[at].is_nan() {
                    largest = items[at];
                }
            });
            out.push(match self.kind {
                PoolKind::Max => largest,
                PoolKind::Mean => sum / inside as f64,
                PoolKind::MeanWithPadding => sum / padded as f64,
            });
        });
        one(from_f64(shape, x.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let x = backward.operand(0);
        let op = PoolGradient { pool: self.clone(), extents: backward.shape(x)[2..].into(), positions: false };
        let operands: &[ValueId] = if self.kind == PoolKind::Max { &[dy, x] } else { &[dy] };
        Ok(smallvec![Some(backward.add(op, operands)?)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::unary(Work::Arithmetic, output, |axis| match axis.checked_sub(2) {
            None => Along::Same(axis),
            Some(spatial) => Along::Window(Window {
                axis,
                kernel: self.kernel[spatial],
                stride: self.stride[spatial],
                dilation: self.dilation[spatial],
                front: self.pad[spatial][0],
            }),
        })
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let AxisChange::Tile(tile) = change else { return None };
        let mut op = self.clone();
        if let Some(spatial) = tile.axis.checked_sub(2) {
            // Cells of a last window beyond the padding count neither as input nor as padding. A mean over padding would
            // count them, as it cannot tell them from the tile's padding.
            if self.kind == PoolKind::MeanWithPadding && self.pad[spatial][1] < tile.pad[1] {
                return None;
            }
            op.pad[spatial] = tile.pad;
        }
        Some(op.into())
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        product(self.kernel.iter().copied().chain([outputs[0].shape.elements()]))
    }
}
