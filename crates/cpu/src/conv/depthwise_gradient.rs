//! [`DepthwiseWeightGradient`] and [`DepthwiseDataGradient`]: the gradients of a convolution in which each channel has its own
//! kernel. Lanes are channels, as in the convolution itself.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// The weight gradient of a depthwise convolution: blocked `x: [batch, channels, ..window.input]` and blocked
/// `dy: [batch, channels, ..window.output]` to row-major `[channels, 1, ..kernel]`. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseWeightGradient {
    /// Images.
    pub batch: usize,
    /// Channels of both.
    pub channels: usize,
    /// Rows and columns of the convolution.
    pub window: Window,
}

impl KernelFn for DepthwiseWeightGradient {
    const NAME: &'static str = "depthwise_weight_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let DepthwiseWeightGradient { batch, channels, window } = self;
        window.check()?;
        let lanes = channels.checked_next_multiple_of(LANES).ok_or(InvalidKernel("sizes must not overflow"))?;
        let x = product(&[*batch, lanes, window.input[0], window.input[1]]);
        let dy = product(&[*batch, lanes, window.output[0], window.output[1]]);
        Sizes::new(&[x, dy], product(&[*channels, window.kernel[0], window.kernel[1]]), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let dy: &[f32] = input(&args, 1);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let (out, isa) = (&SharedMut::new(out), pool.isa());
        let [rows, columns] = self.window.kernel;
        let [row_parts, column_parts] = [rows.div_ceil(DEPTHWISE_ROWS), columns.div_ceil(DEPTHWISE_COLUMNS)];
        pool.run(self.channels.div_ceil(LANES) * row_parts * column_parts, &|task| {
            let (rest, column) = (task / column_parts, task % column_parts * DEPTHWISE_COLUMNS);
            let (block, row) = (rest / row_parts, rest % row_parts * DEPTHWISE_ROWS);
            let kernel = self;
            let taps = [row..rows.min(row + DEPTHWISE_ROWS), column..columns.min(column + DEPTHWISE_COLUMNS)];
            let taps = &taps;
            with_vector!(isa, depthwise_taps(
                kernel: &DepthwiseWeightGradient,
                x: &[f32],
                dy: &[f32],
                block: usize,
                taps: &[Range<usize>; 2],
                out: &SharedMut<'_, f32>,
            ));
        });
    }
}

/// Rows and columns of taps of a task: all of the usual kernels, so that memory is read once.
const DEPTHWISE_ROWS: usize = 8;
const DEPTHWISE_COLUMNS: usize = 8;

/// Gradients of some taps of sixteen channels. The sums of a line of outputs are added as a whole, so that rounding errors
/// do not grow with the number of terms.
#[inline(always)]
fn depthwise_taps<V: Vector>(
    kernel: &DepthwiseWeightGradient,
    x: &[f32],
    dy: &[f32],
    block: usize,
    taps: &[Range<usize>; 2],
    out: &SharedMut<'_, f32>,
) {
    let (window, blocks) = (&kernel.window, kernel.channels.div_ceil(LANES));
    let [x_size, dy_size] = [window.input_plane() * LANES, window.output_plane() * LANES];
    let mut totals = [[0.0f32; LANES]; DEPTHWISE_ROWS * DEPTHWISE_COLUMNS];
    // Outputs whose taps are all in the input.
    let [first, last] = [taps[1].start, taps[1].end - 1].map(|tap| window.inside(1, tap));
    let (start, end) = (first.start.max(last.start), first.end.min(last.end));
    for image in 0..kernel.batch {
        let plane = image * blocks + block;
        let x = &x[plane * x_size..][..x_size];
        let dy = &dy[plane * dy_size..][..dy_size];
        for (line, dy) in dy.chunks_exact(window.output[1].max(1) * LANES).enumerate() {
            for row in taps[0].clone() {
                let Some(y) = window.source(0, line, row) else { continue };
                let x = &x[y * window.input[1] * LANES..][..window.input[1] * LANES];
                let totals = &mut totals[(row - taps[0].start) * DEPTHWISE_COLUMNS..][..taps[1].len()];
                if start < end {
                    let from = window.source(1, start, taps[1].start).expect("the first tap is in the input");
                    let (x, dy) = (&x[from * LANES..], &dy[start * LANES..end * LANES]);
                    let steps = [window.dilation[1] * LANES, window.stride[1] * LANES];
                    macro_rules! each {
                        ($($count:literal)*) => {
                            match totals.len() {
                                $($count => line_of_taps::<V, $count>(x, dy, steps, totals),)*
                                _ => line_of_taps::<V, 8>(x, dy, steps, totals),
                            }
                        };
                    }
                    each!(1 2 3 4 5 6 7);
                }
                let edges = (0..start.min(window.output[1])).chain(end.max(start)..window.output[1]);
                for column in edges {
                    let dy = V::read(&dy[column * LANES..]);
                    for (tap, total) in taps[1].clone().zip(totals.iter_mut()) {
                        if let Some(at) = window.source(1, column, tap) {
                            dy.mul_add(V::read(&x[at * LANES..]), V::read(&*total)).write(total);
                        }
                    }
                }
            }
        }
    }
    for row in taps[0].clone() {
        for column in taps[1].clone() {
            let total = &totals[(row - taps[0].start) * DEPTHWISE_COLUMNS + column - taps[1].start];
            for (lane, &sum) in total.iter().enumerate().take(kernel.channels - block * LANES) {
                let at = ((block * LANES + lane) * window.kernel[0] + row) * window.kernel[1] + column;
                // SAFETY: tasks differ in channels or taps.
                let cell = unsafe { out.part(at, 1) };
                cell[0] = sum;
            }
        }
    }
}

/// Adds the products of a line of `dy` with `T` taps of a row. `steps` are from tap to tap and from output to output in `x`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
fn line_of_taps<V: Vector, const T: usize>(
    x: &[f32],
    dy: &[f32],
    [tap_step, step]: [usize; 2],
    totals: &mut [[f32; LANES]],
) {
    let pixels = dy.len() / LANES;
    let reach = (pixels - 1) * step + (T - 1) * tap_step + LANES;
    assert!(reach <= x.len(), "the last tap of the last output is in the line");
    // Two sums for each tap hide the latency of additions.
    let mut sums = [[V::zero(); T]; 2];
    let (mut x, mut dy) = (x.as_ptr(), dy.as_ptr());
    for _ in 0..pixels / 2 {
        for half in 0..2 {
            // SAFETY: pairs of pixels are within `dy`.
            let own = unsafe { V::load(dy.add(half * LANES)) };
            for tap in 0..T {
                // SAFETY: the last tap of the last output is in bounds (asserted), and all others precede it.
                let item = unsafe { V::load(x.add(half * step + tap * tap_step)) };
                sums[half][tap] = item.mul_add(own, sums[half][tap]);
            }
        }
        (x, dy) = (x.wrapping_add(2 * step), dy.wrapping_add(2 * LANES));
    }
    if pixels % 2 == 1 {
        // SAFETY: one pixel is left.
        let own = unsafe { V::load(dy) };
        for tap in 0..T {
            // SAFETY: as above.
            let item = unsafe { V::load(x.add(tap * tap_step)) };
            sums[0][tap] = item.mul_add(own, sums[0][tap]);
        }
    }
    for tap in 0..T {
        sums[0][tap].add(sums[1][tap]).add(V::read(&totals[tap])).write(&mut totals[tap]);
    }
}

/// The data gradient of a depthwise convolution of any stride: blocked `dy: [batch, channels, ..window.output]` and
/// row-major weights `[channels, 1, ..kernel]` to blocked `[batch, channels, ..window.input]`. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthwiseDataGradient {
    /// Images.
    pub batch: usize,
    /// Channels of both.
    pub channels: usize,
    /// Rows and columns of the convolution: its output is our input.
    pub window: Window,
}

impl KernelFn for DepthwiseDataGradient {
    const NAME: &'static str = "depthwise_data_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let DepthwiseDataGradient { batch, channels, window } = self;
        window.check()?;
        let lanes = channels.checked_next_multiple_of(LANES).ok_or(InvalidKernel("sizes must not overflow"))?;
        let dy = product(&[*batch, lanes, window.output[0], window.output[1]]);
        let weights = product(&[*channels, window.kernel[0], window.kernel[1]]);
        let packed = product(&[lanes, window.kernel[0], window.kernel[1]]);
        let dx = product(&[*batch, lanes, window.input[0], window.input[1]]);
        Sizes::with_workspace(&[dy, weights], dx, packed, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dy: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let dx: &mut [f32] = elements_mut(args.outputs[0]);
        let packed: &mut [f32] = elements_mut(args.workspace);
        let (taps, blocks, isa) = (self.window.taps(), self.channels.div_ceil(LANES), pool.isa());
        for (at, cell) in packed.iter_mut().enumerate() {
            let (block, tap, lane) = (at / LANES / taps, at / LANES % taps, at % LANES);
            let channel = block * LANES + lane;
            *cell = if channel < self.channels { weights[channel * taps + tap] } else { 0.0 };
        }
        let (packed, plane) = (&*packed, self.window.output_plane() * LANES);
        for_each_chunk(pool, dx, self.window.input_plane() * LANES, &|number, dx| {
            let (kernel, dy) = (self, &dy[number * plane..][..plane]);
            let weights = &packed[number % blocks * taps * LANES..][..taps * LANES];
            with_vector!(isa, depthwise_plane(
                kernel: &DepthwiseDataGradient, dy: &[f32], weights: &[f32], dx: &mut [f32]
            ));
        });
    }
}

/// The data gradient of a plane of sixteen channels.
#[inline(always)]
fn depthwise_plane<V: Vector>(kernel: &DepthwiseDataGradient, dy: &[f32], weights: &[f32], dx: &mut [f32]) {
    let window = &kernel.window;
    dx.fill(0.0);
    for (line, dy) in dy.chunks_exact(window.output[1].max(1) * LANES).enumerate() {
        for row in window.taps_inside(0, line) {
            let Some(y) = window.source(0, line, row) else { continue };
            let dx = &mut dx[y * window.input[1] * LANES..][..window.input[1] * LANES];
            for tap in 0..window.kernel[1] {
                let columns = window.inside(1, tap);
                let Some(start) = window.source(1, columns.start, tap).filter(|_| !columns.is_empty()) else {
                    continue;
                };
                let weight = V::read(&weights[(row * window.kernel[1] + tap) * LANES..]);
                let dy = dy[columns.start * LANES..columns.end * LANES].chunks_exact(LANES);
                let pixels = dx[start * LANES..].chunks_mut(window.stride[1] * LANES);
                for (dy, dx) in dy.zip(pixels) {
                    V::read(dy).mul_add(weight, V::read(dx)).write(dx);
                }
            }
        }
    }
}
