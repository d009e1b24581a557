//! [`AliasSets`]: which values share bytes.
//!
//! An *alias set* is a set of values in one block of bytes; it becomes one buffer. Sets grow in three rounds:
//!
//! 1. *Views*: a reshape, or a contiguous slice, is in its operand's set.
//! 2. *Concat slices*, from the last concatenation to the first: an operand that fills a block of its own moves into its
//!    slice of the result, so that its producer writes it there. If all operands are already adjacent in one block, the
//!    result is a view of them: a dense block's growing concatenations become prefixes of its last one.
//! 3. *In place*: a result takes the bytes of an operand that dies with the node. Insertions, which exist for it, come before
//!    round 2.
//!
//! A state's set lives through the whole run. Only the state's next value may take its bytes in place, and does so if it
//! can; otherwise a copy node writes them at the end of the run.
//!
//! [`AliasSets::views`] stops after round 1. [`AliasSets::optimistic`] does rounds 1 and 2 for the best of all orders of
//! the nodes: scheduling starts from it. [`AliasSets::in_order`] does all rounds for the order that the nodes have and for
//! the kernels that were chosen: it joins two sets only if the peak of live bytes does not grow, and never if one value's
//! bytes would be overwritten while another value still needs them. It records the reason for each set that is not joined.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use types::{Bytes, EntityId, Map};

use super::live_peak::LivePeak;
use super::liveness::{LiveRange, Liveness, hulls};
use super::value_size;
use crate::{Graph, Node, NodeId, Op, Output, Reuse, ValueDef, ValueId};

/// Where the bytes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In an alias set.
    Buffer {
        /// The value that the set is named by.
        root: ValueId,
        /// The distance from the set's first byte.
        offset: u64,
    },
    /// In a constant tensor.
    Constant {
        /// The value that holds the tensor.
        value: ValueId,
        /// The distance from the tensor's first byte.
        offset: u64,
    },
}

/// How a value came into its alias set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasKind {
    /// The set was made for it.
    Own,
    /// It is a view of an operand.
    View,
    /// It is written into its slice of a concatenation's result.
    ConcatSlice,
    /// It takes the bytes of an operand that dies with its node.
    InPlace,
}

/// How the kernels of a node write its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReuse {
    /// Whether each kernel call copies one concat slice, and falls away if that slice is in place.
    pub by_slice: bool,
    /// The operands that results may overwrite.
    pub in_place: SmallVec<[usize; 2]>,
}

/// Two sets that were not joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasRefusal {
    /// A value of the set that would have been absorbed.
    pub child: ValueId,
    /// The node at which the bytes would have been shared.
    pub node: NodeId,
    /// The value whose bytes would have been shared.
    pub of: ValueId,
    /// How they would have been shared.
    pub kind: AliasKind,
    /// Why they are not.
    pub reason: AliasObstacle,
}

/// Why two sets are not joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AliasObstacle {
    /// A later node still reads the bytes.
    ReadLater(NodeId),
    /// The bytes hold a result of the graph.
    Output,
    /// The bytes belong to an input, a state or a constant.
    Given,
    /// The kernel reads its operand while it writes its result, or another operand has the same bytes.
    Kernel,
    /// The bytes are in a block with other values, so that they cannot move.
    Occupied,
    /// The peak of live bytes would grow by this.
    Peak(Bytes),
}

#[derive(Clone, Debug, Default)]
struct AliasSet {
    size: u64,
    members: Vec<ValueId>,
}

/// All alias sets of a graph.
#[derive(Clone, Debug)]
pub struct AliasSets {
    location: Map<ValueId, Location>,
    /// By root; empty for values that are not one.
    sets: Map<ValueId, AliasSet>,
    kind: Map<ValueId, AliasKind>,
    refusals: Vec<AliasRefusal>,
}

impl AliasSets {
    /// Round 1: views alone share bytes.
    pub fn views(graph: &Graph) -> AliasSets {
        let (mut location, mut sets, mut kind) = (Map::new(), Map::new(), Map::new());
        for (id, value) in graph.values().iter() {
            let is_constant = value.tensor().is_some();
            location.push(match is_constant {
                true => Location::Constant { value: id, offset: 0 },
                false => Location::Buffer { root: id, offset: 0 },
            });
            sets.push(match is_constant {
                true => AliasSet::default(),
                false => AliasSet { size: value_size(graph, id), members: vec![id] },
            });
            kind.push(AliasKind::Own);
        }
        let mut all = AliasSets { location, sets, kind, refusals: Vec::new() };
        for node in graph.nodes().values() {
            let Reuse::Alias { offset } = graph.reuse(node) else { continue };
            let (operand, result) = (node.inputs[0], node.outputs[0]);
            let shift = offset as u64 * graph.ty(operand).dtype.size().0;
            all.kind[result] = AliasKind::View;
            match all.location[operand] {
                Location::Constant { value, offset } => {
                    all.sets[result] = AliasSet::default();
                    all.location[result] = Location::Constant { value, offset: offset + shift };
                }
                Location::Buffer { root, offset } => all.join(result, root, offset + shift),
            }
        }
        all
    }

    /// Rounds 1 and 2 for the best of all orders: every concat slice that can be written in place is.
    pub fn optimistic(graph: &Graph) -> AliasSets {
        let mut all = AliasSets::views(graph);
        for node in graph.nodes().values().rev() {
            let Some(starts) = concat_starts(graph, node) else { continue };
            let result = node.outputs[0];
            if all.join_adjacent_slices(graph, node, &starts) {
                continue;
            }
            for (&operand, &start) in node.inputs.iter().zip(&starts) {
                let (Location::Buffer { root: own, .. }, Location::Buffer { root, offset }) =
                    (all.location[operand], all.location[result])
                else {
                    continue;
                };
                if own != root && all.owns_block(graph, operand) && !all.is_given(graph, own) {
                    all.join(own, root, offset + start);
                    all.kind[operand] = AliasKind::ConcatSlice;
                }
            }
        }
        all
    }

    /// All rounds, for the order of the graph's nodes and the kernels that do their work.
    pub fn in_order(graph: &Graph, kernels: &Map<NodeId, KernelReuse>) -> AliasSets {
        let mut state = InOrder::new(graph);
        // Insertions first: without their joins, the peak that the others are compared with would be too high.
        for (id, node) in graph.nodes().iter().filter(|(_, node)| matches!(node.op, Op::Insert(_))) {
            if let Reuse::InPlace(allowed) = graph.reuse(node) {
                state.any_in_place(id, node, 0, &allowed, &kernels[id].in_place);
            }
        }
        for (id, node) in graph.nodes().iter().rev() {
            if let Some(starts) = concat_starts(graph, node)
                && kernels[id].by_slice
                && !state.updates.iter().any(|update| update.copy == node.outputs[0])
            {
                state.concat_slices(id, node, &starts);
            }
        }
        for (id, node) in graph.nodes().iter() {
            match graph.reuse(node) {
                Reuse::InPlace(_) if matches!(node.op, Op::Insert(_)) => {}
                Reuse::InPlace(allowed) => state.any_in_place(id, node, 0, &allowed, &kernels[id].in_place),
                Reuse::EachInPlace(pairs) => {
                    for [output, input] in pairs {
                        state.any_in_place(id, node, output, &[input], &kernels[id].in_place);
                    }
                }
                Reuse::Never | Reuse::Alias { .. } | Reuse::ConcatSlices(_) => {}
            }
        }
        for StateUpdate { copy, state: own, .. } in std::mem::take(&mut state.updates) {
            state.join(copy, own, 0);
            state.all.kind[copy] = AliasKind::InPlace;
        }
        state.all
    }

    /// Where the bytes of a value are.
    pub fn location(&self, value: ValueId) -> Location {
        self.location[value]
    }

    /// The values that name a set.
    pub fn roots(&self) -> impl Iterator<Item = ValueId> {
        self.sets.iter().filter(|(_, set)| !set.members.is_empty()).map(|(root, _)| root)
    }

    /// The bytes of a set.
    pub fn size(&self, root: ValueId) -> u64 {
        self.sets[root].size
    }

    /// The values of a set.
    pub fn members(&self, root: ValueId) -> &[ValueId] {
        &self.sets[root].members
    }

    /// How a value came into its set.
    pub fn kind(&self, value: ValueId) -> AliasKind {
        self.kind[value]
    }

    /// The sets that were not joined, with the reason.
    pub fn refusals(&self) -> &[AliasRefusal] {
        &self.refusals
    }

    /// Whether an operand is `offset` bytes behind the start of a result.
    pub fn is_at(&self, operand: ValueId, result: ValueId, offset: u64) -> bool {
        match (self.location[operand], self.location[result]) {
            (Location::Buffer { root: a, offset: own }, Location::Buffer { root: b, offset: start }) => {
                a == b && own == start + offset
            }
            _ => false,
        }
    }

    /// Whether a concatenation's operands are adjacent in one block, in order and without gaps.
    fn has_adjacent_slices(&self, operands: &[ValueId], starts: &[u64]) -> bool {
        let Location::Buffer { root, offset } = self.location[operands[0]] else { return false };
        let is_adjacent = |(&operand, &start): (&ValueId, &u64)| {
            self.location[operand] == Location::Buffer { root, offset: offset + start - starts[0] }
        };
        starts[0] <= offset && operands.iter().zip(starts).all(is_adjacent)
    }

    /// Makes a concatenation's result a view of its operands if these are adjacent in one block already.
    fn join_adjacent_slices(&mut self, graph: &Graph, node: &Node, starts: &[u64]) -> bool {
        let result = node.outputs[0];
        let Location::Buffer { root, offset } = self.location[node.inputs[0]] else { return false };
        let joins = self.has_adjacent_slices(&node.inputs, starts)
            && self.location[result] == (Location::Buffer { root: result, offset: 0 })
            && root != result
            && !self.is_given(graph, root);
        if joins {
            self.join(result, root, offset - starts[0]);
            self.kind[result] = AliasKind::View;
        }
        joins
    }

    /// Whether a value fills a block of its own, so that the block can move as a whole.
    fn owns_block(&self, graph: &Graph, value: ValueId) -> bool {
        let Location::Buffer { root, offset } = self.location[value] else { return false };
        offset == 0 && self.sets[root].size == value_size(graph, value)
    }

    /// Whether the caller or an earlier run writes into a set.
    fn is_given(&self, graph: &Graph, root: ValueId) -> bool {
        let is_given = |&value: &ValueId| matches!(graph.value(value).source, ValueDef::Input | ValueDef::State { .. });
        self.sets[root].members.iter().any(is_given)
    }

    fn overlaps(&self, graph: &Graph, member: ValueId, range: &Range<u64>) -> bool {
        let Location::Buffer { offset, .. } = self.location[member] else { return false };
        offset < range.end && range.start < offset + value_size(graph, member)
    }

    /// Whether two values have bytes in common.
    fn share_bytes(&self, graph: &Graph, a: ValueId, b: ValueId) -> bool {
        match (self.location[a], self.location[b]) {
            (Location::Buffer { root, .. }, Location::Buffer { root: other, offset }) => {
                root == other && self.overlaps(graph, a, &(offset..offset + value_size(graph, b)))
            }
            _ => false,
        }
    }

    /// Moves a whole set into another.
    fn join(&mut self, child: ValueId, parent: ValueId, shift: u64) {
        let moved = std::mem::take(&mut self.sets[child]);
        for &member in &moved.members {
            if let Location::Buffer { root, offset } = &mut self.location[member] {
                *root = parent;
                *offset += shift;
            }
        }
        self.sets[parent].members.extend(moved.members);
    }

    /// Takes a set of `size` bytes and `count` members out of another that it was joined to last.
    fn part(&mut self, child: ValueId, parent: ValueId, shift: u64, size: u64, count: usize) {
        let all = &mut self.sets[parent].members;
        let members = all.split_off(all.len() - count);
        for &member in &members {
            if let Location::Buffer { root, offset } = &mut self.location[member] {
                *root = child;
                *offset -= shift;
            }
        }
        self.sets[child] = AliasSet { size, members };
    }
}

/// Where the operands of a concatenation start in its result, in bytes. `None` for nodes whose operands are not contiguous
/// slices of the result.
pub fn concat_starts(graph: &Graph, node: &Node) -> Option<Vec<u64>> {
    if !matches!(node.op, Op::Concat(_)) {
        return None;
    }
    let Reuse::ConcatSlices(starts) = graph.reuse(node) else { return None };
    let element = graph.ty(node.outputs[0]).dtype.size().0;
    Some(starts.iter().map(|&start| start as u64 * element).collect())
}

/// The replacement of a state at the end of a run.
struct StateUpdate {
    /// The value that a copy node makes for it.
    copy: ValueId,
    /// The copied value, before views of it.
    next: ValueId,
    /// The state.
    state: ValueId,
}

/// The updates of a graph that has a copy node for each of them.
fn state_updates(graph: &Graph) -> Vec<StateUpdate> {
    let update = |output: &Output| {
        let (copy, state) = (output.value, output.state()?);
        let mut next = graph.node(graph.value(copy).producer()?).inputs[0];
        while let Some(node) = graph.value(next).producer().map(|node| graph.node(node))
            && let Reuse::Alias { offset: 0 } = graph.reuse(node)
            && graph.ty(node.inputs[0]).shape.elements() == graph.ty(next).shape.elements()
        {
            next = node.inputs[0];
        }
        Some(StateUpdate { copy, next, state })
    };
    graph.outputs().iter().filter_map(update).collect()
}

/// Rounds 2 and 3 under an order.
struct InOrder<'a> {
    graph: &'a Graph,
    all: AliasSets,
    liveness: Liveness,
    /// By root: when its set is live.
    ranges: Map<ValueId, LiveRange>,
    /// By root: the bytes of its set that are live, as [`InOrder::live`] counts them.
    lives: Map<ValueId, Lives>,
    updates: Vec<StateUpdate>,
    /// The live bytes of the sets as they are.
    live: LivePeak,
}

/// A join of two sets, with all that undoes it.
struct Join {
    child: ValueId,
    parent: ValueId,
    shift: u64,
    /// The size of the child's set.
    size: u64,
    /// The members of the child's set.
    count: usize,
    /// When the parent's set was live.
    range: LiveRange,
    /// The bytes of it that were live.
    lives: Lives,
}

/// Bytes of a set, with the positions at which they are live.
type Lives = SmallVec<[(LiveRange, Bytes); 1]>;

/// The bytes of sets with more values count as live from the first to the last position, since each join would visit all
/// values.
const HULL_VALUES_MAX: usize = 256;

impl<'a> InOrder<'a> {
    fn new(graph: &'a Graph) -> InOrder<'a> {
        let (all, liveness) = (AliasSets::views(graph), Liveness::of(graph));
        let range = |root| liveness.range_of_all(all.members(root)).unwrap_or(LiveRange { first: 0, last: 0 });
        let ranges: Map<ValueId, LiveRange> = graph.values().keys().map(range).collect();
        // One position more than there are nodes: the results of the graph live on behind the last node.
        let live = LivePeak::new(graph.nodes().len() + 1);
        let lives = graph.values().keys().map(|_| Lives::new()).collect();
        let mut state = InOrder { graph, all, liveness, ranges, lives, updates: state_updates(graph), live };
        for root in graph.values().keys() {
            state.set_lives(root, state.lives_of(root));
        }
        state
    }

    /// The bytes of a set that are live.
    fn lives_of(&self, root: ValueId) -> Lives {
        match self.all.members(root).len() {
            0 => Lives::new(),
            1..=HULL_VALUES_MAX => hulls(self.graph, &self.liveness, &self.all, root, Bytes(1)).into(),
            _ => smallvec![(self.ranges[root], Bytes(self.all.size(root)))],
        }
    }

    /// Counts other bytes of a set as live; returns those that were counted.
    fn set_lives(&mut self, root: ValueId, lives: Lives) -> Lives {
        lives.iter().for_each(|&(range, size)| self.live.add(range, size));
        let before = std::mem::replace(&mut self.lives[root], lives);
        before.iter().for_each(|&(range, size)| self.live.remove(range, size));
        before
    }

    /// Round 2.
    fn concat_slices(&mut self, id: NodeId, node: &Node, starts: &[u64]) {
        let (operands, result) = (&node.inputs, node.outputs[0]);
        if self.all.has_adjacent_slices(operands, starts)
            && let Location::Buffer { root, offset } = self.all.location[operands[0]]
            && self.all.owns_block(self.graph, result)
            && self.all.location[result] != (Location::Buffer { root, offset })
            // A copy of a state keeps the old value while the state is updated.
            && !matches!(self.graph.value(root).source, ValueDef::State { .. })
        {
            if self.join_if_no_worse(result, root, offset - starts[0]).is_ok() {
                self.all.kind[result] = AliasKind::View;
            }
            return;
        }
        // All at once: each alone would make the whole result live early. If that raises the peak, one by one.
        let before = self.live.peak();
        let (mut joined, mut refused) = (Vec::new(), Vec::new());
        for (&operand, &start) in operands.iter().zip(starts) {
            match self.movable_slice(id, operand, result, start) {
                Ok((own, root, at)) => joined.push((operand, self.join(own, root, at))),
                Err(reason) => refused.extend(reason.map(|reason| (operand, reason))),
            }
        }
        if self.live.peak() <= before {
            joined.into_iter().for_each(|(operand, _)| self.all.kind[operand] = AliasKind::ConcatSlice);
            refused.into_iter().for_each(|(operand, reason)| self.refuse_slice(id, operand, result, reason));
            return;
        }
        joined.into_iter().rev().for_each(|(_, join)| self.undo(join));
        for (&operand, &start) in operands.iter().zip(starts) {
            let joined = self.movable_slice(id, operand, result, start).and_then(|(own, root, at)| {
                self.join_if_no_worse(own, root, at).map_err(|more| Some(AliasObstacle::Peak(more)))
            });
            match joined {
                Ok(()) => self.all.kind[operand] = AliasKind::ConcatSlice,
                Err(Some(reason)) => self.refuse_slice(id, operand, result, reason),
                Err(None) => {}
            }
        }
    }

    /// Round 3: a result takes the bytes of the first operand that permits it.
    fn any_in_place(&mut self, id: NodeId, node: &Node, output: usize, allowed: &[usize], by_kernel: &[usize]) {
        let result = node.outputs[output];
        // No other operand may have the bytes, unless it is the same value and may be overwritten too.
        let is_apart = |ix: usize| {
            (0..node.inputs.len()).filter(|&other| other != ix).all(|other| {
                let twin = node.inputs[other] == node.inputs[ix] && allowed.contains(&other);
                twin || !self.all.share_bytes(self.graph, node.inputs[other], node.inputs[ix])
            })
        };
        let (mut candidates, others): (Vec<usize>, Vec<usize>) =
            allowed.iter().partition(|ix| by_kernel.contains(ix) && is_apart(**ix));
        // A state's bytes first: that saves the copy at the end of the run.
        candidates.sort_by_key(|&ix| !self.replaces(result, node.inputs[ix]));
        let mut reasons: Vec<(usize, AliasObstacle)> =
            others.into_iter().map(|ix| (ix, AliasObstacle::Kernel)).collect();
        for ix in candidates {
            match self.in_place(id, node.inputs[ix], result) {
                Ok(()) => {
                    self.all.kind[result] = AliasKind::InPlace;
                    return;
                }
                Err(reason) => reasons.extend(reason.map(|reason| (ix, reason))),
            }
        }
        for (ix, reason) in reasons {
            self.refuse_in_place(id, node.inputs[ix], result, reason);
        }
    }

    fn refuse_slice(&mut self, node: NodeId, operand: ValueId, result: ValueId, reason: AliasObstacle) {
        let kind = AliasKind::ConcatSlice;
        self.all.refusals.push(AliasRefusal { child: operand, node, of: result, kind, reason });
    }

    /// Records a result that does not take the bytes of an operand, unless that has no bytes of the same size to take.
    fn refuse_in_place(&mut self, node: NodeId, operand: ValueId, result: ValueId, reason: AliasObstacle) {
        if let Location::Buffer { .. } = self.all.location[operand]
            && value_size(self.graph, operand) == value_size(self.graph, result)
        {
            let kind = AliasKind::InPlace;
            self.all.refusals.push(AliasRefusal { child: result, node, of: operand, kind, reason });
        }
    }

    /// The set of an operand that can move into its slice of a result, the set that it moves into, and the offset there.
    ///
    /// # Errors
    /// The obstacle; `None` if the operand is there already or the result is a constant.
    fn movable_slice(
        &self,
        id: NodeId,
        operand: ValueId,
        result: ValueId,
        start: u64,
    ) -> Result<(ValueId, ValueId, u64), Option<AliasObstacle>> {
        let Location::Buffer { root, offset } = self.all.location[result] else { return Err(None) };
        let Location::Buffer { root: own, .. } = self.all.location[operand] else {
            return Err(Some(AliasObstacle::Given));
        };
        let slice = offset + start..offset + start + value_size(self.graph, operand);
        if own == root {
            let is_there = self.all.location[operand] == Location::Buffer { root, offset: slice.start };
            return Err((!is_there).then_some(AliasObstacle::Occupied));
        }
        if self.all.is_given(self.graph, own) {
            return Err(Some(AliasObstacle::Given));
        }
        if !self.all.owns_block(self.graph, operand) || !self.is_unwritten(root, &slice, id.index()) {
            return Err(Some(AliasObstacle::Occupied));
        }
        Ok((own, root, slice.start))
    }

    /// Gives the result the operand's bytes.
    ///
    /// # Errors
    /// The obstacle; `None` if there are no bytes of the same size to take.
    fn in_place(&mut self, id: NodeId, operand: ValueId, result: ValueId) -> Result<(), Option<AliasObstacle>> {
        let Location::Buffer { root, offset } = self.all.location[operand] else { return Err(None) };
        let Location::Buffer { root: result_root, offset: result_offset } = self.all.location[result] else {
            return Err(None);
        };
        let length = value_size(self.graph, operand);
        if root == result_root || length != value_size(self.graph, result) {
            return Err(None);
        }
        if matches!(self.graph.value(root).source, ValueDef::State { .. })
            && !(self.replaces(result, operand) && self.all.owns_block(self.graph, result))
        {
            return Err(Some(AliasObstacle::Given));
        }
        let range = offset..offset + length;
        let last_read = |member: ValueId| self.liveness.range(member).last;
        let members = self.all.members(root).iter().copied();
        let needed = members
            .filter(|&member| self.all.overlaps(self.graph, member, &range))
            .max_by_key(|&member| last_read(member));
        if let Some(needed) = needed.map(last_read)
            && id.index() < needed
        {
            let is_node = needed < self.graph.nodes().len();
            let reader = is_node.then(|| NodeId::from_index(needed));
            return Err(Some(reader.map_or(AliasObstacle::Output, AliasObstacle::ReadLater)));
        }
        let peak = |more| Some(AliasObstacle::Peak(more));
        if self.all.owns_block(self.graph, result) {
            return self.join_if_no_worse(result_root, root, offset).map_err(peak);
        }
        let slice = result_offset..result_offset + length;
        if self.all.is_given(self.graph, root) {
            return Err(Some(AliasObstacle::Given));
        }
        if !self.all.owns_block(self.graph, operand) || !self.is_unwritten(result_root, &slice, id.index()) {
            return Err(Some(AliasObstacle::Occupied));
        }
        self.join_if_no_worse(root, result_root, result_offset).map_err(peak)
    }

    /// Whether `next` replaces `state` at the end of a run.
    fn replaces(&self, next: ValueId, state: ValueId) -> bool {
        self.updates.iter().any(|update| update.state == state && update.next == next)
    }

    /// Whether no value in a range of a set exists before the node at position `at` runs.
    fn is_unwritten(&self, root: ValueId, range: &Range<u64>, at: usize) -> bool {
        let is_early =
            |&member: &ValueId| self.all.overlaps(self.graph, member, range) && self.liveness.range(member).first < at;
        !self.all.members(root).iter().any(is_early)
    }

    /// Joins two sets.
    ///
    /// # Errors
    /// By how much the peak would grow; nothing is joined then.
    fn join_if_no_worse(&mut self, child: ValueId, parent: ValueId, shift: u64) -> Result<(), Bytes> {
        let before = self.live.peak();
        let join = self.join(child, parent, shift);
        let peak = self.live.peak();
        if before < peak {
            self.undo(join);
            return Err(peak - before);
        }
        Ok(())
    }

    fn join(&mut self, child: ValueId, parent: ValueId, shift: u64) -> Join {
        let (size, count, range) = (self.all.size(child), self.all.members(child).len(), self.ranges[parent]);
        self.set_lives(child, Lives::new());
        if 0 < count {
            self.ranges[parent] = range.union(self.ranges[child]);
        }
        self.all.join(child, parent, shift);
        let lives = self.set_lives(parent, self.lives_of(parent));
        Join { child, parent, shift, size, count, range, lives }
    }

    /// Undoes the last join that is not undone.
    fn undo(&mut self, Join { child, parent, shift, size, count, range, lives }: Join) {
        self.all.part(child, parent, shift, size, count);
        self.ranges[parent] = range;
        self.set_lives(parent, lives);
        self.set_lives(child, self.lives_of(child));
    }
}
