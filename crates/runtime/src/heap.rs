//! [`CountingAllocator`]: the system's allocator with a count of allocations, to prove that a run makes none, and with an
//! error instead of an abort if memory is exhausted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static REALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static EXITS: AtomicBool = AtomicBool::new(false);
static FAILS_FROM: AtomicU64 = AtomicU64::new(u64::MAX);
static FAILS_TO: AtomicU64 = AtomicU64::new(u64::MAX);

/// The system's allocator; every allocation and reallocation of the process is counted.
///
/// ```no_run
/// #[global_allocator]
/// static ALLOCATOR: prestow_runtime::heap::CountingAllocator = prestow_runtime::heap::CountingAllocator;
/// ```
pub struct CountingAllocator;

/// Allocations of the process so far, by any thread; always 0 if [`CountingAllocator`] is not installed.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Blocks that are allocated now, by any thread; always 0 if [`CountingAllocator`] is not installed.
pub fn live_blocks() -> u64 {
    let gone = [&FREED, &REFUSED, &REALLOCATIONS].map(|count| count.load(Ordering::Relaxed));
    ALLOCATIONS.load(Ordering::Relaxed).saturating_sub(gone.iter().sum())
}

/// Whether allocations are counted. Makes one to find out.
pub fn is_counting() -> bool {
    let before = allocations();
    drop(std::hint::black_box(Box::new(0u8)));
    before != allocations()
}

/// From now on, an allocation that the system refuses ends the process with an error and exit code 2 instead of an abort.
/// For programs with a [`CountingAllocator`].
pub fn exit_if_exhausted() {
    EXITS.store(true, Ordering::Relaxed);
}

/// From now on, the allocations whose numbers are in `numbers` fail, as if the system refused them: the next one has number
/// [`allocations()`]. To test how a program ends.
pub fn fail(numbers: Range<u64>) {
    FAILS_TO.store(numbers.end, Ordering::Relaxed);
    FAILS_FROM.store(numbers.start, Ordering::Relaxed);
}

/// Counts an allocation. Returns whether [`fail`] names it.
fn fails() -> bool {
    let number = ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    FAILS_FROM.load(Ordering::Relaxed) <= number && number < FAILS_TO.load(Ordering::Relaxed)
}

/// Returns `pointer`, or ends the process if it is null.
fn given(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    if pointer.is_null() && EXITS.load(Ordering::Relaxed) {
        // Handlers that run at exit may allocate, which must not end the process a second time.
        EXITS.store(false, Ordering::Relaxed);
        FAILS_FROM.store(u64::MAX, Ordering::Relaxed);
        // Neither the unbuffered stream nor formatting an integer allocates.
        let _ = writeln!(std::io::stderr(), "error: memory is exhausted: {size} bytes are required");
        std::process::exit(2);
    }
    pointer
}

// SAFETY: every call is forwarded to `System` unchanged, or returns null, which means that memory is exhausted; counting
// does not allocate.
#[allow(unsafe_code, reason = "the trait is unsafe")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract for `layout` is that of `System`.
        given(if fails() { null_mut() } else { unsafe { System.alloc(layout) } }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        given(if fails() { null_mut() } else { unsafe { System.alloc_zeroed(layout) } }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `pointer` came from this allocator with `layout`, that is from `System`.
        let moved = given(if fails() { null_mut() } else { unsafe { System.realloc(pointer, layout, size) } }, size);
        if !moved.is_null() {
            REALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        FREED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `pointer` came from this allocator with `layout`, that is from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
