//! [`CountingAllocator`]: the system's allocator with a count of allocations, to prove that a run makes none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

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

/// Whether allocations are counted. Makes one to find out.
pub fn is_counting() -> bool {
    let before = allocations();
    drop(std::hint::black_box(Box::new(0u8)));
    before != allocations()
}

// SAFETY: every call is forwarded to `System` unchanged, so its guarantees hold; counting does not allocate.
#[allow(unsafe_code, reason = "the trait is unsafe")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract for `layout` is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `pointer` came from this allocator with `layout`, that is from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from this allocator with `layout`, that is from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
