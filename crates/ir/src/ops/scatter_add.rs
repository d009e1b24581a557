//! [`ScatterAdd`]: sums of slices by index.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Shape, Tensor};

use super::Gather;
use super::common::{arity, f32_only, for_each_index, from_f64, one, position};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Adds slices of `updates` at `index` along an axis of a tensor of zeros: the gradient of `Gather` for its table.
///
/// `index: [i..]` of `i32` or `i64`, `updates: [a.., i.., b..]` of `f32` -> `[a.., extent, b..]`. Negative indices count from
/// the end; one outside the axis is clamped to it, as `Gather` does. Slices with one index are added in the order of
/// `updates`, whatever the number of threads. Refuses an extent of 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The indexed axis of the result.
    pub axis: usize,
    /// Its extent.
    pub extent: usize,
}

impl ScatterAdd {
    fn output_shape(&self, index: &Shape, updates: &Shape) -> Result<Shape, Refusal> {
        let end = self.axis + index.rank();
        if updates.rank() < end || updates[self.axis..end] != index[..] {
            refuse!("updates must have the axes of the index {index} from axis {} on, got {updates}", self.axis);
        }
        Ok(updates[..self.axis].iter().chain([&self.extent]).chain(&updates[end..]).copied().collect())
    }
}

impl Operator for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        let (index, updates) = (inputs[0], inputs[1]);
        f32_only(&[updates])?;
        if !matches!(index.dtype, DType::I32 | DType::I64) {
            refuse!("indices must be i32 or i64, got {}", index.dtype);
        }
        if self.extent == 0 {
            refuse!("extent must be >= 1, got 0");
        }
        Ok(one(TensorType { dtype: updates.dtype, shape: self.output_shape(&index.shape, &updates.shape)? }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (index, updates) = (inputs[0], inputs[1]);
        let shape = self.output_shape(index.shape(), updates.shape()).expect("infer checked the shapes");
        let (extent, rank) = (self.extent as i64, index.shape().rank());
        let rows: Vec<usize> = index
            .to_i64()
            .into_iter()
            .map(|ix| (if ix < 0 { ix.saturating_add(extent) } else { ix }).clamp(0, extent - 1) as usize)
            .collect();
        let (strides, index_strides) = (shape.row_major_strides(), index.shape().row_major_strides());
        let items = updates.to_f64();
        let mut out = vec![0.0; shape.elements()];
        let mut next = 0;
        for_each_index(updates.shape(), |at| {
            let row = rows[position(&at[self.axis..self.axis + rank], &index_strides)];
            let outer = position(&at[..self.axis], &strides);
            let inner = position(&at[self.axis + rank..], &strides[self.axis + 1..]);
            out[outer + row * strides[self.axis] + inner] += items[next];
            next += 1;
        });
        one(from_f64(shape, updates.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        Ok(smallvec![None, Some(backward.add(Gather { axis: self.axis }, &[dy, backward.operand(0)])?)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let (rank, indices) = (output.shape.rank(), inputs[0].shape.rank());
        let index = (0..rank).map(|axis| if axis == self.axis { Along::Whole } else { Along::Broadcast });
        let updates = |axis: usize| match axis.cmp(&self.axis) {
            std::cmp::Ordering::Less => Along::Same(axis),
            std::cmp::Ordering::Equal => Along::Whole,
            std::cmp::Ordering::Greater => Along::Same(axis + indices - 1),
        };
        let operands: [OperandAxes; 2] = [index.collect(), (0..rank).map(updates).collect()];
        AxisMap { work: Work::Arithmetic, operands: operands.into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[1].shape.elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_with_one_index_are_summed() {
        let op = ScatterAdd { axis: 1, extent: 3 };
        let index = Tensor::new(Shape::from([2, 2]), vec![0i64, -1, 2, 9]).unwrap();
        let updates = Tensor::new(Shape::from([1, 2, 2]), vec![1.0f32, 2.0, 4.0, 8.0]).unwrap();
        assert_eq!(op.eval(&[&index, &updates])[0].to_f64(), [1.0, 0.0, 14.0]);
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let index = ty(DType::I64, &[2, 2]);
        assert_eq!(op.infer(&[&index, &ty(DType::F32, &[1, 2, 2, 5])]), Ok(one(ty(DType::F32, &[1, 3, 5]))));
        for wrong in [&[1, 2, 3][..], &[1, 2], &[2, 2]] {
            assert!(op.infer(&[&index, &ty(DType::F32, wrong)]).is_err(), "{wrong:?}");
        }
        assert!(op.infer(&[&ty(DType::F32, &[2, 2]), &ty(DType::F32, &[1, 2, 2])]).is_err());
    }
}
