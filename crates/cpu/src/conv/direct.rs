//! [`ConvBlocked`]: convolution of pictures whose channels lie in blocks of sixteen.
//!
//! No patch of the input is copied: the tile of `tile.rs` reads pixels where they lie. Unless pictures are gathered (below),
//! the taps of the kernel that fall on padding are left out. Which they are depends on the row and the column of an output, so the outputs are cut into
//! rectangles in which all use the same taps, and each rectangle into tiles, which run over its rows:
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
//! Of halves and bytes a block of channels is few words, and the matrix unit takes sixteen at a time: where each pixel is used
//! often enough, all its channels are brought side by side first (`gathered`), and are one block. So are the few planes of a
//! first layer, where the channels of all cells in a row of the kernel are then neighbours. Padding is copied with them,
//! pixels like others. The unit likes many pixels at one distance: where lines are short, it takes several in one go, with what
//! lies between them, of which nothing becomes.
//!
//! A task is a panel of 32 output channels and some rows of pictures. How tasks are cut depends on the shape alone.

mod fused_stage;
mod pack_input;
mod pack_weights;
mod partition;
mod regions;
mod zero_point;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;

pub(crate) use self::fused_stage::Stage;
use self::partition::{PLANE_LARGE, Panel};
use self::regions::{Region, Run, Walk, cells_by_cover};
use crate::conv::Window;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::finish;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{self, Dequant, Init, KLoop, Loop, ROWS, Repeat, Row, STRIDED_ROWS_MAX, Tile, Word};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Channels of a panel, and of a tile.
pub(crate) const PANEL: usize = 2 * LANES;
/// More channels are never gathered.
const PACKED_CHANNELS_MAX: usize = 1 << 30;
/// So few words of a gathered pixel are not filled up.
const FEW_WORDS: usize = 4;
/// Distances in bytes whose multiples compete for places in a first cache.
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
    /// From a copy in the workspace with padding, in which all channels of a pixel are neighbours (NHWC): for operands of
    /// which a block has few words, and instructions that take many at once.
    Packed,
}

/// Convolution of `x: [batch, in_channels, rows, columns]` with packed weights; then by the epilogue a bias (with an
/// element for each lane of the output's blocks) and a residual. Output: `[batch, out_channels, rows, columns]` in blocks
/// of sixteen channels, as is the residual. The bias is `f32`, and what a result is before it is rounded.
///
/// Of bytes, `x` without sign and weights with one, the sums are exact, and a scale makes numbers of them.
///
/// Refuses: groups whose channels do not fill their blocks; halves and bytes that do not fill words of four bytes or are
/// row-major and not gathered; sums of bytes without a scale or with a residual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvBlocked {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Rows and columns.
    pub window: Window,
    /// The layout of `x`.
    pub layout: ImageLayout,
    /// How tiles read `x`.
    pub algorithm: ConvAlgorithm,
    /// How `x` and the weights are stored: of `u8`, the weights as `i8`.
    pub operands: StorageType,
    /// What is subtracted from each byte of `x`; padding counts 0 all the same.
    pub zero_point: u8,
    /// How the residual and the results are stored.
    pub result: StorageType,
    /// What happens to each result.
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

    /// Words of the operand that lie side by side: a block of channels.
    fn in_block(&self) -> usize {
        if self.reads_blocks() { LANES / self.operands.per_word() } else { 1 }
    }

    /// Words of a gathered pixel that are multiplied: whole rows of the matrix unit's registers, if need be filled up. Few
    /// words stay as they are, as those of all cells in a row of the kernel are neighbours.
    fn depth(&self) -> usize {
        match self.in_channels.div_ceil(self.operands.per_word()) {
            words @ 0..=FEW_WORDS => words,
            words => words.next_multiple_of(LANES),
        }
    }

    /// Words from pixel to pixel of what tiles read. Gathered pixels at a multiple of 4 kB would compete for the same few
    /// places in the first cache.
    fn pixel(&self) -> usize {
        match self.is_packed() {
            true if (4 * self.depth()).is_multiple_of(PACKED_STEP) => self.depth() + LANES,
            true => self.depth(),
            false => self.in_block(),
        }
    }

    /// Words of a group's input channels.
    fn in_words(&self) -> usize {
        (self.in_channels / self.groups).div_ceil(self.operands.per_word())
    }

    fn out_blocks(&self) -> usize {
        self.out_channels.div_ceil(LANES)
    }

    /// Words of a picture.
    fn input_image(&self) -> usize {
        self.in_channels.div_ceil(self.operands.per_word()).next_multiple_of(self.in_block())
            * self.window.input_plane()
    }

    /// The window over what tiles read; where each output sees the one pixel at its own place, a picture is one column.
    fn geometry(&self) -> Window {
        let window = if self.is_packed() { self.padded() } else { self.window };
        let Window { input, output, kernel, stride, pad, .. } = window;
        match kernel == [1, 1] && stride == [1, 1] && pad == [0, 0] && input == output {
            true => Window { input: [input[0] * input[1], 1], output: [output[0] * output[1], 1], ..window },
            false => window,
        }
    }

    /// The terms of the outputs of a region.
    fn k_loops(&self, window: &Window, panel: Panel, region: &Region) -> [KLoop; 2] {
        let (ins, plane, pixel) = (self.in_words(), window.input_plane(), self.pixel());
        let width = panel.blocks * LANES;
        let (row_taps, column_taps) = (&region.rows.taps, &region.columns.taps);
        let k_loop = |first: usize, blocks: usize, depth: usize| {
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
            let mut depth = depth;
            // Where neighbours in a row of the kernel are neighbours in memory too, they need no loop.
            if column.x == depth {
                (column, depth) = (Loop::ONCE, depth * column.iterations);
            }
            // Loops of one turn go outwards.
            if column.iterations == 1 {
                (row, column) = (Loop::ONCE, row);
            }
            if column.iterations == 1 {
                (block, column) = (Loop::ONCE, block);
            }
            KLoop { x, weights, loops: [block, row, column], depth }
        };
        if self.is_packed() {
            return [k_loop(0, 1, self.depth()), k_loop(0, 0, 0)];
        }
        let rest = ins % pixel;
        [k_loop(0, ins / pixel, pixel), k_loop(ins - rest, usize::from(0 < rest), rest)]
    }
}

impl KernelFn for ConvBlocked {
    const NAME: &'static str = "conv_blocked";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvBlocked { batch, in_channels, out_channels, groups, window, .. } = self;
        window.check()?;
        if self.is_packed() && (self.operands == StorageType::F32 || 1 < *groups) {
            return Err(InvalidKernel("halves and bytes of one group are gathered, and nothing else"));
        }
        if self.is_packed() && PACKED_CHANNELS_MAX < *in_channels {
            return Err(InvalidKernel("its sizes overflow"));
        }
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Err(InvalidKernel("the groups do not divide the channels"));
        }
        let (ins, outs) = (in_channels / groups, out_channels / groups);
        if 1 < *groups && (!self.in_words().is_multiple_of(self.in_block()) || outs % LANES != 0) {
            return Err(InvalidKernel("the groups' channels do not fill their blocks"));
        }
        let fills = if self.reads_blocks() { ins % self.operands.per_word() == 0 } else { self.is_packed() };
        if self.operands != StorageType::F32 && !fills {
            return Err(InvalidKernel(
                "halves come in pairs and bytes by fours, from blocks, or are gathered from planes",
            ));
        }
        let bytes = self.operands.is_byte();
        if self.operands == StorageType::I8 || (bytes && self.epilogue.residual) {
            return Err(InvalidKernel("bytes have no sign, and their sums no residual"));
        }
        if self.epilogue.scale != bytes || (!bytes && self.zero_point != 0) {
            return Err(InvalidKernel("sums of bytes have a scale, and no others; nor has anything else a zero point"));
        }
        let lanes = product(&[self.out_blocks(), LANES]).ok_or(InvalidKernel("its sizes overflow"))?;
        let bytes_of = |elements: &[usize], stored: StorageType| product(elements)?.checked_mul(stored.size());
        let output = bytes_of(&[*batch, lanes, window.output[0], window.output[1]], self.result);
        let lanes_in =
            if self.reads_blocks() { in_channels.checked_next_multiple_of(LANES) } else { Some(*in_channels) };
        let lanes_in = lanes_in.ok_or(InvalidKernel("its sizes overflow"))?;
        let x = bytes_of(&[*batch, lanes_in, window.input[0], window.input[1]], self.operands);
        let ins = if self.is_packed() { self.depth() * self.operands.per_word() } else { ins };
        let weights = bytes_of(&[lanes, ins, window.kernel[0], window.kernel[1]], self.operands);
        let shifts = self.shift_words().and_then(|words| words.checked_mul(4));
        let weights = weights.zip(shifts).and_then(|(weights, shifts)| weights.checked_add(shifts));
        let mut inputs = vec![x, weights];
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
        let words = if self.is_packed() { self.depth() } else { self.in_words() };
        assert_eq!(weights.len(), lanes * words * self.window.taps() + shifts, "and the weights");
        let (weights, corners) = weights.split_at(weights.len() - shifts);
        assert_eq!(out.len(), self.batch * lanes * self.window.output_plane() * self.result.size(), "and the output");
        assert!([scale, bias].into_iter().flatten().all(|vector| vector.len() == lanes), "and scale and bias");
        assert!(residual.flatten().is_none_or(|residual| residual.len() == out.len()), "and the residual");

        let x: &[Word] = match self.is_packed() {
            true => {
                let gathered: &mut [Word] = elements_mut(args.workspace);
                self.pack_input(x, gathered, pool);
                &*gathered
            }
            false => bytemuck::cast_slice(x),
        };
        assert_eq!(x.len(), self.batch * self.read_image(), "what tiles read has its size");
        let (limits, functions) = self.epilogue.limits_and_functions();
        let (window, split, panels) = (self.geometry(), self.split(), self.panels());
        let (out, out_plane) = (&SharedMut::new(out), window.output_plane());
        let (isa, by_taps, origin) = (pool.isa(), self.by_taps(), 0);
        let job = Job {
            conv: self,
            window,
            isa,
            by_taps,
            x,
            weights,
            corners,
            scale,
            bias,
            residual,
            limits,
            functions,
            out,
            out_plane,
            origin,
        };
        let parts = split.image_parts * split.row_parts;
        // Large pictures: all panels of a part, while its pixels are near; otherwise all parts of a panel.
        let place = |task: usize| match window.output_plane() < PLANE_LARGE {
            true => (task / parts, task % parts),
            false => (task % panels, task / panels),
        };
        pool.run(panels * parts, &|task| {
            let (panel, part) = place(task);
            // What this thread will likely go on with, if nobody has seen its weights yet.
            let (next, next_part) = place(task + 1);
            let next = (next != panel && next < panels && next_part == 0).then(|| self.panel(next));
            let (image, row) = (part / split.row_parts * split.images, part % split.row_parts * split.rows);
            let images = image..self.batch.min(image + split.images);
            let rows = row..window.output[0].min(row + split.rows);
            job.run(self.panel(panel), images, rows, next);
        });
    }
}

/// What all tasks of a run know. The slices have the sizes that `sizes` states.
struct Job<'a> {
    conv: &'a ConvBlocked,
    window: Window,
    isa: Isa,
    by_taps: bool,
    x: &'a [Word],
    weights: &'a [Word],
    /// What the zero point adds to sums.
    corners: &'a [Word],
    scale: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [u8]>>,
    limits: Option<[f32; 2]>,
    /// What is applied after the limits.
    functions: &'a [Unary],
    out: &'a SharedMut<'a, u8>,
    /// Pixels of a block of the output.
    out_plane: usize,
    /// Where the first pixel of the window's first picture would be, in elements of the output, modulo 2^64: it may lie in
    /// front of it.
    origin: usize,
}

impl Job<'_> {
    /// A panel's channels of some rows of some pictures. Meanwhile the weights of another panel are asked for.
    fn run(&self, panel: Panel, images: Range<usize>, rows: Range<usize>, next: Option<Panel>) {
        let window = &self.window;
        let mut prefetch = self.prefetch(next, images.len() * rows.len() * window.output[1]);
        let prefetch = &mut prefetch;
        if self.by_taps {
            let all = |axis: usize| Run { range: 0..window.output[axis], taps: 0..0 };
            let region = |rows: Run, columns: Run| Region { images: images.clone(), rows, columns };
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
                let region = Region { images: images.clone(), rows: row_run.clone(), columns };
                self.run_region(panel, &region, Pass { first: true, last: true }, prefetch);
            }
        }
    }

    /// The weights of a panel, to be asked for while so many pixels of another are computed.
    fn prefetch(&self, panel: Option<Panel>, pixels: usize) -> Prefetch {
        let Some(panel) = panel else { return Prefetch::NONE };
        let (conv, taps) = (self.conv, self.window.taps());
        let (words, block) =
            if conv.is_packed() { (conv.depth(), conv.depth()) } else { (conv.in_words(), conv.in_block()) };
        // There are fewer, as taps that fall on padding are left out.
        let steps = pixels.div_ceil(self.rows_max(block)) * Prefetch::steps(words.div_ceil(block.max(1)) * taps, block);
        Prefetch::new(self.weights[panel.weights..].as_ptr(), panel.blocks * LANES * words * taps, steps)
    }

    /// The most rows of a tile over k_loops of so many words.
    fn rows_max(&self, depth: usize) -> usize {
        match tile::prefers_strided_rows(self.isa, self.conv.operands) {
            true => tile::strided_rows_max(depth),
            false => tile::rows_max(self.isa),
        }
    }

    /// What a panel's sums begin with, or what is added to those of bytes: `shift` before they are scaled.
    fn start(&self, panel: Panel, shift: &[i32; PANEL]) -> Init {
        let of_panel = |vector: &[f32]| vector[panel.block * LANES..].as_ptr();
        match (self.scale.map(of_panel), self.bias.map(of_panel)) {
            (Some(scale), bias) => Init::Dequant(Dequant { start: shift.as_ptr(), scale: Some(scale), bias }),
            (None, Some(bias)) => Init::Bias(bias),
            (None, None) => Init::Zero,
        }
    }

    /// Adds the terms of a region's taps to its outputs.
    fn run_region(&self, panel: Panel, region: &Region, pass: Pass, prefetch: &mut Prefetch) {
        let (conv, window) = (self.conv, &self.window);
        let k_loops = conv.k_loops(window, panel, region);
        let shift = conv.shift(self.corners, panel, &region.rows.taps, &region.columns.taps);
        let tile = Tile {
            operands: conv.operands,
            x: self.x.as_ptr(),
            weights: self.weights.as_ptr(),
            weight_stride: panel.blocks * LANES,
            result: conv.result,
            out: self.out.start(),
            rows: &[],
            vectors: panel.blocks,
            vector_stride: self.out_plane * LANES,
            k_loops: &k_loops[..if k_loops[1].depth == 0 { 1 } else { 2 }],
            init: if pass.first { self.start(panel, &shift) } else { Init::Accumulate },
            // The output may hold it, so it is added before other sums take its place.
            residual: match self.residual {
                Some(items) if pass.first => Some(items.map_or(self.out.start().cast_const(), <[u8]>::as_ptr)),
                _ => None,
            },
            limits: if pass.last { self.limits } else { None },
            prefetch: Prefetch::NONE,
            repeat: Repeat::ONCE,
        };
        let mut walk = Walk::new(self, panel, region);
        let even: [Row; STRIDED_ROWS_MAX] =
            std::array::from_fn(|ix| Row { x: ix.wrapping_mul(walk.step.x), out: ix.wrapping_mul(walk.step.out) });
        let mut rest = region.images.len() * region.rows.range.len() * region.columns.range.len();
        let lines = tile::prefers_strided_rows(self.isa, conv.operands);
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
            // SAFETY: `run` and `run_rows` compared the slices with their sizes. The region's taps lie in the picture for all
            // its pixels, so every pixel, input channel and tap is an element of `x`; weights, bias and residual have an
            // element for each tap, channel and output of the panel. Its outputs are this task's alone: tasks differ in
            // panel, picture or row, and who calls `run_rows` promises it.
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

    /// All lines of a region in one picture, each of so many positions, of which the first are outputs.
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
            // SAFETY: as for tiles of single lines, by `run_region`. What is read for a position that is no output lies between
            // pixels that outputs use: it is followed by a line of the same picture.
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

/// Whether the sums of outputs begin with a visit, and whether they end with it.
#[derive(Clone, Copy)]
struct Pass {
    first: bool,
    last: bool,
}

#[cfg(test)]
mod tests;
