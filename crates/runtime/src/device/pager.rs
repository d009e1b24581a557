//! [`Pager`]: reads constants from a file into a planned block of memory while steps run, with one thread of its own.
//!
//! A plan's `Residency` states at which steps each constant has its bytes of the block. The thread executes the reads in
//! order: a read starts when the steps before its first step are done, and a step starts when the reads that it uses are
//! done. Neither allocates. After the last step, the reads of the next run start at once.
//!
//! The file is read and never mapped, so that a file that was truncated is an error and not a signal, and every constant
//! is compared with its checksum each time that it is read.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::slice;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use memmap2::{Advice, MmapMut, MmapRaw};
use plan::image::{PAGE, checksum};
use plan::{ConstantIx, Plan};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use types::Bytes;

use crate::RunError;

/// Plans whose constants are read in every run.
pub(super) struct Pager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The constants of one step, which is done when this is dropped.
pub(super) struct Lent<'a> {
    shared: &'a Shared,
    schedule: &'a Schedule,
    step: u32,
}

/// The use of memory and file by a session within a limit of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagerUsage {
    /// The addresses of the block.
    pub block: Range<usize>,
    /// Bytes of constants that the last complete run read.
    pub read_in_run: u64,
}

struct Shared {
    schedules: Vec<Schedule>,
    block: MmapRaw,
    store: Store,
    state: Mutex<State>,
    /// A read has ended. The session waits for it.
    arrived: Condvar,
    /// A step has ended, or the plan or the position has changed. The thread waits for it.
    moved: Condvar,
}

/// The residency of a plan, indexed.
struct Schedule {
    plan: Arc<Plan>,
    /// Kept constants first, then the reads of a run.
    reads: Vec<Read>,
    /// The number of kept constants.
    kept: usize,
    /// By step: the number of reads that must be done before it.
    needed: Vec<usize>,
    /// By step: its constants with their places in the block.
    places: Vec<Vec<(ConstantIx, Range<usize>)>>,
}

/// A constant on its way from the file to the block.
struct Read {
    constant: ConstantIx,
    /// The position in the constants' section.
    at: u64,
    size: usize,
    /// Whole pages.
    place: Range<usize>,
    first_step: u32,
    last_step: u32,
    checksum: u64,
}

#[derive(Default)]
struct State {
    /// The plan in use.
    plan: usize,
    /// The steps before this one are done.
    step: u32,
    /// The reads that are done.
    read: usize,
    /// The thread is reading.
    is_busy: bool,
    /// The last read failed.
    failure: Option<RunError>,
    /// Bytes read in this run.
    bytes: u64,
    /// Bytes read in the last complete run.
    bytes_before: u64,
    is_closed: bool,
}

impl Pager {
    /// Starts to read the kept constants of the first plan, and the first ones of a run. The section is in a file, from
    /// `offset` on.
    pub(super) fn new(plans: &[Arc<Plan>], file: &Arc<File>, offset: u64, size: u64) -> Result<Pager, RunError> {
        let io = |error: io::Error| RunError::WeightsFile(error.to_string());
        let length = file.metadata().map_err(io)?.len();
        if !offset.is_multiple_of(PAGE) || offset.checked_add(size).is_none_or(|end| length < end) {
            let text =
                format!("the file must have {size} bytes from a page boundary on, got {length} from {offset} on");
            return Err(RunError::WeightsFile(text));
        }
        for plan in plans {
            // The borrows of the block rely on these rules.
            plan::check(plan).map_err(|errors| RunError::Residency(errors[0].to_string()))?;
        }
        let schedules: Option<Vec<Schedule>> = plans.iter().map(Schedule::new).collect();
        let mixed = || RunError::Residency("some plans have all constants in memory".into());
        let schedules = schedules.ok_or_else(mixed)?;
        let sizes = plans.iter().filter_map(|plan| plan.residency.as_ref()).map(|residency| residency.size);
        let bytes = sizes.max().unwrap_or_default();
        let no_memory = |error: String| RunError::Arena { bytes: bytes.0, error };
        let length = bytes.index().ok_or_else(|| no_memory("it is larger than the address space".into()))?;
        let block = MmapMut::map_anon(length.max(1)).map_err(|error| no_memory(error.to_string()))?;
        // Fewer page faults where the system has huge pages; elsewhere nothing is lost.
        let _ = block.advise(Advice::HugePage);
        let shared = Arc::new(Shared {
            schedules,
            block: MmapRaw::from(block),
            store: Store::new(file.clone(), offset),
            state: Mutex::default(),
            arrived: Condvar::new(),
            moved: Condvar::new(),
        });
        let own = shared.clone();
        // The start of a thread allocates: it must not fall into the first run.
        let start = Arc::new(Barrier::new(2));
        let started = start.clone();
        let spawned = std::thread::Builder::new().name("constants".into()).spawn(move || {
            started.wait();
            own.read_ahead();
        });
        let thread = spawned.map_err(|error| RunError::Residency(format!("no thread for reads: {error}")))?;
        start.wait();
        Ok(Pager { shared, thread: Some(thread) })
    }

    /// Waits for the constants of a step. Steps run in order; after another step, or a failure, the reads start again.
    ///
    /// # Errors
    /// A read failed.
    pub(super) fn lend(&mut self, plan: usize, step: usize) -> Result<Lent<'_>, RunError> {
        let shared = &*self.shared;
        let schedule = &shared.schedules[plan];
        let step_ix = step as u32;
        let mut state = shared.lock();
        if (state.plan, state.step) != (plan, step_ix) || state.failure.is_some() {
            while state.is_busy {
                state = shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let kept = if state.plan == plan { state.read.min(schedule.kept) } else { 0 };
            *state = State { plan, step: step_ix, read: kept, bytes_before: state.bytes_before, ..State::default() };
            shared.moved.notify_one();
        }
        while state.read < schedule.needed[step] {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            state = shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(Lent { shared, schedule, step: step_ix })
    }

    /// Reads a constant, or a part of it, past the block.
    ///
    /// # Errors
    /// The read failed.
    pub(super) fn read(
        &self,
        plan: usize,
        constant: ConstantIx,
        from: Bytes,
        bytes: &mut [u8],
    ) -> Result<(), RunError> {
        let plan = &self.shared.schedules[plan].plan;
        let ix = constant.0 as usize;
        let (own, residency) = (&plan.constants[ix], plan.residency.as_ref().expect("its plans have one"));
        let size = own.size.0 as usize;
        let mut all = vec![0; size.next_multiple_of(PAGE as usize)];
        let failed = |error: io::Error| failure(plan, constant, &error);
        self.shared.store.read(own.offset.0, &mut all, size).map_err(failed)?;
        check_bytes(&all[..size], residency.checksums[ix]).map_err(failed)?;
        bytes.copy_from_slice(&all[from.0 as usize..from.0 as usize + bytes.len()]);
        Ok(())
    }

    pub(super) fn usage(&self) -> PagerUsage {
        let start = self.shared.block.as_ptr() as usize;
        PagerUsage { block: start..start + self.shared.block.len(), read_in_run: self.shared.lock().bytes_before }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.moved.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Lent<'_> {
    /// The bytes of a constant of this step.
    #[allow(unsafe_code, reason = "the thread writes to other bytes of the block meanwhile")]
    pub(super) fn constant(&self, constant: ConstantIx) -> &[u8] {
        let places = &self.schedule.places[self.step as usize];
        let (_, place) = places.iter().find(|(own, _)| *own == constant).expect("a step's constants are in memory");
        assert!(place.end <= self.shared.block.len(), "`plan::check` found the constant inside the block");
        // SAFETY: the range is inside the block, which lives as long as `self`. Nobody writes to it meanwhile: the thread
        // writes only to places of constants that it is reading. This constant's read is done, because `lend` waited for
        // it, and `plan::check` found that no other constant has these bytes at this step. A read whose life begins at a
        // later step starts only after this step is done, that is after `self` is dropped; those that begin earlier are
        // alive at this step or ended before it, and the latter were done before their last step ran, or are skipped.
        unsafe { slice::from_raw_parts(self.shared.block.as_ptr().add(place.start), place.len()) }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.step = self.step + 1;
        if state.step as usize == self.schedule.needed.len() {
            let bytes_before = state.bytes;
            *state = State { plan: state.plan, read: self.schedule.kept, bytes_before, ..State::default() };
        }
        drop(state);
        self.shared.moved.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the state as it was between two assignments of whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: executes reads until the session is closed.
    fn read_ahead(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let schedule = &self.schedules[state.plan];
            let next = schedule.reads.get(state.read).filter(|read| read.first_step <= state.step);
            let Some(read) = next.filter(|_| state.failure.is_none()) else {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // Of a run that began in the middle.
            if state.step <= read.last_step {
                state.is_busy = true;
                drop(state);
                let outcome = self.fill(read);
                state = self.lock();
                state.is_busy = false;
                if let Err(error) = outcome {
                    state.failure = Some(failure(&schedule.plan, read.constant, &error));
                    self.arrived.notify_one();
                    continue;
                }
                if schedule.kept <= state.read {
                    state.bytes += read.place.len() as u64;
                }
            }
            state.read += 1;
            self.arrived.notify_one();
        }
    }

    /// Reads a constant into its place, and compares its checksum.
    #[allow(unsafe_code, reason = "steps read other bytes of the block meanwhile")]
    fn fill(&self, read: &Read) -> io::Result<()> {
        assert!(read.place.end <= self.block.len(), "`plan::check` found the constant inside the block");
        // SAFETY: the range is inside the block, which lives as long as `self`. Only this thread writes to the block, one
        // read at a time. No step reads these bytes meanwhile: steps before the read's first step are done, `plan::check`
        // found that no other constant has them from that step to its last one, and a step that uses this constant waits
        // for the end of this read. `lend` changes the position only while no read is in progress.
        let bytes =
            unsafe { slice::from_raw_parts_mut(self.block.as_mut_ptr().add(read.place.start), read.place.len()) };
        self.store.read(read.at, bytes, read.size)?;
        check_bytes(&bytes[..read.size], read.checksum)
    }
}

impl Schedule {
    /// `None` for a plan whose constants are all in memory. The plan is valid.
    fn new(plan: &Arc<Plan>) -> Option<Schedule> {
        let residency = plan.residency.as_ref()?;
        let residents = || residency.kept.iter().chain(&residency.reads);
        let mut places: Vec<Vec<(ConstantIx, Range<usize>)>> = vec![Vec::new(); plan.steps.len()];
        let mut needed = vec![residency.kept.len(); plan.steps.len()];
        for (at, step) in plan.steps.iter().enumerate() {
            let mut done = if at == 0 { residency.kept.len() } else { needed[at - 1] };
            for constant in plan.constants_of(step) {
                let is_place = |own: &plan::ResidentConstant| own.constant == constant && own.is_alive(at as u32);
                let (ix, own) = residents().enumerate().find(|(_, own)| is_place(own))?;
                let start = own.offset.0 as usize;
                places[at].push((constant, start..start + plan.constants[constant.0 as usize].size.0 as usize));
                done = done.max(ix + 1);
            }
            needed[at] = done;
        }
        let read = |own: &plan::ResidentConstant| {
            let ix = own.constant.0 as usize;
            let start = own.offset.0 as usize;
            Read {
                constant: own.constant,
                at: plan.constants[ix].offset.0,
                size: plan.constants[ix].size.0 as usize,
                place: start..start + plan.resident_size(own).0 as usize,
                first_step: own.first_step,
                last_step: own.last_step,
                checksum: residency.checksums[ix],
            }
        };
        let reads = residents().map(read).collect();
        Some(Schedule { plan: plan.clone(), reads, kept: residency.kept.len(), needed, places })
    }
}

fn check_bytes(bytes: &[u8], want: u64) -> io::Result<()> {
    match checksum(bytes) == want {
        true => Ok(()),
        false => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong: the file is damaged or was changed"))
        }
    }
}

fn failure(plan: &Plan, constant: ConstantIx, error: &io::Error) -> RunError {
    let name = plan.constants[constant.0 as usize].tag.scope.to_string();
    let error = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the file ends before it: the file was truncated".to_string(),
        _ => error.to_string(),
    };
    RunError::ReadConstant { name, error }
}

/// The constants' section in a file, which is read past the page cache: a run reads it in a cycle that is longer than the
/// memory that it is meant for, so that pages in the cache would be evicted before they are used again.
struct Store {
    file: Arc<File>,
    /// The file again, for reads without the page cache. `None` if the file system has none.
    direct: Option<File>,
    offset: u64,
    access: AtomicU8,
}

/// Linux 6.14: takes pages from the cache if they are there, and leaves none behind.
const UNCACHED: u8 = 0;
/// `O_DIRECT`: offset, length and address are multiples of a block.
const DIRECT: u8 = 1;
/// Through the cache; the pages are released after each read.
const CACHED: u8 = 2;

/// `RWF_DONTCACHE`, which rustix has no name for.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

impl Store {
    fn new(file: Arc<File>, offset: u64) -> Store {
        // The descriptor's own file, even if its name has another one now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok();
        Store { file, direct, offset, access: AtomicU8::new(UNCACHED) }
    }

    /// Reads `want` bytes at `at` of the section. `bytes` has the length of whole pages; those behind `want` are undefined.
    fn read(&self, at: u64, bytes: &mut [u8], want: usize) -> io::Result<()> {
        let mut done = 0;
        while done < want {
            match self.read_some(self.offset + at + done as u64, &mut bytes[done..], want - done) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_some(&self, at: u64, bytes: &mut [u8], want: usize) -> io::Result<usize> {
        let unsupported = |error: &io::Error| {
            let code = error.raw_os_error();
            [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS].iter().any(|own| code == Some(own.raw_os_error()))
        };
        if self.access.load(Ordering::Relaxed) == UNCACHED {
            let count = rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(&mut bytes[..want])], at, DONTCACHE);
            match count.map_err(io::Error::from) {
                Err(error) if unsupported(&error) => self.access.store(DIRECT, Ordering::Relaxed),
                other => return other,
            }
        }
        // The rest of a read that ended within a page goes through the cache.
        let is_aligned = at.is_multiple_of(PAGE) && (bytes.len() as u64).is_multiple_of(PAGE);
        if let (Some(direct), DIRECT, true) = (&self.direct, self.access.load(Ordering::Relaxed), is_aligned) {
            match direct.read_at(bytes, at) {
                Err(error) if unsupported(&error) => self.access.store(CACHED, Ordering::Relaxed),
                other => return other,
            }
        }
        let count = self.file.read_at(&mut bytes[..want], at)?;
        if let Some(length) = std::num::NonZeroU64::new(count as u64) {
            // Only advice: the bytes are read.
            let _ = rustix::fs::fadvise(&self.file, at, Some(length), rustix::fs::Advice::DontNeed);
        }
        Ok(count)
    }
}
