//! [`Unary`]: a function of each element.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Element, Tensor, each_data, pointwise};

use super::common::{arity, one};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Applies a function to each element.
///
/// `x: [..]` -> the same type; `is_nan` and `is_inf` give `bool`. Integers and booleans only where the function is
/// defined for them. The functions are in [`types::pointwise`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unary(pub pointwise::Unary);

impl Unary {
    fn gives_bool(&self) -> bool {
        matches!(self.0, pointwise::Unary::IsNan | pointwise::Unary::IsInf { .. })
    }
}

impl Operator for Unary {
    const NAME: &'static str = "unary";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if !x.dtype.is_float() && self.0.eval_i64(1).is_none() {
            refuse!("`{}` must have an operand of another dtype, got {}; cast it first", self.0.name(), x.dtype);
        }
        if self.0 == pointwise::Unary::Not && x.dtype != DType::Bool {
            refuse!("operand of `not` must be bool, got {}; cast it first", x.dtype);
        }
        let dtype = if self.gives_bool() { DType::Bool } else { x.dtype };
        Ok(one(TensorType { dtype, shape: x.shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        fn map<T: Element>(items: &[T], function: pointwise::Unary) -> Vec<T> {
            let exact = |x: T| match T::DTYPE.is_float() {
                true => T::from_f64(function.eval(x.to_f64())),
                false => T::from_i64(function.eval_i64(x.to_i64()).expect("infer refuses functions without it")),
            };
            items.iter().copied().map(exact).collect()
        }
        let x = inputs[0];
        if self.gives_bool() {
            let flags = x.to_f64().into_iter().map(|x| self.0.eval(x) != 0.0).collect();
            return one(Tensor::new(x.shape().clone(), flags).expect("one flag an element"));
        }
        let shape = x.shape().clone();
        one(each_data!(x.data(), items => Tensor::new(shape, map(items, self.0))).expect("one result an element"))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let (Some(dy), Some(term)) = (outputs[0], self.0.derivative()) else { return Ok(backward.none()) };
        Ok(smallvec![Some(backward.times(dy, &term)?)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        if self.gives_bool() { Reuse::Never } else { Reuse::InPlace(smallvec![0]) }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}
