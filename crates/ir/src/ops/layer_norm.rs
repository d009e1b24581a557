//! [`LayerNorm`]: layer normalization.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::{Binary as Pair, Unary as Function};
use types::{Shape, Tensor};

use super::common::{arity, axis_in, f32_or_half, from_f64, one, product};
use crate::axes::{Along, AxisChange, AxisMap, Work, broadcast_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// `(x - mean) / sqrt(variance + epsilon) * scale + shift`, mean and (biased) variance over all dimensions from `axis` on.
///
/// `x: [..]`, then `scale` and `shift`, if present, of the extents of `x` from `axis` on, all `f32` -> the type of
/// `x`. Made by `match_layer_norm`. Refuses: an axis that `x` does not have, a scale or shift of another shape. Source: Ba et al.
/// 2016.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// The first axis that is normalized.
    pub axis: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether the results are multiplied by an operand.
    pub scale: bool,
    /// Whether an operand is added to the results.
    pub shift: bool,
}

impl Operator for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1 + usize::from(self.scale) + usize::from(self.shift))?;
        f32_or_half(inputs)?;
        axis_in(self.axis, &inputs[0].shape)?;
        let row: Shape = inputs[0].shape[self.axis..].into();
        if let Some(other) = inputs[1..].iter().find(|ty| ty.shape != row) {
            refuse!("scale and shift must have shape {row}, got {}", other.shape);
        }
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let columns: usize = x.shape()[self.axis..].iter().product();
        let scale = self.scale.then(|| inputs[1].to_f64());
        let shift = self.shift.then(|| inputs[inputs.len() - 1].to_f64());
        let mut items = x.to_f64();
        for row in items.chunks_mut(columns.max(1)) {
            let mean = row.iter().sum::<f64>() / columns as f64;
            let variance = row.iter().map(|item| (item - mean).powi(2)).sum::<f64>() / columns as f64;
            let deviation = (variance + f64::from(self.epsilon)).sqrt();
            for (column, item) in row.iter_mut().enumerate() {
                *item = (*item - mean) / deviation;
                *item *= scale.as_ref().map_or(1.0, |scale| scale[column]);
                *item += shift.as_ref().map_or(0.0, |shift| shift[column]);
            }
        }
        one(from_f64(x.shape().clone(), x.dtype(), items))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let x = backward.operand(0);
        let (dtype, shape) = (backward.ty(x).dtype, backward.shape(x));
        let axes = self.axis..shape.rank();
        let count: usize = shape[self.axis..].iter().product();
        let mean = |backward: &mut Backward, value| {
            let sum = backward.sum(value, axes.clone())?;
            backward.scaled(sum, 1.0 / count as f32)
        };
        // Mean and variance are computed again, so that of the forward pass only `x` is kept.
        let middle = mean(backward, x)?;
        let centered = backward.binary(Pair::Sub, x, middle)?;
        let squares = backward.mul(centered, centered)?;
        let (variance, epsilon) = (mean(backward, squares)?, backward.number(self.epsilon, dtype));
        let variance = backward.binary(Pair::Add, variance, epsilon)?;
        let deviation = backward.unary(Function::Sqrt, variance)?;
        let inverse = backward.unary(Function::Reciprocal, deviation)?;
        let normal = backward.mul(centered, inverse)?;
        let mut gradients = backward.none();
        if self.scale && backward.needs(1) {
            let product = backward.mul(dy, normal)?;
            gradients[1] = Some(backward.sum_to(product, 1)?);
        }
        let shift = 1 + usize::from(self.scale);
        if self.shift && backward.needs(shift) {
            gradients[shift] = Some(backward.sum_to(dy, shift)?);
        }
        if backward.needs(0) {
            let scaled = if self.scale { backward.mul(dy, backward.operand(1))? } else { dy };
            let product = backward.mul(scaled, normal)?;
            let (level, slope) = (mean(backward, scaled)?, mean(backward, product)?);
            let along = backward.mul(normal, slope)?;
            let rest = backward.binary(Pair::Sub, scaled, level)?;
            let rest = backward.binary(Pair::Sub, rest, along)?;
            gradients[0] = Some(backward.mul(rest, inverse)?);
        }
        Ok(gradients)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let x = (0..rank).map(|axis| if axis < self.axis { Along::Same(axis) } else { Along::Whole }).collect();
        let parameters = inputs[1..].iter().map(|parameter| broadcast_axes(&parameter.shape, &output.shape));
        AxisMap { work: Work::Normalization, operands: [x].into_iter().chain(parameters).collect() }
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        matches!(change, AxisChange::Tile(_)).then(|| self.clone().into())
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A row is read before its results are written.
        Reuse::InPlace([0].into_iter().collect())
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        // Two sums, a difference, a square, a product, and the optional scale and shift.
        product([inputs[0].shape.elements(), 4 + inputs.len()])
    }
}
