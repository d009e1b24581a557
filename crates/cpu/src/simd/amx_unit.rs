//! The registers of the x86-64 matrix unit, AMX: detection, permission and configuration.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::cell::Cell;
use std::sync::OnceLock;

/// Words of a row of a tile register.
pub(crate) const WORDS: usize = 16;

/// Whether the processor has the unit, and the system lends it to this process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        // AMX-BF16 and AMX-TILE.
        (features() >> 22 & 1, features() >> 24 & 1) == (1, 1) && is_saved() && is_lent()
    })
}

/// Whether it multiplies bytes too, AMX-INT8.
pub(crate) fn multiplies_int8() -> bool {
    is_available() && features() >> 25 & 1 == 1
}

fn features() -> u32 {
    static FEATURES: OnceLock<u32> = OnceLock::new();
    *FEATURES.get_or_init(|| if is_x86_feature_detected!("xsave") { __cpuid_count(7, 0).edx } else { 0 })
}

/// Whether the system keeps the registers where threads take turns (XCR0, bits 17 and 18).
fn is_saved() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the processor has the instruction, and register 0 is there wherever it is.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the caller looked for the feature.
    unsafe { enabled() >> 17 & 3 == 3 }
}

/// Asks Linux for the registers' eight kilobytes (`arch_prctl(2)`, ARCH_REQ_XCOMP_PERM for XTILEDATA). Threads that begin
/// later have them too, and those that there are.
#[cfg(target_os = "linux")]
fn is_lent() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let mut answer = ARCH_PRCTL;
    // SAFETY: the call takes two numbers and no memory; the kernel writes to `rcx` and `r11`.
    unsafe {
        asm!("syscall", inlateout("rax") answer, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn is_lent() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
pub(crate) struct Config {
    pub(crate) palette: u8,
    pub(crate) start_row: u8,
    pub(crate) zero: [u8; 14],
    pub(crate) bytes: [u16; 16],
    pub(crate) rows: [u8; 16],
}

thread_local! {
    /// What `configure` last gave this thread's registers, a byte each; 0 where that is not known.
    static SHAPES: Cell<u32> = const { Cell::new(0) };
}

/// Assumes nothing any more about the shapes of this thread's registers: the caller may have used them since, for all
/// that the unit holds is volatile across calls (System V psABI, register usage).
pub(crate) fn forget() {
    SHAPES.set(0);
}

/// Gives the registers their shapes, if they have others: for so many rows, and as many more, of so many words at a time; or
/// of sixteen and a rest of so many, where there is one.
pub(crate) fn configure(rows: usize, more: usize, words: usize, rest: usize) {
    let wanted = (rows | more << 8 | words << 16 | rest << 24) as u32;
    if SHAPES.replace(wanted) == wanted {
        return;
    }
    let mut config = Config { palette: 1, start_row: 0, zero: [0; 14], bytes: [0; 16], rows: [0; 16] };
    let shapes = match rest {
        0 => {
            let [first, second, weights] = [(rows, WORDS), (more, WORDS), (words, WORDS)];
            [first, first, second, second, (rows, words), (more, words), weights, weights]
        }
        _ => {
            let sums = [(rows, WORDS), (rows, WORDS), (rows, WORDS), (rows, rest)];
            let weights = [(WORDS, WORDS), (WORDS, WORDS), (rest, WORDS), (rest, WORDS)];
            [sums[0], sums[1], sums[2], sums[3], weights[0], weights[1], weights[2], weights[3]]
        }
    };
    for (ix, (rows, words)) in shapes.into_iter().enumerate().filter(|(_, (rows, words))| rows * words != 0) {
        (config.rows[ix], config.bytes[ix]) = (rows as u8, 4 * words as u16);
    }
    // SAFETY: `is_available` found the unit; the instruction reads these 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
}
