//! [`Binary`]: a function of two elements.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Term;
use types::{DType, Element, Shape, Tensor, broadcast, each_data, pointwise};

use super::common::{arity, broadcast_strides, for_each_index, one, position};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Applies a function to pairs of elements, with NumPy broadcasting.
///
/// `a: [..]`, `b: [..]` of one dtype -> the broadcast shape, same dtype. Refuses: two dtypes, shapes that do not
/// broadcast, arithmetic on `bool`, bitwise functions on floats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binary(pub pointwise::Binary);

/// The derivative of a power with a known exponent.
fn of_power(exponent: f32) -> Term {
    let affine = |scale| Term::Unary(pointwise::Unary::Affine { scale, shift: 0.0 }, Box::new(Term::A));
    let power = |exponent| Term::Binary(pointwise::Binary::Pow, Box::new([Term::A, Term::Number(exponent)]));
    let scaled = |term| Term::Unary(pointwise::Unary::Affine { scale: exponent, shift: 0.0 }, Box::new(term));
    match exponent {
        0.5 => Term::Binary(pointwise::Binary::Div, Box::new([Term::Number(0.5), Term::Y])),
        0.0 | 1.0 => Term::Number(exponent),
        2.0 => affine(2.0),
        _ => scaled(power(exponent - 1.0)),
    }
}

impl Operator for Binary {
    const NAME: &'static str = "binary";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        use pointwise::Binary as Function;
        arity(inputs, 2)?;
        let (a, b) = (inputs[0], inputs[1]);
        if a.dtype != b.dtype {
            refuse!("operands must have one dtype, got {} and {}", a.dtype, b.dtype);
        }
        let bitwise =
            matches!(self.0, Function::And | Function::Or | Function::Xor | Function::ShiftLeft | Function::ShiftRight);
        let logical = matches!(self.0, Function::And | Function::Or | Function::Xor);
        if (a.dtype.is_float() && bitwise) || (a.dtype == DType::Bool && !logical) {
            refuse!("`{}` must have operands of another dtype, got {}; cast them first", self.0.name(), a.dtype);
        }
        let shape = broadcast(&a.shape, &b.shape).map_err(|error| Refusal(error.to_string()))?;
        Ok(one(TensorType { dtype: a.dtype, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        fn zip<T: Element>(a: &[T], b: &Tensor, strides: [&[usize]; 2], shape: &Shape, f: pointwise::Binary) -> Tensor {
            let b: &[T] = b.as_slice().expect("infer refuses two dtypes");
            let mut out = Vec::with_capacity(shape.elements());
            for_each_index(shape, |index| {
                let (x, y) = (a[position(index, strides[0])], b[position(index, strides[1])]);
                out.push(match T::DTYPE.is_float() {
                    true => T::from_f64(f.eval(x.to_f64(), y.to_f64())),
                    false => T::from_i64(f.eval_i64(x.to_i64(), y.to_i64())),
                });
            });
            Tensor::new(shape.clone(), out).expect("one result an index")
        }
        let (a, b) = (inputs[0], inputs[1]);
        let shape = broadcast(a.shape(), b.shape()).expect("infer refuses shapes that do not broadcast");
        let (a_strides, b_strides) = (broadcast_strides(a.shape(), &shape), broadcast_strides(b.shape(), &shape));
        one(each_data!(a.data(), items => zip(items, b, [&a_strides, &b_strides], &shape, self.0)))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let (Some(dy), Some(terms)) = (outputs[0], self.0.derivatives()) else { return Ok(backward.none()) };
        let mut gradients = backward.none();
        if self.0 == pointwise::Binary::Mul && backward.operand(0) == backward.operand(1) {
            let product = backward.mul(dy, backward.operand(0))?;
            gradients[0] = Some(backward.scaled(product, 2.0)?);
            return Ok(gradients);
        }
        for (ix, term) in terms.into_iter().enumerate() {
            if backward.needs(ix) {
                let exponent = self.0 == pointwise::Binary::Pow && ix == 0;
                let known = exponent.then(|| backward.known(backward.operand(1))).flatten();
                let known =
                    known.filter(|exponent| exponent.elements() == 1).map(|exponent| exponent.to_f64()[0] as f32);
                let product = backward.times(dy, &known.map_or(term, of_power))?;
                gradients[ix] = Some(backward.sum_to(product, ix)?);
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
        Reuse::InPlace((0..2).filter(|&ix| inputs[ix] == output).collect())
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        outputs[0].shape.elements() as u64
    }
}
