//! [`Gather`]: rows of a table selected by index.

use serde::{Deserialize, Serialize};
use types::{Element, WeightFormat, bf16};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, product};
use crate::movement::pieces::copy_items;
use crate::movement::strips;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType, storage};
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
    /// The stored form of a table of `f32`, if it is not `f32`. Int8 has a scale of `f32` for each row behind the elements.
    pub weights: Option<WeightFormat>,
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
        let table = match self.weights {
            None => rows.and_then(|rows| product(&[self.outer, rows, self.inner_bytes])),
            Some(_) if self.outer != 1 || !self.inner_bytes.is_multiple_of(WORD) => {
                return Err(InvalidKernel("a table with `weights` must be one matrix of `f32`"));
            }
            Some(weights) => {
                let elements = rows.and_then(|rows| product(&[rows, self.inner_bytes / WORD, weights.size()]));
                let scales = match weights {
                    WeightFormat::Bf16 => Some(0),
                    WeightFormat::Int8 => rows.and_then(|rows| rows.checked_mul(WORD)),
                };
                elements.zip(scales).and_then(|(elements, scales)| elements.checked_add(scales))
            }
        };
        let index = product(&[self.indices, if self.wide { 8 } else { 4 }]);
        Sizes::new(&[table, index], product(&[self.outer, self.indices, self.inner_bytes]), 1)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        match (self.weights, input) {
            (Some(_), None) => WORD,
            (Some(WeightFormat::Bf16), Some(0)) => 2,
            _ => 1,
        }
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (Operand::Bytes(table), Operand::Bytes(index)) = (args.inputs[0], args.inputs[1]) else { return };
        if self.inner_bytes == 0 {
            return;
        }
        let rows = (TASK / self.inner_bytes).max(1);
        for_each_chunk(pool, args.outputs[0], rows * self.inner_bytes, &|number, cells| {
            let first = number * rows;
            if let Some(weights) = self.weights {
                return self.decode_rows(weights, table, index, first, elements_mut(cells), pool.isa());
            }
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
                        copy_items(&table[self.row(index, first + ix) * size..][..size], cells);
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
/// Indices that are resolved at a time.
const BLOCK: usize = 256;

/// Copies rows of one element.
fn copy_rows<T: Copy>(table: &[T], rows: &[usize], cells: &mut [T]) {
    cells.iter_mut().zip(rows).for_each(|(cell, &row)| *cell = table[row]);
}

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
            let words = self.column(table, column);
            cells.as_chunks_mut::<WORD>().0.iter_mut().zip(words).for_each(|(cell, word)| *cell = *word);
        }
    }

    /// Rows of a table that is stored in fewer bits.
    fn decode_rows(
        &self,
        weights: WeightFormat,
        table: &[u8],
        index: &[u8],
        first: usize,
        cells: &mut [f32],
        isa: Isa,
    ) {
        let row = self.inner_bytes / WORD;
        let rows = match self.table {
            GatherTable::Rows => self.axis,
            GatherTable::Packed => self.axis.next_multiple_of(LANES),
        };
        let (elements, scales) = table.split_at(rows * row * weights.size());
        let (scales, _) = scales.as_chunks::<WORD>();
        for (ix, cells) in cells.chunks_exact_mut(row).enumerate() {
            let number = self.row(index, first + ix);
            match (self.table, weights) {
                (GatherTable::Rows, WeightFormat::Bf16) => {
                    storage::widen(isa, StorageType::Bf16, &elements[number * row * 2..][..row * 2], cells);
                }
                (GatherTable::Rows, WeightFormat::Int8) => {
                    storage::widen(isa, StorageType::I8, &elements[number * row..][..row], cells);
                }
                (GatherTable::Packed, WeightFormat::Bf16) => {
                    let (elements, _) = elements.as_chunks::<2>();
                    let decoded = self.column(elements, number).map(|&bytes| bf16::from_ne_bytes(bytes).to_f32());
                    cells.iter_mut().zip(decoded).for_each(|(cell, decoded)| *cell = decoded);
                }
                (GatherTable::Packed, WeightFormat::Int8) => {
                    let decoded = self.column(elements, number).map(|&byte| f32::from(byte.cast_signed()));
                    cells.iter_mut().zip(decoded).for_each(|(cell, decoded)| *cell = decoded);
                }
            }
            if weights == WeightFormat::Int8 {
                let scale = f32::from_ne_bytes(scales[number]);
                cells.iter_mut().for_each(|cell| *cell *= scale);
            }
        }
    }

    /// The elements of a column of a packed table.
    fn column<'a, T>(&self, table: &'a [T], column: usize) -> impl Iterator<Item = &'a T> {
        let parts = strips::column(self.inner_bytes / WORD, self.axis, column);
        parts.flat_map(|(start, count)| table[start..].iter().step_by(LANES).take(count))
    }

    /// Rows of one element, from number `first` on.
    fn copy_elements<const SIZE: usize>(&self, table: &[u8], index: &[u8], mut first: usize, cells: &mut [u8]) {
        let (table, _) = table.as_chunks::<SIZE>();
        let (mut cells, _) = cells.as_chunks_mut::<SIZE>();
        let mut rows = [0; BLOCK];
        while !cells.is_empty() {
            // The indices from one on are resolved once for all tables whose rows at them are in this task.
            let (outer, at) = (first / self.indices, first % self.indices);
            if at == 0 && self.indices <= cells.len() {
                let outers = cells.len() / self.indices;
                let (whole, rest) = cells.split_at_mut(outers * self.indices);
                for from in (0..self.indices).step_by(BLOCK) {
                    let rows = &mut rows[..BLOCK.min(self.indices - from)];
                    self.resolve(index, from, rows);
                    let tables = table[outer * self.axis..].chunks_exact(self.axis);
                    for (table, cells) in tables.zip(whole.chunks_exact_mut(self.indices)) {
                        copy_rows(table, rows, &mut cells[from..]);
                    }
                }
                (cells, first) = (rest, first + outers * self.indices);
                continue;
            }
            let rows = &mut rows[..BLOCK.min(self.indices - at).min(cells.len())];
            self.resolve(index, at, rows);
            let (part, rest) = cells.split_at_mut(rows.len());
            copy_rows(&table[outer * self.axis..][..self.axis], rows, part);
            (cells, first) = (rest, first + rows.len());
        }
    }

    /// The rows of a table that indices from one on select.
    fn resolve(&self, index: &[u8], first: usize, rows: &mut [usize]) {
        let last = self.axis as i64 - 1;
        // A negative index counts from the end; without a branch, which random signs would mispredict.
        let row = |at: i64| at.saturating_add((at >> 63) & self.axis as i64).clamp(0, last) as usize;
        match self.wide {
            true => {
                let index = &index.as_chunks::<8>().0[first..];
                rows.iter_mut().zip(index).for_each(|(to, bytes)| *to = row(<i64 as Element>::from_le(bytes)));
            }
            false => {
                let index = &index.as_chunks::<4>().0[first..];
                rows.iter_mut().zip(index).for_each(|(to, bytes)| *to = row(<i32 as Element>::from_le(bytes).into()));
            }
        }
    }
}
