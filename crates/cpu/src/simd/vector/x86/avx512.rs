//! [`Vector`] in AVX-512 registers.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::super::{Isa, LANES, Vector};
use super::avx2::{largest_of_eight, store_first, sum_of_eight};

/// One AVX-512 register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// The first eight lanes, and the others.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn halves(items: __m512) -> [__m256; 2] {
    // SAFETY: the caller guarantees AVX-512.
    unsafe { [_mm512_castps512_ps256(items), _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(items)))] }
}

// SAFETY of every block below: by the trait's contract, only code compiled for the ISA calls these functions.
impl Vector for Avx512 {
    const ISA: Isa = Isa::Avx512;

    type Choice = __m512i;

    #[inline(always)]
    fn choice(lanes: [u8; LANES]) -> __m512i {
        // SAFETY: this ISA's instructions are available, and the array has sixteen bytes.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(lanes.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load_chosen(from: *const f32, choice: __m512i) -> Self {
        // SAFETY: the caller guarantees the memory access; the instruction reads the low four bits of a choice.
        Avx512(unsafe { _mm512_permutexvar_ps(choice, _mm512_loadu_ps(from)) })
    }

    #[inline(always)]
    fn prefetch<T>(line: *const T) {
        // SAFETY: a prefetch has no architectural effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    #[inline(always)]
    fn prefetch_far<T>(line: *const T) {
        // SAFETY: a prefetch has no architectural effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe { wide_bf16(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    fn splat_bf16(pair: u32) -> Self {
        // SAFETY: this ISA's instructions are available.
        unsafe { wide_bf16(_mm256_set1_epi32(pair.cast_signed())) }
    }

    #[inline(always)]
    fn splat_f16(pair: u32) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_cvtph_ps(_mm256_set1_epi32(pair.cast_signed())) })
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            // NaN stays NaN.
            let none = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let halves = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(none, rounded, quiet));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(halves));
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_at_once(self, to: *mut u16) {
        // SAFETY: the caller guarantees AVX512-BF16 and 16 writable elements.
        unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(self.0)) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        Avx512(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        Avx512(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            // NaN becomes 0, the second operand of `max`; numbers above all integers saturate to the largest unsigned
            // one.
            let whole = _mm512_cvtps_epi32(_mm512_max_ps(self.0, _mm512_setzero_ps()));
            _mm_storeu_si128(to.cast(), _mm512_cvtusepi32_epi8(whole));
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe {
            let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(self.0, self.0);
            // Numbers below all integers saturate to the smallest signed one.
            let whole = _mm512_maskz_cvtps_epi32(is_number, _mm512_min_ps(self.0, _mm512_set1_ps(127.0)));
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(whole));
        }
    }

    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        let sum = unsafe { _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_castps_si512(other.0)) };
        // SAFETY: as above.
        Avx512(unsafe { _mm512_castsi512_ps(sum) })
    }

    #[inline(always)]
    fn i32_to_f32(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_cvtepi32_ps(_mm512_castps_si512(self.0)) })
    }

    #[inline(always)]
    fn pair_sums(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            let even = _mm512_permutex2var_ps(self.0, even, other.0);
            Avx512(_mm512_add_ps(even, _mm512_permutex2var_ps(self.0, odd, other.0)))
        }
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        Avx512(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees the memory access; this ISA's instructions are available.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_fmadd_ps(self.0, factor.0, sum.0) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn div_coarsely(self, other: Self) -> Self {
        // SAFETY: AVX-512F is available.
        Avx512(unsafe { _mm512_mul_ps(self.0, _mm512_rcp14_ps(other.0)) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_abs_ps(self.0) })
    }

    #[inline(always)]
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0);
            Avx512(_mm512_mask_blend_ps(less, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn read_part(from: &[f32], rest: f32) -> Self {
        if let Some(from) = from.first_chunk::<LANES>() {
            return Self::read(from);
        }
        // SAFETY: this ISA's instructions are available; lanes behind the slice are not read.
        Avx512(unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(rest), first(from.len()), from.as_ptr()) })
    }

    #[inline(always)]
    fn write_part(self, to: &mut [f32]) {
        if let Some(to) = to.first_chunk_mut::<LANES>() {
            return self.write(to);
        }
        // SAFETY: this ISA's instructions are available, those of AVX2 too; the slice has fewer than 16 elements.
        unsafe { store_first(halves(self.0), to) };
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: this ISA's instructions are available, those of AVX2 too.
        unsafe {
            let [low, high] = halves(self.0);
            sum_of_eight(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: this ISA's instructions are available, those of AVX2 too.
        unsafe {
            let [low, high] = halves(self.0);
            largest_of_eight(_mm256_max_ps(low, high))
        }
    }

    #[inline(always)]
    fn scale(self, power: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_scalef_ps(self.0, power.0) })
    }

    #[inline(always)]
    fn evens(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            Avx512(_mm512_permutex2var_ps(self.0, lanes, other.0))
        }
    }

    #[inline(always)]
    fn odds(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        unsafe {
            let lanes = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            Avx512(_mm512_permutex2var_ps(self.0, lanes, other.0))
        }
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe {
            let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_set1_epi32(127 << 23)))
        })
    }

    #[inline(always)]
    fn zip(self, other: Self) -> [Self; 2] {
        // SAFETY: this ISA's instructions are available.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            let low = Avx512(_mm512_permutex2var_ps(self.0, low, other.0));
            [low, Avx512(_mm512_permutex2var_ps(self.0, high, other.0))]
        }
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(self.0) })
    }

    #[inline(always)]
    fn max_or_nan(self, other: Self) -> Self {
        // The instruction gives `other` where either is no number: it is kept away from lanes that are none already.
        // SAFETY: this ISA's instructions are available.
        Avx512(unsafe {
            let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(self.0, self.0);
            _mm512_mask_max_ps(self.0, numbers, self.0, other.0)
        })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut pairs = rows;
        let mut fours = rows;
        let mut columns = rows;
        for four in 0..4 {
            let at = 4 * four;
            // SAFETY: this ISA's instructions are available.
            unsafe {
                for pair in [at, at + 2] {
                    pairs[pair].0 = _mm512_unpacklo_ps(rows[pair].0, rows[pair + 1].0);
                    pairs[pair + 1].0 = _mm512_unpackhi_ps(rows[pair].0, rows[pair + 1].0);
                }
                let (a, b) = (_mm512_castps_pd(pairs[at].0), _mm512_castps_pd(pairs[at + 2].0));
                let (c, d) = (_mm512_castps_pd(pairs[at + 1].0), _mm512_castps_pd(pairs[at + 3].0));
                fours[at].0 = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[at + 1].0 = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                fours[at + 2].0 = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
                fours[at + 3].0 = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
            }
        }
        // Quarter `q` of `fours[4 * r + c]` has column `4 * q + c` of rows `4 * r` to `4 * r + 3`.
        for column in 0..4 {
            let (a, b) = (fours[column].0, fours[column + 4].0);
            let (c, d) = (fours[column + 8].0, fours[column + 12].0);
            // SAFETY: this ISA's instructions are available.
            unsafe {
                let (ab_even, ab_odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (cd_even, cd_odd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                columns[column].0 = _mm512_shuffle_f32x4::<0x88>(ab_even, cd_even);
                columns[column + 4].0 = _mm512_shuffle_f32x4::<0x88>(ab_odd, cd_odd);
                columns[column + 8].0 = _mm512_shuffle_f32x4::<0xdd>(ab_even, cd_even);
                columns[column + 12].0 = _mm512_shuffle_f32x4::<0xdd>(ab_odd, cd_odd);
            }
        }
        columns
    }
}

impl Avx512 {
    /// `self + a * b`, where lanes of `a` and `b` are pairs of `bf16`. Use it only in code compiled for AVX512-BF16.
    #[inline(always)]
    pub(crate) fn add_dot(self, a: Avx512, b: Avx512) -> Avx512 {
        // SAFETY: only called from code compiled for AVX512-BF16; the register's bits are 32 halves.
        Avx512(unsafe {
            _mm512_dpbf16_ps(self.0, transmute::<__m512, __m512bh>(a.0), transmute::<__m512, __m512bh>(b.0))
        })
    }
}

/// Sixteen `i32` accumulators.
#[derive(Clone, Copy)]
pub(crate) struct Int32Lanes512(__m512i);

impl Int32Lanes512 {
    #[inline(always)]
    pub(crate) fn zero() -> Int32Lanes512 {
        // SAFETY: only called from code compiled for AVX-512.
        Int32Lanes512(unsafe { _mm512_setzero_si512() })
    }

    /// Broadcasts four bytes to all lanes.
    #[inline(always)]
    pub(crate) fn splat(bytes: u32) -> Int32Lanes512 {
        // SAFETY: only called from code compiled for AVX-512.
        Int32Lanes512(unsafe { _mm512_set1_epi32(bytes.cast_signed()) })
    }

    /// # Safety
    /// `from` must be readable for 64 bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(from: *const u8) -> Int32Lanes512 {
        // SAFETY: the caller guarantees the memory access; only called from code compiled for AVX-512.
        Int32Lanes512(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    pub(crate) fn add(self, other: Int32Lanes512) -> Int32Lanes512 {
        // SAFETY: only called from code compiled for AVX-512.
        Int32Lanes512(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    /// `self + a * b`, where lanes of `a` hold four `u8` and lanes of `b` four `i8`. Use it only in code compiled for
    /// AVX512-VNNI.
    #[inline(always)]
    pub(crate) fn add_dot(self, a: Int32Lanes512, b: Int32Lanes512) -> Int32Lanes512 {
        // SAFETY: only called from code compiled for AVX512-VNNI.
        Int32Lanes512(unsafe { _mm512_dpbusd_epi32(self.0, a.0, b.0) })
    }

    /// Reinterprets the bits.
    #[inline(always)]
    pub(crate) fn of_bits(lanes: Avx512) -> Int32Lanes512 {
        // SAFETY: only called from code compiled for AVX-512.
        Int32Lanes512(unsafe { _mm512_castps_si512(lanes.0) })
    }

    /// Reinterprets the bits.
    #[inline(always)]
    pub(crate) fn bits(self) -> Avx512 {
        // SAFETY: only called from code compiled for AVX-512.
        Avx512(unsafe { _mm512_castsi512_ps(self.0) })
    }
}

/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
unsafe fn wide_bf16(halves: __m256i) -> Avx512 {
    // SAFETY: the caller guarantees AVX-512 F.
    Avx512(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) })
}

/// A mask of the first `count` lanes.
#[inline(always)]
fn first(count: usize) -> u16 {
    ((1u32 << count.min(LANES)) - 1) as u16
}
