//! [`Relay`]: threads that go through stages together, where each stage reads what the one before it wrote.
//!
//! A stream is a sequence of stages, each cut into the same parts; streams do not know of each other. A part of a stage
//! may begin when all parts of the stage before it in its stream are done. A thread keeps to the part it is at home in,
//! so that what that part reads stays in its caches, and takes another only when nobody else has yet. Nobody waits for a
//! thread that has not come: one alone does everything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::threads::pool::{Pool, relax};

/// The most parts of all streams together.
pub(crate) const PARTS_MAX: usize = 32;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    /// Sequences of stages that do not know of each other.
    pub(crate) streams: usize,
    /// Parts of each stage; together with those of the other streams at most [`PARTS_MAX`].
    pub(crate) parts: usize,
    /// Stages of each stream.
    pub(crate) stages: usize,
}

/// Calls `work(stream, part, stage)` once for each, on the threads of the pool.
///
/// What a part writes is seen by all parts of the stages behind it. Allocates nothing. When a call panics the rest is
/// left out, and the panic goes on in the caller.
pub(crate) fn relay(pool: &Pool, stages: Stages, work: &(dyn Fn(usize, usize, usize) + Sync)) {
    let n_parts = stages.streams * stages.parts;
    assert!(n_parts <= PARTS_MAX, "all parts have their counters");
    let relay = Relay { stages, counters: [const { Counter::new() }; PARTS_MAX], broken: AtomicBool::new(false) };
    pool.run(n_parts.min(pool.threads()), &|home| relay.run(home, work));
}

struct Relay {
    stages: Stages,
    counters: [Counter; PARTS_MAX],
    /// Whether a call panicked.
    broken: AtomicBool,
}

/// How far a part is, in stages; on a cache line of its own.
#[repr(align(128))]
struct Counter {
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl Counter {
    const fn new() -> Counter {
        Counter { begun: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }
}

impl Relay {
    fn run(&self, home: usize, work: &(dyn Fn(usize, usize, usize) + Sync)) {
        let Stages { streams, parts, stages } = self.stages;
        let n_parts = streams * parts;
        let mut turns = 0;
        while !self.broken.load(Ordering::Relaxed) {
            let mut is_over = true;
            let mut begun = None;
            for number in (home..n_parts).chain(0..home) {
                let stage = self.counters[number].begun.load(Ordering::Relaxed);
                is_over &= stage == stages;
                if stage < stages && self.begin(number, stage) {
                    begun = Some((number, stage));
                    break;
                }
            }
            match begun {
                Some((number, stage)) => {
                    let guard = Guard { broken: &self.broken };
                    work(number / parts, number % parts, stage);
                    std::mem::forget(guard);
                    self.counters[number].done.store(stage + 1, Ordering::Release);
                    turns = 0;
                }
                None if is_over => return,
                None => relax(&mut turns),
            }
        }
    }

    /// Whether a stage of a part may begin now, and this thread is the one to do it.
    fn begin(&self, number: usize, stage: usize) -> bool {
        let stream = number / self.stages.parts * self.stages.parts;
        let counters = &self.counters[stream..][..self.stages.parts];
        // Acquires what the parts of the stage before it wrote, whoever did them.
        let ready = counters.iter().all(|counter| stage <= counter.done.load(Ordering::Acquire));
        let begun = &self.counters[number].begun;
        ready && begun.compare_exchange(stage, stage + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Dropped only by a panic.
struct Guard<'a> {
    broken: &'a AtomicBool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn every_part_comes_once_and_after_the_stage_before_it() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for (streams, parts, stages) in [(1, 1, 7), (1, 2, 300), (2, 1, 300), (2, 3, 100), (1, 4, 0), (2, 16, 20)] {
                let counts: Vec<AtomicUsize> = (0..streams * stages).map(|_| AtomicUsize::new(0)).collect();
                relay(&pool, Stages { streams, parts, stages }, &|stream, part, stage| {
                    assert!(part < parts);
                    if 0 < stage {
                        let before = counts[stream * stages + stage - 1].load(Ordering::Relaxed);
                        assert_eq!(before, parts, "{threads} threads, stream {stream}, stage {stage}");
                    }
                    counts[stream * stages + stage].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == parts));
            }
        }
    }

    #[test]
    fn a_panic_ends_it_for_all() {
        let pool = Pool::new(3);
        let stages = Stages { streams: 1, parts: 3, stages: 50 };
        let run = || relay(&pool, stages, &|_, part, stage| assert!((part, stage) != (1, 20)));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
}
