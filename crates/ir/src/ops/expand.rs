//! [`Expand`]: explicit broadcasting.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor, broadcast};

use super::common::{arity, broadcast_strides, one, pick, position};
use crate::axes::{AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Repeats extents of 1, aligned on the right, until the tensor has `shape`.
///
/// `x: [..]` -> `shape`, same dtype. Refuses a shape that `x` does not broadcast to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expand {
    /// The shape of the result.
    pub shape: Shape,
}

impl Operator for Expand {
    const NAME: &'static str = "expand";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if broadcast(&x.shape, &self.shape).ok().as_ref() != Some(&self.shape) {
            refuse!("input must broadcast to {}, got {}", self.shape, x.shape);
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let strides = broadcast_strides(inputs[0].shape(), &self.shape);
        one(pick(inputs[0], &self.shape, 0.0, |index| Some(position(index, &strides))))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        Ok(smallvec![Some(backward.sum_to(dy, 0)?)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap { work: Work::Movement, ..AxisMap::elementwise(inputs, output) }
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let AxisChange::Tile(tile) = change else { return None };
        let mut op = self.clone();
        op.shape[tile.axis] = tile.count;
        Some(op.into())
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        if inputs[0].shape.elements() == output.shape.elements() { Reuse::Alias { offset: 0 } } else { Reuse::Never }
    }
}
