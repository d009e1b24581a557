//! Allocations and releases by the process during a run, recorded by CUPTI, the driver's profiling interface. They include those
//! of libraries and short-lived ones, but not the driver's internal ones.
//!
//! CUPTI comes with a toolkit and not with the driver. It allocates memory while it records, so free memory must be queried
//! before.

use std::ffi::{CStr, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_sys::cupti as sys;

use crate::library::function;
use crate::{LibraryNotFound, LibraryPaths, library};

/// The oldest supported interface in CUPTI's notation: that of CUDA 13.
const VERSION_MIN: u32 = 130_000;
/// 64-bit words per buffer for records: 64 KiB.
const BUFFER: usize = 8192;

/// Error of CUPTI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CuptiError {
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    #[error("libcupti.so must have the function `{0}`; install CUPTI of CUDA 13")]
    Lacks(&'static str),
    #[error("CUPTI must be of CUDA 13 or later, got interface {0}; install a newer one")]
    TooOld(u32),
    #[error("only one recording at a time is possible, one is active")]
    Busy,
    #[error("CUPTI dropped {0} records: its buffers were full")]
    Dropped(usize),
    #[error("CUPTI failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

/// An allocation or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// An allocation of this size.
    Allocated(MemoryKind, u64),
    /// A release of this size.
    Released(MemoryKind, u64),
}

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Device or managed memory.
    Device,
    /// Host memory.
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

/// A buffer with records: its address, and the bytes in use. Freed on drop.
struct Filled {
    start: usize,
    valid: usize,
}

/// Completed buffers.
static FILLED: Mutex<Vec<Filled>> = Mutex::new(Vec::new());
/// CUPTI has one list of records per process.
static RECORDING: AtomicBool = AtomicBool::new(false);

/// A recording of allocations.
pub struct Recording {
    /// Never freed: CUPTI's threads may outlive the recording.
    table: &'static sys::Cupti,
    disable: unsafe extern "C" fn(sys::CUpti_ActivityKind) -> sys::CUptiResult,
    flush: unsafe extern "C" fn(u32) -> sys::CUptiResult,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *mut sys::CUpti_Activity) -> sys::CUptiResult,
    dropped: unsafe extern "C" fn(sys::CUcontext, u32, *mut usize) -> sys::CUptiResult,
}

impl Recording {
    /// Loads CUPTI and starts recording.
    ///
    /// # Errors
    /// CUPTI is not found, is too old, or refuses; or there is another recording.
    pub fn start(places: &LibraryPaths) -> Result<Recording, CuptiError> {
        let library = library::table(places, &["libcupti.so.13"], "--cupti")?;
        // SAFETY: the library has CUPTI's name, and the table has the types of its headers.
        let table = unsafe { sys::Cupti::from_library(library) };
        let table = table.map_err(|error| CuptiError::Failed { what: "initialization", why: error.to_string() })?;
        let table: &'static sys::Cupti = Box::leak(Box::new(table));
        let (mut version, ask) = (0, function!(table, cuptiGetVersion, CuptiError));
        // SAFETY: the pointer is valid.
        check(table, "initialization", unsafe { ask(&mut version) })?;
        if version < VERSION_MIN {
            return Err(CuptiError::TooOld(version));
        }
        let (register, enable) = (
            function!(table, cuptiActivityRegisterCallbacks, CuptiError),
            function!(table, cuptiActivityEnable, CuptiError),
        );
        // The functions of `finish` must exist before recording starts.
        let disable = function!(table, cuptiActivityDisable, CuptiError);
        let flush = function!(table, cuptiActivityFlushAll, CuptiError);
        let next = function!(table, cuptiActivityGetNextRecord, CuptiError);
        let dropped = function!(table, cuptiActivityGetNumDroppedRecords, CuptiError);
        if RECORDING.swap(true, Ordering::AcqRel) {
            return Err(CuptiError::Busy);
        }
        let recording = Recording { table, disable, flush, next, dropped };
        // SAFETY: both functions are static and thread-safe.
        check(table, "initialization", unsafe { register(Some(requested), Some(completed)) })?;
        let kind = sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2;
        // SAFETY: the argument is a plain value.
        check(table, "recording", unsafe { enable(kind) })?;
        Ok(recording)
    }

    /// Stops recording. Returns the events in order.
    ///
    /// # Errors
    /// CUPTI fails, or dropped records.
    pub fn finish(self) -> Result<Vec<MemoryEvent>, CuptiError> {
        // Disabled first, so that no record follows the flush.
        self.disable()?;
        self.flush()?;
        let mut events = Vec::new();
        for filled in taken() {
            self.read(&filled, &mut events)?;
        }
        let mut count = 0;
        // SAFETY: the pointer is valid. A null context means all contexts.
        check(self.table, "counting dropped records", unsafe { (self.dropped)(std::ptr::null_mut(), 0, &mut count) })?;
        match count {
            0 => Ok(events),
            count => Err(CuptiError::Dropped(count)),
        }
    }

    /// Adds the events of a buffer.
    fn read(&self, filled: &Filled, events: &mut Vec<MemoryEvent>) -> Result<(), CuptiError> {
        let mut record: *mut sys::CUpti_Activity = std::ptr::null_mut();
        loop {
            // SAFETY: `requested` allocated the buffer, `valid` of its bytes are records, and the pointer is valid.
            let status = unsafe { (self.next)(filled.start as *mut u8, filled.valid, &mut record) };
            if status == sys::CUptiResult::CUPTI_ERROR_MAX_LIMIT_REACHED {
                return Ok(());
            }
            check(self.table, "reading a record", status)?;
            // SAFETY: CUPTI returns complete records inside of the buffer, which begin with their kind.
            if unsafe { (*record).kind } != sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2 {
                continue;
            }
            // SAFETY: records of this kind have this type since `VERSION_MIN`.
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
        // SAFETY: the argument is a plain value.
        let status = unsafe { (self.disable)(sys::CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2) };
        check(self.table, "ending a recording", status)
    }

    /// Requests all buffers.
    fn flush(&self) -> Result<(), CuptiError> {
        // SAFETY: the argument is a plain value, `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: partial buffers are returned too.
        check(self.table, "flushing its records", unsafe { (self.flush)(1) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Failures have no remedy here, and the remaining records are discarded.
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
        // SAFETY: `requested` allocated it with this length, and CUPTI returned it.
        drop(unsafe { Box::from_raw(numbers) });
    }
}

/// CUPTI's callback for an empty buffer. `completed` returns it.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    let numbers: Box<[u64]> = vec![0; BUFFER].into();
    // SAFETY: CUPTI passes valid pointers.
    unsafe {
        *buffer = Box::into_raw(numbers).cast();
        *size = BUFFER * size_of::<u64>();
        // No limit.
        *records_max = 0;
    }
}

/// CUPTI's callback for a filled buffer.
unsafe extern "C" fn completed(_: sys::CUcontext, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let filled = Filled { start: buffer as usize, valid };
    FILLED.lock().unwrap_or_else(|broken| broken.into_inner()).push(filled);
}

/// Converts a status to an error.
fn check(table: &sys::Cupti, what: &'static str, status: sys::CUptiResult) -> Result<(), CuptiError> {
    if status == sys::CUptiResult::CUPTI_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    if let Ok(result_text) = &table.cuptiGetResultString {
        // SAFETY: the pointer is valid; the text is static.
        let _ = unsafe { result_text(status, &mut text) };
    }
    let why = match text.is_null() {
        true => format!("status {}", status.0),
        // SAFETY: the text ends with a zero.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    Err(CuptiError::Failed { what, why })
}
