//! [`multiply`]: the room of the innermost loop. A tile of pixels by two vectors of channels stays in registers.
//!
//! ```text
//!                  +---------------------+
//!                  | k x 32 weights      |   packed: 32 (or 16) side by side for each k
//!                  +---------------------+
//!   rows: pixels   +---------------------+
//!   at any places  | 14 x 32 sums        |   28 of the 32 registers of AVX-512
//!                  +---------------------+
//! ```
//!
//! For each `k` the weights of 32 output channels are loaded once, and one element of each pixel is broadcast and
//! multiplied into both vectors. Pixels may lie anywhere: each has an offset of its own, so that a tile may run over
//! several rows of a picture, with any stride. What `k` runs over is a list of [`KLoop`]s.
//!
//! Operands may be halves: then two neighbours of a pixel are one word of four bytes, as are the two weights that they meet
//! in a lane, and nothing else here is different ([`Operands`]). Sums are `f32` in any case; results are rounded once. Operands
//! may be bytes, four of which are a word; their sums are exact in `i32`, and [`Dequant`] says what becomes of them.
//!
//! No sum may leave its register in the innermost loop. Whoever changes it looks at the functions `avx512`, `avx2` and
//! `neon` in `cargo rustc --release -p prestow-cpu --lib -- --emit asm`: none moves a vector to or from the stack.
//!
//! AVX-512 has registers for 14 rows of two vectors, AVX2 and NEON for 6 of one, others for fewer: they take a tile in parts.
//! All read the same bytes. In what order a row's terms are added depends on the height of its tile, as few rows have several
//! partial sums: a kernel whose results are the same for any number of threads cuts its tiles by its shape alone.

use std::mem::MaybeUninit;

pub(crate) use crate::gemm::operands::Word;
use crate::gemm::prefetch::Prefetch;
use crate::simd::dot_method::DotMethod;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};

/// The most rows of a tile.
pub(crate) const ROWS: usize = 14;

/// The most rows of a tile whose rows lie at one distance, where they are for the matrix unit.
pub(crate) const STRIDED_ROWS_MAX: usize = 32;

/// How many words each step of the matrix unit takes, where all steps over so many take as many: what fills a register, or
/// what a block of channels has.
pub(crate) fn words_per_step(depth: usize) -> Option<usize> {
    match depth {
        4 | 8 => Some(depth),
        _ => (depth != 0 && depth.is_multiple_of(LANES)).then_some(LANES),
    }
}

/// The most rows of such a tile over so many words: the unit takes two registers of them if each step has as many words.
pub(crate) fn strided_rows_max(depth: usize) -> usize {
    if words_per_step(depth).is_some() { STRIDED_ROWS_MAX } else { ROWS }
}

/// The most rows of a tile of `f32` that the family takes as one part.
pub(crate) fn rows_max(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => ROWS,
        Isa::Avx2 | Isa::Neon => 6,
        Isa::Portable => 4,
    }
}

/// A loop around a product: how often, and how far each turn goes on in `x` and in the weights, in words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loop {
    pub(crate) iterations: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
}

impl Loop {
    /// A loop of one turn.
    pub(crate) const ONCE: Loop = Loop { iterations: 1, x: 0, weights: 0 };
}

/// The same rows repeat, elsewhere: how often in all, and how far each turn goes on, in words of `x` and the weights and in
/// elements of the output and the residual. No turn writes what a later one reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    pub(crate) iterations: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) out: usize,
}

impl Repeat {
    /// No more than once.
    pub(crate) const ONCE: Repeat = Repeat { iterations: 1, x: 0, weights: 0, out: 0 };
}

/// Terms of a sum: `depth` neighbouring words in `x`, with as many rows of weights, in three loops (the outermost first).
#[derive(Clone, Copy, Debug)]
pub(crate) struct KLoop {
    /// Where the first term is, in words from the tile's `x` and `weights`.
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) loops: [Loop; 3],
    pub(crate) depth: usize,
}

/// Where a row reads, in words from the tile's `x`, and writes, in elements from its `out`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) x: usize,
    pub(crate) out: usize,
}

/// What sums begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Init {
    Zero,
    /// A number for each channel of the tile.
    Bias(*const f32),
    /// What lies in the output, which is `f32`.
    Accumulate,
    /// Sums of bytes: what becomes of them, by [`crate::gemm::epilogue`].
    Dequant(Dequant),
}

/// Room for the sums of a tile accumulators its output: those of vector `v` and row `r` at `v * STRIDED_ROWS_MAX + r`.
#[repr(align(64))]
pub(crate) struct Accumulators(MaybeUninit<[[f32; LANES]; 2 * STRIDED_ROWS_MAX]>);

impl Accumulators {
    pub(crate) fn new() -> Accumulators {
        Accumulators(MaybeUninit::uninit())
    }

    pub(crate) fn start(&mut self) -> *mut [f32; LANES] {
        self.0.as_mut_ptr().cast()
    }

    /// The sums of a vector's first rows.
    ///
    /// # Safety
    /// They were written.
    pub(crate) unsafe fn rows(&mut self, vector: usize, rows: usize) -> &mut [[f32; LANES]] {
        assert!(vector < 2 && rows <= STRIDED_ROWS_MAX, "they are accumulators");
        // SAFETY: they lie in the room (asserted) and were written (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start().add(vector * STRIDED_ROWS_MAX), rows) }
    }
}

/// What becomes of sums of whole numbers: `(sum + start) * scale + bias`, each with a number for each channel of the tile.
/// Without a scale they stay as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dequant {
    pub(crate) start: *const i32,
    pub(crate) scale: Option<*const f32>,
    pub(crate) bias: Option<*const f32>,
}

impl Prefetch {
    /// What so many iterations of a tile over these k_loops ask for; this is then what is left.
    pub(crate) fn share(&mut self, k_loops: &[KLoop], repeat: usize) -> Prefetch {
        let iterations = |k_loop: &KLoop| k_loop.loops.iter().map(|each| each.iterations).product();
        let steps: usize = k_loops.iter().map(|k_loop| Prefetch::steps(iterations(k_loop), k_loop.depth)).sum();
        self.portion(steps * repeat)
    }
}

/// A tile of sums: for each row `r`, vector `v`, and term `k` of the k_loops,
/// `out[r.out + v * vector_stride + lane] = sum of x[r.x + k.x] * weights[k.weights + v * 16 + lane]`, where the product of
/// two words of halves is `low * low + high * high`, and so on for four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    /// What the words of `x` and the weights hold.
    pub(crate) operands: StorageType,
    pub(crate) x: *const Word,
    /// A row for each `k`.
    pub(crate) weights: *const Word,
    /// Words from row to row, `16 * vectors` where they are packed.
    pub(crate) weight_stride: usize,
    /// What the results are rounded to: `f32`, or halves like the operands. The residual has the same type. Of bytes the
    /// results are the bits of their sums; [`crate::gemm::epilogue`] makes others of them.
    pub(crate) result: StorageType,
    pub(crate) out: *mut u8,
    /// 1 to [`ROWS`], or to [`STRIDED_ROWS_MAX`].
    pub(crate) rows: &'a [Row],
    /// Vectors of a row, 1 or 2.
    pub(crate) vectors: usize,
    /// Elements of the output from a row's first vector to its second.
    pub(crate) vector_stride: usize,
    pub(crate) k_loops: &'a [KLoop],
    pub(crate) init: Init,
    /// Added to the sums; lies like the output, and may be the output.
    pub(crate) residual: Option<*const u8>,
    /// Limits of the results, numbers, the lower first; what is no number stays so.
    pub(crate) limits: Option<[f32; 2]>,
    pub(crate) prefetch: Prefetch,
    /// All of this is computed so often, each time from other places; only a vector that sums begin with stays where it is.
    /// What few terms take to begin and to end is much accumulators them, and most of it is the same for tiles in a line.
    pub(crate) repeat: Repeat,
}

impl Tile<'_> {
    /// The iterations one by one.
    pub(crate) fn iterations(&self) -> impl Iterator<Item = Self> {
        let (tile, Repeat { iterations, x, weights, out }) = (*self, self.repeat);
        let mut prefetch = self.prefetch;
        (0..iterations).map(move |turn| {
            let shift = turn * out * tile.result.size();
            Tile {
                x: tile.x.wrapping_add(turn * x),
                weights: tile.weights.wrapping_add(turn * weights),
                out: tile.out.wrapping_add(shift),
                residual: tile.residual.map(|residual| residual.wrapping_add(shift)),
                prefetch: prefetch.share(tile.k_loops, 1),
                repeat: Repeat::ONCE,
                ..tile
            }
        })
    }
}

/// Whether tiles whose rows lie at one distance are faster than higher ones whose rows do not.
pub(crate) fn prefers_strided_rows(isa: Isa, operands: StorageType) -> bool {
    DotMethod::of(isa, operands) == DotMethod::Matrix
}

/// How so many rows are cut into as few tiles as there can be, of nearly the same height: two of 9 and 8 rows are faster than
/// two of 14 and 3. Heights, the greater first, and how many tiles have them; the first may be none.
pub(crate) fn heights(rows: usize, most: usize) -> [(usize, usize); 2] {
    let tiles = rows.div_ceil(most).max(1);
    let (low, higher) = (rows / tiles, rows % tiles);
    [(low + 1, higher), (low, tiles - higher)]
}
