//! [`choose`]: which regions to run in stripes, and in how many.
//!
//! The positions of the order at which one value alone crosses cut the graph into stretches that do not share a live byte
//! apart from that value. So stretches are judged one by one: the peak of a choice is the largest of its stretches' peaks,
//! its cost their sum, and a walk over the positions from the first to the last finds the best choice: for each position
//! the best way to get there, over all regions that end there and all numbers of stripes. A stretch's peak in stripes is
//! measured on the stretch itself, cut out and rewritten.
//!
//! The cost of a step is modelled as its arithmetic plus its traffic, both in operations: see [`BYTE_COST`] and
//! [`STEP_COST`].

use std::ops::Range;

use ir::{Graph, Node, NodeId, Target, ValueId};
use types::{Bytes, EntityId, Map};

use super::{StripedRegion, crossings, split};
use crate::schedule::{MemoryModel, live_bytes};

/// What moving a byte costs, in arithmetic operations: some 100 GFLOP/s against 15 GB/s.
const BYTE_COST: u64 = 6;
/// What a step costs by itself, in operations: some microseconds to hand out work and wait.
const STEP_COST: u64 = 300_000;
/// More stripes than this spend more on halos and steps than they save.
const STRIPES_MAX: usize = 64;
/// Nodes of a region at most: bounds the work for very long graphs.
const REGION_NODES_MAX: usize = 200;

/// Regions to run in stripes, with the estimated peak and cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The regions, in order.
    pub regions: Vec<StripedRegion>,
    /// The most bytes alive at once, by the estimate that was used to choose.
    pub peak: u64,
    /// The modelled cost, in operations.
    pub cost: u64,
}

/// Finds the cheapest choice whose live bytes stay within `limit`, or without a limit the one with the least peak.
///
/// Workspaces are the least that kernels can do with. `None` where no choice stays within the limit, and for graphs
/// without a position at which one value crosses alone. `work` is the number of nodes of stripes that may be estimated: once it
/// is used up, no more regions are tried.
pub fn choose(graph: &Graph, limit: Option<u64>, target: &dyn Target, work: &mut u64) -> Option<Tiling> {
    let crossings = crossings(graph);
    let stops: Vec<usize> = (0..crossings.len()).filter(|&at| crossings[at].is_some()).collect();
    let whole = Measure::of(graph, target);
    let better = |a: &Tiling, b: &Tiling| match limit {
        Some(_) => (a.cost, a.peak) < (b.cost, b.peak),
        None => (a.peak, a.cost) < (b.peak, b.cost),
    };
    let start = *stops.first()?;
    let before = whole.stretch(0..start);
    let mut best: Vec<Option<Tiling>> = vec![None; stops.len()];
    best[0] =
        (within(before.peak, limit)).then(|| Tiling { regions: Vec::new(), peak: before.peak, cost: before.cost });
    for to in 1..stops.len() {
        let mut candidates = Vec::new();
        if let Some(path) = &best[to - 1] {
            let plain = whole.stretch(stops[to - 1]..stops[to]);
            if within(plain.peak, limit) {
                candidates.push(path.then(plain, None));
            }
        }
        for from in (0..to).rev() {
            let nodes = stops[from]..stops[to];
            if REGION_NODES_MAX < nodes.len() {
                break;
            }
            let Some(path) = &best[from] else { continue };
            // Stripes cost more than the whole: they must lower the peak.
            let plain = whole.stretch(nodes.clone());
            let goal = limit.unwrap_or_else(|| path.peak.max(1));
            if plain.peak <= goal {
                continue;
            }
            let (Some(entry), Some(exit)) = (crossings[nodes.start], crossings[nodes.end]) else { continue };
            let Some(stretch) = cut_out(graph, nodes.clone(), entry, exit) else { continue };
            for axis in axes(&stretch) {
                candidates.extend(stripes(&stretch, axis, limit, target, work).map(|(stripes, measured)| {
                    path.then(measured, Some(StripedRegion { nodes: nodes.clone(), axis, stripes }))
                }));
            }
        }
        best[to] = candidates.into_iter().reduce(|a, b| if better(&b, &a) { b } else { a });
    }
    let after = whole.stretch(stops[stops.len() - 1]..graph.nodes().len());
    let last = best.pop()??;
    within(after.peak, limit).then(|| last.then(after, None))
}

/// The modelled cost of running all nodes, in operations.
pub fn cost(graph: &Graph) -> u64 {
    costs(graph).iter().sum()
}

fn within(peak: u64, limit: Option<u64>) -> bool {
    limit.is_none_or(|limit| peak <= limit)
}

impl Tiling {
    fn then(&self, next: Stretch, split: Option<StripedRegion>) -> Tiling {
        let regions = self.regions.iter().cloned().chain(split).collect();
        Tiling { regions, peak: self.peak.max(next.peak), cost: self.cost + next.cost }
    }
}

/// The axes along which a stretch may be cut: the batch, and rows.
fn axes(stretch: &Graph) -> impl Iterator<Item = usize> {
    let shape = stretch.outputs().first().map(|output| stretch.ty(output.value).shape.clone()).unwrap_or_default();
    [0, 2].into_iter().filter(move |&axis| shape.get(axis).is_some_and(|&extent| 1 < extent))
}

/// The fewest stripes that stay within the limit, or the number with the least peak, with peak and cost.
fn stripes(
    stretch: &Graph,
    axis: usize,
    limit: Option<u64>,
    target: &dyn Target,
    work: &mut u64,
) -> Option<(usize, Stretch)> {
    let extent = stretch.ty(stretch.outputs()[0].value).shape[axis];
    let mut best: Option<(usize, Stretch)> = None;
    for stripes in (2..=extent.min(STRIPES_MAX)).filter(|&stripes| stripes <= 16 || stripes % 4 == 0) {
        let nodes = 0..stretch.nodes().len();
        let Some(left) = work.checked_sub((nodes.len() * stripes) as u64) else { break };
        *work = left;
        let rewritten = split(stretch, &[StripedRegion { nodes, axis, stripes }])?;
        let all = Measure::of(&rewritten, target).stretch(0..rewritten.nodes().len());
        let found = best.as_ref().is_none_or(|(_, best)| all.peak < best.peak);
        let worse = best.as_ref().is_some_and(|(_, best)| best.peak + best.peak / 4 < all.peak);
        if found {
            best = Some((stripes, all));
        }
        if worse || (limit.is_some() && within(all.peak, limit)) {
            break;
        }
    }
    best.filter(|(_, found)| within(found.peak, limit))
}

/// The cost of each node, in operations.
fn costs(graph: &Graph) -> Vec<u64> {
    let bytes = |&value: &ValueId| {
        let value = graph.value(value);
        value.layout.size(&value.ty.shape, value.ty.dtype).0
    };
    let cost = |node: &Node| {
        let moved: u64 = node.inputs.iter().chain(&node.outputs).map(bytes).sum();
        graph.node_flops(node) + moved * BYTE_COST + STEP_COST
    };
    graph.nodes().values().map(cost).collect()
}

/// What a stretch of nodes takes.
#[derive(Clone, Copy)]
struct Stretch {
    peak: u64,
    cost: u64,
}

/// What each node of a graph takes.
struct Measure {
    live: Vec<u64>,
    cost: Vec<u64>,
}

impl Measure {
    fn of(graph: &Graph, target: &dyn Target) -> Measure {
        let live =
            live_bytes(graph, &MemoryModel::of(graph, target, Bytes::ZERO)).into_iter().map(|bytes| bytes.0).collect();
        Measure { live, cost: costs(graph) }
    }

    fn stretch(&self, nodes: Range<usize>) -> Stretch {
        let peak = self.live[nodes.clone()].iter().copied().max().unwrap_or(0);
        Stretch { peak, cost: self.cost[nodes].iter().sum() }
    }
}

/// A stretch as a graph of its own, from the value that leads into it to the one that leads out.
fn cut_out(graph: &Graph, nodes: Range<usize>, entry: ValueId, exit: ValueId) -> Option<Graph> {
    let mut stretch = Graph::new(&graph.name);
    let mut map: Map<ValueId, Option<ValueId>> = Map::filled(graph.values().len(), None);
    let ty = graph.ty(entry);
    map[entry] = Some(stretch.add_input("entry", ty.dtype, ty.shape.clone()));
    for ix in nodes {
        let node = graph.node(NodeId::from_index(ix));
        for &input in &node.inputs {
            if map[input].is_none() {
                let value = graph.value(input);
                map[input] = Some(stretch.add_weight(&value.name, value.tensor()?.clone()));
            }
        }
        let inputs: Vec<ValueId> = node.inputs.iter().filter_map(|&input| map[input]).collect();
        let outputs = stretch.add(node.op.clone(), &inputs, node.scope.clone()).ok()?;
        node.outputs.iter().zip(outputs).for_each(|(&old, new)| map[old] = Some(new));
    }
    stretch.set_outputs(vec![("exit".into(), map[exit]?)]);
    Some(stretch)
}
