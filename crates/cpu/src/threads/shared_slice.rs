//! [`SharedMut`]: one slice that tasks write to at once, each its own part.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// A mutable slice shared by tasks that promise to touch disjoint parts.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks get at the elements only through `part`, whose callers promise that parts in use at once are disjoint.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element, for tasks that write scattered parts. To write what another task uses is undefined.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// No other part in use at the same time has an element in common with this one.
    ///
    /// # Panics
    /// A part that leaves the slice.
    #[expect(clippy::mut_from_ref, reason = "that is the point; disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part lies in its slice");
        // SAFETY: the range lies in the slice that `new` borrowed for 'a (asserted above), and the caller promises that
        // no other reference to these elements is in use.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// `len` elements from `start` on, for several tasks to read.
    ///
    /// # Safety
    /// No part in use at the same time has an element in common with these.
    ///
    /// # Panics
    /// Elements outside the slice.
    pub(crate) unsafe fn seen(&self, start: usize, len: usize) -> &[T] {
        assert!(start <= self.len && len <= self.len - start, "they lie in the slice");
        // SAFETY: the range lies in the slice that `new` borrowed for 'a (asserted above), and the caller promises that
        // nobody writes to these elements.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}

/// Calls `work(number, chunk)` for consecutive chunks of `out` with `chunk` elements (the last may have fewer), shared
/// out over the pool. This is the safe way to write one slice from many tasks.
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

/// Memory of a task on its stack. A vector in it lies in one line of the caches.
#[repr(align(64))]
pub(crate) struct Room<const N: usize>([MaybeUninit<f32>; N]);

impl<const N: usize> Room<N> {
    pub(crate) fn new() -> Room<N> {
        Room([const { MaybeUninit::uninit() }; N])
    }

    /// The first cells as zeros; the others are not touched.
    pub(crate) fn zeros(&mut self, count: usize) -> &mut [f32] {
        let cells = &mut self.0[..count];
        cells.fill(MaybeUninit::new(0.0));
        // SAFETY: all of them have just been written, and the two types lie alike.
        unsafe { &mut *(std::ptr::from_mut(cells) as *mut [f32]) }
    }
}
