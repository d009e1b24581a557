//! [`glue`]: items that fit together without waste, glued to larger ones.
//!
//! Two rules, used in turn until neither finds anything. Items of one size, each starting where the one before ends,
//! make a *row* of that size. Items that live in exactly the same sections make a *stack* of the sum of their sizes. A
//! problem that was cut out of one rectangle by straight cuts becomes that rectangle again, or nearly: its pieces show
//! where the cuts were. Lifetimes of a few sections are often equal by chance, sums of sizes hardly ever. So first all
//! items of one lifetime are stacked, or the fewest of them, whose sum is the size of a block that ends where they
//! start or starts where they end: that stack goes into a row. Only where there is no such stack left all items of one
//! lifetime are stacked, those of the longest lifetimes, and the next round begins.
//!
//! ```text
//!   +-----+--------+        a and b make a row ab, ab and c a stack:
//!   |  a  |   b    |
//!   +-----+--------+        +--------------+        +--------------+
//!   |      c       |        |      ab      |        |              |
//!   +--------------+        +--------------+   ->   |     abc      |
//!                           |      c       |        |              |
//!                           +--------------+        +--------------+
//! ```
//!
//! Every placement of what is glued is one of the items. The other way round it is not, so gluing is one more pass of
//! the portfolio and proves nothing. Where sizes are coarse, rows join what does not belong together; where hardly
//! anything can be glued, nothing is gained, and [`glue`] says so.

use types::Bytes;

use crate::instance::{Instance, Work};
use crate::problem::{Buffer, Lifetime, Problem};

/// Nothing is worth a pass unless at most one part in this many of the items is left.
const LEFT_SHARE: usize = 2;

/// Where no stack is wanted, of one lifetime in so many all is stacked, the longest lifetimes.
const LONGEST_SHARE: usize = 8;

/// What a round costs for each block, in units of work.
const ROUND_UNITS: usize = 8;
/// Of so many blocks of one lifetime, all subsets are looked at; of more, all and the pairs among the first of them.
const SUBSETS_MAX: usize = 10;
const PAIRS_MAX: usize = 40;

/// Which blocks of one lifetime are stacked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those for whose sum there is a block of just that size which ends where they start or starts where they end.
    Wanted,
    /// All of them, but only of the longest of such lifetimes.
    Longest,
}

/// A smaller problem, and the way back from it.
pub(crate) struct Glued {
    /// One buffer for each block that is left, in time counted by sections of the instance.
    pub(crate) problem: Problem,
    /// The blocks that are left, in the order of the problem's buffers.
    left: Vec<u32>,
    /// The items first, then what was made of them.
    blocks: Vec<Block>,
}

/// An item, or some blocks glued to one.
struct Block {
    first: u32,
    end: u32,
    size: u64,
    parts: Parts,
}

enum Parts {
    Item,
    /// All at the offset of the block.
    Row(Vec<u32>),
    /// One above the other.
    Stack(Vec<u32>),
}

/// Glues the items of an instance in which all are plain; `None` if most of them stay alone.
pub(crate) fn glue(instance: &Instance, work: &mut Work) -> Option<Glued> {
    if !instance.is_plain {
        return None;
    }
    let block = |item: &crate::instance::Item| Block {
        first: item.hull.start,
        end: item.hull.end,
        size: item.size,
        parts: Parts::Item,
    };
    let mut glued = Glued {
        problem: Problem::default(),
        left: (0..instance.items.len() as u32).collect(),
        blocks: instance.items.iter().map(block).collect(),
    };
    let n_items = instance.items.len();
    for round in 0.. {
        let n_before = glued.left.len();
        if !work.spend(ROUND_UNITS * n_before) {
            break;
        }
        glued.make_rows();
        if !glued.make_stacks(instance.grain, Which::Wanted) {
            glued.make_stacks(instance.grain, Which::Longest);
        }
        // The first rounds see the smallest pieces, of which there are most.
        let is_vain = round == 3 && n_items < glued.left.len() * 11 / 10;
        if glued.left.len() == n_before || is_vain {
            break;
        }
    }
    if n_items < glued.left.len() * LEFT_SHARE {
        return None;
    }
    let buffer = |block: &u32| {
        let Block { first, end, size, .. } = glued.blocks[*block as usize];
        Buffer { alignment: Bytes(instance.grain), ..Buffer::new(Lifetime { first, end }, Bytes(size)) }
    };
    glued.problem.buffers = glued.left.iter().map(buffer).collect();
    Some(glued)
}

impl Glued {
    /// Offsets by item from offsets of the problem's buffers.
    pub(crate) fn offsets(&self, by_buffer: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0; self.blocks.len()];
        self.left.iter().zip(by_buffer).for_each(|(block, offset)| offsets[*block as usize] = *offset);
        // Blocks stand behind their parts.
        for (at, block) in self.blocks.iter().enumerate().rev() {
            let mut offset = offsets[at];
            match &block.parts {
                Parts::Item => break,
                Parts::Row(parts) => parts.iter().for_each(|part| offsets[*part as usize] = offset),
                Parts::Stack(parts) => {
                    for part in parts {
                        offsets[*part as usize] = offset;
                        offset += self.blocks[*part as usize].size;
                    }
                }
            }
        }
        let n_items = self.blocks.iter().take_while(|block| matches!(block.parts, Parts::Item)).count();
        offsets.truncate(n_items);
        offsets
    }

    fn make_rows(&mut self) {
        let blocks = &self.blocks;
        let key = |ix: u32| (blocks[ix as usize].size, blocks[ix as usize].first, blocks[ix as usize].end, ix);
        self.left.sort_unstable_by_key(|ix| key(*ix));
        let order = std::mem::take(&mut self.left);
        let mut free = Free::new(order.len());
        for at in 0..order.len() {
            if free.from(at) != at {
                continue;
            }
            free.take(at);
            let mut row = vec![order[at]];
            loop {
                let Block { size, end, .. } = self.blocks[row[row.len() - 1] as usize];
                let start = order.partition_point(|ix| {
                    let block = &self.blocks[*ix as usize];
                    (block.size, block.first) < (size, end)
                });
                let next = free.from(start);
                let Some(block) = order.get(next).map(|ix| &self.blocks[*ix as usize]) else { break };
                if (block.size, block.first) != (size, end) {
                    break;
                }
                free.take(next);
                row.push(order[next]);
            }
            let (first, last) = (&self.blocks[row[0] as usize], &self.blocks[row[row.len() - 1] as usize]);
            let (first, end, size) = (first.first, last.end, first.size);
            self.keep(row, |parts| Block { first, end, size, parts: Parts::Row(parts) });
        }
    }

    /// Whether there were any.
    fn make_stacks(&mut self, grain: u64, which: Which) -> bool {
        let blocks = &self.blocks;
        let life = |ix: &u32| (blocks[*ix as usize].first, blocks[*ix as usize].end);
        let length = |ix: &u32| blocks[*ix as usize].end - blocks[*ix as usize].first;
        let mut order = std::mem::take(&mut self.left);
        order.sort_unstable_by_key(|ix| (life(ix), *ix));
        // Only above a multiple of the alignment there is nothing lost.
        let is_even = |ix: &u32| blocks[*ix as usize].size.is_multiple_of(grain);
        let (order, odd): (Vec<u32>, Vec<u32>) = order.into_iter().partition(is_even);
        let groups: Vec<&[u32]> = order.chunk_by(|a, b| life(a) == life(b)).collect();
        let mut stacks: Vec<Vec<u32>> = Vec::new();
        match which {
            Which::Longest => {
                let several = groups.iter().filter(|group| 1 < group.len());
                let mut lengths: Vec<u32> = several.map(|group| length(&group[0])).collect();
                lengths.sort_unstable();
                let least = lengths.get(lengths.len() - lengths.len().div_ceil(LONGEST_SHARE)).copied().unwrap_or(0);
                for group in &groups {
                    match least <= length(&group[0]) {
                        true => stacks.push(group.to_vec()),
                        false => stacks.extend(group.iter().map(|ix| vec![*ix])),
                    }
                }
            }
            Which::Wanted => {
                let neighbours = Neighbours::new(blocks, &order);
                groups.iter().for_each(|group| stack_wanted(blocks, group, &neighbours, &mut stacks));
            }
        }
        let n_before = order.len();
        self.left = odd;
        for stack in stacks {
            let (first, end) = (self.blocks[stack[0] as usize].first, self.blocks[stack[0] as usize].end);
            let mut sizes = stack.iter().map(|ix| self.blocks[*ix as usize].size);
            match sizes.try_fold(0_u64, u64::checked_add) {
                Some(size) => self.keep(stack, |parts| Block { first, end, size, parts: Parts::Stack(parts) }),
                None => self.left.extend(stack),
            }
        }
        self.left.len() < n_before
    }

    /// Makes one block of several; one alone stays as it is.
    fn keep(&mut self, parts: Vec<u32>, block: impl FnOnce(Vec<u32>) -> Block) {
        match parts[..] {
            [alone] => self.left.push(alone),
            _ => {
                self.left.push(self.blocks.len() as u32);
                self.blocks.push(block(parts));
            }
        }
    }
}

/// Where blocks of which size begin and end, sorted.
struct Neighbours {
    firsts: Vec<(u32, u64)>,
    ends: Vec<(u32, u64)>,
}

impl Neighbours {
    fn new(blocks: &[Block], left: &[u32]) -> Neighbours {
        let sorted = |of: fn(&Block) -> u32| {
            let mut all: Vec<_> = left.iter().map(|ix| &blocks[*ix as usize]).map(|one| (of(one), one.size)).collect();
            all.sort_unstable();
            all
        };
        Neighbours { firsts: sorted(|block| block.first), ends: sorted(|block| block.end) }
    }

    /// The sizes of which a block of these sections would make a row with another.
    fn wanted(&self, first: u32, end: u32) -> Vec<u64> {
        let at = |list: &[(u32, u64)], section: u32| {
            let start = list.partition_point(|one| one.0 < section);
            list[start..].iter().take_while(|one| one.0 == section).map(|one| one.1).collect::<Vec<u64>>()
        };
        let mut sizes = at(&self.firsts, end);
        sizes.extend(at(&self.ends, first));
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Divides blocks of one lifetime into stacks that are wanted and blocks that stay alone.
fn stack_wanted(blocks: &[Block], group: &[u32], neighbours: &Neighbours, stacks: &mut Vec<Vec<u32>>) {
    let mut rest = group.to_vec();
    if 1 < group.len() {
        let Block { first, end, .. } = blocks[group[0] as usize];
        let wanted = neighbours.wanted(first, end);
        while let Some(stack) = wanted_stack(blocks, &rest, &wanted) {
            rest.retain(|ix| !stack.contains(ix));
            stacks.push(stack);
        }
    }
    stacks.extend(rest.into_iter().map(|alone| vec![alone]));
}

/// Two blocks or more whose sizes sum to one that is wanted: all, or else the fewest.
fn wanted_stack(blocks: &[Block], group: &[u32], wanted: &[u64]) -> Option<Vec<u32>> {
    let size = |ix: u32| blocks[ix as usize].size;
    let is_wanted = |sum: u64| wanted.binary_search(&sum).is_ok();
    if group.len() < 2 || wanted.is_empty() {
        return None;
    }
    if is_wanted(group.iter().fold(0_u64, |sum, ix| sum.saturating_add(size(*ix)))) {
        return Some(group.to_vec());
    }
    if SUBSETS_MAX < group.len() {
        let group = &group[..group.len().min(PAIRS_MAX)];
        let pairs = group.iter().enumerate().flat_map(|(at, one)| group[..at].iter().map(|other| [*other, *one]));
        let mut found = pairs.filter(|[a, b]| is_wanted(size(*a).saturating_add(size(*b))));
        return found.next().map(Vec::from);
    }
    // By set of blocks, as bits: the sum of those without the lowest, and that one's.
    let mut sums = vec![0_u64; 1 << group.len()];
    for set in 1..sums.len() {
        sums[set] = sums[set & (set - 1)].saturating_add(size(group[set.trailing_zeros() as usize]));
    }
    let sets = (1..sums.len()).filter(|set| 1 < set.count_ones() && is_wanted(sums[*set]));
    let set = sets.min_by_key(|set| set.count_ones())?;
    Some((0..group.len()).filter(|at| set >> at & 1 == 1).map(|at| group[at]).collect())
}

/// Which positions of a row are still there.
struct Free {
    /// A position that is not before the next free one; itself where free.
    next: Vec<u32>,
}

impl Free {
    fn new(count: usize) -> Free {
        Free { next: (0..=count as u32).collect() }
    }

    /// The first free position from `at` on, or the count.
    fn from(&mut self, at: usize) -> usize {
        let mut found = at;
        while self.next[found] as usize != found {
            // Each look halves the way of later ones.
            let next = self.next[found] as usize;
            self.next[found] = self.next[next];
            found = next;
        }
        found
    }

    fn take(&mut self, at: usize) {
        self.next[at] = at as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(buffers: &[(u32, u32, u64)]) -> Instance {
        let buffer = |&(first, end, size): &(u32, u32, u64)| Buffer::new(Lifetime { first, end }, Bytes(size));
        Instance::new(&Problem { buffers: buffers.iter().map(buffer).collect(), capacity: None })
    }

    #[test]
    fn what_was_cut_is_whole_again() {
        // The picture above, and another row on top.
        let instance = instance(&[(0, 3, 5), (3, 9, 5), (0, 9, 2), (0, 2, 6), (2, 9, 6)]);
        let glued = glue(&instance, &mut Work::new(u64::MAX)).expect("all of it");
        assert_eq!(glued.problem.buffers.len(), 1);
        assert_eq!(glued.problem.buffers[0].size, Bytes(13));
        let offsets = glued.offsets(&[0]);
        assert_eq!(instance.height(&offsets), 13);
        assert_eq!([offsets[0], offsets[3]], [offsets[1], offsets[4]]);
    }

    #[test]
    fn what_does_not_fit_together_stays_apart() {
        let instance = instance(&[(0, 3, 5), (2, 9, 5), (0, 9, 2), (1, 9, 2)]);
        assert!(glue(&instance, &mut Work::new(u64::MAX)).is_none());
    }
}
