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
//! several rows of a picture, with any stride. What `k` runs over is a list of [`Nest`]s.
//!
//! Factors may be halves: then two neighbours of a pixel are one word of four bytes, as are the two weights that they meet
//! in a lane, and nothing else here is different ([`Factors`]). Sums are `f32` in any case; results are rounded once. Factors
//! may be bytes, four of which are a word; their sums are exact in `i32`, and [`Whole`] says what becomes of them.
//!
//! No sum may leave its register in the innermost loop. Whoever changes it looks at the functions `avx512`, `avx2` and
//! `neon` in `cargo rustc --release -p prestow-cpu --lib -- --emit asm`: none moves a vector to or from the stack.
//!
//! AVX-512 has registers for 14 rows of two vectors, AVX2 and NEON for 6 of one, others for fewer: they take a tile in parts.
//! All read the same bytes. In what order a row's terms are added depends on the height of its tile, as few rows have several
//! partial sums: a kernel whose results are the same for any number of threads cuts its tiles by its shape alone.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod ahead;
mod factors;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::mem::MaybeUninit;

use types::{bf16, f16};

pub(crate) use self::ahead::Ahead;
use self::ahead::LINE;
use self::factors::{Bytes, Factors};
use crate::simd::dot_method::DotMethod;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Portable, Vector};
use crate::simd::{Isa, StorageType};

/// So many rows of weights are asked for before they are needed: as many as a high tile takes while memory answers. Hardware
/// foresees the same, but not beyond a page, and a page is 32 rows.
const AHEAD: usize = 24;

/// What is multiplied: an `f32`, two halves, or four bytes. It may lie anywhere.
pub(crate) type Word = [u8; 4];

/// The most rows of a tile.
pub(crate) const ROWS: usize = 14;

/// The most rows of a tile whose rows lie at one distance, where they are for the matrix unit.
pub(crate) const ROWS_IN_LINE: usize = 32;

/// How many words each step of the matrix unit takes, where all steps over so many take as many: what fills a register, or
/// what a block of channels has.
pub(crate) fn words_of_a_step(depth: usize) -> Option<usize> {
    match depth {
        4 | 8 => Some(depth),
        _ => (depth != 0 && depth.is_multiple_of(LANES)).then_some(LANES),
    }
}

/// The most rows of such a tile over so many words: the unit takes two registers of them if each step has as many words.
pub(crate) fn rows_in_line_max(depth: usize) -> usize {
    if words_of_a_step(depth).is_some() { ROWS_IN_LINE } else { ROWS }
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
    pub(crate) turns: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
}

impl Loop {
    /// A loop of one turn.
    pub(crate) const ONCE: Loop = Loop { turns: 1, x: 0, weights: 0 };
}

/// The same rows again, elsewhere: how often in all, and how far each turn goes on, in words of `x` and the weights and in
/// elements of the output and the residual. No turn writes what a later one reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) turns: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) out: usize,
}

impl Again {
    /// No more than once.
    pub(crate) const ONCE: Again = Again { turns: 1, x: 0, weights: 0, out: 0 };
}

/// Terms of a sum: `depth` neighbouring words in `x`, with as many rows of weights, in three loops (the outermost first).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nest {
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
pub(crate) enum Start {
    Zero,
    /// A number for each channel of the tile.
    Bias(*const f32),
    /// What lies in the output, which is `f32`.
    Output,
    /// Sums of bytes: what becomes of them, by [`crate::gemm::epilogue`].
    Whole(Whole),
}

/// Room for the sums of a tile beside its output: those of vector `v` and row `r` at `v * ROWS_IN_LINE + r`.
#[repr(align(64))]
pub(crate) struct Beside(MaybeUninit<[[f32; LANES]; 2 * ROWS_IN_LINE]>);

impl Beside {
    pub(crate) fn new() -> Beside {
        Beside(MaybeUninit::uninit())
    }

    pub(crate) fn start(&mut self) -> *mut [f32; LANES] {
        self.0.as_mut_ptr().cast()
    }

    /// The sums of a vector's first rows.
    ///
    /// # Safety
    /// They were written.
    pub(crate) unsafe fn rows(&mut self, vector: usize, rows: usize) -> &mut [[f32; LANES]] {
        assert!(vector < 2 && rows <= ROWS_IN_LINE, "they are beside");
        // SAFETY: they lie in the room (asserted) and were written (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start().add(vector * ROWS_IN_LINE), rows) }
    }
}

/// What becomes of sums of whole numbers: `(sum + start) * scale + bias`, each with a number for each channel of the tile.
/// Without a scale they stay as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) start: *const i32,
    pub(crate) scale: Option<*const f32>,
    pub(crate) bias: Option<*const f32>,
}

/// A tile of sums: for each row `r`, vector `v`, and term `k` of the nests,
/// `out[r.out + v * vector_stride + lane] = sum of x[r.x + k.x] * weights[k.weights + v * 16 + lane]`, where the product of
/// two words of halves is `low * low + high * high`, and so on for four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    /// What the words of `x` and the weights hold.
    pub(crate) factors: StorageType,
    pub(crate) x: *const Word,
    /// A row for each `k`.
    pub(crate) weights: *const Word,
    /// Words from row to row, `16 * vectors` where they are packed.
    pub(crate) weight_stride: usize,
    /// What the results are rounded to: `f32`, or halves like the factors. The residual has the same type. Of bytes the
    /// results are the bits of their sums; [`crate::gemm::epilogue`] makes others of them.
    pub(crate) result: StorageType,
    pub(crate) out: *mut u8,
    /// 1 to [`ROWS`], or to [`ROWS_IN_LINE`].
    pub(crate) rows: &'a [Row],
    /// Vectors of a row, 1 or 2.
    pub(crate) vectors: usize,
    /// Elements of the output from a row's first vector to its second.
    pub(crate) vector_stride: usize,
    pub(crate) nests: &'a [Nest],
    pub(crate) start: Start,
    /// Added to the sums; lies like the output, and may be the output.
    pub(crate) residual: Option<*const u8>,
    /// Limits of the results, numbers, the lower first; what is no number stays so.
    pub(crate) limits: Option<[f32; 2]>,
    pub(crate) ahead: Ahead,
    /// All of this is computed so often, each time from other places; only a vector that sums begin with stays where it is.
    /// What few terms take to begin and to end is much beside them, and most of it is the same for tiles in a line.
    pub(crate) again: Again,
}

impl Tile<'_> {
    /// The turns one by one.
    pub(crate) fn turns(&self) -> impl Iterator<Item = Self> {
        let (tile, Again { turns, x, weights, out }) = (*self, self.again);
        let mut ahead = self.ahead;
        (0..turns).map(move |turn| {
            let shift = turn * out * tile.result.size();
            Tile {
                x: tile.x.wrapping_add(turn * x),
                weights: tile.weights.wrapping_add(turn * weights),
                out: tile.out.wrapping_add(shift),
                residual: tile.residual.map(|residual| residual.wrapping_add(shift)),
                ahead: ahead.share(tile.nests, 1),
                again: Again::ONCE,
                ..tile
            }
        })
    }
}

/// Whether tiles whose rows lie at one distance are faster than higher ones whose rows do not.
pub(crate) fn likes_lines(isa: Isa, factors: StorageType) -> bool {
    DotMethod::of(isa, factors) == DotMethod::Matrix
}

/// Computes a tile.
///
/// # Panics
/// No row, more than [`ROWS`] (or [`ROWS_IN_LINE`], where the matrix unit takes the tile), or another number of vectors than 1
/// and 2.
///
/// # Safety
/// The processor has the family (a pool's it has). Every element that the formula of [`Tile`] reads in any turn can be read,
/// and every one that it writes can be written; nobody else uses those written meanwhile.
#[inline]
pub(crate) unsafe fn multiply(isa: Isa, tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        multiply_by(
            isa,
            if tile.factors == StorageType::F32 { DotMethod::Widened } else { DotMethod::of(isa, tile.factors) },
            tile,
        )
    }
}

/// # Safety
/// As [`multiply`]; the processor has the way to multiply pairs.
#[inline]
unsafe fn multiply_by(isa: Isa, way: DotMethod, tile: &Tile) {
    let rows_max = if way == DotMethod::Matrix { ROWS_IN_LINE } else { ROWS };
    assert!((1..=rows_max).contains(&tile.rows.len()) && (1..=2).contains(&tile.vectors), "a tile fits");
    assert!(tile.again.turns != 0, "a tile is computed");
    assert!([StorageType::F32, tile.factors].contains(&tile.result), "results are f32 or like the factors");
    assert!(!tile.result.is_half() || !matches!(tile.start, Start::Output), "sums go on as they were");
    // SAFETY: the caller's promise; the parts below are rows and vectors of the tile.
    unsafe {
        if tile.factors.is_byte() {
            return multiply_bytes(isa, way, tile);
        }
        let halves = tile.result.is_half();
        #[cfg(target_arch = "x86_64")]
        if way == DotMethod::Matrix
            && let Some(step) = crate::gemm::amx::row_step(tile)
        {
            for tile in tile.turns() {
                let mut sums = Beside::new();
                crate::gemm::amx::sums(&tile, step, &mut sums);
                crate::gemm::epilogue::finish_sums(isa, &tile, &[], &mut sums, 0);
            }
            return;
        }
        assert!(tile.rows.len() <= ROWS, "only rows in a line are so many");
        match (isa, tile.factors) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::F32) => match distance(tile.rows) {
                Some(LANES) => whole(tile, &x86::AVX512_LINE_NARROW, &x86::AVX512_LINE),
                Some(_) => whole(tile, &x86::AVX512_EVEN_NARROW, &x86::AVX512_EVEN),
                None => whole(tile, &x86::AVX512_NARROW, &x86::AVX512),
            },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::Bf16) if way != DotMethod::Widened => match halves {
                true => whole(tile, &x86::DOT_NARROW, &x86::DOT),
                false => whole(tile, &x86::DOT_NARROW_TO_F32, &x86::DOT_TO_F32),
            },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::Bf16) if halves => by_vectors(tile, &x86::AVX512_BF16_NARROW, &x86::AVX512_BF16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::Bf16) => {
                by_vectors(tile, &x86::AVX512_BF16_NARROW_TO_F32, &x86::AVX512_BF16_TO_F32)
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::F16) if halves => by_vectors(tile, &x86::AVX512_F16_NARROW, &x86::AVX512_F16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, StorageType::F16) => {
                by_vectors(tile, &x86::AVX512_F16_NARROW_TO_F32, &x86::AVX512_F16_TO_F32)
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, StorageType::F32) => in_parts(tile, 1, &x86::AVX2),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, StorageType::Bf16) if halves => in_parts(tile, 1, &x86::AVX2_BF16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, StorageType::Bf16) => in_parts(tile, 1, &x86::AVX2_BF16_TO_F32),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, StorageType::F16) if halves => in_parts(tile, 1, &x86::AVX2_F16),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, StorageType::F16) => in_parts(tile, 1, &x86::AVX2_F16_TO_F32),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, StorageType::F32) => in_parts(tile, 1, &aarch64::F32),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, StorageType::Bf16) if halves => in_parts(tile, 1, &aarch64::BF16),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, StorageType::Bf16) => in_parts(tile, 1, &aarch64::BF16_TO_F32),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, StorageType::F16) if halves => in_parts(tile, 1, &aarch64::F16),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon, StorageType::F16) => in_parts(tile, 1, &aarch64::F16_TO_F32),
            (_, StorageType::Bf16) if halves => in_parts(tile, 1, &PORTABLE_BF16),
            (_, StorageType::Bf16) => in_parts(tile, 1, &PORTABLE_BF16_TO_F32),
            (_, StorageType::F16) if halves => in_parts(tile, 1, &PORTABLE_F16),
            (_, StorageType::F16) => in_parts(tile, 1, &PORTABLE_F16_TO_F32),
            (_, StorageType::F32 | StorageType::U8 | StorageType::I8) => in_parts(tile, 1, &PORTABLE),
        }
    }
}

/// The sums of a tile of halves or bytes, as they are; the tile's `out` is not used. It has one turn.
///
/// # Safety
/// As [`multiply`].
pub(crate) unsafe fn sums(isa: Isa, tile: &Tile, sums: &mut Beside) {
    // SAFETY: the caller's promise.
    unsafe { sums_by(isa, DotMethod::of(isa, tile.factors), tile, sums) }
}

/// # Safety
/// As [`multiply_by`].
unsafe fn sums_by(isa: Isa, way: DotMethod, tile: &Tile, sums: &mut Beside) {
    assert_eq!(tile.again.turns, 1, "there is room for one turn");
    #[cfg(target_arch = "x86_64")]
    if way == DotMethod::Matrix
        && let Some(step) = crate::gemm::amx::row_step(tile)
    {
        // SAFETY: the caller's promise.
        return unsafe { crate::gemm::amx::sums(tile, step, sums) };
    }
    let rows: [Row; ROWS] =
        std::array::from_fn(|ix| Row { x: tile.rows.get(ix).map_or(0, |row| row.x), out: ix * LANES });
    let tile = Tile {
        result: StorageType::F32,
        out: sums.start().cast(),
        rows: &rows[..tile.rows.len()],
        vector_stride: ROWS_IN_LINE * LANES,
        residual: None,
        limits: None,
        ..*tile
    };
    // SAFETY: the caller's promise; the sums have room beside.
    unsafe { multiply_by(isa, way, &tile) };
}

/// # Safety
/// As [`multiply_by`].
unsafe fn multiply_bytes(isa: Isa, way: DotMethod, tile: &Tile) {
    assert_eq!(
        (tile.factors, tile.result),
        (StorageType::U8, StorageType::F32),
        "sums of bytes are written as they are"
    );
    let is_plain =
        tile.residual.is_none() && tile.limits.is_none() && matches!(tile.start, Start::Zero | Start::Whole(_));
    assert!(is_plain && tile.rows.len() <= ROWS, "and nothing happens to them");
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if way != DotMethod::Widened => whole(tile, &x86::BYTES_NARROW, &x86::BYTES),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => in_parts(tile, 1, &x86::AVX2_BYTES),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if way != DotMethod::Widened => in_parts(tile, 1, &aarch64::DOT_BYTES),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => in_parts(tile, 1, &aarch64::BYTES),
            _ => in_parts(tile, 1, &PORTABLE_BYTES),
        }
    }
}

/// How so many rows are cut into as few tiles as there can be, of nearly the same height: two of 9 and 8 rows are faster than
/// two of 14 and 3. Heights, the greater first, and how many tiles have them; the first may be none.
pub(crate) fn heights(rows: usize, most: usize) -> [(usize, usize); 2] {
    let tiles = rows.div_ceil(most).max(1);
    let (low, higher) = (rows / tiles, rows % tiles);
    [(low + 1, higher), (low, tiles - higher)]
}

/// Words from what a row reads to what the next one reads, if all lie at one distance.
#[cfg(target_arch = "x86_64")]
fn distance(rows: &[Row]) -> Option<usize> {
    let distance = |pair: &[Row]| pair[1].x.wrapping_sub(pair[0].x);
    let first = rows.get(..2).map_or(LANES, distance);
    rows.windows(2).all(|pair| distance(pair) == first).then_some(first)
}

/// For [`part`]: its rows read anywhere, or all at one distance. Otherwise the distance is the number itself.
const ANYWHERE: usize = usize::MAX;
const EVENLY: usize = usize::MAX - 1;

/// A function for some rows of a tile and some of its vectors, from the one given on.
type Part = unsafe fn(&Tile, &[Row], usize);

/// Takes a tile as it is: of one vector, or of two.
///
/// # Safety
/// As [`multiply`]; `one[n - 1]` is for `n` rows of one vector, `two[n - 1]` for those of two.
#[cfg(target_arch = "x86_64")]
unsafe fn whole(tile: &Tile, one: &[Part; ROWS], two: &[Part; ROWS]) {
    let parts = if tile.vectors == 1 { one } else { two };
    // SAFETY: the caller's promise.
    unsafe { parts[tile.rows.len() - 1](tile, tile.rows, 0) };
}

/// Takes a tile in parts of nearly as many rows: of one vector, or of two.
///
/// # Safety
/// As [`whole`], but for so many rows as there are parts.
#[cfg(target_arch = "x86_64")]
unsafe fn by_vectors(tile: &Tile, one: &[Part], two: &[Part]) {
    // SAFETY: the caller's promise.
    unsafe { in_parts(tile, tile.vectors, if tile.vectors == 1 { one } else { two }) };
}

/// Takes a tile by so many vectors at a time, each in parts of nearly as many rows.
///
/// # Safety
/// As [`multiply`]; `parts[n - 1]` is for `n` rows of `vectors` vectors, of which the tile has a multiple.
unsafe fn in_parts(tile: &Tile, vectors: usize, parts: &[Part]) {
    let count = tile.rows.len().div_ceil(parts.len());
    let mut tile = *tile;
    for vector in (0..tile.vectors).step_by(vectors) {
        let mut rest = tile.rows;
        for part in 0..count {
            let rows;
            (rows, rest) = rest.split_at(rest.len().div_ceil(count - part));
            // All turns of a part: what it takes to begin is much beside so few rows.
            // SAFETY: the caller's promise.
            unsafe { parts[rows.len() - 1](&tile, rows, vector) };
            // The first part asked for all of it.
            tile.ahead = Ahead::NOTHING;
        }
    }
}

/// # Safety
/// As [`multiply`].
unsafe fn portable<F: Factors<Portable>, T: Item, const R: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { part::<Portable, F, T, R, 1, 1, ANYWHERE>(tile, rows, vector) }
}

macro_rules! portable_by_rows {
    ($factors:ty => $item:ty) => {
        [
            portable::<$factors, $item, 1>,
            portable::<$factors, $item, 2>,
            portable::<$factors, $item, 3>,
            portable::<$factors, $item, 4>,
        ]
    };
}

const PORTABLE: [Part; 4] = portable_by_rows!(f32 => f32);
const PORTABLE_BYTES: [Part; 4] = portable_by_rows!(Bytes => f32);
const PORTABLE_BF16: [Part; 4] = portable_by_rows!(bf16 => bf16);
const PORTABLE_BF16_TO_F32: [Part; 4] = portable_by_rows!(bf16 => f32);
const PORTABLE_F16: [Part; 4] = portable_by_rows!(f16 => f16);
const PORTABLE_F16_TO_F32: [Part; 4] = portable_by_rows!(f16 => f32);

/// R rows of N vectors of a tile, from `vector` on, with U partial sums each. Rows read at S words from each other,
/// [`EVENLY`] or [`ANYWHERE`]: addresses of fourteen take more registers than there are, and are loaded for each term.
///
/// # Safety
/// As [`multiply`]; the rows read at that distance.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
unsafe fn part<V: Vector, F: Factors<V>, T: Item, const R: usize, const N: usize, const U: usize, const S: usize>(
    tile: &Tile,
    rows: &[Row],
    vector: usize,
) {
    let rows: &[Row; R] = rows.try_into().expect("the table has a function for each number of rows");
    let width = tile.weight_stride;
    // One vector for all rows, zeros or not: zeros in each register first would be as many instructions more.
    let start = match tile.start {
        Start::Bias(bias) => bias,
        Start::Zero | Start::Output | Start::Whole(_) => ZEROS.as_ptr(),
    };
    let begins_with_output = matches!(tile.start, Start::Output);
    let (mut tile_x, mut tile_weights, mut tile_out) = (tile.x, tile.weights, 0);
    let mut ahead = tile.ahead;
    for _ in 0..tile.again.turns {
        // SAFETY: the caller's promise. Addresses are those of the formula of `Tile`, for these rows and the vectors from
        // `vector` on.
        unsafe {
            let weights = tile_weights.add(vector * LANES);
            let begin: [F::Sum; N] = std::array::from_fn(|v| F::sum(V::load(start.add((vector + v) * LANES))));
            let mut sums = [begin; R];
            let mut partial = [[[F::sum(V::zero()); N]; R]; U];
            let mut common = [F::Common::default(); N];
            if begins_with_output {
                let out: *const f32 = tile.out.cast_const().cast::<f32>().add(tile_out + vector * tile.vector_stride);
                for r in 0..R {
                    for v in 0..N {
                        sums[r][v] = F::sum(V::load(out.add(rows[r].out + v * tile.vector_stride)));
                    }
                }
            }
            // What the sums meet at the end comes meanwhile: the residual, whose place the results often take.
            if let Some(residual) = tile.residual {
                let residual = residual.cast::<T>().wrapping_add(tile_out + vector * tile.vector_stride);
                for r in 0..R {
                    for v in 0..N {
                        V::prefetch(residual.wrapping_add(rows[r].out + v * tile.vector_stride));
                    }
                }
            }
            let first = tile_x.add(rows[0].x);
            let distance = if R == 1 { 0 } else { rows[R.min(2) - 1].x.wrapping_sub(rows[0].x) };
            let x: [*const Word; R] = std::array::from_fn(|r| match S {
                ANYWHERE | EVENLY => tile_x.add(rows[r].x),
                _ => first.wrapping_add(r * S),
            });
            for nest in tile.nests {
                let [outer, middle, inner] = nest.loops;
                for turn in 0..outer.turns {
                    for turn_2 in 0..middle.turns {
                        let mut shift = nest.x + turn * outer.x + turn_2 * middle.x;
                        let mut place = nest.weights + turn * outer.weights + turn_2 * middle.weights;
                        for _ in 0..inner.turns {
                            let (mut at, mut weights) = (shift, weights.add(place));
                            // What the next turn reads of each row is far from this, and nobody else foresees it.
                            // Few terms are no time for that, and neighbours are foreseen.
                            if 1 < inner.turns && inner.x != nest.depth && LINE <= nest.depth {
                                for r in 0..R {
                                    V::prefetch(x[r].wrapping_add(shift + inner.x));
                                }
                            }
                            // Every third row has an address; to the two behind it there is one distance.
                            let mut thirds: [*const Word; ROWS.div_ceil(3)] = std::array::from_fn(|ix| {
                                first.wrapping_add((3 * ix).wrapping_mul(distance)).wrapping_add(shift)
                            });
                            let mut rest = nest.depth;
                            while rest != 0 {
                                let depth = rest.min(LINE);
                                rest -= depth;
                                ahead.step::<V>();
                                // High tiles take one term a turn: with a second loop their sums would change registers.
                                if 1 < U {
                                    for _ in 0..depth / U {
                                        for u in 0..U {
                                            let weights = weights.add(u * width);
                                            partial[u] =
                                                term::<V, F, R, N>(partial[u], &mut common, x, at + u, weights);
                                        }
                                        (at, weights) = (at + U, weights.wrapping_add(U * width));
                                    }
                                }
                                for _ in 0..if 1 < U { depth % U } else { depth } {
                                    for v in 0..N {
                                        V::prefetch(
                                            weights.wrapping_add(AHEAD.wrapping_mul(width)).wrapping_add(v * LANES),
                                        );
                                    }
                                    if S == EVENLY && U == 1 {
                                        let x: [*const Word; R] = std::array::from_fn(|r| {
                                            thirds[r / 3].wrapping_add((r % 3).wrapping_mul(distance))
                                        });
                                        sums = term::<V, F, R, N>(sums, &mut common, x, 0, weights);
                                        thirds = thirds.map(|third| opaque_place(third.wrapping_add(1)));
                                    } else {
                                        sums = term::<V, F, R, N>(sums, &mut common, x, at, weights);
                                        at = opaque(at + 1);
                                    }
                                    weights = weights.wrapping_add(width);
                                }
                            }
                            (shift, place) = (shift + inner.x, place + inner.weights);
                        }
                    }
                }
            }
            if 1 < U {
                for r in 0..R {
                    for v in 0..N {
                        for u in 0..U {
                            sums[r][v] = F::add(sums[r][v], partial[u][r][v]);
                        }
                    }
                }
            }
            let mut results = [[V::zero(); N]; R];
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = F::lanes(sums[r][v], common[v]);
                }
            }
            finish::<V, T, R, N>(tile, rows, tile_out + vector * tile.vector_stride, results);
        }
        let Again { x, weights, out, .. } = tile.again;
        (tile_x, tile_weights) = (tile_x.wrapping_add(x), tile_weights.wrapping_add(weights));
        tile_out += out;
    }
}

/// What sums of nothing begin with.
static ZEROS: [f32; 2 * LANES] = [0.0; 2 * LANES];

/// Adds the residual, limits and writes the results of a part, whose first vector lies so many elements from the tile's output.
///
/// # Safety
/// As [`multiply`]; `T` is the tile's type of results.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each result in a register")]
unsafe fn finish<V: Vector, T: Item, const R: usize, const N: usize>(
    tile: &Tile,
    rows: &[Row; R],
    first: usize,
    mut results: [[V; N]; R],
) {
    let stride = tile.vector_stride;
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(residual) = tile.residual {
            let residual: *const T = residual.cast::<T>().add(first);
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = results[r][v].add(T::load(residual.add(rows[r].out + v * stride)));
                }
            }
        }
        if let Some([low, high]) = tile.limits {
            let low = V::splat(low);
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = results[r][v].at_least(low);
                }
            }
            if high < f32::INFINITY {
                let high = V::splat(high);
                for r in 0..R {
                    for v in 0..N {
                        results[r][v] = results[r][v].at_most(high);
                    }
                }
            }
        }
        let out: *mut T = tile.out.cast::<T>().add(first);
        for r in 0..R {
            for v in 0..N {
                T::store(results[r][v], out.add(rows[r].out + v * stride));
            }
        }
    }
}

/// The same number, of which the compiler knows nothing. It would keep an address for each row, more than there are
/// registers, and go on with each whenever a loop begins anew; so it adds one number to fourteen places that stay.
#[inline(always)]
fn opaque(number: usize) -> usize {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let same: usize;
        // SAFETY: a comment is no instruction, so the register keeps its number.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) number => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    number
}

/// The same place, of which the compiler knows nothing.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it here")
)]
fn opaque_place(place: *const Word) -> *const Word {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let same: *const Word;
        // SAFETY: a comment is no instruction, so the register keeps its place.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) place => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    place
}

/// One term more: the word at `at` of each row's `x` by the vectors of weights.
///
/// # Safety
/// Both can be read.
#[inline(always)]
unsafe fn term<V: Vector, F: Factors<V>, const R: usize, const N: usize>(
    mut sums: [[F::Sum; N]; R],
    common: &mut [F::Common; N],
    x: [*const Word; R],
    at: usize,
    weights: *const Word,
) -> [[F::Sum; N]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let weights: [F::Weights; N] = std::array::from_fn(|v| F::weights(weights.add(v * LANES)));
        for v in 0..N {
            common[v] = F::add_common(common[v], weights[v]);
        }
        for r in 0..R {
            let item = F::item(x[r].add(at));
            for v in 0..N {
                sums[r][v] = F::mul_add(item, weights[v], sums[r][v]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests;
