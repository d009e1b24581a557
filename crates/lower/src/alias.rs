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
//! Rounds 2 and 3 join two classes only where the most bytes alive at once do not grow by it, and never where one value's
//! bytes would be overwritten while another still needs them.

use ir::{Graph, NodeId, Reuse, Source, ValueId};
use types::{EntityId, Map};

use crate::{Call, size};

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
}

/// Decides all classes of a graph whose nodes are done by `calls`.
pub(crate) fn decide(graph: &Graph, calls: &Map<NodeId, Vec<Call>>) -> Classes {
    let mut state = Decision::new(graph);
    for node in graph.nodes().values() {
        if let Reuse::Alias { offset } = graph.reuse(node) {
            let element = graph.ty(node.inputs[0]).dtype.size().0;
            state.view(node.inputs[0], node.outputs[0], offset as u64 * element);
        }
    }
    for (id, node) in graph.nodes().iter().rev() {
        if let Reuse::Parts(starts) = graph.reuse(node)
            && calls[id].iter().all(|call| call.part.is_some())
        {
            let element = graph.ty(node.outputs[0]).dtype.size().0;
            let starts: Vec<u64> = starts.iter().map(|&start| start as u64 * element).collect();
            state.parts(id, &node.inputs, node.outputs[0], &starts);
        }
    }
    for (id, node) in graph.nodes().iter() {
        let Reuse::InPlace(allowed) = graph.reuse(node) else { continue };
        let [call] = &calls[id][..] else { continue };
        let apart = |ix: usize| {
            // No other operand may lie on the bytes, unless it is the same value and may be overwritten too.
            let others = (0..node.inputs.len()).filter(|&other| other != ix);
            others.into_iter().all(|other| {
                let twin = node.inputs[other] == node.inputs[ix] && allowed.contains(&other);
                twin || !state.share_bytes(node.inputs[other], node.inputs[ix])
            })
        };
        let candidates: Vec<usize> =
            allowed.iter().copied().filter(|ix| call.in_place.contains(ix) && apart(*ix)).collect();
        candidates.into_iter().any(|ix| state.in_place(id, node.inputs[ix], node.outputs[0]));
    }
    state.classes
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
        let mut state = Decision { graph, classes: Classes { home, class }, born, last_read, peak: 0 };
        state.peak = state.peak_bytes(None);
        state
    }

    /// Round 1.
    fn view(&mut self, operand: ValueId, result: ValueId, shift: u64) {
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
        {
            self.join_if_no_worse(result, root, offset - starts[0]);
            return;
        }
        // All at once: each alone would make the whole result live early. Where that is too much, one by one.
        let (home, class) = (self.classes.home.clone(), self.classes.class.clone());
        for (&operand, &start) in operands.iter().zip(starts) {
            if let Some((own, root, at)) = self.movable_part(id, operand, result, start) {
                self.join(own, root, at);
            }
        }
        let peak = self.peak_bytes(None);
        if peak <= self.peak {
            self.peak = peak;
            return;
        }
        (self.classes.home, self.classes.class) = (home, class);
        for (&operand, &start) in operands.iter().zip(starts) {
            if let Some((own, root, at)) = self.movable_part(id, operand, result, start) {
                self.join_if_no_worse(own, root, at);
            }
        }
    }

    /// The class of an operand that can move into its window of a result, the class it moves into, and where.
    fn movable_part(
        &self,
        id: NodeId,
        operand: ValueId,
        result: ValueId,
        start: u64,
    ) -> Option<(ValueId, ValueId, u64)> {
        let Home::Buffer { root, offset } = self.classes.home[result] else { return None };
        let Home::Buffer { root: own, .. } = self.classes.home[operand] else { return None };
        let given = self.classes.members(own).any(|member| self.graph.value(member).source == Source::Input);
        let window = offset + start..offset + start + size(self.graph, operand);
        let moves = own != root && !given && self.owns_block(operand) && self.is_unborn(root, &window, id.index());
        moves.then_some((own, root, window.start))
    }

    /// Round 3. Whether the result took the operand's bytes.
    fn in_place(&mut self, id: NodeId, operand: ValueId, result: ValueId) -> bool {
        let Home::Buffer { root, offset } = self.classes.home[operand] else { return false };
        let Home::Buffer { root: result_root, offset: result_offset } = self.classes.home[result] else { return false };
        let length = size(self.graph, operand);
        if root == result_root || length != size(self.graph, result) {
            return false;
        }
        let range = offset..offset + length;
        let needed_later = |member: &ValueId| self.overlaps(*member, &range) && id.index() < self.last_read[*member];
        if self.classes.class[root].members.iter().any(needed_later) {
            return false;
        }
        if self.owns_block(result) {
            return self.join_if_no_worse(result_root, root, offset);
        }
        let window = result_offset..result_offset + length;
        let given = self.classes.members(root).any(|member| self.graph.value(member).source == Source::Input);
        self.owns_block(operand)
            && !given
            && self.is_unborn(result_root, &window, id.index())
            && self.join_if_no_worse(root, result_root, result_offset)
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

    fn join_if_no_worse(&mut self, child: ValueId, parent: ValueId, shift: u64) -> bool {
        let peak = self.peak_bytes(Some((child, parent)));
        if self.peak < peak {
            return false;
        }
        self.join(child, parent, shift);
        self.peak = peak;
        true
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
        let mut changes = vec![0i64; self.graph.nodes().len() + 2];
        for (root, class) in self.classes.class.iter() {
            if class.members.is_empty() || joined.is_some_and(|(child, _)| child == root) {
                continue;
            }
            let more =
                joined.filter(|&(_, parent)| parent == root).map(|(child, _)| &self.classes.class[child].members);
            let members = || class.members.iter().chain(more.into_iter().flatten());
            let first = members().map(|&member| self.born[member]).min().unwrap_or(0);
            let last = members().map(|&member| self.last_read[member]).max().unwrap_or(0);
            changes[first] += class.size as i64;
            changes[last + 1] -= class.size as i64;
        }
        let mut live = 0;
        let mut peak = 0;
        for change in changes {
            live += change;
            peak = peak.max(live);
        }
        peak as u64
    }
}
