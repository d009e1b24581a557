//! [`Select`]: one of two elements by a condition.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Element, Shape, Tensor, broadcast, each_data};

use super::common::{arity, broadcast_strides, for_each_index, one, position};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Takes elements from `a` where `condition` holds, else from `b`, with NumPy broadcasting.
///
/// `condition: [..]` of `bool`, `a: [..]`, `b: [..]` of one dtype -> the broadcast shape, that dtype.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {}

impl Select {
    fn shape(inputs: [&Shape; 3]) -> Result<Shape, Refusal> {
        broadcast(inputs[0], inputs[1])
            .and_then(|shape| broadcast(&shape, inputs[2]))
            .map_err(|error| Refusal(error.to_string()))
    }
}

impl Operator for Select {
    const NAME: &'static str = "select";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3)?;
        if inputs[0].dtype != DType::Bool {
            refuse!("condition must be bool, got {}", inputs[0].dtype);
        }
        if inputs[1].dtype != inputs[2].dtype {
            refuse!("operands must have one dtype, got {} and {}", inputs[1].dtype, inputs[2].dtype);
        }
        let shape = Select::shape([&inputs[0].shape, &inputs[1].shape, &inputs[2].shape])?;
        Ok(one(TensorType { dtype: inputs[1].dtype, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        fn run<T: Element>(a: &[T], b: &Tensor, condition: &[bool], strides: [&[usize]; 3], shape: &Shape) -> Tensor {
            let b: &[T] = b.as_slice().expect("infer refuses two dtypes");
            let mut out = Vec::with_capacity(shape.elements());
            for_each_index(shape, |index| {
                let taken = condition[position(index, strides[0])];
                out.push(if taken { a[position(index, strides[1])] } else { b[position(index, strides[2])] });
            });
            Tensor::new(shape.clone(), out).expect("one result an index")
        }
        let shape = Select::shape([inputs[0].shape(), inputs[1].shape(), inputs[2].shape()]).expect("infer refuses");
        let strides: Vec<_> = inputs.iter().map(|input| broadcast_strides(input.shape(), &shape)).collect();
        let condition: &[bool] = inputs[0].as_slice().expect("infer refuses other dtypes");
        let strides = [&strides[0][..], &strides[1], &strides[2]];
        one(each_data!(inputs[1].data(), items => run(items, inputs[2], condition, strides, &shape)))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let condition = backward.operand(0);
        let zero = backward.constant(Tensor::scalar(0.0f32).cast(backward.ty(dy).dtype));
        let mut gradients = backward.none();
        for ix in [1, 2] {
            if backward.needs(ix) {
                let (a, b) = if ix == 1 { (dy, zero) } else { (zero, dy) };
                let taken = backward.add(Select {}, &[condition, a, b])?;
                gradients[ix] = Some(backward.sum_to(taken, ix)?);
            }
        }
        Ok(gradients)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        Reuse::InPlace((1..3).filter(|&ix| inputs[ix] == output).collect())
    }
}
