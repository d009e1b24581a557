//! [`CumulativeSum`]: the sums of an axis up to each of its elements.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Element, Shape, Tensor, each_data};

use super::common::{arity, axis_in, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The sum of all elements along `axis` up to each one, itself included or, if `exclusive`, without it. With `reverse` the
/// elements behind it count instead of those in front.
///
/// `x: [..]` of `f32`, `f64`, or integers of 32 or 64 bits, whose sums wrap -> the same type. Refuses: other dtypes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CumulativeSum {
    /// The axis along which elements are added.
    pub axis: usize,
    /// Whether an element is no part of its own sum.
    pub exclusive: bool,
    /// Whether sums start at the end of the axis.
    pub reverse: bool,
}

impl CumulativeSum {
    /// Whether there are sums of this dtype.
    pub fn sums(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64)
    }

    fn sums_of<T: Element>(&self, shape: &Shape, items: &[T]) -> Tensor {
        let (extent, inner) = (shape[self.axis], shape[self.axis + 1..].iter().product::<usize>());
        let mut sums = vec![T::default(); items.len()];
        for lane in 0..items.len().checked_div(extent).unwrap_or(0) {
            let (mut float, mut integer) = (0.0, 0i64);
            for step in 0..extent {
                let step = if self.reverse { extent - 1 - step } else { step };
                let at = lane / inner * inner * extent + lane % inner + step * inner;
                let before = (float, integer);
                (float, integer) = (float + items[at].to_f64(), integer.wrapping_add(items[at].to_i64()));
                let (float, integer) = if self.exclusive { before } else { (float, integer) };
                sums[at] = if T::DTYPE.is_float() { T::from_f64(float) } else { T::from_i64(integer) };
            }
        }
        Tensor::new(shape.clone(), sums).expect("as many sums as elements")
    }
}

impl Operator for CumulativeSum {
    const NAME: &'static str = "cumulative_sum";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let TensorType { dtype, shape } = inputs[0];
        if !CumulativeSum::sums(*dtype) {
            refuse!("operands must be f32, f64, or integers of 32 or 64 bits, got {dtype}; cast them first");
        }
        axis_in(self.axis, shape)?;
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        one(each_data!(inputs[0].data(), items => self.sums_of(inputs[0].shape(), items)))
    }

    /// An element is a term of the sums behind it, so its gradient is the sum from the other end.
    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let dx = backward.add(CumulativeSum { reverse: !self.reverse, ..self.clone() }, &[dy])?;
        Ok(smallvec![Some(dx)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let along = |axis| if axis == self.axis { Along::Whole } else { Along::Same(axis) };
        AxisMap::unary(Work::Arithmetic, output, along)
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        match change {
            AxisChange::Tile(_) => Some(self.clone().into()),
            AxisChange::ChannelsLast | AxisChange::ChannelsBlocked(_) => None,
        }
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}
