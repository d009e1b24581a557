//! [`StopGradient`]: its operand, without a gradient.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::Tensor;

use super::common::{arity, one};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType};
use crate::{Backward, Gradients, ValueId};

/// Returns its operand, as a constant for the gradients of earlier nodes.
///
/// `x: [..]` -> the same type. Removed by `canonicalize`, which runs behind `differentiate`. Source: MXNet `BlockGrad`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopGradient {}

impl Operator for StopGradient {
    const NAME: &'static str = "stop_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        one(inputs[0].clone())
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        Ok(backward.none())
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::Alias { offset: 0 }
    }
}
