//! [`canonicalize`]: one form for equal things. Removes nodes without effect and merges adjacent ones.

use ir::ops::{Binary, Conv, Pad, PadMode, Reshape, Transpose};
use ir::{Graph, Node, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::pointwise::Binary as Function;

use crate::uses::scalar_constant;

/// Removes identities (a cast to the same dtype, a reshape or expansion to the same shape, a transpose in order, a pad by 0, a
/// slice of all elements, a concatenation of one), merges adjacent reshapes and adjacent transposes, moves zero padding into
/// the convolution behind it, and writes squares as products.
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

/// Whether a node is `x` to the power of two. A power has no fast kernel.
fn is_square(graph: &Graph, node: &Node) -> bool {
    node.op == Op::Binary(Binary(Function::Pow)) && scalar_constant(graph, node.inputs[1]) == Some(2.0)
}

/// The op that replaces `op` and the node that yields its operand `input`, and the operand of that node.
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
