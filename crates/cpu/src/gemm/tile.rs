//! [`Tile`]: the operands and results of one call of the microkernel.
//!
//! ```text
//!                  +---------------------+
//!                  | k x 32 weights      |   packed: 32 (or 16) neighbors for each k
//!                  +---------------------+
//!   rows: pixels   +---------------------+
//!   at any address | 14 x 32 sums        |   28 of the 32 registers of AVX-512
//!                  +---------------------+
//! ```
//!
//! For each `k` the weights of 32 output channels are loaded once, and one element of each pixel is broadcast and
//! multiplied into both vectors. Each pixel has an offset of its own, so that a tile may cover several rows of an image
//! with any stride. The terms `k` are a list of [`KLoop`]s.
//!
//! In half precision two neighbors of a pixel are one word of four bytes, as are the two weights they are multiplied
//! by in a lane; int8 has four per word. Everything else is the same ([`crate::gemm::operands`]). Sums are `f32`,
//! rounded once; int8 sums are exact in `i32`, and [`Dequant`] converts them.
//!
//! AVX-512 has registers for 14 rows of two vectors, AVX2 and NEON for 6 of one. Instruction sets with fewer registers
//! compute a tile in parts. All read the same bytes.
//!
//! The order in which a row's terms are added depends on the tile's height, because few rows have several partial sums.
//! A kernel whose results must be the same for any number of threads divides its tiles by shape alone.

use std::mem::MaybeUninit;

use types::WeightFormat;
use types::pointwise::QuantizedSum;

pub(crate) use crate::gemm::operands::Word;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::saturation::Marks;
use crate::simd::dot_method::DotMethod;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};

/// The most rows of a tile.
pub(crate) const ROWS: usize = 14;

/// The most rows of a tile for the matrix unit, whose rows must have one stride.
pub(crate) const STRIDED_ROWS_MAX: usize = 32;

/// Words per step of the matrix unit if `depth` is a whole number of equal steps: a full register, or the words of a
/// block of channels.
pub(crate) fn words_per_step(depth: usize) -> Option<usize> {
    match depth {
        4 | 8 => Some(depth),
        _ => (depth != 0 && depth.is_multiple_of(LANES)).then_some(LANES),
    }
}

/// The most rows of a tile for the matrix unit over `depth` words: equal steps leave two registers for rows.
pub(crate) fn strided_rows_max(depth: usize) -> usize {
    if words_per_step(depth).is_some() { STRIDED_ROWS_MAX } else { ROWS }
}

/// The most rows of `f32` that an instruction set computes in one part.
pub(crate) fn rows_max(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => ROWS,
        Isa::Avx2 | Isa::Neon => 6,
        Isa::Portable => 4,
    }
}

/// A loop over terms: its trip count, and the step of each iteration in `x` and in the weights, in words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loop {
    pub(crate) iterations: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
}

impl Loop {
    /// A loop of one iteration.
    pub(crate) const ONCE: Loop = Loop { iterations: 1, x: 0, weights: 0 };
}

/// The repeat count of a tile, and the step of each iteration: in words of `x` and the weights, and in elements of the
/// output and the residual. No iteration writes an operand or a result of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    pub(crate) iterations: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) out: usize,
}

impl Repeat {
    /// A single iteration.
    pub(crate) const ONCE: Repeat = Repeat { iterations: 1, x: 0, weights: 0, out: 0 };
}

/// Terms of a sum: `depth` neighboring words in `x` and as many rows of weights, in three loops, the outermost first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KLoop {
    /// The offset of the first term, in words from the tile's `x` and `weights`.
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) loops: [Loop; 3],
    pub(crate) depth: usize,
}

/// The offset from which a row reads, in words from the tile's `x`, and to which it writes, in elements from its `out`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) x: usize,
    pub(crate) out: usize,
}

/// The initial value of sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Init {
    Zero,
    /// A bias for each channel of the tile.
    Bias(*const f32),
    /// The output, which must be `f32`.
    Accumulate,
    /// 0, for int8 sums that [`crate::gemm::finish`] converts.
    Dequant(Dequant),
}

/// The sums of a tile in a buffer of their own: vector `v` of row `r` is at `v * STRIDED_ROWS_MAX + r`.
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
        assert!(vector < 2 && rows <= STRIDED_ROWS_MAX, "the sums are in the buffer");
        // SAFETY: they are in the buffer (asserted) and were written (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start().add(vector * STRIDED_ROWS_MAX), rows) }
    }
}

/// The conversion of int8 sums: `(sum + start) * scale + bias`, each a vector along the channels of the tile. Without a
/// scale, `sum + start` as `i32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dequant {
    pub(crate) start: *const i32,
    pub(crate) scale: Option<*const f32>,
    pub(crate) bias: Option<*const f32>,
    /// How the residual, of bytes, is added to results that are bytes.
    pub(crate) quantized_sum: Option<QuantizedSum>,
}

/// Weights that are stored in fewer bits than the `f32` they are multiplied as: elements take the place of words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compact {
    Bf16,
    /// Times a scale for each channel of the tile.
    Int8(*const f32),
}

impl Compact {
    /// The form of weights with these scales, from those of a channel on.
    pub(crate) fn of(format: Option<WeightFormat>, scales: &[f32], channel: usize) -> Option<Compact> {
        match format? {
            WeightFormat::Bf16 => Some(Compact::Bf16),
            WeightFormat::Int8 => Some(Compact::Int8(scales[channel..].as_ptr())),
        }
    }

    /// Bytes of a weight.
    fn size(self) -> usize {
        match self {
            Compact::Bf16 => 2,
            Compact::Int8(_) => 1,
        }
    }
}

impl Prefetch {
    /// These words, spread over `repeat` iterations of a tile with these terms.
    pub(crate) fn of_tiles(words: &[f32], k_loops: &[KLoop], repeat: usize) -> Prefetch {
        Prefetch::new(words.as_ptr().cast(), words.len(), Prefetch::tile_steps(k_loops) * repeat)
    }

    /// Takes the portion of `repeat` iterations of a tile with these terms; `self` keeps the rest.
    pub(crate) fn share(&mut self, k_loops: &[KLoop], repeat: usize) -> Prefetch {
        self.portion(Prefetch::tile_steps(k_loops) * repeat)
    }

    fn tile_steps(k_loops: &[KLoop]) -> usize {
        let iterations = |k_loop: &KLoop| k_loop.loops.iter().map(|each| each.iterations).product();
        k_loops.iter().map(|k_loop| Prefetch::steps(iterations(k_loop), k_loop.depth)).sum()
    }
}

/// For each row `r`, vector `v` and term `k` of `k_loops`:
/// `out[r.out + v * vector_stride + lane] = sum of x[r.x + k.x] * weights[k.weights + v * weight_vector + lane]`.
/// The product of two half-precision words is `low * low + high * high`, and so on for the four bytes of int8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    /// The storage type of `x` and the weights.
    pub(crate) operands: StorageType,
    pub(crate) x: *const Word,
    /// A row for each `k`.
    pub(crate) weights: *const Word,
    /// The form of the weights of `f32` operands, if it is not `f32`. Results are `f32`.
    pub(crate) compact: Option<Compact>,
    /// Words from one row of weights to the next.
    pub(crate) weight_stride: usize,
    /// Words from the first vector's weights to those of the second: 16 if they are neighbors. Packed `f32` has all
    /// rows of a vector together, since AVX2 reads one vector at a time: of neighbors it would read every other line,
    /// which fill only half of the sets of a first-level cache.
    pub(crate) weight_vector: usize,
    /// The storage type of results and residual: `f32`, or half precision like the operands. Results of int8 operands
    /// are `i32`; [`crate::gemm::finish`] converts them.
    pub(crate) result: StorageType,
    pub(crate) out: *mut u8,
    /// 1 to [`ROWS`] rows; for the matrix unit to [`STRIDED_ROWS_MAX`].
    pub(crate) rows: &'a [Row],
    /// Vectors of a row, 1 or 2.
    pub(crate) vectors: usize,
    /// Elements of the output from a row's first vector to its second.
    pub(crate) vector_stride: usize,
    pub(crate) k_loops: &'a [KLoop],
    pub(crate) init: Init,
    /// Added to the sums; has the layout of the output, and may be the output.
    pub(crate) residual: Option<*const u8>,
    /// Bounds of the results, the lower first, neither NaN. A NaN result stays NaN.
    pub(crate) limits: Option<[f32; 2]>,
    /// The marks of int8 weights.
    pub(crate) marks: Option<Marks<'a>>,
    /// Whether the results are read at once: then their cache lines are fetched while the sums are computed.
    pub(crate) read_back: bool,
    pub(crate) prefetch: Prefetch,
    /// The repeat count: the whole tile is computed `repeat.iterations` times, advancing every pointer by its step
    /// except the bias. For small K the prologue of a tile dominates, so neighboring tiles share one call.
    pub(crate) repeat: Repeat,
}

impl Tile<'_> {
    /// Each iteration as a tile of its own.
    pub(crate) fn iterations(&self) -> impl Iterator<Item = Self> {
        let (tile, Repeat { iterations, x, weights, out }) = (*self, self.repeat);
        let mut prefetch = self.prefetch;
        (0..iterations).map(move |turn| {
            let shift = turn * out * tile.result.size();
            Tile {
                x: tile.x.wrapping_add(turn * x),
                weights: tile
                    .weights
                    .wrapping_byte_add(turn * weights * tile.compact.map_or(size_of::<Word>(), Compact::size)),
                out: tile.out.wrapping_add(shift),
                residual: tile.residual.map(|residual| residual.wrapping_add(shift)),
                prefetch: prefetch.share(tile.k_loops, 1),
                repeat: Repeat::ONCE,
                ..tile
            }
        })
    }
}

/// Whether strided rows are faster than higher tiles of rows at any address: the matrix unit takes strided rows only.
pub(crate) fn prefers_strided_rows(isa: Isa, operands: StorageType) -> bool {
    DotMethod::of(isa, operands) == DotMethod::Matrix
}

/// Divides rows into the fewest tiles of at most `most` rows with nearly equal heights: 9 and 8 rows are faster than 14
/// and 3. Returns height and number of the higher tiles, which may be none, then of the lower ones.
pub(crate) fn heights(rows: usize, most: usize) -> [(usize, usize); 2] {
    let tiles = rows.div_ceil(most).max(1);
    let (low, higher) = (rows / tiles, rows % tiles);
    [(low + 1, higher), (low, tiles - higher)]
}
