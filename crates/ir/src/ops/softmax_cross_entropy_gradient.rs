//! [`SoftmaxCrossEntropyGradient`]: the gradient of a softmax with cross-entropy.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;

use super::SoftmaxCrossEntropy;
use super::common::{arity, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// For each row, `dloss (softmax(logits) - target)`; 0 for rows that are ignored.
///
/// `dloss: [..]`, `logits: [.., c]`, `labels: [..]` as [`SoftmaxCrossEntropy`] has them -> the type of `logits`. Rows are
/// shifted by their maximum first, so that no exponential overflows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropyGradient {
    /// The loss.
    pub loss: SoftmaxCrossEntropy,
}

impl Operator for SoftmaxCrossEntropyGradient {
    const NAME: &'static str = "softmax_cross_entropy_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3)?;
        let losses = self.loss.losses(inputs[1], inputs[2])?;
        if *inputs[0] != losses {
            refuse!("the gradient must be {losses}, one number a row, got {}", inputs[0]);
        }
        Ok(one(inputs[1].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (losses, logits, labels) = (inputs[0].to_f64(), inputs[1], inputs[2].to_i64());
        let classes = logits.shape()[logits.shape().rank() - 1];
        let smoothing = f64::from(self.loss.smoothing);
        let mut items = logits.to_f64();
        for ((row, label), gradient) in items.chunks_mut(classes).zip(labels).zip(losses) {
            let Some(class) = self.loss.class(label, classes) else {
                row.fill(0.0);
                continue;
            };
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|item| (item - top).exp()).sum();
            for (ix, item) in row.iter_mut().enumerate() {
                let target = smoothing / classes as f64 + if ix == class { 1.0 - smoothing } else { 0.0 };
                *item = gradient * ((*item - top).exp() / sum - target);
            }
        }
        one(from_f64(logits.shape().clone(), logits.dtype(), items))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let classes = output.shape.rank() - 1;
        let along = |last| -> OperandAxes { (0..classes).map(Along::Same).chain([last]).collect() };
        let operands = [along(Along::Broadcast), along(Along::Whole), along(Along::Whole)];
        AxisMap { work: Work::Arithmetic, operands: operands.into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // The sum of a row is complete before its first result is written.
        Reuse::InPlace(smallvec![1])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        5 * inputs[1].shape.elements() as u64
    }
}
