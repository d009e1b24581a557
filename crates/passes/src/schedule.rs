//! [`schedule`]: the order of the nodes with the least peak of live bytes.
//!
//! Nodes become tasks, values become blocks. Values share bytes as in lowering: a value is cut into blocks at the ends of its
//! views, and a view has the blocks of its part; a result
//! may take the bytes of operands that die with its node; a concatenation has the blocks of its concat slices, and a block of
//! its own for each other operand. Constants have none. This is the least memory that lowering can reach, and lower bounds
//! refer to it ([`Counted::ByPart`]). A state that a node replaces in its own bytes has no second block, and all other readers
//! of the old value come first: so an optimizer's update runs as soon as its gradient is complete. A buffer also occupies the bytes between its slices, so the best
//! order by parts may not be the best order of buffers: where buffers that are whole from their first slice on
//! ([`Counted::Whole`]) need more in that order, there is a second one.

use std::ops::Range;

use ir::analysis::alias::{AliasSets, Location, concat_starts};
use ir::analysis::value_size;
use ir::{Graph, Node, NodeId, Op, Query, Reuse, Target, ValueDef, ValueId, reorder, rewrite};
use smallvec::smallvec;
use types::{Bytes, Certificate, EntityId, Layout, Map};

use crate::order::{BlockId, OrderLimits, TaskId, Tasks, good_order, least_peak, lower_bound, peak};

/// A graph in its order of execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// The graph in that order.
    pub ordered: Ordered,
    /// The peak of live bytes in this order, with its lower bounds over all orders.
    pub order: Certificate,
    /// The graph in another order, where that needs less with concatenations [`Counted::Whole`].
    pub whole: Option<Ordered>,
}

/// A graph whose nodes have a new order.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// The graph.
    pub graph: Graph,
    /// By new position: the node in the graph that was ordered.
    pub nodes: Vec<NodeId>,
}

/// From when on the bytes of a concatenation count whose parts are written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Each part's from when it is written. No buffers need less.
    ByPart,
    /// All from when the first part is written. Buffers need at most this.
    Whole,
}

/// The bytes that a target adds to those of a graph's values.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryModel {
    /// Values take multiples of this.
    pub alignment: Bytes,
    /// By node the workspace of its kernels.
    pub workspaces: Map<NodeId, Bytes>,
}

impl MemoryModel {
    /// Nothing but the values' own bytes.
    pub fn bare(graph: &Graph) -> MemoryModel {
        MemoryModel { alignment: Bytes(1), workspaces: Map::filled(graph.nodes().len(), Bytes(0)) }
    }

    /// With the best kernels of a target whose workspace stays within a limit if it can. A node without a kernel has no
    /// workspace.
    pub fn of(graph: &Graph, target: &dyn Target, workspace: Bytes) -> MemoryModel {
        let query = Query { workspace, ..Query::GIVEN };
        let workspace = |(id, node)| match graph.reuse(node) {
            Reuse::Alias { .. } => Bytes(0),
            _ => target
                .candidates(graph, &[id], &query)
                .ok()
                .and_then(|all| Some(all.first()?.workspace))
                .unwrap_or_default(),
        };
        MemoryModel { alignment: target.alignment(), workspaces: graph.nodes().iter().map(workspace).collect() }
    }
}

/// For each node, in the given order, the most bytes live while it runs.
pub fn live_bytes(graph: &Graph, memory: &MemoryModel) -> Vec<Bytes> {
    let tasks = tasks(graph, memory, Counted::ByPart);
    tasks.live(&tasks.given_order()).expect("the nodes of a graph are in an order")
}

/// The search for an order that counts concatenations as a whole starts from the order that counts them by part. Graphs of up to
/// `WHOLE_TASKS` tasks then need only one `WHOLE_SHARE`th of the work: the first order is at a local minimum. In larger graphs its
/// search ended at the limit of its work, before that.
const WHOLE_TASKS: usize = 2000;
const WHOLE_SHARE: u64 = 4;

/// Orders nodes for the least peak of live bytes, concatenations counted by part. An order that is already the best stays.
pub fn schedule(graph: &Graph, memory: &MemoryModel) -> Scheduled {
    let limits = OrderLimits::for_tasks(graph.nodes().len());
    let sets = AliasSets::optimistic(graph);
    let by_part = least_peak(&tasks_of(graph, &sets, memory, Counted::ByPart), limits);
    let whole = tasks_of(graph, &sets, memory, Counted::Whole);
    let peak = peak(&whole, &by_part.order);
    // No buffers need less than the parts: their bound holds for the whole as well.
    let bound = by_part.certificate.least;
    let share = |work: u64| if graph.nodes().len() <= WHOLE_TASKS { work / WHOLE_SHARE } else { work };
    let (uncross_work, window_work) = (share(limits.uncross_work), share(limits.window_work));
    let less = OrderLimits { uncross_work, window_work, ..limits };
    let better = (by_part.certificate.value < peak).then(|| good_order(&whole, &by_part.order, bound, less));
    Scheduled {
        ordered: Ordered::new(graph, &by_part.order),
        order: by_part.certificate,
        whole: better.filter(|order| *order != by_part.order).map(|order| Ordered::new(graph, &order)),
    }
}

/// A graph in an order with a low peak of its values' bytes, which nothing proves to be the least: that of [`schedule`] without
/// workspaces, in less time.
pub fn in_good_order(graph: &Graph) -> Ordered {
    let limits = OrderLimits::for_tasks(graph.nodes().len());
    let tasks = tasks(graph, &MemoryModel::bare(graph), Counted::ByPart);
    // The bound only ends the search early. Where an order reaches it, few cuts suffice.
    let bound = lower_bound(&tasks, OrderLimits { bound_work: limits.bound_work / 8, ..limits });
    Ordered::new(graph, &good_order(&tasks, &tasks.given_order(), bound, limits))
}

/// A lower bound on the live bytes of a graph's steps in any order, with any kernels and layouts: values are row-major and
/// without padding, kernels have no workspace, and no value is stored in two layouts.
pub fn least_of_any_kernels(graph: &Graph) -> Bytes {
    let mut plain = rewrite(graph, |context, id| {
        let node = context.old.node(id);
        matches!(node.op, Op::Relayout(_)).then(|| smallvec![context.value(node.inputs[0])])
    });
    for value in plain.values().keys().collect::<Vec<ValueId>>() {
        plain.value_mut(value).layout = Layout::RowMajor;
    }
    let limits = OrderLimits::for_tasks(plain.nodes().len());
    lower_bound(&tasks(&plain, &MemoryModel::bare(&plain), Counted::ByPart), limits)
}

impl Ordered {
    fn new(graph: &Graph, order: &[TaskId]) -> Ordered {
        let nodes: Vec<NodeId> = order.iter().map(|task| NodeId::from_index(task.index())).collect();
        let stays = nodes.iter().copied().eq(graph.nodes().keys());
        Ordered { graph: if stays { graph.clone() } else { reorder(graph, &nodes) }, nodes }
    }
}

/// The nodes of a graph as tasks; a task has the index of its node.
///
/// Where alignment would keep a result from an operand of the same size, values count without it: a bound that is too
/// low is still one.
pub fn tasks(graph: &Graph, memory: &MemoryModel, counted: Counted) -> Tasks {
    tasks_of(graph, &AliasSets::optimistic(graph), memory, counted)
}

fn tasks_of(graph: &Graph, sets: &AliasSets, memory: &MemoryModel, counted: Counted) -> Tasks {
    let aligned = tasks_aligned(graph, sets, memory, memory.alignment, counted);
    let bare = tasks_aligned(graph, sets, memory, Bytes(1), counted);
    let in_place = |tasks: &Tasks| tasks.tasks().values().map(|task| task.in_place.len()).collect::<Vec<usize>>();
    if in_place(&aligned) == in_place(&bare) { aligned } else { bare }
}

/// With values of multiples of `alignment`.
fn tasks_aligned(graph: &Graph, sets: &AliasSets, memory: &MemoryModel, alignment: Bytes, counted: Counted) -> Tasks {
    let size = |value: ValueId| Bytes(value_size(graph, value));
    let root_of = |value: ValueId| match sets.location(value) {
        Location::Buffer { root, .. } => Some(root),
        Location::Constant { .. } => None,
    };
    // A value inside another one is not aligned by itself.
    let bytes = |value: ValueId| match root_of(value) {
        Some(root) if root == value => size(value).align_up(alignment),
        _ => size(value),
    };
    let cuts = cuts(graph, sets);
    // The pieces of a value, in its root: a block for each. The last one has the padding of the root.
    let pieces_of = |value: ValueId| -> Vec<Range<u64>> {
        match sets.location(value) {
            Location::Buffer { root, offset } => {
                let mut pieces = pieces(&cuts[root], offset..offset + size(value).0);
                if let Some(last) = pieces.last_mut() {
                    last.end = offset + bytes(value).0;
                }
                pieces
            }
            Location::Constant { .. } => Vec::new(),
        }
    };
    let length = |piece: &Range<u64>| Bytes(piece.end - piece.start);
    let mut tasks = Tasks::new();
    // By block: its range in its root; none for blocks of no bytes, which only express dependencies.
    let mut range_of: Map<BlockId, Option<Range<u64>>> = Map::new();
    // By root: the block that several nodes write into, if it counts as one.
    let mut joint: Map<ValueId, Option<BlockId>> = Map::filled(graph.values().len(), None);
    if counted == Counted::Whole {
        for (root, _) in writers(graph, sets).iter().filter(|(_, writers)| 1 < **writers) {
            joint[root] = Some(tasks.add_given(size(root).align_up(alignment)));
            range_of.push(None);
        }
    }
    let updates = Updates::of(graph, sets);
    // By node the blocks of no bytes that order it behind the other readers of the states that it replaces.
    let mut behind: Map<NodeId, Vec<BlockId>> = Map::filled(graph.nodes().len(), Vec::new());
    let joint_of = |value: ValueId| root_of(value).and_then(|root| joint[root]);
    let mut blocks: Map<ValueId, Vec<BlockId>> = Map::filled(graph.values().len(), Vec::new());
    for &given in graph.inputs().iter().chain(graph.states()) {
        for piece in pieces_of(given) {
            blocks[given].push(tasks.add_given(length(&piece)));
            range_of.push(Some(piece));
        }
    }
    graph.states().iter().flat_map(|&state| &blocks[state]).for_each(|&block| tasks.keep(block));
    for (id, node) in graph.nodes().iter() {
        let mut reads: Vec<BlockId> = node.inputs.iter().flat_map(|&input| blocks[input].iter().copied()).collect();
        reads.append(&mut behind[id]);
        let reuse = graph.reuse(node);
        let mut shared = Vec::new();
        // A view makes no bytes, but its readers must come after it: a block of no bytes expresses that.
        let mut makes: Vec<Option<Range<u64>>> = vec![None];
        // By output, the number of its pieces.
        let mut counts = vec![1; node.outputs.len()];
        match &reuse {
            Reuse::Alias { .. } => {
                let views = pieces_of(node.outputs[0]);
                let is_part = |block: &BlockId| match &range_of[*block] {
                    Some(range) => views.iter().any(|view| view.start < range.end && range.start < view.end),
                    None => true,
                };
                shared.extend(reads.iter().copied().filter(is_part));
            }
            Reuse::ConcatSlices(_) => {
                let is_joint = joint_of(node.outputs[0]).is_some();
                for (&part, start) in node.inputs.iter().zip(concat_starts(graph, node).unwrap_or_default()) {
                    if sets.is_at(part, node.outputs[0], start) {
                        shared.extend(&blocks[part]);
                    } else if !is_joint && let Location::Buffer { root, offset } = sets.location(node.outputs[0]) {
                        let slice = offset + start..offset + start + size(part).0;
                        makes.extend(pieces(&cuts[root], slice).into_iter().map(Some));
                    }
                }
                // The parts are not aligned, the whole is.
                let whole = node.outputs[0];
                if let Location::Buffer { offset, .. } = sets.location(whole)
                    && size(whole) < bytes(whole)
                    && !is_joint
                {
                    makes.push(Some(offset + size(whole).0..offset + bytes(whole).0));
                }
            }
            _ => {
                let has_bytes = |output: ValueId| joint_of(output).is_some() || updates.in_place[output];
                makes.clear();
                for (&output, count) in node.outputs.iter().zip(&mut counts) {
                    let own = if has_bytes(output) { Vec::new() } else { pieces_of(output) };
                    *count = own.len().max(1);
                    match own.is_empty() {
                        true => makes.push(None),
                        false => makes.extend(own.into_iter().map(Some)),
                    }
                }
            }
        }
        let updaters = updates.behind(graph, sets, id);
        makes.extend((!updaters.is_empty()).then_some(None));
        let sizes: Vec<Bytes> = makes.iter().map(|piece| piece.as_ref().map_or(Bytes(0), length)).collect();
        let task = tasks.add(&reads, &sizes);
        tasks.set_pieces(task, counts.first().copied().unwrap_or(1));
        for piece in makes {
            range_of.push(piece);
        }
        if let Some(&last) = tasks.tasks()[task].makes.last() {
            updaters.into_iter().for_each(|updater| behind[updater].push(last));
        }
        if !matches!(reuse, Reuse::Alias { .. }) {
            tasks.set_workspace(task, memory.workspaces[id].align_up(memory.alignment));
        }
        let made = tasks.tasks()[task].makes.clone();
        match reuse {
            Reuse::Alias { .. } | Reuse::ConcatSlices(_) => {
                shared.extend(made);
                shared.sort_unstable();
                shared.dedup();
                blocks[node.outputs[0]] = shared;
            }
            _ => {
                let mut made = made.into_iter();
                for (&output, count) in node.outputs.iter().zip(counts) {
                    blocks[output].extend(made.by_ref().take(count));
                }
            }
        }
        for &output in &node.outputs {
            let Some(joint) = joint_of(output) else { continue };
            if writes(graph, node, sets) {
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

/// By root, the ends of all views in its set: between two of them, bytes are read together.
fn cuts(graph: &Graph, sets: &AliasSets) -> Map<ValueId, Vec<u64>> {
    let mut cuts: Map<ValueId, Vec<u64>> = Map::filled(graph.values().len(), Vec::new());
    for node in graph.nodes().values().filter(|node| matches!(graph.reuse(node), Reuse::Alias { .. })) {
        if let Location::Buffer { root, offset } = sets.location(node.outputs[0]) {
            cuts[root].extend([offset, offset + value_size(graph, node.outputs[0])]);
        }
    }
    for root in sets.roots() {
        cuts[root].sort_unstable();
        cuts[root].dedup();
    }
    cuts
}

/// A range, cut.
fn pieces(cuts: &[u64], range: Range<u64>) -> Vec<Range<u64>> {
    let first = cuts.partition_point(|cut| *cut <= range.start);
    // A value of no bytes may be at a cut.
    let inside = &cuts[first..cuts.partition_point(|cut| *cut < range.end).max(first)];
    let starts = [range.start].into_iter().chain(inside.iter().copied());
    let ends = inside.iter().copied().chain([range.end]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// States whose next value is written in their own bytes.
struct Updates {
    /// By state the node that replaces it.
    updater: Map<ValueId, Option<NodeId>>,
    /// By value whether it takes the bytes of the state that it replaces.
    in_place: Map<ValueId, bool>,
}

impl Updates {
    /// The updates of nodes that replace several states at once ([`Reuse::EachInPlace`]), each behind all other readers of
    /// the old value.
    fn of(graph: &Graph, sets: &AliasSets) -> Updates {
        let values = graph.values().len();
        let mut updates = Updates { updater: Map::filled(values, None), in_place: Map::filled(values, false) };
        let mut last_reader: Map<ValueId, Option<NodeId>> = Map::filled(values, None);
        for (id, node) in graph.nodes().iter() {
            for &input in &node.inputs {
                if let Location::Buffer { root, .. } = sets.location(input) {
                    last_reader[root] = Some(id);
                }
            }
        }
        for output in graph.outputs() {
            let (Some(state), ValueDef::Node { node: id, output: number }) =
                (output.state(), &graph.value(output.value).source)
            else {
                continue;
            };
            let node = graph.node(*id);
            let Reuse::EachInPlace(pairs) = graph.reuse(node) else { continue };
            let replaces = pairs.iter().any(|&[result, operand]| result == *number && node.inputs[operand] == state);
            if replaces && last_reader[state] == Some(*id) {
                updates.updater[state] = Some(*id);
                updates.in_place[output.value] = true;
            }
        }
        updates
    }

    /// The nodes that replace states that a node reads.
    fn behind(&self, graph: &Graph, sets: &AliasSets, id: NodeId) -> Vec<NodeId> {
        let node = graph.node(id);
        let updater = |&input: &ValueId| match sets.location(input) {
            Location::Buffer { root, .. } => self.updater[root].filter(|&updater| updater != id),
            Location::Constant { .. } => None,
        };
        let mut updaters: Vec<NodeId> = node.inputs.iter().filter_map(updater).collect();
        updaters.sort_unstable();
        updaters.dedup();
        updaters
    }
}

/// Whether a node writes anything: views write nothing, and neither do concatenations whose operands are all in place.
fn writes(graph: &Graph, node: &Node, sets: &AliasSets) -> bool {
    match concat_starts(graph, node) {
        Some(starts) => !node.inputs.iter().zip(starts).all(|(&part, start)| sets.is_at(part, node.outputs[0], start)),
        None => !matches!(graph.reuse(node), Reuse::Alias { .. }),
    }
}

/// By root how many nodes write into its set.
fn writers(graph: &Graph, sets: &AliasSets) -> Map<ValueId, usize> {
    let mut writers: Map<ValueId, usize> = Map::filled(graph.values().len(), 0);
    for node in graph.nodes().values().filter(|node| writes(graph, node, sets)) {
        for &output in &node.outputs {
            if let Location::Buffer { root, .. } = sets.location(output) {
                writers[root] += 1;
            }
        }
    }
    writers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_between_their_ends() {
        let ends = |cuts: &[u64], range| -> Vec<(u64, u64)> {
            pieces(cuts, range).into_iter().map(|piece| (piece.start, piece.end)).collect()
        };
        let cuts = [0, 4, 8];
        assert_eq!(ends(&cuts, 0..8), [(0, 4), (4, 8)]);
        assert_eq!(ends(&cuts, 2..12), [(2, 4), (4, 8), (8, 12)]);
        assert_eq!(ends(&cuts, 4..8), [(4, 8)]);
        assert_eq!(ends(&cuts, 4..4), [(4, 4)]);
        assert_eq!(ends(&[], 1..3), [(1, 3)]);
    }
}
