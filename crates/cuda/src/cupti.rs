//! What is asked of a driver while something runs, by its profiling interface, CUPTI: every allocation and release that
//! anybody in the process asks for, libraries included, also those that are over before free memory can be asked for. What
//! a driver takes for itself is none of them.
//!
//! CUPTI comes with a toolkit and not with the driver. It takes memory of its own while it records, so that whoever asks for
//! free memory does so before.

use std::ffi::{CStr, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_sys::cupti as sys;

use crate::library::function;
use crate::{LibraryNotFound, LibraryPaths, library};

/// The oldest interface whose records are known, as CUPTI counts: that of CUDA 13.
const VERSION_MIN: u32 = 130_000;
/// Numbers of 64 bits in a buffer for records: 64 KiB.
const BUFFER: usize = 8192;

/// What CUPTI could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CuptiError {
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    #[error("this libcupti.so has no function `{0}`; install that of CUDA 13")]
    Lacks(&'static str),
    #[error("CUPTI's interface {0} is too old; install that of CUDA 13")]
    TooOld(u32),
    #[error("something is recorded already")]
    Busy,
    #[error("CUPTI dropped {0} of its records, for which it had no room")]
    Dropped(usize),
    #[error("CUPTI failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

/// Something that a driver was asked to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// So many bytes were allocated.
    Allocated(MemoryKind, u64),
    /// So many bytes were given back.
    Released(MemoryKind, u64),
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The GPU's, or memory that may move there.
    Device,
    /// The host's, which is pinned where a driver gives it.
    Host,
}

impl MemoryKind {
    fn of(kind: sys::CUpti_ActivityMemoryKind) -> MemoryKind {
        use sys::CUpti_ActivityMemoryKind as Kind;
        match kind {
            Kind::CUPTI_ACTIVITY_MEMORY_KIND_PINNED | Kind::CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE => MemoryKind::Host,
            _ => MemoryKind::Device,
        }
    }
}

/// A buffer that CUPTI filled: where it is, and how many of its bytes are records. It is freed when this goes.
struct Filled {
    start: usize,
    valid: usize,
}

/// Buffers that are full, or were asked back.
static FILLED: Mutex<Vec<Filled>> = Mutex::new(Vec::new());
/// CUPTI has one list of records for a process.
static RECORDING: AtomicBool = AtomicBool::new(false);

/// All that is allocated from its start to its end.
pub struct Recording {
    /// For good: its threads may go on behind us.
    table: &'static sys::Cupti,
    disable: unsafe extern "C" fn(sys::CUpti_ActivityKind) -> sys::CUptiResult,
    flush: unsafe extern "C" fn(u32) -> sys::CUptiResult,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *mut sys::CUpti_Activity) -> sys::CUptiResult,
    dropped: unsafe extern "C" fn(sys::CUcontext, u32, *mut usize) -> sys::CUptiResult,
}

impl Recording {
    /// Finds CUPTI and begins.
    ///
    /// # Errors
    /// It is nowhere or too old, something is recorded already, or the platform does not let it.
    pub fn start(places: &LibraryPaths) -> Result<Recording, CuptiError> {
        let library = library::table(places, &["libcupti.so.13"], "--cupti")?;
        // SAFETY: the library is CUPTI by its name, whose functions have the types that its headers say.
        let table = unsafe { sys::Cupti::from_library(library) };
        let table = table.map_err(|error| CuptiError::Failed { what: "its start", why: error.to_string() })?;
        let table: &'static sys::Cupti = Box::leak(Box::new(table));
        let (mut version, ask) = (0, function!(table, cuptiGetVersion, CuptiError));
        // SAFETY: the number can be written.
        check(table, "its start", unsafe { ask(&mut version) })?;
        if version < VERSION_MIN {
            return Err(CuptiError::TooOld(version));
        }
        let (register, enable) = (
            function!(table, cuptiActivityRegisterCallbacks, CuptiError),
            function!(table, cuptiActivityEnable, CuptiError),
        );
        // What the end needs has to be there before the beginning.
        let disable = function!(table, cuptiActivityDisable, CuptiError);
        let flush = function!(table, cuptiActivityFlushAll, CuptiError);
        let next = function!(table, cuptiActivityGetNextRecord, CuptiError);
        let dropped = function!(table, cuptiActivityGetNumDroppedRecords, CuptiError);
        if RECORDING.swap(true, Ordering::AcqRel) {
            return Err(CuptiError::Busy);
        }
        let recording = Recording { table, disable, flush, next, dropped };
        // SAFETY: both functions are there for good, and take CUPTI's threads.
        check(table, "its start", unsafe { register(Some(requested), Some(completed)) })?;
        let kind = sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2;
        // SAFETY: it takes a number.
        check(table, "recording", unsafe { enable(kind) })?;
        Ok(recording)
    }

    /// Ends it; what happened, in order.
    ///
    /// # Errors
    /// CUPTI does not tell, or not all.
    pub fn finish(self) -> Result<Vec<MemoryEvent>, CuptiError> {
        // First, so that nothing is recorded behind what is flushed.
        self.disable()?;
        self.flush()?;
        let mut events = Vec::new();
        for filled in taken() {
            self.read(&filled, &mut events)?;
        }
        let mut count = 0;
        // SAFETY: the number can be written. Without a context it is about the buffers of all of them.
        check(self.table, "counting what it dropped", unsafe { (self.dropped)(std::ptr::null_mut(), 0, &mut count) })?;
        match count {
            0 => Ok(events),
            count => Err(CuptiError::Dropped(count)),
        }
    }

    /// Adds what a buffer tells.
    fn read(&self, filled: &Filled, events: &mut Vec<MemoryEvent>) -> Result<(), CuptiError> {
        let mut record: *mut sys::CUpti_Activity = std::ptr::null_mut();
        loop {
            // SAFETY: the buffer is one of ours with so many bytes of records, and the position can be written.
            let status = unsafe { (self.next)(filled.start as *mut u8, filled.valid, &mut record) };
            if status == sys::CUptiResult::CUPTI_ERROR_MAX_LIMIT_REACHED {
                return Ok(());
            }
            check(self.table, "reading what it recorded", status)?;
            // SAFETY: CUPTI gives records that lie in the buffer whole, each with its kind in front.
            if unsafe { (*record).kind } != sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2 {
                continue;
            }
            // SAFETY: records of this kind are so long, since the version that was asked for.
            let memory = unsafe { record.cast::<sys::CUpti_ActivityMemory4>().read_unaligned() };
            let side = MemoryKind::of(memory.memoryKind);
            use sys::CUpti_ActivityMemoryOperationType as Did;
            match memory.memoryOperationType {
                Did::CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION => {
                    events.push(MemoryEvent::Allocated(side, memory.bytes));
                }
                Did::CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE => {
                    events.push(MemoryEvent::Released(side, memory.bytes))
                }
                _ => {}
            }
        }
    }

    fn disable(&self) -> Result<(), CuptiError> {
        // SAFETY: it takes a number.
        let status = unsafe { (self.disable)(sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2) };
        check(self.table, "ending the record", status)
    }

    /// Has what was recorded given back.
    fn flush(&self) -> Result<(), CuptiError> {
        // SAFETY: it takes a number, here `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: what is not full is given back too.
        check(self.table, "giving what it recorded", unsafe { (self.flush)(1) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // What could be said of a failure helps nobody any more, and what is still to come is nobody's.
        let _ = self.disable();
        let _ = self.flush();
        drop(taken());
        RECORDING.store(false, Ordering::Release);
    }
}

fn taken() -> Vec<Filled> {
    std::mem::take(&mut *FILLED.lock().unwrap_or_else(|broken| broken.into_inner()))
}

impl Drop for Filled {
    fn drop(&mut self) {
        let numbers = std::ptr::slice_from_raw_parts_mut(self.start as *mut u64, BUFFER);
        // SAFETY: `requested` made it of so many numbers, and CUPTI gave it back.
        drop(unsafe { Box::from_raw(numbers) });
    }
}

/// Gives CUPTI an empty buffer, which is ours again when it is `completed`.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    let numbers: Box<[u64]> = vec![0; BUFFER].into();
    // SAFETY: CUPTI gives places that can be written.
    unsafe {
        *buffer = Box::into_raw(numbers).cast();
        *size = BUFFER * size_of::<u64>();
        // As many as fit.
        *records_max = 0;
    }
}

/// Takes a buffer back.
unsafe extern "C" fn completed(_: sys::CUcontext, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let filled = Filled { start: buffer as usize, valid };
    FILLED.lock().unwrap_or_else(|broken| broken.into_inner()).push(filled);
}

/// Makes a reason of a status.
fn check(table: &sys::Cupti, what: &'static str, status: sys::CUptiResult) -> Result<(), CuptiError> {
    if status == sys::CUptiResult::CUPTI_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    if let Ok(result_text) = &table.cuptiGetResultString {
        // SAFETY: the place can be written; the text is there for good.
        let _ = unsafe { result_text(status, &mut text) };
    }
    let why = match text.is_null() {
        true => format!("status {}", status.0),
        // SAFETY: it ends with a zero.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    Err(CuptiError::Failed { what, why })
}
