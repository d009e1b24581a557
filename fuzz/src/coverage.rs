//! The counters that `-C passes=sancov-module` with `inline-8bit-counters` puts on every edge of every instrumented crate.
//!
//! This crate is instrumented as well, so that its loops are slow: counters are read and cleared in bulk.

use std::sync::Mutex;

/// The ranges of counters, by address and length: one for each linked program, registered before `main`.
static RANGES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Bytes that are compared with zeros at once.
const BLOCK: usize = 256;

/// Called by the constructor of each instrumented module. Modules of one program share one range.
#[allow(unsafe_code, reason = "the name is that of LLVM's interface")]
// SAFETY: no other crate of the program defines this symbol; it is not linked into other programs.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let range = (start as usize, stop as usize - start as usize);
    if let Ok(mut ranges) = RANGES.lock()
        && range.1 != 0
        && !ranges.contains(&range)
    {
        ranges.push(range);
    }
}

/// The edges that inputs have reached, each with the classes of its counts.
#[derive(Default)]
pub(crate) struct Seen {
    classes: Vec<u8>,
    counts: Vec<u8>,
}

impl Seen {
    /// The number of edges that were reached.
    pub(crate) fn edges(&self) -> usize {
        self.classes.iter().filter(|&&class| class != 0).count()
    }

    /// Adds the counts since [`reset`]. Returns whether an edge or a class of counts is new.
    #[allow(unsafe_code, reason = "LLVM has no safe interface")]
    pub(crate) fn add(&mut self) -> bool {
        let ranges = RANGES.lock().expect("no holder panics");
        let total: usize = ranges.iter().map(|(_, length)| length).sum();
        self.counts.resize(total, 0);
        self.classes.resize(total, 0);
        let mut at = 0;
        for &(start, length) in ranges.iter() {
            let own = &mut self.counts[at..at + length];
            // SAFETY: LLVM passed the bounds of a section of counters, which exists until the process ends and is no part of
            // `counts`. Instrumented code of other threads may add to a byte meanwhile; either count is as good.
            unsafe { std::ptr::copy_nonoverlapping(start as *const u8, own.as_mut_ptr(), length) };
            at += length;
        }
        let mut is_new = false;
        for (counts, classes) in self.counts.chunks(BLOCK).zip(self.classes.chunks_mut(BLOCK)) {
            if counts == &[0; BLOCK][..counts.len()] {
                continue;
            }
            for (&count, seen) in counts.iter().zip(classes) {
                let class = class(count);
                is_new |= *seen & class != class;
                *seen |= class;
            }
        }
        is_new
    }
}

/// One bit for 1, 2, 3, 4.., 8.., 16.., 32.., 128.. passes over an edge: loops that run longer are new, but not each pass.
fn class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128.. => 128,
    }
}

/// Sets all counters to zero.
#[allow(unsafe_code, reason = "LLVM has no safe interface")]
pub(crate) fn reset() {
    for &(start, length) in RANGES.lock().expect("no holder panics").iter() {
        // SAFETY: as in `Seen::add`; the counters are writable.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, length) };
    }
}
