//! First fit and best fit: the items in a fixed order, each into a hole between those placed before. See the head of
//! `place.rs` for the reason.

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
    let mut placed = Placed::new(instance.fixed.clone());
    for item_ix in order {
        let item = &instance.items[*item_ix as usize];
        let offset = match instance.pieces(item) {
            [piece] => find_hole(item, *piece, rule, &placed, work)?,
            pieces => lowest(item, pieces, &placed.slots, work)?,
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

/// The slots placed so far, by rising start.
struct Placed {
    slots: Vec<Slot>,
    /// By slot its first section, and the end of its sections: most slots of a walk are only compared with these.
    firsts: Vec<u32>,
    ends: Vec<u32>,
}

/// Slots that a walk compares with an item at once.
const CHUNK: usize = 16;

impl Placed {
    fn new(slots: Vec<Slot>) -> Placed {
        let firsts = slots.iter().map(|slot| slot.first).collect();
        let ends = slots.iter().map(|slot| slot.end).collect();
        Placed { slots, firsts, ends }
    }

    fn add(&mut self, slot: Slot) {
        let at = self.slots.partition_point(|other| other.start < slot.start);
        self.slots.insert(at, slot);
        self.firsts.insert(at, slot.first);
        self.ends.insert(at, slot.end);
    }

    /// The slots that share a section with a piece, with their indices, by rising start.
    fn meeting(&self, piece: Piece) -> impl Iterator<Item = (usize, &Slot)> {
        let chunks = self.firsts.chunks(CHUNK).zip(self.ends.chunks(CHUNK));
        // Most chunks have no such slot. Without branches, the compiler compares several slots at once.
        let is_any = move |(firsts, ends): &(&[u32], &[u32])| {
            firsts
                .iter()
                .zip(*ends)
                .fold(false, |any, (&first, &end)| any | ((piece.first < end) & (first < piece.end)))
        };
        let met = chunks.enumerate().filter(move |(_, chunk)| is_any(chunk));
        let slots = met.flat_map(|(at, (firsts, _))| at * CHUNK..at * CHUNK + firsts.len());
        slots.map(|ix| (ix, &self.slots[ix])).filter(move |(_, slot)| piece.first < slot.end && slot.first < piece.end)
    }
}

/// Walks up through the slots that share a section with an item of one piece; a hole is the space between two of them.
fn find_hole(item: &Item, piece: Piece, rule: Rule, placed: &Placed, work: &mut Work) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    let mut cursor = 0;
    let mut n_seen = placed.slots.len();
    // The least offset with the piece above `cursor`.
    let above = |cursor: u64| item.lift(cursor.saturating_sub(piece.low));
    for (slot_ix, slot) in placed.meeting(piece) {
        if cursor < slot.start
            && let Some(offset) = above(cursor)
            && offset + piece.high <= slot.start
        {
            let hole = slot.start - cursor;
            if best.is_none_or(|(smallest, _)| hole < smallest) {
                best = Some((hole, offset));
            }
            if rule == Rule::First {
                n_seen = slot_ix + 1;
                break;
            }
        }
        cursor = cursor.max(slot.top);
    }
    if !work.spend(n_seen / SLOTS_PER_UNIT + 1) {
        return None;
    }
    best.map_or_else(|| above(cursor), |(_, offset)| Some(offset))
}

/// The lowest offset at which no piece of an item meets a slot.
fn lowest(item: &Item, pieces: &[Piece], placed: &[Slot], work: &mut Work) -> Option<u64> {
    let mut offset = 0;
    loop {
        let before = offset;
        for piece in pieces {
            // Slots rise by start, so that one walk lifts the piece above all that it meets on its way.
            for slot in placed {
                let here = piece.at(offset);
                let meets = here.first < slot.end && slot.first < here.end && slot.start < here.top;
                if meets && here.start < slot.top {
                    offset = item.lift(slot.top - piece.low)?;
                }
            }
        }
        if !work.spend(placed.len() * pieces.len() / SLOTS_PER_UNIT + 1) {
            return None;
        }
        if offset == before {
            return Some(offset);
        }
    }
}
