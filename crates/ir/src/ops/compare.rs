//! [`Compare`]: a comparison of two elements.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Element, Shape, Tensor, broadcast, each_data, pointwise};

use super::common::{arity, broadcast_strides, for_each_index, one, position};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Compares pairs of elements, with NumPy broadcasting.
///
/// `a: [..]`, `b: [..]` of one dtype -> `bool` of the broadcast shape. Refuses: two dtypes, shapes that do not broadcast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compare(pub pointwise::Compare);

impl Operator for Compare {
    const NAME: &'static str = "compare";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        if inputs[0].dtype != inputs[1].dtype {
            refuse!("operands must have one dtype, got {} and {}", inputs[0].dtype, inputs[1].dtype);
        }
        let shape = broadcast(&inputs[0].shape, &inputs[1].shape).map_err(|error| Refusal(error.to_string()))?;
        Ok(one(TensorType { dtype: DType::Bool, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        fn zip<T: Element>(
            a: &[T],
            b: &Tensor,
            strides: [&[usize]; 2],
            shape: &Shape,
            f: pointwise::Compare,
        ) -> Tensor {
            let b: &[T] = b.as_slice().expect("infer refuses two dtypes");
            let mut out = Vec::with_capacity(shape.elements());
            for_each_index(shape, |index| {
                let (x, y) = (a[position(index, strides[0])], b[position(index, strides[1])]);
                out.push(match T::DTYPE.is_float() {
                    true => f.eval(x.to_f64(), y.to_f64()),
                    // u64 compares as u64; all other integers fit i64.
                    false if T::DTYPE == DType::U64 => f.eval(x.to_i64() as u64, y.to_i64() as u64),
                    false => f.eval(x.to_i64(), y.to_i64()),
                });
            });
            Tensor::new(shape.clone(), out).expect("one result an index")
        }
        let (a, b) = (inputs[0], inputs[1]);
        let shape = broadcast(a.shape(), b.shape()).expect("infer refuses shapes that do not broadcast");
        let (a_strides, b_strides) = (broadcast_strides(a.shape(), &shape), broadcast_strides(b.shape(), &shape));
        one(each_data!(a.data(), items => zip(items, b, [&a_strides, &b_strides], &shape, self.0)))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        // A flag does not change with a small change of an operand.
        Ok(backward.none())
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        outputs[0].shape.elements() as u64
    }
}
