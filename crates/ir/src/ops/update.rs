//! [`Update`]: one step of an optimizer for a parameter.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::update::UpdateRule;
use types::{DType, Tensor};

use super::common::{arity, f32_only, one};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, same_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Replaces a parameter and the optimizer's states in one pass over weight, gradient and states.
///
/// `weight`, `gradient` and a state for each of [`UpdateRule::states`], all of one `f32` type, then `learning_rate: []` of
/// `f32`, and `step: []` of `i64` if the rule reads it (1 for the first step) -> the new weight (for LAMB its direction)
/// and the new states. Each result takes the bytes of the operand that it replaces. Computed in `f32` in the order of the
/// rule, so that all executors give the same bits. Refuses: operands of several types, constants that the rule does not
/// allow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The rule with its constants.
    pub rule: UpdateRule,
}

impl Operator for Update {
    const NAME: &'static str = "update";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let tensors = 2 + self.rule.states().len();
        arity(inputs, tensors + 1 + usize::from(self.rule.reads_step()))?;
        self.rule.check().map_err(Refusal)?;
        f32_only(&inputs[..=tensors])?;
        let weight = inputs[0];
        if let Some(other) = inputs[1..tensors].iter().find(|ty| **ty != weight) {
            refuse!("gradient and states must be {weight}, the type of the weight, got {other}");
        }
        let scalars = [TensorType::new(DType::F32, []), TensorType::new(DType::I64, [])];
        if let Some((want, got)) = scalars.iter().zip(&inputs[tensors..]).find(|(want, got)| *want != **got) {
            refuse!("learning rate and step must be scalars, {want} was required, got {got}");
        }
        Ok(std::iter::repeat_n(weight.clone(), tensors - 1).collect())
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let numbers = |tensor: &Tensor| tensor.to_f64().into_iter().map(|item| item as f32).collect::<Vec<f32>>();
        let tensors = 2 + self.rule.states().len();
        let step = inputs.get(tensors + 1).map_or(1, |step| step.to_i64()[0]);
        let scalars = self.rule.scalars(numbers(inputs[tensors])[0], step);
        let mut weight = numbers(inputs[0]);
        let mut states: Vec<Vec<f32>> = inputs[2..tensors].iter().map(|state| numbers(state)).collect();
        let mut parts: Vec<&mut [f32]> = states.iter_mut().map(|state| &mut state[..]).collect();
        self.rule.apply(scalars, &mut weight, &numbers(inputs[1]), &mut parts);
        let shape = inputs[0].shape();
        let tensor = |items| Tensor::new(shape.clone(), items).expect("one result an element");
        one(weight).into_iter().chain(states).map(tensor).collect()
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        // Not elementwise: a node that is elementwise has one result.
        let rank = output.shape.rank();
        let scalar: OperandAxes = std::iter::repeat_n(Along::Broadcast, rank).collect();
        let tensors = 2 + self.rule.states().len();
        let operand = |ix: usize| if ix < tensors { same_axes(rank) } else { scalar.clone() };
        AxisMap { work: Work::Arithmetic, operands: (0..inputs.len()).map(operand).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A direction takes the bytes of the gradient: the weight is still read behind it.
        let first = [0, usize::from(self.rule.yields_direction())];
        let states = (0..self.rule.states().len()).map(|ix| [1 + ix, 2 + ix]);
        Reuse::EachInPlace(one(first).into_iter().chain(states).collect())
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        // About three for the weight and five for each state.
        (inputs[0].shape.elements() * (3 + 5 * self.rule.states().len())) as u64
    }
}

#[cfg(test)]
mod tests {
    use types::update::{Adam, Sgd};

    use super::*;

    #[test]
    fn operands_of_other_types_are_refused() {
        let op = Update { rule: UpdateRule::Adam(Adam::default()) };
        let (w, rate, step) =
            (TensorType::new(DType::F32, [3, 2]), TensorType::new(DType::F32, []), TensorType::new(DType::I64, []));
        let fits = [&w, &w, &w, &w, &rate, &step];
        assert_eq!(op.infer(&fits).map(|outputs| outputs.len()), Ok(3));
        for ix in 0..fits.len() {
            let mut types = fits;
            let other = TensorType::new(types[ix].dtype, [2]);
            types[ix] = &other;
            assert!(op.infer(&types).is_err(), "operand {ix}");
        }
        let invalid = Update { rule: UpdateRule::Sgd(Sgd { momentum: 2.0, ..Sgd::default() }) };
        assert!(invalid.infer(&[&w, &w, &w, &rate]).is_err_and(|refusal| refusal.0.contains("momentum")));
    }
}
