//! [`Reshape`]: the same elements under another shape.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Layout, Shape, Tensor};

use super::common::{arity, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

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
            refuse!(
                "element counts must be equal, got {} with {} and {} with {}",
                x.shape,
                x.shape.elements(),
                self.shape,
                self.shape.elements()
            );
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.shape.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        one(inputs[0].clone().reshape(self.shape.clone()).expect("infer checked the number of elements"))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let shape = backward.shape(backward.operand(0));
        Ok(smallvec![Some(backward.reshape(dy, shape)?)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let x = &inputs[0].shape;
        let starts = |shape: &Shape, axis: usize| shape[..axis].iter().product::<usize>();
        AxisMap::unary(Work::Movement, output, |axis| {
            // Elements are in row-major order: axes correspond that have the same extent and as many elements in front.
            let (extent, front) = (output.shape[axis], starts(&output.shape, axis));
            let own = (0..x.rank()).find(|&own| x[own] == extent && starts(x, own) == front);
            own.map_or(Along::Whole, Along::Same)
        })
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op> {
        let x = &inputs[0].shape;
        match change {
            AxisChange::ChannelsBlocked(block) if 2 <= x.rank() && x[..2] == output.shape[..2] => {
                Some(Reshape { shape: Layout::ChannelsBlocked(block).physical(&output.shape) }.into())
            }
            AxisChange::Tile(tile) => {
                let mut op = self.clone();
                op.shape[tile.axis] = tile.count;
                Some(op.into())
            }
            AxisChange::ChannelsBlocked(_) | AxisChange::ChannelsLast => None,
        }
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::Alias { offset: 0 }
    }
}
