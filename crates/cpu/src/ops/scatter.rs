//! [`Scatter`]: rows of a tensor replaced or combined by index.

use serde::{Deserialize, Serialize};
use types::pointwise::Binary;
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::movement::scatter_add::row_of;
use crate::ops::elementwise::with_element;
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Number of tasks to aim at.
const TASKS: usize = 16;

/// `out[index[i], ..] = updates[i, ..]`, or a function of both, on a copy of `data: [rows, inner]`, which may be in place, with
/// `updates: [indices, inner]`, in the order of `i`. A negative index counts from the end; an index outside the rows is clamped
/// to them.
///
/// Refuses: no row; other functions than `Add`, `Mul`, `Max` and `Min`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Rows of the result; must be at least 1.
    pub rows: usize,
    /// Elements of a row.
    pub inner: usize,
    /// Number of indices.
    pub indices: usize,
    /// Whether indices are `i64`; otherwise `i32`.
    pub wide: bool,
    /// Dtype of the elements.
    pub dtype: DType,
    /// The function of an element and its update; `None` replaces it.
    pub function: Option<Binary>,
}

impl KernelFn for Scatter {
    const NAME: &'static str = "scatter";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.rows == 0 {
            return Err(InvalidKernel("the result must have at least one row"));
        }
        if !matches!(self.function, None | Some(Binary::Add | Binary::Mul | Binary::Max | Binary::Min)) {
            return Err(InvalidKernel("the function must be Add, Mul, Max or Min"));
        }
        let size = self.dtype.size().0 as usize;
        let data = product(&[self.rows, self.inner, size]);
        let index = product(&[self.indices, if self.wide { 8 } else { 4 }]);
        Sizes::new(&[data, index, product(&[self.indices, self.inner, size])], data, 1)
    }

    fn alignment(&self, _input: Option<usize>) -> usize {
        1
    }

    fn may_share(&self, input: usize) -> bool {
        input == 0
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (Operand::Bytes(index), Operand::Bytes(updates)) = (args.inputs[1], args.inputs[2]) else { return };
        let data = match args.inputs[0] {
            Operand::Bytes(data) => Some(data),
            Operand::InPlace(_) => None,
        };
        let out: &SharedMut<'_, u8> = &SharedMut::new(&mut *args.outputs[0]);
        let row = self.inner * self.dtype.size().0 as usize;
        // A task has some rows, and reads all indices.
        let tasks = if pool.threads() == 1 { 1 } else { TASKS.min(self.rows) };
        let own = self.rows.div_ceil(tasks);
        pool.run(self.rows.div_ceil(own), &|task| {
            let first = task * own;
            let rows = first..self.rows.min(first + own);
            // SAFETY: tasks have different rows.
            let cells = unsafe { out.part(first * row, rows.len() * row) };
            if let Some(data) = data {
                cells.copy_from_slice(&data[first * row..][..rows.len() * row]);
            }
            for at in 0..self.indices {
                let to = row_of(index, self.wide, at, self.rows);
                if rows.contains(&to) {
                    let (cells, items) = (&mut cells[(to - first) * row..][..row], &updates[at * row..][..row]);
                    match self.function {
                        None => cells.copy_from_slice(items),
                        Some(function) => with_element!(self.dtype, Item => combine::<Item>(function, cells, items)),
                    }
                }
            }
        });
    }
}

/// Replaces each of `cells` by a function of it and its update.
fn combine<T: Element>(function: Binary, cells: &mut [u8], items: &[u8]) {
    /// Inlined with a function that is known, so that the loop has no choice in it.
    #[inline(always)]
    fn each<T: Element>(function: Binary, cells: &mut [u8], items: &[u8]) {
        let size = T::DTYPE.size().0 as usize;
        for (cell, item) in cells.chunks_exact_mut(size).zip(items.chunks_exact(size)) {
            let (own, update) = (T::from_le(cell), T::from_le(item));
            let value = match T::DTYPE.is_float() {
                true => T::from_f64(function.eval(own.to_f64(), update.to_f64())),
                false => T::from_i64(function.eval_i64(own.to_i64(), update.to_i64())),
            };
            value.write_le(cell);
        }
    }
    match function {
        Binary::Add => each::<T>(Binary::Add, cells, items),
        Binary::Mul => each::<T>(Binary::Mul, cells, items),
        Binary::Max => each::<T>(Binary::Max, cells, items),
        _ => each::<T>(Binary::Min, cells, items),
    }
}
