//! [`Slice`]: a regular part of a tensor.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use super::common::{arity, one, pick};
use crate::op::{Operator, Refusal, Reuse, TensorType, refuse};

/// Takes `count` elements from `start` on, each `step` further, along every axis. A negative step walks backwards.
///
/// `x: [..]` -> the counts, same dtype. Refuses a part that leaves the tensor and a step of 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// First index along each axis.
    pub start: SmallVec<[usize; 4]>,
    /// Distance along each axis.
    pub step: SmallVec<[isize; 4]>,
    /// Elements along each axis.
    pub count: Shape,
}

impl Slice {
    /// All elements, to be narrowed.
    pub fn whole(shape: &Shape) -> Slice {
        let rank = shape.rank();
        Slice { start: SmallVec::from_elem(0, rank), step: SmallVec::from_elem(1, rank), count: shape.clone() }
    }

    /// Everything but a range along one axis.
    pub fn range(shape: &Shape, axis: usize, start: usize, count: usize) -> Slice {
        let mut slice = Slice::whole(shape);
        slice.start[axis] = start;
        slice.count[axis] = count;
        slice
    }
}

impl Operator for Slice {
    const NAME: &'static str = "slice";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        let rank = x.shape.rank();
        if [self.start.len(), self.step.len(), self.count.rank()] != [rank; 3] {
            refuse!("start, step and count are given for each of the {rank} axes");
        }
        for axis in 0..rank {
            let (start, step, count) = (self.start[axis], self.step[axis], self.count[axis]);
            let last =
                count.checked_sub(1).map(|steps| (start as i128) + (step as i128) * (steps as i128)).unwrap_or(0);
            let inside = |ix: i128| (0..x.shape[axis] as i128).contains(&ix);
            if step == 0 || (count > 0 && !(inside(start as i128) && inside(last))) {
                refuse!("{count} elements from {start} by {step} leave axis {axis} of {}", x.shape);
            }
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.count.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let strides = inputs[0].shape().row_major_strides();
        one(pick(inputs[0], &self.count, 0.0, |index| {
            let along = |axis: usize| (self.start[axis] as isize + index[axis] as isize * self.step[axis]) as usize;
            Some((0..index.len()).map(|axis| along(axis) * strides[axis]).sum())
        }))
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        let x = &inputs[0].shape;
        // Contiguous: extents of 1, then one range with step 1, then everything.
        let partial = (0..x.rank()).rev().find(|&axis| output.shape[axis] != x[axis]);
        let split = partial.unwrap_or(0);
        let walks = (0..x.rank()).any(|axis| self.step[axis] != 1 && output.shape[axis] > 1);
        if walks || output.shape[..split].iter().any(|&extent| extent != 1) || output.shape.elements() == 0 {
            return Reuse::Never;
        }
        let offset = self.start.iter().zip(x.row_major_strides()).map(|(start, stride)| start * stride).sum();
        Reuse::Alias { offset }
    }
}
