//! [`Vector`]: sixteen lanes of `f32` in the registers of one family of instructions.
//!
//! A kernel is written once, generic over [`Vector`], as an `#[inline(always)]` function; [`with_vector`] compiles it for
//! every family and picks one. Sixteen lanes are one register of AVX-512, two of AVX2, four of NEON: blocked layouts and
//! packed weights are the same bytes for all.

use types::{bf16, f16};

use crate::simd::Isa;

/// Lanes of a vector, and channels of a block.
pub(crate) const LANES: usize = 16;

/// Sixteen lanes of `f32`.
///
/// Its functions are meant to be inlined into code that [`with_vector`] compiled for the family: only there are they
/// sound to call, and only that macro names the types that implement this trait.
pub(crate) trait Vector: Copy {
    /// Its family.
    const ISA: Isa;

    /// The same number in all lanes.
    fn splat(number: f32) -> Self;

    /// Sixteen elements from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load(from: *const f32) -> Self;

    /// Writes sixteen elements from `to` on.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store(self, to: *mut f32);

    /// `self * factor + sum`, rounded once where the family can.
    fn mul_add(self, factor: Self, sum: Self) -> Self;

    /// `self + other`.
    fn add(self, other: Self) -> Self;

    /// `self - other`.
    fn sub(self, other: Self) -> Self;

    /// `self * other`.
    fn mul(self, other: Self) -> Self;

    /// `self / other`.
    fn div(self, other: Self) -> Self;

    /// Without the sign.
    fn abs(self) -> Self;

    /// The larger of each pair; `other` where `self` is no number.
    fn max(self, other: Self) -> Self;

    /// The smaller of each pair; `other` where `self` is no number.
    fn min(self, other: Self) -> Self;

    /// The larger of each pair; no number where either is none.
    fn max_or_nan(self, other: Self) -> Self;

    /// The larger of each pair, where `low` is a number; what is none itself stays so.
    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        low.max(self)
    }

    /// The smaller of each pair, where `high` is a number; what is none itself stays so.
    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        high.min(self)
    }

    /// Of each pair of lanes: `yes` where `self < other`, else `no`.
    fn if_less(self, other: Self, yes: Self, no: Self) -> Self;

    /// `self * 2^power` for whole powers from -150 to 129, rounded once or twice.
    fn scale(self, power: Self) -> Self;

    /// The lanes of both in turns: of their first halves, and of their second halves.
    fn zip(self, other: Self) -> [Self; 2];

    /// Lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];

    /// Sixteen elements of `bf16`, given by their bits.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_bf16(from: *const u16) -> Self;

    /// Sixteen elements of `f16`, given by their bits.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_f16(from: *const u16) -> Self;

    /// Two elements of `bf16` in turns, the one at the lower place in even lanes.
    fn splat_bf16(pair: u32) -> Self;

    /// Two elements of `f16` in turns.
    fn splat_f16(pair: u32) -> Self;

    /// Rounds to nearest, ties to even, and writes sixteen elements of `bf16`.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_bf16(self, to: *mut u16);

    /// The same in one instruction; what is less than the least normal number becomes 0.
    ///
    /// # Safety
    /// They can be written. Of AVX-512: the processor has AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store_bf16_at_once(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { self.store_bf16(to) }
    }

    /// Rounds to nearest, ties to even, and writes sixteen elements of `f16`.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_f16(self, to: *mut u16);

    /// Sixteen bytes.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_u8(from: *const u8) -> Self;

    /// Sixteen bytes with a sign.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_i8(from: *const i8) -> Self;

    /// Rounds to the nearest whole numbers that bytes hold, ties to even, what is no number to 0; and writes sixteen.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_u8(self, to: *mut u8);

    /// The same with a sign.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_i8(self, to: *mut i8);

    /// Sums of lanes whose bits are whole numbers in `i32`, as such.
    fn add_i32(self, other: Self) -> Self;

    /// Lanes whose bits are whole numbers in `i32`, as numbers.
    fn i32_to_f32(self) -> Self;

    /// The sums of neighbours: those of `self` in the first lanes, those of `other` behind them.
    fn pair_sums(self, other: Self) -> Self;

    /// Asks for a line of memory that will be read soon; anything may lie there, or nothing.
    #[inline(always)]
    fn prefetch<T>(_: *const T) {}

    /// The same for one that will be read later, so that it does not take the place of what is read until then.
    #[inline(always)]
    fn prefetch_far<T>(_: *const T) {}

    /// All lanes 0.
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// The first sixteen elements of a slice.
    ///
    /// # Panics
    /// A shorter slice.
    #[inline(always)]
    fn read(from: &[f32]) -> Self {
        let from: &[f32; LANES] = from.first_chunk().expect("a block has sixteen elements");
        // SAFETY: sixteen elements are there.
        unsafe { Self::load(from.as_ptr()) }
    }

    /// Up to sixteen elements of a slice; `rest` in the lanes behind them.
    #[inline(always)]
    fn read_part(from: &[f32], rest: f32) -> Self {
        match from.first_chunk::<LANES>() {
            Some(from) => Self::read(from),
            None => Self::read(&filled_up(from, rest)),
        }
    }

    /// Writes as many lanes as the slice has room for.
    #[inline(always)]
    fn write_part(self, to: &mut [f32]) {
        match to.first_chunk_mut::<LANES>() {
            Some(to) => self.write(to),
            None => copy_first(&self.to_array(), to),
        }
    }

    /// The sum of all lanes, those at a distance of 8 first, then 4, 2 and 1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self;
        // Each turn has lane `c` beside lane `c + distance`, and twice as often as the one before.
        for _ in 0..LANES.ilog2() {
            let [low, high] = lanes.zip(lanes);
            lanes = low.add(high);
        }
        lanes.to_array()[0]
    }

    /// The largest lane. None is no number.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = self;
        for _ in 0..LANES.ilog2() {
            let [low, high] = lanes.zip(lanes);
            lanes = low.max(high);
        }
        lanes.to_array()[0]
    }

    /// Writes the first sixteen elements of a slice.
    ///
    /// # Panics
    /// A shorter slice.
    #[inline(always)]
    fn write(self, to: &mut [f32]) {
        let to: &mut [f32; LANES] = to.first_chunk_mut().expect("a block has sixteen elements");
        // SAFETY: sixteen elements are there.
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

/// What every processor has: loops, of which compilers make what vector instructions they may.
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

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(bf16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[bf16; LANES]>().write_unaligned(self.0.map(bf16::from_f32)) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f16; LANES]>().write_unaligned(self.0.map(f16::from_f32)) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { from.cast::<[u8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { from.cast::<[i8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; LANES]>().write(self.0.map(|lane| lane.round_ties_even() as u8)) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise; an array of `f32` needs no more alignment than one.
        Portable(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, sum: Self) -> Self {
        // Where an architecture does not promise the fused instruction, `f32::mul_add` is a slow call.
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
        // In two steps: a power may leave the range of one exponent.
        self.each(power, |item, power| {
            let (power, half) = (power as i32, (power as i32) >> 1);
            let exact = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
            item * exact(half) * exact(power - half)
        })
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

/// Runs an `#[inline(always)]` function `fn name<V: Vector>(..)` compiled for the family given. Further type parameters of
/// the function follow its name, and are not those of a function around it.
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
                // SAFETY: only pools hand out a family, and only one that the processor has.
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                $crate::simd::Isa::Portable | $crate::simd::Isa::Neon => $name::<$crate::simd::vector::Portable $($(, $more)*)?>($($arg),*),
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            // Never inlined: it gets all registers, as the families of other architectures do.
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
    }

    #[test]
    fn every_family_computes_the_same() {
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
        assert_eq!((want[29][2], want[30][14]), (-6.5, 7.5), "lanes in turns");
        for isa in Isa::available().filter(|isa| *isa != Isa::Portable) {
            for (got, want) in run(isa).iter().flatten().zip(want.iter().flatten()) {
                assert!(got == want || got.is_nan() && want.is_nan(), "{isa}: {got} for {want}");
            }
        }
    }
}
