//! [`Guarded`]: bytes between pages that nobody may touch.

#![expect(unsafe_code, reason = "pages without rights come from the system")]

use std::ptr::NonNull;

/// Bytes with a page in front and one behind that can be neither read nor written: a kernel that leaves its slice there
/// ends the test with a segmentation fault. They touch the page behind or the one in front.
pub(crate) struct Guarded {
    pages: NonNull<u8>,
    mapped: usize,
    start: usize,
    size: usize,
}

/// Which page bytes touch.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Touch {
    Front,
    Behind,
}

impl Guarded {
    /// `size` bytes, all of them `byte`.
    pub(crate) fn filled(size: usize, byte: u8, touch: Touch) -> Guarded {
        // SAFETY: the system is asked for its page size.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let inner = size.next_multiple_of(page);
        let mapped = inner + 2 * page;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping, at a place of the system's choice, without rights.
        let pages = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(pages, libc::MAP_FAILED, "there is room for {mapped} bytes");
        let pages = NonNull::new(pages.cast::<u8>()).expect("a mapping is nowhere at 0");
        // No page at all is not for every emulator.
        if inner != 0 {
            // SAFETY: all pages but the first and the last, which are our mapping's.
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
        // SAFETY: these bytes lie in the pages with rights, hold zeros from the start, and are lent for as long as we are.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(self.start), self.size) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and lent to one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().add(self.start), self.size) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping that `filled` made, which nobody borrows any more.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

#[test]
fn bytes_touch_the_guards() {
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
