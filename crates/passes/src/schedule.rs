//! [`schedule`]: the order of the nodes, chosen for the least memory alive at once.

use ir::{Graph, NodeId, Reuse, ValueId, reorder};
use smallvec::SmallVec;
use types::{EntityId, Map};

/// Orders nodes so that the most bytes alive at once are few: the order as it is, or the greedy one, whichever is better.
///
/// Greedy: among the nodes whose operands are computed, the one next that adds the fewest live bytes (its results less
/// the operands that die), ties by the order as it is.
pub fn schedule(graph: &Graph) -> Graph {
    let natural: Vec<NodeId> = graph.nodes().keys().collect();
    let greedy = greedy_order(graph);
    if peak_bytes(graph, &greedy) < peak_bytes(graph, &natural) { reorder(graph, &greedy) } else { graph.clone() }
}

/// The most bytes of inputs, results and intermediate values alive at once in an order, which must be topological.
///
/// A node's operands and results are alive together, apart from a result that takes a dying operand's bytes. Aliases
/// count once; parts of a concatenation count on their own.
pub fn peak_bytes(graph: &Graph, order: &[NodeId]) -> u64 {
    let mut live = Live::new(graph);
    let mut peak = live.bytes;
    for &id in order {
        peak = peak.max(live.run(graph, id));
    }
    peak
}

/// For each node, in the order as it is, the bytes alive while it runs: see [`peak_bytes`].
pub fn live_bytes(graph: &Graph) -> Vec<u64> {
    let mut live = Live::new(graph);
    graph.nodes().keys().map(|id| live.run(graph, id)).collect()
}

fn greedy_order(graph: &Graph) -> Vec<NodeId> {
    let mut live = Live::new(graph);
    let mut waits: Map<NodeId, usize> = Map::filled(graph.nodes().len(), 0);
    let readers = graph.readers();
    for (id, node) in graph.nodes().iter() {
        waits[id] = node.inputs.iter().filter(|&&input| graph.value(input).producer().is_some()).count();
    }
    let mut ready: Vec<NodeId> = graph.nodes().keys().filter(|&id| waits[id] == 0).collect();
    let mut order = Vec::with_capacity(graph.nodes().len());
    while let Some(next) = ready.iter().copied().min_by_key(|&id| (live.change(graph, id), id.index())) {
        ready.retain(|&id| id != next);
        live.run(graph, next);
        order.push(next);
        for &output in &graph.node(next).outputs {
            for &reader in &readers[output] {
                waits[reader] -= 1;
                if waits[reader] == 0 {
                    ready.push(reader);
                }
            }
        }
    }
    order
}

/// Which bytes are alive while nodes run one after the other.
struct Live {
    /// The value whose bytes a value lies in.
    root: Map<ValueId, ValueId>,
    /// By root: reads that are still to come; outputs of the graph have one that never comes.
    reads: Map<ValueId, usize>,
    bytes: u64,
}

impl Live {
    fn new(graph: &Graph) -> Live {
        let mut root: Map<ValueId, ValueId> = graph.values().keys().collect();
        for node in graph.nodes().values() {
            let types: SmallVec<[_; 4]> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
            if let Reuse::Alias { .. } = node.op.reuse(&types, graph.ty(node.outputs[0])) {
                root[node.outputs[0]] = root[node.inputs[0]];
            }
        }
        let mut reads: Map<ValueId, usize> = Map::filled(graph.values().len(), 0);
        for node in graph.nodes().values() {
            node.inputs.iter().for_each(|&input| reads[root[input]] += 1);
        }
        graph.outputs().iter().for_each(|output| reads[root[output.value]] += 1);
        let bytes = graph.inputs().iter().map(|&input| size(graph, input)).sum();
        Live { root, reads, bytes }
    }

    /// Bytes that the node's results add, and bytes of operands that die with it.
    fn effect(&self, graph: &Graph, id: NodeId) -> (u64, u64) {
        let node = graph.node(id);
        let born = node.outputs.iter().filter(|&&output| self.root[output] == output);
        let born = born.map(|&output| size(graph, output)).sum();
        let mut roots: SmallVec<[ValueId; 4]> = node.inputs.iter().map(|&input| self.root[input]).collect();
        roots.sort_unstable();
        let dying = roots.chunk_by(|a, b| a == b).filter(|same| self.reads[same[0]] == same.len());
        let in_arena = dying.filter(|same| graph.value(same[0]).tensor().is_none());
        (born, in_arena.map(|same| size(graph, same[0])).sum())
    }

    fn change(&self, graph: &Graph, id: NodeId) -> i64 {
        let (born, dying) = self.effect(graph, id);
        born as i64 - dying as i64
    }

    /// Runs a node and returns the bytes alive while it ran.
    fn run(&mut self, graph: &Graph, id: NodeId) -> u64 {
        let (born, dying) = self.effect(graph, id);
        let node = graph.node(id);
        let types: SmallVec<[_; 4]> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
        let in_place = match node.op.reuse(&types, graph.ty(node.outputs[0])) {
            Reuse::InPlace(inputs) => inputs.iter().any(|&ix| self.reads[self.root[node.inputs[ix]]] == 1),
            _ => false,
        };
        let during = self.bytes + if in_place { 0 } else { born };
        self.bytes = self.bytes + born - dying;
        node.inputs.iter().for_each(|&input| self.reads[self.root[input]] -= 1);
        // A result that nobody reads dies at once.
        for &output in &node.outputs {
            if self.root[output] == output && self.reads[output] == 0 {
                self.bytes -= size(graph, output);
            }
        }
        during.max(self.bytes)
    }
}

fn size(graph: &Graph, value: ValueId) -> u64 {
    let value = graph.value(value);
    value.layout.size(&value.ty.shape, value.ty.dtype).0
}
