//! [`ScatterAdd`]: sums of rows by index, the gradient of a gather.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::Element;

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Number of tasks to aim at.
const TASKS: usize = 16;

/// `out[o, index[i], ..] += updates[o, i, ..]` from zeros, in the order of `i`, with `updates: [outer, indices, inner]` and
/// `out: [outer, axis, inner]` of `f32`. A negative index counts from the end; an index outside the axis is clamped to it.
///
/// Refuses: no row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Rows of the result; must be at least 1.
    pub axis: usize,
    /// Elements of a row.
    pub inner: usize,
    /// Number of indices.
    pub indices: usize,
    /// Whether indices are `i64`; otherwise `i32`.
    pub wide: bool,
}

impl KernelFn for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.axis == 0 {
            return Err(InvalidKernel("the result must have at least one row"));
        }
        let index = product(&[self.indices, if self.wide { 2 } else { 1 }]);
        let updates = product(&[self.outer, self.indices, self.inner]);
        Sizes::new(&[index, updates], product(&[self.outer, self.axis, self.inner]), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(index) = args.inputs[0] else { return };
        let updates: &[f32] = input(&args, 1);
        let out: &SharedMut<'_, f32> = &SharedMut::new(elements_mut(args.outputs[0]));
        // A task has some rows and reads all indices: short rows have few tasks, so that the sums take most of the time.
        let tasks = TASKS.min(self.axis).min((self.inner / LANES).max(1));
        let rows = self.axis.div_ceil(tasks);
        let (parts, isa, kernel) = (self.axis.div_ceil(rows), pool.isa(), self);
        pool.run(self.outer * parts, &|task| {
            let (outer, first) = (task / parts, task % parts * rows);
            let own = first..self.axis.min(first + rows);
            // SAFETY: tasks differ in rows or in the outer index.
            let cells = unsafe { out.part((outer * self.axis + first) * self.inner, own.len() * self.inner) };
            let updates = &updates[outer * self.indices * self.inner..][..self.indices * self.inner];
            with_vector!(isa, add_rows(
                kernel: &ScatterAdd, index: &[u8], updates: &[f32], own: Range<usize>, cells: &mut [f32]
            ));
        });
    }
}

/// Adds the rows of an outer index that are among `own` to zeros.
#[inline(always)]
fn add_rows<V: Vector>(kernel: &ScatterAdd, index: &[u8], updates: &[f32], own: Range<usize>, cells: &mut [f32]) {
    let inner = kernel.inner;
    cells.fill(0.0);
    for at in 0..kernel.indices {
        let row = row_of(index, kernel.wide, at, kernel.axis);
        if !own.contains(&row) {
            continue;
        }
        let row = row - own.start;
        if inner == 1 {
            cells[row] += updates[at];
            continue;
        }
        let (items, cells) = (&updates[at * inner..][..inner], &mut cells[row * inner..][..inner]);
        for (items, cells) in items.chunks(LANES).zip(cells.chunks_mut(LANES)) {
            V::read_part(items, 0.0).add(V::read_part(cells, 0.0)).write_part(cells);
        }
    }
}

/// The row of index `at`: a negative index counts from the end; one outside `rows` is clamped to them.
#[inline]
pub(crate) fn row_of(index: &[u8], wide: bool, at: usize, rows: usize) -> usize {
    let row = match wide {
        true => <i64 as Element>::from_le(&index[at * 8..at * 8 + 8]),
        false => i64::from(<i32 as Element>::from_le(&index[at * 4..at * 4 + 4])),
    };
    let row = if row < 0 { row.saturating_add(rows as i64) } else { row };
    row.clamp(0, rows as i64 - 1) as usize
}
