//! [`Ctc`]: connectionist temporal classification, the loss of labels that are not aligned with steps.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Tensor};

use super::CtcGradient;
use super::common::{arity, f32_only, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// For each sequence, the negative log probability of its labels, summed over all alignments: at each step a class of the
/// softmax is emitted, repetitions are merged, and blanks are removed (Graves et al. 2006).
///
/// `logits: [steps, batch, c]` of `f32`, `labels: [batch, length]` of `i32` or `i64` -> `[batch]` of `f32`. Labels that are
/// the blank or no class are padding and are skipped. Labels that no alignment has, as they are more than the steps, have
/// an infinite loss and no gradient. Refuses: a blank that is no class. Source: PyTorch `ctc_loss`, MXNet `CTCLoss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ctc {
    /// The class that means no label.
    pub blank: usize,
}

/// The alignments of one sequence, by logarithms of probabilities.
pub(super) struct Alignments {
    /// The labels with blanks in front of, between and behind them.
    pub(super) states: Vec<usize>,
    /// By step and class.
    pub(super) log_softmax: Vec<Vec<f64>>,
    /// By step and state: all beginnings that end in the state.
    pub(super) forward: Vec<Vec<f64>>,
}

/// `log(sum(exp(items)))`
pub(super) fn log_sum(items: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = items.clone().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + items.map(|item| (item - top).exp()).sum::<f64>().ln() }
}

impl Alignments {
    /// The states from which a state is reached in a step.
    pub(super) fn before(&self, state: usize, blank: usize) -> std::ops::RangeInclusive<usize> {
        let skips = 2 <= state && self.states[state] != blank && self.states[state] != self.states[state - 2];
        state.saturating_sub(1 + usize::from(skips))..=state
    }

    /// The log probability of all alignments.
    pub(super) fn total(&self) -> f64 {
        match self.forward.last() {
            Some(last) => log_sum(last.iter().rev().take(2).copied()),
            None if self.states.len() == 1 => 0.0,
            None => f64::NEG_INFINITY,
        }
    }
}

impl Ctc {
    /// The type of a loss per sequence.
    pub(super) fn losses(&self, logits: &TensorType, labels: &TensorType) -> Result<TensorType, Refusal> {
        f32_only(&[logits])?;
        if !matches!(labels.dtype, DType::I32 | DType::I64) {
            refuse!("labels must be i32 or i64, got {}; cast them first", labels.dtype);
        }
        let ([_, batch, classes], [label_batch, _]) = (&logits.shape[..], &labels.shape[..]) else {
            refuse!("logits must be [steps, batch, c] and labels [batch, length], got {logits} and {labels}");
        };
        if batch != label_batch {
            refuse!("logits and labels must have one batch, got {batch} and {label_batch}");
        }
        if *classes <= self.blank {
            refuse!("the blank must be one of {classes} classes, got {}", self.blank);
        }
        Ok(TensorType { dtype: DType::F32, shape: [*batch].into() })
    }

    /// The alignments of a sequence of the batch.
    pub(super) fn alignments(&self, logits: &Tensor, labels: &Tensor, sequence: usize) -> Alignments {
        let [steps, batch, classes] = [0, 1, 2].map(|axis| logits.shape()[axis]);
        let (items, length) = (logits.to_f64(), labels.shape()[1]);
        let mut states = vec![self.blank];
        for &label in &labels.to_i64()[sequence * length..(sequence + 1) * length] {
            let class = usize::try_from(label).ok().filter(|&class| class < classes && class != self.blank);
            states.extend(class.into_iter().flat_map(|class| [class, self.blank]));
        }
        let log_softmax = (0..steps).map(|step| {
            let row = &items[(step * batch + sequence) * classes..][..classes];
            let all = log_sum(row.iter().copied());
            row.iter().map(|item| item - all).collect()
        });
        let mut own = Alignments { states, log_softmax: log_softmax.collect(), forward: Vec::new() };
        for step in 0..steps {
            let row = (0..own.states.len()).map(|state| {
                let reached = match own.forward.last() {
                    Some(last) => log_sum(own.before(state, self.blank).map(|before| last[before])),
                    None if state < 2 => 0.0,
                    None => f64::NEG_INFINITY,
                };
                reached + own.log_softmax[step][own.states[state]]
            });
            let row = row.collect();
            own.forward.push(row);
        }
        own
    }
}

impl Operator for Ctc {
    const NAME: &'static str = "ctc";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        Ok(one(self.losses(inputs[0], inputs[1])?))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (logits, labels) = (inputs[0], inputs[1]);
        let batch = labels.shape()[0];
        let losses = (0..batch).map(|sequence| -self.alignments(logits, labels, sequence).total()).collect();
        one(from_f64([batch].into(), logits.dtype(), losses))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(losses) = outputs[0] else { return Ok(backward.none()) };
        let op = CtcGradient { loss: self.clone() };
        let dx = backward.add(op, &[losses, backward.operand(0), backward.operand(1)])?;
        Ok(smallvec![Some(dx), None])
    }

    fn axes(&self, _inputs: &[&TensorType], _output: &TensorType) -> AxisMap {
        let logits: OperandAxes = [Along::Same(1)].into_iter().collect();
        let labels: OperandAxes = [Along::Same(0)].into_iter().collect();
        AxisMap { work: Work::Arithmetic, operands: [logits, labels].into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        let states = 2 * inputs[1].shape[1] as u64 + 1;
        let rows = (inputs[0].shape[0] * inputs[0].shape[1]) as u64;
        // A softmax, and three exponentials and a logarithm a state.
        rows.saturating_mul(4 * inputs[0].shape[2] as u64 + 8 * states)
    }
}

#[cfg(test)]
mod tests {
    use types::Shape;

    use super::*;

    /// All paths of classes over the steps, merged and without blanks.
    fn by_enumeration(logits: &[f64], steps: usize, classes: usize, blank: usize, labels: &[usize]) -> f64 {
        let mut total = 0.0;
        for path in 0..classes.pow(steps as u32) {
            let class = |step: usize| path / classes.pow(step as u32) % classes;
            let mut read: Vec<usize> = (0..steps).map(class).collect();
            read.dedup();
            read.retain(|&class| class != blank);
            if read == labels {
                let probability = |step: usize| {
                    let row = &logits[step * classes..][..classes];
                    (row[class(step)] - log_sum(row.iter().copied())).exp()
                };
                total += (0..steps).map(probability).product::<f64>();
            }
        }
        -total.ln()
    }

    #[test]
    fn loss_sums_over_all_alignments() {
        let (steps, classes) = (5, 3);
        let logits: Vec<f32> = (0..steps * classes).map(|ix| (ix as f32 * 0.7).sin()).collect();
        let exact: Vec<f64> = logits.iter().map(|&item| item.into()).collect();
        let x = Tensor::new(Shape::from([steps, 1, classes]), logits).unwrap();
        for blank in [0, 2] {
            for labels in [&[1][..], &[1, 1], &[1, 2 - blank], &[2 - blank, 1, 2 - blank], &[]] {
                let mut padded: Vec<i32> = labels.iter().map(|&label| label as i32).collect();
                padded.resize(4, -1);
                let label = Tensor::new(Shape::from([1, 4]), padded).unwrap();
                let got = Ctc { blank }.eval(&[&x, &label])[0].to_f64()[0];
                let want = by_enumeration(&exact, steps, classes, blank, labels);
                assert!((got - want).abs() < 1e-5, "blank {blank}, {labels:?}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn labels_without_an_alignment_have_an_infinite_loss_and_no_gradient() {
        let x = Tensor::new(Shape::from([2, 1, 3]), vec![0.0f32; 6]).unwrap();
        // Two equal labels take a blank between them: three steps.
        let labels = Tensor::new(Shape::from([1, 2]), vec![1i32, 1]).unwrap();
        let loss = Ctc { blank: 0 };
        assert_eq!(loss.eval(&[&x, &labels])[0].to_f64(), [f64::INFINITY]);
        let slope = Tensor::new(Shape::from([1]), vec![1.0f32]).unwrap();
        assert_eq!(CtcGradient { loss }.eval(&[&slope, &x, &labels])[0].to_f64(), [0.0; 6]);
    }
}
