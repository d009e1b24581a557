//! [`Estimate`]: the live bytes and the cost of ranges of nodes, as they are and in stripes, without building any graph.
//!
//! Live bytes follow [`crate::tasks`]: a stripe makes the blocks of each node in proportion to the rows that it computes. The cost of
//! a step is modelled as its arithmetic plus its traffic, both in operations.

use std::collections::BTreeMap;
use std::ops::Range;

use ir::analysis::value_size;
use ir::{Graph, Node, NodeId, Query, Target, ValueId};
use types::{Bytes, EntityId, Map};

use super::borders::{Borders, Lives};
use super::{Needs, StripedRegion, Takes, needs, takes};
use crate::order::BlockId;
use crate::schedule::{Counted, MemoryModel, tasks};
use crate::{Priced, Prices, assign_layouts};

/// What moving a byte costs, in arithmetic operations: some 100 GFLOP/s against 15 GB/s.
const BYTE_COST: u64 = 6;
/// What an operation takes, in the unit of a target's times.
const PICOSECONDS: u64 = 10;
/// What a step costs by itself, in operations: some microseconds to hand out work and wait.
const STEP_COST: u64 = 300_000;

/// What a range of nodes takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) peak: u64,
    pub(super) cost: u64,
}

/// What each node of a graph takes, in the order of the graph.
pub(super) struct Estimate {
    /// The graph, relayouts included.
    pub(super) graph: Graph,
    pub(super) lives: Lives,
    /// By position the blocks that a node reads and makes.
    steps: Vec<Step>,
    /// By position the bytes that are live while the node runs.
    pub(super) live: Vec<u64>,
    /// By position, one more than there are nodes: the bytes that are live between the node before and the one behind.
    crossing: Vec<u64>,
    /// By block its bytes.
    blocks: Map<BlockId, u64>,
    cost: Vec<u64>,
}

/// The blocks of a node.
struct Step {
    reads: Vec<BlockId>,
    makes: Vec<BlockId>,
    /// See [`crate::order::Task::in_place`].
    in_place: Vec<Vec<BlockId>>,
    workspace: u64,
}

impl Estimate {
    /// In the cheapest layouts. Workspaces are the least that kernels can do with.
    pub(super) fn of(graph: &Graph, target: &dyn Target, prices: &Prices) -> Estimate {
        let graph = assign_layouts(graph, &Priced::new(target, prices, graph));
        let memory = MemoryModel::of(&graph, target, Bytes::ZERO);
        let tasks = tasks(&graph, &memory, Counted::ByPart);
        let blocks: Map<BlockId, u64> = tasks.blocks().values().map(|block| block.bytes.0).collect();
        let count = graph.nodes().len();
        let mut changes = vec![0i64; count + 2];
        for (id, block) in tasks.blocks().iter() {
            let born = block.makers.first().map_or(0, |maker| maker.index() + 1);
            let last = if block.kept { Some(count) } else { block.readers.last().map(|reader| reader.index()) };
            if let Some(last) = last.filter(|&last| born <= last) {
                changes[born] += blocks[id] as i64;
                changes[last + 1] -= blocks[id] as i64;
            }
        }
        let crossing: Vec<u64> = changes[..=count]
            .iter()
            .scan(0, |sum, change| {
                *sum += change;
                Some(*sum as u64)
            })
            .collect();
        let last_reader = |block: &BlockId| tasks.blocks()[*block].readers.last().map(|reader| reader.index());
        let mut live = Vec::with_capacity(count);
        let mut steps = Vec::with_capacity(count);
        for (id, task) in tasks.tasks().iter() {
            let size = |of: &[BlockId]| of.iter().map(|&block| blocks[block]).sum::<u64>();
            let dies = |block: &BlockId| !tasks.blocks()[*block].kept && last_reader(block) == Some(id.index());
            let takes = task.in_place.iter().any(|over| over.iter().all(dies));
            let first = task.makes.first().map_or(0, |&block| blocks[block]);
            let workspace = task.workspace.0;
            live.push(crossing[id.index()] + size(&task.makes) + workspace - if takes { first } else { 0 });
            let (reads, makes, in_place) = (task.reads.clone(), task.makes.clone(), task.in_place.clone());
            steps.push(Step { reads, makes, in_place, workspace });
        }
        let (lives, cost) = (Lives::of(&graph), times(&graph, target).unwrap_or_else(|| costs(&graph)));
        Estimate { graph, lives, steps, live, crossing, blocks, cost }
    }

    /// The nodes of a range as they are.
    pub(super) fn plain(&self, nodes: Range<usize>) -> Stretch {
        let peak = self.live[nodes.clone()].iter().copied().max().unwrap_or(0);
        Stretch { peak, cost: self.cost[nodes].iter().sum() }
    }

    /// The bytes that are live through all stripes of a region: its entries, its exits, and values that pass it by. Exits may take the
    /// bytes of entries, which count twice here.
    pub(super) fn held(&self, nodes: &Range<usize>, borders: &Borders) -> u64 {
        let exits: u64 = borders.exits.iter().map(|&exit| self.bytes(exit)).sum();
        self.crossing[nodes.start] + exits
    }

    /// The same where exits take the bytes of all entries.
    pub(super) fn held_least(&self, nodes: &Range<usize>, borders: &Borders) -> u64 {
        self.held(nodes, borders).saturating_sub(borders.entries.iter().map(|&entry| self.bytes(entry)).sum())
    }

    /// A region in stripes; `None` if it is invalid. All stripes but the first and the last count as the one in the middle.
    pub(super) fn striped(&self, region: &StripedRegion, borders: &Borders) -> Option<Stretch> {
        let count = region.stripes;
        let samples: &[(usize, u64)] = &if count == 2 {
            [(0, 1), (1, 1), (0, 0)]
        } else {
            [(0, 1), (count / 2, count as u64 - 2), (count - 1, 1)]
        };
        let mut needed = Vec::new();
        for &(stripe, times) in samples.iter().filter(|(_, times)| 0 < *times) {
            needed.push((stripe, times, needs(&self.graph, &self.lives, borders, region, stripe)?));
        }
        let by_stripe: Vec<(usize, &Needs)> = needed.iter().map(|(stripe, _, needs)| (*stripe, needs)).collect();
        let takes = takes(&self.graph, &self.lives, borders, region, &by_stripe);
        let taken: u64 = takes.keys().map(|&exit| self.bytes(exit)).sum();
        let held = self.held(&region.nodes, borders) - taken;
        let mut all = Stretch { peak: 0, cost: 0 };
        for (_, times, needs) in &needed {
            let one = self.stripe(region, borders, needs, &takes);
            all.peak = all.peak.max(held + one.peak);
            all.cost += times * one.cost;
        }
        Some(all)
    }

    /// One stripe, apart from the bytes that are live through all of them.
    fn stripe(&self, region: &StripedRegion, borders: &Borders, needs: &Needs, takes: &Takes) -> Stretch {
        let StripedRegion { nodes, axis, .. } = region;
        let part = |value: ValueId, bytes: u64| match (needs.get(&value), self.graph.ty(value).shape.get(*axis)) {
            (Some(range), Some(&extent)) => bytes * range.len() as u64 / extent.max(1) as u64,
            _ => bytes,
        };
        let is_whole = |value: ValueId| {
            needs.get(&value).is_none_or(|range| Some(&range.len()) == self.graph.ty(value).shape.get(*axis))
        };
        // Bytes of the region's own blocks, and when each is read for the last time.
        let mut blocks: BTreeMap<BlockId, (u64, usize)> = BTreeMap::new();
        let mut copies: BTreeMap<ValueId, usize> = BTreeMap::new();
        let entries: Vec<ValueId> = borders.entries.iter().copied().filter(|&entry| !is_whole(entry)).collect();
        for ix in nodes.clone() {
            let id = NodeId::from_index(ix);
            let node = self.graph.node(id);
            let output = node.outputs[0];
            if !needs.contains_key(&output) {
                continue;
            }
            let task = &self.steps[ix];
            for block in &task.reads {
                if let Some((_, last)) = blocks.get_mut(block) {
                    *last = ix;
                }
            }
            for &made in &task.makes {
                blocks.insert(made, (part(output, self.blocks[made]), ix));
            }
            for &input in node.inputs.iter().filter(|input| entries.contains(input)) {
                copies.insert(input, ix);
            }
        }
        let (mut live, mut peak, mut cost) = (0, 0, 0);
        let mut is_copied: Vec<ValueId> = takes.values().copied().filter(|entry| needs.contains_key(entry)).collect();
        for &entry in &is_copied {
            // The rows of this stripe and those of the next.
            let bytes = part(entry, self.bytes(entry));
            live += 2 * bytes;
            cost += 2 * bytes * BYTE_COST + STEP_COST;
        }
        for ix in nodes.clone() {
            let node = self.graph.node(NodeId::from_index(ix));
            let output = node.outputs[0];
            if !needs.contains_key(&output) {
                continue;
            }
            for &input in node.inputs.iter().filter(|input| copies.contains_key(input)) {
                if !is_copied.contains(&input) {
                    is_copied.push(input);
                    let bytes = part(input, self.bytes(input));
                    live += bytes;
                    cost += 2 * bytes * BYTE_COST + STEP_COST;
                }
            }
            let task = &self.steps[ix];
            let size = |block: &BlockId| blocks.get(block).map_or(0, |(bytes, _)| *bytes);
            let dies = |block: &BlockId| blocks.get(block).is_some_and(|&(_, last)| last == ix);
            let made: u64 = task.makes.iter().map(size).sum();
            let first = task.makes.first().map_or(0, size);
            let in_place =
                task.in_place.iter().any(|over| over.iter().all(dies) && first <= over.iter().map(size).sum());
            // Large workspaces hold rows too.
            let workspace = part(output, task.workspace);
            let during = live + made + workspace - if in_place { first } else { 0 };
            peak = peak.max(during);
            live += made;
            let gone: u64 = task.reads.iter().chain(&task.makes).filter(|block| dies(block)).map(size).sum();
            live = live.saturating_sub(gone);
            for (input, _) in copies.iter().filter(|&(_, &last)| last == ix) {
                live = live.saturating_sub(part(*input, self.bytes(*input)));
            }
            // The fixed cost of a step stays; the rest is in proportion to the rows.
            cost += part(output, self.cost[ix] - STEP_COST) + STEP_COST;
            if borders.exits.contains(&output) {
                let range = self.bytes(output) / region.stripes as u64;
                peak = peak.max(live + part(output, self.bytes(output)));
                cost += 2 * range * BYTE_COST + STEP_COST;
            }
        }
        Stretch { peak, cost }
    }

    fn bytes(&self, value: ValueId) -> u64 {
        value_size(&self.graph, value)
    }
}

/// The modelled time of each node in operations; `None` if the target models no times.
fn times(graph: &Graph, target: &dyn Target) -> Option<Vec<u64>> {
    let time = |id: NodeId| {
        let best = target.candidates(graph, &[id], &Query::GIVEN).ok().and_then(|all| all.into_iter().next());
        best.map_or(0, |best| best.cost / PICOSECONDS) + STEP_COST
    };
    let times: Vec<u64> = graph.nodes().keys().map(time).collect();
    times.iter().any(|&time| time != STEP_COST).then_some(times)
}

/// The cost of each node, in operations.
pub(super) fn costs(graph: &Graph) -> Vec<u64> {
    let bytes = |&value: &ValueId| {
        let value = graph.value(value);
        value.layout.size(&value.ty.shape, value.ty.dtype).0
    };
    let cost = |node: &Node| {
        let moved: u64 = match node.moved_part() {
            Some(part) => 2 * bytes(&part),
            None => node.inputs.iter().chain(&node.outputs).map(bytes).sum(),
        };
        graph.node_flops(node) + moved * BYTE_COST + STEP_COST
    };
    graph.nodes().values().map(cost).collect()
}
