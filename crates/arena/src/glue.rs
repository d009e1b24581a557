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
//! All subsets are looked at where there are few blocks, those of the fewest where there are many. Sums can agree by
//! chance, the likelier the more of them are compared and the smaller they are (`sums.rs`); what is sure comes first, what
//! is in doubt only where nothing else is left, and what is more in doubt than that does not count. What is not split
//! though all subsets were looked at is whole; so is what has one block on a side, or the height of the whole problem.
//!
//! **Row.** Where one block ends at a joint and one begins, they are one.
//!
//! **Stack.** Blocks between the same two joints lie upon each other, in any order, if both joints are whole, or if one
//! is and they are all that begins there, or all that ends there.
//!
//! A problem that was cut out of a rectangle by straight cuts, each at a time of its own, becomes that rectangle again by
//! these rules. Where cuts share their times two more rules help, each only where what is surer finds nothing, in the
//! order of one of [`WAYS`]. A second way begins anew with the items where the first one ends above the goal and there is
//! as much work left as it had.
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
//!
//! It is one file because its rules are one loop: each changes the same lists of blocks and joints that the next reads.
//! What can be told without them is in `joint.rs` and `sums.rs`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use types::Bytes;

use crate::floor::Floor;
use crate::instance::{Instance, Item, Work, gcd};
use crate::joint::{Joint, Level, Seen};
use crate::problem::{Buffer, Lifetime, Problem};
use crate::sums::{ONE_DOUBT, Vain, agreement};

/// Nothing is tried if more than one part in so many of the items end where not as much begins.
const SLACK_SHARE: usize = 4;
/// At first few sums are compared, and what agrees is sure.
const SURE: Level = Level { n_sums: 256, doubt: ONE_DOUBT / 64 };
/// What is more in doubt does not count.
const DOUBT_MAX: u64 = 4 * ONE_DOUBT;
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
/// What looking at a joint costs besides its sums, in units of work.
const SPLIT_UNITS: usize = 16;
/// What it costs for each block to tell all joints anew what ends and begins there.
const ROUND_UNITS: usize = 3;

/// Ways to go on where nothing is certain: what is tried, in this order.
const WAYS: [&[Step]; 2] = [
    &[
        Step::Split(Level { n_sums: 4096, doubt: ONE_DOUBT / 64 }),
        Step::Split(Level { n_sums: 4096, doubt: ONE_DOUBT / 4 }),
        Step::Range { doubts: 2, blocks: 400, waste: RANGE_WASTE },
        Step::Split(Level { n_sums: 4096, doubt: DOUBT_MAX }),
        Step::Range { doubts: 2, blocks: 3000, waste: RANGE_WASTE },
        Step::Guess { doubts: 1, blocks: usize::MAX },
        Step::Range { doubts: 2, blocks: 400, waste: 50 },
        Step::Guess { doubts: 2, blocks: usize::MAX },
    ],
    &[
        Step::Split(Level { n_sums: 4096, doubt: ONE_DOUBT / 64 }),
        Step::Split(Level { n_sums: 4096, doubt: ONE_DOUBT / 4 }),
        Step::Range { doubts: 0, blocks: 100, waste: RANGE_WASTE },
        Step::Split(Level { n_sums: 4096, doubt: DOUBT_MAX }),
        Step::Guess { doubts: 1, blocks: 1024 },
        Step::Range { doubts: 1, blocks: 400, waste: RANGE_WASTE },
        Step::Guess { doubts: 1, blocks: usize::MAX },
        Step::Range { doubts: 2, blocks: 400, waste: RANGE_WASTE },
        Step::Range { doubts: 2, blocks: 3000, waste: RANGE_WASTE },
        Step::Range { doubts: 2, blocks: 400, waste: 50 },
        Step::Guess { doubts: 2, blocks: usize::MAX },
    ],
];
/// How many ways there are.
pub(crate) const N_WAYS: usize = WAYS.len();

#[derive(Clone, Copy)]
enum Step {
    /// Joints, with more sums than at first or more doubt.
    Split(Level),
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
#[derive(Clone)]
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

/// The items of an instance, glued to blocks.
#[derive(Clone)]
pub(crate) struct Network<'a> {
    instance: &'a Instance,
    blocks: Vec<Block>,
    /// The blocks that are no parts.
    left: Vec<u32>,
    joints: Vec<Joint>,
    /// The joints at which blocks end or begin.
    busy: Vec<u32>,
    /// Those of them that are to be looked at.
    due: Vec<u32>,
    /// By joint, whether it is due.
    is_due: Vec<bool>,
    merges: Vec<Merge>,
    /// By block that is a part: of which. Others are parts of themselves.
    whole: Vec<u32>,
    /// What all sizes are multiples of.
    unit: u64,
    /// The height of all, in units.
    height: u64,
    /// How many blocks ranges had that were placed in vain, by first section, end and waste.
    vain: BTreeMap<(u32, u32, u64), usize>,
    ranges: Ranges,
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
            due: Vec::new(),
            is_due: vec![false; instance.n_sections + 1],
            merges: Vec::new(),
            whole: (0..instance.items.len() as u32).collect(),
            unit,
            height,
            vain: BTreeMap::new(),
            ranges: Ranges::default(),
        })
    }

    /// Glues what can be glued. Whether there was anything.
    pub(crate) fn reduce(&mut self, way: usize, guess: Guess, solve: Solve, work: &mut Work) -> bool {
        let n_before = self.left.len();
        self.settle_all(work);
        while work.spend(self.busy.len()) {
            self.settle(work);
            let step = |step: &&Step| match **step {
                Step::Split(level) => self.split_more(level, work),
                Step::Range { doubts, blocks, waste } => self.close_ranges(doubts, blocks, waste, solve, work),
                Step::Guess { doubts, blocks } => self.stack_guessed(guess, doubts, blocks),
            };
            match WAYS[way].iter().find(step) {
                None => break,
                Some(Step::Split(_)) => {}
                Some(Step::Range { .. } | Step::Guess { .. }) => {
                    work.spend(ROUND_UNITS * self.left.len());
                    self.forget_parts();
                    self.connect();
                }
            }
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

    /// Notes that a joint is to be looked at.
    fn mark(&mut self, joint: u32) {
        if !std::mem::replace(&mut self.is_due[joint as usize], true) {
            self.due.push(joint);
        }
    }

    /// Notes that the joints at which a block begins and ends are to be looked at.
    fn mark_ends(&mut self, block: u32) {
        let Block { from, to, .. } = self.blocks[block as usize];
        self.mark(from);
        self.mark(to);
    }

    /// Looks at every joint, and does all that is sure.
    fn settle_all(&mut self, work: &mut Work) {
        self.connect();
        for busy in 0..self.busy.len() {
            self.mark(self.busy[busy]);
        }
        self.settle(work);
    }

    /// Does all that is sure, until nothing is left of it.
    fn settle(&mut self, work: &mut Work) {
        while let Some(joint) = self.due.pop() {
            self.is_due[joint as usize] = false;
            while self.split(joint, SURE, work) {}
            self.stack_certain(joint);
        }
    }

    /// Splits each joint once where that can be; whether there is something to do now.
    fn split_more(&mut self, level: Level, work: &mut Work) -> bool {
        for busy in 0..self.busy.len() {
            self.split(self.busy[busy], level, work);
        }
        !self.due.is_empty()
    }

    /// Splits a joint into two, or makes a row of two blocks; whether it could.
    fn split(&mut self, at: u32, level: Level, work: &mut Work) -> bool {
        if self.joints[at as usize].is_done(level) {
            return false;
        }
        self.refresh(at);
        let mut joint = std::mem::take(&mut self.joints[at as usize]);
        let was_whole = joint.is_whole;
        joint.is_whole |= joint.ending.len() <= 1 || joint.starting.len() <= 1;
        joint.is_whole |= self.total(&joint.ending) == self.height;
        let found = match joint.n_blocks() {
            (1, 1) => self.pair(&joint),
            _ if joint.is_whole => None,
            _ => self.balanced(&mut joint, level, work),
        };
        let Some([ending, starting]) = found else {
            if joint.is_whole != was_whole {
                self.mark(at);
            }
            self.joints[at as usize] = joint;
            return false;
        };
        joint.ending.retain(|block| !ending.contains(block));
        joint.starting.retain(|block| !starting.contains(block));
        self.joints[at as usize] = joint;
        self.mark(at);
        if let ([a], [b]) = (&ending[..], &starting[..]) {
            self.join(*a, *b);
            self.mark(self.blocks[*a as usize].from);
        } else {
            let id = self.joints.len() as u32;
            ending.iter().for_each(|block| self.blocks[*block as usize].to = id);
            starting.iter().for_each(|block| self.blocks[*block as usize].from = id);
            let is_whole = ending.len() <= 1 || starting.len() <= 1;
            self.joints.push(Joint { ending, starting, is_whole, seen: Seen::default() });
            self.is_due.push(false);
            self.busy.push(id);
            self.mark(id);
        }
        true
    }

    /// Puts what blocks of a joint belong to by now in their place.
    fn refresh(&mut self, at: u32) {
        let mut joint = std::mem::take(&mut self.joints[at as usize]);
        for blocks in [&mut joint.ending, &mut joint.starting] {
            let mut is_any_old = false;
            for block in blocks.iter_mut() {
                is_any_old |= self.whole[*block as usize] != *block;
                *block = self.root(*block);
            }
            if is_any_old {
                blocks.sort_unstable();
                blocks.dedup();
            }
        }
        self.joints[at as usize] = joint;
    }

    /// The only block that ends and the only one that begins, if they are of a size.
    fn pair(&self, joint: &Joint) -> Option<[Vec<u32>; 2]> {
        let is_level = self.total(&joint.ending) == self.total(&joint.starting);
        is_level.then(|| [joint.ending.clone(), joint.starting.clone()])
    }

    /// What a block belongs to by now.
    fn root(&mut self, mut block: u32) -> u32 {
        while self.whole[block as usize] != block {
            // The way is half as long the next time.
            let next = self.whole[self.whole[block as usize] as usize];
            self.whole[block as usize] = next;
            block = next;
        }
        block
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

    /// Some blocks that end and some that begin with the same sum, not all of them; none where that is more in doubt than
    /// a level allows. Notes what was seen.
    fn balanced(&self, joint: &mut Joint, level: Level, work: &mut Work) -> Option<[Vec<u32>; 2]> {
        let size = |block: &u32| self.blocks[*block as usize].size;
        joint.ending.sort_unstable_by_key(|block| (size(block), *block));
        joint.starting.sort_unstable_by_key(|block| (size(block), *block));
        let (ending, starting) = (self.sizes(&joint.ending), self.sizes(&joint.starting));
        work.spend(SPLIT_UNITS + (ending.len() + starting.len()) / 2);
        match agreement(&ending, &starting, level.n_sums, level.doubt, work) {
            Ok([a, b]) => {
                let pick = |list: &[u32], chosen: Vec<usize>| chosen.into_iter().map(|at| list[at]).collect();
                Some([pick(&joint.ending, a), pick(&joint.starting, b)])
            }
            Err(Vain { doubt, saw_all }) => {
                let is_level = ending.iter().sum::<u64>() == starting.iter().sum();
                joint.is_whole |= saw_all && DOUBT_MAX < doubt && is_level;
                joint.seen = Seen { n_blocks: joint.n_blocks(), n_sums: level.n_sums, doubt };
                None
            }
        }
    }

    fn total(&self, blocks: &[u32]) -> u64 {
        blocks.iter().map(|block| self.blocks[*block as usize].size).sum()
    }

    fn sizes(&self, blocks: &[u32]) -> Vec<u64> {
        blocks.iter().map(|block| self.blocks[*block as usize].size).collect()
    }

    /// Stacks blocks at a joint that are certain to lie upon each other.
    fn stack_certain(&mut self, at: u32) {
        self.refresh(at);
        let Joint { ending, starting, .. } = &self.joints[at as usize];
        // By side, what is there: the joint at the other end, and the block.
        let others = [
            ending.iter().map(|block| (self.blocks[*block as usize].from, *block)).collect(),
            starting.iter().map(|block| (self.blocks[*block as usize].to, *block)).collect(),
        ];
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for mut others in others.into_iter().filter(|others: &Vec<(u32, u32)>| 1 < others.len()) {
            others.sort_unstable();
            let alike = others.chunk_by(|a, b| a.0 == b.0).filter(|group| 1 < group.len());
            groups.extend(alike.map(|group| group.iter().map(|(_, block)| *block).collect::<Vec<u32>>()));
        }
        for group in groups {
            let Block { from, to, .. } = self.blocks[group[0] as usize];
            self.refresh(from);
            self.refresh(to);
            let joints = self.edges(&group);
            let [before, behind] = &joints;
            let is_all = (before.is_whole && before.starting.len() == group.len())
                || (behind.is_whole && behind.ending.len() == group.len());
            if is_all || (before.is_whole && behind.is_whole) {
                self.stack(&group);
                for joint in [from, to] {
                    self.refresh(joint);
                    self.mark(joint);
                }
            }
        }
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
        for (_, group) in &groups {
            self.stack(group);
            self.mark_ends(group[0]);
        }
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
        if self.ranges.n_merges != self.merges.len() || self.ranges.blocks_max < blocks_max {
            self.find_ranges(blocks_max, work);
        }
        let ranges = std::mem::take(&mut self.ranges);
        let mut closed: Vec<&ClosedRange> = ranges.looks.iter().filter_map(|look| look.closed.as_ref()).collect();
        closed.retain(|range| range.blocks.len() <= blocks_max);
        closed.sort_by_key(|range| (range.blocks.len(), range.first));
        for range in closed {
            let ClosedRange { first, end, ref blocks, height } = *range;
            let is_vain = |n_blocks: &usize| n_blocks - n_blocks / AGAIN_SHARE < blocks.len();
            if taken[first as usize..end as usize].contains(&true)
                || self.vain.get(&(first, end, waste)).is_some_and(is_vain)
                || doubts < self.doubts(range)
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
                    self.close(range, &offsets, top);
                }
                _ => {
                    self.vain.insert((first, end, waste), blocks.len());
                }
            }
        }
        self.ranges = ranges;
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
        self.mark_ends(whole);
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
            (one.is_whole, one.seen) = (false, Seen::default());
        }
        joints[0]
    }

    /// Finds the closed ranges that hold no other with the same first section. What was found is kept where no block
    /// became a part of another since.
    fn find_ranges(&mut self, blocks_max: usize, work: &mut Work) {
        let ends = |block: &u32| [self.blocks[*block as usize].first, self.blocks[*block as usize].end];
        let left = || self.left.iter().filter(|block| self.whole[**block as usize] == **block);
        let mut times: Vec<u32> = left().flat_map(ends).collect();
        times.sort_unstable();
        times.dedup();
        let merged = self.merges[self.ranges.n_merges..].iter().flat_map(|merge| match merge {
            Merge::Part { whole, part, .. } => [*whole, *part],
            Merge::Press { whole, .. } => [*whole; 2],
        });
        let mut changed: Vec<u32> = merged.flat_map(|block| ends(&block)).collect();
        changed.sort_unstable();
        changed.dedup();

        let mut stayed = Vec::new();
        let mut is_kept = vec![false; times.len()];
        for look in std::mem::take(&mut self.ranges.looks) {
            let at = times.partition_point(|time| *time < look.first);
            let next = changed.partition_point(|time| *time < look.first);
            let is_same = times.get(at) == Some(&look.first) && changed.get(next).is_none_or(|time| look.until < *time);
            if is_same && (look.closed.is_some() || !look.is_cut_short || blocks_max <= self.ranges.blocks_max) {
                is_kept[at] = true;
                stayed.push(look);
            }
        }
        let time = |section: u32| times.partition_point(|time| *time < section);
        // By time, what ends there and when it began.
        let mut ending: Vec<Vec<(usize, u32)>> = vec![Vec::new(); times.len()];
        for block in left() {
            let [first, end] = ends(block).map(time);
            ending[end].push((first, *block));
        }
        // What began last comes first.
        ending.iter_mut().for_each(|ending| ending.sort_unstable_by_key(|(first, block)| (Reverse(*first), *block)));
        work.spend(self.left.len() / 2);
        let mut looks = stayed;
        for first in (0..times.len()).filter(|first| !is_kept[*first]) {
            looks.push(self.look(first, &times, &ending, blocks_max, work));
        }
        self.ranges = Ranges { looks, n_merges: self.merges.len(), blocks_max };
    }

    /// Looks for the first closed range from a time on.
    fn look(
        &self,
        first: usize,
        times: &[u32],
        ending: &[Vec<(usize, u32)>],
        blocks_max: usize,
        work: &mut Work,
    ) -> RangeLook {
        let last = (first + RANGE_BOUNDARIES).min(times.len()) - 1;
        let mut look = RangeLook { first: times[first], until: times[last], is_cut_short: false, closed: None };
        let mut blocks = Vec::new();
        // By boundary: how many bytes more begin than end, of what lives within.
        let mut growth = [0_i64; RANGE_BOUNDARIES];
        let mut n_unbalanced = 0;
        for end in first + 1..=last {
            for (start, block) in ending[end].iter().take_while(|(start, _)| first <= *start) {
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
            look.until = times[end];
            look.is_cut_short = blocks_max < blocks.len();
            if look.is_cut_short {
                break;
            }
            if n_unbalanced == 0 && first + 1 < end && 1 < blocks.len() && 0 < growth[0] {
                let height = growth[0] as u64;
                work.spend(blocks.len());
                look.closed = Some(ClosedRange { first: look.first, end: look.until, blocks, height });
                return look;
            }
            // From here on this boundary is within.
            n_unbalanced += usize::from(growth[end - first] != 0);
        }
        work.spend(1 + blocks.len());
        look
    }
}

/// The closed ranges of so many blocks at most, as they were after so many merges.
#[derive(Clone, Default)]
struct Ranges {
    looks: Vec<RangeLook>,
    n_merges: usize,
    blocks_max: usize,
}

/// What came of looking for a closed range from a section on.
#[derive(Clone)]
struct RangeLook {
    first: u32,
    /// How far was looked.
    until: u32,
    /// Whether there were too many blocks to look further.
    is_cut_short: bool,
    closed: Option<ClosedRange>,
}

/// Sections in which blocks that live there alone have the same sum everywhere.
#[derive(Clone)]
struct ClosedRange {
    first: u32,
    end: u32,
    blocks: Vec<u32>,
    height: u64,
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
        network.reduce(0, Guess::All, &mut |_, _, _| None, &mut Work::new(1 << 40));
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
        let pieces = cut_up(&mut random, 3000, 1 << 30);
        assert_eq!(glued(&instance(&pieces)), (1, 1 << 40));
    }

    /// A rectangle cut up, by times and sizes.
    fn cut_up(random: &mut Random, n_pieces: usize, n_times: u32) -> Vec<(u32, u32, u64)> {
        let mut pieces = vec![(0, n_times, 1_u64 << 40)];
        while pieces.len() < n_pieces {
            let (first, end, size) = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
            match random.below(2) {
                0 if 1 < end - first => {
                    let cut = first + 1 + random.below(u64::from(end - first - 1)) as u32;
                    pieces.extend([(first, cut, size), (cut, end, size)]);
                }
                _ => {
                    let cut = 1 + random.below(size - 1);
                    pieces.extend([(first, end, cut), (first, end, size - cut)]);
                }
            }
        }
        pieces
    }

    #[test]
    fn some_of_what_begins_at_a_joint_is_not_stacked() {
        // At step 2 e and f end and p, q and s begin. As many end as there are of p and q, which both end at step 3; but
        // s may lie between them, and there p and q are of two joints that no sums tell apart.
        let [p, q, s, e] = [1_000_003, 1_500_007, 2_000_029, 2_700_001];
        let f = p + q + s - e;
        let others = [310_007, 415_003, 520_021, 633_013, 747_017, 866_011, 985_007, 1_104_001, 1_223_039_u64];
        let mut pieces = vec![(0, 2, e), (0, 1, f + 900_019), (1, 2, f), (1, 3, 900_019)];
        pieces.extend([(2, 3, p), (2, 3, q), (2, 4, s)]);
        pieces.extend(others.map(|size| (0, 3, size)));
        let mut random = Random::new(2);
        let sum = |sizes: &[u64]| sizes.iter().sum::<u64>();
        for line in [p + sum(&others[..3]), q + 900_019 + sum(&others[3..5]), sum(&others[5..])] {
            let parts = [line / 5, line / 4, line / 7].map(|size| size + random.below(1000));
            pieces.extend(parts.map(|size| (3, 4, size)));
            pieces.push((3, 4, line - sum(&parts)));
        }
        let instance = instance(&pieces);
        let mut network = Network::new(&instance).expect("there is no slack");
        network.settle_all(&mut Work::new(1 << 40));
        network.forget_parts();
        assert_eq!(network.left.len(), pieces.len());
    }

    #[test]
    fn with_slack_nothing_is_tried() {
        assert!(Network::new(&instance(&[(0, 3, 5), (2, 9, 5), (0, 4, 2), (1, 9, 2)])).is_none());
    }
}
