//! [`Lrn`]: local response normalization across channels.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary as Pair, Unary as Function};
use types::{DType, Shape, Tensor};

use super::common::{arity, f32_only, from_f64, one, product};
use super::{Pool, PoolKind};
use crate::axes::{Along, AxisChange, AxisMap, Window, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// `x / (bias + alpha / size * sum of squares over the nearest size channels) ^ beta`.
///
/// `x: [n, c, ..]` -> the same type. The window of channel `c` is `c - (size - 1) / 2 ..= c + size / 2`. ValueDef:
/// Krizhevsky et al. 2012, in ONNX's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lrn {
    /// Channels in the window.
    pub size: usize,
    /// Weight of the mean square.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Added before the power.
    pub bias: f32,
}

impl Operator for Lrn {
    const NAME: &'static str = "lrn";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        f32_only(inputs)?;
        if inputs[0].shape.rank() < 2 || self.size == 0 {
            refuse!(
                "input must have a channel axis and `size` must be >= 1, got {} and {}",
                inputs[0].shape,
                self.size
            );
        }
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let (channels, plane) = (x.shape()[1], x.shape()[2..].iter().product::<usize>());
        let items = x.to_f64();
        let out = (0..items.len()).map(|at| {
            let (image, channel, cell) = (at / plane / channels, at / plane % channels, at % plane);
            let window = channel.saturating_sub((self.size - 1) / 2)..channels.min(channel + self.size / 2 + 1);
            let squares: f64 = window.map(|c| items[(image * channels + c) * plane + cell].powi(2)).sum();
            let norm = f64::from(self.bias) + f64::from(self.alpha) / self.size as f64 * squares;
            items[at] / norm.powf(f64::from(self.beta))
        });
        one(from_f64(x.shape().clone(), x.dtype(), out.collect()))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        // With the mean square `m` of a window, `n = bias + alpha m` and `y = x n ^ -beta`:
        // dx = dy n ^ -beta - 2 alpha beta x mean(dy x n ^ (-beta - 1)), the mean over the mirrored window.
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let x = backward.operand(0);
        let shape = backward.shape(x);
        let columns = Shape::from([shape[0], 1, shape[1], shape[2..].iter().product()]);
        let mean = |backward: &mut Backward, x, front: usize, back: usize| {
            let pool = Pool {
                kind: PoolKind::MeanWithPadding,
                kernel: [self.size, 1].into_iter().collect(),
                pad: [[front, back], [0, 0]].into_iter().collect(),
                ..Pool::square(PoolKind::MeanWithPadding, 1, 1, 0)
            };
            let x = backward.reshape(x, columns.clone())?;
            let means = backward.add(pool, &[x])?;
            backward.reshape(means, shape.clone())
        };
        let (front, back) = ((self.size - 1) / 2, self.size / 2);
        let square = backward.mul(x, x)?;
        let square = mean(backward, square, front, back)?;
        let norm = backward.unary(Function::Affine { scale: self.alpha, shift: self.bias }, square)?;
        let exponent = backward.number(-self.beta, DType::F32);
        let power = backward.binary(Pair::Pow, norm, exponent)?;
        let direct = backward.mul(dy, power)?;
        let product = backward.mul(direct, x)?;
        let product = backward.binary(Pair::Div, product, norm)?;
        let product = mean(backward, product, back, front)?;
        let product = backward.mul(product, x)?;
        let product = backward.scaled(product, 2.0 * self.alpha * self.beta)?;
        Ok(smallvec![Some(backward.binary(Pair::Sub, direct, product)?)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let window = Window { axis: 1, kernel: self.size, stride: 1, dilation: 1, front: (self.size - 1) / 2 };
        let along = |axis| if axis == 1 { Along::Window(window) } else { Along::Same(axis) };
        AxisMap::unary(Work::Arithmetic, output, along)
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::Tile(tile) if tile.axis != 1 => Some(self.clone().into()),
            AxisChange::Tile(_) | AxisChange::ChannelsLast | AxisChange::ChannelsBlocked(_) => None,
        }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        product([inputs[0].shape.elements(), self.size.saturating_add(3)])
    }
}
