//! [`Copy`]: a strided copy, which transposes, slices, repeats and concatenates.

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::kernel::{Fit, KernelFn, Sizes, bytes, count, require};
use crate::operand::Operands;
use crate::pool::Pool;
use crate::walk::{RANK, Walk};

/// Side of the squares in which a transposition goes.
const SQUARE: usize = 16;

/// Copies `out[out_offset + i · out_strides] = in[in_offset + i · in_strides]` for every index `i` of `shape`.
///
/// What the output holds elsewhere stays. The output's strides must not meet an element twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_size: usize,
    /// Extents of what is copied.
    pub shape: Vec<usize>,
    /// Elements of the input operand.
    pub in_elements: usize,
    /// Element of the input at the index of zeros.
    pub in_offset: usize,
    /// For each extent the distance of neighbours in the input, in elements; 0 repeats, negative goes back.
    pub in_strides: Vec<isize>,
    /// Elements of the output operand.
    pub out_elements: usize,
    /// Element of the output at the index of zeros.
    pub out_offset: usize,
    /// For each extent the distance of neighbours in the output, in elements.
    pub out_strides: Vec<usize>,
}

impl Copy {
    /// Refuses strides that leave the operands or meet an output element twice.
    fn check(&self) -> Fit<()> {
        require(matches!(self.element_size, 1 | 2 | 4 | 8), "an element size other than 1, 2, 4 and 8")?;
        let rank = self.shape.len();
        require(rank <= RANK, "the rank is too large")?;
        require(self.in_strides.len() == rank && self.out_strides.len() == rank, "strides of another rank")?;
        if count(&self.shape)? == 0 {
            return Ok(());
        }
        let [mut least, mut most, mut out_most] = [self.in_offset as i128, self.in_offset as i128, self.out_offset as i128];
        let mut nested = [(0usize, 0usize); RANK];
        for axis in 0..rank {
            let steps = self.shape[axis] as i128 - 1;
            let reach = steps * self.in_strides[axis] as i128;
            if reach < 0 { least += reach } else { most += reach }
            out_most += steps * self.out_strides[axis] as i128;
            nested[axis] = (self.out_strides[axis], self.shape[axis]);
        }
        require(0 <= least && most < self.in_elements as i128, "a stride leaves the input")?;
        require(out_most < self.out_elements as i128, "a stride leaves the output")?;
        // Sorted by stride, each axis must step over all that the finer ones reach.
        nested[..rank].sort_unstable();
        let mut reach = 0;
        for &(stride, extent) in nested[..rank].iter().filter(|&&(_, extent)| 1 < extent) {
            require(reach < stride, "the output's strides meet an element twice")?;
            reach += (extent - 1) * stride;
        }
        Ok(())
    }
}

impl KernelFn for Copy {
    const NAME: &'static str = "copy";

    fn sizes(&self) -> Fit<Sizes> {
        self.check()?;
        Ok(Sizes {
            inputs: smallvec![bytes(&[self.in_elements], self.element_size)?],
            outputs: smallvec![bytes(&[self.out_elements], self.element_size)?],
            workspace: 0,
        })
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        match self.element_size {
            1 => self.copy::<u8>(operands, pool),
            2 => self.copy::<u16>(operands, pool),
            4 => self.copy::<u32>(operands, pool),
            _ => self.copy::<u64>(operands, pool),
        }
    }
}

impl Copy {
    fn copy<T: Pod + Send + Sync>(&self, operands: &Operands, pool: &Pool) {
        if self.shape.contains(&0) {
            return;
        }
        let from = operands.input::<T>(0);
        let out = operands.output::<T>();
        let mut walk = Walk::new(&self.shape);
        walk.operand(self.in_strides.iter().copied());
        walk.operand(self.out_strides.iter().map(|&stride| stride as isize));
        let walk = walk.merge();
        if let Some(axis) = crossing(&walk) {
            return self.transpose(from, operands, pool, walk, axis);
        }
        let (row, in_step, out_step) = (walk.row(), walk.step(0), walk.step(1));
        // Long rows are cut, so that one row is work for all threads.
        let piece = row.min(8192);
        let pieces = row.div_ceil(piece);
        pool.split(walk.rows() * pieces, 8192 / piece, &|tasks| {
            for task in tasks {
                let (nth, first) = (task / pieces, task % pieces * piece);
                let len = piece.min(row - first);
                let starts = walk.starts(nth);
                let source = self.in_offset as isize + starts[0] + first as isize * in_step;
                let target = self.out_offset as isize + starts[1] + first as isize * out_step;
                if out_step == 1 || len == 1 {
                    // SAFETY: `check` found that no two indices meet in the output, so a stretch has one task.
                    let into = unsafe { out.write(target as usize, len) };
                    match in_step {
                        1 => into.copy_from_slice(&from[source as usize..source as usize + len]),
                        0 => into.fill(from[source as usize]),
                        _ => into.iter_mut().enumerate().for_each(|(nth, into)| {
                            *into = from[(source + nth as isize * in_step) as usize];
                        }),
                    }
                    continue;
                }
                for nth in 0..len as isize {
                    // SAFETY: as above, for a single element.
                    let into = unsafe { out.write((target + nth * out_step) as usize, 1) };
                    into[0] = from[(source + nth * in_step) as usize];
                }
            }
        });
    }

    /// Copies squares of the row and of `axis`, along which the input lies densely.
    fn transpose<T: Pod + Send + Sync>(&self, from: &[T], operands: &Operands, pool: &Pool, walk: Walk, axis: usize) {
        let out = operands.output::<T>();
        let (row, in_step) = (walk.row(), walk.step(0));
        let (height, out_step) = (walk.extents[axis], walk.strides[1][axis]);
        let mut outer = walk;
        outer.extents[axis] = 1;
        let pieces = height.div_ceil(SQUARE);
        pool.split(outer.rows() * pieces, 8192 / (row * SQUARE.min(height)).max(1), &|tasks| {
            for task in tasks {
                let starts = outer.starts(task / pieces);
                let first = task % pieces * SQUARE;
                let high = SQUARE.min(height - first);
                let source = self.in_offset as isize + starts[0] + first as isize;
                let target = self.out_offset as isize + starts[1] + first as isize * out_step;
                for column in (0..row).step_by(SQUARE) {
                    let wide = SQUARE.min(row - column);
                    for line in 0..high as isize {
                        let at = target + line * out_step + column as isize;
                        // SAFETY: `check` found that no two indices meet in the output, so a line has one task.
                        let into = unsafe { out.write(at as usize, wide) };
                        let start = source + line + column as isize * in_step;
                        for (nth, into) in into.iter_mut().enumerate() {
                            *into = from[(start + nth as isize * in_step) as usize];
                        }
                    }
                }
            }
        });
    }
}

/// The axis along which the input lies densely, where the output lies densely along the row and the input does not.
fn crossing(walk: &Walk) -> Option<usize> {
    let crosses = walk.step(1) == 1 && walk.step(0).unsigned_abs() > 1 && 4 <= walk.row();
    (0..walk.rank - 1).find(|&axis| crosses && walk.strides[0][axis] == 1 && 2 <= walk.extents[axis])
}
