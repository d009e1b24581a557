//! [`halves()`]: how kernels take values that are stored in two bytes.

use cpu::Stored;
use ir::ops::ResizeMode;
use ir::{Graph, Halves, Node, Op};
use types::pointwise::{Binary, Unary};

use super::{CpuTarget, blocked};

/// How there are kernels for a node of `f32` that take its values as the target stores them.
pub(super) fn halves(graph: &Graph, node: &Node, target: &CpuTarget) -> Halves {
    let Some(half) = Stored::of(target.dtype).filter(|stored| stored.is_half()) else { return Halves::No };
    let is_float = |&value: &ir::ValueId| Stored::of(graph.ty(value).dtype) == Some(Stored::F32);
    let moves = matches!(node.op, Op::Gather(_)) && is_float(&node.inputs[0]);
    if !moves && !node.inputs.iter().chain(&node.outputs).all(is_float) {
        return Halves::No;
    }
    let follows = match &node.op {
        Op::Conv(conv) => return blocked::conv_halves(graph, node, conv, half),
        Op::MatMul(_) => {
            let (right, shape) = (graph.value(node.inputs[1]), &graph.ty(node.inputs[1]).shape);
            let [batch @ .., k, _] = &shape[..] else { return Halves::No };
            let packed = right.tensor().is_some() && batch.iter().all(|&extent| extent == 1);
            return match packed && k % 2 == 0 {
                true => Halves::Read([0, 1].into_iter().collect()),
                false => Halves::No,
            };
        }
        Op::Pool(pool) => blocked::pools_halves(graph, node, pool),
        Op::Reduce(reduce) => blocked::is_global_pool(graph, node, reduce),
        Op::Resize(resize) => matches!(resize.mode, ResizeMode::Nearest(_)),
        Op::Unary(unary) => unary.0 != Unary::Not,
        Op::Binary(binary) => {
            !matches!(binary.0, Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRight)
        }
        Op::Chain(_) | Op::LayerNorm(_) => true,
        Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Expand(_)
        | Op::Concat(_)
        | Op::Pad(_)
        | Op::Gather(_) => true,
        _ => false,
    };
    if follows { Halves::Follow } else { Halves::No }
}
