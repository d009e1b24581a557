//! [`Relayout`]: the same elements in another layout.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;

use super::common::{arity, one};
use crate::op::{Operator, Refusal, TensorType};

/// Gives its input; what changes is the layout, which the values on both sides say.
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
}
