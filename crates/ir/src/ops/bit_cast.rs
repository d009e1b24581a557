//! [`BitCast`]: the same bytes as elements of another dtype.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Tensor};

use super::common::{arity, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Reads the bytes of each element as an element of another dtype; there is no arithmetic and no copy.
///
/// `x: [..]` -> the same shape in dtype `to`. Refuses: a dtype of another size, and `bool`, whose bytes are only 0 and 1.
/// Source: ONNX `BitCast`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BitCast {
    /// The dtype of the result.
    pub to: DType,
}

impl Operator for BitCast {
    const NAME: &'static str = "bit_cast";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let TensorType { dtype, shape } = inputs[0];
        if dtype.size() != self.to.size() || (*dtype == DType::Bool) != (self.to == DType::Bool) {
            refuse!("dtypes must have the same size and not be bool, got {dtype} and {}", self.to);
        }
        Ok(one(TensorType { dtype: self.to, shape: shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        one(Tensor::from_le_bytes(self.to, x.shape().clone(), &x.to_le_bytes()).expect("infer checked the size"))
    }

    /// A change of bits is no small change.
    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        Ok(backward.none())
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        // Not a movement: the elements must not be converted to another dtype on the way.
        AxisMap::unary(Work::Arithmetic, output, Along::Same)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::Alias { offset: 0 }
    }
}
