//! [`MatMul`]: matrix products.

use std::iter::zip;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor, broadcast};

use super::common::{Epilogue, broadcast_strides, for_each_index, is_zero, position, product, zero_fits};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, broadcast_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Multiplies matrices; dimensions in front of the last two broadcast.
///
/// `a: [.., m, k]`, `b: [.., k, n]`, or `[.., n, k]` if `transposed`, then by the epilogue `scale: [n]`, `bias: [n]` and
/// `residual` of the output's shape -> `[.., m, n]`, of `f32`, `f16` or `bf16` each. Or both factors of `u8` or `i8`,
/// summed exactly: `i32`, or dequantized by the scale. Refuses: rank below 2, different `k`, batches that do not broadcast.
/// Source: ONNX `MatMul`, `MatMulInteger`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Zero point of an int8 `a`, subtracted from each element.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zero: i32,
    /// Whether `b` is `[.., n, k]`, so that its rows are columns of the product.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
    /// Arithmetic on each result before it is stored.
    #[serde(default)]
    pub epilogue: Epilogue,
}

impl MatMul {
    /// Terms and columns of the right factor.
    fn right(&self, b: &[usize]) -> [usize; 2] {
        let [rows, columns] = [b[b.len() - 2], b[b.len() - 1]];
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }

    fn output_shape(&self, a: &Shape, b: &Shape) -> Result<Shape, Refusal> {
        if a.rank() < 2 || b.rank() < 2 {
            refuse!("factors must have rank >= 2, got {a} and {b}");
        }
        let (a_batch, a_matrix) = a.split_at(a.rank() - 2);
        let (b_batch, _) = b.split_at(b.rank() - 2);
        let [terms, columns] = self.right(b);
        if a_matrix[1] != terms {
            refuse!("columns of {a} must equal rows of {b}, got {} and {terms}", a_matrix[1]);
        }
        let mut shape = broadcast(&a_batch.into(), &b_batch.into())
            .map_err(|error| Refusal(format!("batch axes must broadcast: {error}")))?;
        shape.push(a_matrix[0]);
        shape.push(columns);
        Ok(shape)
    }
}

/// The sum of a product over the batch axes along which a factor is broadcast, in the factor's shape.
fn sum_batch(backward: &mut Backward, product: ValueId, factor: ValueId) -> Result<ValueId, Refusal> {
    let (full, shape) = (backward.shape(product), backward.shape(factor));
    let missing = full.rank().saturating_sub(shape.rank());
    let is_broadcast = |axis: usize| axis < missing || shape[axis - missing] != full[axis];
    let axes: SmallVec<[usize; 4]> = if full.rank() < shape.rank() {
        SmallVec::new()
    } else {
        (0..full.rank()).filter(|&axis| is_broadcast(axis)).collect()
    };
    let sum = backward.sum(product, axes)?;
    backward.reshape(sum, shape)
}

impl Operator for MatMul {
    const NAME: &'static str = "mat_mul";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        if inputs.len() < 2 {
            refuse!("expected two factors, got {} inputs", inputs.len());
        }
        zero_fits(self.zero, inputs)?;
        let shape = self.output_shape(&inputs[0].shape, &inputs[1].shape)?;
        let columns = shape[shape.rank() - 1];
        self.epilogue.infer(inputs, shape, columns)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (a, b) = (inputs[0], inputs[1]);
        let shape = self.output_shape(a.shape(), b.shape()).expect("infer refuses what does not fit");
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
                let row = &a_items[a_at + row * k..][..k];
                if self.transposed {
                    let dot =
                        |column| zip(row, &b_items[b_at + column * k..]).fold(0.0, |sum, (a, b)| sum + (a - zero) * b);
                    out.extend((0..n).map(dot));
                    continue;
                }
                // Rows of the right operand are contiguous, columns are not.
                let first = out.len();
                out.resize(first + n, 0.0);
                for (term, a) in row.iter().enumerate() {
                    let b_row = &b_items[b_at + term * n..][..n];
                    zip(&mut out[first..], b_row).for_each(|(sum, b)| *sum += (a - zero) * b);
                }
            }
        });
        self.epilogue.eval(shape, out, inputs, |at| at % n)
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        self.epilogue.has_gradient()?;
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let (a, b) = (backward.operand(0), backward.operand(1));
        let mut gradients = backward.none();
        if backward.needs(0) {
            let other = if self.transposed { b } else { backward.transpose_matrix(b)? };
            let product = backward.add(MatMul::default(), &[dy, other])?;
            gradients[0] = Some(sum_batch(backward, product, a)?);
        }
        if backward.needs(1) {
            let (a_shape, b_shape, dy_shape) = (backward.shape(a), backward.shape(b), backward.shape(dy));
            let is_shared = b_shape[..b_shape.rank() - 2].iter().all(|&extent| extent == 1);
            let (mut left, mut right) = if self.transposed { (dy, a) } else { (a, dy) };
            if is_shared && a_shape[..a_shape.rank() - 1] == dy_shape[..dy_shape.rank() - 1] {
                // One product over the rows of all batches.
                for factor in [&mut left, &mut right] {
                    let shape = backward.shape(*factor);
                    let (rows, columns) = shape.split_at(shape.rank() - 1);
                    *factor = backward.reshape(*factor, Shape::from([rows.iter().product(), columns[0]]))?;
                }
            }
            let left = backward.transpose_matrix(left)?;
            let product = backward.add(MatMul::default(), &[left, right])?;
            gradients[1] = Some(sum_batch(backward, product, b)?);
        }
        let columns = backward.ty(dy).shape.rank() - 1;
        self.epilogue.bias_gradient(backward, dy, columns, &mut gradients)?;
        Ok(gradients)
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
        let mut right = factor(&inputs[1].shape, column);
        if self.transposed {
            right[column] = Along::Same(inputs[1].shape.rank() - 2);
        }
        let mut operands: SmallVec<[OperandAxes; 4]> = [factor(&inputs[0].shape, row), right].into_iter().collect();
        operands.extend(self.epilogue.axes(column, rank));
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], output: &TensorType) -> Option<Op> {
        // Weights and epilogues have columns too, which tiles do not cut.
        let AxisChange::Tile(tile) = change else { return None };
        (tile.axis + 1 < output.shape.rank()).then(|| self.clone().into())
    }

    fn reuse(&self, inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A residual element is read before the result is written.
        if self.epilogue.residual { Reuse::InPlace([inputs.len() - 1].into_iter().collect()) } else { Reuse::Never }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let k = inputs[0].shape[inputs[0].shape.rank() - 1];
        let elements = outputs[0].shape.elements();
        product([2, k, elements]).saturating_add(self.epilogue.flops(elements))
    }
}
