//! [`ConvBlocked`]: direct convolution to channels in blocks of sixteen.
//!
//! Lanes are output channels and rows of a tile are pixels; `row_major.rs` has it the other way round. There is no
//! im2col: the microkernel reads pixels in place. Taps that fall on padding are skipped, unless the input is packed
//! (below). They depend on the row and column of an output, so outputs are divided into rectangles that use the same
//! taps, and each rectangle into tiles, which run over its rows:
//!
//! ```text
//!   +--+------------------+--+     3 x 3 with padding 1: corners use 4 taps,
//!   +--+------------------+--+     edges 6, the middle all 9
//!   |  |                  |  |
//!   |  |     tile         |  |
//!   |  |      +-----------+  |
//!   |  +------+           |  |
//!   +--+------------------+--+
//!   +--+------------------+--+
//! ```
//!
//! In half precision and int8 a block of channels is few words, and the matrix unit takes sixteen at a time. If each
//! pixel is used often enough, all its channels are first packed as neighbors ([`ConvAlgorithm::Packed`]), with
//! padding as ordinary pixels. So are the few channels of a first layer, whose taps in a row of the kernel then are
//! neighbors too. In `f32` the compiler chooses it by time, for strides and for small padded images. AMX is fastest on
//! many pixels at a constant stride. Short image rows are therefore processed as one strip; the padding pixels between
//! them are computed and discarded.
//!
//! A task is a panel of 32 output channels and some rows of images. The division into tasks depends on the shape alone.

mod fused_stage;
mod on_grid;
mod pack_input;
mod pack_weights;
mod partition;
mod regions;
mod zero_point;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::WeightFormat;
use types::pointwise::Unary;

pub(crate) use self::fused_stage::Stage;
pub use self::partition::BlockTerms;
use self::partition::{PLANE_LARGE, Panel};
use self::regions::{Region, Run, Walk, cells_by_cover};
use crate::conv::{Window, check_groups};
use crate::gemm::epilogue::Epilogue;
use crate::gemm::finish;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::saturation::{Marks, mark_words};
use crate::gemm::tile::{self, Compact, Dequant, Init, KLoop, Loop, ROWS, Repeat, Row, STRIDED_ROWS_MAX, Tile, Word};
use crate::gemm::weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Channels of a panel, and of a tile.
pub(crate) const PANEL: usize = 2 * LANES;
/// The most channels that are packed.
const PACKED_CHANNELS_MAX: usize = 1 << 30;
/// Packed pixels with at most this many words are not filled up.
const FEW_WORDS: usize = 4;
/// Strides in bytes whose multiples map to the same sets of a first-level cache.
const PACKED_STEP: usize = 2048;

/// The layout of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageLayout {
    /// `[batch, channels, rows, columns]`, NCHW.
    RowMajor,
    /// Channels in blocks of sixteen, nChw16c.
    Blocked,
}

/// How a direct convolution reads its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvAlgorithm {
    /// In place. Windows at the border have fewer terms.
    InPlace,
    /// From a copy in the workspace with padding, in which all channels of a pixel are neighbors (NHWC). For operands of
    /// which a block has few words, and instructions that take many at once. In `f32`, for strides, whose pixels would be
    /// spread over few sets of the caches, and for small images, whose pixels are mostly at the border.
    Packed,
}

/// Convolution of `x: [batch, in_channels, rows, columns]` with packed weights; then by the epilogue a bias (with an
/// element for each lane of the output's blocks) and a residual. Output and residual: `[batch, out_channels, rows,
/// columns]` in blocks of sixteen channels. The bias is `f32`; results are rounded after the epilogue.
///
/// Int8: `x` is `u8`, weights are `i8`, sums are exact, and a scale dequantizes them.
///
/// Weights of `f32` operands may be stored in fewer bits; they are widened when they are loaded.
///
/// Refuses: joined groups whose channels do not fill their blocks; half precision and int8 whose channels do not fill words of
/// four bytes, or that are row-major and not packed; int8 without a scale, or with a residual and no quantized sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvBlocked {
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub in_channels: usize,
    /// Channels of a result.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// Neighboring groups that are computed as one so that their channels fill blocks; 1: none. The last ones may be
    /// fewer. A block of output channels reads only the blocks of input channels that its groups have.
    pub joined: usize,
    /// Rows and columns.
    pub window: Window,
    /// The layout of `x`.
    pub layout: ImageLayout,
    /// How tiles read `x`.
    pub algorithm: ConvAlgorithm,
    /// Storage type of `x` and the weights; with `u8` the weights are `i8`.
    pub operands: StorageType,
    /// The stored form of weights of `f32`, if it is not `f32`.
    pub weights: Option<WeightFormat>,
    /// Subtracted from each byte of `x`. Padding counts as 0 all the same.
    pub zero_point: u8,
    /// Storage type of residual and results.
    pub result: StorageType,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

impl ConvBlocked {
    fn is_packed(&self) -> bool {
        self.algorithm == ConvAlgorithm::Packed
    }

    fn reads_blocks(&self) -> bool {
        self.layout == ImageLayout::Blocked
    }

    /// Lanes of the output's blocks.
    fn lanes(&self) -> usize {
        self.out_blocks() * LANES
    }

    /// Words of a block of input channels.
    fn in_block(&self) -> usize {
        if self.reads_blocks() { LANES / self.operands.per_word() } else { 1 }
    }

    /// Words of a packed pixel that are multiplied: whole rows of the matrix unit's registers, filled up if necessary.
    /// Few words are left as they are, so that those of neighboring taps are contiguous, and so is `f32`.
    fn depth(&self) -> usize {
        match self.in_channels.div_ceil(self.operands.per_word()) {
            words @ 0..=FEW_WORDS => words,
            words if self.operands == StorageType::F32 => words,
            words => words.next_multiple_of(LANES),
        }
    }

    /// Words from one pixel that tiles read to the next. Packed pixels at a multiple of 4 kB would map to the same few
    /// cache sets.
    fn pixel(&self) -> usize {
        match self.is_packed() {
            true if (4 * self.depth()).is_multiple_of(PACKED_STEP) => self.depth() + LANES,
            true => self.depth(),
            false => self.in_block(),
        }
    }

    /// Input and output channels of a group.
    pub fn part_channels(&self) -> [usize; 2] {
        [self.in_channels, self.out_channels].map(|channels| channels / self.groups)
    }

    /// Input and output channels of joined groups.
    fn unit_channels(&self) -> [usize; 2] {
        self.part_channels().map(|channels| channels * self.joined)
    }

    /// The number of joined groups.
    fn units(&self) -> usize {
        self.groups.div_ceil(self.joined)
    }

    /// Words of the input channels of joined groups.
    fn in_words(&self) -> usize {
        self.unit_channels()[0].div_ceil(self.operands.per_word())
    }

    /// Output channels whose weights of one term are neighbors, see [`Tile::weight_vector`].
    fn packed_lanes(&self) -> usize {
        if self.operands == StorageType::F32 { LANES } else { PANEL }
    }

    /// Words from a term's weights to those of the next in a panel.
    fn weight_row(&self, panel: Panel) -> usize {
        self.packed_lanes().min(panel.blocks * LANES)
    }

    /// Words from the weights of a panel's first block to those of its second.
    fn weight_vector(&self, panel: Panel) -> usize {
        if self.operands == StorageType::F32 { panel.in_words * self.window.taps() * LANES } else { LANES }
    }

    /// Packed weights and the scales behind them.
    ///
    /// # Panics
    /// Another size.
    fn split_weights<'a>(&self, weights: &'a [Word]) -> (&'a [Word], &'a [f32]) {
        let (lanes, count) = (self.lanes(), self.weight_words().expect("`sizes` computed it"));
        let size = weights::words(self.weights, Some(count), Some(lanes));
        assert_eq!(Some(weights.len()), size, "weights must have their size");
        let (weights, scales) = weights.split_at(weights.len() - weights::scale_words(self.weights, lanes));
        (weights, elements(bytemuck::cast_slice(scales)))
    }

    /// Words of the marks of int8 weights.
    fn mark_words(&self) -> Option<usize> {
        if self.operands.is_byte() { mark_words(self.weight_words()?) } else { Some(0) }
    }

    /// Blocks of the input channels of a panel's group.
    fn blocks(&self, panel: Panel) -> Range<usize> {
        0..panel.in_words.div_ceil(self.pixel())
    }

    fn out_blocks(&self) -> usize {
        self.out_channels.div_ceil(LANES)
    }

    /// Words of an image.
    fn input_image(&self) -> usize {
        self.in_channels.div_ceil(self.operands.per_word()).next_multiple_of(self.in_block())
            * self.window.input_plane()
    }

    /// The window over the pixels that tiles read. A 1 x 1 kernel with stride 1 sees an image as one column.
    fn geometry(&self) -> Window {
        let window = if self.is_packed() { self.padded() } else { self.window };
        let Window { input, output, kernel, stride, pad, .. } = window;
        match kernel == [1, 1] && stride == [1, 1] && pad == [0, 0] && input == output {
            true => Window { input: [input[0] * input[1], 1], output: [output[0] * output[1], 1], ..window },
            false => window,
        }
    }

    /// The terms of the outputs of a region, those of words that packed pixels are filled up with included if `fills_up`.
    fn k_loops(&self, window: &Window, panel: Panel, region: &Region, fills_up: bool) -> [KLoop; 2] {
        let (ins, plane, pixel) = (panel.in_words, window.input_plane(), self.pixel());
        let width = self.weight_row(panel);
        let (row_taps, column_taps) = (&region.rows.taps, &region.columns.taps);
        let k_loop = |first: usize, blocks: usize, depth: usize, words: usize| {
            let mut block = Loop { iterations: blocks, x: pixel * plane, weights: window.taps() * depth * width };
            let mut row = Loop {
                iterations: row_taps.len(),
                x: window.dilation[0] * window.input[1] * pixel,
                weights: window.kernel[1] * depth * width,
            };
            let mut column =
                Loop { iterations: column_taps.len(), x: window.dilation[1] * pixel, weights: depth * width };
            let cell = row_taps.start * window.kernel[1] + column_taps.start;
            let x = (panel.in_word + first) * plane;
            let weights = panel.weights + (first * window.taps() + cell * depth) * width;
            let mut words = words;
            // Taps that are neighbors in memory need no loop.
            if column.x == words {
                (column, words) = (Loop::ONCE, words * column.iterations);
            }
            // Loops of one iteration go outwards.
            if column.iterations == 1 {
                (row, column) = (Loop::ONCE, row);
            }
            if column.iterations == 1 {
                (block, column) = (Loop::ONCE, block);
            }
            KLoop { x, weights, loops: [block, row, column], depth: words }
        };
        if self.is_packed() {
            let (depth, words) = (self.depth(), self.in_words());
            // One long loop is worth an eighth of the products.
            let words = if fills_up || 7 * depth <= 8 * words { depth } else { words };
            return [k_loop(0, 1, depth, words), k_loop(0, 0, 0, 0)];
        }
        // The last block may not be full.
        let full = region.blocks.start..region.blocks.end.min(ins / pixel);
        let rest = if full.end < region.blocks.end { ins % pixel } else { 0 };
        let last = k_loop(ins - rest, usize::from(0 < rest), rest, rest);
        [k_loop(full.start * pixel, full.len(), pixel, pixel), last]
    }
}

impl KernelFn for ConvBlocked {
    const NAME: &'static str = "conv_blocked";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvBlocked { batch, in_channels, out_channels, groups, window, .. } = self;
        window.check()?;
        if self.is_packed() && (1 < *groups || 1 < self.joined) {
            return Err(InvalidKernel("`algorithm` Packed requires one group"));
        }
        if self.is_packed() && PACKED_CHANNELS_MAX < *in_channels {
            return Err(InvalidKernel("sizes must not overflow"));
        }
        check_groups(*groups, *in_channels, *out_channels)?;
        if !(1..=LANES).contains(&self.joined) {
            return Err(InvalidKernel("`joined` must be from 1 to 16"));
        }
        let [ins, outs] = self.part_channels().map(|channels| channels.checked_mul(self.joined));
        let [ins, outs] = [ins, outs].map(|channels| channels.ok_or(InvalidKernel("sizes must not overflow")));
        let (ins, outs) = (ins?, outs?);
        if 1 < self.units() && (!self.in_words().is_multiple_of(self.in_block()) || outs % LANES != 0) {
            return Err(InvalidKernel("channels of each group must fill blocks of 16"));
        }
        let fills = if self.reads_blocks() { ins % self.operands.per_word() == 0 } else { self.is_packed() };
        if self.operands != StorageType::F32 && !fills {
            return Err(InvalidKernel(
                "channels must fill words of four bytes; row-major f16, bf16 and u8 must be packed",
            ));
        }
        if self.weights.is_some() && [self.operands, self.result] != [StorageType::F32; 2] {
            return Err(InvalidKernel("`weights` must be of operands and results of f32"));
        }
        let bytes = self.operands.is_byte();
        if self.operands == StorageType::I8 {
            return Err(InvalidKernel("int8 operands must be u8"));
        }
        let added = self.epilogue.quantized_sum.is_some();
        if added != (bytes && self.epilogue.residual) || (added && !self.result.is_byte()) {
            return Err(InvalidKernel(
                "a residual of u8 operands must be in a quantized sum of bytes; others have none",
            ));
        }
        if added && self.epilogue.limits().is_none() {
            return Err(InvalidKernel("functions in front of a quantized sum must be a clamp"));
        }
        if self.epilogue.scale != bytes || (!bytes && self.zero_point != 0) {
            return Err(InvalidKernel("u8 operands require a scale; only they may have a scale and a zero point"));
        }
        let lanes = product(&[self.out_blocks(), LANES]).ok_or(InvalidKernel("sizes must not overflow"))?;
        let bytes_of = |elements: &[usize], stored: StorageType| product(elements)?.checked_mul(stored.size());
        let output = bytes_of(&[*batch, lanes, window.output[0], window.output[1]], self.result);
        let lanes_in =
            if self.reads_blocks() { in_channels.checked_next_multiple_of(LANES) } else { Some(*in_channels) };
        let lanes_in = lanes_in.ok_or(InvalidKernel("sizes must not overflow"))?;
        let x = bytes_of(&[*batch, lanes_in, window.input[0], window.input[1]], self.operands);
        let weights = weights::words(self.weights, self.weight_words(), Some(lanes));
        let weights = weights.and_then(|words| words.checked_mul(4));
        let shifts = self.shift_words().and_then(|words| words.checked_mul(4));
        let marks = self.mark_words().and_then(|words| words.checked_mul(4));
        let more = shifts.zip(marks).and_then(|(shifts, marks)| shifts.checked_add(marks));
        let weights = weights.zip(more).and_then(|(weights, more)| weights.checked_add(more));
        let mut inputs: SmallVec<[Option<usize>; 8]> = SmallVec::from_slice(&[x, weights]);
        inputs.extend(self.epilogue.operand_bytes(Some(lanes), output));
        let gathered = self.packed_words().and_then(|words| words.checked_mul(4));
        Sizes::with_workspace(&inputs, output, gathered, 1)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        match input {
            Some(0 | 1) => self.operands.size(),
            Some(ix) if ix < self.epilogue.residual_at() => 4,
            _ => self.result.size(),
        }
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == self.epilogue.residual_at()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[u8] = input(&args, 0);
        let weights: &[Word] = input(&args, 1);
        let scale: Option<&[f32]> = self.epilogue.scale.then(|| input(&args, 2));
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, self.epilogue.bias_at()));
        let residual: Option<Option<&[u8]>> =
            self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let out: &mut [u8] = args.outputs[0];
        if out.is_empty() {
            return;
        }
        let lanes = self.out_blocks() * LANES;
        let shifts = self.shift_words().expect("`sizes` computed it");
        let (weights, corners) = weights.split_at(weights.len() - shifts);
        let (weights, marks) = weights.split_at(weights.len() - self.mark_words().expect("`sizes` computed it"));
        let (weights, scales) = self.split_weights(weights);
        let marks = self.operands.is_byte().then(|| Marks::new(weights, marks));
        assert_eq!(
            out.len(),
            self.batch * lanes * self.window.output_plane() * self.result.size(),
            "the output must have its size"
        );
        assert!(
            [scale, bias].into_iter().flatten().all(|vector| vector.len() == lanes),
            "scale and bias must have an element for each lane"
        );
        assert!(
            residual.flatten().is_none_or(|residual| residual.len() == out.len()),
            "the residual must have the output's size"
        );

        let x: &[Word] = match self.is_packed() {
            true => {
                let gathered: &mut [Word] = elements_mut(args.workspace);
                self.pack_input(x, gathered, pool);
                &*gathered
            }
            false => bytemuck::cast_slice(x),
        };
        assert_eq!(x.len(), self.batch * self.read_image(), "the tiles' input must have its size");
        let (limits, functions) = self.epilogue.limits_and_functions();
        let window = self.geometry();
        let (out, out_plane) = (&SharedMut::new(out), window.output_plane());
        let (isa, by_taps, origin) = (pool.isa(), self.by_taps(), 0);
        let (out_row, out_column) = (window.output[1], 1);
        let job = Job {
            conv: self,
            window,
            isa,
            by_taps,
            x,
            weights,
            scales,
            marks,
            corners,
            scale,
            bias,
            residual,
            limits,
            functions,
            out,
            out_plane,
            out_row,
            out_column,
            origin,
        };
        job.run_all(pool);
    }
}

impl Job<'_> {
    /// Computes all panels of all images.
    fn run_all(&self, pool: &Pool) {
        let (conv, window) = (self.conv, &self.window);
        let (split, panels) = (conv.split(window), conv.panels());
        let parts = split.image_parts * split.row_parts;
        // Large images: all panels of a part, while its pixels are cached; otherwise all parts of a panel.
        let place = |task: usize| match window.output_plane() < PLANE_LARGE {
            true => (task / parts, task % parts),
            false => (task % panels, task / panels),
        };
        pool.run(panels * parts, &|task| {
            let (panel, part) = place(task);
            // The panel that this thread probably computes next, if no thread has read its weights yet.
            let (next, next_part) = place(task + 1);
            let next = (next != panel && next < panels && next_part == 0).then(|| conv.panel(next));
            let (image, row) = (part / split.row_parts * split.images, part % split.row_parts * split.rows);
            let images = image..conv.batch.min(image + split.images);
            let rows = row..window.output[0].min(row + split.rows);
            self.run(conv.panel(panel), images, rows, next);
        });
    }
}

/// The operands that tasks share. The slices have the sizes that `sizes` states.
struct Job<'a> {
    conv: &'a ConvBlocked,
    window: Window,
    isa: Isa,
    by_taps: bool,
    x: &'a [Word],
    weights: &'a [Word],
    /// The scales of int8 weights of `f32` operands.
    scales: &'a [f32],
    marks: Option<Marks<'a>>,
    /// The contribution of the zero point to sums, see `zero_point.rs`.
    corners: &'a [Word],
    scale: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [u8]>>,
    limits: Option<[f32; 2]>,
    /// Functions after the bounds.
    functions: &'a [Unary],
    out: &'a SharedMut<'a, u8>,
    /// Pixels of a block of the output, and from one of its rows and pixels to the next that is computed.
    out_plane: usize,
    out_row: usize,
    out_column: usize,
    /// The element of the output where the first pixel of the window's first image would be, modulo 2^64: it may be in
    /// front of the output.
    origin: usize,
}

impl Job<'_> {
    /// Computes a panel of some rows of some images, and prefetches the weights of another.
    fn run(&self, panel: Panel, images: Range<usize>, rows: Range<usize>, next: Option<Panel>) {
        let window = &self.window;
        let mut prefetch = self.prefetch(next, images.len() * rows.len() * window.output[1]);
        let prefetch = &mut prefetch;
        if self.by_taps {
            let all = |axis: usize| Run { range: 0..window.output[axis], taps: 0..0 };
            let blocks = self.conv.blocks(panel);
            let region = |rows, columns| Region { images: images.clone(), rows, columns, blocks: blocks.clone() };
            for (ix, cell) in cells_by_cover(window).enumerate() {
                let [rows, columns] =
                    [0, 1].map(|axis| Run { range: window.inside(axis, cell[axis]), taps: cell[axis]..cell[axis] + 1 });
                self.run_region(panel, &region(rows, columns), Pass { first: ix == 0, last: false }, prefetch);
            }
            self.run_region(panel, &region(all(0), all(1)), Pass { first: false, last: true }, prefetch);
            return;
        }
        let mut row = rows.start;
        while row < rows.end {
            let row_run = Run::new(window, 0, row..rows.end);
            row = row_run.range.end;
            let mut column = 0;
            while column < window.output[1] {
                let columns = Run::new(window, 1, column..window.output[1]);
                column = columns.range.end;
                let (images, rows, blocks) = (images.clone(), row_run.clone(), self.conv.blocks(panel));
                self.run_in_parts(panel, Region { images, rows, columns, blocks }, prefetch);
            }
        }
    }

    /// Computes a region. If the weights of all terms would leave the second-level cache between two tiles, all outputs
    /// sum a part of the terms at a time.
    fn run_in_parts(&self, panel: Panel, mut region: Region, prefetch: &mut Prefetch) {
        let (blocks, taps) = (region.blocks.clone(), region.rows.taps.clone());
        let Some([part_blocks, part_taps]) = self.conv.part_of_terms(&region) else {
            self.run_region(panel, &region, Pass { first: true, last: true }, prefetch);
            return;
        };
        for block in blocks.clone().step_by(part_blocks) {
            for tap in taps.clone().step_by(part_taps) {
                region.blocks = block..blocks.end.min(block + part_blocks);
                region.rows.taps = tap..taps.end.min(tap + part_taps);
                let first = block == blocks.start && tap == taps.start;
                let last = region.blocks.end == blocks.end && region.rows.taps.end == taps.end;
                self.run_region(panel, &region, Pass { first, last }, prefetch);
            }
        }
    }

    /// The weights of a panel, to be prefetched while `pixels` pixels of another are computed.
    fn prefetch(&self, panel: Option<Panel>, pixels: usize) -> Prefetch {
        let Some(panel) = panel else { return Prefetch::NONE };
        let (conv, taps) = (self.conv, self.window.taps());
        let (words, block) =
            if conv.is_packed() { (conv.depth(), conv.depth()) } else { (panel.in_words, conv.in_block()) };
        // An upper bound: taps that fall on padding are skipped.
        let steps = pixels.div_ceil(self.rows_max(block)) * Prefetch::steps(words.div_ceil(block.max(1)) * taps, block);
        let size = weights::weight_size(conv.weights);
        let start = self.weights.as_ptr().wrapping_byte_add(panel.weights * size);
        Prefetch::new(start, panel.blocks * LANES * words * taps * size / size_of::<Word>(), steps)
    }

    /// The most rows of a tile over `depth` words.
    fn rows_max(&self, depth: usize) -> usize {
        match tile::prefers_strided_rows(self.isa, self.conv.operands) {
            true => tile::strided_rows_max(depth),
            false => tile::rows_max(self.isa),
        }
    }

    /// The initial value of a panel's sums; for int8 their dequantization, which adds `shift` before the scale.
    fn start(&self, panel: Panel, shift: &[i32; PANEL]) -> Init {
        let of_panel = |vector: &[f32]| vector[panel.block * LANES..].as_ptr();
        match (self.scale.map(of_panel), self.bias.map(of_panel)) {
            (Some(scale), bias) => Init::Dequant(Dequant {
                start: shift.as_ptr(),
                scale: Some(scale),
                bias,
                quantized_sum: self.conv.epilogue.quantized_sum,
            }),
            (None, Some(bias)) => Init::Bias(bias),
            (None, None) => Init::Zero,
        }
    }

    /// Adds the terms of a region's taps to its outputs.
    fn run_region(&self, panel: Panel, region: &Region, pass: Pass, prefetch: &mut Prefetch) {
        let (conv, window) = (self.conv, &self.window);
        let lines = tile::prefers_strided_rows(self.isa, conv.operands);
        let k_loops = conv.k_loops(window, panel, region, lines);
        let shift = conv.shift(self.corners, panel, &region.rows.taps, &region.columns.taps);
        let tile = Tile {
            operands: conv.operands,
            x: self.x.as_ptr(),
            weights: self.weights.as_ptr(),
            compact: Compact::of(conv.weights, self.scales, panel.block * LANES),
            weight_stride: conv.weight_row(panel),
            weight_vector: conv.weight_vector(panel),
            result: conv.result,
            out: self.out.start(),
            rows: &[],
            vectors: panel.blocks,
            vector_stride: self.out_plane * LANES,
            k_loops: &k_loops[..if k_loops[1].depth == 0 { 1 } else { 2 }],
            init: if pass.first { self.start(panel, &shift) } else { Init::Accumulate },
            // The output may hold it, so it is added before sums overwrite it.
            residual: match self.residual {
                Some(items) if pass.first => Some(items.map_or(self.out.start().cast_const(), <[u8]>::as_ptr)),
                _ => None,
            },
            limits: if pass.last { self.limits } else { None },
            marks: self.marks,
            read_back: false,
            prefetch: Prefetch::NONE,
            repeat: Repeat::ONCE,
        };
        let mut walk = Walk::new(self, panel, region);
        let even: [Row; STRIDED_ROWS_MAX] =
            std::array::from_fn(|ix| Row { x: ix.wrapping_mul(walk.step.x), out: ix.wrapping_mul(walk.step.out) });
        let mut rest = region.outputs();
        let rows_max = match tile.k_loops {
            [k_loop] => self.rows_max(k_loop.depth),
            _ => tile::rows_max(self.isa),
        };
        let together = lines && conv.is_packed() && tile.k_loops.len() == 1;
        if let Some(positions) = together.then(|| walk.positions(rows_max)).flatten() {
            for image in 0..region.images.len() {
                self.run_lines_together(&walk, &tile, image, positions, rows_max, prefetch);
            }
            return;
        }
        while rest != 0 {
            let next = if lines { walk.line_rest() } else { rest };
            let heights = tile::heights(next, rows_max);
            let (count, tiles) = if heights[0].1 == 0 { heights[1] } else { heights[0] };
            let mut places = [Row::default(); ROWS];
            let (base, rows, repeat) = if count <= walk.line_rest() {
                let iterations = tiles.min(walk.line_rest() / count);
                let repeat = Repeat { iterations, x: count * walk.step.x, weights: 0, out: count * walk.step.out };
                (walk.skip(count * iterations), &even[..count], repeat)
            } else {
                places[..count].iter_mut().for_each(|row| *row = walk.skip(1));
                (Row::default(), &places[..count], Repeat::ONCE)
            };
            rest -= count * repeat.iterations;
            // SAFETY: `run` and `run_rows` checked the sizes of the slices. The region's taps are in the image for all
            // its pixels, so every pixel, input channel and tap is an element of `x`; weights, bias and residual have
            // an element for each tap, channel and output of the panel. Its outputs belong to this task: tasks differ
            // in panel, image or row, or the caller of `run_rows` promises it.
            unsafe {
                let start = base.out * conv.result.size();
                let residual = tile.residual.map(|residual| residual.add(start));
                let (x, out, prefetch) =
                    (tile.x.add(base.x), tile.out.add(start), prefetch.share(tile.k_loops, repeat.iterations));
                let tile = Tile { x, out, rows, residual, prefetch, repeat, ..tile };
                finish::multiply(self.isa, &tile, if pass.last { self.functions } else { &[] });
            }
        }
    }

    /// Computes all rows of a region in one image as one strip: `positions` pixels per row, whose first ones are
    /// outputs.
    fn run_lines_together(
        &self,
        walk: &Walk,
        tile: &Tile,
        image: usize,
        positions: usize,
        rows_max: usize,
        prefetch: &mut Prefetch,
    ) {
        let place = walk.image(image);
        let mut at = 0;
        while let Some((first, count)) = walk.next_positions(at, positions, rows_max) {
            at = first + count;
            let mut rows = [Row::default(); STRIDED_ROWS_MAX];
            let mut wanted = 0;
            for (ix, row) in rows[..count].iter_mut().enumerate() {
                let (line, column) = ((first + ix) / positions, (first + ix) % positions);
                wanted |= u32::from(column < walk.line) << ix;
                let out = line * walk.line_step.out + column.min(walk.line - 1) * walk.step.out;
                *row = Row { x: (first + ix) * walk.step.x, out };
            }
            // SAFETY: as in `run_region`. Pixels that are read for a discarded position are between pixels that outputs
            // use, because a row of the same image follows.
            unsafe {
                let start = place.out * self.conv.result.size();
                let residual = tile.residual.map(|residual| residual.add(start));
                let (x, out) = (tile.x.add(place.x), tile.out.add(start));
                let (rows, prefetch) = (&rows[..count], prefetch.share(tile.k_loops, 1));
                let tile = Tile { x, out, rows, residual, prefetch, ..*tile };
                finish::multiply_wanted(self.isa, &tile, self.functions, wanted);
            }
        }
    }
}

/// Whether a pass over outputs initializes their sums, and whether it finishes them.
#[derive(Clone, Copy)]
struct Pass {
    first: bool,
    last: bool,
}

#[cfg(test)]
mod tests;
