//! [`Conv`]: convolution of row-major `f32` images, depthwise and grouped ones included.
//!
//! The blocked convolution (`direct.rs`) has output channels in its lanes and reads packed weights. Here lanes are
//! pixels, because a row-major result has pixels as neighbors, and a group may have few channels. The broadcast
//! operand of the microkernel is the weights `[channel, k]`, its vectors are neighboring input pixels. The two kernels
//! therefore share the microkernel, but not their loops, and stay separate.
//!
//! There is no im2col. Input rows are copied once into the workspace with their padding; a stride divides rows and
//! columns into *phases*, the pixels at one remainder, so that neighboring outputs read neighboring pixels:
//!
//! ```text
//!   stride 2, 3 taps, padding 1      row      _ a b c d e _       _ is padding
//!                                    phase 0  _ b d _             taps 0 and 2 start at its pixels 0 and 1
//!                                    phase 1  a c e               tap 1
//! ```
//!
//! Outputs are counted along the copied rows, padding included; those between two rows of the result are computed and
//! discarded. Without padding and stride the input may be read in place. Sums go to the stack and are stored from there
//! with their epilogue.
//!
//! A *block* is copied at a time: some groups of some images, some rows of one, or some columns of a long row. Its size and
//! its division into tasks depend on the shape alone.

mod copy;
mod few_channels;

use std::mem::MaybeUninit;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;

use crate::conv::row_major::copy::copy_channel;
use crate::conv::row_major::few_channels::few_channels;
use crate::conv::{Window, check_groups};
use crate::gemm::dispatch;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{self, Init, KLoop, Loop, ROWS, Repeat, Row, Tile};
use crate::gemm::weights::Weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// Vectors of a tile, and pixels of one.
const TILE: usize = 2 * LANES;
/// Pixels whose sums are on the stack at a time.
const STAGED: usize = 8 * TILE;
/// Groups with fewer output channels do not fill the rows of a tile.
const FEW_CHANNELS: usize = 3;
/// Multiply-adds of a task that are worth claiming one: about 10 us.
const WORK_MIN: usize = 1 << 17;
/// Tasks to aim at.
const TASKS: usize = 32;
/// Pixels of an image from which on images are copied one by one.
const PLANE_LARGE: usize = 256;
/// Channels from which on they are copied some pixels at a time.
const CHANNELS_COPIED: usize = 64;
/// Elements of such a copy, if they are enough pixels.
const COPY: usize = 1 << 16;
/// Columns of a block at least.
const COLUMNS_MIN: usize = 2 * TILE;
/// Elements that a block may have in any case: with fewer, its division into tasks would take longer than its sums.
const BLOCK_MIN: usize = 1 << 12;
/// Phases of a tile; more are added up in several calls.
const NESTS_MAX: usize = 16;
/// Taps of a phase that are a loop of their own.
const PHASE_LONG: usize = 8;

/// Convolution of `x: [batch, in_channels, rows, columns]` with weights `[out_channels, in_channels / groups, ..kernel]`;
/// then by the epilogue a bias and a residual. Output: `[batch, out_channels, rows, columns]`. All row-major `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Channels of an image; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// Rows and columns.
    pub window: Window,
    /// Whether the weights were packed when the plan was written.
    pub weights: Weights,
    /// Applied to each result.
    pub epilogue: Epilogue,
    /// Elements of a block of the input at most; 4096, and some hundred columns of a row of outputs in one group, are the least
    /// there is.
    pub workspace_max: usize,
}

/// The taps of a kernel's axis that read one phase of the input, the pixels at one remainder by the stride.
#[derive(Clone, Copy, Default)]
struct Phase {
    /// The remainder, in pixels of the padded input.
    remainder: usize,
    /// The pixel of the phase at which the first tap starts, and the distance to the next tap's.
    start: usize,
    step: usize,
    /// The first tap, the distance to the next one, and how many there are.
    tap: usize,
    tap_step: usize,
    taps: usize,
}

/// How the work is divided.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Whether tiles read the input itself.
    in_place: bool,
    /// Groups, images, rows of outputs and columns of outputs of a block. Columns are divided in blocks of one row.
    groups: usize,
    images: usize,
    rows: usize,
    columns: usize,
    /// Columns of a copied row, and rows beyond those of outputs.
    pitch: usize,
    more_rows: usize,
    /// Copies of a channel along rows and columns: one for each phase, or for each tap of a row.
    copies: [usize; 2],
    /// Elements of the copy of a whole block.
    elements: usize,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Conv {
    /// Elements of a block where memory does not matter: 1 MB.
    pub const WORKSPACE_MAX: usize = 1 << 18;

    fn phases(&self, axis: usize) -> usize {
        let Window { kernel, stride, dilation, .. } = self.window;
        if axis == 1 && self.expands_columns() {
            return 1;
        }
        kernel[axis].min(stride[axis] / gcd(stride[axis], dilation[axis]))
    }

    fn phase(&self, axis: usize, number: usize) -> Phase {
        let Window { kernel, stride, dilation, .. } = self.window;
        if axis == 1 && self.expands_columns() {
            return Phase { remainder: 0, start: 0, step: 0, tap: 0, tap_step: 1, taps: kernel[axis] };
        }
        let (stride, dilation) = (stride[axis], dilation[axis]);
        let common = gcd(stride, dilation);
        let (tap_step, at) = (stride / common, number * dilation);
        Phase {
            remainder: at % stride,
            start: at / stride,
            step: dilation / common,
            tap: number,
            tap_step,
            taps: (kernel[axis] - number).div_ceil(tap_step),
        }
    }

    /// Input channels, output channels, and terms of a group.
    fn group(&self) -> (usize, usize, usize) {
        let (ins, outs) = (self.in_channels / self.groups, self.out_channels / self.groups);
        (ins, outs, ins * self.window.taps())
    }

    /// Whether groups have so few output channels that they are computed one by one.
    fn has_few_channels(&self) -> bool {
        let (_, outs, terms) = self.group();
        outs < FEW_CHANNELS || terms == 0
    }

    /// Whether each tap of a row has a copy of its own, so that neighboring taps are terms at one distance: for strides
    /// over so few channels that taps are the longer loop. Phases with many taps need no copies: their taps are neighbors.
    fn expands_columns(&self) -> bool {
        let ([_, columns], [_, stride]) = (self.window.kernel, self.window.stride);
        let few_taps = 1 < columns && columns < PHASE_LONG * stride;
        !self.has_few_channels() && 1 < stride && few_taps && self.group().0 <= columns.div_ceil(2)
    }

    /// Whether a tap's weights for all channels of a group are neighbors, otherwise a channel's for neighboring taps.
    fn is_tap_major(&self) -> bool {
        let (ins, ..) = self.group();
        !self.has_few_channels() && !self.expands_columns() && self.phase(1, 0).taps < ins
    }

    /// Whether weights are read in the order in which the model has them.
    fn is_plain_order(&self) -> bool {
        let (ins, ..) = self.group();
        self.window.taps() == 1 || (self.phases(0) * self.phases(1) == 1 && (ins == 1 || !self.is_tap_major()))
    }

    /// Weights `[out_channels, in_channels / groups, ..kernel]` as the kernel reads them: the terms of an output channel
    /// phase by phase, in each phase by taps or by channels first.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        assert_eq!(weights.len(), self.out_channels * self.group().2, "the weights must have the kernel's shape");
        self.pack_channels(weights, 0..self.out_channels)
    }

    /// The packed weights of some output channels.
    pub(crate) fn pack_channels(&self, weights: &[f32], outs: Range<usize>) -> Vec<f32> {
        let weights = &weights[outs.start * self.group().2..outs.end * self.group().2];
        let mut packed = vec![0.0; weights.len()];
        let terms = self.group().2.max(1);
        for (from, to) in weights.chunks_exact(terms).zip(packed.chunks_exact_mut(terms)) {
            self.pack_channel(from, to);
        }
        packed
    }

    fn pack_channel(&self, from: &[f32], to: &mut [f32]) {
        let (ins, ..) = self.group();
        let ([_, columns], taps) = (self.window.kernel, self.window.taps());
        let mut to = to.iter_mut();
        let mut put = |channel: usize, row: &Phase, column: &Phase, [y, x]: [usize; 2]| {
            let tap = (row.tap + y * row.tap_step) * columns + column.tap + x * column.tap_step;
            *to.next().expect("there is a place for each weight") = from[channel * taps + tap];
        };
        for (row, column) in (0..self.phases(0)).flat_map(|row| (0..self.phases(1)).map(move |column| (row, column))) {
            let (row, column) = (self.phase(0, row), self.phase(1, column));
            let cells = || (0..row.taps).flat_map(|y| (0..column.taps).map(move |x| [y, x]));
            match self.is_tap_major() {
                true => cells().for_each(|cell| (0..ins).for_each(|channel| put(channel, &row, &column, cell))),
                false => (0..ins).for_each(|channel| cells().for_each(|cell| put(channel, &row, &column, cell))),
            }
        }
    }

    /// Whether tiles read the input itself and not a copy of it.
    pub fn reads_in_place(&self) -> bool {
        self.block().in_place
    }

    /// Whether an input without padding and stride is copied all the same: channels of many pixels are on as many pages, and
    /// many output channels read each.
    fn is_worth_a_copy(&self) -> bool {
        let (ins, outs, _) = self.group();
        CHANNELS_COPIED <= ins && CHANNELS_COPIED <= outs && COPY <= self.workspace_max
    }

    fn block(&self) -> Block {
        let Window { input, output, kernel, stride, dilation, pad } = self.window;
        let reach = |axis: usize| (kernel[axis] - 1) * dilation[axis];
        let is_inside = (0..2).all(|axis| output[axis] + reach(axis) <= input[axis]);
        let (ins, ..) = self.group();
        let first = (output[0].max(1) - 1).saturating_mul(input[1]).saturating_add(output[1]);
        if is_inside && stride == [1, 1] && pad == [0, 0] && TILE <= first && !self.is_worth_a_copy() {
            return Block {
                in_place: true,
                groups: self.groups,
                images: 1,
                rows: output[0],
                columns: output[1],
                pitch: input[1],
                more_rows: input[0] - output[0],
                copies: [1, 1],
                elements: 0,
            };
        }
        let expands = self.expands_columns();
        let copies = [self.phases(0), if expands { kernel[1] } else { self.phases(1) }];
        let more_columns = if expands { 0 } else { reach(1) / stride[1] };
        let mut pitch = output[1] + more_columns;
        let more_rows = reach(0) / stride[0];
        // Of one row of a group in all phases.
        let row =
            [ins.max(1), copies[0], copies[1], pitch].iter().fold(1usize, |all, &each| all.saturating_mul(each)).max(1);
        let of_rows = |rows: usize| row.saturating_mul(rows + more_rows);
        let whole = of_rows(output[0]).max(1);
        let workspace_max = self.workspace_max.max(BLOCK_MIN);
        let fit = |elements: usize| (elements / row).saturating_sub(more_rows).clamp(1, output[0].max(1));
        let most = match ins < CHANNELS_COPIED {
            true => fit(workspace_max),
            false => fit(COPY.min(workspace_max)).max(fit(workspace_max).min(STAGED.div_ceil(pitch.max(1)))),
        };
        let (mut groups, mut images, mut rows) = (1, 1, output[0]);
        if output[0] <= most {
            let pixels = output[0].saturating_mul(pitch).max(1);
            if pixels <= PLANE_LARGE {
                images = (workspace_max / whole).min((2 * PLANE_LARGE).div_ceil(pixels)).clamp(1, self.batch.max(1));
            }
            groups = (workspace_max / whole.saturating_mul(images)).clamp(1, self.groups);
        } else {
            rows = output[0].div_ceil(output[0].div_ceil(most));
        }
        let mut elements = of_rows(rows).saturating_mul(images).saturating_mul(groups);
        let mut columns = output[1];
        let limit = if ins < CHANNELS_COPIED { workspace_max } else { COPY.min(workspace_max) };
        if rows == 1 && limit < elements && STAGED < columns {
            let column = (elements / pitch).max(1);
            let fit = (limit / column).saturating_sub(more_columns).max(COLUMNS_MIN);
            columns = columns.div_ceil(columns.div_ceil(fit)).next_multiple_of(TILE);
            // An odd number of cache lines: channels do not meet in the same sets of a cache.
            pitch = ((columns + more_columns).div_ceil(LANES) | 1) * LANES;
            elements = column.saturating_mul(pitch);
        }
        let elements = elements.saturating_add(TILE);
        Block { in_place: false, groups, images, rows, columns, pitch, more_rows, copies, elements }
    }

    fn workspace(&self) -> (usize, usize) {
        let dynamic = match self.weights {
            Weights::Dynamic if !self.is_plain_order() => self.out_channels.saturating_mul(self.group().2),
            _ => 0,
        };
        (dynamic, self.block().elements)
    }
}

/// A block of the input as it is cut: the last ones may be smaller.
#[derive(Clone, Copy)]
struct Part {
    block: Block,
    group: usize,
    groups: usize,
    image: usize,
    images: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

impl Part {
    /// Elements of an image in one phase, of a phase, and of a channel.
    fn image_step(&self) -> usize {
        (self.rows + self.block.more_rows) * self.block.pitch
    }

    fn phase_step(&self) -> usize {
        self.images * self.image_step()
    }

    fn channel_step(&self) -> usize {
        self.block.copies[0] * self.block.copies[1] * self.phase_step()
    }
}

impl KernelFn for Conv {
    const NAME: &'static str = "conv";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let Conv { batch, in_channels, out_channels, groups, window, .. } = self;
        window.check()?;
        check_groups(*groups, *in_channels, *out_channels)?;
        let output = product(&[*batch, *out_channels, window.output[0], window.output[1]]);
        let x = product(&[*batch, *in_channels, window.input[0], window.input[1]]);
        let weights = product(&[*out_channels, in_channels / groups, window.kernel[0], window.kernel[1]]);
        // Everything that is multiplied below fits where these do.
        Sizes::new(&[x, weights], output, 4)?;
        product(&[in_channels / groups, window.kernel[0], window.kernel[1]])
            .ok_or(InvalidKernel("sizes must not overflow"))?;
        let (own, block) = if output == Some(0) { (0, 0) } else { self.workspace() };
        let mut inputs = vec![x, weights];
        self.epilogue.check_unscaled()?;
        inputs.extend(self.epilogue.operands(*out_channels, output));
        Sizes::with_workspace(&inputs, output, own.checked_add(block), 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, 2));
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let Args { outputs, workspace, .. } = args;
        let out: &mut [f32] = elements_mut(outputs[0]);
        let (ins, _, terms) = self.group();
        let (own, copy) = elements_mut(workspace).split_at_mut(self.workspace().0);
        let weights = if own.is_empty() {
            weights
        } else {
            for_each_chunk(pool, own, terms, &|channel, to| {
                self.pack_channel(&weights[channel * terms..][..terms], to);
            });
            &*own
        };
        assert_eq!(x.len(), self.batch * self.in_channels * self.window.input_plane(), "x must have its size");
        assert_eq!(weights.len(), self.out_channels * terms, "weights must have their size");
        assert_eq!(
            out.len(),
            self.batch * self.out_channels * self.window.output_plane(),
            "the output must have its size"
        );
        assert!(
            bias.is_none_or(|bias| bias.len() == self.out_channels),
            "the bias must have an element for each channel"
        );
        assert!(
            residual.flatten().is_none_or(|residual| residual.len() == out.len()),
            "the residual must have the output's size"
        );
        let (block, out) = (self.block(), SharedMut::new(out));
        // Their divisions would take longer than the sums of few terms.
        let first_phases = |axis: usize| {
            std::array::from_fn(
                |number| if number < self.phases(axis) { self.phase(axis, number) } else { Phase::default() },
            )
        };
        let phases: [[Phase; NESTS_MAX]; 2] = [first_phases(0), first_phases(1)];
        let cuts = |all: usize, step: usize| (0..all).step_by(step.max(1)).map(move |at| (at, step.min(all - at)));
        for (image, images) in cuts(self.batch, block.images) {
            for (group, groups) in cuts(self.groups, block.groups) {
                let rows = cuts(self.window.output[0], block.rows);
                let columns = || cuts(self.window.output[1], block.columns);
                for ((row, rows), (column, columns)) in rows.flat_map(|rows| columns().map(move |each| (rows, each))) {
                    let part = Part { block, group, groups, image, images, row, rows, column, columns };
                    let source = if block.in_place {
                        &x[(image * self.in_channels + group * ins) * self.window.input_plane()..]
                    } else {
                        let cells = groups * ins * part.channel_step();
                        let (cells, rest) = copy.split_at_mut(cells);
                        rest[..TILE].fill(0.0);
                        for_each_chunk(pool, cells, part.channel_step(), &|channel, cells| {
                            let (conv, part, channel) = (self, &part, group * ins + channel);
                            with_vector!(pool.isa(), copy_channel(
                                conv: &Conv, x: &[f32], part: &Part, channel: usize, cells: &mut [f32]
                            ));
                        });
                        &*copy
                    };
                    let line = (part.rows - 1) * block.pitch + part.columns;
                    let pixels = (part.images - 1) * part.image_step() + line;
                    let end = groups.checked_mul(ins).and_then(|channels| channels.checked_mul(part.channel_step()));
                    assert!(end.is_some_and(|end| end <= source.len()), "a block must have its channels");
                    let (isa, nests) = (pool.isa(), None);
                    let mut job = Job {
                        conv: self,
                        phases,
                        nests,
                        part,
                        pixels,
                        source,
                        weights,
                        bias,
                        residual,
                        out: &out,
                        isa,
                    };
                    job.nests = job.all_nests();
                    job.run(pool);
                }
            }
        }
    }
}

/// The operands of a block. The slices have the sizes that `sizes` states.
struct Job<'a> {
    conv: &'a Conv,
    /// The first phases of rows and of columns.
    phases: [[Phase; NESTS_MAX]; 2],
    /// The terms of all outputs, if one call takes them.
    nests: Option<Nests>,
    part: Part,
    /// Pixels along the copied rows, from the first output to the last.
    pixels: usize,
    /// The block's channels, each of `Part::channel_step` elements.
    source: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
    out: &'a SharedMut<'a, f32>,
    isa: Isa,
}

/// Terms of a tile, and the distance of two terms in the source.
#[derive(Clone, Copy)]
struct Nests {
    k_loops: [KLoop; NESTS_MAX],
    count: usize,
    weight_stride: usize,
}

/// Sums of the rows of a tile, `STAGED` pixels each behind room for a tile that starts in front of them.
#[repr(align(64))]
struct Staged(MaybeUninit<[[f32; TILE + STAGED]; ROWS]>);

impl Job<'_> {
    fn phase(&self, axis: usize, number: usize) -> Phase {
        self.phases[axis].get(number).copied().unwrap_or_else(|| self.conv.phase(axis, number))
    }

    fn run(&self, pool: &Pool) {
        let (_, outs, terms) = self.conv.group();
        let chunks = self.pixels.div_ceil(STAGED);
        let work = |pixels: usize, channels: usize| (pixels * channels).saturating_mul(terms.max(1));
        let chunk = STAGED.min(self.pixels);
        // Few chunks: channels are divided too.
        let parts =
            TASKS.div_ceil(self.part.groups * chunks).min(work(chunk, outs) / WORK_MIN).min(outs.div_ceil(ROWS)).max(1);
        let channels = outs.div_ceil(parts).next_multiple_of(2);
        let parts = outs.div_ceil(channels);
        let items = self.part.groups * parts * chunks;
        let together = (WORK_MIN / work(chunk, channels).max(1)).clamp(1, items.max(1));
        pool.run(items.div_ceil(together), &|task| {
            let mut staged = Staged(MaybeUninit::uninit());
            for item in task * together..items.min((task + 1) * together) {
                let (group, rest) = (item / (parts * chunks), item % (parts * chunks));
                let (first, pixel) = (rest / chunks * channels, rest % chunks * STAGED);
                let channels = first..outs.min(first + channels);
                let pixels = pixel..self.pixels.min(pixel + STAGED);
                self.run_item(group, channels, pixels, &mut staged);
            }
        });
    }

    /// Some channels of a group of the block, at some neighboring pixels.
    fn run_item(&self, group: usize, channels: Range<usize>, pixels: Range<usize>, staged: &mut Staged) {
        let (ins, outs, terms) = self.conv.group();
        let source = &self.source[group * ins * self.part.channel_step()..];
        let first = (self.part.group + group) * outs;
        let rows: *mut [f32; TILE + STAGED] = staged.0.as_mut_ptr().cast();
        let height = if self.conv.has_few_channels() { 1 } else { tile::rows_max(self.isa) };
        let tiles = tile::heights(channels.len(), height);
        let heights = tiles.iter().flat_map(|&(height, count)| (0..count).map(move |_| height));
        let mut channel = channels.start;
        for count in heights {
            let (weights, next) = self.weights[(first + channel) * terms..].split_at(count * terms);
            if self.conv.has_few_channels() {
                let (job, pixels) = (self, pixels.clone());
                with_vector!(self.isa, few_channels(
                    job: &Job<'_>,
                    source: &[f32],
                    weights: &[f32],
                    pixels: Range<usize>,
                    rows: *mut [f32; TILE + STAGED],
                ));
            } else {
                // SAFETY: the weights are those of `count` rows, `source` begins with the group's channels, and `rows` has
                // room for their sums.
                unsafe { self.multiply(source, weights, next, count, pixels.clone(), rows) };
            }
            for row in 0..count {
                // SAFETY: the sums of the row were written.
                let sums =
                    unsafe { std::slice::from_raw_parts_mut((*rows.add(row)).as_mut_ptr().add(TILE), pixels.len()) };
                self.store(sums, first + channel + row, pixels.start);
            }
            channel += count;
        }
    }

    /// Sums of `count` channels by the microkernel, which prefetches as many weights of the `next` ones.
    ///
    /// # Safety
    /// `weights` are those of `count` channels, at most [`ROWS`]; `source` begins with the channels they are multiplied by;
    /// `rows` can be written.
    unsafe fn multiply(
        &self,
        source: &[f32],
        weights: &[f32],
        next: &[f32],
        count: usize,
        pixels: Range<usize>,
        rows: *mut [f32; TILE + STAGED],
    ) {
        let terms = weights.len() / count;
        let places: [Row; ROWS] = std::array::from_fn(|row| Row { x: row * terms, out: row * (TILE + STAGED) });
        let (iterations, rest) = (pixels.len() / TILE, pixels.len() % TILE);
        let vectors = rest.div_ceil(LANES);
        self.each_nests(|&Nests { ref k_loops, count: nests, weight_stride }, is_first| {
            let k_loops = &k_loops[..nests];
            let next = if is_first { &next[..weights.len().min(next.len())] } else { &[] };
            let call = |pixel: usize, vectors: usize, iterations: usize| {
                let tile = Tile {
                    operands: StorageType::F32,
                    x: weights.as_ptr().cast(),
                    weights: source.as_ptr().wrapping_add(pixel).cast(),
                    compact: None,
                    weight_stride,
                    weight_vector: LANES,
                    result: StorageType::F32,
                    out: rows.cast::<f32>().wrapping_add(TILE + pixel - pixels.start).cast(),
                    rows: &places[..count],
                    vectors,
                    vector_stride: LANES,
                    k_loops,
                    init: if is_first { Init::Zero } else { Init::Accumulate },
                    residual: None,
                    limits: None,
                    marks: None,
                    read_back: false,
                    prefetch: Prefetch::of_tiles(next, k_loops, iterations),
                    repeat: Repeat { iterations, x: 0, weights: TILE, out: TILE },
                };
                // SAFETY: the caller's promise. All taps of a block's pixels are elements of its channels: the copy has
                // padding and a tile more, and a tile of the input itself ends with its pixels.
                unsafe { dispatch::multiply(self.isa, &tile) };
            };
            if 0 < iterations {
                call(pixels.start, 2, iterations);
            }
            if 0 < rest {
                let start = pixels.start + iterations * TILE;
                call(self.start_of_rest(start, vectors * LANES), vectors, 1);
            }
        });
    }

    /// The first pixel of the last tile, `width` pixels wide: in an input that is read in place it must not reach
    /// beyond the end.
    fn start_of_rest(&self, start: usize, width: usize) -> usize {
        if self.part.block.in_place { start.min(self.pixels - width) } else { start }
    }

    /// The terms of all outputs, if they fit one call.
    fn all_nests(&self) -> Option<Nests> {
        let mut all = None;
        self.each_nests(|nests, is_first| all = is_first.then_some(*nests));
        all
    }

    /// The terms of all outputs, some phases at a time, and whether they are the first.
    fn each_nests(&self, mut take: impl FnMut(&Nests, bool)) {
        if let Some(nests) = &self.nests {
            return take(nests, true);
        }
        let (conv, part) = (self.conv, &self.part);
        let ((ins, ..), pitch, channel_step) = (conv.group(), part.block.pitch, part.channel_step());
        let is_tap_major = conv.is_tap_major();
        let k_loops = [KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: 0 }; NESTS_MAX];
        let weight_stride = if is_tap_major {
            channel_step
        } else if conv.expands_columns() {
            part.phase_step()
        } else {
            self.phase(1, 0).step
        };
        let (mut nests, mut x, mut is_first) = (Nests { k_loops, count: 0, weight_stride }, 0, true);
        let phases = [conv.phases(0), conv.phases(1)];
        for number in 0..phases[0] * phases[1] {
            let (row_phase, column_phase) = (number / phases[1], number % phases[1]);
            let (row, column) = (self.phase(0, row_phase), self.phase(1, column_phase));
            let taps = |x: usize, y: usize| {
                let row = Loop { iterations: row.taps, x: y, weights: row.step * pitch };
                (row, Loop { iterations: column.taps, x, weights: column.step })
            };
            let (loops, depth) = if is_tap_major {
                let (row, column) = taps(ins, column.taps * ins);
                (if column.iterations == 1 { [Loop::ONCE, Loop::ONCE, row] } else { [Loop::ONCE, row, column] }, ins)
            } else {
                let (row, _) = taps(1, column.taps);
                let channel = Loop { iterations: ins, x: row.iterations * column.taps, weights: channel_step };
                (
                    if row.iterations == 1 { [Loop::ONCE, Loop::ONCE, channel] } else { [Loop::ONCE, channel, row] },
                    column.taps,
                )
            };
            let copy = row_phase * part.block.copies[1] + column_phase;
            let weights = copy * part.phase_step() + row.start * pitch + column.start;
            nests.k_loops[nests.count] = KLoop { x, weights, loops, depth };
            (nests.count, x) = (nests.count + 1, x + ins * row.taps * column.taps);
            if nests.count == NESTS_MAX || number + 1 == phases[0] * phases[1] {
                take(&nests, is_first);
                (nests.count, is_first) = (0, false);
            }
        }
    }

    /// Writes a channel's results at some pixels, from those sums.
    fn store(&self, sums: &mut [f32], channel: usize, first: usize) {
        let job = self;
        with_vector!(self.isa, store_channel(job: &Job<'_>, sums: &mut [f32], channel: usize, first: usize));
    }
}

/// See [`Job::store`].
#[inline(always)]
fn store_channel<V: Vector>(job: &Job<'_>, sums: &mut [f32], channel: usize, first: usize) {
    let (conv, part) = (job.conv, &job.part);
    let ([height, width], columns, pitch) = (conv.window.output, part.columns, part.block.pitch);
    let (limits, functions) = conv.epilogue.limits_and_functions();
    let limits = limits.unwrap_or(Epilogue::UNLIMITED).map(V::splat);
    let bias = V::splat(job.bias.map_or(0.0, |bias| bias[channel]));
    let (mut image, rest) = (first / part.image_step(), first % part.image_step());
    let (mut row, mut column) = (rest / pitch, rest % pitch);
    let mut at = 0;
    while at < sums.len() {
        if part.rows <= row {
            // Rows between two images.
            at += part.image_step() - row * pitch - column;
            (image, row, column) = (image + 1, 0, 0);
            continue;
        }
        if columns <= column {
            at += pitch - column;
            (row, column) = (row + 1, 0);
            continue;
        }
        // Rows without padding between them are one run.
        let is_dense = pitch == columns;
        let run = if is_dense { (part.rows - row) * columns - column } else { columns - column };
        let run = run.min(sums.len() - at);
        let start = ((part.image + image) * conv.out_channels + channel) * height + part.row + row;
        let start = start * width + part.column + column;
        let sums = &mut sums[at..at + run];
        // SAFETY: a task's channels and pixels are its own.
        let cells = unsafe { job.out.part(start, run) };
        let residual = job.residual.map(|residual| residual.map(|items| &items[start..start + run]));
        store_run(sums, bias, residual, limits, functions, cells);
        (at, column) = (at + run, column + run);
        if is_dense {
            (row, column) = (row + column / columns, column % columns);
        }
    }
}

/// Writes the results of neighboring pixels.
#[inline(always)]
fn store_run<V: Vector>(
    sums: &mut [f32],
    bias: V,
    residual: Option<Option<&[f32]>>,
    [low, high]: [V; 2],
    functions: &[Unary],
    cells: &mut [f32],
) {
    for (ix, (sums, cells)) in sums.chunks_mut(LANES).zip(cells.chunks_mut(LANES)).enumerate() {
        let mut lanes = V::read_part(sums, 0.0).add(bias);
        match residual {
            None => {}
            Some(None) => lanes = lanes.add(V::read_part(cells, 0.0)),
            Some(Some(items)) => lanes = lanes.add(V::read_part(&items[ix * LANES..][..cells.len()], 0.0)),
        }
        lanes = lanes.at_least(low).at_most(high);
        lanes.write_part(if functions.is_empty() { cells } else { sums });
    }
    if !functions.is_empty() {
        // On the sums, which are in the first-level cache.
        functions.iter().for_each(|&function| math::apply(V::ISA, function, sums));
        cells.copy_from_slice(sums);
    }
}
