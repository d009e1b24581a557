//! [`ConvWeightGradient`]: the gradient of a convolution's weights, and [`WeightGradientRows`] for other layouts.
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

use crate::conv::{ImageLayout, Window, check_groups, groups_of_blocks};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, read_every, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer};

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
/// Neighboring groups whose channels do not fill blocks of sixteen are joined ([`groups_of_blocks`]), and the sums between them
/// are dropped.
///
/// Refuses: several groups over row-major inputs.
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

    /// Neighboring groups that tasks work on as one; the last ones may be fewer.
    fn joined(&self) -> usize {
        groups_of_blocks(self.groups, self.in_channels, self.out_channels)
    }

    /// Joined groups.
    fn units(&self) -> usize {
        self.groups.div_ceil(self.joined())
    }

    /// Input and output channels of joined groups.
    fn unit_channels(&self, unit: usize) -> [usize; 2] {
        [self.in_channels, self.out_channels].map(|channels| {
            let own = (channels / self.groups).saturating_mul(self.joined());
            own.min(channels.saturating_sub(unit.saturating_mul(own)))
        })
    }

    /// Sums of channels that fill blocks, for each tap and pixel, those between joined groups included.
    pub fn channel_pairs(&self) -> usize {
        let [ins, outs] = self.unit_channels(0);
        self.units() * ins.next_multiple_of(self.in_block()) * outs.next_multiple_of(LANES)
    }

    fn cut(&self) -> Cut {
        let ([height, width], groups) = (self.window.kernel, self.units());
        let [ins, outs] = self.unit_channels(0);
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
        let tasks = |cut: &Cut| groups * cut.tasks().iter().product::<usize>();
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
        check_groups(*groups, *in_channels, *out_channels)?;
        if 1 < *groups && !self.is_blocked() {
            return Err(InvalidKernel("the input of several groups must be blocked"));
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
        pool.run(self.units() * outs * ins * units, &|task| {
            let (rest, unit) = (task / units, task % units);
            let (rest, part_in) = (rest / ins, rest % ins);
            let (group, part_out) = (rest / outs, rest % outs);
            let range = |part: usize, size: usize, end: usize| (part * size).min(end)..(part * size + size).min(end);
            let [in_channels, out_channels] = self.unit_channels(group);
            let part = Part {
                group,
                outs: range(part_out, cut.task_outs, out_channels.div_ceil(LANES)),
                ins: range(part_in, cut.task_ins, in_channels.div_ceil(self.in_block())),
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

/// Terms of a unit: outputs in `lines` rows of `pixels` each, of `images`. Steps are in elements.
#[derive(Clone, Copy)]
struct Terms {
    x: *const f32,
    dy: *const f32,
    images: usize,
    lines: usize,
    pixels: usize,
    /// From one row of sums, output, line and image to the next, in `x`.
    row_step: usize,
    x_step: usize,
    x_line: usize,
    x_image: usize,
    /// From one line, image and block to the next in `dy`.
    dy_line: usize,
    dy_image: usize,
    dy_block: usize,
    /// From one block of `dy` to the next in the sums.
    sums_block: usize,
}

/// The terms that [`accumulate`] adds at a time: images, rows of outputs, and one or two blocks of `dy`.
struct Band {
    images: Range<usize>,
    lines: Range<usize>,
    /// The first block of `dy`, and their number.
    own: usize,
    blocks: usize,
    /// From one block's sums to those of the next.
    sums_block: usize,
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
    // Rows of outputs, or all of several small images.
    let band = (BAND / line.max(1)).clamp(1, rows.max(1));
    let images = (BAND / (line * rows).max(1)).clamp(1, kernel.batch.max(1));
    let (block_max, sums_block) = (blocks_max(V::ISA), ins * units * unit_size);
    for image in (0..kernel.batch).step_by(images) {
        for first in (0..rows).step_by(band) {
            for unit in part.units.clone() {
                for (ix, block) in part.ins.clone().enumerate() {
                    for number in (0..outs).step_by(block_max) {
                        let band = Band {
                            images: image..kernel.batch.min(image + images),
                            lines: first..rows.min(first + band),
                            own: part.outs.start + number,
                            blocks: block_max.min(outs - number),
                            sums_block,
                        };
                        let at = ((number * ins + ix) * units + unit - part.units.start) * unit_size;
                        match kernel.is_blocked() {
                            true => blocked_unit::<V>(job, part.group, block, unit, &band, &mut sums[at..]),
                            false => row_major_unit::<V>(job, block, unit, &band, &mut sums[at..]),
                        }
                    }
                }
            }
        }
    }
    store_part::<V>(job, part, sums);
}

/// The most blocks of `dy` that a unit has: the registers that keep their sums.
#[inline(always)]
fn blocks_max(isa: Isa) -> usize {
    if isa == Isa::Avx512 { 2 } else { 1 }
}

/// Adds a band's terms of a tap of a block of `x` and blocks of `dy`.
#[inline(always)]
fn blocked_unit<V: Vector>(job: &Job<'_>, group: usize, block: usize, tap: usize, band: &Band, sums: &mut [f32]) {
    let (kernel, window) = (job.kernel, &job.kernel.window);
    let tap = [tap / window.kernel[1], tap % window.kernel[1]];
    let rows = window.inside(0, tap[0]);
    let rows = rows.start.max(band.lines.start)..rows.end.min(band.lines.end);
    let columns = window.inside(1, tap[1]);
    if rows.is_empty() || columns.is_empty() || band.images.is_empty() {
        return;
    }
    let in_blocks = kernel.in_channels.div_ceil(LANES);
    let out_blocks = kernel.out_channels.div_ceil(LANES);
    let [x_size, dy_size] = [window.input_plane() * LANES, window.output_plane() * LANES];
    let x_plane = band.images.start * in_blocks + group * job.cut.ins + block;
    let dy_plane = band.images.start * out_blocks + group * job.cut.outs + band.own;
    let [y, x] = [0, 1].map(|axis| {
        let first = if axis == 0 { rows.start } else { columns.start };
        window.source(axis, first, tap[axis]).expect("`inside` returned outputs whose tap is in the input")
    });
    let x_at = x_plane * x_size + (y * window.input[1] + x) * LANES;
    let dy_at = dy_plane * dy_size + (rows.start * window.output[1] + columns.start) * LANES;
    let terms = Terms {
        x: job.x[x_at..].as_ptr(),
        dy: job.dy[dy_at..].as_ptr(),
        images: band.images.len(),
        lines: rows.len(),
        pixels: columns.len(),
        row_step: 1,
        x_step: window.stride[1] * LANES,
        x_line: window.stride[0] * window.input[1] * LANES,
        x_image: in_blocks * x_size,
        dy_line: window.output[1] * LANES,
        dy_image: out_blocks * dy_size,
        dy_block: dy_size,
        sums_block: band.sums_block,
    };
    terms.check([job.x.len() - x_at, job.dy.len() - dy_at], LANES - 1, band.blocks);
    // The last block may have fewer channels.
    let rows = LANES.min(kernel.unit_channels(group)[0] - block * LANES);
    // SAFETY: `check` found the last terms in bounds, and all others precede them.
    unsafe { accumulate_rows::<V>(&terms, rows, band.blocks, sums) };
}

/// Adds a band's terms of a row of taps of a channel and blocks of `dy`.
#[inline(always)]
fn row_major_unit<V: Vector>(job: &Job<'_>, channel: usize, tap: usize, band: &Band, sums: &mut [f32]) {
    let (kernel, window) = (job.kernel, &job.kernel.window);
    let rows = window.inside(0, tap);
    let rows = rows.start.max(band.lines.start)..rows.end.min(band.lines.end);
    if rows.is_empty() || band.images.is_empty() {
        return;
    }
    let y = window.source(0, rows.start, tap).expect("`inside` returned outputs whose tap is in the input");
    let image = band.images.start;
    let x_row = ((image * kernel.in_channels + channel) * window.input[0] + y) * window.input[1];
    let dy_row = ((image * job.cut.outs + band.own) * window.output[0] + rows.start) * window.output[1];
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
                images: band.images.len(),
                lines: rows.len(),
                pixels: end - column,
                row_step: window.dilation[1],
                x_step: window.stride[1],
                x_line: window.stride[0] * window.input[1],
                x_image: kernel.in_channels * window.input_plane(),
                dy_line: window.output[1] * LANES,
                dy_image: job.cut.outs * window.output_plane() * LANES,
                dy_block: window.output_plane() * LANES,
                sums_block: band.sums_block,
            };
            let reach = (used.len() - 1) * terms.row_step;
            terms.check([job.x.len() - x_at, job.dy.len() - dy_at], reach, band.blocks);
            let sums = &mut sums[used.start * LANES..];
            // SAFETY: `check` found the last terms in bounds, and all others precede them.
            unsafe { accumulate_rows::<V>(&terms, used.len(), band.blocks, sums) };
        }
        column = end;
    }
}

impl Terms {
    /// Asserts that the last terms of these blocks are within as many elements of `x` and `dy`. A term reads `x` up to
    /// `reach` elements behind its place.
    fn check(&self, [x, dy]: [usize; 2], reach: usize, blocks: usize) {
        let [images, lines, pixels] = [self.images, self.lines, self.pixels].map(|count| count - 1);
        let x_last = images * self.x_image + lines * self.x_line + pixels * self.x_step + reach;
        let dy_last = (blocks - 1) * self.dy_block + images * self.dy_image + lines * self.dy_line + pixels * LANES;
        assert!(x_last < x, "terms of `x` are in bounds");
        assert!(dy_last + LANES <= dy, "terms of `dy` are in bounds");
    }
}

/// Adds terms to rows of sums of one or two blocks, as many rows at a time as fit the registers.
///
/// # Safety
/// As [`accumulate`], for each of `rows`.
#[inline(always)]
unsafe fn accumulate_rows<V: Vector>(terms: &Terms, rows: usize, blocks: usize, sums: &mut [f32]) {
    let mut row = 0;
    macro_rules! each {
        ($blocks:literal: $($count:literal)*) => {
            while row < rows {
                let sums = &mut sums[row * LANES..];
                let terms = Terms { x: terms.x.wrapping_add(row * terms.row_step), ..*terms };
                let rest = rows - row;
                row += match rest {
                    // SAFETY: the caller's promise.
                    $(_ if $count <= rest => unsafe { accumulate::<V, $count, $blocks>(&terms, sums) },)*
                    // SAFETY: as above.
                    _ => unsafe { accumulate::<V, 1, $blocks>(&terms, sums) },
                };
            }
        };
    }
    match (V::ISA, blocks) {
        (Isa::Avx512, 2) => each!(2: 8 7 6 5 4 3 2),
        (Isa::Avx512, _) => each!(1: 16 8 7 6 5 4 3 2),
        (Isa::Neon | Isa::Avx2, _) => each!(1: 6 5 4 3 2),
        (Isa::Portable, _) => each!(1: 4 2),
    }
}

/// Adds terms to R rows of sums of B blocks and returns R: `sums[b][r] += x[r * row_step] * dy[b]` over all outputs.
///
/// # Safety
/// For every image, line, pixel and row, `x` can be read, and for every block sixteen elements of `dy`.
#[inline(always)]
unsafe fn accumulate<V: Vector, const R: usize, const B: usize>(terms: &Terms, sums: &mut [f32]) -> usize {
    // Constant distances are part of the instructions.
    let rows: [[V; R]; B] = match terms.row_step {
        // SAFETY: the caller's promise.
        1 => unsafe { outer_products(terms, 1) },
        // SAFETY: the caller's promise.
        step => unsafe { outer_products(terms, step) },
    };
    for (rows, sums) in rows.into_iter().zip(sums.chunks_mut(terms.sums_block)) {
        for (row, sums) in rows.into_iter().zip(sums.chunks_exact_mut(LANES)) {
            row.add(V::read(sums)).write(sums);
        }
    }
    R
}

/// R rows of sums of B blocks over all outputs. From zero: the sums of a band are added as a whole, so that rounding errors
/// do not grow with the number of terms.
///
/// A function and no closure: one that is called twice is not inlined, and its vectors are then in memory.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
unsafe fn outer_products<V: Vector, const R: usize, const B: usize>(terms: &Terms, row_step: usize) -> [[V; R]; B] {
    let mut rows = [[V::zero(); R]; B];
    for image in 0..terms.images {
        for line in 0..terms.lines {
            let mut x = terms.x.wrapping_add(image * terms.x_image + line * terms.x_line);
            let mut dy = terms.dy.wrapping_add(image * terms.dy_image + line * terms.dy_line);
            for _ in 0..terms.pixels {
                let mut lanes = [V::zero(); B];
                for b in 0..B {
                    // SAFETY: the caller's promise.
                    lanes[b] = unsafe { V::load(dy.add(b * terms.dy_block)) };
                }
                for r in 0..R {
                    // SAFETY: the caller's promise.
                    let item = V::splat(unsafe { *x.add(r * row_step) });
                    for b in 0..B {
                        rows[b][r] = item.mul_add(lanes[b], rows[b][r]);
                    }
                }
                x = x.wrapping_add(terms.x_step);
                dy = dy.wrapping_add(LANES);
            }
        }
    }
    rows
}

/// Writes a part's sums to the weights. Channels of padding lanes have none, and neither have pairs of channels of different
/// groups.
#[inline(always)]
fn store_part<V: Vector>(job: &Job<'_>, part: &Part, sums: &[f32]) {
    let (kernel, cut) = (job.kernel, &job.cut);
    let (taps, units) = (kernel.window.taps(), part.units.len());
    // A task with all taps of groups that are not joined has neighboring weights.
    let by_vectors = kernel.joined() == 1 && part.units.len() == cut.units;
    let mut pairs = sums.chunks_exact(units * cut.rows * LANES);
    for own in part.outs.clone() {
        for (block, sums) in part.ins.clone().zip(&mut pairs) {
            if !by_vectors {
                store_each(job, part, [own, block], sums);
                continue;
            }
            let [ins, outs] = kernel.unit_channels(part.group);
            let (first_in, first) = (block * kernel.in_block(), own * LANES);
            let (channels, lanes) = (kernel.in_block().min(ins - first_in), LANES.min(outs - first));
            let start = ((part.group * outs + first) * ins + first_in) * taps;
            let strip = Strip { taps, channels, lanes, start, step: ins * taps };
            // SAFETY: tasks differ in output channels or input channels.
            unsafe { strip.store::<V>(sums, &job.out) };
        }
    }
}

/// The weights between some input channels and sixteen output channels, all taps.
struct Strip {
    taps: usize,
    /// Input channels, and output channels, at most sixteen.
    channels: usize,
    lanes: usize,
    /// The first weight, and the distance from one output channel to the next.
    start: usize,
    step: usize,
}

impl Strip {
    /// Writes sums, in which the lanes of a tap's input channels are neighbors.
    ///
    /// # Safety
    /// No other task accesses the weights.
    #[inline(always)]
    unsafe fn store<V: Vector>(&self, sums: &[f32], out: &SharedMut<'_, f32>) {
        let (length, of_tap) = (self.channels * self.taps, sums.len() / self.taps);
        let (mut channel, mut tap) = (0, 0);
        for first in (0..length).step_by(LANES) {
            let mut vectors = [V::zero(); LANES];
            let width = LANES.min(length - first);
            for vector in vectors.iter_mut().take(width) {
                *vector = V::read(&sums[tap * of_tap + channel * LANES..]);
                tap += 1;
                if tap == self.taps {
                    (channel, tap) = (channel + 1, 0);
                }
            }
            for (lane, row) in V::transpose(vectors).into_iter().enumerate().take(self.lanes) {
                // SAFETY: the caller's promise.
                row.write_part(unsafe { out.part(self.start + lane * self.step + first, width) });
            }
        }
    }
}

/// Writes the sums of a pair of blocks one by one.
fn store_each(job: &Job<'_>, part: &Part, [own, block]: [usize; 2], sums: &[f32]) {
    let (kernel, cut) = (job.kernel, &job.cut);
    let (ins, outs) = (kernel.in_channels / kernel.groups, kernel.out_channels / kernel.groups);
    let (joined, [unit_ins, unit_outs]) = (kernel.joined(), kernel.unit_channels(part.group));
    let (taps, columns) = (kernel.window.taps(), kernel.window.kernel[1]);
    for (unit, sums) in part.units.clone().zip(sums.chunks_exact(cut.rows * LANES)) {
        for (row, lanes) in sums.chunks_exact(LANES).enumerate() {
            let (channel, tap) = match kernel.is_blocked() {
                true => (block * LANES + row, unit),
                false => (block, unit * columns + row),
            };
            if unit_ins <= channel {
                break;
            }
            for (lane, &sum) in lanes.iter().enumerate().take(unit_outs - own * LANES) {
                let out = own * LANES + lane;
                if 1 < joined && out / outs != channel / ins {
                    continue;
                }
                let (out, channel) = (part.group * joined * outs + out, channel % ins);
                // SAFETY: tasks differ in output channel, input channel or tap.
                let cell = unsafe { job.out.part((out * ins + channel) * taps + tap, 1) };
                cell[0] = sum;
            }
        }
    }
}

/// The same as [`ConvWeightGradient`] over row-major `x` and `dy`, for channels that do not fill blocks, and for three
/// spatial axes.
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
        check_groups(*groups, *in_channels, *out_channels)?;
        let x = product(&[*batch, *in_channels, depth.input[0], window.input[0], window.input[1]]);
        let dy = product(&[*batch, *out_channels, depth.output[0], window.output[0], window.output[1]]);
        let kernel = [depth.kernel[0], window.kernel[0], window.kernel[1]];
        let weights = product(&[*out_channels, in_channels / groups, kernel[0], kernel[1], kernel[2]]);
        Sizes::new(&[x, dy], weights, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let dy: &[f32] = input(&args, 1);
        let isa = pool.isa();
        let outs = self.out_channels / self.groups;
        let (blocks, ins) = (outs.div_ceil(ROWS_OUTS), self.in_channels / self.groups);
        let cells = &SharedMut::new(elements_mut::<f32>(args.outputs[0]));
        pool.run(self.groups * blocks * ins, &|number| {
            let (group, block, channel) = (number / ins / blocks, number / ins % blocks, number % ins);
            let first = group * outs + block * ROWS_OUTS;
            let task = &RowsTask { kernel: self, x, dy, outs: first..(group + 1) * outs, channel };
            with_vector!(isa, rows_of_taps(task: &RowsTask<'_>, cells: &SharedMut<'_, f32>));
        });
    }
}

/// Output channels that a task of [`WeightGradientRows`] computes at most.
const ROWS_OUTS: usize = 4;
/// Pixels of a copied row, with padding.
const PADDED: usize = 1 << 11;

/// The gradients of an input channel's taps for some output channels of its group.
struct RowsTask<'a> {
    kernel: &'a WeightGradientRows,
    x: &'a [f32],
    dy: &'a [f32],
    /// From the first one of the task to the end of the group.
    outs: Range<usize>,
    /// The input channel in its group.
    channel: usize,
}

#[inline(always)]
fn rows_of_taps<V: Vector>(task: &RowsTask<'_>, cells: &SharedMut<'_, f32>) {
    let outs = task.outs.start..task.outs.end.min(task.outs.start + ROWS_OUTS);
    let mut out = outs.start;
    while out < outs.end {
        // As many sums as there are registers.
        out += match (V::ISA, outs.end - out) {
            (Isa::Avx512, ROWS_OUTS..) => taps_of_outs::<V, ROWS_OUTS>(task, out, cells),
            (Isa::Avx2 | Isa::Neon | Isa::Portable, 2..) => taps_of_outs::<V, 2>(task, out, cells),
            _ => taps_of_outs::<V, 1>(task, out, cells),
        };
    }
}

/// Writes the gradients of all taps of R output channels and returns R.
#[inline(always)]
fn taps_of_outs<V: Vector, const R: usize>(task: &RowsTask<'_>, out: usize, cells: &SharedMut<'_, f32>) -> usize {
    let RowsTask { kernel, channel, .. } = task;
    let ins = kernel.in_channels / kernel.groups;
    let [height, width] = kernel.window.kernel;
    let rows = kernel.depth.kernel[0] * height;
    let write = |row: usize, column: usize, sums: &[f32]| {
        for (ix, sums) in sums.chunks_exact(sums.len() / R).enumerate() {
            let at = (((out + ix) * ins + channel) * rows + row) * width + column;
            // SAFETY: tasks differ in output channel or input channel.
            unsafe { cells.part(at, sums.len()) }.copy_from_slice(sums);
        }
    };
    for row in 0..rows {
        let mut column = 0;
        while column < width {
            let first = RowTaps { out, taps: [row / height, row % height], column };
            // Taps so far apart that their pixels do not fit the buffer are computed one by one.
            let taps = if PADDED / 4 < kernel.window.dilation[1] { 1 } else { (width - column).min(3) };
            match taps {
                1 => write(row, column, sums_of_taps::<V, R, 1>(task, &first).as_flattened()),
                2 => write(row, column, sums_of_taps::<V, R, 2>(task, &first).as_flattened()),
                _ => write(row, column, sums_of_taps::<V, R, 3>(task, &first).as_flattened()),
            }
            column += taps;
        }
    }
    R
}

/// Neighboring taps of neighboring output channels.
struct RowTaps {
    /// The first output channel.
    out: usize,
    /// The layer and row of the taps in the kernel.
    taps: [usize; 2],
    /// The column of the first tap.
    column: usize,
}

/// The sums for C neighboring taps of a row of R output channels.
///
/// Pixels are read from a copy of their row with its padding, so that all taps have all outputs.
#[inline(always)]
fn sums_of_taps<V: Vector, const R: usize, const C: usize>(task: &RowsTask<'_>, first: &RowTaps) -> [[f32; C]; R] {
    let RowsTask { kernel, x, dy, channel, .. } = task;
    let (window, depth) = (&kernel.window, &kernel.depth);
    let (ins, outs) = (kernel.in_channels / kernel.groups, kernel.out_channels / kernel.groups);
    let channel = first.out / outs * ins + channel;
    let (stride, dilation, width) = (window.stride[1], window.dilation[1], window.output[1]);
    // The outputs whose pixels fit the buffer.
    let part = (PADDED - (C - 1) * dilation - 1) / stride + 1;
    let part = if LANES < part { part / LANES * LANES } else { part };
    let (mut sums, mut buffer) = ([[V::zero(); C]; R], StackBuffer::<PADDED>::new());
    let padded = buffer.zeros(PADDED.min((width.max(1) - 1) * stride + (C - 1) * dilation + 1));
    let layers = depth.inside(0, first.taps[0]);
    for (image, layer) in (0..kernel.batch).flat_map(|image| layers.clone().map(move |layer| (image, layer))) {
        let z = depth.source(0, layer, first.taps[0]).expect("`inside` returned outputs whose tap is in the input");
        let x_layer = (image * kernel.in_channels + channel) * depth.input[0] + z;
        for line in window.inside(0, first.taps[1]) {
            let y = window.source(0, line, first.taps[1]).expect("as above");
            let x = &x[(x_layer * window.input[0] + y) * window.input[1]..][..window.input[1]];
            let dy: [&[f32]; R] = std::array::from_fn(|ix| {
                let plane = (image * kernel.out_channels + first.out + ix) * depth.output[0] + layer;
                &dy[(plane * window.output[0] + line) * width..][..width]
            });
            for start in (0..width).step_by(part) {
                let end = width.min(start + part);
                let count = (end - start - 1) * stride + (C - 1) * dilation + 1;
                copy_padded(x, start * stride + first.column * dilation, window.pad[1], &mut padded[..count]);
                for at in (start..end).step_by(LANES) {
                    let count = LANES.min(end - at);
                    let mut slopes = [V::zero(); R];
                    for (slopes, dy) in slopes.iter_mut().zip(dy) {
                        *slopes = V::read_part(&dy[at..at + count], 0.0);
                    }
                    for tap in 0..C {
                        // Nothing behind the last pixel of a part may get into its sums.
                        let x = &padded[(at - start) * stride + tap * dilation..];
                        let x = if count < LANES { &x[..(count - 1) * stride + 1] } else { x };
                        let pixels: V = read_every(x, stride);
                        for ix in 0..R {
                            sums[ix][tap] = pixels.mul_add(slopes[ix], sums[ix][tap]);
                        }
                    }
                }
            }
        }
    }
    let mut totals = [[0.0; C]; R];
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = sum.sum();
        }
    }
    totals
}

/// Copies a row from pixel `first` on, counted with the padding of `pad` zeros in front of it and as many as are needed behind.
#[inline(always)]
fn copy_padded(row: &[f32], first: usize, pad: usize, to: &mut [f32]) {
    let front = pad.saturating_sub(first).min(to.len());
    let start = (first + front).saturating_sub(pad).min(row.len());
    let end = row.len().min(start + to.len() - front);
    to[..front].fill(0.0);
    to[front..front + end - start].copy_from_slice(&row[start..end]);
    to[front + end - start..].fill(0.0);
}
