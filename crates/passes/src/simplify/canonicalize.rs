//! [`canonicalize`]: one form for equal things. Removes nodes without effect and merges adjacent ones.

use ir::ops::{Binary, Conv, Pad, PadMode, Reshape, Transpose};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;

use crate::uses::known_number;

/// Removes what does nothing (a cast to the same dtype, a reshape to the same shape, a transpose in order, a pad by
/// nothing, a slice of everything, an expansion to the same shape, a concatenation of one), joins reshapes with reshapes
/// and transposes with transposes, gives zero padding to the convolution behind it, and makes products of squares.
pub fn canonicalize(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let first = *node.inputs.first()?;
        let input = context.value(first);
        let same_type = graph.ty(first) == graph.ty(node.outputs[0]);
        if same_type && is_identity(node) {
            return Some(smallvec![input]);
        }
        if is_square(graph, node) && same_type {
            let product = Binary(Function::Mul);
            return Some(smallvec![context.add(product, &[input, input], &node.scope).ok()?]);
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
        Op::Cast(_) | Op::Reshape(_) | Op::Expand(_) => true,
        Op::Slice(slice) => slice.step.iter().zip(&slice.count[..]).all(|(&step, &n)| step == 1 || n < 2),
        Op::Transpose(transpose) => transpose.order.iter().copied().eq(0..transpose.order.len()),
        Op::Pad(pad) => pad.pad.iter().all(|pad| *pad == [0, 0]),
        Op::Concat(_) => node.inputs.len() == 1,
        // A relayout changes the layout, which is no part of the type.
        Op::Relayout(_) => false,
        Op::ArgExtreme(_)
        | Op::Attention(_)
        | Op::BatchNorm(_)
        | Op::Binary(_)
        | Op::Chain(_)
        | Op::Compare(_)
        | Op::Conv(_)
        | Op::ConvChain(_)
        | Op::ConvTranspose(_)
        | Op::Gather(_)
        | Op::LayerNorm(_)
        | Op::Lrn(_)
        | Op::MatMul(_)
        | Op::Pool(_)
        | Op::Recurrent(_)
        | Op::Reduce(_)
        | Op::Resize(_)
        | Op::Select(_)
        | Op::Softmax(_)
        | Op::Unary(_) => false,
    }
}

/// Whether a node is `x` to the power of two. A power has no fast form of its own.
fn is_square(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Binary(Binary(Function::Pow)) && known_number(graph, node.inputs[1]) == Some(2.0)
}

/// The op that does what `op` does behind the node that yields `input`, and what it reads instead of `input`.
fn join(context: &Rewrite, op: &Op, input: ValueId) -> Option<(Op, ValueId)> {
    let before = context.new.node(context.new.value(input).producer()?);
    let source = *before.inputs.first()?;
    match (op, &before.op) {
        (Op::Reshape(Reshape { shape }), Op::Reshape(_)) => Some((Reshape { shape: shape.clone() }.into(), source)),
        (Op::Transpose(second), Op::Transpose(first)) => {
            let order = second.order.iter().map(|&axis| first.order[axis]).collect();
            Some((Transpose { order }.into(), source))
        }
        (Op::Conv(conv), Op::Pad(pad)) => Some((pad_into(conv, pad)?.into(), source)),
        _ => None,
    }
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
    use types::{DType, Scope, Shape, Tensor};

    use super::*;

    #[test]
    fn squares_are_products() {
        for (exponent, name) in [(2.0f32, Function::Mul), (3.0, Function::Pow)] {
            let mut graph = Graph::new("power");
            let x = graph.add_input("x", DType::F32, Shape::from([3]));
            let exponent = graph.add_constant("exponent", Tensor::scalar(exponent));
            let y = graph.add1(Binary(Function::Pow).into(), &[x, exponent], Scope::new("power")).unwrap();
            graph.set_outputs(vec![("y".into(), y)]);
            let cleaned = canonicalize(&graph);
            let ops: Vec<&Op> = cleaned.nodes().values().map(|node| &node.op).collect();
            assert_eq!(ops, [&Op::Binary(Binary(name))]);
            let x = [Tensor::vector(vec![-1.5f32, 0.0, 3.25])];
            assert_eq!(ir::evaluate(&cleaned, &x).unwrap(), ir::evaluate(&graph, &x).unwrap());
        }
    }
}
