//! First fit and best fit: the items in a fixed order, each into a hole between those placed before. See the head of
//! `place.rs` for the reason.

use std::cell::RefCell;
use std::ops::ControlFlow;

use crate::instance::{Instance, Item, Piece, Slot, Work};
use crate::neighbors::Neighbors;

/// Slots visited for one unit of work.
const SLOTS_PER_UNIT: usize = 8;
/// Neighbors looked at for one unit of work.
const NEIGHBORS_PER_UNIT: usize = 2;

/// Which hole an item takes. Without a hole that is large enough it goes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// First fit: the lowest hole that is large enough.
    First,
    /// Best fit: the smallest hole that is large enough, the lowest of equal ones.
    Best,
}

/// The units of a pass over `n_items` items that compares each with all others.
pub(crate) fn fit_units(n_items: usize) -> u64 {
    let n_items = n_items as u64;
    n_items * n_items / (2 * SLOTS_PER_UNIT as u64)
}

/// The units of a pass over the items of an instance if no walk ends early.
pub(crate) fn fit_units_of(instance: &Instance) -> u64 {
    let n_items = instance.items.len();
    let of_pairs = |neighbors: &RefCell<Neighbors>| neighbors.borrow().n_pairs() / NEIGHBORS_PER_UNIT + n_items;
    instance.neighbors().map_or_else(|| fit_units(n_items), |neighbors| of_pairs(neighbors) as u64)
}

/// Offsets by item, or `None` if some top exceeds `limit` or the budget is spent.
pub(crate) fn fit(instance: &Instance, rule: Rule, order: &[u32], limit: u64, work: &mut Work) -> Option<Vec<u64>> {
    match instance.neighbors() {
        Some(neighbors) => {
            let mut neighbors = neighbors.borrow_mut();
            neighbors.clear(instance);
            fit_into(&mut *neighbors, instance, rule, order, limit, work)
        }
        None => fit_into(&mut Placed::new(instance), instance, rule, order, limit, work),
    }
}

/// Items that are placed.
trait Board {
    /// Visits the slots that share a section with the hull of an item, by rising start, until `visit` breaks. Returns the units of
    /// work.
    fn visit(&mut self, instance: &Instance, item: u32, visit: impl FnMut(&Slot) -> ControlFlow<()>) -> usize;

    /// Places an item.
    fn add(&mut self, instance: &Instance, item: u32, offset: u64);
}

fn fit_into(
    board: &mut impl Board,
    instance: &Instance,
    rule: Rule,
    order: &[u32],
    limit: u64,
    work: &mut Work,
) -> Option<Vec<u64>> {
    let mut offsets = vec![0; instance.items.len()];
    let (mut near, mut passed) = (Vec::new(), Vec::new());
    for &item_ix in order {
        let item = &instance.items[item_ix as usize];
        let (offset, units) = match instance.pieces(item) {
            [piece] => {
                let mut hole = Hole::new(item, *piece, rule);
                let units = board.visit(instance, item_ix, |slot| hole.pass(slot));
                (hole.offset()?, units)
            }
            pieces => {
                near.clear();
                let units = board.visit(instance, item_ix, |slot| {
                    near.push(*slot);
                    ControlFlow::Continue(())
                });
                let (offset, n_passed) = lowest(item, pieces, &near, &mut passed)?;
                (offset, units + n_passed / SLOTS_PER_UNIT)
            }
        };
        if !work.spend(units + 1) || limit < offset + item.size {
            return None;
        }
        offsets[item_ix as usize] = offset;
        board.add(instance, item_ix, offset);
    }
    Some(offsets)
}

impl Board for Neighbors {
    fn visit(&mut self, _: &Instance, item: u32, mut visit: impl FnMut(&Slot) -> ControlFlow<()>) -> usize {
        let (mut near, n_seen) = self.near(item);
        let _ = near.try_for_each(&mut visit);
        n_seen / NEIGHBORS_PER_UNIT
    }

    fn add(&mut self, instance: &Instance, item: u32, offset: u64) {
        Neighbors::add(self, instance, item, offset);
    }
}

/// The slots placed so far, by rising start, in leaves of bounded size.
struct Placed {
    leaves: Vec<Leaf>,
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
        let mut placed = Placed { leaves: vec![Leaf::default()] };
        instance.fixed.iter().for_each(|slot| placed.add_slot(*slot));
        placed
    }

    fn add_slot(&mut self, slot: Slot) {
        let is_before = |leaf: &Leaf| leaf.slots.last().is_some_and(|last| last.start < slot.start);
        let at = self.leaves.partition_point(is_before).min(self.leaves.len() - 1);
        let leaf = &mut self.leaves[at];
        leaf.add(slot);
        if LEAF_SLOTS < leaf.slots.len() {
            let upper = leaf.split_off(LEAF_SLOTS / 2);
            self.leaves.insert(at + 1, upper);
        }
    }
}

impl Board for Placed {
    fn visit(&mut self, instance: &Instance, item: u32, mut visit: impl FnMut(&Slot) -> ControlFlow<()>) -> usize {
        let hull = &instance.items[item as usize].hull;
        let mut n_seen = 0;
        for leaf in &self.leaves {
            if let ControlFlow::Break(n_visited) = leaf.visit(hull.start, hull.end, &mut visit) {
                return (n_seen + n_visited) / SLOTS_PER_UNIT;
            }
            n_seen += leaf.slots.len();
        }
        n_seen / SLOTS_PER_UNIT
    }

    fn add(&mut self, instance: &Instance, item: u32, offset: u64) {
        for piece in instance.pieces(&instance.items[item as usize]) {
            self.add_slot(piece.at(offset));
        }
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

/// A walk up through the slots that share a section with an item of one piece; a hole is the space between two of them.
struct Hole<'a> {
    item: &'a Item,
    piece: Piece,
    rule: Rule,
    /// The top of the slots passed so far.
    cursor: u64,
    /// The size of the best hole and the offset in it.
    best: Option<(u64, u64)>,
}

impl<'a> Hole<'a> {
    fn new(item: &'a Item, piece: Piece, rule: Rule) -> Hole<'a> {
        Hole { item, piece, rule, cursor: 0, best: None }
    }

    /// The least offset with the piece above the slots passed so far.
    fn above(&self) -> Option<u64> {
        self.item.lift(self.cursor.saturating_sub(self.piece.low))
    }

    /// Breaks at the hole that the rule takes.
    fn pass(&mut self, slot: &Slot) -> ControlFlow<()> {
        // The division that aligns an offset is left to holes of the size.
        if self.cursor < slot.start
            && self.piece.high - self.piece.low <= slot.start - self.cursor
            && let Some(offset) = self.above()
            && offset + self.piece.high <= slot.start
        {
            let size = slot.start - self.cursor;
            if self.best.is_none_or(|(smallest, _)| size < smallest) {
                self.best = Some((size, offset));
            }
            if self.rule == Rule::First {
                return ControlFlow::Break(());
            }
        }
        self.cursor = self.cursor.max(slot.top);
        ControlFlow::Continue(())
    }

    /// The offset in the best hole, or on top.
    fn offset(&self) -> Option<u64> {
        self.best.map_or_else(|| self.above(), |(_, offset)| Some(offset))
    }
}

/// The lowest offset at which no piece of an item meets a slot of those near it, and the number of slots passed. `passed` is
/// scratch memory.
///
/// A piece is below a slot up to the offset `start - high`, and above it from `top - low` on. The slots rise by start, so that
/// each piece passes them once while the offset rises.
fn lowest(item: &Item, pieces: &[Piece], near: &[Slot], passed: &mut Vec<usize>) -> Option<(u64, usize)> {
    passed.clear();
    passed.resize(pieces.len(), 0);
    let mut offset = 0;
    loop {
        let before = offset;
        for (piece, passed) in pieces.iter().zip(&mut *passed) {
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
            return Some((offset, passed.iter().sum()));
        }
    }
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
            let (expected, mut work) = (plain_rule(&instance, &order), Work::new(u64::MAX));
            let found = fit(&instance, Rule::First, &order, u64::MAX, &mut work).unwrap();
            assert_eq!(found, expected);
            let mut placed = Placed::new(&instance);
            let found = fit_into(&mut placed, &instance, Rule::First, &order, u64::MAX, &mut work).unwrap();
            assert_eq!(found, expected, "without neighbors");
        }
    }
}
