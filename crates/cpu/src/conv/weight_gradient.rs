//! [`ConvWeightGradient`]: the gradient of a convolution's weights, and [`DepthwiseWeightGradient`].
//!
//! Each weight's gradient is a sum over all images and outputs: the outer product of a pixel's input channels and the
//! gradient's channels, for one tap after the other. Lanes are channels of the gradient `dy`; the channels of the input
//! are broadcast from memory, as the microkernel broadcasts pixels:
//!
//! ```text
//!             dy: 16 channels of a pixel
//!   x: 16    +--------------------------+
//!   channels | 16 vectors of sums stay  |   for a tap and a pair of blocks, over some rows of outputs
//!   of the   | in registers             |
//!   pixel    +--------------------------+
//! ```
//!
//! A task has all terms of its part of the weights, in one order: bits do not depend on the number of threads, and no sum
//! is split. It keeps the sums of some pairs of blocks on its stack and runs over the outputs in bands of rows that stay in
//! a second-level cache, so that a band is read from memory once for all pairs.
//!
//! A row-major input, as of a first layer with few channels, is read in rows of taps instead of rows of channels.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::{ImageLayout, Window};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer, for_each_chunk};

/// Elements of a task's sums: 128 KB on its stack.
const SUMS: usize = 1 << 15;
/// Blocks of `dy` and of `x` whose pairs a task computes.
const BLOCKS: usize = 4;
/// Number of tasks to aim at.
const TASKS: usize = 16;
/// Elements of `x` and `dy` that a band of rows reads.
const BAND: usize = 1 << 15;
/// The most taps in a row of the kernel for row-major inputs.
const COLUMNS_MAX: usize = SUMS / LANES;

/// `x: [batch, in_channels, ..window.input]` and blocked `dy: [batch, out_channels, ..window.output]` to row-major
/// `[out_channels, in_channels / groups, ..kernel]`. All `f32`.
///
/// Refuses: several groups over row-major inputs, or whose channels do not fill blocks of sixteen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvWeightGradient {
    /// Images.
    pub batch: usize,
    /// Channels of `x`; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of `dy`; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// Rows and columns of the convolution.
    pub window: Window,
    /// The layout of `x`.
    pub layout: ImageLayout,
}

/// Division of the weights into tasks. A *unit* is the part that [`accumulate`] sums at a time: a tap of a pair of blocks, or a row
/// of taps of a channel and a block of `dy`.
#[derive(Clone, Copy)]
struct Cut {
    /// Blocks of `dy` and of `x` in a group of channels; a channel is a block of a row-major `x`.
    outs: usize,
    ins: usize,
    /// Units of a pair, and rows of sums of a unit.
    units: usize,
    rows: usize,
    /// Blocks of each, and units of each pair, in a task.
    task_outs: usize,
    task_ins: usize,
    task_units: usize,
}

impl Cut {
    /// Tasks along blocks of `dy`, blocks of `x`, and units.
    fn tasks(&self) -> [usize; 3] {
        [self.outs.div_ceil(self.task_outs), self.ins.div_ceil(self.task_ins), self.units.div_ceil(self.task_units)]
    }
}

impl ConvWeightGradient {
    fn is_blocked(&self) -> bool {
        self.layout == ImageLayout::Blocked
    }

    /// Input channels of a block.
    fn in_block(&self) -> usize {
        if self.is_blocked() { LANES } else { 1 }
    }

    fn cut(&self) -> Cut {
        let [height, width] = self.window.kernel;
        let (ins, outs) = (self.in_channels / self.groups, self.out_channels / self.groups);
        let (units, rows) = if self.is_blocked() { (height * width, LANES) } else { (height, width) };
        let mut cut = Cut {
            outs: outs.div_ceil(LANES).max(1),
            ins: ins.div_ceil(self.in_block()).max(1),
            units,
            rows,
            task_outs: 1,
            task_ins: 1,
            task_units: units.min(SUMS / (rows * LANES)),
        };
        let tasks = |cut: &Cut| self.groups * cut.tasks().iter().product::<usize>();
        // Larger parts read `x` and `dy` less often, as long as all threads have tasks.
        let ins_max = cut.ins.min(if self.is_blocked() { BLOCKS } else { LANES });
        loop {
            let Cut { task_outs, task_ins, .. } = cut;
            let grows = |of: usize, most: usize| (of < most).then(|| (2 * of).min(most));
            let wider = grows(task_outs, cut.outs.min(BLOCKS)).map(|task_outs| Cut { task_outs, ..cut });
            let deeper = grows(task_ins, ins_max).map(|task_ins| Cut { task_ins, ..cut });
            let larger = if task_ins < task_outs { deeper.or(wider) } else { wider.or(deeper) };
            let sums = |cut: &Cut| cut.task_outs * cut.task_ins * cut.task_units * rows * LANES;
            match larger.filter(|larger| sums(larger) <= SUMS && TASKS <= tasks(larger)) {
                Some(larger) => cut = larger,
                None => break,
            }
        }
        while tasks(&cut) < TASKS && 1 < cut.task_units {
            cut.task_units = cut.task_units.div_ceil(2);
        }
        cut
    }
}

impl KernelFn for ConvWeightGradient {
    const NAME: &'static str = "conv_weight_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvWeightGradient { batch, in_channels, out_channels, groups, window, .. } = self;
        window.check()?;
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Err(InvalidKernel("`groups` must be >= 1 and divide the channels"));
        }
        let fills = (in_channels / groups) % LANES == 0 && (out_channels / groups) % LANES == 0;
        if 1 < *groups && !(fills && self.is_blocked()) {
            return Err(InvalidKernel("channels of each group must fill blocks of 16"));
        }
        if !self.is_blocked() && COLUMNS_MAX < window.kernel[1] {
            return Err(InvalidKernel("the kernel must have at most 2048 columns"));
        }
        let overflow = InvalidKernel("sizes must not overflow");
        let lanes = in_channels.checked_next_multiple_of(self.in_block()).ok_or(overflow)?;
        let outs = out_channels.checked_next_multiple_of(LANES).ok_or(overflow)?;
        let x = product(&[*batch, lanes, window.input[0], window.input[1]]);
        let dy = product(&[*batch, outs, window.output[0], window.output[1]]);
        let weights = product(&[*out_channels, in_channels / groups, window.kernel[0], window.kernel[1]]);
        product(&[outs, lanes, window.kernel[0], window.kernel[1]]).ok_or(overflow)?;
        Sizes::new(&[x, dy], weights, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let dy: &[f32] = input(&args, 1);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let (cut, isa) = (self.cut(), pool.isa());
        let [outs, ins, units] = cut.tasks();
        let job = &Job { kernel: self, cut, x, dy, out: SharedMut::new(out) };
        pool.run(self.groups * outs * ins * units, &|task| {
            let (rest, unit) = (task / units, task % units);
            let (rest, part_in) = (rest / ins, rest % ins);
            let (group, part_out) = (rest / outs, rest % outs);
            let range = |part: usize, size: usize, end: usize| part * size..(part * size + size).min(end);
            let part = Part {
                group,
                outs: range(part_out, cut.task_outs, cut.outs),
                ins: range(part_in, cut.task_ins, cut.ins),
                units: range(unit, cut.task_units, cut.units),
            };
            let part = &part;
            with_vector!(isa, run_part(job: &Job<'_>, part: &Part));
        });
    }
}

/// The operands that tasks share. The slices have the sizes that `sizes` states.
struct Job<'a> {
    kernel: &'a ConvWeightGradient,
    cut: Cut,
    x: &'a [f32],
    dy: &'a [f32],
    out: SharedMut<'a, f32>,
}

/// A task's part of the weights: blocks within a group, and units.
struct Part {
    group: usize,
    outs: Range<usize>,
    ins: Range<usize>,
    units: Range<usize>,
}

/// Terms of a unit: outputs in `lines` rows of `pixels` each. Steps are in elements.
#[derive(Clone, Copy)]
struct Terms {
    x: *const f32,
    dy: *const f32,
    lines: usize,
    pixels: usize,
    /// From one row of sums, output and line to the next, in `x`.
    row_step: usize,
    x_step: usize,
    x_line: usize,
    /// From one line to the next in `dy`.
    dy_line: usize,
}

#[inline(always)]
fn run_part<V: Vector>(job: &Job<'_>, part: &Part) {
    let (kernel, cut) = (job.kernel, &job.cut);
    let unit_size = cut.rows * LANES;
    let mut buffer = StackBuffer::<SUMS>::new();
    let (outs, ins, units) = (part.outs.len(), part.ins.len(), part.units.len());
    let sums = buffer.zeros(outs * ins * units * unit_size);
    let [rows, _] = kernel.window.output;
    let line = outs * kernel.window.output[1] * LANES
        + ins * kernel.in_block() * kernel.window.stride[0] * kernel.window.input[1];
    let band = (BAND / line.max(1)).clamp(1, rows.max(1));
    for image in 0..kernel.batch {
        for first in (0..rows).step_by(band) {
            let lines = first..rows.min(first + band);
            for unit in part.units.clone() {
                for (ix, block) in part.ins.clone().enumerate() {
                    for (number, own) in part.outs.clone().enumerate() {
                        let at = ((number * ins + ix) * units + unit - part.units.start) * unit_size;
                        let sums = &mut sums[at..at + unit_size];
                        match kernel.is_blocked() {
                            true => blocked_unit::<V>(job, part.group, [own, block], unit, image, &lines, sums),
                            false => row_major_unit::<V>(job, [own, block], unit, image, &lines, sums),
                        }
                    }
                }
            }
        }
    }
    store_part(job, part, sums);
}

/// Adds a band's terms of a tap of a pair of blocks.
#[inline(always)]
fn blocked_unit<V: Vector>(
    job: &Job<'_>,
    group: usize,
    [own, block]: [usize; 2],
    tap: usize,
    image: usize,
    lines: &Range<usize>,
    sums: &mut [f32],
) {
    let (kernel, window) = (job.kernel, &job.kernel.window);
    let tap = [tap / window.kernel[1], tap % window.kernel[1]];
    let rows = window.inside(0, tap[0]);
    let rows = rows.start.max(lines.start)..rows.end.min(lines.end);
    let columns = window.inside(1, tap[1]);
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    let in_blocks = job.cut.ins * kernel.groups;
    let out_blocks = job.cut.outs * kernel.groups;
    let x_plane = (image * in_blocks + group * job.cut.ins + block) * window.input_plane();
    let dy_plane = (image * out_blocks + group * job.cut.outs + own) * window.output_plane();
    let [y, x] = [0, 1].map(|axis| {
        let first = if axis == 0 { rows.start } else { columns.start };
        window.source(axis, first, tap[axis]).expect("`inside` returned outputs whose tap is in the input")
    });
    let x_at = (x_plane + y * window.input[1] + x) * LANES;
    let dy_at = (dy_plane + rows.start * window.output[1] + columns.start) * LANES;
    let terms = Terms {
        x: job.x[x_at..].as_ptr(),
        dy: job.dy[dy_at..].as_ptr(),
        lines: rows.len(),
        pixels: columns.len(),
        row_step: 1,
        x_step: window.stride[1] * LANES,
        x_line: window.stride[0] * window.input[1] * LANES,
        dy_line: window.output[1] * LANES,
    };
    let last = [(rows.len() - 1, columns.len() - 1)]
        .map(|(line, pixel)| (line * terms.x_line + pixel * terms.x_step, line * terms.dy_line + pixel * LANES));
    assert!(
        x_at + last[0].0 + LANES <= job.x.len() && dy_at + last[0].1 + LANES <= job.dy.len(),
        "terms are in bounds"
    );
    // SAFETY: the last pixel of the last line is in bounds (asserted), and all others precede it.
    unsafe { accumulate_rows::<V>(&terms, sums) };
}

/// Adds a band's terms of a row of taps of a channel and a block of `dy`.
#[inline(always)]
fn row_major_unit<V: Vector>(
    job: &Job<'_>,
    [own, channel]: [usize; 2],
    tap: usize,
    image: usize,
    lines: &Range<usize>,
    sums: &mut [f32],
) {
    let (kernel, window) = (job.kernel, &job.kernel.window);
    let rows = window.inside(0, tap);
    let rows = rows.start.max(lines.start)..rows.end.min(lines.end);
    if rows.is_empty() {
        return;
    }
    let y = window.source(0, rows.start, tap).expect("`inside` returned outputs whose tap is in the input");
    let x_row = ((image * kernel.in_channels + channel) * window.input[0] + y) * window.input[1];
    let dy_row = ((image * job.cut.outs + own) * window.output[0] + rows.start) * window.output[1];
    let taps = window.kernel[1];
    // Outputs that use the same taps, from left to right.
    let mut column = 0;
    while column < window.output[1] {
        let used = window.taps_inside(1, column);
        let mut end = column + 1;
        if used == (0..taps) {
            // The middle: the last output whose last tap is in the input, too.
            end = end.max(window.inside(1, taps - 1).end);
        }
        if !used.is_empty() {
            let x = window.source(1, column, used.start).expect("the tap is in the input");
            let (x_at, dy_at) = (x_row + x, (dy_row + column) * LANES);
            let terms = Terms {
                x: job.x[x_at..].as_ptr(),
                dy: job.dy[dy_at..].as_ptr(),
                lines: rows.len(),
                pixels: end - column,
                row_step: window.dilation[1],
                x_step: window.stride[1],
                x_line: window.stride[0] * window.input[1],
                dy_line: window.output[1] * LANES,
            };
            let x_last =
                (rows.len() - 1) * terms.x_line + (terms.pixels - 1) * terms.x_step + (used.len() - 1) * terms.row_step;
            let dy_last = (rows.len() - 1) * terms.dy_line + (terms.pixels - 1) * LANES;
            assert!(x_at + x_last < job.x.len() && dy_at + dy_last + LANES <= job.dy.len(), "terms are in bounds");
            // SAFETY: the last tap of the last pixel of the last line is in bounds (asserted), and all others precede it.
            unsafe { accumulate_rows::<V>(&terms, &mut sums[used.start * LANES..used.end * LANES]) };
        }
        column = end;
    }
}

/// Adds terms to rows of sums, as many rows at a time as fit the registers.
///
/// # Safety
/// As [`accumulate`], for each row of `sums`.
#[inline(always)]
unsafe fn accumulate_rows<V: Vector>(terms: &Terms, sums: &mut [f32]) {
    let (rows, mut row) = (sums.len() / LANES, 0);
    macro_rules! each {
        ($($count:literal)*) => {
            while row < rows {
                let sums = &mut sums[row * LANES..];
                let terms = Terms { x: terms.x.wrapping_add(row * terms.row_step), ..*terms };
                let rest = rows - row;
                row += match rest {
                    // SAFETY: the caller's promise.
                    $(_ if $count <= rest => unsafe { accumulate::<V, $count>(&terms, sums) },)*
                    // SAFETY: as above.
                    _ => unsafe { accumulate::<V, 1>(&terms, sums) },
                };
            }
        };
    }
    match V::ISA {
        Isa::Avx512 => each!(16 8 4 2),
        Isa::Neon | Isa::Avx2 => each!(6 5 4 2),
        Isa::Portable => each!(4 2),
    }
}

/// Adds terms to R rows of sums and returns R: `sums[r] += x[r * row_step] * dy` over all outputs.
///
/// # Safety
/// For every line, pixel and row, `x` can be read, and sixteen elements of `dy`.
#[inline(always)]
unsafe fn accumulate<V: Vector, const R: usize>(terms: &Terms, sums: &mut [f32]) -> usize {
    // Constant distances are part of the instructions.
    let rows: [V; R] = match terms.row_step {
        // SAFETY: the caller's promise.
        1 => unsafe { outer_products(terms, 1) },
        // SAFETY: the caller's promise.
        step => unsafe { outer_products(terms, step) },
    };
    for (row, sums) in rows.into_iter().zip(sums.chunks_exact_mut(LANES)) {
        row.add(V::read(sums)).write(sums);
    }
    R
}

/// R rows of sums over all outputs. From zero: the sums of a band are added as a whole, so that rounding errors do not grow
/// with the number of terms.
///
/// A function and no closure: one that is called twice is not inlined, and its vectors are then in memory.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
unsafe fn outer_products<V: Vector, const R: usize>(terms: &Terms, row_step: usize) -> [V; R] {
    let mut rows = [V::zero(); R];
    for line in 0..terms.lines {
        let mut x = terms.x.wrapping_add(line * terms.x_line);
        let mut dy = terms.dy.wrapping_add(line * terms.dy_line);
        for _ in 0..terms.pixels {
            // SAFETY: the caller's promise.
            let lanes = unsafe { V::load(dy) };
            for r in 0..R {
                // SAFETY: the caller's promise.
                let item = V::splat(unsafe { *x.add(r * row_step) });
                rows[r] = item.mul_add(lanes, rows[r]);
            }
            x = x.wrapping_add(terms.x_step);
            dy = dy.wrapping_add(LANES);
        }
    }
    rows
}

/// Writes a part's sums to the weights. Channels of padding lanes have none.
fn store_part(job: &Job<'_>, part: &Part, sums: &[f32]) {
    let (kernel, cut) = (job.kernel, &job.cut);
    let (ins, outs) = (kernel.in_channels / kernel.groups, kernel.out_channels / kernel.groups);
    let (taps, columns, units) = (kernel.window.taps(), kernel.window.kernel[1], part.units.len());
    for (number, own) in part.outs.clone().enumerate() {
        for (ix, block) in part.ins.clone().enumerate() {
            for (turn, unit) in part.units.clone().enumerate() {
                let sums = &sums[((number * part.ins.len() + ix) * units + turn) * cut.rows * LANES..];
                for (row, lanes) in sums.chunks_exact(LANES).take(cut.rows).enumerate() {
                    let (channel, tap) = match kernel.is_blocked() {
                        true => (block * LANES + row, unit),
                        false => (block, unit * columns + row),
                    };
                    if ins <= channel {
                        break;
                    }
                    for (lane, &sum) in lanes.iter().enumerate().take(outs - own * LANES) {
                        let out = part.group * outs + own * LANES + lane;
                        // SAFETY: tasks differ in output channel, input channel or tap.
                        let cell = unsafe { job.out.part((out * ins + channel) * taps + tap, 1) };
                        cell[0] = sum;
                    }
                }
            }
        }
    }
}

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
        let rows = self.window.kernel[0];
        pool.run(self.channels.div_ceil(LANES) * rows, &|task| {
            let (block, row) = (task / rows, task % rows);
            let kernel = self;
            with_vector!(isa, depthwise_row(
                kernel: &DepthwiseWeightGradient,
                x: &[f32],
                dy: &[f32],
                block: usize,
                row: usize,
                out: &SharedMut<'_, f32>,
            ));
        });
    }
}

/// Gradients of a row of taps of sixteen channels.
#[inline(always)]
fn depthwise_row<V: Vector>(
    kernel: &DepthwiseWeightGradient,
    x: &[f32],
    dy: &[f32],
    block: usize,
    row: usize,
    out: &SharedMut<'_, f32>,
) {
    let (window, blocks) = (&kernel.window, kernel.channels.div_ceil(LANES));
    let [x_plane, dy_plane] = [window.input_plane(), window.output_plane()];
    let lines = window.inside(0, row);
    for tap in 0..window.kernel[1] {
        let columns = window.inside(1, tap);
        let mut sums = [V::zero(); 4];
        for image in 0..kernel.batch {
            if columns.is_empty() {
                break;
            }
            for line in lines.clone() {
                let y = window.source(0, line, row).expect("`inside` returned outputs whose tap is in the input");
                let start = window.source(1, columns.start, tap).expect("as above");
                let plane = image * blocks + block;
                let dy = &dy[(plane * dy_plane + line * window.output[1]) * LANES..][..window.output[1] * LANES];
                let x = &x[(plane * x_plane + y * window.input[1]) * LANES..][..window.input[1] * LANES];
                let dy = &dy[columns.start * LANES..columns.end * LANES];
                let pixels = x[start * LANES..].chunks(window.stride[1] * LANES);
                for (ix, (dy, x)) in dy.chunks_exact(LANES).zip(pixels).enumerate() {
                    let sum = &mut sums[ix % 4];
                    *sum = V::read(dy).mul_add(V::read(x), *sum);
                }
            }
        }
        let mut lanes = [0.0; LANES];
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).write(&mut lanes);
        for (lane, &sum) in lanes.iter().enumerate().take(kernel.channels - block * LANES) {
            let at = ((block * LANES + lane) * window.kernel[0] + row) * window.kernel[1] + tap;
            // SAFETY: tasks differ in channels or row of taps.
            let cell = unsafe { out.part(at, 1) };
            cell[0] = sum;
        }
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

/// The same as [`ConvWeightGradient`] over row-major `x` and `dy`, for channels that do not fill blocks, and for three
/// spatial axes. Not fast.
///
/// Refuses: groups that do not divide the channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightGradientRows {
    /// Images.
    pub batch: usize,
    /// Channels of `x`; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of `dy`; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// The first of three spatial axes, as the rows of a window of one column; all extents are 1 without it.
    pub depth: Window,
    /// Rows and columns of the convolution.
    pub window: Window,
}

impl KernelFn for WeightGradientRows {
    const NAME: &'static str = "weight_gradient_rows";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let WeightGradientRows { batch, in_channels, out_channels, groups, depth, window } = self;
        window.check()?;
        depth.check()?;
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Err(InvalidKernel("`groups` must be >= 1 and divide the channels"));
        }
        let x = product(&[*batch, *in_channels, depth.input[0], window.input[0], window.input[1]]);
        let dy = product(&[*batch, *out_channels, depth.output[0], window.output[0], window.output[1]]);
        let kernel = [depth.kernel[0], window.kernel[0], window.kernel[1]];
        let weights = product(&[*out_channels, in_channels / groups, kernel[0], kernel[1], kernel[2]]);
        Sizes::new(&[x, dy], weights, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let dy: &[f32] = input(&args, 1);
        let (taps, isa) = (self.depth.kernel[0] * self.window.taps(), pool.isa());
        for_each_chunk(pool, elements_mut(args.outputs[0]), taps, &|number, cells: &mut [f32]| {
            let kernel = self;
            with_vector!(isa, pair_of_rows(
                kernel: &WeightGradientRows, x: &[f32], dy: &[f32], number: usize, cells: &mut [f32]
            ));
        });
    }
}

/// Gradients of the taps of a pair of channels.
#[inline(always)]
fn pair_of_rows<V: Vector>(kernel: &WeightGradientRows, x: &[f32], dy: &[f32], number: usize, cells: &mut [f32]) {
    let (window, ins) = (&kernel.window, kernel.in_channels / kernel.groups);
    let (out, channel) = (number / ins, number % ins);
    let channel = out / (kernel.out_channels / kernel.groups) * ins + channel;
    let depth = &kernel.depth;
    for (tap, cell) in cells.iter_mut().enumerate() {
        let (deep, tap) = (tap / window.taps(), tap % window.taps());
        let tap = [tap / window.kernel[1], tap % window.kernel[1]];
        let (lines, columns) = (window.inside(0, tap[0]), window.inside(1, tap[1]));
        let Some(start) = window.source(1, columns.start, tap[1]).filter(|_| !columns.is_empty()) else {
            *cell = 0.0;
            continue;
        };
        let (mut sums, mut rest) = (V::zero(), 0.0);
        let places = (0..kernel.batch).flat_map(|image| depth.inside(0, deep).map(move |layer| (image, layer)));
        for (image, layer) in places {
            let z = depth.source(0, layer, deep).expect("`inside` returned outputs whose tap is in the input");
            let x_layer = (image * kernel.in_channels + channel) * depth.input[0] + z;
            let dy_layer = (image * kernel.out_channels + out) * depth.output[0] + layer;
            for line in lines.clone() {
                let y = window.source(0, line, tap[0]).expect("as above");
                let x_row = (x_layer * window.input[0] + y) * window.input[1];
                let dy_row = (dy_layer * window.output[0] + line) * window.output[1];
                let dy = &dy[dy_row + columns.start..dy_row + columns.end];
                let x = &x[x_row + start..x_row + window.input[1]];
                if window.stride[1] == 1 {
                    for (x, dy) in x.chunks(LANES).zip(dy.chunks(LANES)) {
                        sums = V::read_part(&x[..dy.len()], 0.0).mul_add(V::read_part(dy, 0.0), sums);
                    }
                } else {
                    rest += x.iter().step_by(window.stride[1]).zip(dy).map(|(x, dy)| x * dy).sum::<f32>();
                }
            }
        }
        *cell = sums.sum() + rest;
    }
}
