//! [`Cut`]: a lower bound on the bytes alive at a partially decided point of an order.
//!
//! A point of time is a *down-set*: the tasks done by then, which hold all that they need. Bytes alive there are those of
//! blocks made inside and read outside: a directed cut. Where some tasks are inside, some outside and the rest is free,
//! the least is a minimum cut of a network: from a block's maker to the block a channel of its bytes, from there to each
//! reader, and from each reader back to the maker, channels that are never cut. A block of several makers has a point of its
//! own before that channel, which a channel that is never cut leads to from each of them; it ends when they are all
//! inside as well.

use super::instance::{Instance, Position};
use crate::max_flow::{ENDLESS, Ended, Flow, SINK, SOURCE};

/// The side of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Inside,
    Outside,
    Free,
}

/// A minimum cut finder, kept for its memory.
#[derive(Default)]
pub(crate) struct Cut {
    /// By task: its vertex in the network.
    point: Vec<usize>,
    flow: Flow,
    /// Work that may still be done, in blocks and channels looked at.
    pub(crate) budget: u64,
}

impl Cut {
    /// A solver that may visit `budget` edges.
    pub(crate) fn new(budget: u64) -> Cut {
        Cut { budget, ..Cut::default() }
    }

    /// The fewest bytes alive at a down-set that agrees with `side`. If this is found, free tasks are put on their side of it. Otherwise
    /// the bytes are a lower bound on it: they are `enough`, or the budget ran out.
    ///
    /// `running`: a task outside; blocks that it makes, alone or with others, count as made. `bonus`: bytes that count unless all of these
    /// tasks are inside.
    pub(crate) fn least(
        &mut self,
        instance: &Instance,
        side: &mut [Side],
        running: Option<Position>,
        bonus: Option<(u64, &[Position])>,
        enough: u64,
    ) -> (u64, Ended) {
        let Some(left) = self.budget.checked_sub(instance.blocks.len() as u64) else { return (0, Ended::OutOfWork) };
        self.budget = left;
        let always = self.build(instance, side, running, bonus);
        let (flow, ended) = self.flow.maximum(&mut self.budget, enough.saturating_sub(always));
        if ended == Ended::Maximum {
            for (task, side) in side.iter_mut().enumerate().filter(|(_, side)| **side == Side::Free) {
                *side = if self.flow.is_before_cut(self.point[task]) { Side::Inside } else { Side::Outside };
            }
        }
        (always + flow, ended)
    }

    /// Builds the network; returns the bytes that are alive in any case.
    fn build(
        &mut self,
        instance: &Instance,
        side: &[Side],
        running: Option<Position>,
        bonus: Option<(u64, &[Position])>,
    ) -> u64 {
        self.flow.clear();
        self.point.clear();
        for side in side {
            let point = match side {
                Side::Inside => SOURCE,
                Side::Outside => SINK,
                Side::Free => self.flow.point(),
            };
            self.point.push(point);
        }
        let mut always = 0;
        for block in &instance.blocks {
            let from = match block.makers[..] {
                [] => SOURCE,
                [maker] => self.point[maker],
                _ => self.first_of(&block.makers, running),
            };
            if from != SINK {
                always += self.connect(from, block.bytes, &block.last, block.kept);
            }
            // Readers of the block need its maker.
            if 2 <= from && !block.is_shared {
                for &reader in &block.last {
                    if 2 <= self.point[reader] {
                        self.flow.channel(self.point[reader], from, ENDLESS);
                    }
                }
            }
        }
        always + bonus.map_or(0, |(bytes, readers)| self.connect(SOURCE, bytes, readers, false))
    }

    /// A vertex that is inside if one of these tasks is inside or runs.
    fn first_of(&mut self, makers: &[Position], running: Option<Position>) -> usize {
        if makers.iter().any(|&maker| self.point[maker] == SOURCE || Some(maker) == running) {
            return SOURCE;
        }
        if makers.iter().all(|&maker| self.point[maker] == SINK) {
            return SINK;
        }
        let first = self.flow.point();
        for &maker in makers.iter().filter(|&&maker| 2 <= self.point[maker]) {
            self.flow.channel(self.point[maker], first, ENDLESS);
        }
        first
    }

    /// Counts bytes if `from` is inside and one of the readers is not; returns them if this is already decided.
    fn connect(&mut self, from: usize, bytes: u64, readers: &[Position], kept: bool) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let outside = kept || readers.iter().any(|&reader| self.point[reader] == SINK);
        if outside && from == SOURCE {
            return bytes;
        }
        if outside {
            self.flow.channel(from, SINK, bytes);
            return 0;
        }
        let mut free = readers.iter().map(|&reader| self.point[reader]).filter(|&point| 2 <= point);
        match (free.next(), free.next()) {
            (Some(one), None) => self.flow.channel(from, one, bytes),
            (Some(_), Some(_)) => {
                let block = self.flow.point();
                self.flow.channel(from, block, bytes);
                for &reader in readers {
                    if 2 <= self.point[reader] {
                        self.flow.channel(block, self.point[reader], ENDLESS);
                    }
                }
            }
            (None, _) => {}
        }
        0
    }
}
