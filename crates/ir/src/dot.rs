//! The graph as a `petgraph` graph for algorithms, and as DOT text for drawing.

use std::fmt::Write;

use petgraph::graph::DiGraph;
use types::EntityId;

use crate::{Graph, NodeId, ValueId};

/// The dependencies between nodes: an edge for every operand that a node yields. Node `i` of the result is node `i` of the
/// graph.
pub fn dependencies(graph: &Graph) -> DiGraph<NodeId, ValueId> {
    let mut edges = DiGraph::with_capacity(graph.nodes().len(), graph.values().len());
    for id in graph.nodes().keys() {
        edges.add_node(id);
    }
    for (id, node) in graph.nodes().iter() {
        for &value in &node.inputs {
            if let Some(producer) = graph.value(value).producer() {
                edges.add_edge(
                    petgraph::graph::NodeIndex::new(producer.index()),
                    petgraph::graph::NodeIndex::new(id.index()),
                    value,
                );
            }
        }
    }
    edges
}

/// The graph in Graphviz format: nodes with op and scope, edges with types.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from("digraph {\n  rankdir=TB\n  node [shape=box]\n");
    let edges = dependencies(graph);
    for (id, node) in graph.nodes().iter() {
        let _ = writeln!(text, "  {id} [label=\"{}\\n{}\"]", node.op.name(), node.scope.as_str().replace('"', "'"));
    }
    for edge in edges.raw_edges() {
        let (from, to) = (edges[edge.source()], edges[edge.target()]);
        let _ = writeln!(text, "  {from} -> {to} [label=\"{}\"]", graph.ty(edge.weight));
    }
    text.push_str("}\n");
    text
}
