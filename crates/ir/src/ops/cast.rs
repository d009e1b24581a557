//! [`Cast`]: conversion to another dtype.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Tensor};

use super::common::{arity, one};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, TensorType};
use crate::{Backward, Gradients, ValueId};

/// Converts each element: floats truncate towards zero when they become integers, integers wrap, `bool` is "not zero".
///
/// `x: [..]` -> the same shape in dtype `to`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// The dtype of the result.
    pub to: DType,
}

impl Operator for Cast {
    const NAME: &'static str = "cast";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        Ok(one(TensorType { dtype: self.to, shape: inputs[0].shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        one(inputs[0].cast(self.to))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let (Some(dy), from) = (outputs[0], backward.ty(backward.operand(0)).dtype) else {
            return Ok(backward.none());
        };
        if !from.is_float() || !self.to.is_float() {
            return Ok(backward.none());
        }
        Ok(smallvec![Some(if from == self.to { dy } else { backward.add(Cast { to: from }, &[dy])? })])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }
}
