//! [`SoftmaxCrossEntropy`]: the negative log-likelihood of labels under a softmax.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Shape, Tensor};

use super::SoftmaxCrossEntropyGradient;
use super::common::{arity, f32_only, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// For each row, `log(sum(exp(x))) - sum(target x)`, where the target has `1 - smoothing` at the label and `smoothing / c`
/// more at each class.
///
/// `logits: [.., c]` of `f32`, `labels: [..]` of `i32` or `i64` -> `[..]` of `f32`. A label that equals `ignore`, or that is
/// no class, gives 0. Refuses: no class, a smoothing outside `[0, 1]`. Source: ONNX `SoftmaxCrossEntropyLoss`, PyTorch
/// `cross_entropy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropy {
    /// The label of rows that do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore: Option<i64>,
    /// The part of the target that is spread over all classes.
    #[serde(default)]
    pub smoothing: f32,
}

impl SoftmaxCrossEntropy {
    /// The type of a loss per row.
    pub(super) fn losses(&self, logits: &TensorType, labels: &TensorType) -> Result<TensorType, Refusal> {
        f32_only(&[logits])?;
        if !matches!(labels.dtype, DType::I32 | DType::I64) {
            refuse!("labels must be i32 or i64, got {}; cast them first", labels.dtype);
        }
        let Some((&classes, rows)) = logits.shape.split_last() else {
            refuse!("logits must have an axis of classes, got a scalar");
        };
        if labels.shape[..] != *rows || classes == 0 {
            refuse!("logits must be [.., c] with a class and labels [..], got {} and {}", logits.shape, labels.shape);
        }
        if !(0.0..=1.0).contains(&self.smoothing) {
            refuse!("smoothing must be in [0, 1], got {}", self.smoothing);
        }
        Ok(TensorType { dtype: DType::F32, shape: rows.into() })
    }

    /// The class of a label, unless it is ignored or no class.
    pub fn class(&self, label: i64, classes: usize) -> Option<usize> {
        usize::try_from(label).ok().filter(|&class| Some(label) != self.ignore && class < classes)
    }
}

impl Operator for SoftmaxCrossEntropy {
    const NAME: &'static str = "softmax_cross_entropy";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        Ok(one(self.losses(inputs[0], inputs[1])?))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (logits, labels) = (inputs[0], inputs[1]);
        let shape: Shape = labels.shape().clone();
        let classes = logits.shape()[shape.rank()];
        let smoothing = f64::from(self.smoothing);
        let loss = |(row, label): (&[f64], i64)| {
            let Some(class) = self.class(label, classes) else { return 0.0 };
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|item| (item - top).exp()).sum();
            let mean = row.iter().sum::<f64>() / classes as f64;
            let spread = if self.smoothing == 0.0 { 0.0 } else { smoothing * mean };
            top + sum.ln() - (1.0 - smoothing) * row[class] - spread
        };
        let items = logits.to_f64();
        let out = items.chunks(classes).zip(labels.to_i64()).map(loss).collect();
        one(from_f64(shape, logits.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(losses) = outputs[0] else { return Ok(backward.none()) };
        let op = SoftmaxCrossEntropyGradient { loss: self.clone() };
        let dx = backward.add(op, &[losses, backward.operand(0), backward.operand(1)])?;
        Ok(smallvec![Some(dx), None])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rows: OperandAxes = (0..output.shape.rank()).map(Along::Same).collect();
        AxisMap { work: Work::Arithmetic, operands: [rows.clone(), rows].into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        4 * inputs[0].shape.elements() as u64
    }
}
