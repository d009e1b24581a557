//! [`Chain`]: several elementwise functions in one step, without intermediate results in memory.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{DType, Shape, Tensor, broadcast};

use super::common::{
    broadcast_strides, for_each_index, from_f64, one, position, product, result_dtype, stored_numbers,
};
use crate::axes::{AxisChange, AxisMap};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// One function of a chain. Operands are numbered: first the inputs, then the steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainStep {
    /// A function of one operand.
    Unary(Unary, usize),
    /// A function of two operands.
    Binary(Binary, usize, usize),
    /// A constant.
    Constant(f32),
}

impl ChainStep {
    /// The same step of other operands.
    pub fn with_operands(self, mut operand: impl FnMut(usize) -> usize) -> ChainStep {
        match self {
            ChainStep::Unary(function, a) => ChainStep::Unary(function, operand(a)),
            ChainStep::Binary(function, a, b) => ChainStep::Binary(function, operand(a), operand(b)),
            ChainStep::Constant(number) => ChainStep::Constant(number),
        }
    }

    /// Whether it has an operand.
    pub fn reads(self, operand: usize) -> bool {
        match self {
            ChainStep::Unary(_, a) => a == operand,
            ChainStep::Binary(_, a, b) => a == operand || b == operand,
            ChainStep::Constant(_) => false,
        }
    }
}

/// Applies a short program to each element, with NumPy broadcasting of the inputs. The last step is the result.
///
/// `x_i: [..]` of `f32`, `f16`, `bf16`, `u8` or `i8` each -> the broadcast shape. Made by fusion, and from ONNX'
/// `QuantizeLinear` and `DequantizeLinear`. Refuses: no step, more than [`Chain::MAX_INPUTS`] inputs
/// or [`Chain::MAX_OPERANDS`] operands, a step that reads a later one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// The program. Intermediate results have at least the precision of `f32`.
    pub steps: Vec<ChainStep>,
    /// The dtype of the result if not `f32`: `f16`, `bf16`, `u8` or `i8`. Integers are rounded to nearest, ties to even, and
    /// saturate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<DType>,
}

impl Chain {
    /// The most inputs a chain takes.
    pub const MAX_INPUTS: usize = 8;
    /// The most operands, inputs and steps together, that a chain has.
    pub const MAX_OPERANDS: usize = 24;

    fn shape<'a>(mut shapes: impl Iterator<Item = &'a Shape>) -> Result<Shape, Refusal> {
        let first = shapes.next().cloned().unwrap_or_default();
        shapes.try_fold(first, |sum, shape| broadcast(&sum, shape)).map_err(|error| Refusal(error.to_string()))
    }
}

impl Operator for Chain {
    const NAME: &'static str = "chain";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        stored_numbers(inputs)?;
        let operands = inputs.len() + self.steps.len();
        if inputs.is_empty() || self.steps.is_empty() {
            refuse!("a chain must have an input and a step, got {} and {}", inputs.len(), self.steps.len());
        }
        if inputs.len() > Chain::MAX_INPUTS || operands > Chain::MAX_OPERANDS {
            refuse!(
                "a chain must have at most {} inputs and {} operands, got {} and {operands}; split it",
                Chain::MAX_INPUTS,
                Chain::MAX_OPERANDS,
                inputs.len()
            );
        }
        for (ix, step) in self.steps.iter().enumerate() {
            let known = inputs.len() + ix;
            let fits = match *step {
                ChainStep::Unary(_, a) => a < known,
                ChainStep::Binary(_, a, b) => a < known && b < known,
                ChainStep::Constant(_) => true,
            };
            if !fits {
                refuse!("step {ix} must read operands below {known}, got {step:?}");
            }
        }
        let shape = Chain::shape(inputs.iter().map(|ty| &ty.shape))?;
        Ok(one(TensorType { dtype: result_dtype(self.result)?, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let shape = Chain::shape(inputs.iter().map(|input| input.shape())).expect("infer refuses");
        let items: Vec<Vec<f64>> = inputs.iter().map(|input| input.to_f64()).collect();
        let strides: Vec<_> = inputs.iter().map(|input| broadcast_strides(input.shape(), &shape)).collect();
        let mut out = Vec::with_capacity(shape.elements());
        for_each_index(&shape, |index| {
            let mut operands: SmallVec<[f64; 24]> =
                items.iter().zip(&strides).map(|(items, strides)| items[position(index, strides)]).collect();
            for step in &self.steps {
                operands.push(match *step {
                    ChainStep::Unary(function, a) => function.eval(operands[a]),
                    ChainStep::Binary(function, a, b) => function.eval(operands[a], operands[b]),
                    ChainStep::Constant(value) => f64::from(value),
                });
            }
            out.push(operands[operands.len() - 1]);
        });
        one(from_f64(shape, self.result.unwrap_or(DType::F32), out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_fused()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::elementwise(inputs, output)
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        Some(self.clone().into())
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        Reuse::InPlace((0..inputs.len()).filter(|&ix| inputs[ix] == output).collect())
    }

    fn flops(&self, _inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        product([outputs[0].shape.elements(), self.steps.len()])
    }
}
