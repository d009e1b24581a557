//! [`Update`]: one step of an optimizer for a parameter.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::update::UpdateRule;
use types::{DType, Tensor};

use super::MatMul;
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
///
/// With `factors`, a weight `[m, n]` has a gradient that is the product of two matrices: `[m, k]` in the place of the
/// gradient and `[k, n]` as one more operand, the last. The gradient itself is never stored as a whole. Refuses then: rules
/// that yield a direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The rule with its constants.
    pub rule: UpdateRule,
    /// Whether the gradient is given by its two factors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub factors: bool,
}

impl Operator for Update {
    const NAME: &'static str = "update";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let tensors = 2 + self.rule.states().len();
        let scalar_count = 1 + usize::from(self.rule.reads_step());
        arity(inputs, tensors + scalar_count + usize::from(self.factors))?;
        self.rule.check().map_err(Refusal)?;
        f32_only(&inputs[..=tensors])?;
        let weight = inputs[0];
        let gradient = match self.factors {
            false => inputs[1].clone(),
            true if self.rule.yields_direction() => refuse!("{} reads its gradient as a whole", self.rule.name()),
            true => one_of(MatMul::default().infer(&[inputs[1], inputs[tensors + scalar_count]])?),
        };
        if let Some(other) = [&gradient].into_iter().chain(inputs[2..tensors].iter().copied()).find(|ty| *ty != weight)
        {
            refuse!("gradient and states must be {weight}, the type of the weight, got {other}");
        }
        let scalars = [TensorType::new(DType::F32, []), TensorType::new(DType::I64, [])];
        if let Some((want, got)) =
            scalars[..scalar_count].iter().zip(&inputs[tensors..]).find(|(want, got)| *want != **got)
        {
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
        let gradient = match (self.factors, inputs) {
            (true, [.., right]) => numbers(&one_of(MatMul::default().eval(&[inputs[1], right]))),
            _ => numbers(inputs[1]),
        };
        self.rule.apply(scalars, &mut weight, &gradient, &mut parts);
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
        let mut operands: SmallVec<_> = (0..inputs.len()).map(operand).collect();
        if self.factors {
            let factors = [inputs[1], inputs[inputs.len() - 1]];
            let of_factors = MatMul::default().axes(&factors, output).operands;
            for (ix, axes) in [1, inputs.len() - 1].into_iter().zip(of_factors) {
                operands[ix] = axes;
            }
        }
        AxisMap { work: Work::Arithmetic, operands }
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
        let of_rule = 3 + 5 * self.rule.states().len();
        let of_product = if self.factors { 2 * inputs[1].shape[1] } else { 0 };
        inputs[0].shape.elements() as u64 * (of_rule + of_product) as u64
    }
}

/// The one result of an operator.
fn one_of<T>(results: SmallVec<[T; 1]>) -> T {
    results.into_iter().next().expect("a product has one result")
}

#[cfg(test)]
mod tests {
    use types::update::{Adam, Lamb, Sgd};

    use super::*;

    #[test]
    fn operands_of_other_types_are_refused() {
        let op = Update { rule: UpdateRule::Adam(Adam::default()), factors: false };
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
        let invalid = Update { rule: UpdateRule::Sgd(Sgd { momentum: 2.0, ..Sgd::default() }), factors: false };
        assert!(invalid.infer(&[&w, &w, &w, &rate]).is_err_and(|refusal| refusal.0.contains("momentum")));
    }

    #[test]
    fn factors_must_have_the_weight_as_product() {
        let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape);
        let (w, left, right, rate) = (f32s(&[3, 2]), f32s(&[3, 5]), f32s(&[5, 2]), f32s(&[]));
        let sgd = Update { rule: UpdateRule::Sgd(Sgd::default()), factors: true };
        assert_eq!(sgd.infer(&[&w, &left, &rate, &right]).map(|outputs| outputs.len()), Ok(1));
        assert!(sgd.infer(&[&w, &left, &rate]).is_err(), "one factor is missing");
        assert!(sgd.infer(&[&w, &left, &rate, &f32s(&[5, 3])]).is_err(), "the product has another shape");
        assert!(sgd.infer(&[&w, &left, &rate, &f32s(&[4, 2])]).is_err(), "the factors do not fit");
        let lamb = Update { rule: UpdateRule::Lamb(Lamb::default()), factors: true };
        let step = TensorType::new(DType::I64, []);
        let refusal = lamb.infer(&[&w, &left, &w, &w, &rate, &step, &right]).expect_err("LAMB yields a direction");
        assert!(refusal.0.contains("as a whole"), "{refusal:?}");
    }
}
