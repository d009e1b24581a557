//! [`sum_bytes`]: tiles of int8 words with AVX2.
//!
//! A word has four bytes of a row and, in each lane, the four weights that they are multiplied by. `vpmaddubsw` adds
//! their products in pairs of 16 bits, which large weights saturate. Most weights are small, so all words are multiplied
//! by it, and products whose weights have a mark ([`Marks`]) are corrected. If many have one, all are multiplied in 16 bits
//! instead ([`widened`]). Either way sums are exact.
//!
//! Sums are stored, or dequantized first, since short sums take no longer than a second pass over them.

mod widened;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use smallvec::SmallVec;

use crate::gemm::operands::Word;
use crate::gemm::prefetch::{LINE, Prefetch};
use crate::gemm::saturation::{MARKED, Marks};
use crate::gemm::tile::{Dequant, Init, Repeat, Row, Tile};
use crate::simd::storage::Item;
use crate::simd::vector::x86::Avx2;
use crate::simd::vector::{LANES, Vector};

/// Registers of a vector.
const HALVES: usize = LANES / MARKED;
/// The most marked registers of a vector of a tile.
const CORRECTIONS: usize = 256;
/// A marked register takes as long as this many words gain.
const WORDS_GAINED: usize = 5;
/// Words whose marks say little about those of the others.
const FEW_WORDS: usize = 16;

/// Sums of R rows of a vector.
type Sums<const R: usize> = [[__m256i; HALVES]; R];

type Corrections = SmallVec<[Correction; CORRECTIONS]>;

/// A register of weights with a mark.
#[derive(Clone, Copy, Default)]
struct Correction {
    /// Its word in each row, and its weights, in words from those of the tile.
    x: usize,
    weights: usize,
    /// The register of the sums.
    half: usize,
}

/// The results that a tile makes of its sums and stores.
pub(crate) trait Results {
    /// An element of the output.
    type Item;

    /// Stores R rows of a vector to `out`, its first element for the tile.
    ///
    /// # Safety
    /// As [`crate::gemm::dispatch::multiply`]; the processor has AVX2.
    unsafe fn store<const R: usize>(tile: &Tile, rows: &[Row; R], vector: usize, sums: &Sums<R>, out: *mut Self::Item);
}

/// The sums as `i32`.
pub(crate) struct Plain;

impl Results for Plain {
    type Item = i32;

    #[inline(always)]
    unsafe fn store<const R: usize>(_: &Tile, rows: &[Row; R], _: usize, sums: &Sums<R>, out: *mut i32) {
        for (row, sums) in rows.iter().zip(sums) {
            // SAFETY: the caller's promise.
            unsafe {
                let place = out.add(row.out).cast::<__m256i>();
                _mm256_storeu_si256(place, sums[0]);
                _mm256_storeu_si256(place.add(1), sums[1]);
            }
        }
    }
}

/// Dequantized sums, without residual and bounds, as `T`. The tile's `init` must be a [`Dequant`] with a scale.
pub(crate) struct Dequantized<T>(PhantomData<T>);

impl<T: Item> Results for Dequantized<T> {
    type Item = T;

    #[inline(always)]
    unsafe fn store<const R: usize>(tile: &Tile, rows: &[Row; R], vector: usize, sums: &Sums<R>, out: *mut T) {
        let Init::Dequant(Dequant { start, scale: Some(scale), bias, .. }) = tile.init else {
            unreachable!("the caller selects these results for a scale");
        };
        // SAFETY: the caller's promise; each vector has an element for each channel of the tile.
        unsafe {
            let [start, scale] = [start.cast(), scale].map(|vector_of| Avx2::load(vector_of.add(vector * LANES)));
            let bias = match bias {
                Some(bias) => Avx2::load(bias.add(vector * LANES)),
                None => Avx2::zero(),
            };
            for (row, sums) in rows.iter().zip(sums) {
                let lanes = Avx2::load(sums.as_ptr().cast()).add_i32(start).i32_to_f32().mul_add(scale, bias);
                T::store(lanes, out.add(row.out));
            }
        }
    }
}

/// Computes R rows of N vectors of an int8 tile, from `vector` on.
///
/// # Safety
/// As [`crate::gemm::dispatch::multiply`]; the processor has AVX2; the output has elements of `O`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn sum_bytes<O: Results, const R: usize, const N: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    let marks = tile.marks.expect("int8 weights have marks");
    assert_eq!(tile.repeat.weights, 0, "all iterations have the same int8 weights");
    let mut corrections: [Corrections; N] = std::array::from_fn(|_| Corrections::new());
    let first = |v: usize| tile.weights.wrapping_add((vector + v) * LANES);
    if !corrections.iter_mut().enumerate().all(|(v, corrections)| find_corrections(tile, marks, first(v), corrections))
    {
        // SAFETY: the caller's promise.
        return unsafe { widened::sum_bytes::<O, R, N>(tile, rows, vector) };
    }
    let rows: &[Row; R] = rows.try_into().expect("the table has a function for each number of rows");
    let mut prefetch = tile.prefetch;
    for (v, corrections) in corrections.iter().enumerate() {
        let Repeat { iterations, x: x_step, out: out_step, .. } = tile.repeat;
        let (mut x, mut out) = (tile.x, tile.out.cast::<O::Item>());
        for _ in 0..iterations {
            // SAFETY: the caller's promise. Addresses are those of the formula of `Tile`, for these rows and this vector.
            unsafe {
                let x: [*const Word; R] = std::array::from_fn(|r| x.add(rows[r].x));
                let mut sums = [[_mm256_setzero_si256(); HALVES]; R];
                add_words(tile, x, first(v), &mut sums, &mut prefetch);
                for &correction in corrections {
                    correct(x, first(v), correction, &mut sums);
                }
                O::store(tile, rows, vector + v, &sums, out.add((vector + v) * tile.vector_stride));
            }
            (x, out) = (x.wrapping_add(x_step), out.wrapping_add(out_step));
        }
    }
}

/// Finds the marked registers of a vector whose first weights are at `weights`. Returns `false` if they are too many to be
/// corrected.
fn find_corrections(tile: &Tile, marks: Marks<'_>, weights: *const Word, corrections: &mut Corrections) -> bool {
    let stride = tile.weight_stride;
    // The bits of this vector in those of a row of weights, and rows whose bits are loaded at once.
    let bits_of_row = stride / MARKED;
    let at_once = 57 / bits_of_row;
    let of_vector = (0..at_once).fold(0u64, |mask, row| mask | ((1 << HALVES) - 1) << (row * bits_of_row));
    let mut words = 0;
    for k_loop in tile.k_loops {
        let [outer, middle, inner] = k_loop.loops;
        for (turn, turn_2, turn_3) in nested([outer.iterations, middle.iterations, inner.iterations]) {
            let x = k_loop.x + turn * outer.x + turn_2 * middle.x + turn_3 * inner.x;
            let place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights + turn_3 * inner.weights;
            words += k_loop.depth;
            for row in (0..k_loop.depth).step_by(at_once) {
                let mut found = marks.from(weights, place + row * stride) & of_vector;
                let rest = k_loop.depth - row;
                if rest < at_once {
                    found &= (1 << (rest * bits_of_row)) - 1;
                }
                while found != 0 {
                    let bit = found.trailing_zeros() as usize;
                    found &= found - 1;
                    let (row, half) = (row + bit / bits_of_row, bit % bits_of_row);
                    if corrections.len() == CORRECTIONS || words + FEW_WORDS < WORDS_GAINED * corrections.len() {
                        return false;
                    }
                    corrections.push(Correction { x: x + row, weights: place + row * stride + half * MARKED, half });
                }
            }
        }
    }
    WORDS_GAINED * corrections.len() <= words
}

/// The indices of three nested loops.
fn nested([first, second, third]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..first).flat_map(move |i| (0..second).flat_map(move |j| (0..third).map(move |k| (i, j, k))))
}

/// Adds the saturated products of all words to the sums.
///
/// # Safety
/// As [`sum_bytes`], for rows from `x` and a vector from `weights` on.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_words<const R: usize>(
    tile: &Tile,
    x: [*const Word; R],
    weights: *const Word,
    sums: &mut Sums<R>,
    prefetch: &mut Prefetch,
) {
    let mut own = *sums;
    for k_loop in tile.k_loops {
        let [outer, middle, inner] = k_loop.loops;
        for turn in 0..outer.iterations {
            for turn_2 in 0..middle.iterations {
                let mut shift = k_loop.x + turn * outer.x + turn_2 * middle.x;
                let mut place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights;
                for _ in 0..inner.iterations {
                    let (mut at, mut from) = (shift, weights.wrapping_add(place));
                    let mut rest = k_loop.depth;
                    while rest != 0 {
                        let words = rest.min(LINE);
                        rest -= words;
                        prefetch.step::<Avx2>();
                        for _ in 0..words {
                            // SAFETY: the caller's promise.
                            unsafe { add_word(x, at, from, &mut own) };
                            (at, from) = (at + 1, from.wrapping_add(tile.weight_stride));
                        }
                    }
                    (shift, place) = (shift + inner.x, place + inner.weights);
                }
            }
        }
    }
    *sums = own;
}

/// Adds the products of one word of each row.
///
/// # Safety
/// The processor has AVX2; rows and weights can be read.
#[inline(always)]
unsafe fn add_word<const R: usize>(x: [*const Word; R], at: usize, weights: *const Word, sums: &mut Sums<R>) {
    // SAFETY: the caller's promise.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let weights: *const __m256i = weights.cast();
        let low = _mm256_loadu_si256(weights);
        for r in 0..R {
            let item = _mm256_set1_epi32(x[r].add(at).cast::<i32>().read_unaligned());
            // Twelve sums leave four registers: the other weights are an operand in memory.
            let high = _mm256_loadu_si256(opaque_place(weights.add(1)));
            let [low, high] = [_mm256_maddubs_epi16(item, low), _mm256_maddubs_epi16(item, high)];
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(low, ones));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(high, ones));
        }
    }
}

/// Adds the difference between exact and saturated products of a register of weights.
///
/// # Safety
/// As [`sum_bytes`], for rows from `x` and a vector from `weights` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn correct<const R: usize>(
    x: [*const Word; R],
    weights: *const Word,
    correction: Correction,
    sums: &mut Sums<R>,
) {
    let (ones, bytes) = (_mm256_set1_epi16(1), _mm256_set1_epi16(0xff));
    // SAFETY: the caller's promise.
    let weights = unsafe { _mm256_loadu_si256(weights.add(correction.weights).cast()) };
    let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights));
    let odd = _mm256_srai_epi16::<8>(weights);
    for (x, sums) in x.iter().zip(sums) {
        // SAFETY: the caller's promise.
        let item = _mm256_set1_epi32(unsafe { x.add(correction.x).cast::<i32>().read_unaligned() });
        let exact = _mm256_add_epi32(
            _mm256_madd_epi16(_mm256_and_si256(item, bytes), even),
            _mm256_madd_epi16(_mm256_srli_epi16::<8>(item), odd),
        );
        let saturated = _mm256_madd_epi16(_mm256_maddubs_epi16(item, weights), ones);
        let sum = &mut sums[correction.half];
        *sum = _mm256_add_epi32(*sum, _mm256_sub_epi32(exact, saturated));
    }
}

/// Returns `place`, opaque to the compiler, so that weights are loaded again instead of kept in registers.
#[inline]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it here")]
fn opaque_place(place: *const __m256i) -> *const __m256i {
    let same: *const __m256i;
    // SAFETY: the asm template is only a comment; it emits no instruction and leaves the register unchanged.
    unsafe {
        std::arch::asm!("/* {0} */", inlateout(reg) place => same, options(pure, nomem, nostack, preserves_flags));
    }
    same
}
