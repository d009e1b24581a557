//! [`Neighbors`]: the slots near an item, for passes that place items one after the other.
//!
//! Most items live for few steps and share sections with few others. The lists of these neighbors are computed once. A pass
//! compares an item with the neighbors that are already placed, in the order of their start offsets. Consecutive passes place most
//! items at the same offsets, so each list keeps the order of the last pass and is nearly sorted.

use crate::instance::{Instance, Slot};

/// The most pairs of an item and a neighbor: on average for an item, and of all items. With more, a walk over all placed slots is
/// faster and needs less memory.
const ITEM_PAIRS_MAX: usize = 128;
const PAIRS_MAX: usize = 1 << 22;
/// Bits of a key that hold the number of a slot; the others hold its start.
const NUMBER_BITS: u32 = 20;
const START_BITS: u32 = u64::BITS - NUMBER_BITS;
/// The key of a slot that is not placed.
const NOWHERE: u64 = u64::MAX;
/// Keys that an insertion sort moves at most for each one; with more, a list is far from its order.
const MOVES: usize = 4;

/// By item, the pieces of other items and the fixed slots that share a section with its hull.
pub(crate) struct Neighbors {
    /// The neighbors of item `ix` are those of `starts[ix]..starts[ix + 1]`.
    starts: Vec<u32>,
    /// By number: pieces of the instance, then fixed slots.
    numbers: Vec<u32>,
    /// By number, where it is in this pass.
    slots: Vec<Slot>,
    /// By number. They rise with the starts.
    keys: Vec<u64>,
    /// Scratch memory: the keys of the slots near an item, and the numbers that are not placed.
    near: Vec<u64>,
    others: Vec<u32>,
}

impl Neighbors {
    /// `None` if there are too many pairs, or if offsets do not fit in a key.
    pub(crate) fn new(instance: &Instance) -> Option<Neighbors> {
        let sizes = instance.items.iter().map(|item| u128::from(item.size) + u128::from(item.alignment));
        let slots: Vec<Slot> =
            instance.pieces.iter().map(|piece| piece.at(0)).chain(instance.fixed.iter().copied()).collect();
        if 1 << START_BITS <= u128::from(instance.base) + sizes.sum::<u128>() || 1 << NUMBER_BITS <= slots.len() {
            return None;
        }
        let pairs = pairs(instance)?;
        let mut starts = vec![0; instance.items.len() + 1];
        pairs.iter().for_each(|[item, _]| starts[*item as usize + 1] += 1);
        for ix in 0..instance.items.len() {
            starts[ix + 1] += starts[ix];
        }
        let (mut numbers, mut next) = (vec![0; pairs.len()], starts.clone());
        for [item, number] in pairs {
            let at = &mut next[item as usize];
            numbers[*at as usize] = number;
            *at += 1;
        }
        let keys = slots.iter().enumerate().map(|(number, slot)| key(slot.start, number)).collect();
        Some(Neighbors { starts, numbers, slots, keys, near: Vec::new(), others: Vec::new() })
    }

    /// Pairs of an item and a neighbor.
    pub(crate) fn n_pairs(&self) -> usize {
        self.numbers.len()
    }

    /// No item is placed any more.
    pub(crate) fn clear(&mut self, instance: &Instance) {
        self.keys[..instance.pieces.len()].fill(NOWHERE);
    }

    pub(crate) fn add(&mut self, instance: &Instance, item: u32, offset: u64) {
        let item = &instance.items[item as usize];
        for (number, piece) in item.pieces.clone().zip(instance.pieces(item)) {
            self.slots[number] = piece.at(offset);
            self.keys[number] = key(offset + piece.low, number);
        }
    }

    /// The slots that share a section with the hull of an item, by rising start, and the number of its neighbors.
    pub(crate) fn near(&mut self, item: u32) -> (impl Iterator<Item = &Slot>, usize) {
        let numbers = &mut self.numbers[self.starts[item as usize] as usize..self.starts[item as usize + 1] as usize];
        if self.near.len() < numbers.len() {
            self.near.resize(numbers.len(), 0);
            self.others.resize(numbers.len(), 0);
        }
        let (near, others) = (&mut self.near[..numbers.len()], &mut self.others[..numbers.len()]);
        // Without a branch: whether a neighbor is placed is not predictable, and a mispredicted branch costs more than a store.
        let mut n_near = 0;
        for (at, &number) in numbers.iter().enumerate() {
            let key = self.keys[number as usize];
            near[n_near] = key;
            others[at - n_near] = number;
            n_near += usize::from(key != NOWHERE);
        }
        let near = &mut near[..n_near];
        if sort(near) {
            let n_others = numbers.len() - n_near;
            for (number, key) in numbers.iter_mut().zip(&*near) {
                *number = number_of(*key) as u32;
            }
            numbers[n_near..].copy_from_slice(&others[..n_others]);
        }
        (near.iter().map(|key| &self.slots[number_of(*key)]), numbers.len())
    }
}

fn key(start: u64, number: usize) -> u64 {
    start << NUMBER_BITS | number as u64
}

fn number_of(key: u64) -> usize {
    (key & ((1 << NUMBER_BITS) - 1)) as usize
}

/// Sorts keys. Returns whether some were not in order.
fn sort(keys: &mut [u64]) -> bool {
    let mut left = MOVES * keys.len();
    for at in 1..keys.len() {
        let (key, mut to) = (keys[at], at);
        while 0 < to && key < keys[to - 1] {
            keys[to] = keys[to - 1];
            to -= 1;
        }
        keys[to] = key;
        let Some(rest) = left.checked_sub(at - to) else {
            keys.sort_unstable();
            return true;
        };
        left = rest;
    }
    left < MOVES * keys.len()
}

/// What begins at a section: an item, or the slot of a piece or a fixed buffer, with the item that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Begin {
    Item,
    Slot { of: Option<u32> },
}

/// Items with slots of others, in no order. `None` if there are too many.
fn pairs(instance: &Instance) -> Option<Vec<[u32; 2]>> {
    let mut begins: Vec<(u32, Begin, u32, u32)> = Vec::new();
    for (ix, item) in instance.items.iter().enumerate() {
        begins.push((item.hull.start, Begin::Item, ix as u32, item.hull.end));
        let pieces = item.pieces.clone().zip(instance.pieces(item));
        let of = Some(ix as u32);
        begins.extend(pieces.map(|(number, piece)| (piece.first, Begin::Slot { of }, number as u32, piece.end)));
    }
    let fixed = (instance.pieces.len()..).zip(&instance.fixed);
    begins.extend(fixed.map(|(number, slot)| (slot.first, Begin::Slot { of: None }, number as u32, slot.end)));
    begins.sort_unstable();
    let most = (ITEM_PAIRS_MAX * instance.items.len()).min(PAIRS_MAX);
    let mut pairs = Vec::new();
    // Those that have begun, with their ends.
    let (mut items, mut slots) = (Vec::<(u32, u32)>::new(), Vec::<(u32, Option<u32>, u32)>::new());
    for (first, begin, ix, end) in begins {
        match begin {
            Begin::Item => {
                slots.retain(|(_, _, end)| first < *end);
                pairs.extend(slots.iter().map(|(number, _, _)| [ix, *number]));
                items.push((ix, end));
            }
            Begin::Slot { of } => {
                items.retain(|(_, end)| first < *end);
                pairs.extend(items.iter().filter(|(item, _)| Some(*item) != of).map(|(item, _)| [*item, ix]));
                slots.push((ix, of, end));
            }
        }
        if most < pairs.len() {
            return None;
        }
    }
    Some(pairs)
}
