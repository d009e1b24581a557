//! [`Remap`]: a copy through one index table per axis: pads that reflect or repeat, nearest neighbours.

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, bytes, require};
use crate::operand::Operands;
use crate::pool::Pool;
use crate::walk::RANK;

/// `out[i, j, …] = in[tables[0][i], tables[1][j], …]`, or the fill element where an index is -1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remap {
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_size: usize,
    /// The input's extents.
    pub in_shape: Vec<usize>,
    /// For each axis the input position of each output position; -1 is none. Their lengths are the output's extents.
    pub tables: Vec<Vec<i32>>,
    /// The fill element's bytes, little-endian; the first `element_size` count.
    pub fill: [u8; 8],
}

impl KernelFn for Remap {
    const NAME: &'static str = "remap";

    fn sizes(&self) -> Fit<Sizes> {
        require(matches!(self.element_size, 1 | 2 | 4 | 8), "an element size other than 1, 2, 4 and 8")?;
        let rank = self.in_shape.len();
        require(1 <= rank && rank <= RANK, "a rank of 0 or too large")?;
        require(self.tables.len() == rank, "tables for another rank")?;
        let mut out = [0; RANK];
        for (axis, table) in self.tables.iter().enumerate() {
            out[axis] = table.len();
            let extent = self.in_shape[axis];
            let inside = table.iter().all(|&index| index == -1 || usize::try_from(index).is_ok_and(|at| at < extent));
            require(inside, "an index leaves the input")?;
        }
        Ok(Sizes {
            inputs: smallvec![bytes(&self.in_shape, self.element_size)?],
            outputs: smallvec![bytes(&out[..rank], self.element_size)?],
            workspace: 0,
        })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let [a, b, c, d, ..] = self.fill;
        match self.element_size {
            1 => self.remap(operands, pool, a),
            2 => self.remap(operands, pool, u16::from_le_bytes([a, b])),
            4 => self.remap(operands, pool, u32::from_le_bytes([a, b, c, d])),
            _ => self.remap(operands, pool, u64::from_le_bytes(self.fill)),
        }
    }
}

impl Remap {
    fn remap<T: Pod + Send + Sync>(&self, operands: &Operands, pool: &Pool, fill: T) {
        let from = operands.input::<T>(0);
        let out = operands.output::<T>();
        let last = self.in_shape.len() - 1;
        let (table, in_row) = (&self.tables[last], self.in_shape[last]);
        let row_len = table.len();
        // The middle of a padded row is one stretch of the input.
        let head = table.iter().position(|&index| index == 0).unwrap_or(row_len);
        let stretch = table[head..].iter().enumerate().take_while(|&(nth, &index)| usize::try_from(index) == Ok(nth)).count();
        pool.split(out.len() / row_len, 4096 / row_len, &|rows| {
            for row in rows {
                // SAFETY: each output row is written by one task.
                let into = unsafe { out.write(row * row_len, row_len) };
                let Some(start) = self.row_start(row) else {
                    into.fill(fill);
                    continue;
                };
                let source = &from[start * in_row..(start + 1) * in_row];
                let pick = |into: &mut [T], table: &[i32]| {
                    for (into, &index) in into.iter_mut().zip(table) {
                        *into = usize::try_from(index).map_or(fill, |at| source[at]);
                    }
                };
                pick(&mut into[..head], &table[..head]);
                into[head..head + stretch].copy_from_slice(&source[..stretch]);
                pick(&mut into[head + stretch..], &table[head + stretch..]);
            }
        });
    }

    /// The input row of an output row, or `None` where an index is -1.
    fn row_start(&self, row: usize) -> Option<usize> {
        let (mut rest, mut start, mut stride) = (row, 0, 1);
        for axis in (0..self.in_shape.len() - 1).rev() {
            let table = &self.tables[axis];
            start += usize::try_from(table[rest % table.len()]).ok()? * stride;
            rest /= table.len();
            stride *= self.in_shape[axis];
        }
        Some(start)
    }
}
