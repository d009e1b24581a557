//! [`Relayout`]: a copy from one layout to another.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;

use super::common::{arity, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType};
use crate::{Backward, Gradients, ValueId};

/// Returns its input. Only the layout changes: that of the operand and of the result are properties of their values.
///
/// `x: [..]` -> the same shape and dtype.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relayout {}

impl Operator for Relayout {
    const NAME: &'static str = "relayout";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        smallvec![inputs[0].clone()]
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_fused()
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::unary(Work::Movement, output, Along::Same)
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        matches!(change, AxisChange::Tile(_)).then(|| self.clone().into())
    }
}
