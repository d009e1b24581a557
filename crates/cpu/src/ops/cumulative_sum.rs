//! [`CumulativeSum`]: the sums of an axis up to each of its elements.
//!
//! Each sum waits for the one before, so a task has several at a time: neighboring columns, or rows if there is one column.

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use types::DType;

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Columns of a task: the sums of one step stay in the first-level cache for the next.
const COLUMNS: usize = 512;
/// Rows that are summed at the same time.
const ROWS: usize = 8;

/// Sums along the middle axis of `x: [outer, axis, inner]` up to each element. `f32` sums are rounded at each step, sums of
/// integers wrap.
///
/// Refuses: dtypes other than `f32`, `f64` and integers of 32 or 64 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CumulativeSum {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis.
    pub axis: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
    /// Whether an element is no part of its own sum.
    pub exclusive: bool,
    /// Whether sums start at the end of the axis.
    pub reverse: bool,
    /// The dtype of the elements.
    pub dtype: DType,
}

/// An element that is added.
trait Summand: Pod + Send + Sync {
    fn plus(self, other: Self) -> Self;
}

macro_rules! summand {
    ($($type:ty, $plus:expr;)*) => {
        $(impl Summand for $type {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
        })*
    };
}

summand! {
    f32, |a, b| a + b;
    f64, |a, b| a + b;
    i32, i32::wrapping_add;
    i64, i64::wrapping_add;
    u32, u32::wrapping_add;
    u64, u64::wrapping_add;
}

impl KernelFn for CumulativeSum {
    const NAME: &'static str = "cumulative_sum";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if !matches!(self.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64) {
            return Err(InvalidKernel("`dtype` must be f32, f64, or an integer of 32 or 64 bits"));
        }
        let elements = product(&[self.outer, self.axis, self.inner]);
        Sizes::new(&[elements], elements, self.dtype.size().0 as usize)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.dtype.size().0 as usize
    }

    fn run(&self, args: Args, pool: &Pool) {
        match self.dtype {
            DType::F32 => self.run_typed::<f32>(args, pool),
            DType::F64 => self.run_typed::<f64>(args, pool),
            DType::I32 => self.run_typed::<i32>(args, pool),
            DType::I64 => self.run_typed::<i64>(args, pool),
            DType::U32 => self.run_typed::<u32>(args, pool),
            DType::U64 => self.run_typed::<u64>(args, pool),
            _ => unreachable!("`sizes` refused other dtypes"),
        }
    }
}

impl CumulativeSum {
    fn run_typed<T: Summand>(&self, args: Args, pool: &Pool) {
        let x: &[T] = input(&args, 0);
        let sums: &mut [T] = elements_mut(args.outputs[0]);
        assert_eq!(sums.len(), x.len(), "operand and result must have the same size");
        if x.is_empty() {
            return;
        }
        let lane = self.axis * self.inner;
        if self.inner == 1 {
            let sums = SharedMut::new(sums);
            pool.run(self.outer.div_ceil(ROWS), &|task| {
                let rows = task * ROWS..self.outer.min((task + 1) * ROWS);
                let (first, all) = (rows.start * lane, rows.len() * lane);
                // SAFETY: tasks have different rows.
                let sums = unsafe { sums.part(first, all) };
                self.sum_rows(&x[first..first + all], sums);
            });
            return;
        }
        let parts = self.inner.div_ceil(COLUMNS);
        let sums = SharedMut::new(sums);
        pool.run(self.outer * parts, &|task| {
            let (number, column) = (task / parts, task % parts * COLUMNS);
            let columns = COLUMNS.min(self.inner - column);
            let mut before: Option<usize> = None;
            for step in 0..self.axis {
                let step = if self.reverse { self.axis - 1 - step } else { step };
                let at = number * lane + step * self.inner + column;
                // SAFETY: tasks have different columns or lanes, and a task borrows two different steps of its own.
                let (cells, sums_before) =
                    unsafe { (sums.part(at, columns), before.map(|at| &*sums.part(at, columns))) };
                let terms = match (self.exclusive, before) {
                    (false, _) => Some(at),
                    (true, before) => before,
                };
                match (terms.map(|at| &x[at..at + columns]), sums_before) {
                    (Some(terms), Some(sums)) => {
                        for ((cell, &sum), &term) in cells.iter_mut().zip(sums).zip(terms) {
                            *cell = sum.plus(term);
                        }
                    }
                    (Some(terms), None) => cells.copy_from_slice(terms),
                    (None, _) => cells.fill(T::zeroed()),
                }
                before = Some(at);
            }
        });
    }

    /// Sums of each row, of all rows step by step.
    fn sum_rows<T: Summand>(&self, x: &[T], sums: &mut [T]) {
        let (axis, rows) = (self.axis, x.len() / self.axis);
        let mut totals = [T::zeroed(); ROWS];
        for step in 0..axis {
            let step = if self.reverse { axis - 1 - step } else { step };
            for (row, total) in totals[..rows].iter_mut().enumerate() {
                let at = row * axis + step;
                let next = total.plus(x[at]);
                sums[at] = if self.exclusive { *total } else { next };
                *total = next;
            }
        }
    }
}
