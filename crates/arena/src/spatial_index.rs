//! [`SpatialIndex`] and [`Unplaced`]: the remaining items, and the query for the first of them within a range of
//! sections.
//!
//! An item is a point (first section, end). Points are split into halves of equal count, by first section and by end in
//! turn, until at most eight are left (a k-d tree): a complete binary tree in an array, the children of node `i` being
//! `2i` and `2i + 1`. A node stores the bounding box of its points, which never changes, and the least rank of the
//! remaining ones. "Within `l..r`" means `l <= first` and `end <= r`: a node inside the query answers at once, a node
//! outside it or without a rank below the best so far is skipped, and the child with the lower rank is entered first.
//! With obstacles a node also stores the least remaining size, so that items that do not fit are skipped.
//!
//! Most ranges are short, and few points have their first section in them. So the points are also stored as a row by
//! first section; if a range has few of them they are scanned.

/// The most points of a leaf.
const LEAF_POINTS: usize = 8;

/// Up to this many points of the row are scanned, eight for a unit of work.
const ROW_POINTS: usize = 160;

/// The rank of a removed point.
pub(crate) const REMOVED: u32 = u32::MAX;

/// The tree of the points; the same for every pass.
pub(crate) struct SpatialIndex {
    n_points: usize,
    n_leaves: usize,
    spans: Vec<Span>,
    /// By slot: the positions of points in the order of leaves.
    points: Vec<Point>,
    row: Row,
}

/// Points by rising first section.
struct Row {
    /// By section, the number of points that begin before it.
    starts: Vec<u32>,
    ends: Vec<u32>,
    sizes: Vec<u64>,
    /// By slot, the place in the row.
    places: Vec<u32>,
}

/// The bounding box of the points below a node.
#[derive(Clone, Copy)]
struct Span {
    first_min: u32,
    first_max: u32,
    end_min: u32,
    end_max: u32,
}

/// The sections `first..end` of an item.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) item: u32,
    pub(crate) size: u64,
}

/// A query: the points with a first section in `first..=first_max`, an end in `end_min..=end` and a size of at most
/// `size_max`.
#[derive(Clone, Copy)]
pub(crate) struct RangeQuery {
    pub(crate) first: u32,
    pub(crate) first_max: u32,
    pub(crate) end_min: u32,
    pub(crate) end: u32,
    pub(crate) size_max: u64,
}

impl RangeQuery {
    /// All within a range.
    pub(crate) fn within(first: u32, end: u32) -> RangeQuery {
        RangeQuery { first, first_max: u32::MAX, end_min: 0, end, size_max: u64::MAX }
    }

    /// Those of them that live in a section of another range.
    pub(crate) fn meeting(self, first: u32, end: u32) -> RangeQuery {
        RangeQuery { first_max: self.first_max.min(end - 1), end_min: self.end_min.max(first + 1), ..self }
    }
}

/// The remaining points with their ranks.
pub(crate) struct Unplaced<'a> {
    tree: &'a SpatialIndex,
    /// By node, the least rank below it.
    least: Vec<u32>,
    /// By node, the least size below it; empty if queries have no sizes.
    smallest: Vec<u64>,
    /// By slot.
    ranks: Vec<u32>,
    /// By place in the row.
    row_ranks: Vec<u32>,
    /// By rank, the slot.
    slots: Vec<u32>,
    stack: Vec<u32>,
}

impl SpatialIndex {
    pub(crate) fn new(mut points: Vec<Point>) -> SpatialIndex {
        let n_points = points.len();
        let n_leaves = n_points.div_ceil(LEAF_POINTS).next_power_of_two();
        let mut tree = SpatialIndex {
            n_points,
            n_leaves,
            spans: vec![Span::EMPTY; 2 * n_leaves],
            points: Vec::new(),
            row: Row::new(&[]),
        };
        tree.split(&mut points, 1, 0, n_leaves);
        for leaf in 0..n_leaves {
            let slots = tree.slots(leaf);
            tree.spans[n_leaves + leaf] =
                points[slots].iter().fold(Span::EMPTY, |all, point| all.join(Span::of(*point)));
        }
        for node in (1..n_leaves).rev() {
            tree.spans[node] = tree.spans[2 * node].join(tree.spans[2 * node + 1]);
        }
        tree.row = Row::new(&points);
        tree.points = points;
        tree
    }

    /// Orders the points of a node's leaves: the lower half under its left child, the upper under its right.
    fn split(&self, points: &mut [Point], depth: u32, leaf: usize, n_leaves: usize) {
        if n_leaves == 1 {
            return;
        }
        let start = self.slots(leaf).start;
        let middle = self.slots(leaf + n_leaves / 2).start - start;
        if middle < points.len() {
            match depth % 2 {
                0 => points.select_nth_unstable_by_key(middle, |point| (point.end, point.first, point.item)),
                _ => points.select_nth_unstable_by_key(middle, |point| (point.first, point.end, point.item)),
            };
        }
        let (left, right) = points.split_at_mut(middle);
        self.split(left, depth + 1, leaf, n_leaves / 2);
        self.split(right, depth + 1, leaf + n_leaves / 2, n_leaves / 2);
    }

    /// Calls for each point whose sections meet a range.
    pub(crate) fn each_meeting(&self, first: u32, end: u32, mut call: impl FnMut(Point)) {
        self.visit(
            |span| end <= span.first_min || span.end_max <= first,
            |point| {
                if point.first < end && first < point.end {
                    call(point);
                }
                true
            },
        );
    }

    /// The number of points within a range, at most `max`.
    pub(crate) fn count_inside(&self, first: u32, end: u32, max: usize) -> usize {
        let mut count = 0;
        self.visit(
            |span| span.first_max < first || end < span.end_min,
            |point| {
                count += usize::from(first <= point.first && point.end <= end);
                count < max
            },
        );
        count
    }

    /// Calls for points until a call returns false; skips the points below nodes that are out.
    fn visit(&self, is_out: impl Fn(&Span) -> bool, mut call: impl FnMut(Point) -> bool) {
        let mut stack = vec![1];
        while let Some(node) = stack.pop() {
            if is_out(&self.spans[node]) {
                continue;
            }
            if node < self.n_leaves {
                stack.extend([2 * node + 1, 2 * node]);
            } else if !self.points[self.slots(node - self.n_leaves)].iter().all(|point| call(*point)) {
                return;
            }
        }
    }

    /// The slots of a leaf, counted from the first leaf.
    fn slots(&self, leaf: usize) -> std::ops::Range<usize> {
        leaf * self.n_points / self.n_leaves..(leaf + 1) * self.n_points / self.n_leaves
    }

    /// The leaf that holds a slot.
    fn leaf(&self, slot: usize) -> usize {
        ((slot + 1) * self.n_leaves - 1) / self.n_points
    }
}

impl Row {
    fn new(points: &[Point]) -> Row {
        let n_sections = points.iter().map(|point| point.first as usize + 1).max().unwrap_or(0);
        let mut starts = vec![0; n_sections + 1];
        points.iter().for_each(|point| starts[point.first as usize + 1] += 1);
        for section in 1..=n_sections {
            starts[section] += starts[section - 1];
        }
        let mut next = starts.clone();
        let (mut ends, mut sizes) = (vec![0; points.len()], vec![0; points.len()]);
        let place = |point: &Point| {
            let next = &mut next[point.first as usize];
            let place = *next as usize;
            (ends[place], sizes[place]) = (point.end, point.size);
            *next += 1;
            place as u32
        };
        let places = points.iter().map(place).collect();
        Row { starts, ends, sizes, places }
    }

    /// The places of the points whose first sections are in a range.
    fn between(&self, first: u32, end: u32) -> std::ops::Range<usize> {
        let start = |section: u32| self.starts[(section as usize).min(self.starts.len() - 1)] as usize;
        start(first)..start(end.max(first))
    }
}

impl<'a> Unplaced<'a> {
    /// All points, with the rank of each item; items that are no points may have ranks too. Without `has_sizes` queries
    /// must not limit the size.
    pub(crate) fn new(tree: &'a SpatialIndex, rank: &[u32], has_sizes: bool) -> Unplaced<'a> {
        let ranks: Vec<u32> = tree.points.iter().map(|point| rank[point.item as usize]).collect();
        let mut slots = vec![0; rank.len()];
        for (slot, rank) in ranks.iter().enumerate() {
            slots[*rank as usize] = slot as u32;
        }
        let mut row_ranks = vec![REMOVED; ranks.len()];
        tree.row.places.iter().zip(&ranks).for_each(|(place, rank)| row_ranks[*place as usize] = *rank);
        let mut least = vec![REMOVED; 2 * tree.n_leaves];
        for leaf in 0..tree.n_leaves {
            least[tree.n_leaves + leaf] = ranks[tree.slots(leaf)].iter().copied().min().unwrap_or(REMOVED);
        }
        for node in (1..tree.n_leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        let mut unplaced = Unplaced { tree, least, smallest: Vec::new(), ranks, row_ranks, slots, stack: Vec::new() };
        if has_sizes {
            unplaced.smallest = vec![u64::MAX; 2 * tree.n_leaves];
            for leaf in 0..tree.n_leaves {
                unplaced.smallest[tree.n_leaves + leaf] = unplaced.smallest_in(leaf);
            }
            for node in (1..tree.n_leaves).rev() {
                unplaced.smallest[node] = unplaced.smallest[2 * node].min(unplaced.smallest[2 * node + 1]);
            }
        }
        unplaced
    }

    /// The least rank of a matching point if it is below `rank`, or else `rank`; and the number of nodes visited.
    pub(crate) fn first_below(&mut self, rank: u32, query: RangeQuery) -> (u32, usize) {
        let RangeQuery { first, first_max, end_min, end, size_max } = query;
        let Unplaced { tree, least, smallest, ranks, stack, .. } = self;
        let is_any_size = size_max == u64::MAX;
        let (mut best, mut n_nodes) = (rank, 0);
        let row = tree.row.between(first, end.min(first_max.saturating_add(1)));
        if row.len() <= ROW_POINTS {
            for place in row.clone() {
                let point_end = tree.row.ends[place];
                let is_in = (point_end <= end) & (end_min <= point_end) & (self.row_ranks[place] < best);
                if is_in && (is_any_size || tree.row.sizes[place] <= size_max) {
                    best = self.row_ranks[place];
                }
            }
            return (best, 1 + row.len() / 8);
        }
        stack.push(1);
        while let Some(node) = stack.pop() {
            let node = node as usize;
            n_nodes += 1;
            let shape = tree.spans[node];
            let is_out = shape.first_max < first
                || end < shape.end_min
                || first_max < shape.first_min
                || shape.end_max < end_min
                || (!is_any_size && size_max < smallest[node]);
            if best <= least[node] || is_out {
                continue;
            }
            let is_in = is_any_size
                && first <= shape.first_min
                && shape.end_max <= end
                && shape.first_max <= first_max
                && end_min <= shape.end_min;
            if is_in {
                best = least[node];
            } else if node < tree.n_leaves {
                let (left, right) = (2 * node as u32, 2 * node as u32 + 1);
                let is_left_first = least[2 * node] <= least[2 * node + 1];
                stack.extend(if is_left_first { [right, left] } else { [left, right] });
            } else {
                let slots = tree.slots(node - tree.n_leaves);
                for (point, rank) in tree.points[slots.clone()].iter().zip(&ranks[slots]) {
                    let is_in =
                        first <= point.first && point.end <= end && point.first <= first_max && end_min <= point.end;
                    if is_in && point.size <= size_max {
                        best = best.min(*rank);
                    }
                }
            }
        }
        (best, n_nodes)
    }

    /// Removes the point of a rank.
    pub(crate) fn remove(&mut self, rank: u32) {
        let slot = self.slots[rank as usize] as usize;
        self.ranks[slot] = REMOVED;
        self.row_ranks[self.tree.row.places[slot] as usize] = REMOVED;
        let leaf = self.tree.leaf(slot);
        let mut node = self.tree.n_leaves + leaf;
        self.least[node] = self.ranks[self.tree.slots(leaf)].iter().copied().min().unwrap_or(REMOVED);
        while 1 < node {
            node /= 2;
            let least = self.least[2 * node].min(self.least[2 * node + 1]);
            if self.least[node] == least {
                break;
            }
            self.least[node] = least;
        }
        if self.smallest.is_empty() {
            return;
        }
        node = self.tree.n_leaves + leaf;
        self.smallest[node] = self.smallest_in(leaf);
        while 1 < node {
            node /= 2;
            let smallest = self.smallest[2 * node].min(self.smallest[2 * node + 1]);
            if self.smallest[node] == smallest {
                break;
            }
            self.smallest[node] = smallest;
        }
    }

    /// The least remaining size in a leaf.
    fn smallest_in(&self, leaf: usize) -> u64 {
        let slots = self.tree.slots(leaf);
        let left = self.tree.points[slots.clone()].iter().zip(&self.ranks[slots]).filter(|(_, rank)| **rank != REMOVED);
        left.map(|(point, _)| point.size).min().unwrap_or(u64::MAX)
    }
}

impl Span {
    const EMPTY: Span = Span { first_min: u32::MAX, first_max: 0, end_min: u32::MAX, end_max: 0 };

    fn of(point: Point) -> Span {
        Span { first_min: point.first, first_max: point.first, end_min: point.end, end_max: point.end }
    }

    fn join(self, other: Span) -> Span {
        Span {
            first_min: self.first_min.min(other.first_min),
            first_max: self.first_max.max(other.first_max),
            end_min: self.end_min.min(other.end_min),
            end_max: self.end_max.max(other.end_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn index_equals_a_list() {
        let mut random = Random::new(4);
        for n_points in (0..120_u32).chain([300, 500]) {
            let mut list: Vec<Point> = (0..n_points)
                .map(|item| {
                    let first = random.below(50) as u32;
                    Point { first, end: first + 1 + random.below(20) as u32, item, size: 1 + random.below(9) }
                })
                .collect();
            let tree = SpatialIndex::new(list.clone());
            let rank: Vec<u32> = (0..n_points).rev().collect();
            let mut unplaced = Unplaced::new(&tree, &rank, true);
            for _ in 0..n_points + 20 {
                let first = random.below(50) as u32;
                let end = first + random.below(40) as u32;
                let mut query =
                    RangeQuery { size_max: [u64::MAX, 4][random.below(2) as usize], ..RangeQuery::within(first, end) };
                if random.below(2) == 0 && first < end {
                    query = query.meeting(first + (end - first) / 2, end);
                }
                let within = list.iter().filter(|point| {
                    let is_in_time = first <= point.first && point.end <= end;
                    is_in_time
                        && point.size <= query.size_max
                        && query.end_min <= point.end
                        && point.first <= query.first_max
                });
                let expected = within.map(|point| rank[point.item as usize]).min().unwrap_or(REMOVED);
                assert_eq!(unplaced.first_below(REMOVED, query).0, expected);
                if expected != REMOVED {
                    unplaced.remove(expected);
                    list.retain(|point| rank[point.item as usize] != expected);
                }
            }
        }
    }
}
