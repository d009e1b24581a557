//! [`BatchNorm`]: batch normalization with fixed statistics (inference).

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Pair, Unary as Function};
use types::{Shape, Tensor};

use super::common::{arity, f32_only, from_f64, one};
use crate::axes::{AxisChange, AxisMap, Work, same_axes, vector_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// `(x - mean) / sqrt(variance + epsilon) * scale + shift` for each channel.
///
/// `x: [n, c, ..]`, `scale`, `shift`, `mean`, `variance: [c]` -> the type of `x`. Source: Ioffe & Szegedy 2015, equation
/// of inference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl Operator for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 5)?;
        f32_only(inputs)?;
        let x = inputs[0];
        if x.shape.rank() < 2 {
            refuse!("input must have a channel axis, got shape {}", x.shape);
        }
        if let Some(other) = inputs[1..].iter().find(|ty| ty.shape[..] != [x.shape[1]]) {
            refuse!("scale, shift, mean and variance must have shape [{}], got {}", x.shape[1], other.shape);
        }
        Ok(one(x.clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let [scale, shift, mean, variance] = [1, 2, 3, 4].map(|ix: usize| inputs[ix].to_f64());
        let plane: usize = x.shape()[2..].iter().product::<usize>().max(1);
        let normal = |(at, item): (usize, f64)| {
            let channel = at / plane % x.shape()[1];
            (item - mean[channel]) / (variance[channel] + f64::from(self.epsilon)).sqrt() * scale[channel]
                + shift[channel]
        };
        let out = x.to_f64().into_iter().enumerate().map(normal).collect();
        one(from_f64(x.shape().clone(), x.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let [x, scale, shift, mean, variance] = [0, 1, 2, 3, 4].map(|ix| backward.operand(ix));
        let rank = backward.ty(x).shape.rank();
        let channels = backward.ty(shift).shape[0];
        let along: Shape = (0..rank).map(|axis| if axis == 1 { channels } else { 1 }).collect();
        let others = || (0..rank).filter(|&axis| axis != 1);
        let widened = backward.unary(Function::Affine { scale: 1.0, shift: self.epsilon }, variance)?;
        let root = backward.unary(Function::Sqrt, widened)?;
        let inverse = backward.unary(Function::Reciprocal, root)?;
        let slope = backward.mul(scale, inverse)?;
        let mut gradients = backward.none();
        if backward.needs(0) {
            let slope = backward.reshape(slope, along.clone())?;
            gradients[0] = Some(backward.mul(dy, slope)?);
        }
        let vector = |backward: &mut Backward, summand| {
            let sum = backward.sum(summand, others())?;
            backward.reshape(sum, Shape::from([channels]))
        };
        if backward.needs(2) || backward.needs(3) {
            let sum = vector(backward, dy)?;
            gradients[2] = Some(sum);
            let product = backward.mul(sum, slope)?;
            gradients[3] = Some(backward.scaled(product, -1.0)?);
        }
        if backward.needs(1) || backward.needs(4) {
            let mean = backward.reshape(mean, along)?;
            let centered = backward.binary(Pair::Sub, x, mean)?;
            let product = backward.mul(dy, centered)?;
            let sum = vector(backward, product)?;
            let dscale = backward.mul(sum, inverse)?;
            gradients[1] = Some(dscale);
            // The derivative of `variance ^ -0.5` is `-0.5 variance ^ -1.5`.
            let inverses = backward.mul(inverse, slope)?;
            let product = backward.mul(dscale, inverses)?;
            gradients[4] = Some(backward.scaled(product, -0.5)?);
        }
        Ok(gradients)
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let parameters = [(); 4].map(|()| vector_axes(1, rank));
        AxisMap { work: Work::Arithmetic, operands: [same_axes(rank)].into_iter().chain(parameters).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::InPlace(smallvec![0])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        2 * inputs[0].shape.elements() as u64
    }
}
