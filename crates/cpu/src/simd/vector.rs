//! [`Vector`]: 16 lanes of `f32` in the registers of one ISA.
//!
//! A kernel is written once, generic over [`Vector`], as an `#[inline(always)]` function; [`with_vector`] compiles it
//! for every ISA and dispatches. Sixteen lanes are one AVX-512 register, two of AVX2, four of NEON, so that blocked
//! layouts and packed weights are the same bytes for all.
//!
//! A closure, also one of `map` or `from_fn`, is compiled for the ISA only where the compiler inlines it: if it is used twice
//! or is large, each of its instructions becomes a call. Use loops and `#[inline(always)]` functions instead. A test looks for
//! such calls in the built program (`no_vector_instruction_is_behind_a_call`).

use types::{bf16, f16};

use crate::simd::Isa;

/// Lanes of a vector, and channels of a block.
pub(crate) const LANES: usize = 16;

/// Sixteen lanes of `f32`.
///
/// Its functions must be inlined into code that [`with_vector`] compiled for the ISA: only there are they sound to
/// call. Only that macro names the types that implement this trait.
pub(crate) trait Vector: Copy {
    /// The ISA of the registers.
    const ISA: Isa;

    /// Registers of a vector that [`Vector::mul_add_part`] names: 1 if there are enough registers for whole vectors.
    const PARTS: usize = 1;

    /// A lane to take for each lane of a vector.
    type Choice: Copy;

    /// Broadcasts a number to all lanes.
    fn splat(number: f32) -> Self;

    /// Loads 16 elements.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load(from: *const f32) -> Self;

    /// Stores 16 elements.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store(self, to: *mut f32);

    /// `self * factor + sum`, fused if the ISA has the instruction.
    fn mul_add(self, factor: Self, sum: Self) -> Self;

    /// The same in the lanes of one register; the others are those of `sum`. Loops over one part after the other need fewer
    /// registers than loops over whole vectors.
    #[inline(always)]
    fn mul_add_part<const PART: usize>(self, factor: Self, sum: Self) -> Self {
        self.mul_add(factor, sum)
    }

    /// `self + other`.
    fn add(self, other: Self) -> Self;

    /// `self - other`.
    fn sub(self, other: Self) -> Self;

    /// `self * other`.
    fn mul(self, other: Self) -> Self;

    /// `self / other`.
    fn div(self, other: Self) -> Self;

    /// `self / other` within 2^-14 of it: AVX-512 estimates the reciprocal.
    #[inline(always)]
    fn div_coarsely(self, other: Self) -> Self {
        self.div(other)
    }

    /// The absolute value.
    fn abs(self) -> Self;

    /// The larger of each pair; `other` if `self` is NaN.
    fn max(self, other: Self) -> Self;

    /// The smaller of each pair; `other` if `self` is NaN.
    fn min(self, other: Self) -> Self;

    /// The larger of each pair; NaN if either is NaN.
    fn max_or_nan(self, other: Self) -> Self;

    /// The smaller of each pair; NaN if either is NaN.
    #[inline(always)]
    fn min_or_nan(self, other: Self) -> Self {
        let minus = Self::splat(-1.0);
        self.mul(minus).max_or_nan(other.mul(minus)).mul(minus)
    }

    /// The nearest integer of each lane, the even one of two.
    #[inline(always)]
    fn round(self) -> Self {
        let mut lanes = self.to_array();
        for lane in &mut lanes {
            *lane = lane.round_ties_even();
        }
        Self::read(&lanes)
    }

    /// The larger of each pair, where `low` is not NaN; NaN in `self` stays NaN.
    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        low.max(self)
    }

    /// The smaller of each pair, where `high` is not NaN; NaN in `self` stays NaN.
    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        high.min(self)
    }

    /// Per lane: `yes` if `self < other`, else `no`.
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self;

    /// `self * 2^power` for integral powers from -150 to 129, rounded once or twice.
    fn scale(self, power: Self) -> Self;

    /// `2^n` for `self = n + 1.5 * 2^23` and integers `n` from -126 to 127; infinite for 128.
    fn power_of_two(self) -> Self;

    /// Interleaves the lanes of both: first their lower halves, then their upper halves.
    fn zip(self, other: Self) -> [Self; 2];

    /// The even lanes of both: first those of `self`.
    fn evens(self, other: Self) -> Self;

    /// The odd lanes of both: first those of `self`.
    fn odds(self, other: Self) -> Self;

    /// Chooses `lanes[i]` for lane `i`. The first eight must be of one half, and so must the last eight.
    fn choice(lanes: [u8; LANES]) -> Self::Choice;

    /// Loads the chosen of 16 elements.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load_chosen(from: *const f32, choice: Self::Choice) -> Self;

    /// Transposes: lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];

    /// Loads 16 `bf16`, given by their bits.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load_bf16(from: *const u16) -> Self;

    /// Loads 16 `f16`, given by their bits.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load_f16(from: *const u16) -> Self;

    /// Broadcasts a pair of `bf16`: the low half to even lanes, the high half to odd ones.
    fn splat_bf16(pair: u32) -> Self;

    /// Broadcasts a pair of `f16` in the same way.
    fn splat_f16(pair: u32) -> Self;

    /// Rounds to nearest even and stores 16 `bf16`.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store_bf16(self, to: *mut u16);

    /// The same in one instruction, which flushes subnormals to 0.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements. For AVX-512, the processor must have AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_bf16_at_once(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { self.store_bf16(to) }
    }

    /// Rounds to nearest even and stores 16 `f16`.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store_f16(self, to: *mut u16);

    /// Loads 16 `u8`.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load_u8(from: *const u8) -> Self;

    /// Loads 16 `i8`.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load_i8(from: *const i8) -> Self;

    /// Rounds to nearest even, saturates to `u8` (NaN to 0), and stores 16 elements.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store_u8(self, to: *mut u8);

    /// Rounds to nearest even, saturates to `i8` (NaN to 0), and stores 16 elements.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store_i8(self, to: *mut i8);

    /// Adds lanes whose bits are `i32`.
    fn add_i32(self, other: Self) -> Self;

    /// Converts lanes whose bits are `i32` to `f32`.
    fn i32_to_f32(self) -> Self;

    /// Horizontal sums of neighboring lanes: of `self` in the lower half, of `other` in the upper.
    fn pair_sums(self, other: Self) -> Self;

    /// Prefetches a cache line that will be read soon. Any address is allowed.
    #[inline(always)]
    fn prefetch<T>(_: *const T) {}

    /// Prefetches a cache line that will be read later, without displacing data in use.
    #[inline(always)]
    fn prefetch_far<T>(_: *const T) {}

    /// All lanes 0.
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// Loads the first 16 elements of a slice.
    ///
    /// # Panics
    /// If the slice is shorter.
    #[inline(always)]
    fn read(from: &[f32]) -> Self {
        let from: &[f32; LANES] = from.first_chunk().expect("the slice must have 16 elements");
        // SAFETY: the array has 16 elements.
        unsafe { Self::load(from.as_ptr()) }
    }

    /// Loads up to 16 elements of a slice; the remaining lanes are `rest`.
    #[inline(always)]
    fn read_part(from: &[f32], rest: f32) -> Self {
        match from.first_chunk::<LANES>() {
            Some(from) => Self::read(from),
            None => Self::read(&filled_up(from, rest)),
        }
    }

    /// Stores the first `to.len()` lanes, at most 16.
    #[inline(always)]
    fn write_part(self, to: &mut [f32]) {
        match to.first_chunk_mut::<LANES>() {
            Some(to) => self.write(to),
            None => copy_first(&self.to_array(), to),
        }
    }

    /// The sum of all lanes: adds lanes at distance 8 first, then 4, 2 and 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self;
        // Each iteration pairs lane `c` with lane `c + distance` and duplicates every result.
        for _ in 0..LANES.ilog2() {
            let [low, high] = lanes.zip(lanes);
            lanes = low.add(high);
        }
        lanes.to_array()[0]
    }

    /// The largest lane. No lane may be NaN.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = self;
        for _ in 0..LANES.ilog2() {
            let [low, high] = lanes.zip(lanes);
            lanes = low.max(high);
        }
        lanes.to_array()[0]
    }

    /// Stores to the first 16 elements of a slice.
    ///
    /// # Panics
    /// If the slice is shorter.
    #[inline(always)]
    fn write(self, to: &mut [f32]) {
        let to: &mut [f32; LANES] = to.first_chunk_mut().expect("the slice must have 16 elements");
        // SAFETY: the array has 16 elements.
        unsafe { self.store(to.as_mut_ptr()) }
    }

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.write(&mut lanes);
        lanes
    }
}

/// Every element at a distance of `stride` from the first, at most sixteen; lanes beyond the slice are 0.
#[inline(always)]
pub(crate) fn read_every<V: Vector>(from: &[f32], stride: usize) -> V {
    match stride {
        1 => V::read_part(from, 0.0),
        2 => V::read_part(from, 0.0).evens(V::read_part(from.get(LANES..).unwrap_or_default(), 0.0)),
        _ => {
            let mut lanes = [0.0; LANES];
            lanes.iter_mut().zip(from.iter().step_by(stride)).for_each(|(lane, &item)| *lane = item);
            V::read(&lanes)
        }
    }
}

/// Out of line, so that loops over whole vectors keep their registers.
#[cold]
#[inline(never)]
fn filled_up(from: &[f32], rest: f32) -> [f32; LANES] {
    let mut lanes = [rest; LANES];
    lanes[..from.len()].copy_from_slice(from);
    lanes
}

#[cold]
#[inline(never)]
fn copy_first(lanes: &[f32; LANES], to: &mut [f32]) {
    to.copy_from_slice(&lanes[..to.len()]);
}

/// The baseline of every architecture: loops that the compiler may vectorize.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn each(self, other: Self, function: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|lane| function(self.0[lane], other.0[lane])))
    }
}

impl Vector for Portable {
    const ISA: Isa = Isa::Portable;

    type Choice = [u8; LANES];

    #[inline(always)]
    fn choice(lanes: [u8; LANES]) -> [u8; LANES] {
        lanes.map(|lane| lane % LANES as u8)
    }

    #[inline(always)]
    unsafe fn load_chosen(from: *const f32, choice: [u8; LANES]) -> Self {
        // SAFETY: the caller guarantees the memory access.
        let from = unsafe { from.cast::<[f32; LANES]>().read_unaligned() };
        Portable(choice.map(|lane| from[usize::from(lane) % LANES]))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access.
        Portable(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(bf16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees the memory access.
        Portable(unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32))
    }

    #[inline(always)]
    fn splat_bf16(pair: u32) -> Self {
        let pair = [pair, pair >> 16].map(|bits| bf16::from_bits(bits as u16).to_f32());
        Portable(std::array::from_fn(|lane| pair[lane % 2]))
    }

    #[inline(always)]
    fn splat_f16(pair: u32) -> Self {
        let pair = [pair, pair >> 16].map(|bits| f16::from_bits(bits as u16).to_f32());
        Portable(std::array::from_fn(|lane| pair[lane % 2]))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { to.cast::<[bf16; LANES]>().write_unaligned(self.0.map(bf16::from_f32)) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { to.cast::<[f16; LANES]>().write_unaligned(self.0.map(f16::from_f32)) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees the memory access.
        Portable(unsafe { from.cast::<[u8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller guarantees the memory access.
        Portable(unsafe { from.cast::<[i8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { to.cast::<[u8; LANES]>().write(self.0.map(|lane| lane.round_ties_even() as u8)) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { to.cast::<[i8; LANES]>().write(self.0.map(|lane| lane.round_ties_even() as i8)) }
    }

    #[inline(always)]
    fn add_i32(self, other: Self) -> Self {
        let sum = |a: f32, b: f32| f32::from_bits(a.to_bits().wrapping_add(b.to_bits()));
        self.each(other, sum)
    }

    #[inline(always)]
    fn i32_to_f32(self) -> Self {
        Portable(self.0.map(|lane| lane.to_bits().cast_signed() as f32))
    }

    #[inline(always)]
    fn pair_sums(self, other: Self) -> Self {
        let half = LANES / 2;
        let from = |lane: usize| if lane < half { self.0 } else { other.0 };
        Portable(std::array::from_fn(|lane| from(lane)[lane % half * 2] + from(lane)[lane % half * 2 + 1]))
    }

    #[inline(always)]
    fn splat(number: f32) -> Self {
        Portable([number; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees the memory access; the unaligned read needs no alignment.
        Portable(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees the memory access.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, sum: Self) -> Self {
        // Without a guaranteed fused instruction, `f32::mul_add` is a slow library call.
        let fused = cfg!(target_arch = "aarch64");
        Portable(std::array::from_fn(|lane| match fused {
            true => self.0[lane].mul_add(factor.0[lane], sum.0[lane]),
            false => self.0[lane] * factor.0[lane] + sum.0[lane],
        }))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.each(other, |a, b| a / b)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Portable(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self {
        Portable(std::array::from_fn(|lane| if self.0[lane] < other.0[lane] { yes.0[lane] } else { no.0[lane] }))
    }

    #[inline(always)]
    fn scale(self, power: Self) -> Self {
        // In two steps: the power may exceed the range of one exponent.
        self.each(power, |item, power| {
            let (power, half) = (power as i32, (power as i32) >> 1);
            let exact = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
            item * exact(half) * exact(power - half)
        })
    }

    #[inline(always)]
    fn evens(self, other: Self) -> Self {
        let half = LANES / 2;
        let lane = |lane: usize| if lane < half { self.0[2 * lane] } else { other.0[2 * (lane - half)] };
        Portable(std::array::from_fn(lane))
    }

    #[inline(always)]
    fn odds(self, other: Self) -> Self {
        let half = LANES / 2;
        let lane = |lane: usize| if lane < half { self.0[2 * lane + 1] } else { other.0[2 * (lane - half) + 1] };
        Portable(std::array::from_fn(lane))
    }

    #[inline(always)]
    fn power_of_two(self) -> Self {
        Portable(self.0.map(|lane| f32::from_bits((lane.to_bits() << 23).wrapping_add(127 << 23))))
    }

    #[inline(always)]
    fn zip(self, other: Self) -> [Self; 2] {
        let (a, b) = (self.0, other.0);
        let half = |first: usize| {
            Portable(std::array::from_fn(|lane| if lane % 2 == 0 { a[first + lane / 2] } else { b[first + lane / 2] }))
        };
        [half(0), half(LANES / 2)]
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.each(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.each(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max_or_nan(self, other: Self) -> Self {
        self.each(other, |a, b| if b > a || b.is_nan() { b } else { a })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        std::array::from_fn(|row| Portable(std::array::from_fn(|lane| rows[lane].0[row])))
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

/// Calls an `#[inline(always)]` function `fn name<V: Vector>(..)` compiled for the given ISA. Further type parameters
/// follow the name; they must not be parameters of the enclosing function.
macro_rules! with_vector {
    ($isa:expr, $name:ident $(<$($more:ty),*>)? ($($arg:ident: $type:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                $name::<$crate::simd::vector::x86::Avx2 $($(, $more)*)?>($($arg),*)
            }
            #[target_feature(enable = "avx512f,avx2,fma,f16c")]
            fn avx512($($arg: $type),*) {
                $name::<$crate::simd::vector::x86::Avx512 $($(, $more)*)?>($($arg),*)
            }
            match $isa {
                // SAFETY: only pools hand out an ISA, and only one that the processor has.
                $crate::simd::Isa::Avx512 if $crate::simd::Isa::HAS_AVX512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => $name::<$crate::simd::vector::Portable $($(, $more)*)?>($($arg),*),
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            // Never inlined, so that it has all registers to itself, as the functions of other ISAs do.
            #[inline(never)]
            fn neon($($arg: $type),*) {
                $name::<$crate::simd::vector::neon::Neon $($(, $more)*)?>($($arg),*)
            }
            match $isa {
                $crate::simd::Isa::Neon => neon($($arg),*),
                _ => $name::<$crate::simd::vector::Portable $($(, $more)*)?>($($arg),*),
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            let _ = $isa;
            $name::<$crate::simd::vector::Portable $($(, $more)*)?>($($arg),*)
        }
    }};
}
pub(crate) use with_vector;

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    fn functions<V: Vector>(a: &[f32], b: &[f32], out: &mut Vec<[f32; LANES]>) {
        let (a, b) = (V::read(a), V::read(b));
        let results = [a.add(b), a.sub(b), a.max(b), a.min(b), a.mul_add(b, V::splat(0.5)), a.max_or_nan(b)];
        out.extend(results.map(V::to_array));
        out.push(b.max_or_nan(a).to_array());
        out.extend([a.max(b), b.max(a), a.min(b), b.min(a), b.at_least(a), b.at_most(a)].map(V::to_array));
        let rows = std::array::from_fn(|row| V::splat(100.0 * row as f32).add(a));
        out.extend(V::transpose(rows).map(V::to_array));
        out.extend(a.zip(b).map(V::to_array));
        out.push(a.evens(b).to_array());
        let rounded = |n: f32| V::splat(n + 12_582_912.0);
        out.extend([-126.0, -1.0, 0.0, 127.0, 128.0].map(|n| rounded(n).power_of_two().to_array()));
        out.extend([-150.0, -126.0, -3.0, 0.0, 127.0, 129.0].map(|power| a.scale(V::splat(power)).to_array()));
        out.push([a.sum(); LANES]);
        out.push([a.abs().largest(); LANES]);
        out.extend([a.mul(b), a.div(b), b.abs(), a.sub(b).abs(), a.if_less(b, V::splat(1.0), a)].map(V::to_array));
        for count in [0, 1, 5, 15, 16] {
            let mut lanes = [9.0; LANES];
            V::read_part(&a.to_array()[..count], 0.5).write(&mut lanes);
            a.write_part(&mut lanes[count / 2..count]);
            out.push(lanes);
        }
        out.push(a.odds(b).to_array());
    }

    #[test]
    fn every_isa_computes_the_same() {
        let a: [f32; LANES] = std::array::from_fn(|lane| lane as f32 - 7.5);
        let mut b: [f32; LANES] = std::array::from_fn(|lane| 0.25 * (lane * lane) as f32);
        b[3] = f32::NAN;
        let run = |isa: Isa| {
            let mut out = Vec::new();
            let (a, b, results) = (&a[..], &b[..], &mut out);
            with_vector!(isa, functions(a: &[f32], b: &[f32], results: &mut Vec<[f32; LANES]>));
            out
        };
        let want = run(Isa::Portable);
        assert_eq!(want[0][4], -3.5 + 4.0);
        assert_eq!((want[2][4], want[3][4]), (4.0, -3.5));
        assert!(want[5][3].is_nan() && want[6][3].is_nan());
        assert_eq!(want[5][4], 4.0);
        assert_eq!(
            want[7..13].iter().map(|lanes| lanes[3].is_nan()).collect::<Vec<_>>(),
            [true, false, true, false, true, true]
        );
        assert_eq!((want[11][4], want[12][4]), (4.0, -3.5));
        assert_eq!((want[13 + 2][0], want[13 + 2][5]), (-5.5, 494.5));
        assert_eq!((want[29][2], want[30][14]), (-6.5, 7.5), "interleaved lanes");
        assert_eq!(want.last().map(|lanes| (lanes[2], lanes[8])), Some((-2.5, 0.25)), "odd lanes");
        for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
            for (got, want) in run(isa).iter().flatten().zip(want.iter().flatten()) {
                assert!(got == want || got.is_nan() && want.is_nan(), "{isa}: {got} for {want}");
            }
        }
    }
}
