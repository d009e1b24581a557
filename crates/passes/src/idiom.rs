//! [`find_idioms`]: functions that exporters spell out in several nodes get their names back.

use ir::ops::{Binary, Unary};
use ir::{Graph, Op, ValueId, rewrite};
use smallvec::smallvec;
use types::pointwise::{Binary as Function2, Unary as Function};

use crate::common::Uses;

/// Finds hard sigmoid (`clip(x + 3, 0, 6) / 6`), hard swish (`x` times that, the division before or behind the product)
/// and SiLU (`x sigmoid(x)`). What they were spelled with is left to `remove_dead`.
pub fn find_idioms(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let (x, function) = find(&uses, graph.node(id).outputs[0])?;
        let x = context.value(x);
        Some(smallvec![context.add(Unary(function), &[x], &graph.node(id).scope).ok()?])
    })
}

const HARD_SIGMOID: Function = Function::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 };

/// The argument and the name of a function that `value` is, if its nodes spell one.
fn find(uses: &Uses, value: ValueId) -> Option<(ValueId, Function)> {
    let (_, node) = uses.producer(value)?;
    let Op::Binary(Binary(function)) = node.op else { return None };
    if let Some(scaled) = by_sixth(uses, value) {
        if let Some(x) = shifted_clip(uses, scaled) {
            return Some((x, HARD_SIGMOID));
        }
        // x * clip(x + 3, 0, 6), divided as a whole.
        let (_, product) = uses.producer(scaled)?;
        if let Op::Binary(Binary(Function2::Mul)) = product.op {
            return gated(&product.inputs, |gate| shifted_clip(uses, gate)).map(|x| (x, Function::HardSwish));
        }
        return None;
    }
    if function != Function2::Mul {
        return None;
    }
    let hard_sigmoid = |gate| {
        let spelled = find(uses, gate).filter(|found| found.1 == HARD_SIGMOID).map(|found| found.0);
        spelled.or_else(|| argument_of(uses, gate, |function| function == HARD_SIGMOID))
    };
    let sigmoid = |gate| argument_of(uses, gate, |function| function == Function::Sigmoid);
    gated(&node.inputs, hard_sigmoid)
        .map(|x| (x, Function::HardSwish))
        .or_else(|| gated(&node.inputs, sigmoid).map(|x| (x, Function::Silu)))
}

/// `x` of a product whose factors are `x` and a gate of `x`, in either order.
fn gated(factors: &[ValueId], gate: impl Fn(ValueId) -> Option<ValueId>) -> Option<ValueId> {
    let [a, b] = *factors else { return None };
    if gate(a) == Some(b) {
        return Some(b);
    }
    (gate(b) == Some(a)).then_some(a)
}

/// `x` of `f(x)` where `f` is the function asked for.
fn argument_of(uses: &Uses, value: ValueId, is_it: impl Fn(Function) -> bool) -> Option<ValueId> {
    let (_, node) = uses.producer(value)?;
    match node.op {
        Op::Unary(Unary(function)) if is_it(function) => Some(node.inputs[0]),
        _ => None,
    }
}

/// `x` of `x / 6` or `x * (1 / 6)`.
fn by_sixth(uses: &Uses, value: ValueId) -> Option<ValueId> {
    let (_, node) = uses.producer(value)?;
    let Op::Binary(Binary(function)) = node.op else { return None };
    let same_shape = |x: ValueId| uses.graph.ty(x) == uses.graph.ty(value);
    let near = |number: Option<f32>, want: f32| number.is_some_and(|number| (number - want).abs() < 1e-6);
    let (a, b) = (node.inputs[0], node.inputs[1]);
    let found = match function {
        Function2::Div if near(uses.known_number(b), 6.0) => a,
        Function2::Mul if near(uses.known_number(b), 1.0 / 6.0) => a,
        Function2::Mul if near(uses.known_number(a), 1.0 / 6.0) => b,
        _ => return None,
    };
    same_shape(found).then_some(found)
}

/// `x` of `clip(x + 3, 0, 6)`.
fn shifted_clip(uses: &Uses, value: ValueId) -> Option<ValueId> {
    let sum = argument_of(uses, value, |function| function == Function::Clip { min: 0.0, max: 6.0 })?;
    let (_, node) = uses.producer(sum)?;
    let Op::Binary(Binary(Function2::Add)) = node.op else { return None };
    let (a, b) = (node.inputs[0], node.inputs[1]);
    let x = match (uses.known_number(a), uses.known_number(b)) {
        (_, Some(3.0)) => a,
        (Some(3.0), _) => b,
        _ => return None,
    };
    (uses.graph.ty(x) == uses.graph.ty(sum)).then_some(x)
}
