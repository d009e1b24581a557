//! [`lowest_order`]: the least height of at most a dozen items, by trying the orders in which they can be placed.
//!
//! **Why orders are enough.** Take a placement without windows and place its items again, by rising offset, each as low
//! as it fits. No item rises: the items placed before it that share a step with it ended below its old offset and have
//! not risen. Repeat until nothing moves: then every item is as low as it fits above those before it, *and the offsets
//! rise from one to the next*. So only such orders are tried.
//!
//! **Pruning.** Later offsets are not below the last one, so a section needs the last offset, the bytes placed above
//! it, and the bytes of the remaining items over the section. And an item never fits lower than it does now. A branch
//! ends when either reaches the best height known. Of identical items, the first goes first.
//!
//! With windows an item can be between the parts of another, and placing it again can push others up. Then all orders
//! are tried. They include all results of the search over whole rectangles (`search.rs`), so that it need not run, but
//! prove nothing.

use crate::instance::{Instance, Slot, Work};

/// More items have too many orders.
pub(crate) const ITEMS_MAX: usize = 12;

/// The result of trying the orders.
pub(crate) struct Orders {
    /// Offsets by item and their height, if lower than the height known before.
    pub(crate) found: Option<(Vec<u64>, u64)>,
    /// Whether all orders were tried.
    pub(crate) all: bool,
    /// Whether that proves that no placement is lower.
    pub(crate) is_proof: bool,
}

/// Searches for the placement with the least height below `height`, and stops once `enough` is reached.
pub(crate) fn lowest_order(instance: &Instance, height: u64, enough: u64, work: &mut Work) -> Orders {
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
    Orders { found: search.found.map(|offsets| (offsets, search.best)), all, is_proof: all && !has_windows }
}

/// An earlier item that is identical to this one.
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
    /// The best height known.
    best: u64,
    enough: u64,
    found: Option<Vec<u64>>,
    /// Occupied rectangles: fixed buffers, then the items placed.
    slots: Vec<Slot>,
    offsets: Vec<Option<u64>>,
    /// By section, the bytes of the remaining items.
    left: Vec<u64>,
    twin: Vec<Option<usize>>,
}

impl Search<'_> {
    /// Places the remaining items, none below `last`; false if the budget was spent before all orders were tried.
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
            // `best` may have fallen since.
            if self.best <= offset + self.instance.items[ix].size {
                continue;
            }
            if !self.place(ix, offset, work) {
                return false;
            }
        }
        true
    }

    fn place(&mut self, ix: usize, offset: u64, work: &mut Work) -> bool {
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

    /// Whether the remaining items may fit from `last` on, below the best height.
    fn has_room(&self, last: u64) -> bool {
        let mut demand: Vec<u64> = self.left.iter().map(|left| last.saturating_add(*left)).collect();
        for slot in self.slots.iter().filter(|slot| last < slot.top) {
            let above = slot.top - slot.start.max(last);
            let sections = slot.first as usize..slot.end as usize;
            demand[sections].iter_mut().for_each(|demand| *demand = demand.saturating_add(above));
        }
        demand.iter().zip(&self.left).all(|(demand, left)| *left == 0 || *demand < self.best)
    }

    /// The lowest offset at which an item fits; `None` if it is then not below the best height.
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
                    // The bottom of the piece goes onto the top of the slot.
                    offset = item.lift(slot.top - piece.low)?;
                    continue 'again;
                }
            }
            return Some(offset);
        }
    }
}
