//! [`Obstacles`]: the bytes of fixed buffers, with two queries: which of them a rectangle overlaps, and which is the
//! lowest above a gap of the skyline.
//!
//! The slots are split into halves of equal count, by first section and by start in turn, until at most eight are left
//! (a k-d tree): a complete binary tree in an array, the children of node `i` being `2i` and `2i + 1`. A node stores
//! the bounding box of its slots. Fixed slots do not overlap, so a small rectangle overlaps few boxes, O(log n) of
//! them.

use crate::instance::Slot;

/// The most slots of a leaf.
const LEAF_SLOTS: usize = 8;
/// A box that overlaps nothing.
const NOWHERE: Slot = Slot { start: u64::MAX, top: 0, first: u32::MAX, end: 0 };

/// Rectangles that do not move.
pub(crate) struct Obstacles {
    slots: Vec<Slot>,
    n_leaves: usize,
    /// By node, the bounding box of its slots.
    boxes: Vec<Slot>,
}

#[derive(Clone, Copy)]
enum Axis {
    Time,
    Bytes,
}

impl Obstacles {
    pub(crate) fn new(mut slots: Vec<Slot>) -> Obstacles {
        let n_leaves = slots.len().div_ceil(LEAF_SLOTS).next_power_of_two();
        let n_slots = slots.len();
        split(&mut slots, n_slots, 0..n_leaves, n_leaves, Axis::Time);
        let mut obstacles = Obstacles { slots, n_leaves, boxes: vec![NOWHERE; 2 * n_leaves] };
        for leaf in 0..n_leaves {
            obstacles.boxes[n_leaves + leaf] =
                obstacles.slots[obstacles.leaf(leaf)].iter().fold(NOWHERE, |all, slot| around(all, *slot));
        }
        for node in (1..n_leaves).rev() {
            obstacles.boxes[node] = around(obstacles.boxes[2 * node], obstacles.boxes[2 * node + 1]);
        }
        obstacles
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The highest top of the slots that a rectangle overlaps, zero if none; and the number of nodes visited.
    pub(crate) fn top_of_met(&self, rectangle: Slot) -> (u64, usize) {
        let meets = |other: &Slot| {
            rectangle.start < other.top
                && other.start < rectangle.top
                && rectangle.first < other.end
                && other.first < rectangle.end
        };
        let (mut top, mut n_nodes) = (0, 0);
        // Each level leaves at most one sibling on the stack.
        let mut stack = [0_usize; 2 * usize::BITS as usize];
        stack[0] = 1;
        let mut height = 1;
        while 0 < height {
            height -= 1;
            let node = stack[height];
            n_nodes += 1;
            if !meets(&self.boxes[node]) || self.boxes[node].top <= top {
                continue;
            }
            if node < self.n_leaves {
                (stack[height], stack[height + 1]) = (2 * node, 2 * node + 1);
                height += 2;
            } else {
                let met = self.slots[self.leaf(node - self.n_leaves)].iter().filter(|slot| meets(slot));
                top = met.fold(top, |top, slot| top.max(slot.top));
            }
        }
        (top, n_nodes)
    }

    /// The slot with the lowest start that ends above a height in the sections `first..end`; and the number of nodes
    /// visited.
    pub(crate) fn lowest_over(&self, first: u32, end: u32, height: u64) -> (Option<Slot>, usize) {
        let is_over = |other: &Slot| height < other.top && first < other.end && other.first < end;
        let (mut lowest, mut n_nodes) = (None::<Slot>, 0);
        let mut stack = [0_usize; 2 * usize::BITS as usize];
        stack[0] = 1;
        let mut depth = 1;
        while 0 < depth {
            depth -= 1;
            let node = stack[depth];
            n_nodes += 1;
            if !is_over(&self.boxes[node]) || lowest.is_some_and(|lowest| lowest.start <= self.boxes[node].start) {
                continue;
            }
            if node < self.n_leaves {
                let is_left_lower = self.boxes[2 * node].start <= self.boxes[2 * node + 1].start;
                let (near, far) = if is_left_lower { (2 * node, 2 * node + 1) } else { (2 * node + 1, 2 * node) };
                (stack[depth], stack[depth + 1]) = (far, near);
                depth += 2;
            } else {
                for slot in self.slots[self.leaf(node - self.n_leaves)].iter().filter(|slot| is_over(slot)) {
                    if lowest.is_none_or(|lowest| (slot.start, slot.first) < (lowest.start, lowest.first)) {
                        lowest = Some(*slot);
                    }
                }
            }
        }
        (lowest, n_nodes)
    }

    fn leaf(&self, leaf: usize) -> std::ops::Range<usize> {
        leaf_start(self.slots.len(), leaf, self.n_leaves)..leaf_start(self.slots.len(), leaf + 1, self.n_leaves)
    }
}

fn leaf_start(n_slots: usize, leaf: usize, n_leaves: usize) -> usize {
    leaf * n_slots / n_leaves
}

/// Orders the slots: those of a node's left child before those of its right child.
fn split(slots: &mut [Slot], n_slots: usize, leaves: std::ops::Range<usize>, n_leaves: usize, axis: Axis) {
    if leaves.len() == 1 {
        return;
    }
    let half = leaves.start + leaves.len() / 2;
    let middle = leaf_start(n_slots, half, n_leaves) - leaf_start(n_slots, leaves.start, n_leaves);
    let other = match axis {
        Axis::Time => Axis::Bytes,
        Axis::Bytes => Axis::Time,
    };
    if middle < slots.len() {
        slots.select_nth_unstable_by_key(middle, |slot| match axis {
            Axis::Time => (u64::from(slot.first), slot.start),
            Axis::Bytes => (slot.start, u64::from(slot.first)),
        });
    }
    let (front, back) = slots.split_at_mut(middle);
    split(front, n_slots, leaves.start..half, n_leaves, other);
    split(back, n_slots, half..leaves.end, n_leaves, other);
}

fn around(a: Slot, b: Slot) -> Slot {
    Slot { start: a.start.min(b.start), top: a.top.max(b.top), first: a.first.min(b.first), end: a.end.max(b.end) }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn obstacles_equal_a_list() {
        let mut random = Random::new(9);
        for n_slots in 0..120 {
            let mut slot = || {
                let (start, first) = (random.below(100), random.below(50) as u32);
                Slot { start, top: start + 1 + random.below(9), first, end: first + 1 + random.below(20) as u32 }
            };
            let list: Vec<Slot> = (0..n_slots).map(|_| slot()).collect();
            let obstacles = Obstacles::new(list.clone());
            for _ in 0..50 {
                let one = slot();
                let met = list.iter().filter(|other| {
                    one.first.max(other.first) < one.end.min(other.end)
                        && one.start.max(other.start) < one.top.min(other.top)
                });
                assert_eq!(obstacles.top_of_met(one).0, met.map(|other| other.top).max().unwrap_or(0));
                let over = list
                    .iter()
                    .filter(|other| one.first.max(other.first) < one.end.min(other.end) && one.start < other.top);
                let found = obstacles.lowest_over(one.first, one.end, one.start).0;
                assert_eq!(found.map(|slot| slot.start), over.map(|slot| slot.start).min());
            }
        }
    }
}
