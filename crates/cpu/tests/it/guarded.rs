//! [`Guarded`]: bytes between guard pages.

#![expect(unsafe_code, reason = "pages without rights come from the system")]

use std::ptr::NonNull;

/// Bytes between two pages that can be neither read nor written, adjacent to one of them: a kernel that leaves its
/// slice there ends the test with a segmentation fault.
pub(crate) struct Guarded {
    pages: NonNull<u8>,
    mapped: usize,
    start: usize,
    size: usize,
}

/// The guard page that the bytes are adjacent to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Touch {
    Front,
    Behind,
}

impl Guarded {
    /// `size` bytes, all of them `byte`.
    pub(crate) fn filled(size: usize, byte: u8, touch: Touch) -> Guarded {
        // SAFETY: only queries the page size.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let inner = size.next_multiple_of(page);
        let mapped = inner + 2 * page;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping without access rights, at an address of the system's choice.
        let pages = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(pages, libc::MAP_FAILED, "there is room for {mapped} bytes");
        let pages = NonNull::new(pages.cast::<u8>()).expect("a mapping is nowhere at 0");
        // Some emulators reject an empty range.
        if inner != 0 {
            // SAFETY: all pages of our mapping but the first and the last.
            let opened = unsafe { libc::mprotect(pages.as_ptr().add(page).cast(), inner, rights) };
            assert_eq!(opened, 0, "own pages get their rights");
        }
        let start = match touch {
            Touch::Front => page,
            Touch::Behind => page + inner - size,
        };
        let mut guarded = Guarded { pages, mapped, start, size };
        guarded.bytes_mut().fill(byte);
        guarded
    }

    /// A copy of `bytes`.
    pub(crate) fn of(bytes: &[u8], touch: Touch) -> Guarded {
        let mut guarded = Guarded::filled(bytes.len(), 0, touch);
        guarded.bytes_mut().copy_from_slice(bytes);
        guarded
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are in the accessible pages, are initialized to zero, and are borrowed for as long as
        // `self`.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(self.start), self.size) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, with `self` borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().add(self.start), self.size) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping that `filled` made; no borrow of it is left.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

#[test]
fn guarded_bytes_are_adjacent_to_a_guard_page() {
    for size in [0, 1, 64, 4096, 5000] {
        for touch in [Touch::Front, Touch::Behind] {
            let bytes: Vec<u8> = (0..size).map(|ix| ix as u8).collect();
            let guarded = Guarded::of(&bytes, touch);
            assert_eq!(guarded.bytes(), bytes);
            let edge = guarded.bytes().as_ptr_range();
            let page_edge = if touch == Touch::Front { edge.start } else { edge.end };
            assert!(page_edge.addr().is_multiple_of(4096));
        }
    }
}
