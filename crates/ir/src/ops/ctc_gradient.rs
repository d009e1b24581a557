//! [`CtcGradient`]: the gradient of connectionist temporal classification.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::Tensor;

use super::Ctc;
use super::common::{arity, from_f64, one};
use super::ctc::log_sum;
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// At each step, `dloss (softmax(logits) - p)`, where `p` has for each class the probability that an alignment of the labels
/// emits it there; 0 for labels without an alignment.
///
/// `dloss: [batch]`, `logits: [steps, batch, c]`, `labels: [batch, length]` as [`Ctc`] has them -> the type of `logits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CtcGradient {
    /// The loss.
    pub loss: Ctc,
}

impl Operator for CtcGradient {
    const NAME: &'static str = "ctc_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3)?;
        let losses = self.loss.losses(inputs[1], inputs[2])?;
        if *inputs[0] != losses {
            refuse!("the gradient must be {losses}, one number a sequence, got {}", inputs[0]);
        }
        Ok(one(inputs[1].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (slopes, logits, labels) = (inputs[0].to_f64(), inputs[1], inputs[2]);
        let [steps, batch, classes] = [0, 1, 2].map(|axis| logits.shape()[axis]);
        let blank = self.loss.blank;
        let mut out = vec![0.0; logits.shape().elements()];
        for (sequence, slope) in slopes.into_iter().enumerate() {
            let own = self.loss.alignments(logits, labels, sequence);
            let (total, count) = (own.total(), own.states.len());
            if total == f64::NEG_INFINITY {
                continue;
            }
            // All ends that begin behind a state at a step.
            let mut after: Vec<f64> =
                (0..count).map(|state| if count <= state + 2 { 0.0 } else { f64::NEG_INFINITY }).collect();
            for step in (0..steps).rev() {
                let row = &mut out[(step * batch + sequence) * classes..][..classes];
                for (class, cell) in row.iter_mut().enumerate() {
                    let states = (0..count).filter(|&state| own.states[state] == class);
                    let here = log_sum(states.map(|state| own.forward[step][state] + after[state]));
                    *cell = slope * (own.log_softmax[step][class].exp() - (here - total).exp());
                }
                let next: Vec<f64> =
                    (0..count).map(|state| after[state] + own.log_softmax[step][own.states[state]]).collect();
                for (state, cell) in after.iter_mut().enumerate() {
                    let reached = (state..count.min(state + 3)).filter(|&to| own.before(to, blank).contains(&state));
                    *cell = log_sum(reached.map(|to| next[to]));
                }
            }
        }
        one(from_f64(logits.shape().clone(), logits.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, _inputs: &[&TensorType], _output: &TensorType) -> AxisMap {
        // `[steps, batch, c]`: a step depends on all others.
        let losses: OperandAxes = [Along::Broadcast, Along::Same(0), Along::Broadcast].into_iter().collect();
        let logits: OperandAxes = [Along::Whole, Along::Same(1), Along::Whole].into_iter().collect();
        let labels: OperandAxes = [Along::Whole, Along::Same(0), Along::Whole].into_iter().collect();
        AxisMap { work: Work::Arithmetic, operands: [losses, logits, labels].into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        self.loss.flops(&inputs[1..], outputs).saturating_mul(2)
    }
}
