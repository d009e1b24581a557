//! [`candidates`]: kernels whose operands are in half precision.

use cpu::StorageType;
use ir::{Candidate, Graph, NodeId, Op};
use types::DType;

use super::blocked;
use crate::half_precision::{follows, is_of_numbers};

/// The candidates for a node with `f32` values whose operands or result are in half precision.
pub(super) fn candidates(graph: &Graph, id: NodeId, half: DType) -> Vec<Candidate> {
    let node = graph.node(id);
    let Some(stored) = StorageType::of(half).filter(|stored| stored.is_half()) else { return Vec::new() };
    if !is_of_numbers(graph, node) {
        return Vec::new();
    }
    if let Op::Conv(conv) = &node.op {
        return blocked::half_candidates(graph, id, conv, stored, half);
    }
    if let Op::MatMul(_) = &node.op {
        let (right, shape) = (graph.value(node.inputs[1]), &graph.ty(node.inputs[1]).shape);
        let [batch @ .., k, _] = &shape[..] else { return Vec::new() };
        let packed = right.tensor().is_some() && batch.iter().all(|&extent| extent == 1);
        return match packed && k % 2 == 0 {
            true => Candidate::with_half_operands(graph, id, half, &[0, 1]),
            false => Vec::new(),
        };
    }
    let follows = if let Op::Attention(_) = &node.op {
        // Of the orders that a value may have, the element is always the last axis.
        let width = |ix: usize| graph.ty(node.inputs[ix]).shape[3];
        width(0) % 2 == 0 && width(2) <= cpu::Attention::HALF_VALUE_MAX
    } else if let Op::Pool(pool) = &node.op {
        blocked::has_pool_kernel(graph, node, pool)
    } else if let Op::Reduce(reduce) = &node.op {
        blocked::is_global_pool(graph, node, reduce)
    } else {
        follows(graph, node)
    };
    if follows { Candidate::in_half(graph, id, half) } else { Vec::new() }
}
