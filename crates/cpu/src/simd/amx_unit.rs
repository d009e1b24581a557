//! AMX, the matrix unit of x86-64: detection, permission and tile configuration.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::cell::Cell;
use std::sync::OnceLock;

/// 32-bit words in a row of a tile register.
pub(crate) const WORDS: usize = 16;

/// Whether the processor has AMX-BF16 and the operating system grants it to this process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        // AMX-BF16 and AMX-TILE.
        (features() >> 22 & 1, features() >> 24 & 1) == (1, 1) && is_saved_by_system() && is_permitted()
    })
}

/// Whether the processor has AMX-INT8 as well.
pub(crate) fn multiplies_int8() -> bool {
    is_available() && features() >> 25 & 1 == 1
}

fn features() -> u32 {
    static FEATURES: OnceLock<u32> = OnceLock::new();
    *FEATURES.get_or_init(|| if is_x86_feature_detected!("xsave") { __cpuid_count(7, 0).edx } else { 0 })
}

/// Whether the operating system saves tile registers on context switches (XCR0, bits 17 and 18).
fn is_saved_by_system() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the processor has the instruction, and extended control register 0 always exists.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the caller checked the CPU feature.
    unsafe { enabled() >> 17 & 3 == 3 }
}

/// Requests permission for tile data from Linux (`arch_prctl(2)`, ARCH_REQ_XCOMP_PERM for XTILEDATA). It holds for all
/// threads of the process.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let mut answer = ARCH_PRCTL;
    // SAFETY: the call takes two integers and no memory; the kernel clobbers `rcx` and `r11`, which are declared.
    unsafe {
        asm!("syscall", inlateout("rax") answer, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
pub(crate) struct Config {
    pub(crate) palette: u8,
    pub(crate) start_row: u8,
    pub(crate) zero: [u8; 14],
    pub(crate) bytes: [u16; 16],
    pub(crate) rows: [u8; 16],
}

thread_local! {
    /// The shapes that `configure` last set in this thread, one byte each; 0 if unknown.
    static SHAPES: Cell<u32> = const { Cell::new(0) };
}

/// Marks the shapes of this thread's tile registers as unknown. The tile state is volatile across calls (System V
/// psABI, register usage), so a caller may have changed it.
pub(crate) fn invalidate_shapes() {
    SHAPES.set(0);
}

/// Configures the tile registers unless they already have these shapes: `rows` and `more` rows of `words` words, or 16
/// rows and `rest` rows if `rest` is not 0.
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
    // SAFETY: `is_available` found AMX; the instruction reads these 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
}
