//! [`Concat`]: concatenation along an axis.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor, TensorFunction};

use super::common::{axis_in, one};
use crate::axes::{Along, AxisChange, AxisMap, Work, axis_with_channels_last};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Concatenates tensors along `axis`.
///
/// `x_i: [.., d_i, ..]` of one dtype, alike in all other extents -> `[.., sum of d_i, ..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concat {
    /// The axis along which tensors are concatenated.
    pub axis: usize,
}

impl Concat {
    /// For each input its first index along the axis of the output.
    pub fn starts<'a>(&self, shapes: impl Iterator<Item = &'a Shape>) -> SmallVec<[usize; 4]> {
        shapes
            .scan(0, |next, shape| {
                let start = *next;
                *next += shape[self.axis];
                Some(start)
            })
            .collect()
    }
}

impl Operator for Concat {
    const NAME: &'static str = "concat";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let Some(first) = inputs.first() else { refuse!("expected one or more inputs, got none") };
        axis_in(self.axis, &first.shape)?;
        let mut shape = first.shape.clone();
        shape[self.axis] = 0;
        for input in inputs {
            let mut rest = input.shape.clone();
            if rest.rank() == shape.rank() {
                rest[self.axis] = shape[self.axis];
            }
            if rest != shape || input.dtype != first.dtype {
                refuse!("inputs must agree in dtype and in all axes but {}, got {first} and {input}", self.axis);
            }
            match shape[self.axis].checked_add(input.shape[self.axis]) {
                Some(sum) => shape[self.axis] = sum,
                None => refuse!("the sum of extents must fit usize; use smaller inputs"),
            }
        }
        Ok(one(TensorType { dtype: first.dtype, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        // Rows of weights that are joined keep their derivation.
        if self.axis == 0
            && let Ok(joined) = Tensor::derived(TensorFunction::Concat, inputs)
        {
            return one(joined);
        }
        let mut shape = inputs[0].shape().clone();
        shape[self.axis] = inputs.iter().map(|input| input.shape()[self.axis]).sum();
        let outer: usize = shape[..self.axis].iter().product();
        let bytes: Vec<Vec<u8>> = inputs.iter().map(|input| input.to_le_bytes()).collect();
        let mut out = Vec::new();
        for row in 0..outer {
            for part in &bytes {
                let length = part.len() / outer;
                out.extend_from_slice(&part[row * length..(row + 1) * length]);
            }
        }
        one(Tensor::from_le_bytes(inputs[0].dtype(), shape, &out).expect("the parts fill the shape"))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let mut gradients = backward.none();
        let mut start = 0;
        for (ix, gradient) in gradients.iter_mut().enumerate() {
            let count = backward.ty(backward.operand(ix)).shape[self.axis];
            if backward.needs(ix) {
                *gradient = Some(backward.slice(dy, self.axis, start, count)?);
            }
            start += count;
        }
        Ok(gradients)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let along = |axis| if axis == self.axis { Along::Whole } else { Along::Same(axis) };
        let operand = || (0..output.shape.rank()).map(along).collect();
        AxisMap { work: Work::Movement, operands: inputs.iter().map(|_| operand()).collect() }
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::ChannelsLast => {
                Some(Concat { axis: axis_with_channels_last(self.axis, output.shape.rank()) }.into())
            }
            AxisChange::ChannelsBlocked(block) => {
                // All parts but the last must end at the end of a block.
                let (_, front) = inputs.split_last()?;
                let in_blocks = front.iter().all(|part| part.shape[1].is_multiple_of(usize::from(block)));
                (self.axis != 1 || in_blocks).then(|| self.clone().into())
            }
            AxisChange::Tile(_) => Some(self.clone().into()),
        }
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        if output.shape[..self.axis].iter().any(|&extent| extent != 1) {
            return Reuse::Never;
        }
        let inner: usize = output.shape[self.axis + 1..].iter().product();
        let starts = self.starts(inputs.iter().map(|input| &input.shape));
        Reuse::ConcatSlices(starts.into_iter().map(|start| start * inner).collect())
    }
}
