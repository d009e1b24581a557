//! [`Reduce`]: sums, extremes and norms over axes.
//!
//! `f32` is summed in `f64`, so that the order of additions hardly matters; it is fixed all the same.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use types::DType;

use crate::isa::vectorised;
use crate::kernel::{Fit, KernelFn, Sizes, bytes, count, require};
use crate::operand::{Cells, Operands};
use crate::pool::Pool;
use crate::walk::RANK;

/// Outputs that are reduced side by side where the last axis is kept.
const WIDTH: usize = 64;
const LANES: usize = 16;

/// What is made of the elements of a reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReduceKind {
    /// Their sum; integers wrap.
    #[default]
    Sum,
    /// The sum divided by their number; integers truncate.
    Mean,
    /// The largest; NaN where there is one, -inf or the least integer where there is none.
    Max,
    /// The smallest; NaN where there is one, inf or the largest integer where there is none.
    Min,
    /// Their product; integers wrap.
    Prod,
    /// The sum of squares.
    SumSquare,
    /// The sum of magnitudes.
    L1,
    /// The root of the sum of squares.
    L2,
    /// The logarithm of the sum.
    LogSum,
    /// The logarithm of the sum of exponentials, without overflow.
    LogSumExp,
}

/// Reduction of a row-major tensor over the axes of a mask; the output has the other axes.
///
/// `f32` has every kind; `i32` and `i64` have sum, mean, max, min and product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// What is made of the elements.
    pub kind: ReduceKind,
    /// `f32`, `i32` or `i64`.
    pub dtype: DType,
    /// The input's extents.
    pub shape: Vec<usize>,
    /// For each axis whether it is reduced.
    pub reduced: Vec<bool>,
}

/// Axes of the input with its strides, outermost first.
#[derive(Clone, Copy, Default)]
pub(crate) struct Axes {
    rank: usize,
    extents: [usize; RANK],
    strides: [usize; RANK],
}

impl Axes {
    fn count(&self) -> usize {
        count(&self.extents[..self.rank]).unwrap_or(0)
    }

    /// The position of a flat index over these axes.
    fn position(&self, mut index: usize) -> usize {
        let mut position = 0;
        for axis in (0..self.rank).rev() {
            position += index % self.extents[axis] * self.strides[axis];
            index /= self.extents[axis];
        }
        position
    }

    /// Takes the innermost axis off; an axis of extent 1 where there is none.
    fn split_inner(mut self) -> (Axes, usize, usize) {
        if self.rank == 0 {
            return (self, 1, 1);
        }
        self.rank -= 1;
        (self, self.extents[self.rank], self.strides[self.rank])
    }
}

impl Reduce {
    /// The kept and the reduced axes, neighbours of a kind joined.
    fn axes(&self) -> [Axes; 2] {
        let mut axes = [Axes::default(); 2];
        let mut previous = None;
        let mut stride = count(&self.shape).unwrap_or(0);
        for (&extent, &reduced) in self.shape.iter().zip(&self.reduced) {
            stride /= extent.max(1);
            if extent == 1 {
                continue;
            }
            let list = &mut axes[usize::from(reduced)];
            if previous == Some(reduced) {
                list.extents[list.rank - 1] = list.extents[list.rank - 1].saturating_mul(extent);
                list.strides[list.rank - 1] = stride;
            } else {
                list.extents[list.rank] = extent;
                list.strides[list.rank] = stride;
                list.rank += 1;
            }
            previous = Some(reduced);
        }
        axes
    }
}

impl KernelFn for Reduce {
    const NAME: &'static str = "reduce";

    fn sizes(&self) -> Fit<Sizes> {
        require(self.shape.len() <= RANK, "the rank is too large")?;
        require(self.shape.len() == self.reduced.len(), "a mask of another rank")?;
        let integers = matches!(self.dtype, DType::I32 | DType::I64);
        require(self.dtype == DType::F32 || integers, "a dtype other than f32, i32 and i64")?;
        let simple = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod];
        require(!integers || simple.contains(&self.kind), "integers have sum, mean, max, min and product")?;
        let size = self.dtype.size().0 as usize;
        let mut elements = 1;
        for (&extent, _) in self.shape.iter().zip(&self.reduced).filter(|&(_, &reduced)| !reduced) {
            elements = count(&[elements, extent])?;
        }
        Ok(Sizes { inputs: smallvec![bytes(&self.shape, size)?], outputs: smallvec![bytes(&[elements], size)?], workspace: 0 })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        match self.dtype {
            DType::F32 => self.run_f32(operands, pool),
            DType::I32 => self.run_integers::<i32>(operands, pool, |x| x as i32, i64::from, [i32::MIN.into(), i32::MAX.into()]),
            _ => self.run_integers::<i64>(operands, pool, |x| x, |x| x, [i64::MIN, i64::MAX]),
        }
    }
}

impl Reduce {
    fn run_f32(&self, operands: &Operands, pool: &Pool) {
        let input = operands.input::<f32>(0);
        let number = self.axes()[1].count() as f64;
        self.each_stretch(operands.output::<f32>(), pool, &|base, into: &mut [f32]| {
            let mut sums = [0.0f64; WIDTH];
            let sums = &mut sums[..into.len()];
            let mut shifts = [0.0f64; WIDTH];
            let shifts = &mut shifts[..into.len()];
            let reduced = &self.axes()[1];
            if self.kind == ReduceKind::LogSumExp {
                fold_f32(pool.isa(), ReduceKind::Max, input, base, reduced, &[], shifts);
                shifts.iter_mut().filter(|shift| !shift.is_finite()).for_each(|shift| *shift = 0.0);
            }
            fold_f32(pool.isa(), self.kind, input, base, reduced, shifts, sums);
            for ((into, &sum), &shift) in into.iter_mut().zip(&*sums).zip(&*shifts) {
                *into = match self.kind {
                    ReduceKind::Mean => sum / number,
                    ReduceKind::L2 => sum.sqrt(),
                    ReduceKind::LogSum => sum.ln(),
                    ReduceKind::LogSumExp => sum.ln() + shift,
                    _ => sum,
                } as f32;
            }
        });
    }

    fn run_integers<T: bytemuck::Pod + Send + Sync>(
        &self,
        operands: &Operands,
        pool: &Pool,
        narrow: impl Fn(i64) -> T + Sync,
        widen: impl Fn(T) -> i64 + Sync,
        [least, most]: [i64; 2],
    ) {
        let input = operands.input::<T>(0);
        self.each_stretch(operands.output::<T>(), pool, &|base, into: &mut [T]| {
            let reduced = &self.axes()[1];
            let mut sums = [0i64; WIDTH];
            let sums = &mut sums[..into.len()];
            match self.kind {
                ReduceKind::Max => fold(input, base, reduced, sums, least, |a, x, _| a.max(widen(x)), i64::max),
                ReduceKind::Min => fold(input, base, reduced, sums, most, |a, x, _| a.min(widen(x)), i64::min),
                ReduceKind::Prod => {
                    fold(input, base, reduced, sums, 1, |a, x, _| a.wrapping_mul(widen(x)), i64::wrapping_mul);
                }
                _ => fold(input, base, reduced, sums, 0, |a, x, _| a.wrapping_add(widen(x)), i64::wrapping_add),
            }
            let number = reduced.count() as i64;
            for (into, &sum) in into.iter_mut().zip(&*sums) {
                let mean = self.kind == ReduceKind::Mean;
                *into = narrow(if mean { sum.checked_div(number).unwrap_or(0) } else { sum });
            }
        });
    }

    /// Calls `reduce(position in the input, outputs)` for stretches of outputs that lie side by side in the input.
    fn each_stretch<T: bytemuck::Pod + Send + Sync>(
        &self,
        out: Cells<T>,
        pool: &Pool,
        reduce: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let [kept, reduced] = self.axes();
        let (outer, inner, stride) = kept.split_inner();
        let width = if stride == 1 { WIDTH } else { 1 };
        let pieces = inner.div_ceil(width);
        let least = 16384 / reduced.count().saturating_mul(width.min(inner)).max(1);
        pool.split(outer.count() * pieces, least, &|tasks| {
            for task in tasks {
                let start = task % pieces * width;
                let row = task / pieces;
                // SAFETY: stretches do not overlap, and each has one task.
                let into = unsafe { out.write(row * inner + start, width.min(inner - start)) };
                reduce(outer.position(row) + start * stride, into);
            }
        });
    }
}

vectorised! {
    fn fold_f32(kind: ReduceKind, input: &[f32], base: usize, reduced: &Axes, shifts: &[f64], sums: &mut [f64]) {
        let plus = |a: f64, b: f64| a + b;
        match kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::LogSum => {
                fold(input, base, reduced, sums, 0.0, |a, x, _| a + f64::from(x), plus);
            }
            ReduceKind::Max => {
                fold(input, base, reduced, sums, f64::NEG_INFINITY, |a, x, _| largest(a, f64::from(x)), largest);
            }
            ReduceKind::Min => {
                fold(input, base, reduced, sums, f64::INFINITY, |a, x, _| smallest(a, f64::from(x)), smallest);
            }
            ReduceKind::Prod => fold(input, base, reduced, sums, 1.0, |a, x, _| a * f64::from(x), |a, b| a * b),
            ReduceKind::SumSquare | ReduceKind::L2 => {
                fold(input, base, reduced, sums, 0.0, |a, x, _| a + f64::from(x) * f64::from(x), plus);
            }
            ReduceKind::L1 => fold(input, base, reduced, sums, 0.0, |a, x, _| a + f64::from(x).abs(), plus),
            ReduceKind::LogSumExp => {
                fold(input, base, reduced, sums, 0.0, |a, x, nth| a + (f64::from(x) - shifts[nth]).exp(), plus);
            }
        }
    }
}

#[inline(always)]
fn largest(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[inline(always)]
fn smallest(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// Reduces `sums.len()` outputs side by side from `base`: along a stretch in lanes, or stretch by stretch.
#[inline(always)]
fn fold<T: Copy, A: Copy>(
    input: &[T],
    base: usize,
    reduced: &Axes,
    sums: &mut [A],
    start: A,
    step: impl Fn(A, T, usize) -> A,
    join: impl Fn(A, A) -> A,
) {
    sums.fill(start);
    let (outer, inner, stride) = reduced.split_inner();
    if outer.count() == 0 || inner == 0 {
        return;
    }
    if sums.len() == 1 && stride == 1 {
        let mut lanes = [start; LANES];
        for row in 0..outer.count() {
            let at = base + outer.position(row);
            let (chunks, rest) = input[at..at + inner].as_chunks::<LANES>();
            for chunk in chunks {
                for (lane, &x) in lanes.iter_mut().zip(chunk) {
                    *lane = step(*lane, x, 0);
                }
            }
            for (lane, &x) in lanes.iter_mut().zip(rest) {
                *lane = step(*lane, x, 0);
            }
        }
        sums[0] = lanes.iter().fold(start, |a, &b| join(a, b));
        return;
    }
    for row in 0..outer.count() {
        let mut at = base + outer.position(row);
        for _ in 0..inner {
            for (nth, (sum, &x)) in sums.iter_mut().zip(&input[at..]).enumerate() {
                *sum = step(*sum, x, nth);
            }
            at += stride;
        }
    }
}
