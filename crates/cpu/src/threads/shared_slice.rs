//! [`SharedMut`]: one slice whose disjoint parts are written by several tasks; [`StackBuffer`].

use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A mutable slice shared by tasks that must access disjoint parts.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: elements are accessed only through the methods below, whose callers guarantee that parts in use at the same
// time are disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Pointer to the first element, for tasks that write scattered parts. Writing an element that another task uses is
    /// undefined behavior.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// `len` elements from `start`.
    ///
    /// # Safety
    /// No other part in use at the same time may contain one of these elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[expect(clippy::mut_from_ref, reason = "callers guarantee that parts are disjoint")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "the part must be within the slice");
        // SAFETY: the range is within the slice that `new` borrowed for 'a (asserted above), and the caller guarantees
        // that no other reference to these elements is in use.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// `len` elements from `start`, which several tasks may read.
    ///
    /// # Safety
    /// No mutable part in use at the same time may contain one of these elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub(crate) unsafe fn shared_part(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start, "the part must be within the slice");
        // SAFETY: the range is within the slice that `new` borrowed for 'a (asserted above), and the caller guarantees
        // that no task writes these elements.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}

/// Calls `work(number, chunk)` for consecutive chunks of `out` of `chunk` elements (the last may be shorter),
/// distributed over the pool. This is the safe way to write one slice from many tasks.
pub(crate) fn for_each_chunk<T: Send>(
    pool: &crate::threads::Pool,
    out: &mut [T],
    chunk: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let chunk = chunk.max(1);
    let out = SharedMut::new(out);
    pool.run(out.len().div_ceil(chunk), &|number| {
        let start = number * chunk;
        // SAFETY: each number is claimed once, and chunks of different numbers are disjoint.
        work(number, unsafe { out.part(start, chunk.min(out.len() - start)) });
    });
}

/// Uninitialized scratch memory on a task's stack, aligned to a cache line.
#[repr(align(64))]
pub(crate) struct StackBuffer<const N: usize>([MaybeUninit<f32>; N]);

impl<const N: usize> StackBuffer<N> {
    pub(crate) fn new() -> StackBuffer<N> {
        StackBuffer([const { MaybeUninit::uninit() }; N])
    }

    /// The first `count` cells, set to zero; the others stay uninitialized.
    pub(crate) fn zeros(&mut self, count: usize) -> &mut [f32] {
        let cells = &mut self.0[..count];
        cells.fill(MaybeUninit::new(0.0));
        // SAFETY: all of them have just been written, and both types have the same layout.
        unsafe { &mut *(std::ptr::from_mut(cells) as *mut [f32]) }
    }
}
