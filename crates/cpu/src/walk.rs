//! [`Walk`]: positions of strided operands under one row-major shape, without allocation.

use crate::kernel::{Fit, count, require};

/// The largest rank of a strided kernel.
pub(crate) const RANK: usize = 10;
/// The most operands of one walk.
pub(crate) const OPERANDS: usize = 8;

/// Extents with one stride per axis and operand; neighbouring axes that every operand walks as one are one.
///
/// After `merge` the rank is at least 1. The last axis is the *row*.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub(crate) rank: usize,
    pub(crate) extents: [usize; RANK],
    pub(crate) strides: [[isize; RANK]; OPERANDS],
    operands: usize,
}

impl Walk {
    /// A walk over `shape`, of at most `RANK` axes.
    pub(crate) fn new(shape: &[usize]) -> Walk {
        let mut extents = [1; RANK];
        extents[..shape.len()].copy_from_slice(shape);
        Walk { rank: shape.len(), extents, strides: [[0; RANK]; OPERANDS], operands: 0 }
    }

    /// Adds an operand. Strides are those of the shape, axis by axis.
    pub(crate) fn operand(&mut self, strides: impl Iterator<Item = isize>) {
        for (into, stride) in self.strides[self.operands].iter_mut().zip(strides) {
            *into = stride;
        }
        self.operands += 1;
    }

    /// Drops axes of extent 1 and joins axes that all operands walk as one.
    pub(crate) fn merge(mut self) -> Walk {
        let mut rank = 0;
        for axis in 0..self.rank {
            let extent = self.extents[axis];
            if extent == 1 {
                continue;
            }
            let joins = 0 < rank
                && self.strides[..self.operands]
                    .iter()
                    .all(|strides| strides[rank - 1] == strides[axis].wrapping_mul(extent as isize));
            let at = if joins { rank - 1 } else { rank };
            self.extents[at] = if joins { self.extents[at] * extent } else { extent };
            for strides in &mut self.strides[..self.operands] {
                strides[at] = strides[axis];
            }
            rank = at + 1;
        }
        if rank == 0 {
            self.extents[0] = 1;
            rank = 1;
        }
        self.rank = rank;
        self
    }

    /// The length of a row.
    pub(crate) fn row(&self) -> usize {
        self.extents[self.rank - 1]
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.extents[..self.rank - 1].iter().product()
    }

    /// The distance between neighbours in a row of `operand`.
    pub(crate) fn step(&self, operand: usize) -> isize {
        self.strides[operand][self.rank - 1]
    }

    /// The position of each operand at the start of a row.
    pub(crate) fn starts(&self, row: usize) -> [isize; OPERANDS] {
        let mut starts = [0; OPERANDS];
        let mut rest = row;
        for axis in (0..self.rank - 1).rev() {
            let at = rest % self.extents[axis];
            rest /= self.extents[axis];
            for (start, strides) in starts[..self.operands].iter_mut().zip(&self.strides) {
                *start += at as isize * strides[axis];
            }
        }
        starts
    }
}

/// The elements of an operand with strides: the product of the extents along which it moves.
///
/// Refuses strides of another rank, and strides that leave these elements.
pub(crate) fn strided_elements(shape: &[usize], strides: &[usize]) -> Fit<usize> {
    require(shape.len() <= RANK, "the rank is too large")?;
    require(strides.len() == shape.len(), "strides of another rank")?;
    if shape.iter().zip(strides).any(|(&extent, &stride)| extent == 0 && stride != 0) {
        return Ok(0);
    }
    let mut elements = 1usize;
    let mut reach = 0usize;
    for (&extent, &stride) in shape.iter().zip(strides).filter(|&(&extent, &stride)| 0 < extent && stride != 0) {
        elements = count(&[elements, extent])?;
        let steps = (extent - 1).checked_mul(stride).ok_or("a stride overflows")?;
        reach = reach.checked_add(steps).ok_or("a stride overflows")?;
    }
    require(reach < elements, "a stride leaves the operand")?;
    require(strides.iter().all(|&stride| stride <= isize::MAX as usize / 2), "a stride overflows")?;
    Ok(elements)
}

/// Whether `strides` are the row-major strides of `shape`, so that the operand is walked as the output is.
pub(crate) fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == expected;
            expected = expected.saturating_mul(extent);
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_walks_visit_the_same_positions() {
        let shape = [2, 1, 3, 4];
        for strides in [[12, 12, 4, 1], [0, 0, 4, 1], [4, 0, 0, 1], [1, 9, 2, 6], [0, 0, 0, 0], [12, 1, -4, -1]] {
            let mut walk = Walk::new(&shape);
            walk.operand(strides.into_iter());
            walk.operand([12, 12, 4, 1].into_iter());
            let walk = walk.merge();
            let mut got = Vec::new();
            for row in 0..walk.rows() {
                let starts = walk.starts(row);
                got.extend((0..walk.row() as isize).map(|at| starts[0] + at * walk.step(0)));
            }
            let want: Vec<isize> = (0..24)
                .map(|flat| flat / 12 * strides[0] + flat / 4 % 3 * strides[2] + flat % 4 * strides[3])
                .collect();
            assert_eq!(got, want);
        }
        let scalar = Walk::new(&[]).merge();
        assert_eq!((scalar.rows(), scalar.row()), (1, 1));
    }

    #[test]
    fn strides_that_leave_are_refused() {
        assert_eq!(strided_elements(&[2, 3], &[3, 1]), Ok(6));
        assert_eq!(strided_elements(&[2, 3], &[0, 1]), Ok(3));
        assert_eq!(strided_elements(&[0, 3], &[0, 1]), Ok(3));
        assert_eq!(strided_elements(&[0, 3], &[3, 1]), Ok(0));
        assert!(strided_elements(&[2, 3], &[4, 1]).is_err());
        assert!(strided_elements(&[2, 3], &[usize::MAX, 1]).is_err());
        assert!(is_row_major(&[2, 1, 3], &[3, 77, 1]));
        assert!(!is_row_major(&[2, 3], &[1, 2]));
    }
}
