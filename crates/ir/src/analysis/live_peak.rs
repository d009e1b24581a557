//! [`LivePeak`]: the peak of live bytes while the lives of buffers change one by one. All operations are O(log n).
//!
//! A binary tree in an array, leaves last, one for each position: the children of node `i` are `2i` and `2i + 1`.

use types::Bytes;

use super::liveness::LiveRange;

/// The sum of the sizes that are live at each position, with its maximum.
#[derive(Clone, Debug)]
pub(super) struct LivePeak {
    leaves: usize,
    /// The maximum below each node, without the bytes stored at its ancestors.
    max: Vec<i64>,
    /// The bytes that were added to all leaves below each node at once.
    added: Vec<i64>,
}

impl LivePeak {
    /// Positions at which nothing is live.
    pub(super) fn new(positions: usize) -> LivePeak {
        let leaves = positions.next_power_of_two();
        LivePeak { leaves, max: vec![0; 2 * leaves], added: vec![0; 2 * leaves] }
    }

    /// Adds a buffer.
    pub(super) fn add(&mut self, range: LiveRange, size: Bytes) {
        self.change(range, size.0 as i64);
    }

    /// Removes a buffer that was added.
    pub(super) fn remove(&mut self, range: LiveRange, size: Bytes) {
        self.change(range, -(size.0 as i64));
    }

    /// The most bytes that are live at one position.
    pub(super) fn peak(&self) -> Bytes {
        Bytes(self.max[1] as u64)
    }

    fn change(&mut self, range: LiveRange, bytes: i64) {
        let (mut low, mut high) = (range.first + self.leaves, range.last + 1 + self.leaves);
        let ends = [low, high - 1];
        while low < high {
            if low % 2 == 1 {
                self.change_node(low, bytes);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.change_node(high, bytes);
            }
            low /= 2;
            high /= 2;
        }
        // Every other node above a changed one is an ancestor of an end.
        for end in ends {
            let mut node = end / 2;
            while 1 <= node {
                self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.added[node];
                node /= 2;
            }
        }
    }

    fn change_node(&mut self, node: usize, bytes: i64) {
        self.max[node] += bytes;
        self.added[node] += bytes;
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;
    use crate::analysis::liveness::sum_over_ranges;

    #[test]
    fn peak_equals_the_sum_over_all_ranges() {
        let mut random = Random::new(5);
        for positions in 1..40_usize {
            let mut tree = LivePeak::new(positions);
            let mut live: Vec<(LiveRange, Bytes)> = Vec::new();
            for _ in 0..60 {
                if random.below(3) == 0 && !live.is_empty() {
                    let (range, size) = live.swap_remove(random.below(live.len() as u64) as usize);
                    tree.remove(range, size);
                } else {
                    let first = random.below(positions as u64) as usize;
                    let last = first + random.below((positions - first) as u64) as usize;
                    let (range, size) = (LiveRange { first, last }, Bytes(random.below(1000)));
                    live.push((range, size));
                    tree.add(range, size);
                }
                let sums = sum_over_ranges(positions, live.iter().copied());
                assert_eq!(Some(tree.peak().0), sums.into_iter().max());
            }
        }
    }
}
