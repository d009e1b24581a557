//! [`Network`]: items that fill the sections without slack, glued to larger blocks.
//!
//! Where as many bytes end as begin, and nothing may be wasted, what ends and what begins say much about each other.
//! Blocks (items, and what was made of them) are channels between *joints*: a joint is a vertical line at which blocks
//! of some sizes end and others of the same sum of sizes begin, on the same bytes. So blocks and joints make a network
//! through which sizes flow, as in dissections of rectangles into squares (Brooks, Smith, Stone, Tutte 1940). At first
//! every boundary between two sections is one joint, and may be several lines. A joint is *whole* if it is one, as far
//! as sums can say.
//!
//! ```text
//!   +-----+--------+---        a and b are alone at the joint between them: they make a row.
//!   |  a  |   b    | d         Now ab and c have both joints in common: they make a stack.
//!   +-----+--------+---        Where these end d, e and f begin. If another block ends there, as large as f, then it and
//!   |      c       | e         f are split off, a joint of their own; and if a and d were as large, they as well.
//!   +--------------+---
//! ```
//!
//! **Split.** Some blocks that end and some that begin with the same sum, not all of them, become a joint of their own.
//! All subsets are looked at where there are few blocks, pairs and single ones where there are many. Sums can agree by
//! chance, the likelier the more of them are compared and the smaller they are; where many more were compared than the
//! sum itself says, it does not count. What is not split though all subsets were looked at is whole; so is what has one
//! block on a side, or the height of the whole problem.
//!
//! **Row.** Where one block ends at a joint and one begins, they are one.
//!
//! **Stack.** Blocks between the same two joints lie upon each other, in any order, if both joints are whole, or if
//! nothing else ends or begins at one that is.
//!
//! A problem that was cut out of a rectangle by straight cuts, each at a time of its own, becomes that rectangle again by
//! these rules. Where cuts share their times two more are needed, each only where what is surer finds nothing, in the
//! order of [`STEPS`]:
//!
//! **Range.** The blocks that live within some sections are *closed* if at each boundary among these as many of their
//! bytes end as begin: a rectangle again, if not by chance. They are placed by themselves, by all that this crate
//! knows. What comes out with little or no waste is one block. Ranges of few blocks come first, and those whose edges
//! are whole.
//!
//! **Guess.** Blocks between the same two joints are stacked though one of the two is not whole, or none: one part in
//! some of these stacks, those whose joints have the fewest blocks. Blocks that live between two neighbouring times are
//! left out at first, of which there are many that have nothing to do with each other; [`Network::reduce`] goes on
//! with them when it is called again.
//!
//! Ranges may have some waste; then a block is a little lower than what is in it, all of which is pressed as much. So
//! offsets say in the end what lies upon what, and [`Network::offsets`] lays the items down in that order, each on what
//! lies there already.
//!
//! Every placement of what is glued is one of the items. The other way round it is not, so gluing is one more pass of
//! the portfolio and proves nothing. Where many items end at boundaries with slack, nothing is tried.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use types::Bytes;

use crate::floor::Floor;
use crate::instance::{Instance, Item, Work, gcd};
use crate::problem::{Buffer, Lifetime, Problem};

/// Nothing is tried if more than one part in so many of the items end where not as much begins.
const SLACK_SHARE: usize = 4;
/// Of so many blocks at each side of a joint all subsets are looked at.
const SUBSETS_MAX: usize = 10;
/// A sum counts where the number of sums that were compared is not more than so many times it.
const LUCK: u64 = 4;
/// One part in so many of the stacks that may be guessed is.
const GUESS_SHARE: usize = 8;
/// A closed range is looked for among so many boundaries from its first on.
const RANGE_BOUNDARIES: usize = 64;
/// What placing the blocks of a range may cost for each of them.
const RANGE_UNITS: u64 = 2000;
/// And not more than this.
const RANGE_UNITS_MAX: u64 = 500_000;
/// Placing a range ends where its waste is one part in so many of its height. It is a block if the waste is not more
/// than one part in so many of the height of all.
const RANGE_WASTE: u64 = 2000;
/// A range that was placed in vain is placed again when one part in so many of its blocks is gone.
const AGAIN_SHARE: usize = 2;
/// What a round costs for each block, in units of work.
const ROUND_UNITS: usize = 3;

/// What is tried where nothing is certain, in this order.
const STEPS: [Step; 8] = [
    Step::Range { doubts: 0, blocks: 100, waste: RANGE_WASTE },
    Step::Guess { doubts: 1, blocks: 1024 },
    Step::Range { doubts: 1, blocks: 400, waste: RANGE_WASTE },
    Step::Guess { doubts: 1, blocks: usize::MAX },
    Step::Range { doubts: 2, blocks: 400, waste: RANGE_WASTE },
    Step::Range { doubts: 2, blocks: 3000, waste: RANGE_WASTE },
    Step::Range { doubts: 2, blocks: 400, waste: 50 },
    Step::Guess { doubts: 2, blocks: usize::MAX },
];

#[derive(Clone, Copy)]
enum Step {
    /// Ranges of so many blocks at most, so many of whose edges may be in doubt, with waste of one part in so many of
    /// the height of all.
    Range { doubts: usize, blocks: usize, waste: u64 },
    /// Stacks between joints of which just so many are not whole, with so many blocks at most, the one's times the
    /// other's.
    Guess { doubts: usize, blocks: usize },
}

/// Which stacks may be guessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guess {
    /// Not those of blocks between two neighbouring times.
    Some,
    All,
}

/// A smaller problem, and the way back from it.
pub(crate) struct Glued {
    /// One buffer for each block that is left, in time counted by sections of the instance.
    pub(crate) problem: Problem,
    /// The blocks that are left, in the order of the problem's buffers.
    left: Vec<u32>,
}

/// How blocks came to be.
enum Merge {
    /// One became a part of another, so many units above its low end.
    Part { whole: u32, part: u32, offset: u64 },
    /// One is a little lower than what is in it, which is pressed.
    Press { whole: u32, share: f64 },
}

/// Places a problem by itself, to be not above a height: offsets by buffer.
pub(crate) type Solve<'a> = &'a mut dyn FnMut(&Problem, u64, &mut Work) -> Option<Vec<u64>>;

/// An item, or what was made of it and others; it bears the number of one of these.
#[derive(Clone, Copy)]
struct Block {
    first: u32,
    end: u32,
    /// In units.
    size: u64,
    /// The joint at which it begins.
    from: u32,
    /// The joint at which it ends.
    to: u32,
}

/// A vertical line, or several at the same time that are not told apart.
#[derive(Clone, Default)]
struct Joint {
    ending: Vec<u32>,
    starting: Vec<u32>,
    /// Whether it is one line, as far as sums can say.
    is_whole: bool,
    /// How many blocks there were when it was looked at last.
    seen: (usize, usize),
}

impl Joint {
    fn len(&self) -> usize {
        self.ending.len() + self.starting.len()
    }

    /// Whether nothing but so many blocks end at it, or begin, and it is whole.
    fn is_just(&self, n_blocks: usize) -> bool {
        self.is_whole && (self.ending.len() == n_blocks || self.starting.len() == n_blocks)
    }
}

/// The items of an instance, glued to blocks.
pub(crate) struct Network<'a> {
    instance: &'a Instance,
    blocks: Vec<Block>,
    /// The blocks that are no parts.
    left: Vec<u32>,
    joints: Vec<Joint>,
    /// The joints at which blocks end or begin.
    busy: Vec<u32>,
    merges: Vec<Merge>,
    /// By block that is a part: of which. Others are parts of themselves.
    whole: Vec<u32>,
    /// What all sizes are multiples of.
    unit: u64,
    /// The height of all, in units.
    height: u64,
    /// How many blocks ranges had that were placed in vain, by first section, end and waste.
    vain: BTreeMap<(u32, u32, u64), usize>,
}

impl<'a> Network<'a> {
    /// Every item a block. `None` if there is too much slack, or some item is not plain.
    pub(crate) fn new(instance: &'a Instance) -> Option<Network<'a>> {
        if !instance.is_plain || instance.items.len() < 2 {
            return None;
        }
        // Only above a multiple of the alignment there is nothing lost.
        let size = |size: u64| size.checked_next_multiple_of(instance.grain);
        let (mut total, mut unit) = (0_u64, 0);
        let mut growth = vec![0_i64; instance.n_sections + 1];
        for item in &instance.items {
            let size = size(item.size)?;
            total = total.checked_add(size).filter(|total| *total <= i64::MAX as u64)?;
            unit = gcd(size, unit);
            growth[item.hull.start as usize] += size as i64;
            growth[item.hull.end as usize] -= size as i64;
        }
        let ends = instance.items.iter().map(|item| item.hull.end as usize);
        let n_slack = ends.filter(|end| *end < instance.n_sections && growth[*end] != 0).count();
        if instance.items.len() < SLACK_SHARE * n_slack {
            return None;
        }
        let block = |item: &Item| {
            let Range { start: first, end } = item.hull;
            Block { first, end, size: item.size.next_multiple_of(instance.grain) / unit, from: first, to: end }
        };
        let mut live = 0;
        let heights = growth.iter().map(|growth| {
            live += growth;
            live as u64
        });
        let height = heights.max()? / unit;
        Some(Network {
            instance,
            blocks: instance.items.iter().map(block).collect(),
            left: (0..instance.items.len() as u32).collect(),
            joints: vec![Joint::default(); instance.n_sections + 1],
            busy: Vec::new(),
            merges: Vec::new(),
            whole: (0..instance.items.len() as u32).collect(),
            unit,
            height,
            vain: BTreeMap::new(),
        })
    }

    /// Glues what can be glued. Whether there was anything.
    pub(crate) fn reduce(&mut self, guess: Guess, solve: Solve, work: &mut Work) -> bool {
        let n_before = self.left.len();
        while work.spend(ROUND_UNITS * self.left.len()) {
            self.connect();
            let is_split = self.split(work);
            let is_stacked = self.stack_certain();
            let step = |step: &Step| match *step {
                Step::Range { doubts, blocks, waste } => self.close_ranges(doubts, blocks, waste, solve, work),
                Step::Guess { doubts, blocks } => self.stack_guessed(guess, doubts, blocks),
            };
            if !is_split && !is_stacked && !STEPS.iter().any(step) {
                break;
            }
            self.forget_parts();
        }
        self.forget_parts();
        self.left.len() < n_before
    }

    /// What is left, as a problem.
    pub(crate) fn glued(&self) -> Glued {
        let buffer = |block: &u32| {
            let Block { first, end, size, .. } = self.blocks[*block as usize];
            let lifetime = Lifetime { first, end };
            Buffer { alignment: Bytes(self.instance.grain), ..Buffer::new(lifetime, Bytes(size * self.unit)) }
        };
        let problem = Problem { buffers: self.left.iter().map(buffer).collect(), capacity: None };
        Glued { problem, left: self.left.clone() }
    }

    /// Offsets by item from offsets of the problem's buffers, as long as nothing more was glued; `None` if a top
    /// passes 64 bits.
    pub(crate) fn offsets(&self, glued: &Glued, by_buffer: &[u64]) -> Option<Vec<u64>> {
        // By block, its low end and how much what is in it is pressed.
        let mut places = vec![(0.0, self.unit as f64); self.blocks.len()];
        glued.left.iter().zip(by_buffer).for_each(|(block, offset)| places[*block as usize].0 = *offset as f64);
        // What was made last is taken apart first.
        for merge in self.merges.iter().rev() {
            match *merge {
                Merge::Press { whole, share } => places[whole as usize].1 *= share,
                Merge::Part { whole, part, offset } => {
                    let (low, scale) = places[whole as usize];
                    places[part as usize] = (low + offset as f64 * scale, scale);
                }
            }
        }
        let mut order: Vec<u32> = (0..places.len() as u32).collect();
        order.sort_unstable_by(|a, b| places[*a as usize].0.total_cmp(&places[*b as usize].0).then(a.cmp(b)));
        let mut floor = Floor::new(self.instance.n_sections);
        let mut offsets = vec![0; places.len()];
        for item_ix in order {
            let item = &self.instance.items[item_ix as usize];
            let (first, end) = (item.hull.start as usize, item.hull.end as usize);
            let offset = item.lift(floor.height(first, end))?;
            floor.raise(first, end, offset + item.size);
            offsets[item_ix as usize] = offset;
        }
        Some(offsets)
    }

    fn forget_parts(&mut self) {
        let Network { left, whole, .. } = self;
        left.retain(|block| whole[*block as usize] == *block);
    }

    /// Tells the joints what ends and begins there.
    fn connect(&mut self) {
        for joint in &self.busy {
            let Joint { ending, starting, .. } = &mut self.joints[*joint as usize];
            ending.clear();
            starting.clear();
        }
        self.busy.clear();
        for block in &self.left {
            let Block { from, to, .. } = self.blocks[*block as usize];
            for joint in [from, to] {
                if self.joints[joint as usize].len() == 0 {
                    self.busy.push(joint);
                }
                let Joint { ending, starting, .. } = &mut self.joints[joint as usize];
                if joint == from { starting.push(*block) } else { ending.push(*block) }
            }
        }
    }

    /// Splits joints and makes rows; whether there was anything to do.
    fn split(&mut self, work: &mut Work) -> bool {
        let mut is_any = false;
        for busy in 0..self.busy.len() {
            let at = self.busy[busy] as usize;
            let mut joint = std::mem::take(&mut self.joints[at]);
            for block in joint.ending.iter_mut().chain(&mut joint.starting) {
                *block = self.root(*block);
            }
            joint.is_whole |= joint.ending.len() <= 1 || joint.starting.len() <= 1;
            joint.is_whole |= self.sizes(&joint.ending).iter().sum::<u64>() == self.height;
            while !joint.is_whole || (joint.ending.len(), joint.starting.len()) == (1, 1) {
                let seen = (joint.ending.len(), joint.starting.len());
                if joint.seen == seen {
                    break;
                }
                let Some((ending, starting)) = self.balanced(&mut joint, work) else {
                    joint.seen = seen;
                    break;
                };
                is_any = true;
                joint.ending.retain(|block| !ending.contains(block));
                joint.starting.retain(|block| !starting.contains(block));
                if let ([a], [b]) = (&ending[..], &starting[..]) {
                    self.join(*a, *b);
                } else {
                    let id = self.joints.len() as u32;
                    ending.iter().for_each(|block| self.blocks[*block as usize].to = id);
                    starting.iter().for_each(|block| self.blocks[*block as usize].from = id);
                    let is_whole = ending.len() <= 1 || starting.len() <= 1;
                    self.joints.push(Joint { ending, starting, is_whole, seen: (0, 0) });
                    self.busy.push(id);
                }
                joint.is_whole |= joint.ending.len() <= 1 || joint.starting.len() <= 1;
            }
            self.joints[at] = joint;
        }
        is_any
    }

    /// What a block belongs to by now.
    fn root(&self, block: u32) -> u32 {
        let mut root = block;
        while self.whole[root as usize] != root {
            root = self.whole[root as usize];
        }
        root
    }

    /// Makes a row of two blocks.
    fn join(&mut self, a: u32, b: u32) {
        let Block { end, to, .. } = self.blocks[b as usize];
        let row = &mut self.blocks[a as usize];
        (row.end, row.to) = (end, to);
        self.merge(a, b, 0);
    }

    fn merge(&mut self, whole: u32, part: u32, offset: u64) {
        self.whole[part as usize] = whole;
        self.merges.push(Merge::Part { whole, part, offset });
    }

    /// Some blocks that end and some that begin with the same sum, not all of them.
    fn balanced(&self, joint: &mut Joint, work: &mut Work) -> Option<(Vec<u32>, Vec<u32>)> {
        let size = |block: &u32| self.blocks[*block as usize].size;
        joint.ending.sort_unstable_by_key(|block| (size(block), *block));
        joint.starting.sort_unstable_by_key(|block| (size(block), *block));
        let (ending, starting) = (&joint.ending, &joint.starting);
        if let ([a], [b]) = (&ending[..], &starting[..]) {
            return (size(a) == size(b)).then(|| (vec![*a], vec![*b]));
        }
        let n_sums = ending.len() * starting.len();
        let (mut a, mut b) = (0, 0);
        while a < ending.len() && b < starting.len() {
            match size(&ending[a]).cmp(&size(&starting[b])) {
                Ordering::Less => a += 1,
                Ordering::Equal if n_sums as u64 / LUCK <= size(&ending[a]) => {
                    return Some((vec![ending[a]], vec![starting[b]]));
                }
                _ => b += 1,
            }
        }
        if ending.len() <= SUBSETS_MAX && starting.len() <= SUBSETS_MAX {
            work.spend((1 << ending.len()) + (1 << starting.len()));
            let found = balanced_subsets(&self.sizes(ending), &self.sizes(starting));
            let Some((a, b)) = found else {
                joint.is_whole = self.sizes(ending).iter().sum::<u64>() == self.sizes(starting).iter().sum::<u64>();
                return None;
            };
            return Some((pick(ending, a), pick(starting, b)));
        }
        work.spend((ending.len() * starting.len()) / 4);
        let of_ending = pair_for_one(&self.sizes(ending), &self.sizes(starting));
        if let Some((one, [a, b])) = of_ending {
            return Some((vec![ending[one]], vec![starting[a], starting[b]]));
        }
        let of_starting = pair_for_one(&self.sizes(starting), &self.sizes(ending));
        of_starting.map(|(one, [a, b])| (vec![ending[a], ending[b]], vec![starting[one]]))
    }

    fn sizes(&self, blocks: &[u32]) -> Vec<u64> {
        blocks.iter().map(|block| self.blocks[*block as usize].size).collect()
    }

    /// Stacks all that is certain to lie upon each other; whether there was any.
    fn stack_certain(&mut self) -> bool {
        let groups = self.parallel();
        let n_before = self.merges.len();
        for group in groups {
            let [from, to] = self.edges(&group);
            if (from.is_whole && to.is_whole) || from.is_just(group.len()) || to.is_just(group.len()) {
                self.stack(&group);
            }
        }
        n_before < self.merges.len()
    }

    /// Stacks what lies between the same two joints of which so many are not whole, where they have the fewest blocks;
    /// whether there was any.
    fn stack_guessed(&mut self, guess: Guess, doubts: usize, blocks_max: usize) -> bool {
        let mut is_time = vec![false; self.instance.n_sections + 1];
        for block in &self.left {
            let Block { first, end, .. } = self.blocks[*block as usize];
            (is_time[first as usize], is_time[end as usize]) = (true, true);
        }
        let groups = self.parallel();
        let is_asked = |group: &Vec<u32>| {
            let Block { first, end, .. } = self.blocks[group[0] as usize];
            let n_doubts = self.edges(group).iter().filter(|joint| !joint.is_whole).count();
            n_doubts == doubts && (guess == Guess::All || is_time[first as usize + 1..end as usize].contains(&true))
        };
        let n_blocks = |group: &Vec<u32>| self.edges(group).iter().map(|joint| joint.len()).product::<usize>();
        let mut groups: Vec<(usize, Vec<u32>)> =
            groups.into_iter().filter(is_asked).map(|group| (n_blocks(&group), group)).collect();
        groups.sort();
        let Some(limit) = groups.get(groups.len().saturating_sub(1) / GUESS_SHARE).map(|one| one.0) else {
            return false;
        };
        groups.retain(|(n_blocks, _)| *n_blocks <= limit.min(blocks_max));
        groups.iter().for_each(|(_, group)| self.stack(group));
        !groups.is_empty()
    }

    /// The groups of blocks that are left between the same two joints.
    fn parallel(&mut self) -> Vec<Vec<u32>> {
        self.forget_parts();
        let Network { blocks, left, .. } = self;
        let between = |block: &u32| (blocks[*block as usize].from, blocks[*block as usize].to);
        left.sort_unstable_by_key(|block| (between(block), *block));
        let groups = left.chunk_by(|a, b| between(a) == between(b));
        groups.filter(|group| 1 < group.len()).map(<[u32]>::to_vec).collect()
    }

    /// The joints between which a group lies.
    fn edges(&self, group: &[u32]) -> [&Joint; 2] {
        let Block { from, to, .. } = self.blocks[group[0] as usize];
        [&self.joints[from as usize], &self.joints[to as usize]]
    }

    fn stack(&mut self, group: &[u32]) {
        for part in &group[1..] {
            let offset = self.blocks[group[0] as usize].size;
            self.blocks[group[0] as usize].size += self.blocks[*part as usize].size;
            self.merge(group[0], *part, offset);
        }
    }

    /// Places the blocks of closed ranges, those of the fewest blocks first, as [`Step::Range`] says; whether one became
    /// a block.
    fn close_ranges(&mut self, doubts: usize, blocks_max: usize, waste: u64, solve: Solve, work: &mut Work) -> bool {
        let mut is_any = false;
        // What is in a range that became a block is not looked at again for now.
        let mut taken = vec![false; self.instance.n_sections];
        for range in self.closed_ranges(blocks_max, work) {
            let ClosedRange { first, end, ref blocks, height } = range;
            let is_vain = |n_blocks: &usize| n_blocks - n_blocks / AGAIN_SHARE < blocks.len();
            if taken[first as usize..end as usize].contains(&true)
                || self.vain.get(&(first, end, waste)).is_some_and(is_vain)
                || doubts < self.doubts(&range)
            {
                continue;
            }
            let buffer = |block: &u32| {
                let Block { first, end, size, .. } = self.blocks[*block as usize];
                Buffer::new(Lifetime { first, end }, Bytes(size))
            };
            let problem = Problem { buffers: blocks.iter().map(buffer).collect(), capacity: None };
            let mut part = work.part((RANGE_UNITS * blocks.len() as u64).min(RANGE_UNITS_MAX));
            let offsets = solve(&problem, height + height / RANGE_WASTE, &mut part.work);
            work.spend_part(part);
            let top = |offsets: &Vec<u64>| {
                let tops = blocks.iter().zip(offsets).map(|(block, offset)| self.blocks[*block as usize].size + offset);
                tops.fold(0, u64::max)
            };
            match offsets.map(|offsets| (top(&offsets), offsets)) {
                Some((top, offsets)) if top - height <= self.height / waste => {
                    is_any = true;
                    taken[first as usize..end as usize].fill(true);
                    self.close(&range, &offsets, top);
                }
                _ => {
                    self.vain.insert((first, end, waste), blocks.len());
                }
            }
        }
        is_any
    }

    /// How many of the two edges of a range are in doubt: several joints, or one that is not whole.
    fn doubts(&self, range: &ClosedRange) -> usize {
        let is_certain = |joints: &[u32]| matches!(joints, [one] if self.joints[*one as usize].is_whole);
        self.joints_of(range).iter().filter(|joints| !is_certain(joints)).count()
    }

    /// The joints of both edges of a range.
    fn joints_of(&self, range: &ClosedRange) -> [Vec<u32>; 2] {
        let blocks = || range.blocks.iter().map(|block| &self.blocks[*block as usize]);
        let from = blocks().filter(|block| block.first == range.first).map(|block| block.from);
        let to = blocks().filter(|block| block.end == range.end).map(|block| block.to);
        [from.collect(), to.collect()].map(|mut joints: Vec<u32>| {
            joints.sort_unstable();
            joints.dedup();
            joints
        })
    }

    /// Makes a block of a range.
    fn close(&mut self, range: &ClosedRange, offsets: &[u64], top: u64) {
        let ClosedRange { first, end, blocks, height } = range;
        let [from, to] = self.joints_of(range).map(|joints| self.one_joint(&joints));
        let lowest = offsets.iter().enumerate().min_by_key(|(_, offset)| **offset).map_or(0, |(at, _)| at);
        let whole = blocks[lowest];
        for (part, offset) in blocks.iter().zip(offsets).filter(|(part, _)| **part != whole) {
            self.merge(whole, *part, *offset);
        }
        if *height < top {
            self.merges.push(Merge::Press { whole, share: *height as f64 / top as f64 });
        }
        self.blocks[whole as usize] = Block { first: *first, end: *end, size: *height, from, to };
    }

    /// Makes one joint of several.
    fn one_joint(&mut self, joints: &[u32]) -> u32 {
        for other in &joints[1..] {
            let Joint { ending, starting, .. } = std::mem::take(&mut self.joints[*other as usize]);
            ending.iter().for_each(|block| self.blocks[*block as usize].to = joints[0]);
            starting.iter().for_each(|block| self.blocks[*block as usize].from = joints[0]);
            let one = &mut self.joints[joints[0] as usize];
            one.ending.extend(ending);
            one.starting.extend(starting);
            (one.is_whole, one.seen) = (false, (0, 0));
        }
        joints[0]
    }

    /// The closed ranges that hold no other with the same first section, those of the fewest blocks first.
    fn closed_ranges(&self, blocks_max: usize, work: &mut Work) -> Vec<ClosedRange> {
        let left = || self.left.iter().filter(|block| self.whole[**block as usize] == **block);
        let ends = |block: &u32| [self.blocks[*block as usize].first, self.blocks[*block as usize].end];
        let mut times: Vec<u32> = left().flat_map(ends).collect();
        times.sort_unstable();
        times.dedup();
        let time = |section: u32| times.partition_point(|time| *time < section);
        // By time, what ends there and when it began.
        let mut ending: Vec<Vec<(usize, u32)>> = vec![Vec::new(); times.len()];
        for block in left() {
            let [first, end] = ends(block).map(time);
            ending[end].push((first, *block));
        }
        let mut ranges = Vec::new();
        let mut blocks = Vec::new();
        for first in 0..times.len() {
            blocks.clear();
            // By boundary: how many bytes more begin than end, of what lives within.
            let mut growth = [0_i64; RANGE_BOUNDARIES];
            let mut n_unbalanced = 0;
            for end in first + 1..times.len().min(first + RANGE_BOUNDARIES) {
                for (start, block) in ending[end].iter().filter(|(start, _)| first <= *start) {
                    let size = self.blocks[*block as usize].size as i64;
                    let grown = &mut growth[start - first];
                    if first < *start {
                        n_unbalanced += usize::from(*grown == 0);
                        n_unbalanced -= usize::from(*grown + size == 0);
                    }
                    *grown += size;
                    growth[end - first] -= size;
                    blocks.push(*block);
                }
                if blocks_max < blocks.len() {
                    break;
                }
                if n_unbalanced == 0 && first + 1 < end && 1 < blocks.len() && 0 < growth[0] {
                    let height = growth[0] as u64;
                    ranges.push(ClosedRange { first: times[first], end: times[end], blocks: blocks.clone(), height });
                    break;
                }
                // From here on this boundary is within.
                n_unbalanced += usize::from(growth[end - first] != 0);
            }
            work.spend(1 + blocks.len() / 4);
        }
        ranges.sort_by_key(|range| (range.blocks.len(), range.first));
        ranges
    }
}

/// Sections in which blocks that live there alone have the same sum everywhere.
struct ClosedRange {
    first: u32,
    end: u32,
    blocks: Vec<u32>,
    height: u64,
}

/// Subsets of two lists of sizes, as bits, with the same sum, neither of them all: the fewest sizes.
fn balanced_subsets(a: &[u64], b: &[u64]) -> Option<(u32, u32)> {
    // All but the whole and nothing.
    let sums = |sizes: &[u64]| {
        let mut sums = vec![(0_u64, 0_u32); 1 << sizes.len()];
        for set in 1..sums.len() {
            let lowest = set.trailing_zeros() as usize;
            sums[set] = (sums[set & (set - 1)].0 + sizes[lowest], set as u32);
        }
        sums.pop();
        sums.sort_unstable();
        sums
    };
    let (all_a, all_b) = (sums(a), sums(b));
    let trusted = (1 << (a.len() + b.len())) / LUCK;
    let (mut at_a, mut at_b) = (1, 1);
    let mut best: Option<(u32, u32, u32)> = None;
    while let (Some((sum_a, set_a)), Some((sum_b, set_b))) = (all_a.get(at_a), all_b.get(at_b)) {
        match sum_a.cmp(sum_b) {
            Ordering::Less => at_a += 1,
            Ordering::Greater => at_b += 1,
            Ordering::Equal => {
                let found = (set_a.count_ones() + set_b.count_ones(), *set_a, *set_b);
                if trusted <= *sum_a && best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
                at_a += 1;
            }
        }
    }
    best.map(|(_, a, b)| (a, b))
}

/// One of some sizes, and two of others with that sum; both lists are sorted.
fn pair_for_one(ones: &[u64], others: &[u64]) -> Option<(usize, [usize; 2])> {
    let n_sums = ones.len() * others.len() * others.len() / 2;
    let first = ones.partition_point(|one| *one < n_sums as u64 / LUCK);
    for (at, one) in ones.iter().enumerate().skip(first) {
        let (mut low, mut high) = (0, others.len() - 1);
        while low < high {
            match (others[low] + others[high]).cmp(one) {
                Ordering::Less => low += 1,
                Ordering::Equal => return Some((at, [low, high])),
                Ordering::Greater => high -= 1,
            }
        }
    }
    None
}

/// Those of a list that are in a set.
fn pick(list: &[u32], set: u32) -> Vec<u32> {
    (0..list.len()).filter(|at| set >> at & 1 == 1).map(|at| list[at]).collect()
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    fn instance(buffers: &[(u32, u32, u64)]) -> Instance {
        let buffer = |&(first, end, size): &(u32, u32, u64)| Buffer::new(Lifetime { first, end }, Bytes(size));
        Instance::new(&Problem { buffers: buffers.iter().map(buffer).collect(), capacity: None })
    }

    /// How many blocks are left without ranges, and the height if they are stacked.
    fn glued(instance: &Instance) -> (usize, u64) {
        let mut network = Network::new(instance).expect("there is no slack");
        network.reduce(Guess::All, &mut |_, _, _| None, &mut Work::new(1 << 40));
        let glued = network.glued();
        let mut offsets = vec![0];
        for buffer in &glued.problem.buffers {
            offsets.push(offsets[offsets.len() - 1] + buffer.size.0);
        }
        let offsets = network.offsets(&glued, &offsets[..glued.problem.buffers.len()]).expect("small numbers");
        (glued.problem.buffers.len(), instance.height(&offsets))
    }

    #[test]
    fn what_was_cut_is_whole_again() {
        // The picture above, without what is right of it, and another row on top.
        let instance = instance(&[(0, 3, 500), (3, 9, 500), (0, 9, 200), (0, 2, 600), (2, 9, 600)]);
        assert_eq!(glued(&instance), (1, 1300));
    }

    #[test]
    fn a_rectangle_cut_at_times_of_their_own_is_whole_again() {
        let mut random = Random::new(7);
        let mut pieces = vec![(0_u32, 1 << 30, 1_u64 << 40)];
        while pieces.len() < 3000 {
            let (first, end, size) = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
            match random.below(2) {
                0 if 2 < end - first => {
                    let cut = first + 1 + random.below(u64::from(end - first - 1)) as u32;
                    pieces.extend([(first, cut, size), (cut, end, size)]);
                }
                _ if 1 < size => {
                    let cut = 1 + random.below(size - 1);
                    pieces.extend([(first, end, cut), (first, end, size - cut)]);
                }
                _ => pieces.push((first, end, size)),
            }
        }
        assert_eq!(glued(&instance(&pieces)), (1, 1 << 40));
    }

    #[test]
    fn with_slack_nothing_is_tried() {
        assert!(Network::new(&instance(&[(0, 3, 5), (2, 9, 5), (0, 4, 2), (1, 9, 2)])).is_none());
    }
}
