//! [`Cut`]: the fewest bytes alive at a point of time of which only a part is decided.
//!
//! A point of time is a *down-set*: the tasks done by then, which hold all that they need. Bytes alive there are those of
//! blocks made inside and read outside: a directed cut. Where some tasks are inside, some outside and the rest is free,
//! the least is a minimum cut of a network: from a block's maker to the block a channel of its bytes, from there to each
//! reader, and from each reader back to the maker, channels that are never cut. Flow is found as Dinic did.

use super::instance::{Instance, Position};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Inside,
    Outside,
    Free,
}

/// A minimum cut finder, kept for its memory.
#[derive(Default)]
pub(crate) struct Cut {
    /// By task: its point in the network.
    point: Vec<usize>,
    channels: Vec<Channel>,
    /// By point: its first channel; channels of one point are linked.
    first: Vec<usize>,
    level: Vec<u32>,
    current: Vec<usize>,
    queue: Vec<usize>,
    path: Vec<usize>,
    /// Work that may still be done, in blocks and channels looked at.
    pub(crate) budget: u64,
}

struct Channel {
    to: usize,
    room: u64,
    next: usize,
}

const SOURCE: usize = 0;
const SINK: usize = 1;
const NONE: usize = usize::MAX;
/// The room of channels that are never cut.
const ENDLESS: u64 = u64::MAX / 4;

impl Cut {
    /// A finder that may look at so many channels.
    pub(crate) fn new(budget: u64) -> Cut {
        Cut { budget, ..Cut::default() }
    }

    /// The fewest bytes alive at a down-set that agrees with `side`; free tasks are then put on their side.
    ///
    /// `bonus`: bytes that count unless all of these tasks are inside. None where the budget ran out.
    pub(crate) fn least(
        &mut self,
        instance: &Instance,
        side: &mut [Side],
        bonus: Option<(u64, &[Position])>,
    ) -> Option<u64> {
        self.budget = self.budget.checked_sub(instance.blocks.len() as u64)?;
        let always = self.build(instance, side, bonus);
        let mut flow = 0;
        loop {
            self.budget = self.budget.checked_sub(self.channels.len() as u64)?;
            if !self.set_levels() {
                break;
            }
            self.current.clone_from(&self.first);
            flow += self.fill()?;
        }
        for (task, side) in side.iter_mut().enumerate() {
            if *side == Side::Free {
                *side = if self.level[self.point[task]] == u32::MAX { Side::Outside } else { Side::Inside };
            }
        }
        Some(always + flow)
    }

    /// Builds the network; returns the bytes that are alive in any case.
    fn build(&mut self, instance: &Instance, side: &[Side], bonus: Option<(u64, &[Position])>) -> u64 {
        self.channels.clear();
        self.first.clear();
        self.first.resize(2, NONE);
        self.point.clear();
        for side in side {
            let point = match side {
                Side::Inside => SOURCE,
                Side::Outside => SINK,
                Side::Free => {
                    self.first.push(NONE);
                    self.first.len() - 1
                }
            };
            self.point.push(point);
        }
        let mut always = 0;
        for block in &instance.blocks {
            let from = block.maker.map_or(SOURCE, |maker| self.point[maker]);
            if from != SINK {
                always += self.connect(from, block.bytes, &block.readers, block.kept);
            }
            // Whatever reads the block needs its maker.
            if 2 <= from {
                for &reader in &block.readers {
                    if 2 <= self.point[reader] {
                        self.channel(self.point[reader], from, ENDLESS);
                    }
                }
            }
        }
        always + bonus.map_or(0, |(bytes, readers)| self.connect(SOURCE, bytes, readers, false))
    }

    /// Lets bytes count where `from` is inside and one of the readers is not; returns them where that is so already.
    fn connect(&mut self, from: usize, bytes: u64, readers: &[Position], kept: bool) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let outside = kept || readers.iter().any(|&reader| self.point[reader] == SINK);
        if outside && from == SOURCE {
            return bytes;
        }
        if outside {
            self.channel(from, SINK, bytes);
            return 0;
        }
        let mut free = readers.iter().map(|&reader| self.point[reader]).filter(|&point| 2 <= point);
        match (free.next(), free.next()) {
            (Some(one), None) => self.channel(from, one, bytes),
            (Some(_), Some(_)) => {
                self.first.push(NONE);
                let block = self.first.len() - 1;
                self.channel(from, block, bytes);
                for &reader in readers {
                    if 2 <= self.point[reader] {
                        self.channel(block, self.point[reader], ENDLESS);
                    }
                }
            }
            (None, _) => {}
        }
        0
    }

    fn channel(&mut self, from: usize, to: usize, room: u64) {
        for (from, to, room) in [(from, to, room), (to, from, 0)] {
            self.channels.push(Channel { to, room, next: self.first[from] });
            self.first[from] = self.channels.len() - 1;
        }
    }

    /// Distances from the source through what has room; whether the sink is reached.
    fn set_levels(&mut self) -> bool {
        self.level.clear();
        self.level.resize(self.first.len(), u32::MAX);
        self.level[SOURCE] = 0;
        self.queue.clear();
        self.queue.push(SOURCE);
        let mut head = 0;
        while head < self.queue.len() {
            let at = self.queue[head];
            head += 1;
            let mut next = self.first[at];
            while next != NONE {
                let channel = &self.channels[next];
                if 0 < channel.room && self.level[channel.to] == u32::MAX {
                    self.level[channel.to] = self.level[at] + 1;
                    self.queue.push(channel.to);
                }
                next = channel.next;
            }
        }
        self.level[SINK] != u32::MAX
    }

    /// Fills shortest ways from source to sink until none is left.
    fn fill(&mut self) -> Option<u64> {
        let mut flow = 0;
        self.path.clear();
        loop {
            let at = self.path.last().map_or(SOURCE, |&last| self.channels[last].to);
            if at == SINK {
                let room = self.path.iter().map(|&channel| self.channels[channel].room).min().unwrap_or(0);
                flow += room;
                for &channel in &self.path {
                    self.channels[channel].room -= room;
                    self.channels[channel ^ 1].room += room;
                }
                self.budget = self.budget.checked_sub(self.path.len() as u64)?;
                let full = self.path.iter().position(|&channel| self.channels[channel].room == 0).unwrap_or(0);
                self.path.truncate(full);
                continue;
            }
            let next = self.current[at];
            if next == NONE {
                let Some(last) = self.path.pop() else { return Some(flow) };
                let from = self.channels[last ^ 1].to;
                self.current[from] = self.channels[last].next;
                continue;
            }
            let channel = &self.channels[next];
            if 0 < channel.room && self.level[channel.to] == self.level[at] + 1 {
                self.path.push(next);
            } else {
                self.current[at] = channel.next;
                self.budget = self.budget.checked_sub(1)?;
            }
        }
    }
}
