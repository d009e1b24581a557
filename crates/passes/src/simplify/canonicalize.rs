//! [`canonicalize`]: one form for equal things. Removes nodes without effect and merges adjacent ones.

use ir::ops::{Binary, Concat, Conv, Pad, PadMode, Reshape, Transpose};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;
use types::{Scope, Shape, broadcast};

use crate::uses::{Uses, scalar_constant};

/// Removes identities (a cast to the same dtype, a reshape or expansion to the same shape, a transpose in order, a pad by 0, a
/// slice of all elements, a concatenation of one, a sum with 0, a product with 1), merges adjacent reshapes and adjacent transposes,
/// also around a reshape, moves zero padding into the convolution behind it, leaves expansions to functions that broadcast, writes
/// squares as products, and sums of parts between zeros as concatenations.
pub fn canonicalize(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let first = *node.inputs.first()?;
        let input = context.value(first);
        let same_type = graph.ty(first) == graph.ty(node.outputs[0]);
        if same_type && is_identity(node) {
            return Some(smallvec![input]);
        }
        if let Some(kept) = neutral(graph, node) {
            return Some(smallvec![context.value(kept)]);
        }
        if let Some(operands) = unexpanded(context, node, &graph.ty(node.outputs[0]).shape) {
            return Some(smallvec![context.add(node.op.clone(), &operands, &node.scope).ok()?]);
        }
        if let Some(joined) = joined_parts(context, &uses, node) {
            return Some(smallvec![joined]);
        }
        if is_square(graph, node) && same_type {
            let product = Binary(Function::Mul);
            return Some(smallvec![context.add(product, &[input, input], &node.scope).ok()?]);
        }
        if let Op::Transpose(second) = &node.op
            && !graph.is_output(node.outputs[0])
            && uses.readers(node.outputs[0]).iter().all(|&reader| is_first_factor(graph.node(reader), node.outputs[0]))
            && let Some(joined) =
                transposed_twice(context, second, input, &graph.ty(node.outputs[0]).shape, &node.scope)
        {
            return Some(smallvec![joined]);
        }
        let joined = join(context, &node.op, input)?;
        let mut inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&input| context.value(input)).collect();
        inputs[0] = joined.1;
        Some(smallvec![context.add(joined.0, &inputs, &node.scope).ok()?])
    })
}

/// Whether a node whose result has the type of its operand returns that operand.
fn is_identity(node: &Node) -> bool {
    match &node.op {
        Op::BitCast(_) | Op::Cast(_) | Op::Reshape(_) | Op::Expand(_) | Op::StopGradient(_) => true,
        Op::Slice(slice) => slice.step.iter().zip(&slice.count[..]).all(|(&step, &n)| step == 1 || n < 2),
        Op::Transpose(transpose) => transpose.order.iter().copied().eq(0..transpose.order.len()),
        Op::Pad(pad) => pad.pad.iter().all(|pad| *pad == [0, 0]),
        Op::Concat(_) => node.inputs.len() == 1,
        // A relayout changes the layout, which is no part of the type.
        Op::Relayout(_) => false,
        Op::Dropout(dropout) => dropout.rate == 0.0,
        Op::ArgExtreme(_)
        | Op::Attention(_)
        | Op::BatchNorm(_)
        | Op::BatchNormGradient(_)
        | Op::BatchNormTraining(_)
        | Op::Binary(_)
        | Op::Chain(_)
        | Op::Compare(_)
        | Op::Conv(_)
        | Op::ConvChain(_)
        | Op::ConvTranspose(_)
        | Op::ConvWeightGradient(_)
        | Op::Ctc(_)
        | Op::CtcGradient(_)
        | Op::CumulativeSum(_)
        | Op::Gather(_)
        | Op::Insert(_)
        | Op::LayerNorm(_)
        | Op::Lrn(_)
        | Op::MatMul(_)
        | Op::Pool(_)
        | Op::PoolGradient(_)
        | Op::PoolWithPositions(_)
        | Op::Recurrent(_)
        | Op::RecurrentGradient(_)
        | Op::RecurrentWithGates(_)
        | Op::Reduce(_)
        | Op::Resize(_)
        | Op::Scatter(_)
        | Op::ScatterAdd(_)
        | Op::Select(_)
        | Op::Softmax(_)
        | Op::SoftmaxCrossEntropy(_)
        | Op::SoftmaxCrossEntropyGradient(_)
        | Op::TopK(_)
        | Op::Unary(_)
        | Op::Update(_) => false,
    }
}

/// The operand that a sum with 0, or a product with 1, returns: gradients begin with 1.
fn neutral(graph: &Graph, node: &Node) -> Option<ValueId> {
    let Op::Binary(Binary(function)) = node.op else { return None };
    let [a, b] = node.inputs[..] else { return None };
    let number = match function {
        Function::Add | Function::Sub => 0.0,
        Function::Mul | Function::Div => 1.0,
        _ => return None,
    };
    let is_commutative = matches!(function, Function::Add | Function::Mul);
    let pairs = [(a, b), (b, a)];
    let found = pairs[..1 + usize::from(is_commutative)].iter().find(|(kept, other)| {
        graph.ty(*kept) == graph.ty(node.outputs[0]) && scalar_constant(graph, *other) == Some(number)
    })?;
    Some(found.0)
}

/// The operands of a function that broadcasts, without expansions that broadcasting makes superfluous: the gradient of a sum
/// is an expansion.
fn unexpanded(context: &mut Rewrite, node: &Node, shape: &Shape) -> Option<[ValueId; 2]> {
    let (Op::Binary(_) | Op::Compare(_)) = node.op else { return None };
    let mut operands = [context.value(node.inputs[0]), context.value(node.inputs[1])];
    let before = operands;
    for ix in 0..2 {
        let Some(producer) = context.new.value(operands[ix]).producer() else { continue };
        let expansion = context.new.node(producer);
        let (Op::Expand(_), source) = (&expansion.op, expansion.inputs[0]) else { continue };
        let [own, other] = [source, operands[1 - ix]].map(|value| &context.new.ty(value).shape);
        if broadcast(own, other).as_ref() == Ok(shape) {
            operands[ix] = source;
        }
    }
    (operands != before).then_some(operands)
}

/// A sum of two values that are never both other than zero, as the concatenation of their parts: the gradients of the slices of
/// a value are padded and added.
fn joined_parts(context: &mut Rewrite, uses: &Uses, node: &Node) -> Option<ValueId> {
    let is_read_once = |&value: &ValueId| uses.readers(value).len() == 1 && !context.old.is_output(value);
    if node.op != Op::Binary(Binary(Function::Add)) || !node.inputs.iter().all(is_read_once) {
        return None;
    }
    let [a, b] = [context.value(node.inputs[0]), context.value(node.inputs[1])];
    let (ty, mut parts) = (context.new.ty(a).clone(), [Part::of(&context.new, a)?, Part::of(&context.new, b)?]);
    parts.sort_by_key(|part| part.zeros[0]);
    let [Part { axis, values, zeros: [low, behind] }, second] = parts;
    let are_neighbors = axis == second.axis && ty.shape[axis].checked_sub(behind) == Some(second.zeros[0]);
    if !are_neighbors || ty != *context.new.ty(b) {
        return None;
    }
    let joined = context.add(Concat { axis }, &[values, second.values].concat(), &node.scope).ok()?;
    let zeros = [low, second.zeros[1]];
    if zeros == [0, 0] {
        return Some(joined);
    }
    let mut pad = SmallVec::from_elem([0, 0], ty.shape.rank());
    pad[axis] = zeros.map(|count| count as isize);
    context.add(Pad { mode: PadMode::Constant(0.0), pad }, &[joined], &node.scope).ok()
}

/// Neighboring values between zeros.
struct Part {
    /// The axis along which values and zeros lie.
    axis: usize,
    values: Vec<ValueId>,
    /// Extents of the zeros on both sides.
    zeros: [usize; 2],
}

impl Part {
    fn of(graph: &Graph, value: ValueId) -> Option<Part> {
        let before = |value: ValueId| graph.value(value).producer().map(|node| graph.node(node));
        let padded = before(value)?;
        let Op::Pad(Pad { mode: PadMode::Constant(0.0), pad }) = &padded.op else { return None };
        let mut sides = pad.iter().enumerate().filter(|(_, side)| **side != [0, 0]);
        let (Some((axis, &[low, high])), None) = (sides.next(), sides.next()) else { return None };
        let zeros = [usize::try_from(low).ok()?, usize::try_from(high).ok()?];
        let joined = before(padded.inputs[0]).filter(|node| node.op == Op::Concat(Concat { axis }));
        let values = joined.map_or_else(|| vec![padded.inputs[0]], |node| node.inputs.to_vec());
        Some(Part { axis, values, zeros })
    }
}

/// Whether a node is `x` to the power of two. A power has no fast kernel.
fn is_square(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Binary(Binary(Function::Pow)) && scalar_constant(graph, node.inputs[1]) == Some(2.0)
}

/// The op that replaces `op` and the node that yields its operand `input`, and the operand of that node.
fn join(context: &Rewrite, op: &Op, input: ValueId) -> Option<(Op, ValueId)> {
    let before = context.new.node(context.new.value(input).producer()?);
    let source = *before.inputs.first()?;
    let op: Op = if let (Op::Reshape(Reshape { shape }), Op::Reshape(_)) = (op, &before.op) {
        Reshape { shape: shape.clone() }.into()
    } else if let (Op::Transpose(second), Op::Transpose(first)) = (op, &before.op) {
        Transpose { order: second.order.iter().map(|&axis| first.order[axis]).collect() }.into()
    } else if let (Op::Conv(conv), Op::Pad(pad)) = (op, &before.op) {
        pad_into(conv, pad)?.into()
    } else {
        return None;
    };
    Some((op, source))
}

/// Whether a product reads a value as its first factor alone, whose transposition is a copy: the second factor is read as it is.
fn is_first_factor(node: &Node, value: ValueId) -> bool {
    matches!(node.op, Op::MatMul(_))
        && node.inputs.iter().position(|&input| input == value) == Some(0)
        && !node.inputs[1..].contains(&value)
}

/// A transposition of a transposed value whose axes a reshape joined in between, as one transposition and the reshape behind
/// it.
fn transposed_twice(
    context: &mut Rewrite,
    second: &Transpose,
    input: ValueId,
    shape: &Shape,
    scope: &Scope,
) -> Option<ValueId> {
    let reshape = context.new.node(context.new.value(input).producer()?);
    let Op::Reshape(_) = reshape.op else { return None };
    let between = reshape.inputs[0];
    let before = context.new.node(context.new.value(between).producer()?);
    let Op::Transpose(first) = &before.op else { return None };
    let groups = joined_axes(&context.new.ty(between).shape, &context.new.ty(input).shape)?;
    let order = second.order.iter().flat_map(|&axis| groups[axis].clone()).map(|axis| first.order[axis]).collect();
    let source = before.inputs[0];
    let transposed = context.add(Transpose { order }, &[source], scope).ok()?;
    context.add(Reshape { shape: shape.clone() }, &[transposed], scope).ok()
}

/// By axis of `to` the consecutive axes of `from` that it joins.
fn joined_axes(from: &Shape, to: &Shape) -> Option<Vec<std::ops::Range<usize>>> {
    let mut first = 0;
    let mut groups = Vec::new();
    for &extent in to.iter() {
        let (mut end, mut product) = (first, 1);
        while end < from.rank() && (product < extent || end == first) {
            product *= from[end];
            end += 1;
        }
        if product != extent || end == first {
            return None;
        }
        groups.push(first..end);
        first = end;
    }
    (first == from.rank()).then_some(groups)
}

fn pad_into(conv: &Conv, pad: &Pad) -> Option<Conv> {
    let outer_untouched = pad.pad.len() == conv.pad.len() + 2 && pad.pad[..2] == [[0, 0], [0, 0]];
    if pad.mode != PadMode::Constant(0.0) || !outer_untouched {
        return None;
    }
    let mut joined = conv.clone();
    for (own, extra) in joined.pad.iter_mut().zip(&pad.pad[2..]) {
        for side in 0..2 {
            own[side] = own[side].checked_add(usize::try_from(extra[side]).ok()?)?;
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use ir::ops::MatMul;
    use types::{DType, Random, Tensor};

    use super::*;

    #[test]
    fn sums_with_zero_and_products_with_one_are_removed() {
        let mut graph = Graph::new("neutral");
        let x = graph.add_input("x", DType::F32, Shape::from([2, 3]));
        let [zero, one] = [0.0f32, 1.0].map(|number| graph.add_constant("number", Tensor::scalar(number)));
        let mut add = |function, a, b| graph.add1(Binary(function).into(), &[a, b], Scope::new("node")).unwrap();
        let (a, b) = (add(Function::Add, x, zero), add(Function::Mul, one, x));
        let c = add(Function::Div, a, one);
        let kept = [add(Function::Div, one, x), add(Function::Sub, zero, x), add(Function::Max, x, zero)];
        let named = [b, c].into_iter().chain(kept).enumerate().map(|(ix, value)| (format!("y{ix}"), value)).collect();
        graph.set_outputs(named);
        let short = canonicalize(&graph);
        assert_eq!(short.nodes().len(), kept.len());
        assert!(short.outputs()[..2].iter().all(|output| output.value == short.inputs()[0]));
    }

    #[test]
    fn expansions_are_left_to_functions_that_broadcast() {
        let mut graph = Graph::new("expanded");
        let mut input = |name: &str, shape: &[usize]| graph.add_input(name, DType::F32, Shape::from(shape));
        let (x, row, column) = (input("x", &[4, 3]), input("row", &[3]), input("column", &[4, 1]));
        let mut add = |op: Op, operands: &[ValueId]| graph.add1(op, operands, Scope::new("node")).unwrap();
        let mut expanded = |value| add(ir::ops::Expand { shape: Shape::from([4, 3]) }.into(), &[value]);
        let (rows, columns) = (expanded(row), expanded(column));
        // One expansion of a value without partner stays.
        let twice = expanded(row);
        let results = [
            add(Binary(Function::Mul).into(), &[x, columns]),
            add(Binary(Function::Sub).into(), &[rows, columns]),
            add(Binary(Function::Add).into(), &[twice, rows]),
        ];
        let named = results.into_iter().enumerate().map(|(ix, value)| (format!("y{ix}"), value)).collect();
        graph.set_outputs(named);
        let short = crate::dce(&canonicalize(&graph));
        ir::verify(&short).unwrap();
        let expansions = short.nodes().values().filter(|node| matches!(node.op, Op::Expand(_))).count();
        assert_eq!(expansions, 1, "{short:?}");
        let mut random = Random::new(5);
        let inputs: Vec<Tensor> = (graph.inputs().iter())
            .map(|&input| Tensor::from_fn(graph.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
            .collect();
        assert_eq!(ir::evaluate(&short, &inputs), ir::evaluate(&graph, &inputs));
    }

    /// Neighbors become one concatenation in either order; parts that overlap, or that another node reads, stay.
    #[test]
    fn sums_of_parts_between_zeros_are_concatenated() {
        let mut graph = Graph::new("parts");
        let mut input = |name: &str, extent| graph.add_input(name, DType::F32, Shape::from([2, extent, 3]));
        let parts = [input("a", 2), input("b", 1), input("c", 4)];
        let mut add = |op: Op, operands: &[ValueId]| graph.add1(op, operands, Scope::new("node")).unwrap();
        let mut between = |part: usize, zeros: [isize; 2]| {
            let pad = smallvec![[0, 0], zeros, [0, 0]];
            add(Pad { mode: PadMode::Constant(0.0), pad }.into(), &[parts[part]])
        };
        let of_all = [between(2, [4, 1]), between(1, [3, 5]), between(0, [1, 6])];
        let overlapping = [between(0, [0, 1]), between(1, [1, 1])];
        let read_twice = [between(0, [0, 1]), between(1, [2, 0])];
        let mut sum = |a, b| add(Binary(Function::Add).into(), &[a, b]);
        let last = sum(of_all[0], of_all[1]);
        let results = [
            sum(last, of_all[2]),
            sum(overlapping[0], overlapping[1]),
            sum(read_twice[0], read_twice[1]),
            read_twice[0],
        ];
        let named = results.into_iter().enumerate().map(|(ix, value)| (format!("y{ix}"), value)).collect();
        graph.set_outputs(named);
        let short = crate::dce(&canonicalize(&graph));
        ir::verify(&short).unwrap();
        let count = |is: fn(&Op) -> bool| short.nodes().values().filter(|node| is(&node.op)).count();
        assert_eq!(
            [count(|op| matches!(op, Op::Concat(_))), count(|op| matches!(op, Op::Pad(_)))],
            [1, 5],
            "{short:?}"
        );
        let mut random = Random::new(5);
        let inputs: Vec<Tensor> = (graph.inputs().iter())
            .map(|&input| Tensor::from_fn(graph.ty(input).shape.clone(), |_| random.uniform(-1.0, 1.0)))
            .collect();
        assert_eq!(ir::evaluate(&short, &inputs), ir::evaluate(&graph, &inputs));
    }

    #[test]
    fn transpositions_around_a_reshape_become_one() {
        let mut graph = Graph::new("twice");
        let x = graph.add_input("x", DType::F32, Shape::from([3, 2, 5, 7]));
        let y = graph.add_input("y", DType::F32, Shape::from([15, 4]));
        let mut add = |op: Op, operands: &[ValueId]| graph.add1(op, operands, Scope::new("node")).unwrap();
        let first = add(Transpose { order: smallvec![0, 2, 1, 3] }.into(), &[x]);
        let rows = add(Reshape { shape: Shape::from([15, 14]) }.into(), &[first]);
        let columns = add(Transpose { order: smallvec![1, 0] }.into(), &[rows]);
        let product = add(MatMul::default().into(), &[columns, y]);
        graph.set_outputs(vec![("rows".into(), rows), ("product".into(), product)]);
        let short = canonicalize(&graph);
        let transposed: Vec<&Node> =
            short.nodes().values().filter(|node| matches!(node.op, Op::Transpose(_))).collect();
        assert!(transposed.iter().all(|node| node.inputs[0] == short.inputs()[0]));
        let mut random = Random::new(5);
        let inputs = [x, y].map(|value| Tensor::from_fn(graph.ty(value).shape.clone(), |_| random.uniform(-1.0, 1.0)));
        assert_eq!(ir::evaluate(&short, &inputs), ir::evaluate(&graph, &inputs));
        // Only joined axes: another grouping of the elements stays.
        assert_eq!(joined_axes(&Shape::from([3, 5, 2, 7]), &Shape::from([15, 14])), Some(vec![0..2, 2..4]));
        assert_eq!(joined_axes(&Shape::from([3, 5, 2, 7]), &Shape::from([5, 42])), None);
    }
}
