//! [`Insert`]: a range of a tensor replaced by another tensor.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::common::{arity, axis_in, one};
use crate::axes::{Along, AxisChange, AxisMap, Work, axis_with_channels_last};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Replaces the indices `start..` along `axis` by those of another tensor.
///
/// `whole: [..]`, `part` of its dtype and of its extents but along `axis` -> the type of `whole`. Refuses a part that leaves
/// the whole. Assignments to slices are insertions; passes make them where the parts of a value that is computed in stripes go into the
/// bytes of the whole one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Insert {
    /// The axis.
    pub axis: usize,
    /// The first index that is replaced.
    pub start: usize,
}

impl Operator for Insert {
    const NAME: &'static str = "insert";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        let [whole, part] = [inputs[0], inputs[1]];
        axis_in(self.axis, &whole.shape)?;
        let alike = |part: &Shape| {
            let mut shape = part.clone();
            if shape.rank() == whole.shape.rank() {
                shape[self.axis] = whole.shape[self.axis];
            }
            shape == whole.shape
        };
        if !alike(&part.shape) || part.dtype != whole.dtype {
            refuse!("inputs must agree in dtype and in all axes but {}, got {whole} and {part}", self.axis);
        }
        if self.start.checked_add(part.shape[self.axis]).is_none_or(|end| whole.shape[self.axis] < end) {
            refuse!("the part must stay inside the whole, got {part} from {} in {whole}", self.start);
        }
        Ok(one(whole.clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (whole, part) = (inputs[0], inputs[1]);
        let outer: usize = whole.shape()[..self.axis].iter().product();
        let (mut out, from) = (whole.to_le_bytes(), part.to_le_bytes());
        if 0 < part.elements() {
            let (row, length) = (out.len() / outer, from.len() / outer);
            let first = self.start * length / part.shape()[self.axis];
            for ix in 0..outer {
                out[ix * row + first..][..length].copy_from_slice(&from[ix * length..][..length]);
            }
        }
        one(Tensor::from_le_bytes(whole.dtype(), whole.shape().clone(), &out).expect("the shape is that of the whole"))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let part = backward.ty(backward.operand(1)).clone();
        let of_part = backward.slice(dy, self.axis, self.start, part.shape[self.axis])?;
        let zeros = backward.constant(Tensor::full(part.shape, 0.0f32).cast(part.dtype));
        Ok(smallvec![Some(backward.add(self.clone(), &[dy, zeros])?), Some(of_part)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let operand = || {
            let along = |axis| if axis == self.axis { Along::Whole } else { Along::Same(axis) };
            (0..output.shape.rank()).map(along).collect()
        };
        AxisMap { work: Work::Movement, operands: smallvec![operand(), operand()] }
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::ChannelsLast => {
                let axis = axis_with_channels_last(self.axis, inputs[0].shape.rank());
                Some(Insert { axis, ..self.clone() }.into())
            }
            // A range of channels may begin inside a block.
            AxisChange::ChannelsBlocked(_) if self.axis == 1 => None,
            AxisChange::ChannelsBlocked(_) | AxisChange::Tile(_) => Some(self.clone().into()),
        }
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::InPlace(smallvec![0])
    }
}
