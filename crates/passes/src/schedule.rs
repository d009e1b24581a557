//! [`schedule`]: the order of the nodes, chosen for the least memory alive at once.
//!
//! Nodes become tasks, values become blocks. What shares bytes when a graph is lowered shares them here: a view has the
//! blocks of its operand; a result may take the bytes of operands that die with its node; a concatenation has the blocks of
//! those operands that can be written into it in the first place, and a block of its own for each of the others. Known
//! values have none. That is the best that lowering may come to: a concatenation's bytes may be taken as one block earlier
//! than this counts them.

use ir::{Graph, Node, NodeId, Reuse, Source, ValueId, reorder};
use types::{Bytes, EntityId, Map};

use crate::order::{BlockId, Certificate, Limits, Tasks, least_peak};

/// A graph in its order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// The graph, its nodes as they run.
    pub graph: Graph,
    /// What is known about the order.
    pub order: Certificate,
}

/// What a target adds to the bytes of a graph's values.
#[derive(Clone, Copy)]
pub struct Footprint<'a> {
    /// Values take multiples of this.
    pub alignment: Bytes,
    /// Bytes that a node needs only while it runs.
    pub workspace: &'a dyn Fn(&Graph, NodeId) -> Bytes,
}

impl Footprint<'_> {
    /// Nothing but the values' own bytes.
    pub const BARE: Footprint<'static> = Footprint { alignment: Bytes(1), workspace: &|_, _| Bytes(0) };
}

/// For each node, in the order as it is, the most bytes alive while it runs.
pub fn live_bytes(graph: &Graph, footprint: &Footprint) -> Vec<Bytes> {
    let tasks = tasks(graph, footprint);
    tasks.live(&tasks.given_order()).expect("the nodes of a graph stand in an order")
}

/// Orders nodes so that the most bytes alive at once are as few as they can be. An order that is best already stays.
pub fn schedule(graph: &Graph, footprint: &Footprint) -> Scheduled {
    let order = least_peak(&tasks(graph, footprint), Limits::default());
    let nodes: Vec<NodeId> = order.order.iter().map(|task| NodeId::from_index(task.index())).collect();
    let stays = nodes.iter().copied().eq(graph.nodes().keys());
    let graph = if stays { graph.clone() } else { reorder(graph, &nodes) };
    Scheduled { graph, order: order.certificate }
}

/// The nodes of a graph as tasks; a task has the index of its node.
///
/// Where alignment would keep a result from an operand of the same size, values count without it: a bound that is too
/// low is still one.
pub fn tasks(graph: &Graph, footprint: &Footprint) -> Tasks {
    let aligned = tasks_aligned(graph, footprint, footprint.alignment);
    let bare = tasks_aligned(graph, footprint, Bytes(1));
    let ways = |tasks: &Tasks| tasks.tasks().values().map(|task| task.in_place.len()).collect::<Vec<usize>>();
    if ways(&aligned) == ways(&bare) { aligned } else { bare }
}

/// With values of multiples of `alignment`.
fn tasks_aligned(graph: &Graph, footprint: &Footprint, alignment: Bytes) -> Tasks {
    let homes = Homes::new(graph);
    // What lies in another value is not aligned by itself.
    let bytes = |value: ValueId| match homes.find(value) {
        (home, 0) if home == value => Bytes(size(graph, value)).align_up(alignment),
        _ => Bytes(size(graph, value)),
    };
    let mut tasks = Tasks::new();
    let mut blocks: Map<ValueId, Vec<BlockId>> = Map::filled(graph.values().len(), Vec::new());
    for &input in graph.inputs() {
        blocks[input].push(tasks.add_given(bytes(input)));
    }
    for (id, node) in graph.nodes().iter() {
        let reads: Vec<BlockId> = node.inputs.iter().flat_map(|&input| blocks[input].iter().copied()).collect();
        let reuse = graph.reuse(node);
        let mut shared = Vec::new();
        // A view makes nothing, and yet its readers come after it: that is what a block of no bytes says.
        let mut makes = vec![Bytes(0)];
        match &reuse {
            Reuse::Alias { .. } => shared.clone_from(&reads),
            Reuse::Parts(_) => {
                for (&part, start) in node.inputs.iter().zip(starts(graph, node, &reuse)) {
                    if homes.is_at(part, node.outputs[0], start) {
                        shared.extend(&blocks[part]);
                    } else {
                        makes.push(Bytes(size(graph, part)));
                    }
                }
                // The parts are not aligned, the whole is.
                let whole = node.outputs[0];
                let held = Bytes(size(graph, whole));
                if held < bytes(whole) {
                    makes.push(bytes(whole) - held);
                }
            }
            _ => makes = node.outputs.iter().map(|&output| bytes(output)).collect(),
        }
        let task = tasks.add(&reads, &makes);
        if !matches!(reuse, Reuse::Alias { .. }) {
            tasks.set_workspace(task, (footprint.workspace)(graph, id).align_up(footprint.alignment));
        }
        let made = tasks.tasks()[task].makes.clone();
        match reuse {
            Reuse::Alias { .. } | Reuse::Parts(_) => {
                shared.extend(made);
                shared.sort_unstable();
                shared.dedup();
                blocks[node.outputs[0]] = shared;
            }
            _ => node.outputs.iter().zip(made).for_each(|(&output, block)| blocks[output].push(block)),
        }
        if let Reuse::InPlace(allowed) = reuse {
            for &input in allowed.iter().map(|&ix| &node.inputs[ix]) {
                tasks.allow_in_place(task, &blocks[input]);
            }
        }
    }
    graph.outputs().iter().flat_map(|output| &blocks[output.value]).for_each(|&block| tasks.keep(block));
    tasks
}

/// Where values lie if every part of a concatenation that can be written into it is.
struct Homes<'a> {
    graph: &'a Graph,
    /// By value: the value whose bytes it lies in, and from which on. A value that lies in no other lies in itself.
    within: Map<ValueId, (ValueId, u64)>,
    /// By value that lies in no other: whether its bytes are given or known.
    fixed: Map<ValueId, bool>,
}

impl<'a> Homes<'a> {
    fn new(graph: &'a Graph) -> Homes<'a> {
        let within = graph.values().keys().map(|value| (value, 0)).collect();
        let fixed = graph.values().values().map(|value| !matches!(value.source, Source::Node { .. })).collect();
        let mut homes = Homes { graph, within, fixed };
        for node in graph.nodes().values() {
            if let Reuse::Alias { offset } = graph.reuse(node) {
                let element = graph.ty(node.inputs[0]).dtype.size().0;
                homes.within[node.outputs[0]] = (node.inputs[0], offset as u64 * element);
            }
        }
        for node in graph.nodes().values().rev() {
            let reuse = graph.reuse(node);
            if let Reuse::Parts(_) = reuse {
                homes.place_parts(node, &starts(graph, node, &reuse));
            }
        }
        homes
    }

    /// The last concatenation comes first: what grows from one to the next becomes the beginning of the last.
    fn place_parts(&mut self, node: &Node, starts: &[u64]) {
        let result = node.outputs[0];
        let (root, offset) = self.find(node.inputs[0]);
        let is_laid_out = starts[0] <= offset
            && node
                .inputs
                .iter()
                .zip(starts)
                .all(|(&part, start)| self.find(part) == (root, offset - starts[0] + start));
        if is_laid_out && self.find(result) == (result, 0) && !self.fixed[root] && root != result {
            self.within[result] = (root, offset - starts[0]);
            return;
        }
        for (&part, &start) in node.inputs.iter().zip(starts) {
            let (root, offset) = self.find(part);
            let is_whole = offset == 0 && size(self.graph, root) == size(self.graph, part);
            let (home, at) = self.find(result);
            if is_whole && root != home && !self.fixed[root] && !self.fixed[home] {
                self.within[root] = (home, at + start);
            }
        }
    }

    /// Whether a part lies in a result at an offset.
    fn is_at(&self, part: ValueId, result: ValueId, start: u64) -> bool {
        let (home, at) = self.find(result);
        self.find(part) == (home, at + start)
    }

    fn find(&self, mut value: ValueId) -> (ValueId, u64) {
        let mut at = 0;
        while self.within[value].0 != value {
            let (next, offset) = self.within[value];
            (value, at) = (next, at + offset);
        }
        (value, at)
    }
}

/// Where the parts of a concatenation start, in bytes.
fn starts(graph: &Graph, node: &Node, reuse: &Reuse) -> Vec<u64> {
    let Reuse::Parts(starts) = reuse else { return Vec::new() };
    let element = graph.ty(node.outputs[0]).dtype.size().0;
    starts.iter().map(|&start| start as u64 * element).collect()
}

fn size(graph: &Graph, value: ValueId) -> u64 {
    let value = graph.value(value);
    value.layout.size(&value.ty.shape, value.ty.dtype).0
}
