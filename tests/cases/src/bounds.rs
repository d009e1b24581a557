//! [`bounds`]: how far results of a graph of several products may be from its definition, by forward error analysis.
//!
//! Each value has a bound for every element. A node propagates the bounds of its operands and adds its own rounding:
//!
//! - A product of `a` and `b` with bounds `da` and `db` is off by at most `(|a| + da)(|b| + db)(1 + e) - |a||b|`, where `e` is the
//!   rounding of operands plus that of the sum. All products here are bilinear, so the operator itself adds up both parts.
//! - A stored value is off by at most the roundings of its two ends, because rounding is monotone. Half precision therefore adds
//!   nothing where no end reaches another number, and a whole step where one does.

use std::collections::BTreeMap;

use ir::ops::{Attention, Binary, ChainStep, Pad, PadMode};
use ir::{Graph, Node, Op, TensorType, ValueDef, ValueId};
use types::pointwise::{Binary as Function, Unary};
use types::{DType, Tensor};

use crate::forms::is_one_product;
use crate::judge::{Allowed, step};

/// The relative error of one addition in `f32`. Tensor cores truncate, so it is a whole step and not half of one.
const ADDITION: f64 = 1.0 / (1 << 23) as f64;

/// The arithmetic of products beyond `f32` sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// The relative error of a product of two operands by the rounding of both.
    pub operands: f64,
    /// Whether a library may compute products: it sums in its own order, or by Winograd's algorithm, and rounds to half
    /// precision before the epilogue.
    pub library: bool,
}

/// Whether a graph has several nodes, at least one product or weight gradient among them, and [`bounds`] applies to it.
pub fn is_chain(graph: &Graph) -> bool {
    let nodes = || graph.nodes().values();
    nodes().all(is_covered) && nodes().any(|node| is_product(&node.op)) && !is_one_product(graph)
}

/// Whether a graph has an attention and [`bounds`] applies to it.
pub fn has_attention(graph: &Graph) -> bool {
    let nodes = || graph.nodes().values();
    nodes().all(is_covered) && nodes().any(|node| matches!(node.op, Op::Attention(_)))
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvWeightGradient(_))
}

/// Whether an operator adds its operands, and the number of additions.
fn additions(op: &Op) -> Option<usize> {
    if let Op::Chain(chain) = op {
        let is_addition = |step: &ChainStep| matches!(step, ChainStep::Binary(Function::Add, ..));
        return chain.steps.iter().all(is_addition).then_some(chain.steps.len());
    }
    matches!(op, Op::Binary(Binary(Function::Add))).then_some(1)
}

/// Whether padding is exact, as is the padding of its bounds.
fn is_zeros(pad: &Pad) -> bool {
    matches!(pad.mode, PadMode::Constant(0.0))
}

fn is_covered(node: &Node) -> bool {
    let is_relu = |function: &Unary| *function == Unary::Relu;
    let op = &node.op;
    if let Op::Unary(function) = op {
        return matches!(function.0, Unary::Relu | Unary::Affine { .. });
    }
    if is_product(op) {
        let mut epilogues = op.epilogue().into_iter();
        return epilogues.all(|epilogue| !epilogue.scale && epilogue.activation.iter().all(is_relu));
    }
    if let Op::Pad(pad) = op {
        return is_zeros(pad);
    }
    if additions(op).is_some() {
        return true;
    }
    matches!(op, Op::Attention(_) | Op::Cast(_)) || is_move(op)
}

/// Whether every element of the result is one of the operands' elements, so that bounds move as values do.
fn is_move(op: &Op) -> bool {
    matches!(op, Op::Concat(_) | Op::Expand(_) | Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_))
}

/// The permitted difference of every output, or `None` if the graph has another operator than products, attention, sums, moves, casts,
/// `relu` and affine functions, or values that are not floats.
pub fn bounds(graph: &Graph, given: &[Tensor], arithmetic: Arithmetic) -> Option<Vec<Allowed>> {
    let is_float = graph.values().values().all(|value| value.ty.dtype.is_float());
    if !is_float || !graph.nodes().values().all(is_covered) {
        return None;
    }
    let mut values: BTreeMap<ValueId, Bounded> = BTreeMap::new();
    for (&id, tensor) in graph.inputs().iter().zip(given) {
        values.insert(id, Bounded::exact(tensor.clone()));
    }
    for (id, value) in graph.values().iter() {
        if let ValueDef::Weight(tensor) | ValueDef::Constant(tensor) = &value.source {
            values.insert(id, Bounded::exact((**tensor).clone()));
        }
    }
    for node in graph.nodes().values() {
        let operands: Vec<&Bounded> = node.inputs.iter().map(|input| &values[input]).collect();
        let result = of_node(&node.op, &operands, arithmetic);
        values.insert(node.outputs[0], result);
    }
    let of_output = |output: &ir::Output| Allowed::Each(values[&output.value].bound.clone());
    Some(graph.outputs().iter().map(of_output).collect())
}

/// A value by its definition, with the largest difference of each element.
struct Bounded {
    value: Tensor,
    bound: Vec<f64>,
}

impl Bounded {
    fn exact(value: Tensor) -> Bounded {
        Bounded { bound: vec![0.0; value.elements()], value }
    }

    /// The stored value, from the unrounded one and its bound.
    fn stored(value: Tensor, unrounded: &[f64], bound: Vec<f64>) -> Bounded {
        if !value.dtype().is_half() {
            return Bounded { value, bound };
        }
        let end = |sign: f64| {
            let ends = unrounded.iter().zip(&bound).map(|(item, bound)| item + sign * bound).collect();
            Tensor::vector::<f64>(ends).cast(value.dtype()).to_f64()
        };
        let (low, high, middle) = (end(-1.0), end(1.0), value.to_f64());
        let ends = low.iter().zip(&high).zip(&middle);
        let bound = ends.map(|((low, high), middle)| (middle - low).abs().max((high - middle).abs())).collect();
        Bounded { value, bound }
    }

    /// The bounds as a tensor of the value's shape.
    fn bounds(&self) -> Tensor {
        Tensor::from_fn(self.value.shape().clone(), |ix| self.bound[ix] as f32)
    }

    /// The largest magnitude of each element, or its own.
    fn sizes(&self, with_bound: bool) -> Tensor {
        let items = self.value.to_f64();
        let own = |ix: usize| items[ix].abs() + if with_bound { self.bound[ix] } else { 0.0 };
        Tensor::from_fn(self.value.shape().clone(), |ix| own(ix) as f32)
    }
}

fn of_node(op: &Op, operands: &[&Bounded], arithmetic: Arithmetic) -> Bounded {
    let own: Vec<&Tensor> = operands.iter().map(|operand| &operand.value).collect();
    let value = op.eval(&own).swap_remove(0);
    let first = operands[0];
    if is_product(op) {
        return of_product(op, operands, value, arithmetic);
    }
    if let Op::Attention(attention) = op {
        return of_attention(op, attention, operands, value, arithmetic);
    }
    if let Op::Unary(function) = op {
        let Unary::Affine { scale, shift } = function.0 else {
            // A maximum moves no further than its operand.
            return Bounded { value, bound: first.bound.clone() };
        };
        let (scale, shift) = (f64::from(scale), f64::from(shift));
        let items = first.value.to_f64();
        let unrounded: Vec<f64> = items.iter().map(|item| scale * item + shift).collect();
        let bound = items
            .iter()
            .zip(&first.bound)
            .map(|(item, bound)| scale.abs() * bound + ADDITION * (scale.abs() * (item.abs() + bound) + shift.abs()));
        return Bounded::stored(value, &unrounded, bound.collect());
    }
    if let Some(additions) = additions(op) {
        let sizes: Vec<Tensor> = operands.iter().map(|operand| operand.sizes(true)).collect();
        let bounds: Vec<Tensor> = operands.iter().map(|operand| operand.bounds()).collect();
        let mut sum = op.clone();
        if let Op::Chain(chain) = &mut sum {
            chain.result = None;
        }
        let evaluate = |operands: &[Tensor]| sum.eval(&operands.iter().collect::<Vec<_>>()).swap_remove(0).to_f64();
        let wide: Vec<Tensor> = own.iter().map(|operand| operand.cast(DType::F32)).collect();
        let error = additions as f64 * ADDITION;
        let bound = evaluate(&bounds).into_iter().zip(evaluate(&sizes)).map(|(bound, most)| bound + error * most);
        return Bounded::stored(value, &evaluate(&wide), bound.collect());
    }
    if matches!(op, Op::Cast(_)) {
        return Bounded::stored(value, &first.value.to_f64(), first.bound.clone());
    }
    let bounds: Vec<Tensor> = operands.iter().map(|operand| operand.bounds()).collect();
    let bound = op.eval(&bounds.iter().collect::<Vec<_>>()).swap_remove(0).to_f64();
    Bounded { value, bound }
}

/// Attention of exact operands. A score is off by the rounding of its operands; its weight by twice that, because the sum of
/// weights moves too, and by its own rounding to the operands' precision.
fn of_attention(
    op: &Op,
    attention: &Attention,
    operands: &[&Bounded],
    value: Tensor,
    arithmetic: Arithmetic,
) -> Bounded {
    let [queries, keys, values] = [0, 1, 2].map(|ix| operands[ix]);
    let width = queries.value.shape().last().copied().unwrap_or(1).max(1);
    let largest = |items: &[f64]| items.iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
    let sums = queries.value.to_f64();
    let row = sums.chunks(width).map(|row| row.iter().map(|item| item.abs()).sum::<f64>()).fold(0.0, f64::max);
    let score = f64::from(attention.scale.abs()) * row * largest(&keys.value.to_f64());
    let weight = match values.value.dtype() {
        half if half.is_half() => step(half) / 2.0,
        _ => arithmetic.operands,
    };
    // The exponential's own error, and that of the sums over width and keys.
    let terms = (width + keys.value.elements() / width) as f64;
    let error = 2.0 * score * (arithmetic.operands + width as f64 * ADDITION) + weight + (terms + 16.0) * ADDITION;
    let evaluate = |values: Tensor| {
        let mut all: Vec<Tensor> = operands.iter().map(|operand| operand.value.cast(DType::F32)).collect();
        all[2] = values;
        op.eval(&all.iter().collect::<Vec<_>>()).swap_remove(0).to_f64()
    };
    let unrounded = evaluate(values.value.cast(DType::F32));
    let bound = evaluate(values.sizes(false)).into_iter().map(|most| error * most).collect();
    Bounded::stored(value, &unrounded, bound)
}

fn of_product(op: &Op, operands: &[&Bounded], value: Tensor, arithmetic: Arithmetic) -> Bounded {
    let mut sums = op.clone();
    let has_relu = op.epilogue().is_some_and(|epilogue| !epilogue.activation.is_empty());
    if let Some(epilogue) = sums.epilogue_mut() {
        epilogue.activation.clear();
        epilogue.result = None;
    }
    let evaluate = |operands: Vec<Tensor>| {
        let operands: Vec<&Tensor> = operands.iter().collect();
        sums.eval(&operands).swap_remove(0).to_f64()
    };
    let unrounded = evaluate(operands.iter().map(|operand| operand.value.cast(DType::F32)).collect());
    let sizes = evaluate(operands.iter().map(|operand| operand.sizes(false)).collect());
    let most = evaluate(operands.iter().map(|operand| operand.sizes(true)).collect());

    let types: Vec<TensorType> = operands.iter().map(|operand| TensorType::of(&operand.value)).collect();
    let types: Vec<&TensorType> = types.iter().collect();
    let terms = op.flops(&types, &[&TensorType::of(&value)]) as f64 / 2.0 / value.elements().max(1) as f64;
    // The evaluator rounds its two sums to `f32`, which is the last part.
    let mut error = arithmetic.operands + terms * ADDITION + 4.0 * ADDITION;
    if arithmetic.library {
        error += 2e-5;
        if value.dtype().is_half() {
            error += step(value.dtype()) / 2.0;
        }
    }
    let bound = most.iter().zip(&sizes).map(|(most, size)| (1.0 + error) * most - size).collect();
    let finished = |item: f64| if has_relu { item.max(0.0) } else { item };
    let unrounded: Vec<f64> = unrounded.into_iter().map(finished).collect();
    Bounded::stored(value, &unrounded, bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forms::{round_to_tf32, to_half_precision};
    use crate::judge::{ELEVEN_BITS, Verdict, inputs, small_integers};

    const STRICT: Arithmetic = Arithmetic { operands: 0.0, library: false };

    fn chains() -> Vec<crate::Case> {
        let chains: Vec<_> = crate::all().into_iter().filter(|case| is_chain(&case.graph)).collect();
        assert!(30 < chains.len(), "{}", chains.len());
        chains
    }

    /// The values of a graph whose products read operands through `operand`.
    fn values(graph: &Graph, given: &[Tensor], operand: impl Fn(&Tensor) -> Tensor) -> BTreeMap<ValueId, Tensor> {
        let mut values: BTreeMap<ValueId, Tensor> = graph.inputs().iter().copied().zip(given.iter().cloned()).collect();
        for (id, value) in graph.values().iter() {
            if let ValueDef::Weight(tensor) | ValueDef::Constant(tensor) = &value.source {
                values.insert(id, (**tensor).clone());
            }
        }
        for node in graph.nodes().values() {
            let of = |id: &ValueId| if is_product(&node.op) { operand(&values[id]) } else { values[id].clone() };
            let operands: Vec<Tensor> = node.inputs.iter().map(of).collect();
            let operands: Vec<&Tensor> = operands.iter().collect();
            let value = node.op.eval(&operands).swap_remove(0);
            values.insert(node.outputs[0], value);
        }
        values
    }

    /// Also between the nodes.
    #[test]
    fn small_integers_are_exact_in_every_precision() {
        for case in chains() {
            let is_known = |source: &ValueDef| matches!(source, ValueDef::Weight(_) | ValueDef::Constant(_));
            if case.graph.values().values().any(|value| is_known(&value.source)) {
                continue;
            }
            let given = small_integers(&case.graph, 3);
            for (id, value) in values(&case.graph, &given, Tensor::clone) {
                let rounded = value.cast(DType::Bf16).cast(DType::F32);
                let is_output = case.graph.outputs().iter().any(|output| output.value == id);
                assert!(is_output || rounded.to_f64() == value.to_f64(), "{}", case.name);
            }
        }
    }

    /// Evaluation with rounded operands stays within the bound, and uses a good part of it.
    #[test]
    fn rounded_operands_are_within_the_bound() {
        let mut used = 0.0f64;
        for case in chains() {
            let given = inputs(&case.graph, 3);
            let rounded = |tensor: &Tensor| {
                let items = tensor.to_f64();
                Tensor::from_fn(tensor.shape().clone(), |ix| round_to_tf32(items[ix]) as f32)
            };
            let values = values(&case.graph, &given, rounded);
            let want = ir::evaluate(&case.graph, &given).expect("the graph verifies");
            let tf32 = Arithmetic { operands: ELEVEN_BITS, library: false };
            let allowed = bounds(&case.graph, &given, tf32).expect("it is a chain");
            for (ix, output) in case.graph.outputs().iter().enumerate() {
                let verdict = |allowed| Verdict::of(&values[&output.value], &want[ix], allowed).expect("types agree");
                assert_eq!(verdict(&allowed[ix]).first, None, "{}", case.name);
                used = used.max(verdict(&allowed[ix]).part);
            }
        }
        assert!(0.1 < used, "{used}");
    }

    /// A stored value moves by whole steps, and only where its sum is near a midpoint.
    #[test]
    fn half_precision_adds_a_step_near_midpoints() {
        let value = Tensor::vector(vec![1.0f32, 1.0]).cast(DType::F16);
        let bounded = Bounded::stored(value, &[1.0 + 0.49 * ELEVEN_BITS, 1.0], vec![0.02 * ELEVEN_BITS; 2]);
        assert_eq!(bounded.bound, [ELEVEN_BITS, 0.0]);
    }

    /// Wrong factors, one of seventeen, are noticed in half precision, where bounds are widest.
    #[test]
    fn wrong_factors_exceed_the_bound() {
        for case in chains() {
            let Some(graph) = to_half_precision(&case.graph, DType::F16) else { continue };
            let given = inputs(&graph, 3);
            if given.len() == 1 {
                continue;
            }
            let want = ir::evaluate(&graph, &given).expect("the graph verifies");
            let mut others = given.clone();
            let items = given[1].to_f64();
            let other = |ix: usize| if ix.is_multiple_of(17) { -items[ix].signum() } else { items[ix] };
            others[1] = Tensor::from_fn(given[1].shape().clone(), |ix| other(ix) as f32).cast(DType::F16);
            let got = ir::evaluate(&graph, &others).expect("the graph verifies");
            let allowed = bounds(&graph, &given, STRICT).expect("it is a chain");
            let wrong: usize = (0..got.len())
                .map(|ix| Verdict::of(&got[ix], &want[ix], &allowed[ix]).expect("types agree").wrong)
                .sum();
            assert!(0 < wrong, "{}", case.name);
        }
    }
}
