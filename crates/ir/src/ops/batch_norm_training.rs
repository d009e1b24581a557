//! [`BatchNormTraining`]: batch normalization with the statistics of the batch.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::BatchNormGradient;
use super::common::{arity, f32_only, from_f64};
use crate::axes::{Along, AxisChange, AxisMap, Work, vector_axes};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// `(x - mean) / sqrt(variance + epsilon) * scale + shift` for each channel, with mean and biased variance of the batch.
///
/// `x: [n, c, ..]`, `scale`, `shift: [c]` -> the type of `x`, then `mean: [c]` and `variance: [c]`. All `f32`. Running
/// statistics are states that other nodes update from the second and third result. Refuses an empty channel. Source:
/// Ioffe & Szegedy 2015, algorithm 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormTraining {
    /// Added to the variance.
    pub epsilon: f32,
}

/// The extents of images, channels and cells of a channel, and the position of a channel's cell.
pub(super) fn extents(x: &Shape) -> [usize; 3] {
    [x[0], x[1], x[2..].iter().product()]
}

/// Refuses an operand without channels or elements of a channel, and parameters of another shape.
pub(super) fn check_channels(x: &TensorType, parameters: &[&TensorType]) -> Result<(), Refusal> {
    if x.shape.rank() < 2 {
        refuse!("input must have a channel axis, got shape {}", x.shape);
    }
    if let Some(other) = parameters.iter().find(|ty| ty.shape[..] != [x.shape[1]]) {
        refuse!("parameters and statistics must have shape [{}], got {}", x.shape[1], other.shape);
    }
    let [images, _, cells] = extents(&x.shape);
    if images * cells == 0 {
        refuse!("each channel must have an element, got shape {}", x.shape);
    }
    Ok(())
}

impl Operator for BatchNormTraining {
    const NAME: &'static str = "batch_norm_training";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3)?;
        f32_only(inputs)?;
        check_channels(inputs[0], &inputs[1..])?;
        Ok(smallvec![inputs[0].clone(), inputs[1].clone(), inputs[1].clone()])
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let [images, channels, cells] = extents(x.shape());
        let (mut items, scale, shift) = (x.to_f64(), inputs[1].to_f64(), inputs[2].to_f64());
        let count = (images * cells) as f64;
        let (mut means, mut variances) = (Vec::new(), Vec::new());
        for channel in 0..channels {
            let of_channel = || {
                (0..images).flat_map(|image| (0..cells).map(move |cell| (image * channels + channel) * cells + cell))
            };
            let mean = of_channel().map(|at| items[at]).sum::<f64>() / count;
            let variance = of_channel().map(|at| (items[at] - mean).powi(2)).sum::<f64>() / count;
            let deviation = (variance + f64::from(self.epsilon)).sqrt();
            of_channel().for_each(|at| items[at] = (items[at] - mean) / deviation * scale[channel] + shift[channel]);
            means.push(mean);
            variances.push(variance);
        }
        let of_channels = |items| from_f64(Shape::from([channels]), x.dtype(), items);
        smallvec![from_f64(x.shape().clone(), x.dtype(), items), of_channels(means), of_channels(variances)]
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        if outputs[1].or(outputs[2]).is_some() {
            refuse!("the gradients of batch statistics are not supported; only the first result may reach the loss");
        }
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let operands = [dy, backward.operand(0), backward.operand(1), backward.result(1), backward.result(2)];
        let gradients = backward.add_all(BatchNormGradient { epsilon: self.epsilon }, &operands)?;
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let x = (0..rank).map(|axis| if axis == 1 { Along::Same(1) } else { Along::Whole }).collect();
        let parameters = [(); 2].map(|()| vector_axes(1, rank));
        AxisMap { work: Work::Arithmetic, operands: [x].into_iter().chain(parameters).collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        // Two sums, a difference and a square, and the normalization.
        6 * inputs[0].shape.elements() as u64
    }
}
