//! [`MatMul`]: matrix products.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor, broadcast};

use super::common::{Epilogue, broadcast_strides, for_each_index, is_zero, position, zero_fits};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, broadcast_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};

/// Multiplies matrices; dimensions in front of the last two broadcast.
///
/// `a: [.., m, k]`, `b: [.., k, n]`, then by the epilogue `scale: [n]`, `bias: [n]` and `residual` of the output's shape ->
/// `[.., m, n]`, of `f32`, `f16` or `bf16` each. Or both factors of `u8` or `i8`, summed exactly: `i32`, or
/// dequantized by the scale. Refuses: rank below 2, different `k`, batches that do not broadcast. Source: ONNX `MatMul`,
/// `MatMulInteger`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Zero point of an int8 `a`, subtracted from each element.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zero: i32,
    /// Arithmetic on each result before it is stored.
    #[serde(default)]
    pub epilogue: Epilogue,
}

impl MatMul {
    fn output_shape(a: &Shape, b: &Shape) -> Result<Shape, Refusal> {
        if a.rank() < 2 || b.rank() < 2 {
            refuse!("factors must have rank >= 2, got {a} and {b}");
        }
        let (a_batch, a_matrix) = a.split_at(a.rank() - 2);
        let (b_batch, b_matrix) = b.split_at(b.rank() - 2);
        if a_matrix[1] != b_matrix[0] {
            refuse!("columns of {a} must equal rows of {b}, got {} and {}", a_matrix[1], b_matrix[0]);
        }
        let mut shape = broadcast(&a_batch.into(), &b_batch.into())
            .map_err(|error| Refusal(format!("batch axes must broadcast: {error}")))?;
        shape.push(a_matrix[0]);
        shape.push(b_matrix[1]);
        Ok(shape)
    }
}

impl Operator for MatMul {
    const NAME: &'static str = "mat_mul";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        if inputs.len() < 2 {
            refuse!("expected two factors, got {} inputs", inputs.len());
        }
        zero_fits(self.zero, inputs)?;
        let shape = MatMul::output_shape(&inputs[0].shape, &inputs[1].shape)?;
        let columns = shape[shape.rank() - 1];
        self.epilogue.infer(inputs, shape, columns)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (a, b) = (inputs[0], inputs[1]);
        let shape = MatMul::output_shape(a.shape(), b.shape()).expect("infer refuses what does not fit");
        let batch: Shape = shape[..shape.rank() - 2].into();
        let (m, n, k) = (shape[shape.rank() - 2], shape[shape.rank() - 1], a.shape()[a.shape().rank() - 1]);
        let a_strides = broadcast_strides(&a.shape()[..a.shape().rank() - 2].into(), &batch);
        let b_strides = broadcast_strides(&b.shape()[..b.shape().rank() - 2].into(), &batch);
        let zero = f64::from(self.zero);
        let (a_items, b_items) = (a.to_f64(), b.to_f64());
        let mut out = Vec::with_capacity(shape.elements());
        for_each_index(&batch, |index| {
            let (a_at, b_at) = (position(index, &a_strides) * m * k, position(index, &b_strides) * k * n);
            for row in 0..m {
                for column in 0..n {
                    let term = |i| (a_items[a_at + row * k + i] - zero) * b_items[b_at + i * n + column];
                    out.push((0..k).map(term).sum());
                }
            }
        });
        self.epilogue.eval(shape, out, inputs, |at| at % n)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let (row, column) = (rank - 2, rank - 1);
        let factor = |shape: &Shape, own: usize| -> OperandAxes {
            let batch = broadcast_axes(&shape[..shape.rank() - 2].into(), &output.shape[..row].into());
            let matrix = [row, column]
                .map(|axis| if axis == own { Along::Same(shape.rank() + axis - rank) } else { Along::Broadcast });
            batch.into_iter().chain(matrix).collect()
        };
        let mut operands: SmallVec<[OperandAxes; 4]> =
            [factor(&inputs[0].shape, row), factor(&inputs[1].shape, column)].into_iter().collect();
        operands.extend(self.epilogue.axes(column, rank));
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A residual element is read before the result is written.
        if self.epilogue.residual { Reuse::InPlace([inputs.len() - 1].into_iter().collect()) } else { Reuse::Never }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let k = inputs[0].shape[inputs[0].shape.rank() - 1];
        let elements = outputs[0].shape.elements();
        2 * (k * elements) as u64 + self.epilogue.flops(elements)
    }
}
