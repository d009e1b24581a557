//! [`Reshape`]: the same elements under another shape.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use super::common::{arity, one};
use crate::op::{Operator, Refusal, Reuse, TensorType, refuse};

/// The same elements, in the same order, under `shape`. Flatten, squeeze and unsqueeze are this.
///
/// `x: [..]` -> `shape`, same dtype. Refuses another number of elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

impl Operator for Reshape {
    const NAME: &'static str = "reshape";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if x.shape.elements() != self.shape.elements() {
            refuse!("{} has {} elements, {} has {}", x.shape, x.shape.elements(), self.shape, self.shape.elements());
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        one(inputs[0].clone().reshape(self.shape.clone()).expect("infer refuses another number of elements"))
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::Alias { offset: 0 }
    }
}
