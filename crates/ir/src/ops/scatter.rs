//! [`Scatter`]: slices of a tensor replaced or combined by index.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary, Compare as Relation};
use types::{DType, Element, Shape, Tensor, each_data};

use super::common::{arity, axis_in, one};
use super::{Cast, Compare, Gather, Select};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Replaces the slices `index` of `data` along its first axis by those of `updates`, or combines them by a function.
///
/// `data: [n, b..]`, `index: [i..]` of `i32` or `i64`, `updates: [i.., b..]` -> the type of `data`. Negative indices count
/// from the end; one outside the axis is clamped to it, as `Gather` does. Updates with one index are applied in their order,
/// so that without a function the last one stays. Refuses: other functions than `Add`, `Mul`, `Max` and `Min`, a function of
/// `bool`, an empty axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// The function of a slice of `data` and an update; `None` replaces the slice.
    pub function: Option<Binary>,
}

impl Scatter {
    /// The gradients of slices to which extremes are written: equal extremes have equal parts of a result's gradient, as in
    /// `scatter_reduce` of PyTorch.
    fn extreme_gradient(&self, backward: &mut Backward, dy: ValueId) -> Result<Gradients, Refusal> {
        let [data, index, updates] = [0, 1, 2].map(|ix| backward.operand(ix));
        let y = backward.result(0);
        let dtype = backward.ty(data).dtype;
        let (gather, add) = (Gather { axis: 0 }, Scatter { function: Some(Binary::Add) });
        let winning = backward.add(gather.clone(), &[y, index])?;
        let of_updates = equal(backward, updates, winning, dtype)?;
        let of_data = equal(backward, data, y, dtype)?;
        let count = backward.add(add, &[of_data, index, of_updates])?;
        let part = backward.binary(Binary::Div, dy, count)?;
        let parts = backward.add(gather, &[part, index])?;
        Ok(smallvec![Some(backward.mul(of_data, part)?), None, Some(backward.mul(of_updates, parts)?)])
    }

    /// The gradients of products: for each factor the product of the others. That of a zero is the product of all factors but
    /// zeros, if it is the only one.
    fn product_gradient(&self, backward: &mut Backward, dy: ValueId) -> Result<Gradients, Refusal> {
        let [data, index, updates] = [0, 1, 2].map(|ix| backward.operand(ix));
        let TensorType { dtype, shape } = backward.ty(data).clone();
        let (zero, one) = (backward.number(0.0, dtype), backward.number(1.0, dtype));
        let ones = backward.constant(Tensor::full(shape, 1.0f32).cast(dtype));
        let others = backward.add(self.clone(), &[ones, index, updates])?;
        let of_data = backward.mul(dy, others)?;

        let is_zero = |backward: &mut Backward, x| backward.add(Compare(Relation::Equal), &[x, zero]);
        let (zero_data, zero_updates) = (is_zero(backward, data)?, is_zero(backward, updates)?);
        let without = |backward: &mut Backward, is_zero, x| backward.add(Select {}, &[is_zero, one, x]);
        let (some_data, some_updates) =
            (without(backward, zero_data, data)?, without(backward, zero_updates, updates)?);
        let product = backward.add(self.clone(), &[some_data, index, some_updates])?;
        let product = backward.mul(product, dy)?;
        let counts = [zero_data, zero_updates].map(|flags| backward.add(Cast { to: dtype }, &[flags]));
        let [count_data, count_updates] = counts;
        let count = backward.add(Scatter { function: Some(Binary::Add) }, &[count_data?, index, count_updates?])?;
        let of_count = |backward: &mut Backward, number| {
            let is_count = backward.add(Compare(Relation::Equal), &[count, number])?;
            let product = backward.add(Select {}, &[is_count, product, zero])?;
            backward.add(Gather { axis: 0 }, &[product, index])
        };
        let (of_none, of_one) = (of_count(backward, zero)?, of_count(backward, one)?);
        let of_others = backward.binary(Binary::Div, of_none, some_updates)?;
        let of_updates = backward.add(Select {}, &[zero_updates, of_one, of_others])?;
        Ok(smallvec![Some(of_data), None, Some(of_updates)])
    }
}

/// One where two values are equal, else zero.
fn equal(backward: &mut Backward, a: ValueId, b: ValueId, dtype: DType) -> Result<ValueId, Refusal> {
    let flags = backward.add(Compare(Relation::Equal), &[a, b])?;
    backward.add(Cast { to: dtype }, &[flags])
}

impl Operator for Scatter {
    const NAME: &'static str = "scatter";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3)?;
        let [data, index, updates] = [inputs[0], inputs[1], inputs[2]];
        axis_in(0, &data.shape)?;
        if !matches!(index.dtype, DType::I32 | DType::I64) {
            refuse!("indices must be i32 or i64, got {}", index.dtype);
        }
        if data.shape[0] == 0 {
            refuse!("axis 0 must not be empty, got shape {}", data.shape);
        }
        let shape: Shape = index.shape.iter().chain(&data.shape[1..]).copied().collect();
        if updates.shape != shape || updates.dtype != data.dtype {
            refuse!("updates must be {} of shape {shape}, got {updates}", data.dtype);
        }
        match self.function {
            None => {}
            Some(Binary::Add | Binary::Mul | Binary::Max | Binary::Min) if data.dtype != DType::Bool => {}
            Some(function) => refuse!("`{}` of {} is not supported", function.name(), data.dtype),
        }
        Ok(one(data.clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        fn apply<T: Element>(op: &Scatter, data: &[T], index: &[i64], updates: &Tensor, shape: &Shape) -> Tensor {
            let updates: &[T] = updates.as_slice().expect("infer refuses two dtypes");
            let (mut out, extent, row) = (data.to_vec(), shape[0] as i64, shape[1..].iter().product::<usize>());
            for (at, &ix) in index.iter().enumerate() {
                let ix = (if ix < 0 { ix.saturating_add(extent) } else { ix }).clamp(0, extent - 1) as usize;
                for (own, &item) in out[ix * row..][..row].iter_mut().zip(&updates[at * row..]) {
                    *own = match op.function {
                        None => item,
                        Some(function) if T::DTYPE.is_float() => {
                            T::from_f64(function.eval(own.to_f64(), item.to_f64()))
                        }
                        Some(function) => T::from_i64(function.eval_i64(own.to_i64(), item.to_i64())),
                    };
                }
            }
            Tensor::new(shape.clone(), out).expect("the shape is that of the data")
        }
        let [data, index, updates] = [inputs[0], inputs[1], inputs[2]];
        one(each_data!(data.data(), items => apply(self, items, &index.to_i64(), updates, data.shape())))
    }

    /// An update that a later one replaces has a gradient of zero.
    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let index = backward.operand(1);
        let gather = Gather { axis: 0 };
        let of_updates = backward.add(gather.clone(), &[dy, index])?;
        match self.function {
            Some(Binary::Add) => Ok(smallvec![Some(dy), None, Some(of_updates)]),
            None => {
                let (data, updates) = (backward.ty(dy).clone(), backward.ty(backward.operand(2)).clone());
                let zeros = backward.constant(Tensor::full(updates.shape, 0.0f32).cast(updates.dtype));
                let of_data = backward.add(self.clone(), &[dy, index, zeros])?;
                // The number of the update that stays, for each slice, then whether that is the update itself.
                let numbers = backward.constant(Tensor::from_fn(backward.shape(index), |at| at as i64));
                let none = backward.constant(Tensor::full(Shape::from([data.shape[0]]), -1i64));
                let last = backward.add(self.clone(), &[none, index, numbers])?;
                let last = backward.add(gather, &[last, index])?;
                let stays = backward.add(Compare(Relation::Equal), &[last, numbers])?;
                let places = backward.shape(stays);
                let aligned = places.iter().copied().chain(data.shape[1..].iter().map(|_| 1)).collect();
                let stays = backward.reshape(stays, aligned)?;
                let nothing = backward.number(0.0, data.dtype);
                let of_updates = backward.add(Select {}, &[stays, of_updates, nothing])?;
                Ok(smallvec![Some(of_data), None, Some(of_updates)])
            }
            Some(Binary::Mul) => self.product_gradient(backward, dy),
            Some(_) => self.extreme_gradient(backward, dy),
        }
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let (rank, indices) = (output.shape.rank(), inputs[1].shape.rank());
        let data = (0..rank).map(|axis| if axis == 0 { Along::Whole } else { Along::Same(axis) });
        let index = (0..rank).map(|axis| if axis == 0 { Along::Whole } else { Along::Broadcast });
        let updates = (0..rank).map(|axis| if axis == 0 { Along::Whole } else { Along::Same(axis + indices - 1) });
        let operands: [OperandAxes; 3] = [data.collect(), index.collect(), updates.collect()];
        let work = if self.function.is_none() { Work::Movement } else { Work::Arithmetic };
        AxisMap { work, operands: operands.into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::InPlace(smallvec![0])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        if self.function.is_some() { inputs[2].shape.elements() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_applied_in_their_order() {
        let data = Tensor::new(Shape::from([3, 1]), vec![1.0f32, 2.0, 3.0]).unwrap();
        let index = Tensor::new(Shape::from([2, 2]), vec![0i64, -1, 0, 9]).unwrap();
        let updates = Tensor::new(Shape::from([2, 2, 1]), vec![5.0f32, 6.0, 7.0, 8.0]).unwrap();
        let run = |function| Scatter { function }.eval(&[&data, &index, &updates])[0].to_f64();
        assert_eq!(run(None), [7.0, 2.0, 8.0]);
        assert_eq!(run(Some(Binary::Add)), [13.0, 2.0, 17.0]);
        assert_eq!(run(Some(Binary::Mul)), [35.0, 2.0, 144.0]);
        assert_eq!(run(Some(Binary::Min)), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn other_functions_and_shapes_are_refused() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let refused = |function, data: TensorType, index: TensorType, updates: TensorType| {
            Scatter { function }.infer(&[&data, &index, &updates]).is_err()
        };
        let (f, i) = (DType::F32, DType::I64);
        assert!(!refused(None, ty(f, &[4, 2]), ty(i, &[3]), ty(f, &[3, 2])));
        assert!(!refused(Some(Binary::Max), ty(i, &[4]), ty(i, &[]), ty(i, &[])));
        assert!(refused(Some(Binary::Sub), ty(f, &[4, 2]), ty(i, &[3]), ty(f, &[3, 2])));
        assert!(refused(Some(Binary::Add), ty(DType::Bool, &[4]), ty(i, &[3]), ty(DType::Bool, &[3])));
        assert!(refused(None, ty(f, &[4, 2]), ty(i, &[3]), ty(f, &[2, 3])));
        assert!(refused(None, ty(f, &[4, 2]), ty(f, &[3]), ty(f, &[3, 2])));
        assert!(refused(None, ty(f, &[4]), ty(i, &[3]), ty(i, &[3])));
        assert!(refused(None, ty(f, &[0, 2]), ty(i, &[0]), ty(f, &[0, 2])));
        assert!(refused(None, ty(f, &[]), ty(i, &[]), ty(f, &[])));
    }
}
