//! [`Softmax`]: softmax and log-softmax along an axis.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;
use types::pointwise::{Binary as Pair, Unary as Function};

use super::common::{arity, axis_in, f32_only, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType};
use crate::{Backward, Gradients, ValueId};

/// `exp(x - max) / sum(exp(x - max))` along `axis`, or its logarithm.
///
/// `x: [..]` of `f32` -> the same type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// The axis along which results sum to 1.
    pub axis: usize,
    /// Whether the result is the logarithm.
    pub log: bool,
}

impl Operator for Softmax {
    const NAME: &'static str = "softmax";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        f32_only(inputs)?;
        axis_in(self.axis, &inputs[0].shape)?;
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let mut items = x.to_f64();
        let (extent, inner) = (x.shape()[self.axis], x.shape()[self.axis + 1..].iter().product::<usize>());
        for lane in 0..items.len() / extent.max(1) {
            let at = |i: usize| lane / inner * inner * extent + lane % inner + i * inner;
            let top = (0..extent).map(|i| items[at(i)]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..extent).map(|i| (items[at(i)] - top).exp()).sum();
            for i in 0..extent {
                let shifted = items[at(i)] - top;
                items[at(i)] = if self.log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
        one(from_f64(x.shape().clone(), x.dtype(), items))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let y = backward.result(0);
        let dx = if self.log {
            let part = backward.unary(Function::Exp, y)?;
            let sum = backward.sum(dy, [self.axis])?;
            let product = backward.mul(part, sum)?;
            backward.binary(Pair::Sub, dy, product)?
        } else {
            let product = backward.mul(dy, y)?;
            let sum = backward.sum(product, [self.axis])?;
            let centered = backward.binary(Pair::Sub, dy, sum)?;
            backward.mul(centered, y)?
        };
        Ok(smallvec![Some(dx)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let along = |axis| if axis == self.axis { Along::Whole } else { Along::Same(axis) };
        AxisMap::unary(Work::Normalization, output, along)
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::Tile(_) => Some(self.clone().into()),
            AxisChange::ChannelsLast | AxisChange::ChannelsBlocked(_) => None,
        }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        4 * inputs[0].shape.elements() as u64
    }
}
