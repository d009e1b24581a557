//! [`StorageType`]: how the numbers of an operand are stored; [`Item`]: the same as a type, for loops that are compiled for it.
//!
//! Kernels compute in `f32`. Those that take halves or bytes widen them when they read and round once when they write. A byte
//! is a whole number.

use bytemuck::Pod;
#[cfg(target_arch = "x86_64")]
use bytemuck::Zeroable;
use serde::{Deserialize, Serialize};
use types::{DType, bf16, f16};

use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, with_vector};

/// Bytes as elements. Operands are aligned to them (the runtime checks); those without bytes need not be.
pub(crate) fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// Bytes as elements to write.
pub(crate) fn elements_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

/// A type that numbers are stored in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum StorageType {
    #[default]
    F32,
    F16,
    Bf16,
    U8,
    I8,
}

impl StorageType {
    /// All of them.
    pub const ALL: [StorageType; 5] =
        [StorageType::F32, StorageType::F16, StorageType::Bf16, StorageType::U8, StorageType::I8];

    /// Those with a fraction.
    pub const FRACTIONS: [StorageType; 3] = [StorageType::F32, StorageType::F16, StorageType::Bf16];

    /// The type of a dtype, if it is one of these.
    pub fn of(dtype: DType) -> Option<StorageType> {
        match dtype {
            DType::F32 => Some(StorageType::F32),
            DType::F16 => Some(StorageType::F16),
            DType::Bf16 => Some(StorageType::Bf16),
            DType::U8 => Some(StorageType::U8),
            DType::I8 => Some(StorageType::I8),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            StorageType::F32 => 4,
            StorageType::F16 | StorageType::Bf16 => 2,
            StorageType::U8 | StorageType::I8 => 1,
        }
    }

    /// Whether an element has two bytes.
    pub fn is_half(self) -> bool {
        matches!(self, StorageType::F16 | StorageType::Bf16)
    }

    /// Whether an element is a whole number in a byte.
    pub fn is_byte(self) -> bool {
        matches!(self, StorageType::U8 | StorageType::I8)
    }

    /// Elements of a word of four bytes.
    pub(crate) fn per_word(self) -> usize {
        4 / self.size()
    }

    /// Numbers as the bytes of elements, each rounded to the nearest one.
    pub fn bytes(self, items: &[f32]) -> Vec<u8> {
        match self {
            StorageType::F32 => bytemuck::cast_slice(items).to_vec(),
            StorageType::F16 => items.iter().flat_map(|&item| f16::from_f32(item).to_le_bytes()).collect(),
            StorageType::Bf16 => items.iter().flat_map(|&item| bf16::from_f32(item).to_le_bytes()).collect(),
            StorageType::U8 => items.iter().map(|&item| u8::narrow(item)).collect(),
            StorageType::I8 => items.iter().map(|&item| i8::narrow(item) as u8).collect(),
        }
    }
}

/// An element as kernels read and write it.
pub(crate) trait Item: Pod + Send + Sync {
    /// Its name among types.
    const STORED: StorageType;

    /// Sixteen elements from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// Rounds to sixteen elements from `to` on.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store<V: Vector>(lanes: V, to: *mut Self);

    /// One element.
    fn widen(self) -> f32;

    /// Rounds to one element.
    fn narrow(number: f32) -> Self;

    /// The first sixteen elements of a slice.
    ///
    /// # Panics
    /// A shorter slice.
    #[inline(always)]
    fn read<V: Vector>(from: &[Self]) -> V {
        let from: &[Self; LANES] = from.first_chunk().expect("a block has sixteen elements");
        // SAFETY: sixteen elements are there.
        unsafe { Self::load(from.as_ptr()) }
    }

    /// Writes the first sixteen elements of a slice.
    ///
    /// # Panics
    /// A shorter slice.
    #[inline(always)]
    fn write<V: Vector>(lanes: V, to: &mut [Self]) {
        let to: &mut [Self; LANES] = to.first_chunk_mut().expect("a block has sixteen elements");
        // SAFETY: sixteen elements are there.
        unsafe { Self::store(lanes, to.as_mut_ptr()) }
    }

    /// Up to sixteen elements of a slice; `rest` in the lanes behind them.
    #[inline(always)]
    fn read_part<V: Vector>(from: &[Self], rest: f32) -> V {
        if let Some(from) = from.first_chunk::<LANES>() {
            return Self::read(from);
        }
        let mut lanes = [rest; LANES];
        lanes.iter_mut().zip(from).for_each(|(lane, &item)| *lane = item.widen());
        V::read(&lanes)
    }

    /// Writes as many lanes as the slice has room for, up to sixteen.
    #[inline(always)]
    fn write_part<V: Vector>(lanes: V, to: &mut [Self]) {
        if let Some(to) = to.first_chunk_mut::<LANES>() {
            return Self::write(lanes, to);
        }
        to.iter_mut().zip(lanes.to_array()).for_each(|(item, lane)| *item = Self::narrow(lane));
    }
}

impl Item for f32 {
    const STORED: StorageType = StorageType::F32;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(lanes: V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store(to) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(number: f32) -> f32 {
        number
    }

    #[inline(always)]
    fn read_part<V: Vector>(from: &[f32], rest: f32) -> V {
        V::read_part(from, rest)
    }

    #[inline(always)]
    fn write_part<V: Vector>(lanes: V, to: &mut [f32]) {
        lanes.write_part(to);
    }
}

/// Calls a function that is generic over vectors and how `bf16` are written, compiled for a family of instructions: where the
/// processor rounds to them in one instruction, with [`AtOnce`].
macro_rules! with_rounding {
    ($isa:expr, $name:ident ($($arg:ident: $type:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
            fn at_once($($arg: $type),*) {
                $name::<$crate::simd::vector::x86::Avx512, $crate::simd::storage::AtOnce>($($arg),*)
            }
            match $crate::simd::dot_method::rounds_at_once($isa) {
                // SAFETY: the family is AVX-512, which only a pool on a processor that has it hands out, and AVX512-BF16 is there.
                true => unsafe { at_once($($arg),*) },
                false => $crate::simd::vector::with_vector!($isa, $name<types::bf16>($($arg: $type),*)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        $crate::simd::vector::with_vector!($isa, $name<types::bf16>($($arg: $type),*))
    }};
}
pub(crate) use with_rounding;

/// A `bf16` that processors with AVX512-BF16 round to in one instruction; what is less than the least normal number becomes 0.
/// Only code that is compiled for them has it: what [`with_rounding`] calls, and tiles of pairs.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct AtOnce(bf16);

// SAFETY: it is a `bf16`, whose bits may all be 0.
#[cfg(target_arch = "x86_64")]
unsafe impl Zeroable for AtOnce {}
// SAFETY: it is a `bf16`, which is one.
#[cfg(target_arch = "x86_64")]
unsafe impl Pod for AtOnce {}

macro_rules! item {
    ($item:ident, $stored:ident, $load:ident, $store:ident, $widen:expr, $narrow:expr) => {
        impl Item for $item {
            const STORED: StorageType = StorageType::$stored;

            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const $item) -> V {
                // SAFETY: the caller's promise; a half is its bits.
                unsafe { V::$load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store<V: Vector>(lanes: V, to: *mut $item) {
                // SAFETY: the caller's promise; a half is its bits.
                unsafe { lanes.$store(to.cast()) }
            }

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(number: f32) -> $item {
                $narrow(number)
            }
        }
    };
}

item!(f16, F16, load_f16, store_f16, f16::to_f32, f16::from_f32);
item!(bf16, Bf16, load_bf16, store_bf16, bf16::to_f32, bf16::from_f32);
#[cfg(target_arch = "x86_64")]
item!(AtOnce, Bf16, load_bf16, store_bf16_at_once, |AtOnce(item)| bf16::to_f32(item), |number: f32| {
    AtOnce(bf16::from_f32(if number.is_subnormal() { 0.0f32.copysign(number) } else { number }))
});
// The conversion keeps to what a byte holds.
item!(u8, U8, load_u8, store_u8, f32::from, |number: f32| number.round_ties_even() as u8);
item!(i8, I8, load_i8, store_i8, f32::from, |number: f32| number.round_ties_even() as i8);

/// Evaluates an expression in which a name stands for the type of a [`StorageType`].
macro_rules! with_item {
    ($stored:expr, $item:ident => $body:expr) => {
        match $stored {
            $crate::simd::StorageType::F32 => {
                type $item = f32;
                $body
            }
            $crate::simd::StorageType::F16 => {
                type $item = types::f16;
                $body
            }
            $crate::simd::StorageType::Bf16 => {
                type $item = types::bf16;
                $body
            }
            $crate::simd::StorageType::U8 => {
                type $item = u8;
                $body
            }
            $crate::simd::StorageType::I8 => {
                type $item = i8;
                $body
            }
        }
    };
}
pub(crate) use with_item;

/// The same for those with a fraction.
macro_rules! with_fraction {
    ($stored:expr, $item:ident => $body:expr) => {
        match $stored {
            $crate::simd::StorageType::F16 => {
                type $item = types::f16;
                $body
            }
            $crate::simd::StorageType::Bf16 => {
                type $item = types::bf16;
                $body
            }
            _ => {
                type $item = f32;
                $body
            }
        }
    };
}
pub(crate) use with_fraction;

/// Copies elements to numbers.
///
/// # Panics
/// Other lengths.
pub(crate) fn widen(isa: Isa, stored: StorageType, from: &[u8], to: &mut [f32]) {
    with_item!(stored, T => {
        let from: &[T] = elements(from);
        assert_eq!(from.len(), to.len(), "a number for each element");
        with_vector!(isa, convert<T, f32>(from: &[T], to: &mut [f32]));
    });
}

/// Rounds numbers to elements.
///
/// # Panics
/// Other lengths.
pub(crate) fn narrow(isa: Isa, stored: StorageType, from: &[f32], to: &mut [u8]) {
    match stored {
        StorageType::Bf16 => with_rounding!(isa, narrow_to(from: &[f32], to: &mut [u8])),
        stored => with_item!(stored, T => with_vector!(isa, narrow_to<T>(from: &[f32], to: &mut [u8]))),
    }
}

#[inline(always)]
fn narrow_to<V: Vector, T: Item>(from: &[f32], to: &mut [u8]) {
    let to: &mut [T] = elements_mut(to);
    assert_eq!(from.len(), to.len(), "a number for each element");
    convert::<V, f32, T>(from, to);
}

/// Elements of one kind as those of another; either are numbers.
#[inline(always)]
fn convert<V: Vector, A: Item, B: Item>(from: &[A], to: &mut [B]) {
    let (whole, rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.split_at_mut(whole.len() * LANES);
    for (from, to) in whole.iter().zip(to.as_chunks_mut::<LANES>().0) {
        B::write(A::read::<V>(from), to);
    }
    B::write_part(A::read_part::<V>(rest, 0.0), to_rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::dot_method::DotMethod;

    /// All halves, and numbers between and beyond them, against the definition.
    #[test]
    fn every_family_widens_and_rounds_alike() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let mut random = types::Random::new(5);
        let mut numbers: Vec<f32> = (0..100_000).map(|_| f32::from_bits(random.bits() as u32)).collect();
        // Ties, and what overflows by rounding.
        numbers.extend([1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65519.9, 65520.0, -65520.0, 1e-8, 3.0e-8, 0.0, -0.0]);
        numbers.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN]);
        // Whole numbers that a byte holds, ties, and those beyond.
        numbers.extend((-1200..1200).map(|quarter| quarter as f32 / 4.0));
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for isa in Isa::available() {
            check::<u8>(isa, StorageType::U8, &bytes, &numbers);
            check::<i8>(isa, StorageType::I8, bytemuck::cast_slice(&bytes), &numbers);
            check::<f16>(isa, StorageType::F16, bytemuck::cast_slice(&halves), &numbers);
            check::<bf16>(isa, StorageType::Bf16, bytemuck::cast_slice(&halves), &numbers);
        }
    }

    fn check<T: Item>(isa: Isa, stored: StorageType, halves: &[T], numbers: &[f32]) {
        let mut wide = vec![0.0; halves.len()];
        widen(isa, stored, bytemuck::cast_slice(halves), &mut wide);
        for (&half, got) in halves.iter().zip(wide) {
            let want = half.widen();
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{isa}: {got} for {want}");
        }
        let mut narrowed = vec![T::zeroed(); numbers.len()];
        narrow(isa, stored, numbers, bytemuck::cast_slice_mut(&mut narrowed));
        let at_once = stored == StorageType::Bf16 && DotMethod::of(isa, stored) != DotMethod::Widened;
        for (&number, got) in numbers.iter().zip(narrowed) {
            let rounded = if at_once && number.is_subnormal() { 0.0f32.copysign(number) } else { number };
            let (got, want) = (got.widen(), T::narrow(rounded).widen());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{isa}: {got} for {number}");
        }
    }
}
