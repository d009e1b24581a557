//! [`BatchNormGradient`]: the gradients of a batch normalization in training.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::batch_norm_training::{check_channels, extents};
use super::common::{arity, f32_only, from_f64};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, vector_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The gradients for operand, scale and shift. With `h = (x - mean) / sqrt(variance + epsilon)` and `k` elements a channel:
///
/// ```text
/// dshift = sum(dy)      dscale = sum(dy h)
/// dx = scale / sqrt(variance + epsilon) (dy - dshift / k - h dscale / k)
/// ```
///
/// `dy`, `x: [n, c, ..]`, `scale`, `mean`, `variance: [c]` -> `dx` of the type of `x`, `dscale` and `dshift: [c]`. All
/// `f32`. The gradients of the statistics as results are not part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormGradient {
    /// Added to the variance.
    pub epsilon: f32,
}

impl Operator for BatchNormGradient {
    const NAME: &'static str = "batch_norm_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 5)?;
        f32_only(inputs)?;
        check_channels(inputs[1], &inputs[2..])?;
        if inputs[0] != inputs[1] {
            refuse!("the gradient must be {}, the type of the operand, got {}", inputs[1], inputs[0]);
        }
        Ok(smallvec![inputs[1].clone(), inputs[2].clone(), inputs[2].clone()])
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[1];
        let [images, channels, cells] = extents(x.shape());
        let (mut dx, items) = (inputs[0].to_f64(), x.to_f64());
        let [scale, mean, variance] = [2, 3, 4].map(|ix: usize| inputs[ix].to_f64());
        let count = (images * cells) as f64;
        let (mut scales, mut shifts) = (Vec::new(), Vec::new());
        for channel in 0..channels {
            let of_channel = || {
                (0..images).flat_map(|image| (0..cells).map(move |cell| (image * channels + channel) * cells + cell))
            };
            let deviation = (variance[channel] + f64::from(self.epsilon)).sqrt();
            let normal = |at: usize| (items[at] - mean[channel]) / deviation;
            let dshift: f64 = of_channel().map(|at| dx[at]).sum();
            let dscale: f64 = of_channel().map(|at| dx[at] * normal(at)).sum();
            for at in of_channel() {
                dx[at] = scale[channel] / deviation * (dx[at] - dshift / count - normal(at) * dscale / count);
            }
            scales.push(dscale);
            shifts.push(dshift);
        }
        let of_channels = |items| from_f64(Shape::from([channels]), x.dtype(), items);
        smallvec![from_f64(x.shape().clone(), x.dtype(), dx), of_channels(scales), of_channels(shifts)]
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let images: OperandAxes = (0..rank).map(|axis| if axis == 1 { Along::Same(1) } else { Along::Whole }).collect();
        let parameters = [(); 3].map(|()| vector_axes(1, rank));
        AxisMap { work: Work::Arithmetic, operands: [images.clone(), images].into_iter().chain(parameters).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // Both sums of a channel are complete before its first result is written.
        Reuse::InPlace(smallvec![0, 1])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        8 * inputs[0].shape.elements() as u64
    }
}
