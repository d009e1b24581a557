//! [`Gather`]: slices of a table by index.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Shape, Tensor};

use super::ScatterAdd;
use super::common::{arity, axis_in, one, pick, position};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Gathers slices of `table` along `axis` at `index`.
///
/// `table: [a.., v, b..]`, `index: [i..]` of `i32` or `i64` -> `[a.., i.., b..]`, dtype of `table`. Negative indices
/// count from the end; one outside the axis is clamped to it. Refuses: an index of another dtype, an empty axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// The indexed axis of the table.
    pub axis: usize,
}

impl Gather {
    fn output_shape(&self, table: &Shape, index: &Shape) -> Shape {
        table[..self.axis].iter().chain(&index[..]).chain(&table[self.axis + 1..]).copied().collect()
    }
}

impl Operator for Gather {
    const NAME: &'static str = "gather";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        let (table, index) = (inputs[0], inputs[1]);
        axis_in(self.axis, &table.shape)?;
        if !matches!(index.dtype, DType::I32 | DType::I64) {
            refuse!("indices must be i32 or i64, got {}", index.dtype);
        }
        if table.shape[self.axis] == 0 {
            refuse!("axis {} must not be empty, got shape {}", self.axis, table.shape);
        }
        Ok(one(TensorType { dtype: table.dtype, shape: self.output_shape(&table.shape, &index.shape) }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (table, index) = (inputs[0], inputs[1]);
        let extent = table.shape()[self.axis] as i64;
        let rows: Vec<usize> = index
            .to_i64()
            .into_iter()
            .map(|ix| (if ix < 0 { ix.saturating_add(extent) } else { ix }).clamp(0, extent - 1) as usize)
            .collect();
        let table_strides = table.shape().row_major_strides();
        let index_strides = index.shape().row_major_strides();
        let rank = index.shape().rank();
        one(pick(table, &self.output_shape(table.shape(), index.shape()), 0.0, |at| {
            let row = rows[position(&at[self.axis..self.axis + rank], &index_strides)];
            let outer = position(&at[..self.axis], &table_strides);
            let inner = position(&at[self.axis + rank..], &table_strides[self.axis + 1..]);
            Some(outer + row * table_strides[self.axis] + inner)
        }))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let op = ScatterAdd { axis: self.axis, extent: backward.ty(backward.operand(0)).shape[self.axis] };
        Ok(smallvec![Some(backward.add(op, &[backward.operand(1), dy])?), None])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let (rank, indices) = (output.shape.rank(), inputs[1].shape.rank());
        let table = |axis: usize| match axis.checked_sub(self.axis) {
            None => Along::Same(axis),
            Some(own) if own < indices => Along::Whole,
            Some(_) => Along::Same(axis + 1 - indices),
        };
        let index = |axis: usize| match axis.checked_sub(self.axis) {
            Some(own) if own < indices => Along::Same(own),
            _ => Along::Broadcast,
        };
        let operands = [(0..rank).map(table).collect(), (0..rank).map(index).collect()];
        AxisMap { work: Work::Movement, operands: operands.into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }
}
