//! [`cse`]: common subexpression elimination.

use std::collections::BTreeMap;

use ir::{Graph, ValueId, rewrite};
use smallvec::SmallVec;

/// Replaces nodes with the same op and the same operands by the first of them.
pub fn cse(graph: &Graph) -> Graph {
    let mut seen = BTreeMap::<(String, SmallVec<[ValueId; 4]>), SmallVec<[ValueId; 1]>>::new();
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let inputs: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&input| context.value(input)).collect();
        let attributes = serde_json::to_string(&node.op).expect("attributes are plain data");
        let outputs = seen.entry((attributes, inputs)).or_insert_with(|| context.copy(node));
        Some(outputs.clone())
    })
}
