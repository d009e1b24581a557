//! [`dce`]: nodes that no output needs go. Inputs stay: callers give them by name.

use ir::{Graph, ValueId, rewrite};
use smallvec::SmallVec;
use types::Map;

/// Drops every node that no output needs, and with it the weights and constants that only such nodes read.
pub fn dce(graph: &Graph) -> Graph {
    let mut needed: Map<ValueId, bool> = Map::filled(graph.values().len(), false);
    for output in graph.outputs() {
        needed[output.value] = true;
    }
    for (_, node) in graph.nodes().iter().rev() {
        if node.outputs.iter().any(|&output| needed[output]) {
            for &input in &node.inputs {
                needed[input] = true;
            }
        }
    }
    rewrite(graph, |_, id| {
        let dead = graph.node(id).outputs.iter().all(|&output| !needed[output]);
        dead.then(SmallVec::new)
    })
}
