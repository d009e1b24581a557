//! [`sum_bytes`]: tiles of int8 words by products of 16-bit integers (`vpmaddwd`), for weights of any size.
//!
//! The first and third byte of a word become one pair of 16-bit integers, its second and fourth another; each pair's sum
//! of products is exact in `i32`. Weights are widened in registers, by three shifts for eight lanes. Rows are widened into
//! a stage on the stack, some terms at a time, because each is used for every lane of the tile:
//!
//! ```text
//!   row      a b c d | e f g h | ..        bytes
//!   stage    a c b d | e g f h | ..        16-bit integers: first and third, second and fourth
//! ```
//!
//! The stage also makes terms of several loops neighbors, so that the inner loop is long for short depths.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{HALVES, Results, opaque_place};
use crate::gemm::operands::Word;
use crate::gemm::prefetch::{LINE, Prefetch};
use crate::gemm::tile::{KLoop, Repeat, Row, Tile};
use crate::simd::vector::LANES;
use crate::simd::vector::x86::Avx2;

/// Words of a row that are widened at a time: the stage of six rows takes 12 kB of a first-level cache.
const STAGED: usize = 256;
/// Stretches of neighboring weights in a stage. They are cleared for each tile, so they are few.
const STRETCHES: usize = 8;
/// The widened words of a row: first and third byte, second and fourth.
type StagedRow = [[u32; 2]; STAGED];

/// Neighboring terms: their first weights, in words from the tile's, and how many.
#[derive(Clone, Copy)]
struct Stretch {
    weights: usize,
    words: usize,
}

/// Sums of a tile, which the first stage of terms begins.
type Unfinished<const R: usize, const N: usize> = MaybeUninit<[[[__m256i; HALVES]; R]; N]>;

/// Terms whose rows are in the stage.
struct Stage<const R: usize> {
    rows: MaybeUninit<[StagedRow; R]>,
    words: usize,
    stretches: [Stretch; STRETCHES],
    count: usize,
    /// Whether terms were added to the tile's sums.
    has_sums: bool,
}

/// Computes R rows of N vectors of an int8 tile, from `vector` on.
///
/// # Safety
/// As [`crate::gemm::dispatch::multiply`]; the processor has AVX2; the output has elements of `O`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn sum_bytes<O: Results, const R: usize, const N: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    let rows: &[Row; R] = rows.try_into().expect("the table has a function for each number of rows");
    let mut prefetch = tile.prefetch;
    let (mut x, mut weights, mut out) = (tile.x, tile.weights, tile.out.cast::<O::Item>());
    let mut stage = Stage::<R> {
        rows: MaybeUninit::uninit(),
        words: 0,
        stretches: [Stretch { weights: 0, words: 0 }; STRETCHES],
        count: 0,
        has_sums: false,
    };
    for _ in 0..tile.repeat.iterations {
        // SAFETY: the caller's promise. Addresses are those of the formula of `Tile`, for these rows and the vectors
        // from `vector` on.
        unsafe {
            stage.has_sums = false;
            let mut sums = Unfinished::<R, N>::uninit();
            let first = weights.add(vector * LANES);
            for k_loop in tile.k_loops {
                add_terms(&mut stage, tile, k_loop, rows, x, first, &mut sums, &mut prefetch);
            }
            stage.add_to(&mut sums, first, tile.weight_stride);
            // The last addition wrote them.
            for (v, sums) in sums.assume_init_ref().iter().enumerate() {
                O::store(tile, rows, vector + v, sums, out.add((vector + v) * tile.vector_stride));
            }
        }
        let Repeat { x: x_step, weights: weights_step, out: out_step, .. } = tile.repeat;
        (x, weights) = (x.wrapping_add(x_step), weights.wrapping_add(weights_step));
        out = out.wrapping_add(out_step);
    }
}

/// Widens the terms of a loop, and adds them whenever the stage is full.
///
/// # Safety
/// As [`sum_bytes`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::too_many_arguments, reason = "the state of one loop over terms")]
unsafe fn add_terms<const R: usize, const N: usize>(
    stage: &mut Stage<R>,
    tile: &Tile,
    k_loop: &KLoop,
    rows: &[Row; R],
    x: *const Word,
    weights: *const Word,
    sums: &mut Unfinished<R, N>,
    prefetch: &mut Prefetch,
) {
    let [outer, middle, inner] = k_loop.loops;
    for turn in 0..outer.iterations {
        for turn_2 in 0..middle.iterations {
            let mut from = k_loop.x + turn * outer.x + turn_2 * middle.x;
            let mut place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights;
            let mut rest = inner.iterations;
            while rest != 0 {
                // Iterations whose weights are neighbors are widened together.
                let most = if inner.weights == k_loop.depth * tile.weight_stride { rest } else { 1 };
                let count = most.min(stage.room(place, tile.weight_stride) / k_loop.depth.max(1));
                for _ in 0..count.max(1) * k_loop.depth.div_ceil(LINE) {
                    prefetch.step::<Avx2>();
                }
                // SAFETY: the caller's promise: the rows have the loop's words, and the weights theirs.
                unsafe {
                    if count == 0 {
                        let (mut x, mut place, mut rest) = (x.add(from), place, k_loop.depth);
                        while rest != 0 {
                            if stage.room(place, tile.weight_stride) == 0 {
                                stage.add_to(sums, weights, tile.weight_stride);
                            }
                            let words = rest.min(stage.room(place, tile.weight_stride));
                            stage.widen(rows, x, [1, 0], words);
                            stage.append(place, words, tile.weight_stride);
                            (x, place, rest) = (x.add(words), place + words * tile.weight_stride, rest - words);
                        }
                    } else {
                        stage.widen(rows, x.add(from), [count, inner.x], k_loop.depth);
                        stage.append(place, count * k_loop.depth, tile.weight_stride);
                    }
                }
                let done = count.max(1);
                (from, place, rest) = (from + done * inner.x, place + done * inner.weights, rest - done);
            }
        }
    }
}

impl<const R: usize> Stage<R> {
    /// Words that there is room for, whose weights are at `place`.
    fn room(&self, place: usize, weight_stride: usize) -> usize {
        if self.continues(place, weight_stride) || self.count < STRETCHES { STAGED - self.words } else { 0 }
    }

    /// Whether the weights at `place` are behind the last ones.
    fn continues(&self, place: usize, weight_stride: usize) -> bool {
        let last = self.count.checked_sub(1).map(|last| self.stretches[last]);
        last.is_some_and(|last| last.weights + last.words * weight_stride == place)
    }

    /// Records that the next words have their weights at `place`.
    fn append(&mut self, place: usize, words: usize, weight_stride: usize) {
        if self.continues(place, weight_stride) {
            self.stretches[self.count - 1].words += words;
        } else {
            self.stretches[self.count] = Stretch { weights: place, words };
            self.count += 1;
        }
        self.words += words;
    }

    /// Widens words of each row to behind those of the stage: of `count` loop iterations, `step` words apart.
    ///
    /// # Safety
    /// The stage has room; the rows can be read.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn widen(&mut self, rows: &[Row; R], mut x: *const Word, [count, step]: [usize; 2], words: usize) {
        let order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
        // SAFETY: the caller's promise; each row of the stage has room for `STAGED` words.
        unsafe {
            let mut to = self.rows.as_mut_ptr().cast::<u64>().add(self.words);
            for _ in 0..count {
                let mut at = 0;
                while at + 4 <= words {
                    for (r, row) in rows.iter().enumerate() {
                        let bytes = _mm_shuffle_epi8(_mm_loadu_si128(x.add(row.x + at).cast()), order);
                        _mm256_storeu_si256(to.add(r * STAGED + at).cast(), _mm256_cvtepu8_epi16(bytes));
                    }
                    at += 4;
                }
                while at < words {
                    for (r, row) in rows.iter().enumerate() {
                        let word = x.add(row.x + at).cast::<u32>().read_unaligned();
                        let (even, odd) = (word & 0x00ff_00ff, (word >> 8) & 0x00ff_00ff);
                        to.add(r * STAGED + at).write(u64::from(even) | u64::from(odd) << 32);
                    }
                    at += 1;
                }
                (x, to) = (x.wrapping_add(step), to.wrapping_add(words));
            }
        }
    }

    /// Adds the products of the stage's words to the sums, or begins them, and empties the stage.
    ///
    /// # Safety
    /// The weights of each stretch can be read, for N vectors; the sums were written if the stage has added terms.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
    unsafe fn add_to<const N: usize>(
        &mut self,
        sums: &mut Unfinished<R, N>,
        weights: *const Word,
        weight_stride: usize,
    ) {
        let start: *const u32 = self.rows.as_ptr().cast();
        for v in 0..N {
            let mut own = [[_mm256_setzero_si256(); HALVES]; R];
            if self.has_sums {
                // SAFETY: the caller's promise.
                own = unsafe { sums.assume_init_ref()[v] };
            }
            let mut x = start;
            for stretch in &self.stretches[..self.count] {
                let mut from = weights.wrapping_add(v * LANES + stretch.weights).cast::<u8>();
                for _ in 0..stretch.words {
                    // SAFETY: the caller's promise; the stage's words were written.
                    unsafe {
                        let low: *const __m256i = from.cast();
                        let high = low.add(1);
                        let even = [
                            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(_mm256_loadu_si256(low))),
                            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(_mm256_loadu_si256(high))),
                        ];
                        for r in 0..R {
                            let item = _mm256_set1_epi32(x.add(2 * r * STAGED).cast::<i32>().read());
                            own[r][0] = _mm256_add_epi32(own[r][0], _mm256_madd_epi16(item, even[0]));
                            own[r][1] = _mm256_add_epi32(own[r][1], _mm256_madd_epi16(item, even[1]));
                        }
                        // Twelve sums leave four registers: both halves at a time would need more.
                        for r in 0..R {
                            own[r] = [opaque(own[r][0]), opaque(own[r][1])];
                        }
                        let low = opaque_place(low);
                        let high = low.add(1);
                        let odd = [
                            _mm256_srai_epi16::<8>(_mm256_loadu_si256(low)),
                            _mm256_srai_epi16::<8>(_mm256_loadu_si256(high)),
                        ];
                        for r in 0..R {
                            let item = _mm256_set1_epi32(x.add(2 * r * STAGED + 1).cast::<i32>().read());
                            own[r][0] = _mm256_add_epi32(own[r][0], _mm256_madd_epi16(item, odd[0]));
                            own[r][1] = _mm256_add_epi32(own[r][1], _mm256_madd_epi16(item, odd[1]));
                        }
                        x = x.add(2);
                    }
                    from = from.wrapping_add(4 * weight_stride);
                }
            }
            // SAFETY: one of the N vectors; no reference is made to those that are not written yet.
            unsafe { sums.as_mut_ptr().cast::<[[__m256i; HALVES]; R]>().add(v).write(own) };
        }
        (self.words, self.count, self.has_sums) = (0, 0, true);
    }
}

/// Returns `sum`, opaque to the compiler, which would otherwise reorder additions and move sums to the stack.
#[inline]
#[target_feature(enable = "avx2")]
fn opaque(sum: __m256i) -> __m256i {
    let same: __m256i;
    // SAFETY: the asm template is only a comment; it emits no instruction and leaves the register unchanged.
    unsafe {
        std::arch::asm!("/* {0} */", inlateout(ymm_reg) sum => same, options(pure, nomem, nostack, preserves_flags));
    }
    same
}
