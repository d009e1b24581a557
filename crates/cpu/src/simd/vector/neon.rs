//! [`Vector`] in four NEON registers. NEON is mandatory on aarch64, so its instructions are always available.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::{Isa, LANES, Vector};

/// Registers of a vector, and lanes of a register.
const QUARTERS: usize = 4;
const QUARTER: usize = LANES / QUARTERS;

/// Four registers; the first holds the first lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon([float32x4_t; QUARTERS]);

impl Neon {
    #[inline(always)]
    fn each(self, other: Self, function: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Neon(from_fn(|ix| function(self.0[ix], other.0[ix])))
    }
}

impl Vector for Neon {
    const ISA: Isa = Isa::Neon;

    /// For each quarter, the bytes of its lanes in a vector.
    type Choice = [uint8x16_t; QUARTERS];

    #[inline(always)]
    fn choice(lanes: [u8; LANES]) -> [uint8x16_t; QUARTERS] {
        let mut bytes = [[0; 4 * QUARTER]; QUARTERS];
        for (at, byte) in bytes.as_flattened_mut().iter_mut().enumerate() {
            *byte = lanes[at / 4] % LANES as u8 * 4 + at as u8 % 4;
        }
        // SAFETY: NEON is available, and each array has sixteen bytes.
        bytes.map(|bytes| unsafe { vld1q_u8(bytes.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn load_chosen(from: *const f32, choice: [uint8x16_t; QUARTERS]) -> Self {
        // SAFETY: the caller guarantees the memory access.
        unsafe {
            let lanes = vld1q_u8_x4(from.cast());
            Neon(choice.map(|bytes| vreinterpretq_f32_u8(vqtbl4q_u8(lanes, bytes))))
        }
    }

    #[inline(always)]
    fn prefetch_far<T>(line: *const T) {
        // SAFETY: a prefetch has no architectural effect.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access.
        let [low, high] = unsafe { [vld1q_u16(from), vld1q_u16(from.add(LANES / 2))] };
        wide_bf16(low, high)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access.
        let [low, high] = unsafe { [vld1q_u16(from), vld1q_u16(from.add(LANES / 2))] };
        wide_f16(low, high)
    }

    #[inline(always)]
    fn splat_bf16(pair: u32) -> Self {
        // SAFETY: NEON is available.
        Neon([four_bf16(unsafe { vreinterpret_u16_u32(vdup_n_u32(pair)) }); QUARTERS])
    }

    #[inline(always)]
    fn splat_f16(pair: u32) -> Self {
        // SAFETY: NEON is available.
        Neon([four_f16(unsafe { vreinterpret_u16_u32(vdup_n_u32(pair)) }); QUARTERS])
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: NEON is available.
        let rounded = self.0.map(|lanes| unsafe {
            let bits = vreinterpretq_u32_f32(lanes);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            // NaN stays NaN.
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            vbslq_u32(vceqq_f32(lanes, lanes), rounded, quiet)
        });
        for (ix, [low, high]) in rounded.as_chunks().0.iter().enumerate() {
            // SAFETY: the caller guarantees the memory access.
            unsafe {
                let halves = vshrn_high_n_u32::<16>(vshrn_n_u32::<16>(*low), *high);
                vst1q_u16(to.add(ix * LANES / 2), halves);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        for (ix, [low, high]) in self.0.as_chunks().0.iter().enumerate() {
            // SAFETY: the caller guarantees the memory access.
            unsafe {
                let halves = vcvt_high_f16_f32(vcvt_f16_f32(*low), *high);
                vst1q_u16(to.add(ix * LANES / 2), vreinterpretq_u16_f16(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees the memory access.
        unsafe {
            let bytes = vld1q_u8(from);
            let [low, high] = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)];
            let words = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            Neon(words.map(|words| vcvtq_f32_u32(words)))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller guarantees the memory access.
        unsafe {
            let bytes = vld1q_s8(from);
            let [low, high] = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
            let words = [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ];
            Neon(words.map(|words| vcvtq_f32_s32(words)))
        }
    }

    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8) {
        let [low, high] = self.shorts();
        // SAFETY: the caller guarantees the memory access.
        unsafe { vst1q_u8(to, vqmovun_high_s16(vqmovun_s16(low), high)) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        let [low, high] = self.shorts();
        // SAFETY: the caller guarantees the memory access.
        unsafe { vst1q_s8(to, vqmovn_high_s16(vqmovn_s16(low), high)) }
    }

    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe {
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)))
        })
    }

    #[inline(always)]
    fn i32_to_f32(self) -> Self {
        // SAFETY: NEON is available.
        Neon(self.0.map(|lanes| unsafe { vcvtq_f32_s32(vreinterpretq_s32_f32(lanes)) }))
    }

    #[inline(always)]
    fn pair_sums(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        let sums = |a: float32x4_t, b: float32x4_t| unsafe { vpaddq_f32(a, b) };
        let (a, b) = (self.0, other.0);
        Neon([sums(a[0], a[1]), sums(a[2], a[3]), sums(b[0], b[1]), sums(b[2], b[3])])
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        // SAFETY: NEON is available.
        Neon([unsafe { vdupq_n_f32(number) }; QUARTERS])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees the memory access.
        Neon(from_fn(|ix| unsafe { vld1q_f32(from.add(ix * QUARTER)) }))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (ix, lanes) in self.0.into_iter().enumerate() {
            // SAFETY: the caller guarantees the memory access.
            unsafe { vst1q_f32(to.add(ix * QUARTER), lanes) };
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: NEON is available.
        Neon(from_fn(|ix| unsafe { vfmaq_f32(sum.0[ix], self.0[ix], factor.0[ix]) }))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: NEON is available.
        Neon(self.0.map(|lanes| unsafe { vabsq_f32(lanes) }))
    }

    #[inline(always)]
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: NEON is available.
        Neon(from_fn(|ix| unsafe { vbslq_f32(vcltq_f32(self.0[ix], other.0[ix]), yes.0[ix], no.0[ix]) }))
    }

    #[inline(always)]
    fn scale(self, power: Self) -> Self {
        // SAFETY: NEON is available. In two steps: a power may leave the range of one exponent.
        self.each(power, |item, power| unsafe {
            let power = vcvtq_s32_f32(power);
            let half = vshrq_n_s32::<1>(power);
            let exact = |power| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(power, vdupq_n_s32(127))));
            vmulq_f32(vmulq_f32(item, exact(half)), exact(vsubq_s32(power, half)))
        })
    }

    #[inline(always)]
    fn evens(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        let quarter = |of: [float32x4_t; 4], ix: usize| unsafe { vuzp1q_f32(of[2 * ix], of[2 * ix + 1]) };
        Neon([quarter(self.0, 0), quarter(self.0, 1), quarter(other.0, 0), quarter(other.0, 1)])
    }

    #[inline(always)]
    fn odds(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        let quarter = |of: [float32x4_t; 4], ix: usize| unsafe { vuzp2q_f32(of[2 * ix], of[2 * ix + 1]) };
        Neon([quarter(self.0, 0), quarter(self.0, 1), quarter(other.0, 0), quarter(other.0, 1)])
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        // SAFETY: NEON is available.
        self.each(self, |rounded, _| unsafe {
            let power = vshlq_n_s32::<23>(vreinterpretq_s32_f32(rounded));
            vreinterpretq_f32_s32(vaddq_s32(power, vdupq_n_s32(127 << 23)))
        })
    }

    #[inline(always)]
    fn zip(self, other: Self) -> [Self; 2] {
        // SAFETY: NEON is available.
        let turns = |ix: usize| unsafe { [vzip1q_f32(self.0[ix], other.0[ix]), vzip2q_f32(self.0[ix], other.0[ix])] };
        let [[a, b], [c, d], [e, f], [g, h]] = from_fn(turns);
        [Neon([a, b, c, d]), Neon([e, f, g, h])]
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // No instruction gives `other` for what is no number, and none where it is none itself.
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: NEON is available. As `max`.
        self.each(other, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(low, |a, b| unsafe { vmaxq_f32(a, b) })
    }

    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(high, |a, b| unsafe { vminq_f32(a, b) })
    }

    #[inline(always)]
    fn max_or_nan(self, other: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(other, |a, b| unsafe { vmaxq_f32(a, b) })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut columns = rows;
        for row in 0..QUARTERS {
            for column in 0..QUARTERS {
                let turned = transpose_four(from_fn(|ix| rows[row * QUARTER + ix].0[column]));
                for (ix, lanes) in turned.into_iter().enumerate() {
                    columns[column * QUARTER + ix].0[row] = lanes;
                }
            }
        }
        columns
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: NEON is available.
        unsafe {
            let sums = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            vpadds_f32(vadd_f32(vget_low_f32(sums), vget_high_f32(sums)))
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: NEON is available.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, c), vmaxq_f32(b, d))) }
    }
}

impl Neon {
    /// Rounds to nearest even and saturates to 16-bit integers; NaN becomes 0.
    #[inline(always)]
    fn shorts(self) -> [int16x8_t; 2] {
        // SAFETY: NEON is available. The conversion turns NaN into 0 and saturates to `i32`.
        unsafe {
            let [a, b, c, d] = self.0.map(|lanes| vcvtnq_s32_f32(lanes));
            [vqmovn_high_s32(vqmovn_s32(a), b), vqmovn_high_s32(vqmovn_s32(c), d)]
        }
    }
}

#[inline(always)]
fn four_bf16(halves: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is available.
    unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(halves)) }
}

#[inline(always)]
fn four_f16(halves: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is available.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(halves)) }
}

#[inline(always)]
fn wide_bf16(low: uint16x8_t, high: uint16x8_t) -> Neon {
    // SAFETY: NEON is available.
    let eight =
        |halves| unsafe { [four_bf16(vget_low_u16(halves)), vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves))] };
    let ([a, b], [c, d]) = (eight(low), eight(high));
    Neon([a, b, c, d])
}

#[inline(always)]
fn wide_f16(low: uint16x8_t, high: uint16x8_t) -> Neon {
    // SAFETY: NEON is available.
    let eight = |halves| unsafe { [four_f16(vget_low_u16(halves)), vcvt_high_f32_f16(vreinterpretq_f16_u16(halves))] };
    let ([a, b], [c, d]) = (eight(low), eight(high));
    Neon([a, b, c, d])
}

/// Transposes: lane `i` of register `j` becomes lane `j` of register `i`.
#[inline(always)]
fn transpose_four([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: NEON is available.
    unsafe {
        let pairs = |a, b| [vreinterpretq_f64_f32(vtrn1q_f32(a, b)), vreinterpretq_f64_f32(vtrn2q_f32(a, b))];
        let ([ab_even, ab_odd], [cd_even, cd_odd]) = (pairs(a, b), pairs(c, d));
        [
            vzip1q_f64(ab_even, cd_even),
            vzip1q_f64(ab_odd, cd_odd),
            vzip2q_f64(ab_even, cd_even),
            vzip2q_f64(ab_odd, cd_odd),
        ]
        .map(|lanes| vreinterpretq_f32_f64(lanes))
    }
}

/// A word in the first lane of a register; the second lane is 0. The barrier keeps the compiler from broadcasting the
/// load, whose instruction has no register-offset addressing.
#[inline(always)]
fn first_lane(word: u32) -> float64x1_t {
    // SAFETY: NEON is available.
    let word = unsafe { vcreate_f64(u64::from(word)) };
    let same;
    // SAFETY: the template is only a comment; it emits no instruction and leaves the register unchanged.
    unsafe { asm!("/* {0:d} */", inlateout(vreg) word => same, options(pure, nomem, nostack, preserves_flags)) };
    same
}

/// Elements of one register, each of which is multiplied with all lanes of a vector.
#[derive(Clone, Copy)]
pub(crate) struct Items(float32x4_t);

impl Items {
    /// The `f32` of a word.
    #[inline(always)]
    pub(crate) fn f32(word: u32) -> Items {
        // SAFETY: NEON is available.
        Items(unsafe { vdupq_n_f32(vget_lane_f32::<0>(vreinterpret_f32_f64(first_lane(word)))) })
    }

    /// The two `bf16` of a word.
    #[inline(always)]
    pub(crate) fn bf16(word: u32) -> Items {
        // SAFETY: NEON is available.
        Items(four_bf16(unsafe { vreinterpret_u16_f64(first_lane(word)) }))
    }

    /// The two `f16` of a word.
    #[inline(always)]
    pub(crate) fn f16(word: u32) -> Items {
        // SAFETY: NEON is available.
        Items(four_f16(unsafe { vreinterpret_u16_f64(first_lane(word)) }))
    }
}

/// Multiplications of the GEMM tile.
impl Neon {
    /// `sum + self * item`, with one of the items broadcast to all lanes.
    #[inline(always)]
    pub(crate) fn add_product<const ITEM: i32>(self, items: Items, sum: Self) -> Self {
        // SAFETY: NEON is available.
        self.each(sum, |lanes, sum| unsafe { vfmaq_laneq_f32::<ITEM>(sum, lanes, items.0) })
    }

    /// Of 16 pairs of `bf16`, the low halves and the high halves.
    ///
    /// # Safety
    /// `from` must be readable for 32 elements.
    #[inline(always)]
    pub(crate) unsafe fn load_bf16_apart(from: *const u16) -> [Self; 2] {
        // SAFETY: the caller guarantees the memory access.
        let pairs: [uint32x4_t; QUARTERS] = from_fn(|ix| unsafe {
            let halves = vld1q_u16(from.add(2 * QUARTER * ix));
            vreinterpretq_u32_u16(halves)
        });
        // SAFETY: NEON is available.
        let low = pairs.map(|pairs| unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)) });
        // SAFETY: NEON is available.
        let high = pairs.map(|pairs| unsafe { vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000))) });
        [Neon(low), Neon(high)]
    }

    /// The same for `f16`.
    ///
    /// # Safety
    /// `from` must be readable for 32 elements.
    #[inline(always)]
    pub(crate) unsafe fn load_f16_apart(from: *const u16) -> [Self; 2] {
        // SAFETY: the caller guarantees the memory access.
        let [first, second] = unsafe { [vld2q_u16(from), vld2q_u16(from.add(LANES))] };
        [wide_f16(first.0, second.0), wide_f16(first.1, second.1)]
    }
}

/// Sixteen `i32` accumulators.
#[derive(Clone, Copy)]
pub(crate) struct Int32Lanes([int32x4_t; QUARTERS]);

/// Four `i8` in the first lane of a register.
#[derive(Clone, Copy)]
pub(crate) struct DotWord(int8x8_t);

/// Four `i8` per lane.
#[derive(Clone, Copy)]
pub(crate) struct DotWeights([int8x16_t; QUARTERS]);

impl DotWord {
    /// Four `u8`, less 128.
    #[inline(always)]
    pub(crate) fn less_128(bytes: u32) -> DotWord {
        // SAFETY: NEON is available.
        DotWord(unsafe { vreinterpret_s8_u8(veor_u8(vreinterpret_u8_f64(first_lane(bytes)), vdup_n_u8(0x80))) })
    }

    #[inline(always)]
    pub(crate) fn ones() -> DotWord {
        // SAFETY: NEON is available.
        DotWord(unsafe { vdup_n_s8(1) })
    }
}

impl DotWeights {
    /// # Safety
    /// `from` must be readable for 64 bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(from: *const i8) -> DotWeights {
        // SAFETY: the caller guarantees the memory access.
        DotWeights(from_fn(|ix| unsafe { vld1q_s8(from.add(ix * LANES)) }))
    }
}

impl Default for Int32Lanes {
    #[inline(always)]
    fn default() -> Int32Lanes {
        // SAFETY: NEON is available.
        Int32Lanes([unsafe { vdupq_n_s32(0) }; QUARTERS])
    }
}

impl Int32Lanes {
    #[inline(always)]
    pub(crate) fn add(self, other: Int32Lanes) -> Int32Lanes {
        // SAFETY: NEON is available.
        Int32Lanes(from_fn(|ix| unsafe { vaddq_s32(self.0[ix], other.0[ix]) }))
    }

    #[inline(always)]
    pub(crate) fn times_128(self) -> Int32Lanes {
        // SAFETY: NEON is available.
        Int32Lanes(self.0.map(|sums| unsafe { vshlq_n_s32::<7>(sums) }))
    }

    /// `self + a * b`. Use it only in code compiled for dot products.
    #[inline(always)]
    pub(crate) fn add_dot(self, a: DotWord, b: DotWeights) -> Int32Lanes {
        // No closure: only inlined code is compiled for the feature.
        let ([s, t, u, v], [e, f, g, h]) = (self.0, b.0);
        Int32Lanes([add_dot(s, a, e), add_dot(t, a, f), add_dot(u, a, g), add_dot(v, a, h)])
    }

    /// Reinterprets the bits.
    #[inline(always)]
    pub(crate) fn bits(self) -> Neon {
        // SAFETY: NEON is available.
        Neon(self.0.map(|sums| unsafe { vreinterpretq_f32_s32(sums) }))
    }
}

/// `sum + a * b` of four lanes. Use it only in code compiled for dot products.
#[inline(always)]
fn add_dot(mut sum: int32x4_t, a: DotWord, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction, whose intrinsic is not stable, is available and has no other effect.
    unsafe {
        asm!("sdot {sum:v}.4s, {b:v}.16b, {a:v}.4b[0]", sum = inlateout(vreg) sum, a = in(vreg) a.0, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Sixteen `i32` accumulators, each as two neighboring partial sums.
#[derive(Clone, Copy)]
pub(crate) struct WideInt32Lanes([int32x4_t; 2 * QUARTERS]);

/// Four bytes, each widened to 16 bits, twice.
#[derive(Clone, Copy)]
pub(crate) struct WideWord(int16x8_t);

/// Four `i8` per lane, each widened to 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct WideWeights([int16x8_t; 2 * QUARTERS]);

impl WideWord {
    #[inline(always)]
    pub(crate) fn new(bytes: u32) -> WideWord {
        // SAFETY: NEON is available.
        WideWord(unsafe { vreinterpretq_s16_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)))) })
    }
}

impl WideWeights {
    /// # Safety
    /// `from` must be readable for 64 bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(from: *const i8) -> WideWeights {
        // SAFETY: the caller guarantees the memory access.
        WideWeights(from_fn(|ix| unsafe { vmovl_s8(vld1_s8(from.add(ix * LANES / 2))) }))
    }
}

impl Default for WideInt32Lanes {
    #[inline(always)]
    fn default() -> WideInt32Lanes {
        // SAFETY: NEON is available.
        WideInt32Lanes([unsafe { vdupq_n_s32(0) }; 2 * QUARTERS])
    }
}

impl WideInt32Lanes {
    #[inline(always)]
    pub(crate) fn add(self, other: WideInt32Lanes) -> WideInt32Lanes {
        // SAFETY: NEON is available.
        WideInt32Lanes(from_fn(|ix| unsafe { vaddq_s32(self.0[ix], other.0[ix]) }))
    }

    /// `self + a * b`. The product of a `u8` and an `i8` fits in 16 bits.
    #[inline(always)]
    pub(crate) fn add_products(self, a: WideWord, b: WideWeights) -> WideInt32Lanes {
        // SAFETY: NEON is available.
        WideInt32Lanes(from_fn(|ix| unsafe { vpadalq_s16(self.0[ix], vmulq_s16(a.0, b.0[ix])) }))
    }

    /// The bits of each lane's sum.
    #[inline(always)]
    pub(crate) fn bits(self) -> Neon {
        // SAFETY: NEON is available.
        Neon(from_fn(|ix| unsafe { vreinterpretq_f32_s32(vpaddq_s32(self.0[2 * ix], self.0[2 * ix + 1])) }))
    }
}
