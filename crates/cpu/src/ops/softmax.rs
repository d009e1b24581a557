//! [`Softmax`]: softmax and log-softmax along an axis.

use serde::{Deserialize, Serialize};
use types::pointwise::Unary;

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::movement::short_rows;
use crate::simd::math;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Rows of at most this many elements are computed side by side.
const SHORT: usize = 32;
/// Elements per task.
const TASK: usize = 1 << 13;

/// `exp(x - max) / sum(exp(x - max))` along the middle axis of `x: [outer, axis, inner]`, or its logarithm, in `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis.
    pub axis: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
    /// Whether the result is the logarithm.
    pub log: bool,
}

impl KernelFn for Softmax {
    const NAME: &'static str = "softmax";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let elements = product(&[self.outer, self.axis, self.inner]);
        Sizes::new(&[elements], elements, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let block = self.axis * self.inner;
        if block == 0 {
            return;
        }
        let blocks = (TASK / block).max(1);
        for_each_chunk(pool, out, blocks * block, &|number, cells| {
            let (kernel, items) = (self, &x[number * blocks * block..][..cells.len()]);
            with_vector!(pool.isa(), run_blocks(kernel: &Softmax, items: &[f32], cells: &mut [f32]));
        });
    }
}

#[inline(always)]
fn run_blocks<V: Vector>(kernel: &Softmax, items: &[f32], cells: &mut [f32]) {
    let block = kernel.axis * kernel.inner;
    if kernel.inner == 1 && kernel.axis <= SHORT {
        return side_by_side::<V>(kernel.log, kernel.axis, items, cells);
    }
    for (items, cells) in items.chunks_exact(block).zip(cells.chunks_exact_mut(block)) {
        match kernel.inner {
            1 => along_lanes::<V>(kernel.log, items, cells),
            inner if inner <= LANES / 2 => several_rows::<V>(kernel.log, inner, items, cells),
            inner => across_lanes::<V>(kernel.log, inner, items, cells),
        }
    }
}

/// Rows of a few elements, sixteen at a time: each lane has a row.
#[inline(always)]
fn side_by_side<V: Vector>(log: bool, axis: usize, items: &[f32], cells: &mut [f32]) {
    let mut columns = [[0.0; LANES]; SHORT];
    let columns = &mut columns[..axis];
    for (items, cells) in items.chunks(axis * LANES).zip(cells.chunks_mut(axis * LANES)) {
        short_rows::read::<V>(items, columns);
        let mut top = V::splat(f32::NEG_INFINITY);
        for column in &*columns {
            top = V::read(column).max(top);
        }
        let mut sum = V::zero();
        for column in &mut *columns {
            let difference = V::read(column).sub(top);
            let power = math::exp_or_zero(difference);
            sum = sum.add(power);
            (if log { difference } else { power }).write(column);
        }
        let mut factors = sum.to_array();
        if log {
            math::apply(V::ISA, Unary::Log, &mut factors);
            factors.iter_mut().for_each(|sum| *sum = -*sum);
        } else {
            factors.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
        }
        let factors = V::read(&factors);
        for column in &mut *columns {
            let items = V::read(column);
            (if log { items.add(factors) } else { items.mul(factors) }).write(column);
        }
        short_rows::write::<V>(columns, cells);
    }
}

/// One contiguous row.
#[inline(always)]
fn along_lanes<V: Vector>(log: bool, items: &[f32], cells: &mut [f32]) {
    let nothing = f32::NEG_INFINITY;
    // NaN is skipped here and propagates through the sum.
    let mut top = V::splat(nothing);
    for items in items.chunks(LANES) {
        top = V::read_part(items, nothing).max(top);
    }
    let top = V::splat(top.largest());
    let mut sum = V::zero();
    for (items, cells) in items.chunks(LANES).zip(cells.chunks_mut(LANES)) {
        let difference = V::read_part(items, nothing).sub(top);
        let power = math::exp_or_zero(difference);
        sum = sum.add(power);
        (if log { difference } else { power }).write_part(cells);
    }
    let sum = sum.sum();
    let (factor, term) = if log { (1.0, -sum.ln()) } else { (1.0 / sum, 0.0) };
    for cells in cells.chunks_mut(LANES) {
        V::read_part(cells, 0.0).mul_add(V::splat(factor), V::splat(term)).write_part(cells);
    }
}

/// One matrix of at most eight columns: a vector has as many rows as fit, and its other lanes are not used.
#[inline(always)]
fn several_rows<V: Vector>(log: bool, inner: usize, items: &[f32], cells: &mut [f32]) {
    let step = LANES / inner * inner;
    let nothing = f32::NEG_INFINITY;
    let mut tops = V::splat(nothing);
    for at in (0..items.len()).step_by(step) {
        tops = V::read_part(&items[at..], nothing).max(tops);
    }
    // The rows of a vector are joined, and each has the result.
    let mut top = tops.to_array();
    for lane in inner..step {
        top[lane % inner] = if top[lane] > top[lane % inner] { top[lane] } else { top[lane % inner] };
    }
    for lane in inner..LANES {
        top[lane] = top[lane % inner];
    }
    let top = V::read(&top);
    let mut sums = V::zero();
    for at in (0..items.len()).step_by(step) {
        let difference = V::read_part(&items[at..], nothing).sub(top);
        let power = math::exp_or_zero(difference);
        sums = sums.add(power);
        // Lanes behind the rows are written over by the next ones.
        (if log { difference } else { power }).write_part(&mut cells[at..]);
    }
    let mut sum = sums.to_array();
    for lane in inner..step {
        sum[lane % inner] += sum[lane];
    }
    let (mut factors, mut terms) = ([1.0; LANES], [0.0; LANES]);
    if log {
        math::apply(V::ISA, Unary::Log, &mut sum);
        (0..LANES).for_each(|lane| terms[lane] = -sum[lane % inner]);
    } else {
        (0..LANES).for_each(|lane| factors[lane] = 1.0 / sum[lane % inner]);
    }
    let (factor, term) = (V::read(&factors), V::read(&terms));
    // The next rows are read before lanes behind the ones in front are written over them.
    let mut next = V::read_part(cells, 0.0);
    for at in (0..items.len()).step_by(step) {
        let rows = next;
        next = V::read_part(cells.get(at + step..).unwrap_or_default(), 0.0);
        rows.mul_add(factor, term).write_part(&mut cells[at..]);
    }
}

/// One matrix of `inner` columns, 16 columns at a time.
#[inline(always)]
fn across_lanes<V: Vector>(log: bool, inner: usize, items: &[f32], cells: &mut [f32]) {
    for first in (0..inner).step_by(LANES) {
        // The last vectors overlap those in front of them, whose columns are computed again.
        let first = first.min(inner.saturating_sub(LANES));
        let end = inner.min(first + LANES);
        let mut top = V::splat(f32::NEG_INFINITY);
        for row in items.chunks_exact(inner) {
            top = V::read_part(&row[first..end], 0.0).max(top);
        }
        let mut sum = V::zero();
        for (row, cells) in items.chunks_exact(inner).zip(cells.chunks_exact_mut(inner)) {
            let difference = V::read_part(&row[first..end], 0.0).sub(top);
            let power = math::exp_or_zero(difference);
            sum = sum.add(power);
            (if log { difference } else { power }).write_part(&mut cells[first..end]);
        }
        let (mut factors, mut terms) = ([1.0; LANES], sum.to_array());
        if log {
            math::apply(V::ISA, Unary::Log, &mut terms);
            terms.iter_mut().for_each(|sum| *sum = -*sum);
        } else {
            (factors, terms) = (terms.map(|sum| 1.0 / sum), [0.0; LANES]);
        }
        let (factor, term) = (V::read(&factors), V::read(&terms));
        for row in cells.chunks_exact_mut(inner) {
            let row = &mut row[first..end];
            V::read_part(row, 0.0).mul_add(factor, term).write_part(row);
        }
    }
}
