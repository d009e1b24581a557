//! [`moved_channels`]: transpositions between row-major pixels and blocked images, which move whole blocks of channels instead
//! of a transposition and a relayout.

use ir::{Graph, Node, Op, ValueId};

use super::blocked::{BLOCK, LAYOUT};

/// A transposition with one blocked side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelMove {
    /// From row-major pixels to blocked images.
    ToFront,
    /// From blocked images to row-major pixels.
    ToBack,
}

/// The move of a transposition whose channels fill blocks. Without layouts yet, `[n, a, b]` to `[n, b, a]` may be either: it
/// brings channels to the back if windows have made its operand.
pub(super) fn moved_channels(graph: &Graph, node: &Node) -> Option<ChannelMove> {
    let Op::Transpose(transpose) = &node.op else { return None };
    let [x, y] = [node.inputs[0], node.outputs[0]].map(|value| graph.value(value));
    let [fills_x, fills_y] = [x, y].map(|value| value.ty.shape.get(1).is_some_and(|all| all.is_multiple_of(BLOCK)));
    let to_front = transpose.brings_channels_to_front() && fills_y;
    let to_back = transpose.brings_channels_to_back() && fills_x;
    let is_to_back = match (x.layout, y.layout) {
        (LAYOUT, _) => true,
        (_, LAYOUT) => false,
        _ => to_back && (!to_front || has_images(graph, node.inputs[0])),
    };
    match (x.tensor().is_none(), is_to_back) {
        (true, true) if to_back => Some(ChannelMove::ToBack),
        (true, false) if to_front => Some(ChannelMove::ToFront),
        _ => None,
    }
}

/// Whether a value comes from windows by functions of elements.
fn has_images(graph: &Graph, mut value: ValueId) -> bool {
    const STEPS: usize = 8;
    for _ in 0..STEPS {
        let Some(maker) = graph.value(value).producer() else { return false };
        let node = graph.node(maker);
        if matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvChain(_) | Op::Pool(_) | Op::PoolGradient(_))
        {
            return true;
        }
        let is_of_elements = matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Chain(_) | Op::Reshape(_));
        let is_norm = matches!(node.op, Op::BatchNormTraining(_) | Op::BatchNormGradient(_) | Op::Relayout(_));
        if !is_of_elements && !is_norm {
            return false;
        }
        value = node.inputs[0];
    }
    false
}
