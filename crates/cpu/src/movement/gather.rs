//! [`Gather`]: rows of a table selected by index.

use serde::{Deserialize, Serialize};
use types::Element;

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `out[o, i, ..] = table[o, index[i], ..]` with `table: [outer, axis, inner_bytes]`. A negative index counts from the
/// end; an index outside the axis is clamped to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Rows of the table; must be at least 1.
    pub axis: usize,
    /// Bytes of a row.
    pub inner_bytes: usize,
    /// Number of indices.
    pub indices: usize,
    /// Whether indices are `i64`; otherwise `i32`.
    pub wide: bool,
}

impl KernelFn for Gather {
    const NAME: &'static str = "gather";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.axis == 0 {
            return Err(InvalidKernel("the table must have at least one row"));
        }
        let table = product(&[self.outer, self.axis, self.inner_bytes]);
        let index = product(&[self.indices, if self.wide { 8 } else { 4 }]);
        Sizes::new(&[table, index], product(&[self.outer, self.indices, self.inner_bytes]), 1)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (Operand::Bytes(table), Operand::Bytes(index)) = (args.inputs[0], args.inputs[1]) else { return };
        if self.inner_bytes == 0 {
            return;
        }
        for_each_chunk(pool, args.outputs[0], self.inner_bytes, &|number, cells| {
            let (outer, at) = (number / self.indices, number % self.indices);
            let row = match self.wide {
                true => <i64 as Element>::from_le(&index[at * 8..at * 8 + 8]),
                false => i64::from(<i32 as Element>::from_le(&index[at * 4..at * 4 + 4])),
            };
            let row = if row < 0 { row.saturating_add(self.axis as i64) } else { row };
            let row = row.clamp(0, self.axis as i64 - 1) as usize;
            cells.copy_from_slice(&table[(outer * self.axis + row) * self.inner_bytes..][..self.inner_bytes]);
        });
    }
}
