//! [`compute_again`]: long-lived values that are computed a second time for their late readers.
//!
//! A value that is read once more after a long time, such as a skip connection of a U-Net, keeps its bytes all the while, and
//! no region can hold all of its life without running the deep part of the network in stripes too. If the value follows by few
//! steps from values that are there anyway, its late readers get a copy of those steps instead. Within a region these run in
//! stripes like all others, and the value is never stored as a whole.
//!
//! ```text
//!   x -> conv -> s -> pool -> ... deep ... -> up -> concat      s is live around the deep part
//!                 \________________________________/
//!
//!   x -> conv -> s -> pool -> ... deep ... -> up -> concat      x is
//!    \____________________________ conv -> s' _____/
//! ```

use std::collections::BTreeSet;

use ir::analysis::value_size;
use ir::{Graph, NodeId, Rewrite, ValueDef, ValueId, rewrite};
use types::{EntityId, Map};

use super::borders::Lives;
use super::estimate::costs;

/// Values that are computed again at most.
const VALUES_MAX: usize = 4;
/// Nodes that are computed again for one value at most.
const NODES_MAX: usize = 32;
/// Values that need less than this part of the limit stay.
const BYTES_MIN: u64 = 16;
/// Positions between two readers that are worth a copy.
const DISTANCE_MIN: usize = 4;

/// A value and its late readers.
#[derive(Clone, Copy)]
struct Late {
    value: ValueId,
    /// The first late reader.
    reader: usize,
}

/// The graph with one, two, and more values computed again, those first that cost least for their bytes. `limit` is the number of
/// live bytes to stay below.
pub fn compute_again(graph: &Graph, limit: u64) -> Vec<Graph> {
    let (lives, costs) = (Lives::of(graph), costs(graph));
    let late = late_readers(graph, limit);
    let mut again: Vec<Late> = Vec::new();
    let mut graphs = Vec::new();
    while again.len() < VALUES_MAX {
        let price = |late: &Late| {
            if again.iter().any(|other| other.value == late.value) {
                return None;
            }
            let cost: u64 = steps(graph, &lives, &again, *late)?.iter().map(|node| costs[node.index()]).sum();
            Some(cost as f64 / value_size(graph, late.value) as f64)
        };
        let priced = late.iter().filter_map(|late| Some((price(late)?, late)));
        let Some((_, &best)) = priced.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        again.push(best);
        graphs.push(with_copies(graph, &lives, &again));
    }
    graphs
}

/// Values with two readers, or a maker and a reader, that are far from each other.
fn late_readers(graph: &Graph, limit: u64) -> Vec<Late> {
    let mut touched: Map<ValueId, Vec<usize>> = Map::filled(graph.values().len(), Vec::new());
    for (id, node) in graph.nodes().iter() {
        node.inputs.iter().chain(&node.outputs).for_each(|&value| touched[value].push(id.index()));
    }
    let late = |(value, at): (ValueId, &Vec<usize>)| {
        let is_large = limit / BYTES_MIN <= value_size(graph, value);
        if !is_large || graph.value(value).producer().is_none() {
            return None;
        }
        let (_, reader) =
            at.windows(2).map(|pair| (pair[1] - pair[0], pair[1])).max_by_key(|&(distance, _)| distance)?;
        let distance = reader - at[at.iter().position(|&at| at == reader)? - 1];
        (DISTANCE_MIN <= distance).then_some(Late { value, reader })
    };
    touched.iter().filter_map(late).collect()
}

/// The nodes that compute a value from inputs of the graph and from values that are still there for its late readers, in order.
/// `None` if there are too many.
fn steps(graph: &Graph, lives: &Lives, again: &[Late], late: Late) -> Option<BTreeSet<NodeId>> {
    let mut nodes = BTreeSet::new();
    let mut open = vec![late.value];
    while let Some(value) = open.pop() {
        let id = graph.value(value).producer()?;
        if !nodes.insert(id) {
            continue;
        }
        if NODES_MAX < nodes.len() || graph.node(id).outputs.len() != 1 {
            return None;
        }
        for &input in &graph.node(id).inputs {
            // A value that is itself computed again is there behind its own late reader only.
            let is_held = |other: &Late| other.value != input || other.reader <= late.reader;
            let is_there = lives.last_read(input).is_some_and(|last| late.reader <= last) && again.iter().all(is_held);
            match graph.value(input).source {
                ValueDef::Node { .. } if !is_there => open.push(input),
                ValueDef::State { .. } => return None,
                _ => {}
            }
        }
    }
    Some(nodes)
}

fn with_copies(graph: &Graph, lives: &Lives, again: &[Late]) -> Graph {
    rewrite(graph, |context, id| {
        let mut here: Vec<Late> = again.iter().copied().filter(|late| late.reader == id.index()).collect();
        here.sort_by_key(|late| late.value);
        for late in here {
            let nodes = steps(graph, lives, again, late).expect("chosen from this graph");
            copy(context, &nodes, late.value);
        }
        None
    })
}

/// Computes a value by copies of nodes, for all readers that follow.
fn copy(context: &mut Rewrite, nodes: &BTreeSet<NodeId>, value: ValueId) {
    let graph = context.old;
    let mut copies: Map<ValueId, Option<ValueId>> = Map::filled(graph.values().len(), None);
    for &id in nodes {
        let node = graph.node(id);
        let inputs: Vec<ValueId> =
            node.inputs.iter().map(|&input| copies[input].unwrap_or_else(|| context.value(input))).collect();
        let new = context.add(node.op.clone(), &inputs, &node.scope.child("again")).expect("the types stay");
        copies[node.outputs[0]] = Some(new);
    }
    context.replace(value, copies[value].expect("the nodes compute the value"));
}
