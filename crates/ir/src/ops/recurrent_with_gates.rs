//! [`RecurrentWithGates`]: a recurrent layer, and the values of its gates.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;

use super::Recurrent;
use super::common::from_f64;
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// A [`Recurrent`] layer with one more result for its gradient, in front of the others: the values of its gates' functions.
///
/// The operands of the layer -> the values, of the type of `gates`, then the results of the layer. The gradient needs neither
/// the products of states by weights nor the functions again. Refuses: cells that
/// [`Cell::gradient_follows_from_gates`](types::recurrent::Cell::gradient_follows_from_gates) excludes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecurrentWithGates {
    /// The layer.
    pub recurrent: Recurrent,
}

impl Operator for RecurrentWithGates {
    const NAME: &'static str = "recurrent_with_gates";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let mut results = self.recurrent.infer(inputs)?;
        if !self.recurrent.cell.gradient_follows_from_gates() {
            refuse!("the gradient of `{:?}` does not follow from the values of its gates", self.recurrent.cell);
        }
        results.insert(0, inputs[0].clone());
        Ok(results)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let mut values = inputs[0].to_f64();
        let mut results = self.recurrent.walk(inputs, |at, gates| values[at..at + gates.len()].copy_from_slice(gates));
        results.insert(0, from_f64(inputs[0].shape().clone(), inputs[0].dtype(), values));
        results
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_fused()
    }

    fn axes(&self, inputs: &[&TensorType], _output: &TensorType) -> AxisMap {
        // `[seq, batch, columns]`: a gate depends on all earlier steps and on all units.
        let states = 1 + usize::from(self.recurrent.cell.has_memory());
        let operand = |ix: usize| -> OperandAxes {
            let is_parameter = ix == 1 || 2 + states <= ix;
            let along_batch = if is_parameter { Along::Broadcast } else { Along::Same(1) };
            [Along::Whole, along_batch, Along::Whole].into_iter().collect()
        };
        AxisMap { work: Work::Arithmetic, operands: (0..inputs.len()).map(operand).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::InPlace(smallvec![0])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        self.recurrent.flops(inputs, &outputs[1..])
    }
}
