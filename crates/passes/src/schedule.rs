//! [`schedule`]: the order of the nodes, chosen for the least memory alive at once.
//!
//! Nodes become tasks, values become blocks. What shares bytes when a graph is lowered shares them here: a view has the
//! blocks of its operand; a result may take the bytes of operands that die with its node; a concatenation has the blocks of
//! those operands that can be written into it in the first place, and a block of its own for each of the others. Known
//! values have none. That is the best that lowering may come to, and what bounds are about ([`Counted::ByPart`]). Buffers
//! are whole from when the first part is written into them ([`Counted::Whole`]); an order that is best by parts may not be
//! best then.

use ir::{Graph, Node, NodeId, Reuse, ValueDef, ValueId, reorder};
use types::{Bytes, Certificate, EntityId, Map};

use crate::order::{BlockId, Limits, TaskId, Tasks, least_peak, peak};

/// A graph in its order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// The graph, its nodes as they run.
    pub graph: Graph,
    /// The peak of live bytes in this order, with its lower bounds over all orders.
    pub order: Certificate,
    /// The graph in another order, where that needs less with concatenations [`Counted::Whole`].
    pub whole: Option<Graph>,
}

/// From when on the bytes of a concatenation count whose parts are written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Each part's from when it is written. No buffers need less.
    ByPart,
    /// All from when the first part is written, as those of a buffer.
    Whole,
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
    let tasks = tasks(graph, footprint, Counted::ByPart);
    tasks.live(&tasks.given_order()).expect("the nodes of a graph stand in an order")
}

/// Orders nodes so that the most bytes alive at once are as few as they can be, concatenations counted by part. An order
/// that is best already stays.
pub fn schedule(graph: &Graph, footprint: &Footprint) -> Scheduled {
    let limits = Limits::default();
    // Asked once: a target may have to choose kernels for an answer.
    let workspaces: Map<NodeId, Bytes> = graph.nodes().keys().map(|id| (footprint.workspace)(graph, id)).collect();
    let footprint = &Footprint { workspace: &|_, id| workspaces[id], ..*footprint };
    let by_part = least_peak(&tasks(graph, footprint, Counted::ByPart), limits);
    let whole = tasks(graph, footprint, Counted::Whole);
    let peak = peak(&whole, &by_part.order);
    let other = (by_part.certificate.value < peak).then(|| least_peak(&whole, limits));
    let better = other.filter(|other| other.certificate.value < peak);
    Scheduled {
        graph: ordered(graph, &by_part.order),
        order: by_part.certificate,
        whole: better.map(|better| ordered(graph, &better.order)),
    }
}

fn ordered(graph: &Graph, order: &[TaskId]) -> Graph {
    let nodes: Vec<NodeId> = order.iter().map(|task| NodeId::from_index(task.index())).collect();
    let stays = nodes.iter().copied().eq(graph.nodes().keys());
    if stays { graph.clone() } else { reorder(graph, &nodes) }
}

/// The nodes of a graph as tasks; a task has the index of its node.
///
/// Where alignment would keep a result from an operand of the same size, values count without it: a bound that is too
/// low is still one.
pub fn tasks(graph: &Graph, footprint: &Footprint, counted: Counted) -> Tasks {
    let aligned = tasks_aligned(graph, footprint, footprint.alignment, counted);
    let bare = tasks_aligned(graph, footprint, Bytes(1), counted);
    let ways = |tasks: &Tasks| tasks.tasks().values().map(|task| task.in_place.len()).collect::<Vec<usize>>();
    if ways(&aligned) == ways(&bare) { aligned } else { bare }
}

/// With values of multiples of `alignment`.
fn tasks_aligned(graph: &Graph, footprint: &Footprint, alignment: Bytes, counted: Counted) -> Tasks {
    let homes = Homes::new(graph);
    // What lies in another value is not aligned by itself.
    let bytes = |value: ValueId| match homes.find(value) {
        (home, 0) if home == value => Bytes(size(graph, value)).align_up(alignment),
        _ => Bytes(size(graph, value)),
    };
    let mut tasks = Tasks::new();
    // By value that others lie in: the block that several nodes write into, where it counts as one.
    let mut joint: Map<ValueId, Option<BlockId>> = Map::filled(graph.values().len(), None);
    if counted == Counted::Whole {
        for root in graph.values().keys().filter(|&root| homes.is_joint(root)) {
            joint[root] = Some(tasks.add_given(Bytes(size(graph, root)).align_up(alignment)));
        }
    }
    let joint_of = |value: ValueId| joint[homes.find(value).0];
    let mut blocks: Map<ValueId, Vec<BlockId>> = Map::filled(graph.values().len(), Vec::new());
    for &input in graph.inputs() {
        blocks[input].push(tasks.add_given(bytes(input)));
    }
    for &state in graph.states() {
        blocks[state].push(tasks.add_given(bytes(state)));
        tasks.keep(blocks[state][0]);
    }
    for (id, node) in graph.nodes().iter() {
        let reads: Vec<BlockId> = node.inputs.iter().flat_map(|&input| blocks[input].iter().copied()).collect();
        let reuse = graph.reuse(node);
        let mut shared = Vec::new();
        // A view makes nothing, and yet its readers come after it: that is what a block of no bytes says.
        let mut makes = vec![Bytes(0)];
        match &reuse {
            Reuse::Alias { .. } => shared.clone_from(&reads),
            Reuse::ConcatSlices(_) => {
                let is_joint = joint_of(node.outputs[0]).is_some();
                for (&part, start) in node.inputs.iter().zip(starts(graph, node, &reuse)) {
                    if homes.is_at(part, node.outputs[0], start) {
                        shared.extend(&blocks[part]);
                    } else if !is_joint {
                        makes.push(Bytes(size(graph, part)));
                    }
                }
                // The parts are not aligned, the whole is.
                let whole = node.outputs[0];
                let held = Bytes(size(graph, whole));
                if held < bytes(whole) && !is_joint {
                    makes.push(bytes(whole) - held);
                }
            }
            _ => {
                let own = |output| if joint_of(output).is_some() { Bytes(0) } else { bytes(output) };
                makes = node.outputs.iter().map(|&output| own(output)).collect();
            }
        }
        let task = tasks.add(&reads, &makes);
        if !matches!(reuse, Reuse::Alias { .. }) {
            tasks.set_workspace(task, (footprint.workspace)(graph, id).align_up(footprint.alignment));
        }
        let made = tasks.tasks()[task].makes.clone();
        match reuse {
            Reuse::Alias { .. } | Reuse::ConcatSlices(_) => {
                shared.extend(made);
                shared.sort_unstable();
                shared.dedup();
                blocks[node.outputs[0]] = shared;
            }
            _ => node.outputs.iter().zip(made).for_each(|(&output, block)| blocks[output].push(block)),
        }
        for &output in &node.outputs {
            let Some(joint) = joint_of(output) else { continue };
            if homes.writes(node) {
                tasks.add_maker(joint, task);
            }
            blocks[output].push(joint);
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
    /// By value that lies in no other: how many nodes write into it.
    writers: Map<ValueId, usize>,
}

impl<'a> Homes<'a> {
    fn new(graph: &'a Graph) -> Homes<'a> {
        let within = graph.values().keys().map(|value| (value, 0)).collect();
        let fixed = graph.values().values().map(|value| !matches!(value.source, ValueDef::Node { .. })).collect();
        let writers = Map::filled(graph.values().len(), 0);
        let mut homes = Homes { graph, within, fixed, writers };
        for node in graph.nodes().values() {
            if let Reuse::Alias { offset } = graph.reuse(node) {
                let element = graph.ty(node.inputs[0]).dtype.size().0;
                homes.within[node.outputs[0]] = (node.inputs[0], offset as u64 * element);
            }
        }
        for node in graph.nodes().values().rev() {
            let reuse = graph.reuse(node);
            if let Reuse::ConcatSlices(_) = reuse {
                homes.place_parts(node, &starts(graph, node, &reuse));
            }
        }
        for node in graph.nodes().values() {
            if !homes.writes(node) {
                continue;
            }
            for &output in &node.outputs {
                let root = homes.find(output).0;
                homes.writers[root] += 1;
            }
        }
        homes
    }

    /// Whether there is anything left for a node to write.
    fn writes(&self, node: &Node) -> bool {
        let reuse = self.graph.reuse(node);
        let starts = starts(self.graph, node, &reuse);
        match reuse {
            Reuse::Alias { .. } => false,
            Reuse::ConcatSlices(_) => {
                let mut parts = node.inputs.iter().zip(starts);
                !parts.all(|(&part, start)| self.is_at(part, node.outputs[0], start))
            }
            _ => true,
        }
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

    /// Whether several nodes write into a value that lies in no other.
    fn is_joint(&self, root: ValueId) -> bool {
        1 < self.writers[root]
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
    let Reuse::ConcatSlices(starts) = reuse else { return Vec::new() };
    let element = graph.ty(node.outputs[0]).dtype.size().0;
    starts.iter().map(|&start| start as u64 * element).collect()
}

fn size(graph: &Graph, value: ValueId) -> u64 {
    let value = graph.value(value);
    value.layout.size(&value.ty.shape, value.ty.dtype).0
}
