//! Which values share bytes. Decided before anything has a place, so that the lower bound is one for what really runs.
//!
//! A *class* is a set of values in one block of bytes; it becomes one buffer. Classes grow in three rounds:
//!
//! 1. *Views*: a reshape, or a contiguous slice, is part of its operand's class.
//! 2. *Parts*, from the last concatenation to the first: an operand that has a block of its own moves into its window of
//!    the result, so that it is written there in the first place. Where all operands already lie one behind the other in
//!    one block, the result is a view of them: a dense block's growing concatenations become prefixes of its last one.
//! 3. *In place*: a result takes the bytes of an operand that dies with it.
//!
//! A state's class lives through the whole run. Only the state's next value may take its bytes in place, and does so if it
//! can; else a copy node writes them at the end of the run (`state`).
//!
//! Rounds 2 and 3 join two classes only where the most bytes alive at once do not grow by it, and never where one value's
//! bytes would be overwritten while another still needs them. What is not joined is noted with the reason, for reports.

use ir::{Graph, NodeId, Reuse, ValueDef, ValueId};
use plan::{RefusedReason, Sharing};
use types::{Bytes, EntityId, Map};

use crate::{Call, size, state};

/// Where a value's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In a class, at an offset in bytes.
    Buffer { root: ValueId, offset: u64 },
    /// In a tensor that is known before the run.
    Known { value: ValueId, offset: u64 },
}

/// All classes.
pub(crate) struct Classes {
    home: Map<ValueId, Home>,
    /// By root; empty for values that are not one.
    class: Map<ValueId, Class>,
    sharing: Map<ValueId, Sharing>,
    refusals: Vec<Refused>,
}

/// Two classes that were not joined.
pub(crate) struct Refused {
    /// A value of the class that would have vanished.
    pub(crate) child: ValueId,
    /// The node at which it would have.
    pub(crate) node: NodeId,
    /// The value whose bytes were wanted.
    pub(crate) of: ValueId,
    pub(crate) sharing: Sharing,
    pub(crate) reason: RefusedReason,
}

#[derive(Clone, Debug, Default)]
struct Class {
    size: u64,
    members: Vec<ValueId>,
}

impl Classes {
    /// Where a value's bytes are.
    pub(crate) fn home(&self, value: ValueId) -> Home {
        self.home[value]
    }

    /// The bytes of a class.
    pub(crate) fn size(&self, root: ValueId) -> u64 {
        self.class[root].size
    }

    /// The values of a class.
    pub(crate) fn members(&self, root: ValueId) -> impl Iterator<Item = ValueId> {
        self.class[root].members.iter().copied()
    }

    /// How a value came to lie where it lies.
    pub(crate) fn sharing(&self, value: ValueId) -> Sharing {
        self.sharing[value]
    }

    /// What was not joined.
    pub(crate) fn refusals(&self) -> &[Refused] {
        &self.refusals
    }
}

/// Decides all classes of a graph whose nodes are done by `calls`.
pub(crate) fn decide(graph: &Graph, calls: &Map<NodeId, Vec<Call>>) -> Classes {
    decided(graph, calls).classes
}

/// The most bytes of classes and workspaces alive at once, each a multiple of `alignment`.
pub(crate) fn peak(graph: &Graph, calls: &Map<NodeId, Vec<Call>>, alignment: Bytes) -> Bytes {
    let live = decided(graph, calls).live_bytes(None, alignment);
    let workspace = |calls: &Vec<Call>| calls.iter().map(|call| call.workspace.align_up(alignment)).max();
    let workspaces = calls.values().map(|calls| workspace(calls).unwrap_or_default().0).chain(std::iter::repeat(0));
    Bytes(live.into_iter().zip(workspaces).map(|(live, workspace)| live + workspace).max().unwrap_or(0))
}

fn decided<'a>(graph: &'a Graph, calls: &Map<NodeId, Vec<Call>>) -> Decision<'a> {
    let mut state = Decision::new(graph);
    for node in graph.nodes().values() {
        if let Reuse::Alias { offset } = graph.reuse(node) {
            let element = graph.ty(node.inputs[0]).dtype.size().0;
            state.view(node.inputs[0], node.outputs[0], offset as u64 * element);
        }
    }
    for (id, node) in graph.nodes().iter().rev() {
        if let Reuse::ConcatSlices(starts) = graph.reuse(node)
            && calls[id].iter().all(|call| call.part.is_some())
            && !state.is_update(node.outputs[0])
        {
            let element = graph.ty(node.outputs[0]).dtype.size().0;
            let starts: Vec<u64> = starts.iter().map(|&start| start as u64 * element).collect();
            state.parts(id, &node.inputs, node.outputs[0], &starts);
        }
    }
    for (id, node) in graph.nodes().iter() {
        let Reuse::InPlace(allowed) = graph.reuse(node) else { continue };
        let (Some(call), true) = (calls[id].first(), calls[id].iter().skip(1).all(Call::goes_on)) else {
            allowed.iter().for_each(|&ix| state.refuse(id, node.inputs[ix], node.outputs[0], RefusedReason::Kernel));
            continue;
        };
        let apart = |ix: usize| {
            // No other operand may lie on the bytes, unless it is the same value and may be overwritten too.
            let others = (0..node.inputs.len()).filter(|&other| other != ix);
            others.into_iter().all(|other| {
                let twin = node.inputs[other] == node.inputs[ix] && allowed.contains(&other);
                twin || !state.share_bytes(node.inputs[other], node.inputs[ix])
            })
        };
        let (mut candidates, others): (Vec<usize>, Vec<usize>) =
            allowed.iter().partition(|ix| call.in_place.contains(ix) && apart(**ix));
        // A state's bytes first: that saves the copy at the end of the run.
        candidates.sort_by_key(|&ix| !state.becomes(node.inputs[ix], node.outputs[0]));
        let mut reasons: Vec<(usize, RefusedReason)> =
            others.into_iter().map(|ix| (ix, RefusedReason::Kernel)).collect();
        let taken = candidates.into_iter().any(|ix| match state.in_place(id, node.inputs[ix], node.outputs[0]) {
            Ok(()) => true,
            Err(reason) => {
                reasons.extend(reason.map(|reason| (ix, reason)));
                false
            }
        });
        if taken {
            state.classes.sharing[node.outputs[0]] = Sharing::InPlace;
        } else {
            reasons.into_iter().for_each(|(ix, reason)| state.refuse(id, node.inputs[ix], node.outputs[0], reason));
        }
    }
    for (update, own) in state::updates(graph) {
        state.join(update, own, 0);
        state.classes.sharing[update] = Sharing::InPlace;
    }
    state
}

struct Decision<'a> {
    graph: &'a Graph,
    classes: Classes,
    /// The position of the node that yields a value; 0 for inputs.
    born: Map<ValueId, usize>,
    /// The position of the last node that reads a value; beyond all nodes for outputs.
    last_read: Map<ValueId, usize>,
    peak: u64,
}

impl<'a> Decision<'a> {
    fn new(graph: &'a Graph) -> Decision<'a> {
        let mut home = Map::new();
        let mut class = Map::new();
        let mut born = Map::new();
        let mut last_read = Map::new();
        for (id, value) in graph.values().iter() {
            let known = value.tensor().is_some();
            home.push(if known { Home::Known { value: id, offset: 0 } } else { Home::Buffer { root: id, offset: 0 } });
            class.push(if known { Class::default() } else { Class { size: size(graph, id), members: vec![id] } });
            let at = value.producer().map_or(0, EntityId::index);
            born.push(at);
            last_read.push(at);
        }
        for (id, node) in graph.nodes().iter() {
            node.inputs.iter().for_each(|&input| last_read[input] = id.index());
        }
        graph.outputs().iter().for_each(|output| last_read[output.value] = graph.nodes().len());
        let sharing = graph.values().keys().map(|_| Sharing::Own).collect();
        let classes = Classes { home, class, sharing, refusals: Vec::new() };
        let mut state = Decision { graph, classes, born, last_read, peak: 0 };
        state.peak = state.peak_bytes(None);
        state
    }

    /// Round 1.
    fn view(&mut self, operand: ValueId, result: ValueId, shift: u64) {
        self.classes.sharing[result] = Sharing::View;
        match self.classes.home[operand] {
            Home::Known { value, offset } => {
                self.classes.class[result] = Class::default();
                self.classes.home[result] = Home::Known { value, offset: offset + shift };
            }
            Home::Buffer { root, offset } => self.join(result, root, offset + shift),
        }
        self.peak = self.peak_bytes(None);
    }

    /// Round 2.
    fn parts(&mut self, id: NodeId, operands: &[ValueId], result: ValueId, starts: &[u64]) {
        if self.is_laid_out(operands, starts)
            && let Home::Buffer { root, offset } = self.classes.home[operands[0]]
            && self.owns_block(result)
            && self.classes.home[result] != (Home::Buffer { root, offset })
            // A copy of a state keeps the old value while the state is updated.
            && !matches!(self.graph.value(root).source, ValueDef::State { .. })
        {
            if self.join_if_no_worse(result, root, offset - starts[0]).is_ok() {
                self.classes.sharing[result] = Sharing::View;
            }
            return;
        }
        // All at once: each alone would make the whole result live early. Where that is too much, one by one.
        let (home, class) = (self.classes.home.clone(), self.classes.class.clone());
        let sharing = self.classes.sharing.clone();
        let mut refused = Vec::new();
        for (&operand, &start) in operands.iter().zip(starts) {
            match self.movable_part(id, operand, result, start) {
                Ok((own, root, at)) => {
                    self.join(own, root, at);
                    self.classes.sharing[operand] = Sharing::ConcatSlice;
                }
                Err(reason) => refused.extend(reason.map(|reason| (operand, reason))),
            }
        }
        let peak = self.peak_bytes(None);
        if peak <= self.peak {
            self.peak = peak;
            refused.into_iter().for_each(|(operand, reason)| self.refuse_part(id, operand, result, reason));
            return;
        }
        (self.classes.home, self.classes.class) = (home, class);
        operands.iter().for_each(|&operand| self.classes.sharing[operand] = sharing[operand]);
        for (&operand, &start) in operands.iter().zip(starts) {
            let joined = self.movable_part(id, operand, result, start).and_then(|(own, root, at)| {
                self.join_if_no_worse(own, root, at).map_err(|more| Some(RefusedReason::Peak { more }))
            });
            match joined {
                Ok(()) => self.classes.sharing[operand] = Sharing::ConcatSlice,
                Err(Some(reason)) => self.refuse_part(id, operand, result, reason),
                Err(None) => {}
            }
        }
    }

    fn refuse_part(&mut self, node: NodeId, operand: ValueId, result: ValueId, reason: RefusedReason) {
        self.classes.refusals.push(Refused { child: operand, node, of: result, sharing: Sharing::ConcatSlice, reason });
    }

    /// A result that does not take the bytes of an operand; where there are none to take, that is no refusal.
    fn refuse(&mut self, node: NodeId, operand: ValueId, result: ValueId, reason: RefusedReason) {
        if let Home::Buffer { .. } = self.classes.home[operand]
            && size(self.graph, operand) == size(self.graph, result)
        {
            self.classes.refusals.push(Refused { child: result, node, of: operand, sharing: Sharing::InPlace, reason });
        }
    }

    /// The class of an operand that can move into its window of a result, the class it moves into, and where; or why it
    /// cannot, where it is not there already.
    fn movable_part(
        &self,
        id: NodeId,
        operand: ValueId,
        result: ValueId,
        start: u64,
    ) -> Result<(ValueId, ValueId, u64), Option<RefusedReason>> {
        let Home::Buffer { root, offset } = self.classes.home[result] else { return Err(None) };
        let Home::Buffer { root: own, .. } = self.classes.home[operand] else { return Err(Some(RefusedReason::Given)) };
        let window = offset + start..offset + start + size(self.graph, operand);
        if own == root {
            let is_there = self.classes.home[operand] == Home::Buffer { root, offset: window.start };
            return Err((!is_there).then_some(RefusedReason::Occupied));
        }
        if self.is_given(own) {
            return Err(Some(RefusedReason::Given));
        }
        if !self.owns_block(operand) || !self.is_unborn(root, &window, id.index()) {
            return Err(Some(RefusedReason::Occupied));
        }
        Ok((own, root, window.start))
    }

    /// Whether the caller writes into a class, or a run before did.
    fn is_given(&self, root: ValueId) -> bool {
        let is_given = |value| matches!(self.graph.value(value).source, ValueDef::Input | ValueDef::State { .. });
        self.classes.members(root).any(is_given)
    }

    /// Whether a value is the copy that brings a state's next value into the state's bytes.
    fn is_update(&self, value: ValueId) -> bool {
        state::updates(self.graph).any(|(update, _)| update == value)
    }

    /// Whether `next` is the value that replaces `own` at the end of a run.
    fn becomes(&self, own: ValueId, next: ValueId) -> bool {
        state::updates(self.graph).any(|(update, state)| state == own && state::next(self.graph, update) == Some(next))
    }

    /// Round 3. The result takes the operand's bytes, or there is a reason why not; none where there is nothing to take.
    fn in_place(&mut self, id: NodeId, operand: ValueId, result: ValueId) -> Result<(), Option<RefusedReason>> {
        let Home::Buffer { root, offset } = self.classes.home[operand] else { return Err(None) };
        let Home::Buffer { root: result_root, offset: result_offset } = self.classes.home[result] else {
            return Err(None);
        };
        let length = size(self.graph, operand);
        if root == result_root || length != size(self.graph, result) {
            return Err(None);
        }
        if matches!(self.graph.value(root).source, ValueDef::State { .. })
            && !(self.becomes(operand, result) && self.owns_block(result))
        {
            return Err(Some(RefusedReason::Given));
        }
        let range = offset..offset + length;
        let members = self.classes.class[root].members.iter().copied();
        let needed =
            members.filter(|member| self.overlaps(*member, &range)).max_by_key(|member| self.last_read[*member]);
        if let Some(needed) = needed.map(|member| self.last_read[member])
            && id.index() < needed
        {
            let by = self.graph.nodes().values().nth(needed).map(|node| node.scope.clone());
            return Err(Some(by.map_or(RefusedReason::Output, |by| RefusedReason::ReadLater { by })));
        }
        let peak = |more| Some(RefusedReason::Peak { more });
        if self.owns_block(result) {
            return self.join_if_no_worse(result_root, root, offset).map_err(peak);
        }
        let window = result_offset..result_offset + length;
        if self.is_given(root) {
            return Err(Some(RefusedReason::Given));
        }
        if !self.owns_block(operand) || !self.is_unborn(result_root, &window, id.index()) {
            return Err(Some(RefusedReason::Occupied));
        }
        self.join_if_no_worse(root, result_root, result_offset).map_err(peak)
    }

    /// Whether known operands aside, all lie one behind the other in one block, as `starts` says.
    fn is_laid_out(&self, operands: &[ValueId], starts: &[u64]) -> bool {
        let Home::Buffer { root, offset } = self.classes.home[operands[0]] else { return false };
        let in_window = |(&operand, &start): (&ValueId, &u64)| {
            self.classes.home[operand] == Home::Buffer { root, offset: offset + start - starts[0] }
        };
        starts[0] <= offset && operands.iter().zip(starts).all(in_window)
    }

    /// Whether a value fills a block of its own, so that the block can move as a whole.
    fn owns_block(&self, value: ValueId) -> bool {
        let Home::Buffer { root, offset } = self.classes.home[value] else { return false };
        offset == 0 && self.classes.class[root].size == size(self.graph, value)
    }

    /// Whether nothing in a range of a class exists before the node at position `at` runs.
    fn is_unborn(&self, root: ValueId, range: &std::ops::Range<u64>, at: usize) -> bool {
        let early = |member: &ValueId| self.overlaps(*member, range) && self.born[*member] < at;
        !self.classes.class[root].members.iter().any(early)
    }

    /// Whether two values have bytes in common.
    fn share_bytes(&self, a: ValueId, b: ValueId) -> bool {
        match (self.classes.home[a], self.classes.home[b]) {
            (Home::Buffer { root, .. }, Home::Buffer { root: other, offset }) => {
                root == other && self.overlaps(a, &(offset..offset + size(self.graph, b)))
            }
            _ => false,
        }
    }

    fn overlaps(&self, member: ValueId, range: &std::ops::Range<u64>) -> bool {
        let Home::Buffer { offset, .. } = self.classes.home[member] else { return false };
        offset < range.end && range.start < offset + size(self.graph, member)
    }

    /// Joins two classes, or tells by how much the peak would grow.
    fn join_if_no_worse(&mut self, child: ValueId, parent: ValueId, shift: u64) -> Result<(), Bytes> {
        let peak = self.peak_bytes(Some((child, parent)));
        if self.peak < peak {
            return Err(Bytes(peak - self.peak));
        }
        self.join(child, parent, shift);
        self.peak = peak;
        Ok(())
    }

    /// Moves a whole class into another.
    fn join(&mut self, child: ValueId, parent: ValueId, shift: u64) {
        let moved = std::mem::take(&mut self.classes.class[child]);
        for &member in &moved.members {
            if let Home::Buffer { root, offset } = &mut self.classes.home[member] {
                *root = parent;
                *offset += shift;
            }
        }
        self.classes.class[parent].members.extend(moved.members);
    }

    /// The most bytes of classes alive at once, as they are or with one joined to another.
    fn peak_bytes(&self, joined: Option<(ValueId, ValueId)>) -> u64 {
        self.live_bytes(joined, Bytes(1)).into_iter().max().unwrap_or(0)
    }

    /// By position: the bytes of classes alive, each a multiple of `alignment`.
    fn live_bytes(&self, joined: Option<(ValueId, ValueId)>, alignment: Bytes) -> Vec<u64> {
        let mut changes = vec![0i64; self.graph.nodes().len() + 2];
        for (root, class) in self.classes.class.iter() {
            if class.members.is_empty() || joined.is_some_and(|(child, _)| child == root) {
                continue;
            }
            let more =
                joined.filter(|&(_, parent)| parent == root).map(|(child, _)| &self.classes.class[child].members);
            let members = || class.members.iter().chain(more.into_iter().flatten());
            let first = members().map(|&member| self.born[member]).min().unwrap_or(0);
            let is_kept = |member: &ValueId| matches!(self.graph.value(*member).source, ValueDef::State { .. });
            let last = match members().any(is_kept) {
                true => self.graph.nodes().len(),
                false => members().map(|&member| self.last_read[member]).max().unwrap_or(0),
            };
            let size = Bytes(class.size).align_up(alignment).0 as i64;
            changes[first] += size;
            changes[last + 1] -= size;
        }
        let mut live = 0;
        let sums = changes.into_iter().map(|change| {
            live += change;
            live as u64
        });
        sums.collect()
    }
}
