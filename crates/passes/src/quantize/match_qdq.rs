//! [`match_qdq`]: the nodes that exporters write to quantize and dequantize become chains.

use ir::ops::{Binary, Cast, Chain, ChainStep, Unary};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::DType;
use types::pointwise::{Binary as Function2, Unary as Function};

use super::dequantized::Dequantized;
use super::is_byte;
use crate::uses::Uses;

/// Matches `(q - zero) * scale` and `clip(round(x / scale) + zero)` and replaces each by a chain. Reshapes, transposes and
/// slices of dequantized values move to the int8 values.
pub fn match_qdq(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if matches!(node.op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_)) {
            return moved_as_bytes(context, node);
        }
        let (operands, chain) = from_bytes(&uses, node).or_else(|| to_bytes(&uses, node))?;
        let operands: SmallVec<[ValueId; 4]> = operands.into_iter().map(|old| context.value(old)).collect();
        Some(smallvec![context.add(chain, &operands, &node.scope).ok()?])
    })
}

/// A chain under construction. A scalar constant is a step, any other tensor an operand.
struct Steps<'a> {
    uses: &'a Uses<'a>,
    operands: SmallVec<[ValueId; 3]>,
    steps: Vec<ChainStep>,
}

impl Steps<'_> {
    /// Applies a function to the current result and a constant tensor.
    fn push(&mut self, function: Function2, known: ValueId, operands: usize) {
        let result = match self.steps.len() {
            0 => 0,
            count => operands + count - 1,
        };
        let other = match self.uses.scalar_constant(known) {
            Some(number) => {
                self.steps.push(ChainStep::Constant(number));
                operands + self.steps.len() - 1
            }
            None => {
                self.operands.push(known);
                self.operands.len() - 1
            }
        };
        self.steps.push(ChainStep::Binary(function, result, other));
    }
}

/// `(q - zero) * scale` with a constant scale and zero point.
fn from_bytes(uses: &Uses, node: &Node) -> Option<(SmallVec<[ValueId; 3]>, Chain)> {
    let graph = uses.graph;
    let Op::Binary(Binary(Function2::Mul)) = node.op else { return None };
    let scale = node.inputs[1];
    uses.constant(scale)?;
    let widened = |value: ValueId| {
        let (_, cast) = uses.producer(value)?;
        let is_cast = cast.op == Op::Cast(Cast { to: DType::F32 }) && is_byte(graph.ty(cast.inputs[0]).dtype);
        is_cast.then_some(cast.inputs[0])
    };
    let (q, zero) = match uses.operands(node.inputs[0], Function2::Sub) {
        Some([x, zero]) if uses.constant(zero).is_some() => (widened(x)?, Some(zero)),
        _ => (widened(node.inputs[0])?, None),
    };
    if graph.ty(node.outputs[0]).shape != graph.ty(q).shape {
        return None;
    }
    let tensors =
        [zero, Some(scale)].into_iter().flatten().filter(|&known| uses.scalar_constant(known).is_none()).count();
    let mut chain = Steps { uses, operands: smallvec![q], steps: Vec::new() };
    if let Some(zero) = zero {
        chain.push(Function2::Sub, zero, 1 + tensors);
    }
    chain.push(Function2::Mul, scale, 1 + tensors);
    Some((chain.operands, Chain { steps: chain.steps, result: None }))
}

/// `clip(round(x / scale) + zero)` to the range of the int8 result.
fn to_bytes(uses: &Uses, node: &Node) -> Option<(SmallVec<[ValueId; 3]>, Chain)> {
    let graph = uses.graph;
    let Op::Cast(Cast { to }) = node.op else { return None };
    let limits = match to {
        DType::U8 => Function::Clip { min: 0.0, max: 255.0 },
        DType::I8 => Function::Clip { min: -128.0, max: 127.0 },
        _ => return None,
    };
    // Constant, or a dynamic scalar.
    let steady = |value: ValueId| uses.constant(value).is_some() || graph.ty(value).shape.elements() == 1;
    let held = uses.argument(node.inputs[0], limits)?;
    let (rounded, zero) = match uses.operands(held, Function2::Add) {
        Some([rounded, zero]) if steady(zero) && is_whole(uses, zero) => (rounded, Some(zero)),
        _ => (held, None),
    };
    let [x, scale] = uses.operands(uses.argument(rounded, Function::Round)?, Function2::Div)?;
    if !steady(scale) || graph.ty(x).dtype != DType::F32 || graph.ty(x).shape != graph.ty(node.outputs[0]).shape {
        return None;
    }
    let tensors =
        [zero, Some(scale)].into_iter().flatten().filter(|&known| uses.scalar_constant(known).is_none()).count();
    let mut chain = Steps { uses, operands: smallvec![x], steps: Vec::new() };
    chain.push(Function2::Div, scale, 1 + tensors);
    let divided = tensors + chain.steps.len();
    chain.steps.push(ChainStep::Unary(Function::Round, divided));
    if let Some(zero) = zero {
        chain.push(Function2::Add, zero, 1 + tensors);
    }
    Some((chain.operands, Chain { steps: chain.steps, result: Some(graph.ty(node.outputs[0]).dtype) }))
}

/// Whether all elements of a value are integers: constants, rounded values, or casts of integers.
fn is_whole(uses: &Uses, value: ValueId) -> bool {
    if let Some(tensor) = uses.constant(value) {
        return tensor.to_f64().iter().all(|number| number.fract() == 0.0);
    }
    uses.producer(value).is_some_and(|(_, node)| {
        let was_integer = || !uses.graph.ty(node.inputs[0]).dtype.is_float();
        node.op == Op::Unary(Unary(Function::Round)) || (matches!(node.op, Op::Cast(_)) && was_integer())
    })
}

/// A node that moves dequantized values with a scalar scale: it moves the int8 values, and the chain dequantizes the result.
pub(super) fn moved_as_bytes(context: &mut Rewrite, node: &Node) -> Option<SmallVec<[ValueId; 1]>> {
    let x = context.value(node.inputs[0]);
    let source = context.new.value(x).producer()?;
    let numbers = Dequantized::of(&context.new, source)?;
    let (_, scale) = numbers.scalars()?;
    // Positive scales keep the order, so a maximum of int8 values is that of the floats.
    if scale.is_nan() || scale <= 0.0 || context.new.value(numbers.q).tensor().is_some() {
        return None;
    }
    let chain = context.new.node(source).op.clone();
    let scope = context.new.node(source).scope.clone();
    let q = context.add(node.op.clone(), &[numbers.q], &node.scope).ok()?;
    Some(smallvec![context.add(chain, &[q], &scope.child("moved")).ok()?])
}
