//! [`match_attention`]: two products, a softmax and transposes, as exporters write them, become one operator.

use ir::ops::{Attention, Binary, MatMul, Reshape, Softmax, Transpose};
use ir::{Graph, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;
use types::{HeadOrder, Shape};

use crate::uses::Uses;

/// Matches `softmax(q k' * scale + mask) v` of rank 3 or 4 if nothing else reads the scores.
///
/// Transposes that only exchange heads and tokens, the transpose of the keys, and scalar factors of queries and keys become
/// part of the operator. Unread nodes are left to `dce`.
pub fn match_attention(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| Some(smallvec![emit(context, &find(&uses, id)?, id)?]))
}

/// An attention and its operands.
struct Found {
    op: Attention,
    /// Queries, keys and values.
    operands: [ValueId; 3],
    mask: Option<ValueId>,
}

/// An operand in an order of [`HeadOrder`], and its scalar factor.
struct Operand {
    value: ValueId,
    order: HeadOrder,
    scale: f32,
}

/// The meaning of an axis.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Batch,
    Head,
    Token,
    Width,
}

/// The dimensions of a product's factors, and of its result.
const HEADS_FIRST: [Axis; 4] = [Axis::Batch, Axis::Head, Axis::Token, Axis::Width];
const TOKENS_FIRST: [Axis; 4] = [Axis::Batch, Axis::Token, Axis::Head, Axis::Width];
/// Those of the transposed keys.
const TRANSPOSED_KEYS: [Axis; 4] = [Axis::Batch, Axis::Head, Axis::Width, Axis::Token];

/// The attention whose result a node yields.
fn find(uses: &Uses, id: NodeId) -> Option<Found> {
    let graph = uses.graph;
    let node = graph.node(id);
    let (product, result) = if let Op::Transpose(Transpose { order }) = &node.op
        && order[..] == [0, 2, 1, 3]
    {
        uses.only_reader(node.inputs[0])?;
        (uses.producer(node.inputs[0])?.1, HeadOrder::TokensFirst)
    } else {
        (node, HeadOrder::HeadsFirst)
    };
    let weights = *factors(&product.op, &product.inputs)?.first()?;
    let values = product.inputs[1];
    let rank = graph.ty(values).shape.rank();
    let (_, softmax) = uses.producer(weights)?;
    if !(3..=4).contains(&rank) || !matches!(softmax.op, Op::Softmax(Softmax { axis, log: false }) if axis + 1 == rank)
    {
        return None;
    }
    uses.only_reader(weights)?;
    let (scores, mask) = masked(uses, softmax.inputs[0])?;
    let (scores, scale) = scaled(uses, scores)?;
    uses.only_reader(scores)?;
    let (_, first) = uses.producer(scores)?;
    let [q, k] = factors(&first.op, &first.inputs)?;
    let [q, k, v] =
        [source(uses, q, HEADS_FIRST)?, source(uses, k, TRANSPOSED_KEYS)?, source(uses, values, HEADS_FIRST)?];
    if v.scale != 1.0 {
        return None;
    }
    let scale = scale * q.scale * k.scale;
    let op = Attention { scale, order: [q.order, k.order, v.order], result, mask: mask.is_some() };
    Some(Found { op, operands: [q.value, k.value, v.value], mask })
}

/// The factors of a product and nothing else.
fn factors(op: &Op, inputs: &[ValueId]) -> Option<[ValueId; 2]> {
    if *op == Op::from(MatMul::default()) { inputs.try_into().ok() } else { None }
}

/// The scores and the mask of a sum of both; of the two operands, the scores are the matrix product.
fn masked(uses: &Uses, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let (_, node) = uses.producer(value)?;
    let Op::Binary(Binary(Function::Add)) = node.op else { return Some((value, None)) };
    uses.only_reader(value)?;
    let are_scores = |&scores: &ValueId| {
        let product = scaled(uses, scores).and_then(|(product, _)| uses.producer(product));
        uses.graph.ty(scores) == uses.graph.ty(value)
            && product.is_some_and(|(_, node)| factors(&node.op, &node.inputs).is_some())
    };
    let scores = *node.inputs.iter().find(|input| are_scores(input))?;
    let mask = node.inputs[usize::from(node.inputs[0] == scores)];
    (mask != scores).then_some((scores, Some(mask)))
}

/// The value below scalar factors, whose nodes nothing else reads, and the product of the factors.
fn scaled(uses: &Uses, mut value: ValueId) -> Option<(ValueId, f32)> {
    let mut scale = 1.0;
    while let Some((inner, factor)) = uses.scaled_by_constant(value) {
        uses.only_reader(value)?;
        (value, scale) = (inner, scale * factor);
    }
    Some((value, scale))
}

/// Follows transposes and factors backwards to the first value in an order of [`HeadOrder`].
fn source(uses: &Uses, value: ValueId, axes: [Axis; 4]) -> Option<Operand> {
    let mut axes: SmallVec<[Axis; 4]> = axes.into_iter().collect();
    if uses.graph.ty(value).shape.rank() == 3 {
        axes.retain(|axis| *axis != Axis::Head);
    }
    let (mut value, mut scale) = (value, 1.0);
    let mut found = None;
    loop {
        let order = match axes.len() {
            3 if axes[..] == [Axis::Batch, Axis::Token, Axis::Width] => Some(HeadOrder::HeadsFirst),
            4 if axes[..] == HEADS_FIRST => Some(HeadOrder::HeadsFirst),
            4 if axes[..] == TOKENS_FIRST => Some(HeadOrder::TokensFirst),
            _ => None,
        };
        found = order.map(|order| Operand { value, order, scale }).or(found);
        let Some((_, node)) = uses.producer(value) else { return found };
        if let Some((inner, factor)) = uses.scaled_by_constant(value) {
            (value, scale) = (inner, scale * factor);
        } else if let Op::Transpose(Transpose { order }) = &node.op {
            let mut before = axes.clone();
            order.iter().zip(&axes).for_each(|(&axis, &what)| before[axis] = what);
            (value, axes) = (node.inputs[0], before);
        } else {
            return found;
        }
    }
}

/// Adds the op. Three dimensions are four with one head.
fn emit(context: &mut Rewrite, found: &Found, id: NodeId) -> Option<ValueId> {
    let graph = context.old;
    let node = graph.node(id);
    let mut inputs: SmallVec<[ValueId; 4]> = SmallVec::new();
    for &operand in found.operands.iter().chain(&found.mask) {
        let shape = &graph.ty(operand).shape;
        let mut input = context.value(operand);
        if shape.rank() == 3 && graph.ty(node.outputs[0]).shape.rank() == 3 {
            let shape = Shape::from([shape[0], 1, shape[1], shape[2]]);
            input = context.add(Reshape { shape }, &[input], &node.scope).ok()?;
        }
        inputs.push(input);
    }
    let result = context.add(found.op.clone(), &inputs, &node.scope).ok()?;
    let want = &graph.ty(node.outputs[0]).shape;
    if context.new.ty(result).shape == *want {
        return Some(result);
    }
    context.add(Reshape { shape: want.clone() }, &[result], &node.scope).ok()
}

#[cfg(test)]
mod tests {
    use ir::evaluate;
    use types::{DType, Random, Scope, Tensor};

    use super::*;
    use ir::ops::Unary;

    /// `softmax(q k' * scale + mask) v` as exporters write it, from `[batch, tokens, heads * width]`.
    fn spelled(mask: Option<&[usize]>, also_scores: bool) -> Graph {
        let mut graph = Graph::new("attention");
        let (batch, tokens, heads, width) = (2, 5, 3, 4);
        let add = |graph: &mut Graph, op: Op, inputs: &[ValueId]| {
            graph.add1(op, inputs, Scope::new("node")).expect("it is accepted")
        };
        let operand = |graph: &mut Graph, name: &str| {
            graph.add_input(name, DType::F32, Shape::from([batch, tokens, heads * width]))
        };
        let split = |graph: &mut Graph, x: ValueId, order: [usize; 4]| {
            let shape = Shape::from([batch, tokens, heads, width]);
            let x = graph.add1(Reshape { shape }.into(), &[x], Scope::new("split")).unwrap();
            let order = order.into_iter().collect();
            graph.add1(Transpose { order }.into(), &[x], Scope::new("turn")).unwrap()
        };
        let (q, k, v) = (operand(&mut graph, "q"), operand(&mut graph, "k"), operand(&mut graph, "v"));
        let q = split(&mut graph, q, [0, 2, 1, 3]);
        let k = split(&mut graph, k, [0, 2, 3, 1]);
        let v = split(&mut graph, v, [0, 2, 1, 3]);
        let root = graph.add_constant("root", Tensor::scalar(2.0f32));
        let mut scores = add(&mut graph, MatMul::default().into(), &[q, k]);
        scores = add(&mut graph, Binary(Function::Div).into(), &[scores, root]);
        let unmasked = scores;
        if let Some(shape) = mask {
            let mask = graph.add_input("mask", DType::F32, Shape::from(shape));
            scores = add(&mut graph, Binary(Function::Add).into(), &[mask, scores]);
        }
        let weights = add(&mut graph, Softmax { axis: 3, log: false }.into(), &[scores]);
        let y = add(&mut graph, MatMul::default().into(), &[weights, v]);
        let y = add(&mut graph, Transpose { order: smallvec![0, 2, 1, 3] }.into(), &[y]);
        let shape = Shape::from([batch, tokens, heads * width]);
        let y = add(&mut graph, Reshape { shape }.into(), &[y]);
        let mut outputs = vec![("y".to_owned(), y)];
        if also_scores {
            let scores = add(&mut graph, Unary(types::pointwise::Unary::Abs).into(), &[unmasked]);
            outputs.push(("scores".to_owned(), scores));
        }
        graph.set_outputs(outputs);
        graph
    }

    /// The ops after the pass, which must keep the results.
    fn ops(graph: &Graph) -> Vec<&'static str> {
        let found = crate::dce(&match_attention(graph));
        ir::verify(&found).expect("it is a graph");
        let mut random = Random::new(5);
        let inputs: Vec<Tensor> = graph
            .inputs()
            .iter()
            .map(|&input| Tensor::from_fn(graph.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
            .collect();
        let [before, after] = [graph, &found].map(|graph| evaluate(graph, &inputs).expect("it can be evaluated"));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.shape(), after.shape());
            for (before, after) in before.to_f64().iter().zip(after.to_f64()) {
                assert!((before - after).abs() < 1e-5, "{after} for {before}");
            }
        }
        found.nodes().values().map(|node| node.op.name()).collect()
    }

    #[test]
    fn transposes_of_heads_become_part_of_attention() {
        let alone = ["reshape", "reshape", "reshape", "attention", "reshape"];
        assert_eq!(ops(&spelled(None, false)), alone);
        for mask in [&[2, 1, 1, 5][..], &[5, 5], &[5], &[2, 3, 5, 5], &[1, 1, 5, 1]] {
            assert_eq!(ops(&spelled(Some(mask), false)), alone);
        }
    }

    #[test]
    fn scores_with_other_readers_do_not_match() {
        assert!(!ops(&spelled(None, true)).contains(&"attention"));
    }

    #[test]
    fn rank_3_matches_with_one_head() {
        let mut graph = Graph::new("attention");
        let shape = Shape::from([3, 5, 4]);
        let [q, k, v] = ["q", "k", "v"].map(|name| graph.add_input(name, DType::F32, shape.clone()));
        let mask = graph.add_input("mask", DType::F32, Shape::from([1, 5, 5]));
        let mut add = |op: Op, inputs: &[ValueId]| graph.add1(op, inputs, Scope::new("node")).unwrap();
        let k = add(Transpose { order: smallvec![0, 2, 1] }.into(), &[k]);
        let scores = add(MatMul::default().into(), &[q, k]);
        let scores = add(Binary(Function::Add).into(), &[scores, mask]);
        let weights = add(Softmax { axis: 2, log: false }.into(), &[scores]);
        let y = add(MatMul::default().into(), &[weights, v]);
        graph.set_outputs(vec![("y".into(), y)]);
        assert_eq!(ops(&graph), ["reshape", "reshape", "reshape", "reshape", "attention", "reshape"]);
    }

    #[test]
    fn broadcast_heads_do_not_match() {
        // One head of keys for all queries: the op has no broadcasting.
        let mut graph = Graph::new("attention");
        let q = graph.add_input("q", DType::F32, Shape::from([2, 3, 5, 4]));
        let k = graph.add_input("k", DType::F32, Shape::from([2, 1, 4, 5]));
        let v = graph.add_input("v", DType::F32, Shape::from([2, 1, 5, 4]));
        let mut add = |op: Op, inputs: &[ValueId]| graph.add1(op, inputs, Scope::new("node")).unwrap();
        let scores = add(MatMul::default().into(), &[q, k]);
        let weights = add(Softmax { axis: 3, log: false }.into(), &[scores]);
        let y = add(MatMul::default().into(), &[weights, v]);
        graph.set_outputs(vec![("y".into(), y)]);
        assert_eq!(ops(&graph), ["mat_mul", "softmax", "mat_mul"]);
    }
}
