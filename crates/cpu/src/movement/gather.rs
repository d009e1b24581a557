//! [`Gather`]: rows of a table selected by index.

use serde::{Deserialize, Serialize};
use types::Element;

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::movement::strips;
use crate::simd::vector::LANES;
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
    /// The order of the table's elements.
    pub table: GatherTable,
}

/// The order of the elements of a table that rows are gathered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GatherTable {
    /// Rows one after the other.
    Rows,
    /// The packed right factor of a product of `f32` ([`MatMul::pack`](crate::MatMul::pack)), whose columns are the rows: an
    /// embedding and the projection back onto its vocabulary are one constant.
    Packed,
}

impl KernelFn for Gather {
    const NAME: &'static str = "gather";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.axis == 0 {
            return Err(InvalidKernel("the table must have at least one row"));
        }
        let rows = match self.table {
            GatherTable::Rows => Some(self.axis),
            GatherTable::Packed if self.outer == 1 && self.inner_bytes.is_multiple_of(WORD) => {
                self.axis.checked_next_multiple_of(LANES)
            }
            GatherTable::Packed => return Err(InvalidKernel("a packed table must be one matrix of `f32`")),
        };
        let table = rows.and_then(|rows| product(&[self.outer, rows, self.inner_bytes]));
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
        let rows = (TASK / self.inner_bytes).max(1);
        for_each_chunk(pool, args.outputs[0], rows * self.inner_bytes, &|number, cells| {
            let first = number * rows;
            if self.table == GatherTable::Packed {
                return self.copy_columns(table, index, first, cells);
            }
            // Rows of one element are moved as such: a copy of any number of bytes is a call.
            match self.inner_bytes {
                1 => self.copy_elements::<1>(table, index, first, cells),
                2 => self.copy_elements::<2>(table, index, first, cells),
                4 => self.copy_elements::<4>(table, index, first, cells),
                8 => self.copy_elements::<8>(table, index, first, cells),
                size => {
                    for (ix, cells) in cells.chunks_exact_mut(size).enumerate() {
                        cells.copy_from_slice(&table[self.row(index, first + ix) * size..][..size]);
                    }
                }
            }
        });
    }
}

/// Bytes of a packed element.
const WORD: usize = 4;
/// Bytes that a task copies.
const TASK: usize = 1 << 15;

impl Gather {
    /// The row of the table that is a row of the output.
    fn row(&self, index: &[u8], number: usize) -> usize {
        let (outer, at) = match self.outer {
            1 => (0, number),
            _ => (number / self.indices, number % self.indices),
        };
        let row = match self.wide {
            true => <i64 as Element>::from_le(&index[at * 8..at * 8 + 8]),
            false => i64::from(<i32 as Element>::from_le(&index[at * 4..at * 4 + 4])),
        };
        let row = if row < 0 { row.saturating_add(self.axis as i64) } else { row };
        outer * self.axis + row.clamp(0, self.axis as i64 - 1) as usize
    }

    fn copy_columns(&self, table: &[u8], index: &[u8], first: usize, cells: &mut [u8]) {
        let (table, _) = table.as_chunks::<WORD>();
        for (ix, cells) in cells.chunks_exact_mut(self.inner_bytes).enumerate() {
            let column = self.row(index, first + ix);
            let parts = strips::column(self.inner_bytes / WORD, self.axis, column);
            let words = parts.flat_map(|(start, count)| table[start..].iter().step_by(LANES).take(count));
            cells.as_chunks_mut::<WORD>().0.iter_mut().zip(words).for_each(|(cell, word)| *cell = *word);
        }
    }

    fn copy_elements<const SIZE: usize>(&self, table: &[u8], index: &[u8], first: usize, cells: &mut [u8]) {
        let (table, _) = table.as_chunks::<SIZE>();
        for (ix, cell) in cells.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
            *cell = table[self.row(index, first + ix)];
        }
    }
}
