//! [`least`]: the least height of a handful of items, by going through the orders in which they can be laid.
//!
//! **Why orders are enough.** Take a placement without windows and lay its items again, by rising offset, each as low as
//! it fits. None comes to lie higher: what was laid before it and shares a step with it ended below its old offset, and
//! has not risen. Do that until nothing moves: then every item lies as low as it fits above those before it, *and the
//! offsets rise from one to the next*. So only such orders are followed.
//!
//! **What ends a branch.** Offsets to come are not below the last one, so a section will need the last offset, what lies
//! above that, and what is still to come over it. And an item never fits lower than it does now. Either reaching the best
//! height known ends the branch. Of items that are equal in all, the first goes first.
//!
//! With windows an item can lie between the parts of another, and laying it again can push others up. Then all orders
//! are followed. They include what the search over whole rectangles (`search.rs`) could find, so that it need not look,
//! but prove nothing.

use crate::instance::{Instance, Slot, Work};

/// More items than these have too many orders.
pub(crate) const HANDFUL: usize = 12;

/// What going through the orders came to.
pub(crate) struct Orders {
    /// Offsets by item and the height they need, if lower than what was known.
    pub(crate) found: Option<(Vec<u64>, u64)>,
    /// Whether all orders were gone through, so that nothing lower is to be found in this way.
    pub(crate) all: bool,
    /// Whether that proves that there is nothing lower at all.
    pub(crate) proves: bool,
}

/// Looks for the placement with the least height below `height`; not on, once `enough` is reached.
pub(crate) fn least(instance: &Instance, height: u64, enough: u64, work: &mut Work) -> Orders {
    let has_windows = instance
        .items
        .iter()
        .any(|item| instance.pieces(item).iter().any(|piece| piece.low != 0 || piece.high != item.size));
    let mut left = vec![0u64; instance.n_sections];
    for item in &instance.items {
        for piece in instance.pieces(item) {
            left[piece.first as usize..piece.end as usize].iter_mut().for_each(|left| *left += piece.high - piece.low);
        }
    }
    let mut search = Search {
        instance,
        rising: !has_windows,
        best: height,
        enough: enough.max(instance.base),
        found: None,
        slots: instance.fixed.clone(),
        offsets: vec![None; instance.items.len()],
        left,
        twin: (0..instance.items.len()).map(|ix| twin(instance, ix)).collect(),
    };
    let all = search.descend(0, work);
    Orders { found: search.found.map(|offsets| (offsets, search.best)), all, proves: all && !has_windows }
}

/// The item in front of this one that is equal to it in all.
fn twin(instance: &Instance, ix: usize) -> Option<usize> {
    let item = &instance.items[ix];
    (0..ix).rev().find(|&other| {
        let other = &instance.items[other];
        let pieces = instance.pieces(item).iter().zip(instance.pieces(other));
        (item.size, item.alignment, item.pieces.len()) == (other.size, other.alignment, other.pieces.len())
            && pieces.into_iter().all(|(a, b)| (a.first, a.end, a.low, a.high) == (b.first, b.end, b.low, b.high))
    })
}

struct Search<'a> {
    instance: &'a Instance,
    /// Whether offsets rise along an order.
    rising: bool,
    /// Lower is better.
    best: u64,
    enough: u64,
    found: Option<Vec<u64>>,
    /// What is taken: what is fixed, then the items laid.
    slots: Vec<Slot>,
    offsets: Vec<Option<u64>>,
    /// By section, bytes of items that are not laid yet.
    left: Vec<u64>,
    twin: Vec<Option<usize>>,
}

impl Search<'_> {
    /// Lays the items that are left, none below `last`; false if the work was spent before all was tried.
    fn descend(&mut self, last: u64, work: &mut Work) -> bool {
        let n_items = self.offsets.len();
        if !work.spend(1 + (n_items * self.slots.len() + self.left.len()) / 8) {
            return false;
        }
        if self.offsets.iter().all(Option::is_some) {
            let offsets: Vec<u64> = self.offsets.iter().flatten().copied().collect();
            self.best = self.instance.height(&offsets);
            self.found = Some(offsets);
            return true;
        }
        if self.rising && !self.has_room(last) {
            return true;
        }
        let mut nexts: Vec<(u64, u64, usize)> = Vec::with_capacity(n_items);
        for ix in (0..n_items).filter(|&ix| self.offsets[ix].is_none()) {
            let Some(offset) = self.lowest(ix) else { return true };
            let waits = self.twin[ix].is_some_and(|twin| self.offsets[twin].is_none());
            if !waits && (!self.rising || last <= offset) {
                nexts.push((offset, u64::MAX - self.instance.items[ix].size, ix));
            }
        }
        nexts.sort_unstable();
        for (offset, _, ix) in nexts {
            if self.best <= self.enough {
                return true;
            }
            // What was found meanwhile may leave no room.
            if self.best <= offset + self.instance.items[ix].size {
                continue;
            }
            if !self.lay(ix, offset, work) {
                return false;
            }
        }
        true
    }

    fn lay(&mut self, ix: usize, offset: u64, work: &mut Work) -> bool {
        let (instance, n_slots) = (self.instance, self.slots.len());
        let pieces = instance.pieces(&instance.items[ix]);
        let weigh = |left: &mut Vec<u64>, sign: fn(u64, u64) -> u64| {
            for piece in pieces {
                let sections = &mut left[piece.first as usize..piece.end as usize];
                sections.iter_mut().for_each(|left| *left = sign(*left, piece.high - piece.low));
            }
        };
        weigh(&mut self.left, |left, size| left - size);
        self.slots.extend(pieces.iter().map(|piece| piece.at(offset)));
        self.offsets[ix] = Some(offset);
        let all = self.descend(offset, work);
        self.offsets[ix] = None;
        self.slots.truncate(n_slots);
        weigh(&mut self.left, |left, size| left + size);
        all
    }

    /// Whether everything that is left may find room from `last` on, below the best height.
    fn has_room(&self, last: u64) -> bool {
        let mut need: Vec<u64> = self.left.iter().map(|left| last.saturating_add(*left)).collect();
        for slot in self.slots.iter().filter(|slot| last < slot.top) {
            let above = slot.top - slot.start.max(last);
            let sections = slot.first as usize..slot.end as usize;
            need[sections].iter_mut().for_each(|need| *need = need.saturating_add(above));
        }
        need.iter().zip(&self.left).all(|(need, left)| *left == 0 || *need < self.best)
    }

    /// The lowest offset that an item fits at; none if it does not stay below the best height there.
    fn lowest(&self, ix: usize) -> Option<u64> {
        let item = &self.instance.items[ix];
        let pieces = self.instance.pieces(item);
        let mut offset = 0u64;
        'again: loop {
            if self.best <= offset.checked_add(item.size)? {
                return None;
            }
            for piece in pieces {
                let here = piece.at(offset);
                let meets = |slot: &&Slot| {
                    here.first < slot.end && slot.first < here.end && here.start < slot.top && slot.start < here.top
                };
                if let Some(slot) = self.slots.iter().find(meets) {
                    // The piece's bottom goes onto the slot's top.
                    offset = item.lift(slot.top - piece.low)?;
                    continue 'again;
                }
            }
            return Some(offset);
        }
    }
}
