//! [`Pool`]: threads that share the tasks of one kernel at a time.
//!
//! A run is opened and closed through one word, the gate: `epoch << 32 | open << 31 | workers inside`. A late worker
//! finds the gate closed and never delays the caller; the caller leaves when the gate is empty.
//!
//! Each thread owns a share of neighboring tasks and steals from the other shares when its own is done. Consecutive
//! kernels of one shape therefore find in a core's caches the data that this core wrote.

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
/// Iterations that a worker spins before it parks: some tens of microseconds.
const SPINS: u32 = 1500;

/// The most threads of a pool. More would exhaust the mappings and threads of a process before they helped.
pub const THREADS_MAX: usize = 1024;

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
    /// Number of shares.
    threads: usize,
}

/// The next task of a share, on a cache line of its own.
#[repr(align(64))]
struct Share(AtomicUsize);

struct Shared {
    gate: AtomicU64,
    /// One for each thread, the caller's first.
    shares: Box<[Share]>,
    /// Written only by the holder of `busy` while the gate is closed and empty.
    job: UnsafeCell<Job>,
    /// Whether a caller is in `run`. A second or nested caller then runs its tasks alone.
    busy: AtomicBool,
    stop: AtomicBool,
    parked: AtomicUsize,
    /// Running workers: their startup allocations are done.
    started: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Payload>>,
}

// SAFETY: `job` is the only field that is not `Sync`. The holder of `busy` writes it while the gate is closed and
// empty; workers read it only after entering through the open gate, which orders both (AcqRel).
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` refers to a `Sync` closure and is dereferenced only while its owner waits in `run`.
unsafe impl Send for Shared {}

impl Pool {
    /// Starts `threads - 1` workers (none for 0 and 1), waits until they run, and selects the best ISA of the machine.
    ///
    /// The pool is smaller if the system refuses to start a thread, and has at most [`THREADS_MAX`].
    pub fn new(threads: usize) -> Pool {
        Pool::with_isa(threads, Isa::detect())
    }

    /// A pool restricted to `isa` or the best ISA below it that the machine has. For tests and comparisons.
    pub fn with_isa(threads: usize, isa: Isa) -> Pool {
        let threads = threads.min(THREADS_MAX);
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
        let mut spins = 0;
        while shared.started.load(Ordering::Acquire) < workers.len() {
            relax(&mut spins);
        }
        Pool { shared, workers, isa: isa.clamp_to_host() }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The ISA of this pool's kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each once, on any thread, and returns when all are done.
    ///
    /// Allocates nothing. If a task panics, the remaining ones may be skipped, and the panic resumes in the caller.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        #[cfg(target_arch = "x86_64")]
        crate::simd::amx_unit::invalidate_shapes();
        let shared = &*self.shared;
        if tasks <= 1 || self.workers.is_empty() || shared.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(task);
            return;
        }
        // SAFETY: this erases only the lifetime. Workers dereference the pointer between entering and leaving the gate,
        // and this function closes the gate and waits until it is empty before it returns or unwinds.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let job = Job { task: Some(erased), tasks, threads: self.threads() };
        // SAFETY: we hold `busy`, and the gate has been closed and empty since the last holder left: no thread reads
        // `job`.
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
            shared.skip_remaining(tasks);
        }
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
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
            // A worker never unwinds: panics of its tasks are caught and passed to the caller.
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
            // SAFETY: we are inside the gate, so the caller that wrote the job waits for us and does not write.
            let job = unsafe { *self.job.get() };
            if let Some(task) = job.task {
                // SAFETY: the closure outlives the time that the gate is open or occupied; see `run`.
                let task = unsafe { &*task };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.claim(own, task, job))) {
                    self.skip_remaining(job.tasks);
                    guard(&self.panic).get_or_insert(payload);
                }
            }
            self.gate.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for a gate that opened after `seen` and enters it; `None` when the pool is dropped.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut spins = 0;
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
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            spins = 0;
            let mut lock = guard(&self.lock);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !self.fresh(self.gate.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::SeqCst) {
                lock = self.wake.wait(lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn fresh(&self, gate: u64, seen: u64) -> bool {
        gate & OPEN != 0 && gate / EPOCH != seen
    }

    /// Runs the tasks of the thread's own share, then the remaining ones of the other shares.
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

    fn skip_remaining(&self, tasks: usize) {
        self.shares.iter().for_each(|share| share.0.store(tasks, Ordering::Relaxed));
    }
}

impl Job {
    /// Tasks of a share; empty for an index beyond the last share.
    fn share(&self, index: usize) -> Range<usize> {
        let cut = |index: usize| index.min(self.threads) * self.tasks / self.threads;
        cut(index)..cut(index + 1)
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins for a while, then yields the core: there may be more threads than cores.
pub(crate) fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < 4 * SPINS {
        std::hint::spin_loop();
    } else {
        *spins = 3 * SPINS;
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::shared_slice::SharedMut;

    /// Plain memory, so that a sanitizer or Miri sees a missing order between runs as a race.
    #[test]
    fn runs_read_the_cells_of_the_run_before() {
        let pool = Pool::new(3);
        let mut cells = [1u64; 7];
        for round in 0..100u64 {
            let before = cells;
            let shared = SharedMut::new(&mut cells);
            pool.run(7, &|index| {
                // SAFETY: each cell belongs to one task.
                let own = unsafe { shared.part(index, 1) };
                own[0] = before[(index + 1) % 7] + round;
            });
            assert!(cells.iter().all(|cell| *cell == 1 + round * (round + 1) / 2), "round {round}: {cells:?}");
        }
    }

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
    fn many_short_runs_lose_no_task() {
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
    fn parked_workers_wake_up() {
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
    fn panic_reaches_the_caller_and_the_pool_stays_usable() {
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
    fn nested_runs_do_not_hang() {
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
