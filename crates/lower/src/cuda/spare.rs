//! Workspace that costs an arena nothing: what is alive beside it is less than what is alive elsewhere.

use std::collections::BTreeMap;

use ir::{Graph, Node, NodeId, Op, ValueId};
use types::Bytes;

use super::ALIGNMENT;

/// What values that are alive while a node runs leave of the most that values take at once, in the graph's order. An estimate:
/// which values share bytes is decided later, and only the usual ones are thought of here.
pub(super) fn spare(graph: &Graph, id: NodeId) -> Bytes {
    let roots = roots(graph);
    let root = |value: &ValueId| *roots.get(value).unwrap_or(value);
    let count = graph.nodes().len();
    // From where to where each value is alive.
    let mut lives: BTreeMap<ValueId, [usize; 2]> = graph.inputs().iter().map(|&input| (input, [0, 0])).collect();
    let mut own = 0;
    for (at, (node_id, node)) in graph.nodes().iter().enumerate() {
        own = if node_id == id { at } else { own };
        for value in node.inputs.iter().map(root).chain(node.outputs.iter().map(root)) {
            if graph.value(value).tensor().is_none() {
                lives.entry(value).or_insert([at, at])[1] = at;
            }
        }
    }
    for output in graph.outputs() {
        lives.entry(root(&output.value)).and_modify(|life| life[1] = count);
    }
    let size = |value: ValueId| {
        let ty = graph.ty(value);
        graph.value(value).layout.size(&ty.shape, ty.dtype).align_up(ALIGNMENT)
    };
    // By what begins and what ends at each node.
    let mut changes = vec![0i64; count + 2];
    for (&value, &[first, last]) in &lives {
        changes[first] += size(value).0 as i64;
        changes[last + 1] -= size(value).0 as i64;
    }
    let mut alive = 0;
    let mut beside = Vec::with_capacity(count);
    for (at, (node, change)) in graph.nodes().values().zip(&changes).enumerate() {
        alive += change;
        let dies = |value: &ValueId| lives.get(&root(value)).is_some_and(|life| life[1] == at);
        let result = size(node.outputs[0]);
        let shared = over(node).iter().any(|operand| dies(operand) && size(*operand) == result);
        beside.push(alive - if shared { result.0 as i64 } else { 0 });
    }
    let most = beside.iter().copied().max().unwrap_or_default();
    Bytes(u64::try_from(most - beside.get(own).copied().unwrap_or(most)).unwrap_or_default())
}

/// Values that are others under another shape, with what they are.
fn roots(graph: &Graph) -> BTreeMap<ValueId, ValueId> {
    let mut roots = BTreeMap::new();
    for node in graph.nodes().values().filter(|node| matches!(node.op, Op::Reshape(_))) {
        let root = roots.get(&node.inputs[0]).copied().unwrap_or(node.inputs[0]);
        roots.insert(node.outputs[0], root);
    }
    roots
}

/// Operands in whose bytes a node's result may lie.
fn over(node: &Node) -> &[ValueId] {
    let residual = match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) => return &node.inputs,
        Op::Conv(conv) => conv.epilogue.residual,
        Op::MatMul(product) => product.epilogue.residual,
        _ => false,
    };
    &node.inputs[node.inputs.len() - usize::from(residual)..]
}
