//! [`StorageType`]: the element type of a kernel's operand; [`Item`]: the same as a Rust type, for loops compiled per
//! type.
//!
//! Kernels compute in `f32`. They widen half-precision and int8 elements when they read them, and round once when they
//! write. An int8 element is an integer without scale.

use bytemuck::Pod;
#[cfg(target_arch = "x86_64")]
use bytemuck::Zeroable;
use serde::{Deserialize, Serialize};
use types::{DType, bf16, f16};

use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector, with_vector};

/// Views bytes as elements. The runtime checks the alignment of operands; empty ones need none.
pub(crate) fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// Views bytes as writable elements.
pub(crate) fn elements_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

/// The element type of an operand in memory.
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
    /// All storage types.
    pub const ALL: [StorageType; 5] =
        [StorageType::F32, StorageType::F16, StorageType::Bf16, StorageType::U8, StorageType::I8];

    /// The floating-point types.
    pub const FRACTIONS: [StorageType; 3] = [StorageType::F32, StorageType::F16, StorageType::Bf16];

    /// The storage type of a dtype; `None` if kernels do not store it.
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

    /// Element size in bytes.
    pub fn size(self) -> usize {
        match self {
            StorageType::F32 => 4,
            StorageType::F16 | StorageType::Bf16 => 2,
            StorageType::U8 | StorageType::I8 => 1,
        }
    }

    /// Whether an element is a 16-bit float.
    pub fn is_half(self) -> bool {
        matches!(self, StorageType::F16 | StorageType::Bf16)
    }

    /// Whether an element is an 8-bit integer.
    pub fn is_byte(self) -> bool {
        matches!(self, StorageType::U8 | StorageType::I8)
    }

    /// Elements of a 32-bit word.
    pub(crate) fn per_word(self) -> usize {
        4 / self.size()
    }

    /// Rounds numbers to elements and returns their bytes.
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
    /// The storage type of `Self`.
    const STORED: StorageType;

    /// Loads 16 elements.
    ///
    /// # Safety
    /// `from` must be readable for 16 elements.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// Rounds and stores 16 elements.
    ///
    /// # Safety
    /// `to` must be writable for 16 elements.
    unsafe fn store<V: Vector>(lanes: V, to: *mut Self);

    /// Converts one element to `f32`.
    fn widen(self) -> f32;

    /// Rounds `f32` to one element.
    fn narrow(number: f32) -> Self;

    /// Loads the first 16 elements of a slice.
    ///
    /// # Panics
    /// If the slice is shorter.
    #[inline(always)]
    fn read<V: Vector>(from: &[Self]) -> V {
        let from: &[Self; LANES] = from.first_chunk().expect("the slice must have 16 elements");
        // SAFETY: the array has 16 elements.
        unsafe { Self::load(from.as_ptr()) }
    }

    /// Stores to the first 16 elements of a slice.
    ///
    /// # Panics
    /// If the slice is shorter.
    #[inline(always)]
    fn write<V: Vector>(lanes: V, to: &mut [Self]) {
        let to: &mut [Self; LANES] = to.first_chunk_mut().expect("the slice must have 16 elements");
        // SAFETY: the array has 16 elements.
        unsafe { Self::store(lanes, to.as_mut_ptr()) }
    }

    /// Loads up to 16 elements of a slice; the remaining lanes are `rest`.
    #[inline(always)]
    fn read_part<V: Vector>(from: &[Self], rest: f32) -> V {
        if let Some(from) = from.first_chunk::<LANES>() {
            return Self::read(from);
        }
        let mut lanes = [rest; LANES];
        lanes.iter_mut().zip(from).for_each(|(lane, &item)| *lane = item.widen());
        V::read(&lanes)
    }

    /// Stores the first `to.len()` lanes, at most 16.
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
        // SAFETY: the caller guarantees the memory access.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(lanes: V, to: *mut f32) {
        // SAFETY: the caller guarantees the memory access.
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

/// Calls a function that is generic over the vector and the `bf16` item, compiled for `isa`: with [`AtOnce`] if the
/// processor rounds to `bf16` in one instruction.
macro_rules! with_rounding {
    ($isa:expr, $name:ident ($($arg:ident: $type:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bf16,avx2,fma,f16c")]
            fn at_once($($arg: $type),*) {
                $name::<$crate::simd::vector::x86::Avx512, $crate::simd::storage::AtOnce>($($arg),*)
            }
            match $isa {
                // SAFETY: only a pool on a processor with AVX-512 uses this ISA, and AVX512-BF16 was detected.
                $crate::simd::Isa::Avx512 if $crate::simd::Isa::HAS_AVX512 && $crate::simd::dot_method::rounds_at_once($isa) => unsafe { at_once($($arg),*) },
                _ => $crate::simd::vector::with_vector!($isa, $name<types::bf16>($($arg: $type),*)),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        $crate::simd::vector::with_vector!($isa, $name<types::bf16>($($arg: $type),*))
    }};
}
pub(crate) use with_rounding;

/// `bf16` with one-instruction rounding (AVX512-BF16), which flushes subnormals to 0. Use it only in code compiled for
/// AVX512-BF16: functions called by [`with_rounding`], and tiles of pairs.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct AtOnce(bf16);

// SAFETY: a transparent `bf16`, for which all bits may be 0.
#[cfg(target_arch = "x86_64")]
unsafe impl Zeroable for AtOnce {}
// SAFETY: a transparent `bf16`, which is `Pod`.
#[cfg(target_arch = "x86_64")]
unsafe impl Pod for AtOnce {}

macro_rules! item {
    ($item:ident, $stored:ident, $load:ident, $store:ident, $widen:expr, $narrow:expr) => {
        impl Item for $item {
            const STORED: StorageType = StorageType::$stored;

            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const $item) -> V {
                // SAFETY: the caller guarantees the memory access; a half is its 16 bits.
                unsafe { V::$load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store<V: Vector>(lanes: V, to: *mut $item) {
                // SAFETY: the caller guarantees the memory access; a half is its 16 bits.
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
// The `as` conversion saturates to the integer's range.
item!(u8, U8, load_u8, store_u8, f32::from, |number: f32| number.round_ties_even() as u8);
item!(i8, I8, load_i8, store_i8, f32::from, |number: f32| number.round_ties_even() as i8);

/// Evaluates an expression in which `$name` is the Rust type of a [`StorageType`].
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

/// The same for floating-point types.
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

/// Widens elements to `f32`.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn widen(isa: Isa, stored: StorageType, from: &[u8], to: &mut [f32]) {
    with_item!(stored, T => {
        let from: &[T] = elements(from);
        assert_eq!(from.len(), to.len(), "a number for each element");
        with_vector!(isa, convert<T, f32>(from: &[T], to: &mut [f32]));
    });
}

/// Rounds `f32` to elements.
///
/// # Panics
/// If the lengths differ.
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

/// Converts between element types, one of which must be `f32`.
#[inline(always)]
pub(crate) fn convert<V: Vector, A: Item, B: Item>(from: &[A], to: &mut [B]) {
    let (whole, rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.split_at_mut(whole.len() * LANES);
    for (from, to) in whole.iter().zip(to.as_chunks_mut::<LANES>().0) {
        B::write(A::read::<V>(from), to);
    }
    if !rest.is_empty() {
        B::write_part(A::read_part::<V>(rest, 0.0), to_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::dot_method::DotMethod;

    /// Every 16-bit float, and numbers between and beyond them, against the definition.
    #[test]
    fn every_isa_widens_and_rounds_alike() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let mut random = types::Random::new(5);
        let mut numbers: Vec<f32> = (0..100_000).map(|_| f32::from_bits(random.bits() as u32)).collect();
        // Ties, and numbers that overflow by rounding.
        numbers.extend([1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65519.9, 65520.0, -65520.0, 1e-8, 3.0e-8, 0.0, -0.0]);
        numbers.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN]);
        // Integers in range, ties, and integers out of range.
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
