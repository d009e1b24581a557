//! First fit and best fit: the items in a fixed order, each into a hole between those placed before. See the head of
//! `place.rs` for the reason.

use std::ops::ControlFlow;

use crate::instance::{Instance, Item, Piece, Slot, Work};

/// Slots visited for one unit of work.
const SLOTS_PER_UNIT: usize = 8;

/// Which hole an item takes. Without a hole that is large enough it goes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// First fit: the lowest hole that is large enough.
    First,
    /// Best fit: the smallest hole that is large enough, the lowest of equal ones.
    Best,
}

/// The units of a pass over `n_items` items if no walk ends early.
pub(crate) fn fit_units(n_items: usize) -> u64 {
    let n_items = n_items as u64;
    n_items * n_items / (2 * SLOTS_PER_UNIT as u64)
}

/// Offsets by item, or `None` if some top exceeds `limit` or the budget is spent.
pub(crate) fn fit(instance: &Instance, rule: Rule, order: &[u32], limit: u64, work: &mut Work) -> Option<Vec<u64>> {
    let mut offsets = vec![0; instance.items.len()];
    let mut placed = Placed::new(instance);
    for item_ix in order {
        let item = &instance.items[*item_ix as usize];
        let offset = match instance.pieces(item) {
            [piece] => find_hole(item, *piece, rule, &placed, work)?,
            pieces => lowest(item, pieces, &mut placed, work)?,
        };
        if limit < offset + item.size {
            return None;
        }
        offsets[*item_ix as usize] = offset;
        for piece in instance.pieces(item) {
            placed.add(piece.at(offset));
        }
    }
    Some(offsets)
}

/// The slots placed so far, by rising start, in leaves of bounded size.
struct Placed {
    leaves: Vec<Leaf>,
    /// Of the last item with several pieces: the slots that share a section with it, and by piece the number of those passed.
    near: Vec<Slot>,
    passed: Vec<usize>,
}

/// Never empty, except for the first one.
#[derive(Default)]
struct Leaf {
    slots: Vec<Slot>,
    /// By slot its first section, and the end of its sections: most slots of a walk are only compared with these.
    firsts: Vec<u32>,
    ends: Vec<u32>,
}

/// Slots that a walk compares with an item at once.
const CHUNK: usize = 16;
/// A leaf with more slots is divided. Inserting moves the slots behind the new one, in its leaf alone.
const LEAF_SLOTS: usize = 32 * CHUNK;

impl Placed {
    fn new(instance: &Instance) -> Placed {
        let mut placed = Placed { leaves: vec![Leaf::default()], near: Vec::new(), passed: Vec::new() };
        instance.fixed.iter().for_each(|slot| placed.add(*slot));
        placed
    }

    fn add(&mut self, slot: Slot) {
        let is_before = |leaf: &Leaf| leaf.slots.last().is_some_and(|last| last.start < slot.start);
        let at = self.leaves.partition_point(is_before).min(self.leaves.len() - 1);
        let leaf = &mut self.leaves[at];
        leaf.add(slot);
        if LEAF_SLOTS < leaf.slots.len() {
            let upper = leaf.split_off(LEAF_SLOTS / 2);
            self.leaves.insert(at + 1, upper);
        }
    }

    /// Visits the slots that share a section with `first..end`, by rising start, until `visit` breaks. Returns the number of
    /// slots up to the last one visited; of all of them without a break.
    fn visit(&self, first: u32, end: u32, mut visit: impl FnMut(&Slot) -> ControlFlow<()>) -> usize {
        let mut n_seen = 0;
        for leaf in &self.leaves {
            if let ControlFlow::Break(n_visited) = leaf.visit(first, end, &mut visit) {
                return n_seen + n_visited;
            }
            n_seen += leaf.slots.len();
        }
        n_seen
    }
}

impl Leaf {
    fn add(&mut self, slot: Slot) {
        let at = self.slots.partition_point(|other| other.start < slot.start);
        self.slots.insert(at, slot);
        self.firsts.insert(at, slot.first);
        self.ends.insert(at, slot.end);
    }

    fn split_off(&mut self, at: usize) -> Leaf {
        Leaf { slots: self.slots.split_off(at), firsts: self.firsts.split_off(at), ends: self.ends.split_off(at) }
    }

    /// Breaks with the number of slots up to the last one visited.
    fn visit(&self, first: u32, end: u32, visit: &mut impl FnMut(&Slot) -> ControlFlow<()>) -> ControlFlow<usize> {
        let chunks = self.firsts.chunks(CHUNK).zip(self.ends.chunks(CHUNK)).zip(self.slots.chunks(CHUNK));
        for (at, ((firsts, ends), slots)) in chunks.enumerate() {
            // Most chunks have no such slot. Without branches, the compiler compares several slots at once.
            let meets = |ix: usize| (first < ends[ix]) & (firsts[ix] < end);
            if !(0..slots.len()).fold(false, |met, ix| met | meets(ix)) {
                continue;
            }
            // Whether a slot is one of them is as good as random, and a wrong guess of the processor costs more than a store.
            let (mut met, mut n_met) = ([0; CHUNK], 0);
            for ix in 0..slots.len() {
                met[n_met] = ix;
                n_met += usize::from(meets(ix));
            }
            for &ix in &met[..n_met] {
                if visit(&slots[ix]).is_break() {
                    return ControlFlow::Break(at * CHUNK + ix + 1);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// Walks up through the slots that share a section with an item of one piece; a hole is the space between two of them.
fn find_hole(item: &Item, piece: Piece, rule: Rule, placed: &Placed, work: &mut Work) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    let mut cursor = 0;
    let height = piece.high - piece.low;
    // The least offset with the piece above `cursor`.
    let above = |cursor: u64| item.lift(cursor.saturating_sub(piece.low));
    let n_seen = placed.visit(piece.first, piece.end, |slot| {
        // The division that aligns an offset is left to holes of the size.
        if cursor < slot.start
            && height <= slot.start - cursor
            && let Some(offset) = above(cursor)
            && offset + piece.high <= slot.start
        {
            let hole = slot.start - cursor;
            if best.is_none_or(|(smallest, _)| hole < smallest) {
                best = Some((hole, offset));
            }
            if rule == Rule::First {
                return ControlFlow::Break(());
            }
        }
        cursor = cursor.max(slot.top);
        ControlFlow::Continue(())
    });
    if !work.spend(n_seen / SLOTS_PER_UNIT + 1) {
        return None;
    }
    best.map_or_else(|| above(cursor), |(_, offset)| Some(offset))
}

/// The lowest offset at which no piece of an item meets a slot.
///
/// A piece is below a slot up to the offset `start - high`, and above it from `top - low` on. The slots rise by start, so that
/// each piece passes them once while the offset rises.
fn lowest(item: &Item, pieces: &[Piece], placed: &mut Placed, work: &mut Work) -> Option<u64> {
    let mut near = std::mem::take(&mut placed.near);
    near.clear();
    let n_seen = placed.visit(item.hull.start, item.hull.end, |slot| {
        near.push(*slot);
        ControlFlow::Continue(())
    });
    placed.passed.clear();
    placed.passed.resize(pieces.len(), 0);
    let mut offset = 0;
    loop {
        let before = offset;
        for (piece, passed) in pieces.iter().zip(&mut placed.passed) {
            while let Some(slot) = near.get(*passed)
                && slot.start < offset + piece.high
            {
                *passed += 1;
                if (piece.first < slot.end) & (slot.first < piece.end) {
                    offset = offset.max(slot.top.saturating_sub(piece.low));
                }
            }
        }
        if offset == before {
            offset = item.lift(offset)?;
        }
        if offset == before {
            break;
        }
    }
    let n_seen = n_seen + placed.passed.iter().sum::<usize>();
    placed.near = near;
    work.spend(n_seen / SLOTS_PER_UNIT + 1).then_some(offset)
}

#[cfg(test)]
mod tests {
    use types::{Bytes, Random};

    use super::*;
    use crate::instance::Priority;
    use crate::problem::{Buffer, ByteWindow, Gap, Lifetime, Problem};

    /// The definition of first fit: offset by offset.
    fn plain_rule(instance: &Instance, order: &[u32]) -> Vec<u64> {
        let mut offsets = vec![0; order.len()];
        let mut placed: Vec<Slot> = Vec::new();
        for &ix in order {
            let item = &instance.items[ix as usize];
            let slots = |offset| instance.pieces(item).iter().map(move |piece| piece.at(offset));
            let is_free = |offset: &u64| {
                let meets =
                    |a: Slot, b: &Slot| a.first < b.end && b.first < a.end && a.start < b.top && b.start < a.top;
                slots(*offset).all(|slot| !placed.iter().any(|other| meets(slot, other)))
            };
            let offset = (0..).step_by(item.alignment as usize).find(is_free).unwrap();
            offsets[ix as usize] = offset;
            placed.extend(slots(offset));
        }
        offsets
    }

    #[test]
    fn first_fit_equals_its_definition() {
        let mut random = Random::new(8);
        for round in 0..200 {
            // Some problems have several leaves.
            let count = if round % 50 == 0 { 2 * LEAF_SLOTS as u64 } else { random.below(40) };
            let buffers = (0..count).map(|_| {
                let (first, steps, size) = (random.below(20) as u32, 2 + random.below(9) as u32, 1 + random.below(20));
                let lifetime = Lifetime { first, end: first + steps };
                let mut buffer = Buffer::new(lifetime, Bytes(size));
                buffer.alignment = Bytes([1, 4][random.below(2) as usize]);
                if random.below(3) == 0 {
                    let window = ByteWindow { low: Bytes(size / 2), high: Bytes(size) };
                    let lifetime = Lifetime { first, end: first + 1 };
                    buffer.gaps.push(Gap { lifetime, window: (random.below(2) == 0).then_some(window) });
                }
                buffer
            });
            let instance = Instance::new(&Problem { buffers: buffers.collect(), capacity: None });
            let order = instance.order(Priority::Area);
            let found = fit(&instance, Rule::First, &order, u64::MAX, &mut Work::new(u64::MAX)).unwrap();
            assert_eq!(found, plain_rule(&instance, &order));
        }
    }
}
