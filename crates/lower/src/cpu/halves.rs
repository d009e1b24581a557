//! [`halves()`]: how kernels take values that are stored in two bytes.

use cpu::StorageType;
use ir::{Graph, HalfSupport, Node, Op};

use super::{CpuTarget, blocked};
use crate::halves::{follows, is_of_numbers};

/// How there are kernels for a node of `f32` that take its values as the target stores them.
pub(super) fn halves(graph: &Graph, node: &Node, target: &CpuTarget) -> HalfSupport {
    let Some(half) = StorageType::of(target.dtype).filter(|stored| stored.is_half()) else { return HalfSupport::None };
    if !is_of_numbers(graph, node) {
        return HalfSupport::None;
    }
    let follows = match &node.op {
        Op::Conv(conv) => return blocked::conv_halves(graph, node, conv, half),
        Op::MatMul(_) => {
            let (right, shape) = (graph.value(node.inputs[1]), &graph.ty(node.inputs[1]).shape);
            let [batch @ .., k, _] = &shape[..] else { return HalfSupport::None };
            let packed = right.tensor().is_some() && batch.iter().all(|&extent| extent == 1);
            return match packed && k % 2 == 0 {
                true => HalfSupport::Operands([0, 1].into_iter().collect()),
                false => HalfSupport::None,
            };
        }
        Op::Pool(pool) => blocked::pools_halves(graph, node, pool),
        Op::Reduce(reduce) => blocked::is_global_pool(graph, node, reduce),
        _ => follows(graph, node),
    };
    if follows { HalfSupport::Follow } else { HalfSupport::None }
}
