//! Segment trees over sections of time: [`RaiseMaxTree`] for heights, [`AddMaxTree`] for demands. All operations are
//! O(log n).
//!
//! Both are binary trees in an array, leaves last: the children of node `i` are `2i` and `2i + 1`.

/// A row of heights with "raise a range to at least a height" and "maximum of a range".
pub(crate) struct RaiseMaxTree {
    n_leaves: usize,
    /// The maximum below each node, without raises stored at its ancestors.
    max: Vec<u64>,
    /// The height to which all leaves below the node were raised at once.
    whole: Vec<u64>,
}

impl RaiseMaxTree {
    /// A row of zeros.
    pub(crate) fn new(n_leaves: usize) -> RaiseMaxTree {
        RaiseMaxTree { n_leaves, max: vec![0; 2 * n_leaves], whole: vec![0; 2 * n_leaves] }
    }

    /// Raises the leaves `first..end` to at least `height`.
    pub(crate) fn raise(&mut self, first: usize, end: usize, height: u64) {
        let (mut low, mut high) = (first + self.n_leaves, end + self.n_leaves);
        let (left, right) = (low, high - 1);
        while low < high {
            if low % 2 == 1 {
                self.cover(low, height);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.cover(high, height);
            }
            low /= 2;
            high /= 2;
        }
        // Every other node with a raised leaf below it is an ancestor of one of the two ends.
        for mut node in [left / 2, right / 2] {
            while 1 <= node {
                self.max[node] = self.max[node].max(self.max[2 * node]).max(self.max[2 * node + 1]);
                node /= 2;
            }
        }
    }

    fn cover(&mut self, node: usize, height: u64) {
        self.max[node] = self.max[node].max(height);
        self.whole[node] = self.whole[node].max(height);
    }

    /// The maximum of the leaves `first..end`; the range must not be empty.
    pub(crate) fn max(&self, first: usize, end: usize) -> u64 {
        let (mut low, mut high) = (first + self.n_leaves, end + self.n_leaves);
        let (left, right) = (low, high - 1);
        let mut height = 0;
        while low < high {
            if low % 2 == 1 {
                height = height.max(self.max[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                height = height.max(self.max[high]);
            }
            low /= 2;
            high /= 2;
        }
        // Raises of whole subtrees are stored at ancestors of the range. Every ancestor of an inner node that is not in
        // the range is an ancestor of an end, because the range is contiguous.
        for mut node in [left / 2, right / 2] {
            while 1 <= node {
                height = height.max(self.whole[node]);
                node /= 2;
            }
        }
        height
    }
}

/// A row of numbers with "add to a range" and "first maximum of a range".
///
/// Each node stores the amount added to all of its leaves at once, and the maximum below it without the amounts of its
/// ancestors.
#[derive(Clone)]
pub(crate) struct AddMaxTree {
    n_leaves: usize,
    max: Vec<u64>,
    added: Vec<u64>,
}

impl AddMaxTree {
    /// The tree of a row.
    pub(crate) fn new(row: Vec<u64>) -> AddMaxTree {
        let n_leaves = row.len().next_power_of_two();
        let mut max = vec![0; 2 * n_leaves];
        max[n_leaves..n_leaves + row.len()].copy_from_slice(&row);
        for node in (1..n_leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        AddMaxTree { n_leaves, max, added: vec![0; 2 * n_leaves] }
    }

    /// Adds to the leaves `first..end`; sums saturate.
    pub(crate) fn add(&mut self, first: u32, end: u32, bytes: u64) {
        let (mut low, mut high) = (first as usize + self.n_leaves, end as usize + self.n_leaves);
        let ends = [low, high - 1];
        while low < high {
            if low % 2 == 1 {
                self.add_to(low, bytes);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.add_to(high, bytes);
            }
            low /= 2;
            high /= 2;
        }
        for end in ends {
            let mut node = end / 2;
            while 1 <= node {
                let below = self.max[2 * node].max(self.max[2 * node + 1]);
                self.max[node] = below.saturating_add(self.added[node]);
                node /= 2;
            }
        }
    }

    /// The first maximum of the leaves `first..end`; the range must not be empty.
    pub(crate) fn first_max(&self, first: u32, end: u32) -> u32 {
        if end - first == 1 {
            return first;
        }
        let mut best = (0, 0);
        self.visit(1, 0, self.n_leaves, (first as usize, end as usize), 0, &mut best);
        let mut node = best.1;
        while node < self.n_leaves {
            node = if self.max[2 * node + 1] <= self.max[2 * node] { 2 * node } else { 2 * node + 1 };
        }
        (node - self.n_leaves) as u32
    }

    /// Raises `best`, a maximum and its node, to the maximum of a range below `node`. The node covers the leaves
    /// `start..start + len`; `above` is the sum added at its ancestors.
    fn visit(&self, node: usize, start: usize, len: usize, range: (usize, usize), above: u64, best: &mut (u64, usize)) {
        let here = above.saturating_add(self.max[node]);
        if start + len <= range.0 || range.1 <= start || (best.1 != 0 && here <= best.0) {
            return;
        }
        if range.0 <= start && start + len <= range.1 {
            *best = (here, node);
            return;
        }
        let (half, above) = (len / 2, above.saturating_add(self.added[node]));
        self.visit(2 * node, start, half, range, above, best);
        self.visit(2 * node + 1, start + half, half, range, above, best);
    }

    fn add_to(&mut self, node: usize, bytes: u64) {
        self.max[node] = self.max[node].saturating_add(bytes);
        self.added[node] = self.added[node].saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn raise_max_tree_equals_a_row() {
        let mut random = Random::new(3);
        for n_leaves in 1..40 {
            let mut tree = RaiseMaxTree::new(n_leaves);
            let mut row = vec![0; n_leaves];
            for _ in 0..60 {
                let first = random.below(n_leaves as u64) as usize;
                let end = first + 1 + random.below((n_leaves - first) as u64) as usize;
                let height = random.below(1000);
                row[first..end].iter_mut().for_each(|leaf| *leaf = height.max(*leaf));
                tree.raise(first, end, height);
                let first = random.below(n_leaves as u64) as usize;
                let end = first + 1 + random.below((n_leaves - first) as u64) as usize;
                assert_eq!(tree.max(first, end), *row[first..end].iter().max().unwrap());
            }
        }
    }

    #[test]
    fn add_max_tree_equals_a_row() {
        let mut random = Random::new(8);
        for n in 1..40_u32 {
            let mut row: Vec<u64> = (0..n).map(|_| random.below(50)).collect();
            let mut tree = AddMaxTree::new(row.clone());
            for _ in 0..60 {
                let mut range = || {
                    let first = random.below(n.into()) as u32;
                    (first, first + 1 + random.below((n - first).into()) as u32)
                };
                let ((first, end), bytes) = (range(), 7);
                row[first as usize..end as usize].iter_mut().for_each(|leaf| *leaf += bytes);
                tree.add(first, end, bytes);
                let (first, end) = range();
                let greatest = row[first as usize..end as usize].iter().max().unwrap();
                let place = (first..end).find(|section| row[*section as usize] == *greatest);
                assert_eq!(Some(tree.first_max(first, end)), place);
            }
        }
    }
}
