//! [`ConvUnbuffered`]: convolution and transposed convolution without workspace, of row-major `f32` images and volumes.
//!
//! The input is read where it is. Sums of some channels along a piece of an output row are on the stack of a task; each tap adds a
//! piece of an input row to them, cut at the image's edges instead of padded:
//!
//! ```text
//!   3 taps, padding 1     row     a b c d e
//!                         tap 0     a b c d      added from sum 1 on
//!                         tap 1   a b c d e      added from sum 0 on
//!                         tap 2   b c d e        added from sum 0 on
//! ```
//!
//! The rows and planes of a window that are outside of the input are left out: no padding is stored. Sixteen sums of each
//! channel are in registers while a tap is added for some input channels.
//!
//! A tap of a transposed convolution adds neighboring inputs to sums at the distance of the stride. These sums, a *phase*, are
//! neighbors on the stack; the phases are interleaved in the end.
//!
//! Weights are in the order of the model, constant or not. Slower than the kernels that copy their input: for plans in
//! which memory counts more than time.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::{Window, check_groups};
use crate::gemm::epilogue::Epilogue;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{LANES, Vector, read_every, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Output channels that share the loads of a row.
const CHANNELS: usize = 4;
/// Input channels that are added in turn. Their rows stay in the cache from one tap to the next.
const INPUTS: usize = 32;
/// The same for channels at a multiple of [`CROWDED`] elements, which share the sets of a cache.
const INPUTS_CROWDED: usize = 8;
/// The elements of 4 KiB.
const CROWDED: usize = 1024;
/// Taps of an axis whose spans are computed once for a line.
const TAPS: usize = 16;
/// Sums of a channel at a time.
const COLUMNS: usize = 256;
/// Multiply-adds of a task that are worth claiming one: about 10 us.
const WORK_MIN: usize = 1 << 17;

/// Convolution of `x: [batch, in_channels, depth, rows, columns]` with weights `[out_channels, in_channels / groups, ..kernel]`,
/// or transposed with weights `[in_channels, out_channels / groups, ..kernel]`; then by the epilogue a bias and a residual.
/// Output: `[batch, out_channels, depth, rows, columns]`. All row-major `f32`; an image is a volume of one plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvUnbuffered {
    /// Images.
    pub batch: usize,
    /// Channels of an image; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// The depth of volumes, along axis 0; [`Window::ONE`] for images.
    pub depth: Window,
    /// Rows and columns. Both windows of a transposed convolution are those of the convolution that it transposes: its `input` is our output.
    pub window: Window,
    /// Whether the convolution is transposed.
    pub transposed: bool,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

/// Sums of some channels, with room behind them for a whole vector.
type Sums = [[f32; COLUMNS + LANES]; CHANNELS];

/// The sums and the inputs along an axis that one tap connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    /// The first sum, counted from the first of the piece.
    sum: usize,
    /// The first input.
    input: usize,
    count: usize,
}

impl ConvUnbuffered {
    /// Extents of the input and of the output along the axes of a window.
    fn extents(&self, window: &Window) -> [[usize; 2]; 2] {
        let Window { input, output, .. } = *window;
        if self.transposed { [output, input] } else { [input, output] }
    }

    /// The pairs of sums and inputs of a tap for some outputs along an axis of a window. Of neighboring pairs, sums are
    /// `steps(axis)[0]` apart and inputs `steps(axis)[1]`.
    fn span(&self, window: &Window, axis: usize, tap: usize, outputs: Range<usize>) -> Span {
        let Window { stride, dilation, pad, .. } = *window;
        let [from, _] = self.extents(window);
        let number = |extent: usize| extent as i64;
        let (stride, extent) = (number(stride[axis]), number(from[axis]));
        let shift = number(tap * dilation[axis]) - number(pad[axis]);
        let (start, end) = (number(outputs.start), number(outputs.end));
        let up = |numerator: i64| if stride == 1 { numerator } else { -(-numerator).div_euclid(stride) };
        let (sum, input, count) = match self.transposed {
            // Output = input * stride + shift.
            true => {
                let first = up(start - shift).max(0);
                (first * stride + shift - start, first, up(end - shift).min(extent) - first)
            }
            // Input = output * stride + shift.
            false => {
                let first = up(-shift).max(start);
                (first - start, first * stride + shift, up(extent - shift).min(end) - first)
            }
        };
        let whole = |number: i64| usize::try_from(number).unwrap_or(0);
        if count <= 0 {
            Span { sum: 0, input: 0, count: 0 }
        } else {
            Span { sum: whole(sum), input: whole(input), count: whole(count) }
        }
    }

    /// The distances of neighboring sums and inputs of a tap along columns.
    fn steps(&self) -> [usize; 2] {
        let stride = self.window.stride[1];
        if self.transposed { [stride, 1] } else { [1, stride] }
    }

    /// Taps of a window over depth, rows and columns.
    fn taps(&self) -> usize {
        self.depth.taps() * self.window.taps()
    }

    /// Input and output channels of a group.
    fn group(&self) -> [usize; 2] {
        [self.in_channels / self.groups, self.out_channels / self.groups]
    }

    /// The distance of the weights of neighboring output and input channels of a group, in weights.
    fn weight_steps(&self) -> [usize; 2] {
        let ([ins, outs], taps) = (self.group(), self.taps());
        if self.transposed { [taps, outs * taps] } else { [ins * taps, taps] }
    }

    /// Input channels of a group that are added in turn.
    fn inputs_in_turn(&self) -> usize {
        let ([[height, width], _], [[planes, _], _]) = (self.extents(&self.window), self.extents(&self.depth));
        if (planes * height * width).is_multiple_of(CROWDED) { INPUTS_CROWDED } else { INPUTS }
    }

    /// Rows of inputs that are read for a tap of a row of outputs: each for some output channels at a time.
    pub fn input_rows(&self) -> usize {
        let [ins, outs] = self.group();
        self.batch * self.groups * outs.div_ceil(CHANNELS) * ins
    }

    /// How often a tap is added to a piece of a row of sums, for a row of outputs of all channels.
    pub fn turns(&self) -> usize {
        let ([ins, outs], [phases, pitch]) = (self.group(), self.phases());
        let [_, [_, columns]] = self.extents(&self.window);
        let pieces = columns.div_ceil(phases * pitch);
        self.batch * self.groups * outs.div_ceil(CHANNELS) * ins.div_ceil(self.inputs_in_turn()) * pieces
    }

    /// How many phases of sums there are, and the sums of each.
    fn phases(&self) -> [usize; 2] {
        let [step, _] = self.steps();
        let phases = step.min(COLUMNS);
        [phases, COLUMNS / phases]
    }
}

impl KernelFn for ConvUnbuffered {
    const NAME: &'static str = "conv_unbuffered";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvUnbuffered { batch, in_channels, out_channels, groups, depth, window, .. } = self;
        window.check()?;
        depth.check()?;
        depth.check_is_depth()?;
        check_groups(*groups, *in_channels, *out_channels)?;
        let ([from, to], [deep_from, deep_to]) = (self.extents(window), self.extents(depth));
        let x = product(&[*batch, *in_channels, deep_from[0], from[0], from[1]]);
        let output = product(&[*batch, *out_channels, deep_to[0], to[0], to[1]]);
        let kernel = [depth.kernel[0], window.kernel[0], window.kernel[1]];
        let weights = product(&[*in_channels, out_channels / groups, kernel[0], kernel[1], kernel[2]]);
        let mut inputs = vec![x, weights];
        self.epilogue.check_unscaled()?;
        inputs.extend(self.epilogue.operands(*out_channels, output));
        Sizes::with_workspace(&inputs, output, Some(0), 4)
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
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let [_, [rows, columns]] = self.extents(&self.window);
        let [_, [planes, _]] = self.extents(&self.depth);
        let [ins, outs] = self.group();
        let pieces = outs.div_ceil(CHANNELS);
        let lines = self.batch * self.groups * pieces * planes * rows;
        let work = (columns * CHANNELS).saturating_mul(ins * self.taps()).max(1);
        let together = (WORK_MIN / work).clamp(1, lines.max(1));
        let (out, isa, [phases, pitch]) = (SharedMut::new(out), pool.isa(), self.phases());
        pool.run(lines.div_ceil(together), &|task| {
            for line in task * together..lines.min((task + 1) * together) {
                let (row, rest) = (line % rows, line / rows);
                let (plane, rest) = (rest % planes, rest / planes);
                let (piece, rest) = (rest % pieces, rest / pieces);
                let (group, image) = (rest % self.groups, rest / self.groups);
                let first = group * outs + piece * CHANNELS;
                let count = CHANNELS.min(outs - piece * CHANNELS);
                let line = Line { conv: self, x, weights, image, first, count, plane, row };
                for start in (0..columns).step_by(phases * pitch) {
                    let pixels = start..columns.min(start + phases * pitch);
                    let mut sums = [[0.0; COLUMNS + LANES]; CHANNELS];
                    let (place, at, sums) = (&line, pixels.clone(), &mut sums);
                    with_vector!(isa, add_line(place: &Line<'_>, at: Range<usize>, sums: &mut Sums));
                    for (channel, sums) in (first..).zip(sums.iter().take(count)) {
                        let channel_plane = (image * self.out_channels + channel) * planes + plane;
                        let start = (channel_plane * rows + row) * columns + pixels.start;
                        // SAFETY: a line's channels and pixels are its own.
                        let cells = unsafe { out.part(start, pixels.len()) };
                        let bias = bias.map_or(0.0, |bias| bias[channel]);
                        let mut row = [0.0; COLUMNS];
                        let sums = match phases {
                            1 => &sums[..cells.len()],
                            _ => {
                                for (phase, sums) in sums.chunks_exact(pitch).take(phases).enumerate() {
                                    let row = row[phase..].iter_mut().step_by(phases);
                                    row.zip(sums).for_each(|(cell, sum)| *cell = *sum);
                                }
                                &row[..cells.len()]
                            }
                        };
                        let sums = sums.iter().map(|sum| sum + bias);
                        match residual {
                            None => cells.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = sum),
                            Some(None) => cells.iter_mut().zip(sums).for_each(|(cell, sum)| *cell += sum),
                            Some(Some(residual)) => {
                                let items = sums.zip(&residual[start..start + cells.len()]);
                                cells.iter_mut().zip(items).for_each(|(cell, (sum, item))| *cell = sum + item);
                            }
                        }
                        self.epilogue.activate(isa, cells);
                    }
                }
            }
        });
    }
}

/// An output row of some channels of a group.
struct Line<'a> {
    conv: &'a ConvUnbuffered,
    x: &'a [f32],
    weights: &'a [f32],
    image: usize,
    /// The first output channel, and how many there are.
    first: usize,
    count: usize,
    plane: usize,
    row: usize,
}

/// Adds all taps of all input channels to the sums of some pixels.
#[inline(always)]
fn add_line<V: Vector>(line: &Line<'_>, pixels: Range<usize>, sums: &mut Sums) {
    match line.count {
        1 => add_taps::<V, 1>(line, pixels, sums),
        2 => add_taps::<V, 2>(line, pixels, sums),
        3 => add_taps::<V, 3>(line, pixels, sums),
        _ => add_taps::<V, CHANNELS>(line, pixels, sums),
    }
}

/// [`add_line`] for N output channels.
#[inline(always)]
fn add_taps<V: Vector, const N: usize>(line: &Line<'_>, pixels: Range<usize>, sums: &mut Sums) {
    let conv = line.conv;
    let ([[height, width], _], [ins, outs]) = (conv.extents(&conv.window), conv.group());
    let [[planes, _], _] = conv.extents(&conv.depth);
    let [rows, columns] = conv.window.kernel;
    let ([out_step, in_step], [_, step], [phases, pitch]) = (conv.weight_steps(), conv.steps(), conv.phases());
    // Of the group's first input channel in the input, and of the first output channel in the weights.
    let volume = (line.image * conv.in_channels + line.first / outs * ins) * planes;
    let weight = match conv.transposed {
        true => line.first / outs * ins * in_step + line.first % outs * out_step,
        false => line.first * out_step,
    };
    let x_step = planes * height * width;
    let inputs = conv.inputs_in_turn();
    let deep_of = |tap: usize| conv.span(&conv.depth, 0, tap, line.plane..line.plane + 1);
    let down_of = |tap: usize| conv.span(&conv.window, 0, tap, line.row..line.row + 1);
    let across_of = |tap: usize| {
        let span = conv.span(&conv.window, 1, tap, pixels.clone());
        Span { sum: span.sum % phases * pitch + span.sum / phases, ..span }
    };
    let first_deep = first_spans(conv.depth.taps(), deep_of);
    let (first_down, first_across) = (first_spans(rows, down_of), first_spans(columns, across_of));
    for first in (0..ins).step_by(inputs) {
        let channels = inputs.min(ins - first);
        for deep_tap in 0..conv.depth.taps() {
            let deep = first_deep.get(deep_tap).copied().unwrap_or_else(|| deep_of(deep_tap));
            for tap in (0..rows).take(rows * deep.count) {
                let down = first_down.get(tap).copied().unwrap_or_else(|| down_of(tap));
                for column in (0..columns).take(columns * down.count) {
                    let across = first_across.get(column).copied().unwrap_or_else(|| across_of(column));
                    if across.count == 0 {
                        continue;
                    }
                    let row = ((volume + first * planes + deep.input) * height + down.input) * width + across.input;
                    let tap = (deep_tap * rows + tap) * columns + column;
                    let weights = &line.weights[weight + first * in_step + tap..];
                    let terms = Terms { x: line.x, x_step, step, weights, weight_steps: [out_step, in_step], channels };
                    let whole = if channels == 1 && step == 1 { across.count / LANES * LANES } else { 0 };
                    if 0 < whole {
                        add_row::<V, N>(&terms, &line.x[row..row + whole], sums, across.sum);
                    }
                    for at in (whole..across.count).step_by(LANES) {
                        add_vector::<V, N>(&terms, row + at * step, across.count - at, sums, across.sum + at);
                    }
                }
            }
        }
    }
}

/// The spans of the first taps. Each is needed many times.
#[inline(always)]
fn first_spans(taps: usize, of: impl Fn(usize) -> Span) -> [Span; TAPS] {
    let mut first = [Span::default(); TAPS];
    for (tap, span) in first.iter_mut().enumerate().take(taps) {
        *span = of(tap);
    }
    first
}

/// The inputs and the weights of a tap for some input channels.
struct Terms<'a> {
    x: &'a [f32],
    /// The distance of two channels.
    x_step: usize,
    /// The distance of the inputs of neighboring sums.
    step: usize,
    weights: &'a [f32],
    /// The distance of output and of input channels.
    weight_steps: [usize; 2],
    channels: usize,
}

/// Adds a tap of one input channel to neighboring sums of N channels: to whole vectors.
#[inline(always)]
fn add_row<V: Vector, const N: usize>(terms: &Terms<'_>, items: &[f32], sums: &mut Sums, place: usize) {
    for (number, sums) in sums.iter_mut().enumerate().take(N) {
        let weight = V::splat(terms.weights[number * terms.weight_steps[0]]);
        let sums = sums[place..place + items.len()].as_chunks_mut::<LANES>().0;
        for (sums, items) in sums.iter_mut().zip(items.as_chunks::<LANES>().0) {
            V::read(items).mul_add(weight, V::read(sums)).write(sums);
        }
    }
}

/// Adds a tap to sixteen sums of N channels, or to the first `count`, from inputs that start at `from`.
#[inline(always)]
fn add_vector<V: Vector, const N: usize>(terms: &Terms<'_>, from: usize, count: usize, sums: &mut Sums, place: usize) {
    let &Terms { x, x_step, step, weights, weight_steps: [out_step, in_step], channels } = terms;
    let last = (N - 1) * out_step + (channels - 1) * in_step;
    assert!(last < weights.len(), "there must be a weight for each channel");
    let mut own = [V::zero(); N];
    for (own, sums) in own.iter_mut().zip(sums.iter()) {
        *own = V::read(&sums[place..]);
    }
    if step == 1 && from + (channels - 1) * x_step + LANES <= x.len() {
        let mut places = [weights.as_ptr(); N];
        for (number, place) in places.iter_mut().enumerate() {
            *place = place.wrapping_add(number * out_step);
        }
        let mut items = x.as_ptr().wrapping_add(from);
        for _ in 0..channels {
            // SAFETY: the last channel has a vector of items and a weight, by the comparisons above.
            let vector = unsafe { V::load(items) };
            for (own, place) in own.iter_mut().zip(&mut places) {
                // SAFETY: as above.
                *own = vector.mul_add(V::splat(unsafe { **place }), *own);
                *place = place.wrapping_add(in_step);
            }
            items = items.wrapping_add(x_step);
        }
    } else {
        for channel in 0..channels {
            let items = read_every::<V>(&x[from + channel * x_step..], step);
            for (number, own) in own.iter_mut().enumerate() {
                *own = items.mul_add(V::splat(weights[number * out_step + channel * in_step]), *own);
            }
        }
    }
    for (own, sums) in own.iter().zip(sums.iter_mut()) {
        let (mut own, sums) = (*own, &mut sums[place..]);
        if count < LANES {
            own = V::read(&LANE_NUMBERS).if_less(V::splat(count as f32), own, V::read(sums));
        }
        own.write(sums);
    }
}

/// The number of each lane.
const LANE_NUMBERS: [f32; LANES] = {
    let mut numbers = [0.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        numbers[lane] = lane as f32;
        lane += 1;
    }
    numbers
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_the_pairs_that_a_tap_connects() {
        for (extent, kernel, stride, dilation, pad) in
            [(7, 3, 1, 1, 1), (9, 3, 2, 2, 3), (5, 2, 3, 1, 0), (4, 5, 1, 2, 4)]
        {
            let reach: usize = dilation * (kernel - 1) + 1;
            let output = (extent + 2 * pad - reach) / stride + 1;
            let window = Window {
                input: [1, extent],
                output: [1, output],
                kernel: [1, kernel],
                stride: [1, stride],
                dilation: [1, dilation],
                pad: [0, pad],
            };
            for transposed in [false, true] {
                let conv = ConvUnbuffered {
                    batch: 1,
                    in_channels: 1,
                    out_channels: 1,
                    groups: 1,
                    depth: Window::ONE,
                    window,
                    transposed,
                    epilogue: Epilogue::default(),
                };
                let [from, to] = conv.extents(&conv.window);
                for tap in 0..kernel {
                    for (start, end) in [(0, to[1]), (1, to[1]), (to[1] / 2, to[1])] {
                        let is_pair = |input: usize, out: usize| {
                            let (own, other) = if transposed { (out, input) } else { (input, out) };
                            own + pad == other * stride + tap * dilation
                        };
                        let pairs: Vec<[usize; 2]> = (start..end)
                            .flat_map(|out| (0..from[1]).map(move |input| [out, input]))
                            .filter(|&[out, input]| is_pair(input, out))
                            .collect();
                        let (span, steps) = (conv.span(&conv.window, 1, tap, start..end), conv.steps());
                        let found: Vec<[usize; 2]> = (0..span.count)
                            .map(|ix| [start + span.sum + ix * steps[0], span.input + ix * steps[1]])
                            .collect();
                        assert_eq!(found, pairs, "{window:?} transposed {transposed} tap {tap} of {start}..{end}");
                    }
                }
            }
        }
    }
}
