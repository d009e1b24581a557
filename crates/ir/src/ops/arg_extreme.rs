//! [`ArgExtreme`]: argmax and argmin.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use super::common::{arity, axis_in, f32_only, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The index of the largest (or smallest) element along `axis`.
///
/// `x: [..]` of `f32` -> `i64` with the axis removed, or as 1 with `keep`. Among equals the first, or with `last` the
/// last. Refuses an empty axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgExtreme {
    /// The axis searched.
    pub axis: usize,
    /// Whether the axis stays as an extent of 1.
    pub keep: bool,
    /// The largest if true, the smallest if false.
    pub max: bool,
    /// The last among equals if true.
    pub last: bool,
}

impl Operator for ArgExtreme {
    const NAME: &'static str = "arg_extreme";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        f32_only(inputs)?;
        let mut shape = inputs[0].shape.clone();
        axis_in(self.axis, &shape)?;
        if shape[self.axis] == 0 {
            refuse!("axis {} must not be empty, got shape {shape}", self.axis);
        }
        if self.keep {
            shape[self.axis] = 1;
        } else {
            shape.remove(self.axis);
        }
        Ok(one(TensorType { dtype: DType::I64, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let items = x.to_f64();
        let (extent, inner) = (x.shape()[self.axis], x.shape()[self.axis + 1..].iter().product::<usize>());
        let best = |lane: usize| {
            let at = |i: usize| items[lane / inner * inner * extent + lane % inner + i * inner];
            let mut best = 0;
            for i in 1..extent {
                let better = if self.max { at(i) > at(best) } else { at(i) < at(best) };
                if better || (self.last && at(i) == at(best)) {
                    best = i;
                }
            }
            best as f64
        };
        let mut shape: Shape = x.shape().clone();
        if self.keep {
            shape[self.axis] = 1;
        } else {
            shape.remove(self.axis);
        }
        let out = (0..items.len() / extent).map(best).collect();
        one(from_f64(shape, DType::I64, out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        // An index does not change with a small change of the operand.
        Ok(backward.none())
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::unary(Work::Arithmetic, output, |axis| match axis.cmp(&self.axis) {
            Ordering::Less => Along::Same(axis),
            Ordering::Equal if self.keep => Along::Whole,
            Ordering::Greater if self.keep => Along::Same(axis),
            Ordering::Equal | Ordering::Greater => Along::Same(axis + 1),
        })
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}
