//! [`ConvChain`]: consecutive convolutions as one step.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::Tensor;

use super::Conv;
use super::common::one;
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, same_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Each convolution reads the result of the previous one. Intermediate results are not stored: a kernel computes some rows
/// of all of them at a time.
///
/// `x`, then for each convolution its weight and, by its epilogue, its bias, then by the last one's epilogue its residual
/// -> the result of the last. Refuses: fewer than two convolutions, a residual of another than the last, what [`Conv`]
/// refuses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvChain {
    /// The convolutions, the first to run first.
    pub convs: Vec<Conv>,
}

impl ConvChain {
    /// The convolutions, each with its own operands: weight, bias, residual.
    pub fn parts(&self) -> impl Iterator<Item = (&Conv, Range<usize>)> {
        self.convs.iter().scan(1, |next, conv| {
            let start = *next;
            *next += 1 + conv.epilogue.operands();
            Some((conv, start..*next))
        })
    }

    fn has_residual(&self) -> bool {
        self.convs.last().is_some_and(|conv| conv.epilogue.residual)
    }

    /// The types of all results in order.
    fn results(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, Refusal> {
        let front = self.convs.len().saturating_sub(1);
        if front == 0 || self.convs[..front].iter().any(|conv| conv.epilogue.residual) {
            refuse!("expected two or more convolutions, only the last with a residual, got {}", self.convs.len());
        }
        let operands = self.parts().last().map_or(1, |(_, own)| own.end);
        if inputs.len() != operands {
            refuse!("expected {operands} inputs, got {}", inputs.len());
        }
        let mut results: Vec<TensorType> = Vec::new();
        for (conv, own) in self.parts() {
            let mut operands = vec![results.last().unwrap_or(inputs[0])];
            operands.extend_from_slice(&inputs[own]);
            let result = conv.infer(&operands)?;
            results.extend(result);
        }
        Ok(results)
    }
}

impl Operator for ConvChain {
    const NAME: &'static str = "conv_chain";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        let mut results = self.results(inputs)?;
        Ok(results.pop().into_iter().collect())
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let mut x = inputs[0].clone();
        for (conv, own) in self.parts() {
            let mut operands = vec![&x];
            operands.extend_from_slice(&inputs[own]);
            x = conv.eval(&operands).remove(0);
        }
        one(x)
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_fused()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let of_batch = |along: Along| -> OperandAxes {
            (0..rank).map(|axis| if axis == 0 { along } else { Along::Whole }).collect()
        };
        let mut operands: SmallVec<[OperandAxes; 4]> = smallvec![of_batch(Along::Same(0))];
        operands.resize(inputs.len(), of_batch(Along::Broadcast));
        if self.has_residual() {
            operands[inputs.len() - 1] = same_axes(rank);
        }
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A residual element is read before the result is written.
        if self.has_residual() { Reuse::InPlace([inputs.len() - 1].into_iter().collect()) } else { Reuse::Never }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        let Ok(results) = self.results(inputs) else { return 0 };
        let flops = self.parts().zip(&results).map(|((conv, own), result)| {
            // The cost of a convolution depends on its weight and result only.
            let mut operands: SmallVec<[&TensorType; 4]> = smallvec![inputs[0]];
            operands.extend_from_slice(&inputs[own]);
            conv.flops(&operands, &[result])
        });
        flops.fold(0, u64::saturating_add)
    }
}
