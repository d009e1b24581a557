//! [`Vector`] in pairs of AVX2 registers, with FMA and F16C.

use std::arch::x86_64::*;

use super::super::{Isa, LANES, Vector};

/// Two AVX2 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2([__m256; 2]);

// SAFETY of every block below: by the trait's contract, only code compiled for the ISA calls these functions.

/// `items * 2^power`, in two steps: the power may exceed the range of one exponent. A function and no closure, which
/// would not be compiled for the ISA.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn scaled(items: __m256, power: __m256) -> __m256 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let power = _mm256_cvtps_epi32(power);
        let half = _mm256_srai_epi32::<1>(power);
        _mm256_mul_ps(_mm256_mul_ps(items, exact(half)), exact(_mm256_sub_epi32(power, half)))
    }
}

/// `2^power` for integral powers from -126 to 127.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn exact(power: __m256i) -> __m256 {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(power, _mm256_set1_epi32(127)))) }
}

/// The sum of eight numbers: those at distance 4 first, then 2 and 1.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of_eight(items: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(items), _mm256_extractf128_ps::<1>(items));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The largest of eight numbers.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn largest_of_eight(items: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(items), _mm256_extractf128_ps::<1>(items));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Masks of the first lanes: from element `16 - n` on, `n` are set.
static MASKS: [i32; 2 * LANES] = {
    let mut masks = [0; 2 * LANES];
    let mut lane = 0;
    while lane < LANES {
        masks[lane] = -1;
        lane += 1;
    }
    masks
};

impl Avx2 {
    #[inline(always)]
    fn each(self, other: Self, function: impl Fn(__m256, __m256) -> __m256) -> Self {
        Avx2([function(self.0[0], other.0[0]), function(self.0[1], other.0[1])])
    }
}

// Closures passed to `array::map` may stay functions of their own, which are not compiled for the ISA: each of their
// instructions is then a call. The functions below are inlined always.

/// Rounds to the nearest 16-bit integers within limits; NaN becomes 0.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn words_within(lanes: Avx2, low: f32, high: f32) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let [first, second] = lanes.0;
        let (first, second) = (integers_within(first, low, high), integers_within(second, low, high));
        // Packing works within 128-bit halves, so the quarters are permuted.
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(first, second))
    }
}

/// Rounds to the nearest integers within limits; NaN becomes 0.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn integers_within(lanes: __m256, low: f32, high: f32) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let is_number = _mm256_cmp_ps::<_CMP_ORD_Q>(lanes, lanes);
        let held = _mm256_min_ps(_mm256_max_ps(lanes, _mm256_set1_ps(low)), _mm256_set1_ps(high));
        _mm256_cvtps_epi32(_mm256_and_ps(held, is_number))
    }
}

/// Rounds to `bf16`, in the lower halves of 32-bit lanes; NaN stays NaN.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn rounded_bf16(lanes: __m256) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let bits = _mm256_castps_si256(lanes);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let none = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(lanes, lanes));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, none))
    }
}

impl Vector for Avx2 {
    const ISA: Isa = Isa::Avx2;

    const PARTS: usize = 2;

    #[inline(always)]
    fn mul_add_part<const PART: usize>(self, factor: Self, mut sum: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        sum.0[PART] = unsafe { _mm256_fmadd_ps(self.0[PART], factor.0[PART], sum.0[PART]) };
        sum
    }

    /// For each half, the first lane of the half that it is from, and lanes of that.
    type Choice = [(usize, __m256i); 2];

    #[inline(always)]
    fn choice(lanes: [u8; LANES]) -> [(usize, __m256i); 2] {
        let (mut numbers, [low, high]) =
            ([0; LANES], [0, LANES / 2].map(|half| usize::from(lanes[half]) & (LANES / 2)));
        for (number, lane) in numbers.iter_mut().zip(lanes) {
            *number = i32::from(lane) % (LANES / 2) as i32;
        }
        // SAFETY: this ISA's instructions are available, and each half of the numbers is read.
        unsafe {
            let numbers: *const __m256i = numbers.as_ptr().cast();
            [(low, _mm256_loadu_si256(numbers)), (high, _mm256_loadu_si256(numbers.add(1)))]
        }
    }

    #[inline(always)]
    unsafe fn load_chosen(from: *const f32, choice: [(usize, __m256i); 2]) -> Self {
        let [(low, in_low), (high, in_high)] = choice;
        // SAFETY: the caller guarantees the memory access; a half begins at lane 0 or 8.
        unsafe {
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(from.add(low)), in_low);
            Avx2([low, _mm256_permutevar8x32_ps(_mm256_loadu_ps(from.add(high)), in_high)])
        }
    }

    #[inline(always)]
    fn prefetch_far<T>(line: *const T) {
        // SAFETY: a prefetch has no architectural effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        let half = |ix: usize| unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(ix * LANES / 2).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        let half = |ix: usize| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(ix * LANES / 2).cast())) };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    fn splat_bf16(pair: u32) -> Self {
        // SAFETY: this ISA's instructions are available.
        let wide = unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_set1_epi32(pair.cast_signed()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        };
        Avx2([wide; 2])
    }

    #[inline(always)]
    fn splat_f16(pair: u32) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx2([unsafe { _mm256_cvtph_ps(_mm_set1_epi32(pair.cast_signed())) }; 2])
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            let (low, high) = (rounded_bf16(self.0[0]), rounded_bf16(self.0[1]));
            // Packing works within 128-bit halves, so the quarters are permuted.
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        for (ix, lanes) in self.0.into_iter().enumerate() {
            // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes);
                _mm_storeu_si128(to.add(ix * LANES / 2).cast(), halves);
            }
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        let half = |ix: usize| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(ix * LANES / 2).cast())))
        };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        let half = |ix: usize| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(ix * LANES / 2).cast())))
        };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            let words = words_within(self, 0.0, 255.0);
            _mm_storeu_si128(
                to.cast(),
                _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)),
            );
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            let words = words_within(self, -128.0, 127.0);
            _mm_storeu_si128(
                to.cast(),
                _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)),
            );
        }
    }

    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe {
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)))
        })
    }

    #[inline(always)]
    fn i32_to_f32(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        let half = |ix: usize| unsafe { _mm256_cvtepi32_ps(_mm256_castps_si256(self.0[ix])) };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    fn pair_sums(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        let sums = |a: __m256, b: __m256| unsafe {
            let sums = _mm256_castps_pd(_mm256_hadd_ps(a, b));
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(sums))
        };
        Avx2([sums(self.0[0], self.0[1]), sums(other.0[0], other.0[1])])
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx2([unsafe { _mm256_set1_ps(number) }; 2])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        Avx2(unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(LANES / 2))] })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            _mm256_storeu_ps(to, self.0[0]);
            _mm256_storeu_ps(to.add(LANES / 2), self.0[1]);
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        let half = |ix: usize| unsafe { _mm256_fmadd_ps(self.0[ix], factor.0[ix], sum.0[ix]) };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_add_ps(a, b) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_div_ps(a, b) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(self, |a, _| unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) })
    }

    #[inline(always)]
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        let half = |ix: usize| unsafe {
            let less = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0[ix], other.0[ix]);
            _mm256_blendv_ps(no.0[ix], yes.0[ix], less)
        };
        Avx2([half(0), half(1)])
    }

    #[inline(always)]
    fn scale(self, power: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx2(unsafe { [scaled(self.0[0], power.0[0]), scaled(self.0[1], power.0[1])] })
    }

    #[inline(always)]
    fn evens(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available. Shuffles work within 128-bit halves, so the quarters are permuted.
        let half = |of: [__m256; 2]| unsafe {
            let quarters = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(of[0], of[1]));
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(quarters))
        };
        Avx2([half(self.0), half(other.0)])
    }

    #[inline(always)]
    fn odds(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available. Shuffles work within 128-bit halves, so the quarters are permuted.
        let half = |of: [__m256; 2]| unsafe {
            let quarters = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(of[0], of[1]));
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(quarters))
        };
        Avx2([half(self.0), half(other.0)])
    }

    #[inline(always)]
    fn read_part(from: &[f32], rest: f32) -> Self {
        if let Some(from) = from.first_chunk::<LANES>() {
            return Self::read(from);
        }
        if from.is_empty() {
            return Self::splat(rest);
        }
        // SAFETY: this ISA's instructions are available; the slice has fewer than 16 elements.
        unsafe { load_first(from, rest) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: this ISA's instructions are available.
        unsafe { sum_of_eight(_mm256_add_ps(self.0[0], self.0[1])) }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: this ISA's instructions are available.
        unsafe { largest_of_eight(_mm256_max_ps(self.0[0], self.0[1])) }
    }

    #[inline(always)]
    fn write_part(self, to: &mut [f32]) {
        if let Some(to) = to.first_chunk_mut::<LANES>() {
            return self.write(to);
        }
        // SAFETY: this ISA's instructions are available; the slice has fewer than 16 elements.
        unsafe { store_first(self.0, to) }
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(self, |rounded, _| unsafe {
            let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded));
            _mm256_castsi256_ps(_mm256_add_epi32(power, _mm256_set1_epi32(127 << 23)))
        })
    }

    #[inline(always)]
    fn zip(self, other: Self) -> [Self; 2] {
        // SAFETY: this ISA's instructions are available.
        let half = |ix: usize| unsafe {
            let (low, high) =
                (_mm256_unpacklo_ps(self.0[ix], other.0[ix]), _mm256_unpackhi_ps(self.0[ix], other.0[ix]));
            Avx2([_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)])
        };
        [half(0), half(1)]
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_max_ps(a, b) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe { _mm256_min_ps(a, b) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        self.each(self, |a, _| unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) })
    }

    #[inline(always)]
    fn max_or_nan(self, other: Self) -> Self {
        // The instruction gives `b` where either is no number: lanes that are none already are kept.
        // SAFETY: this ISA's instructions are available.
        self.each(other, |a, b| unsafe {
            _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))
        })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut columns = rows;
        for (high_rows, high_columns) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut eight = [rows[0].0[0]; 8];
            for (row, half) in eight.iter_mut().enumerate() {
                *half = rows[high_rows * 8 + row].0[high_columns];
            }
            // SAFETY: this ISA's instructions are available.
            let turned = unsafe { transpose_eight(eight) };
            for (column, half) in turned.iter().enumerate() {
                columns[high_columns * 8 + column].0[high_rows] = *half;
            }
        }
        columns
    }
}

/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn transpose_eight(rows: [__m256; 8]) -> [__m256; 8] {
    let mut fours = rows;
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        for at in [0, 4] {
            let [a, b, c, d] = [rows[at], rows[at + 1], rows[at + 2], rows[at + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            fours[at] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
            fours[at + 1] = _mm256_shuffle_ps::<0xee>(ab_low, cd_low);
            fours[at + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
            fours[at + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
        }
        let mut columns = rows;
        for column in 0..4 {
            columns[column] = _mm256_permute2f128_ps::<0x20>(fours[column], fours[column + 4]);
            columns[column + 4] = _mm256_permute2f128_ps::<0x31>(fours[column], fours[column + 4]);
        }
        columns
    }
}

/// Loads the elements of a slice of fewer than 16; the remaining lanes are `rest`.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn load_first(from: &[f32], rest: f32) -> Avx2 {
    let Avx2(mut halves) = Avx2::splat(rest);
    for (ix, half) in halves.iter_mut().enumerate() {
        let first = ix * LANES / 2;
        // SAFETY: the caller's promise; lanes behind the slice are not read.
        unsafe {
            let mask = _mm256_loadu_si256(MASKS.as_ptr().add(LANES - from.len() + first).cast());
            let items = _mm256_maskload_ps(from.as_ptr().wrapping_add(first), mask);
            *half = _mm256_blendv_ps(*half, items, _mm256_castsi256_ps(mask));
        }
    }
    Avx2(halves)
}

/// Stores the first `to.len()` of sixteen lanes, in halves, quarters and so on, as the length has them: masked stores are slow on
/// AMD's processors, and loads cannot be forwarded from them.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn store_first([mut half, other]: [__m256; 2], to: &mut [f32]) {
    let (mut at, count) = (to.as_mut_ptr(), to.len());
    // SAFETY: the caller's promise; the stores write `count` elements in all, at most 15.
    unsafe {
        if count & 8 != 0 {
            _mm256_storeu_ps(at, half);
            (at, half) = (at.add(8), other);
        }
        let mut quarter = _mm256_castps256_ps128(half);
        if count & 4 != 0 {
            _mm_storeu_ps(at, quarter);
            (at, quarter) = (at.add(4), _mm256_extractf128_ps::<1>(half));
        }
        if count & 2 != 0 {
            _mm_storel_pd(at.cast(), _mm_castps_pd(quarter));
            (at, quarter) = (at.add(2), _mm_movehl_ps(quarter, quarter));
        }
        if count & 1 != 0 {
            _mm_store_ss(at, quarter);
        }
    }
}
