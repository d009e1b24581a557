//! [`run_phases`]: parallel phases separated by barriers, where each phase reads the results of the one before it.
//!
//! Work consists of independent chains of phases; all phases of a chain are divided into the same parts. A part of a
//! phase may begin when all parts of the previous phase of its chain are done. Each thread prefers one part, its home,
//! whose data stays in its caches, and takes another part only if no thread has begun it. There is no barrier over
//! threads: if the others are late, one thread does everything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::threads::pool::{Pool, relax};

/// Most parts of all chains together.
pub(crate) const PARTS_MAX: usize = 32;

/// The dimensions of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    /// Independent chains.
    pub(crate) chains: usize,
    /// Parts of each phase; `chains * parts` must be at most [`PARTS_MAX`].
    pub(crate) parts: usize,
    /// Phases of each chain.
    pub(crate) phases: usize,
}

/// Calls `work(chain, part, phase)` once for each, on the threads of the pool.
///
/// The writes of a part are visible to all parts of later phases. Allocates nothing. If a call panics, the rest is
/// skipped and the panic resumes in the caller.
pub(crate) fn run_phases(pool: &Pool, phases: Phases, work: &(dyn Fn(usize, usize, usize) + Sync)) {
    let n_parts = phases.chains * phases.parts;
    assert!(n_parts <= PARTS_MAX, "chains * parts must be at most PARTS_MAX");
    let phased = PhasedRun { phases, counters: [const { Counter::new() }; PARTS_MAX], broken: AtomicBool::new(false) };
    pool.run(n_parts.min(pool.threads()), &|home| phased.run(home, work));
}

struct PhasedRun {
    phases: Phases,
    counters: [Counter; PARTS_MAX],
    /// Whether a call panicked.
    broken: AtomicBool,
}

/// Progress of a part, in phases; on a cache line of its own.
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

impl PhasedRun {
    fn run(&self, home: usize, work: &(dyn Fn(usize, usize, usize) + Sync)) {
        let Phases { chains, parts, phases } = self.phases;
        let n_parts = chains * parts;
        let mut spins = 0;
        while !self.broken.load(Ordering::Relaxed) {
            let mut is_over = true;
            let mut begun = None;
            for number in (home..n_parts).chain(0..home) {
                let phase = self.counters[number].begun.load(Ordering::Relaxed);
                is_over &= phase == phases;
                if phase < phases && self.begin(number, phase) {
                    begun = Some((number, phase));
                    break;
                }
            }
            match begun {
                Some((number, phase)) => {
                    let guard = Guard { broken: &self.broken };
                    work(number / parts, number % parts, phase);
                    std::mem::forget(guard);
                    self.counters[number].done.store(phase + 1, Ordering::Release);
                    spins = 0;
                }
                None if is_over => return,
                None => relax(&mut spins),
            }
        }
    }

    /// Claims a phase of a part. Returns whether the phase may begin and this thread is the one that does it.
    fn begin(&self, number: usize, phase: usize) -> bool {
        let chain = number / self.phases.parts * self.phases.parts;
        let counters = &self.counters[chain..][..self.phases.parts];
        // Acquires the writes of all parts of the previous phase.
        let ready = counters.iter().all(|counter| phase <= counter.done.load(Ordering::Acquire));
        let begun = &self.counters[number].begun;
        ready && begun.compare_exchange(phase, phase + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Marks the run as broken when it is dropped, which only a panic does.
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
    use crate::threads::shared_slice::SharedMut;

    /// Plain memory, so that a sanitizer or Miri sees a missing order between phases as a race.
    #[test]
    fn parts_read_the_cells_of_the_phase_before() {
        let pool = Pool::new(3);
        let (parts, phases) = (3, 3000);
        let mut cells = vec![0u64; parts * (phases + 1)];
        let shared = SharedMut::new(&mut cells);
        run_phases(&pool, Phases { chains: 1, parts, phases }, &|_, part, phase| {
            // Lets the other threads begin, also on a machine with other work.
            if phase % 100 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            // SAFETY: all parts of the phase before are done, and nothing writes their cells again.
            let before: u64 = unsafe { shared.shared_part(phase * parts, parts) }.iter().sum();
            // SAFETY: each cell belongs to one part of one phase.
            let own = unsafe { shared.part((phase + 1) * parts + part, 1) };
            own[0] = before % 1000 + 1;
        });
        let mut want = vec![0u64; parts];
        for phase in 1..=phases {
            want = vec![want.iter().sum::<u64>() % 1000 + 1; parts];
            assert_eq!(cells[phase * parts..][..parts], want, "phase {phase}");
        }
    }

    #[test]
    fn every_part_runs_once_and_after_the_previous_stage() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for (chains, parts, phases) in [(1, 1, 7), (1, 2, 300), (2, 1, 300), (2, 3, 100), (1, 4, 0), (2, 16, 20)] {
                let counts: Vec<AtomicUsize> = (0..chains * phases).map(|_| AtomicUsize::new(0)).collect();
                run_phases(&pool, Phases { chains, parts, phases }, &|chain, part, phase| {
                    assert!(part < parts);
                    if 0 < phase {
                        let before = counts[chain * phases + phase - 1].load(Ordering::Relaxed);
                        assert_eq!(before, parts, "{threads} threads, chain {chain}, phase {phase}");
                    }
                    counts[chain * phases + phase].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == parts));
            }
        }
    }

    #[test]
    fn panic_ends_the_run_of_all_threads() {
        let pool = Pool::new(3);
        let phases = Phases { chains: 1, parts: 3, phases: 50 };
        let run = || run_phases(&pool, phases, &|_, part, phase| assert!((part, phase) != (1, 20)));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
}
