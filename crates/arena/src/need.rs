//! [`Need`]: how high each section will be at least, when what lies nowhere yet is stacked on what is decided.
//!
//! The need of a section is the sum of the bytes that live in it and of the bytes wasted under them so far. Where it is
//! highest the next wasted byte hurts most. A binary tree in an array, the children of node `i` being `2i` and
//! `2i + 1`: each node knows what was added to all of its sections at once, and the highest need under it, both without what
//! was added to the nodes above.

/// Numbers by section: a range of them can grow, and the greatest of a range be found.
#[derive(Clone)]
pub(crate) struct Need {
    n_leaves: usize,
    max: Vec<u64>,
    added: Vec<u64>,
}

impl Need {
    /// The bytes that live in each section.
    pub(crate) fn new(totals: Vec<u64>) -> Need {
        let n_leaves = totals.len().next_power_of_two();
        let mut max = vec![0; 2 * n_leaves];
        max[n_leaves..n_leaves + totals.len()].copy_from_slice(&totals);
        for node in (1..n_leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        Need { n_leaves, max, added: vec![0; 2 * n_leaves] }
    }

    /// Adds to the sections `first..end`.
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

    /// The first of the sections `first..end` that need most; the range is not empty.
    pub(crate) fn greatest(&self, first: u32, end: u32) -> u32 {
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

    /// Raises `best`, a need and the node that has it, to the greatest in a range under a node, whose sections are
    /// `start..start + len` and to which `above` was added already.
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
    fn need_equals_a_plain_row() {
        let mut random = Random::new(8);
        for n in 1..40_u32 {
            let mut row: Vec<u64> = (0..n).map(|_| random.below(50)).collect();
            let mut need = Need::new(row.clone());
            for _ in 0..60 {
                let mut range = || {
                    let first = random.below(n.into()) as u32;
                    (first, first + 1 + random.below((n - first).into()) as u32)
                };
                let ((first, end), bytes) = (range(), 7);
                row[first as usize..end as usize].iter_mut().for_each(|leaf| *leaf += bytes);
                need.add(first, end, bytes);
                let (first, end) = range();
                let greatest = row[first as usize..end as usize].iter().max().unwrap();
                let place = (first..end).find(|section| row[*section as usize] == *greatest);
                assert_eq!(Some(need.greatest(first, end)), place);
            }
        }
    }
}
