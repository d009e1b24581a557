//! [`Pool`]: threads that share the tasks of one kernel at a time.
//!
//! A run is opened and closed through one word, the gate: `epoch << 32 | open << 31 | workers inside`. A worker that
//! is late finds the gate closed and never holds up the caller; the caller leaves when nobody is inside any more.
//!
//! Each thread has a share of the tasks, neighbours, and takes what is left of the others' when it is done: kernels of one
//! shape after the other find in a core's caches what that core wrote, and nobody waits for one that is late.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::simd::isa::Isa;

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 32;
/// Turns that a worker spins before it parks: some tens of microseconds.
const SPINS: u32 = 1500;

type Task = *const (dyn Fn(usize) + Sync);
type Payload = Box<dyn Any + Send>;

/// A set of threads; the caller of [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
}

#[derive(Clone, Copy)]
struct Job {
    task: Option<Task>,
    tasks: usize,
    /// How many shares they are cut into.
    threads: usize,
}

/// The next task of a share, in a line of its own.
#[repr(align(64))]
struct Share(AtomicUsize);

struct Shared {
    gate: AtomicU64,
    /// One for each thread, the caller's first.
    shares: Box<[Share]>,
    /// Written only by the caller that holds `busy` while the gate is closed and empty.
    job: UnsafeCell<Job>,
    /// Whether a caller is in `run`; a second or a nested one does its tasks alone.
    busy: AtomicBool,
    stop: AtomicBool,
    parked: AtomicUsize,
    /// Workers that run: what a starting thread allocates is behind them.
    started: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Payload>>,
}

// SAFETY: `job` is the only field that is not already shareable. It is written by the holder of `busy` while the gate
// is closed and empty, and read only by workers that entered through the open gate, which orders both (AcqRel).
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure and is followed only while its owner waits in `run`.
unsafe impl Send for Shared {}

impl Pool {
    /// Starts `threads - 1` workers (none for 0 and 1), waits until they run, and picks the best instructions the
    /// machine has.
    ///
    /// Where the system refuses a thread, the pool is smaller.
    pub fn new(threads: usize) -> Pool {
        Pool::with_isa(threads, Isa::detect())
    }

    /// A pool that uses `isa`, or the best that the machine has and that is not beyond it. For tests and comparisons.
    pub fn with_isa(threads: usize, isa: Isa) -> Pool {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            shares: (0..threads.max(1)).map(|_| Share(AtomicUsize::new(0))).collect(),
            job: UnsafeCell::new(Job { task: None, tasks: 0, threads: 1 }),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let workers: Vec<_> = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("prestow-{index}")).spawn(move || shared.work(index)).ok()
            })
            .collect();
        let mut turns = 0;
        while shared.started.load(Ordering::Acquire) < workers.len() {
            relax(&mut turns);
        }
        Pool { shared, workers, isa: isa.held() }
    }

    /// How many threads take part, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instructions that kernels use in this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each once, on any thread, and returns when all are done.
    ///
    /// Allocates nothing. When a task panics the rest may be left out, and the panic goes on in the caller.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        #[cfg(target_arch = "x86_64")]
        crate::simd::amx_unit::forget();
        let shared = &*self.shared;
        if tasks <= 1 || self.workers.is_empty() || shared.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(task);
            return;
        }
        // SAFETY: this only forgets the lifetime. Workers follow the pointer between entering and leaving the gate, and
        // this function closes the gate and waits until it is empty before it returns or unwinds.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let job = Job { task: Some(erased), tasks, threads: self.threads() };
        // SAFETY: we hold `busy`, and the gate is closed and empty since the last holder left: nobody else looks.
        unsafe { *shared.job.get() = job };
        for (index, share) in shared.shares.iter().enumerate() {
            share.0.store(job.share(index).start, Ordering::Relaxed);
        }
        let epoch = shared.gate.load(Ordering::Relaxed) / EPOCH;
        shared.gate.store(((epoch.wrapping_add(1) & 0xffff_ffff) * EPOCH) | OPEN, Ordering::SeqCst);
        if 0 < shared.parked.load(Ordering::SeqCst) {
            drop(guard(&shared.lock));
            shared.wake.notify_all();
        }

        let mine = catch_unwind(AssertUnwindSafe(|| shared.claim(0, task, job)));
        if mine.is_err() {
            shared.leave_the_rest(tasks);
        }
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut turns = 0u32;
        while shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut turns);
        }
        let theirs = guard(&shared.panic).take();
        shared.busy.store(false, Ordering::Release);
        if let Err(payload) = mine {
            resume_unwind(payload);
        }
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(guard(&self.shared.lock));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker never unwinds: its tasks' panics are caught and handed to the caller.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self, own: usize) {
        self.started.fetch_add(1, Ordering::Release);
        let mut seen = 0;
        while let Some(epoch) = self.enter(seen) {
            seen = epoch;
            // SAFETY: we are inside the gate, so the caller that wrote the job waits for us and writes nothing.
            let job = unsafe { *self.job.get() };
            if let Some(task) = job.task {
                // SAFETY: the closure outlives the gate's being open or inhabited; see `run`.
                let task = unsafe { &*task };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.claim(own, task, job))) {
                    self.leave_the_rest(job.tasks);
                    guard(&self.panic).get_or_insert(payload);
                }
            }
            self.gate.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for a gate that opened after `seen` and goes in; `None` when the pool ends.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut turns = 0;
        loop {
            let gate = self.gate.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if self.fresh(gate, seen) {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(gate / EPOCH);
                }
                continue;
            }
            turns += 1;
            if turns < SPINS {
                std::hint::spin_loop();
                continue;
            }
            turns = 0;
            let mut held = guard(&self.lock);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !self.fresh(self.gate.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::SeqCst) {
                held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn fresh(&self, gate: u64, seen: u64) -> bool {
        gate & OPEN != 0 && gate / EPOCH != seen
    }

    /// Does the tasks of a thread's own share, then what is left of the others'.
    fn claim(&self, own: usize, task: &(dyn Fn(usize) + Sync), job: Job) {
        for index in (own..job.threads).chain(0..own) {
            let end = job.share(index).end;
            loop {
                let task_index = self.shares[index].0.fetch_add(1, Ordering::Relaxed);
                if end <= task_index {
                    break;
                }
                task(task_index);
            }
        }
    }

    fn leave_the_rest(&self, tasks: usize) {
        self.shares.iter().for_each(|share| share.0.store(tasks, Ordering::Relaxed));
    }
}

impl Job {
    /// The tasks of a share; none beyond the last.
    fn share(&self, index: usize) -> Range<usize> {
        let cut = |index: usize| index.min(self.threads) * self.tasks / self.threads;
        cut(index)..cut(index + 1)
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins for a while, then gives the core away: there may be more threads than cores.
pub(crate) fn relax(turns: &mut u32) {
    *turns += 1;
    if *turns < 4 * SPINS {
        std::hint::spin_loop();
    } else {
        *turns = 3 * SPINS;
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 9] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} {tasks}");
            }
        }
    }

    #[test]
    fn many_short_runs() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for round in 0..20_000 {
            pool.run(3, &|index| {
                total.fetch_add(index, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), 3 * (round + 1));
        }
    }

    #[test]
    fn parked_workers_come_back() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let total = AtomicUsize::new(0);
            pool.run(100, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), 100);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(20, &|index| assert_ne!(index, bad))));
            assert!(caught.is_err());
        }
        let total = AtomicUsize::new(0);
        pool.run(10, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 10);
    }

    #[test]
    fn runs_inside_runs_do_not_hang() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        pool.run(4, &|_| {
            pool.run(4, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 16);
    }
}
