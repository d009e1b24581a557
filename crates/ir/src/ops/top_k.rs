//! [`TopK`]: the first elements of a sorted axis.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Element, Shape, Tensor, each_data};

use super::common::{arity, axis_in, from_f64, pick};
use super::{Cast, ScatterAdd};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The `k` largest (or smallest) elements along `axis`, the largest first, and their indices.
///
/// `x: [..]` of numbers -> the elements, and `i64` indices of the same shape: `axis` has the extent `k`. Of equal elements the
/// one of the lower index comes first. NaN counts as larger than any number. Refuses: `bool`, `k` above the extent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// The axis searched.
    pub axis: usize,
    /// The number of elements.
    pub k: usize,
    /// The largest if true, the smallest if false.
    pub largest: bool,
}

impl TopK {
    fn output_shape(&self, x: &Shape) -> Shape {
        let mut shape = x.clone();
        shape[self.axis] = self.k;
        shape
    }

    /// The positions of the elements, in the order of the output.
    fn positions<T: Element + PartialOrd>(&self, shape: &Shape, items: &[T]) -> Vec<usize> {
        let (extent, inner) = (shape[self.axis], shape[self.axis + 1..].iter().product::<usize>());
        let lanes = shape.elements().checked_div(extent).unwrap_or(0);
        let mut positions = vec![0; lanes * self.k];
        // No number equals itself only if it is NaN.
        let is_number = |item: &T| item.partial_cmp(item).is_some();
        let compare = |a: &T, b: &T| a.partial_cmp(b).unwrap_or_else(|| is_number(b).cmp(&is_number(a)));
        for lane in 0..lanes {
            let start = lane / inner * inner * extent + lane % inner;
            let mut order: Vec<usize> = (0..extent).map(|ix| start + ix * inner).collect();
            // Stable: equal elements stay in the order of their indices.
            order.sort_by(|&a, &b| match self.largest {
                true => compare(&items[b], &items[a]),
                false => compare(&items[a], &items[b]),
            });
            for (ix, position) in order.into_iter().take(self.k).enumerate() {
                positions[(lane / inner * self.k + ix) * inner + lane % inner] = position;
            }
        }
        positions
    }
}

impl Operator for TopK {
    const NAME: &'static str = "top_k";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let TensorType { dtype, shape } = inputs[0];
        if *dtype == DType::Bool {
            refuse!("operands must be numbers, got {dtype}; cast them first");
        }
        axis_in(self.axis, shape)?;
        if shape[self.axis] < self.k {
            refuse!("k must be at most the extent of axis {} of {shape}, got {}", self.axis, self.k);
        }
        let shape = self.output_shape(shape);
        Ok(smallvec![TensorType { dtype: *dtype, shape: shape.clone() }, TensorType { dtype: DType::I64, shape }])
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let positions = each_data!(x.data(), items => self.positions(x.shape(), items));
        let shape = self.output_shape(x.shape());
        let mut next = positions.iter();
        let values = pick(x, &shape, 0.0, |_| next.next().copied());
        let (extent, inner) = (x.shape()[self.axis], x.shape()[self.axis + 1..].iter().product::<usize>().max(1));
        let indices = positions.iter().map(|&position| (position / inner % extent.max(1)) as f64).collect();
        smallvec![values, from_f64(shape, DType::I64, indices)]
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        // The place of each element in the flat operand: that of its lane, and its index times the lane's stride.
        let (x, shape) = (backward.shape(backward.operand(0)), backward.shape(dy));
        let (extent, inner) = (x[self.axis], x[self.axis + 1..].iter().product::<usize>());
        let of_lane = |ix: usize| (ix / inner / self.k * inner * extent + ix % inner) as f64;
        let lanes =
            backward.constant(from_f64(shape.clone(), DType::I64, (0..shape.elements()).map(of_lane).collect()));
        let stride = backward.constant(from_f64(Shape::scalar(), DType::I64, vec![inner as f64]));
        let index = backward.mul(backward.result(1), stride)?;
        let index = backward.binary(types::pointwise::Binary::Add, index, lanes)?;
        let flat = Shape::from([shape.elements()]);
        // Sums are `f32`.
        let dtype = backward.ty(dy).dtype;
        let dy = backward.add(Cast { to: DType::F32 }, &[dy])?;
        let (index, dy) = (backward.reshape(index, flat.clone())?, backward.reshape(dy, flat)?);
        let dx = backward.add(ScatterAdd { axis: 0, extent: x.elements() }, &[index, dy])?;
        let dx = backward.add(Cast { to: dtype }, &[dx])?;
        Ok(smallvec![Some(backward.reshape(dx, x)?)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::unary(Work::Arithmetic, output, |axis| match axis.cmp(&self.axis) {
            Ordering::Equal => Along::Whole,
            _ => Along::Same(axis),
        })
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}
