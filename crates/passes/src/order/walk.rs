//! [`Walk`]: a set of done tasks, the ready tasks, and moves without cost.

use super::instance::{Effect, Instance, Position, has, insert, remove};

/// A task that can run, with its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) task: Position,
    pub(crate) effect: Effect,
}

impl Ready {
    /// The change of live bytes once it has run.
    pub(crate) fn growth(self) -> i64 {
        self.effect.born as i64 - self.effect.dying as i64
    }
}

/// A down-set with its ready tasks, moved forward task by task.
pub(crate) struct Walk<'a> {
    instance: &'a Instance,
    /// The tasks that are done.
    pub(crate) done: Vec<u64>,
    /// How many.
    pub(crate) count: usize,
    /// Bytes alive now.
    pub(crate) live: u64,
    /// The most bytes alive so far.
    pub(crate) peak: u64,
    /// Tasks that can run, ascending.
    pub(crate) ready: Vec<Ready>,
    /// The tasks run since the walk was placed.
    pub(crate) moves: Vec<Position>,
    chain: Vec<Position>,
    /// Effects looked at since the walk was made: the measure of work.
    pub(crate) work: u64,
}

impl<'a> Walk<'a> {
    /// At the start.
    pub(crate) fn new(instance: &'a Instance) -> Walk<'a> {
        let done = vec![0; instance.words()];
        let (moves, chain, ready) = (Vec::new(), Vec::new(), Vec::new());
        let mut walk = Walk { instance, done, count: 0, live: 0, peak: 0, ready, moves, chain, work: 0 };
        walk.place(&vec![0; instance.words()], 0, instance.start(), instance.given);
        walk
    }

    /// Puts the walk at a down-set and computes its ready tasks.
    pub(crate) fn place(&mut self, done: &[u64], count: usize, live: u64, peak: u64) {
        self.done.copy_from_slice(done);
        (self.count, self.live, self.peak) = (count, live, peak);
        self.moves.clear();
        self.ready.clear();
        for (ix, &word) in done.iter().enumerate() {
            let mut open = !word;
            while open != 0 {
                let task = ix * 64 + open.trailing_zeros() as usize;
                open &= open - 1;
                if task < self.instance.len() && self.instance.is_ready(&self.done, task) {
                    self.work += 1;
                    self.ready.push(Ready { task, effect: self.instance.effect(&self.done, task) });
                }
            }
        }
        self.work += self.instance.len() as u64 / 4;
    }

    /// Puts the walk where another is.
    fn place_like(&mut self, other: &Walk) {
        self.done.copy_from_slice(&other.done);
        (self.count, self.live, self.peak) = (other.count, other.live, other.peak);
        self.moves.clear();
        self.ready.clone_from(&other.ready);
    }

    /// Puts the walk at a down-set whose ready tasks are known.
    pub(crate) fn place_ready(&mut self, done: &[u64], ready: &[Ready], count: usize, live: u64, peak: u64) {
        self.done.copy_from_slice(done);
        (self.count, self.live, self.peak) = (count, live, peak);
        self.moves.clear();
        self.ready.clear();
        self.ready.extend_from_slice(ready);
    }

    /// Runs a ready task.
    pub(crate) fn run(&mut self, task: Position) {
        let at = self.ready.binary_search_by_key(&task, |ready| ready.task).expect("the task is ready");
        let Ready { effect, .. } = self.ready.remove(at);
        self.peak = self.peak.max(self.live + effect.during);
        self.live = self.live + effect.born - effect.dying;
        insert(&mut self.done, task);
        self.count += 1;
        self.moves.push(task);
        let instance = self.instance;
        for &block in &instance.tasks[task].touches {
            let span = &instance.blocks[block];
            let is_begun = span.is_shared && span.makers.iter().all(|&maker| (maker == task) == has(&self.done, maker));
            if is_begun {
                span.last.iter().for_each(|&other| self.look_again(other));
                continue;
            }
            // The block can die with a task only if that is the last of its readers.
            let mut open = span.last.iter().rev().filter(|&&last| !has(&self.done, last));
            if let (Some(&last), None) = (open.next(), open.next()) {
                self.look_again(last);
            }
        }
        for &fed in &instance.tasks[task].feeds {
            if instance.is_ready(&self.done, fed)
                && let Err(at) = self.ready.binary_search_by_key(&fed, |ready| ready.task)
            {
                self.work += 1;
                self.ready.insert(at, Ready { task: fed, effect: instance.effect(&self.done, fed) });
            }
        }
    }

    /// Evaluates the effect of a task again if it is ready.
    fn look_again(&mut self, task: Position) {
        if let Ok(at) = self.ready.binary_search_by_key(&task, |ready| ready.task) {
            self.work += 1;
            self.ready[at].effect = self.instance.effect(&self.done, task);
        }
    }

    /// Runs everything that fits into `limit` and, by the rule in the head of `search`, may run at once.
    pub(crate) fn close(&mut self, limit: u64) {
        let mut from = 0;
        while let Some(&Ready { task, effect }) = self.ready.get(from) {
            let fits = self.live + effect.during <= limit;
            if fits && effect.born <= effect.dying {
                self.run(task);
                from = 0;
            } else if fits && self.find_chain(task, effect, limit) {
                let chain = std::mem::take(&mut self.chain);
                chain.iter().for_each(|&task| self.run(task));
                self.chain = chain;
                from = 0;
            } else {
                from += 1;
            }
        }
    }

    /// Visits every walk one task ahead, closed, except those that need `known` bytes or more; in the order of the
    /// tasks. `child` holds each of them.
    pub(crate) fn each_next(&mut self, child: &mut Walk, known: u64, mut show: impl FnMut(&Walk)) {
        for ix in 0..self.ready.len() {
            let Ready { task, effect } = self.ready[ix];
            let peak = self.peak.max(self.live + effect.during);
            if known <= peak {
                continue;
            }
            child.place_like(self);
            child.run(task);
            child.close(peak);
            show(child);
        }
    }

    /// Looks for tasks that run one after the other, each fed by the one before, after which no more is alive than now.
    fn find_chain(&mut self, task: Position, effect: Effect, limit: u64) -> bool {
        let before = self.live;
        self.chain.clear();
        let mut next = Some((task, effect));
        while let Some((task, effect)) = next {
            insert(&mut self.done, task);
            self.chain.push(task);
            self.live = self.live + effect.born - effect.dying;
            if self.live <= before || LONGEST_CHAIN <= self.chain.len() {
                break;
            }
            next = None;
            let mut least = i64::MAX;
            for &fed in &self.instance.tasks[task].feeds {
                if self.instance.is_ready(&self.done, fed) {
                    self.work += 1;
                    let effect = self.instance.effect(&self.done, fed);
                    let change = effect.born as i64 - effect.dying as i64;
                    if change < least && self.live + effect.during <= limit {
                        least = change;
                        next = Some((fed, effect));
                    }
                }
            }
        }
        let found = self.live <= before;
        self.live = before;
        self.chain.iter().for_each(|&task| remove(&mut self.done, task));
        found
    }

    /// Whether all tasks are done.
    pub(crate) fn is_at_end(&self) -> bool {
        self.count == self.instance.len()
    }

    /// Whether a task is done.
    pub(crate) fn is_done(&self, task: Position) -> bool {
        has(&self.done, task)
    }
}

/// Longer chains are not looked for.
const LONGEST_CHAIN: usize = 32;
