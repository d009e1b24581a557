//! [`Floor`]: a row of heights with "lift a range" and "highest in a range", both in O(log n).

/// The height already taken in each section: `raise` lifts a range to at least a height, `height` is a range's maximum.
///
/// A binary tree in an array, leaves behind: node `i` covers the leaves under it, its children are `2i` and `2i + 1`.
pub(crate) struct Floor {
    n_leaves: usize,
    /// The maximum under each node, as far as known at the node or below it; what is above it is in `whole`.
    max: Vec<u64>,
    /// What all leaves under the node have been lifted to at once, without telling them.
    whole: Vec<u64>,
}

impl Floor {
    pub(crate) fn new(n_leaves: usize) -> Floor {
        Floor { n_leaves, max: vec![0; 2 * n_leaves], whole: vec![0; 2 * n_leaves] }
    }

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
        // Every node that has a lifted leaf under it is an ancestor of a covered node or one itself.
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

    pub(crate) fn height(&self, first: usize, end: usize) -> u64 {
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
        // Lifts of whole subtrees that contain an end of the range. A subtree that contains an inner node of the range
        // but neither end does not exist: ranges are contiguous.
        for mut node in [left / 2, right / 2] {
            while 1 <= node {
                height = height.max(self.whole[node]);
                node /= 2;
            }
        }
        height
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn floor_equals_a_plain_row() {
        let mut random = Random::new(3);
        for n_leaves in 1..40 {
            let mut floor = Floor::new(n_leaves);
            let mut row = vec![0; n_leaves];
            for _ in 0..60 {
                let first = random.below(n_leaves as u64) as usize;
                let end = first + 1 + random.below((n_leaves - first) as u64) as usize;
                let height = random.below(1000);
                row[first..end].iter_mut().for_each(|leaf| *leaf = height.max(*leaf));
                floor.raise(first, end, height);
                let first = random.below(n_leaves as u64) as usize;
                let end = first + 1 + random.below((n_leaves - first) as u64) as usize;
                assert_eq!(floor.height(first, end), *row[first..end].iter().max().unwrap());
            }
        }
    }
}
