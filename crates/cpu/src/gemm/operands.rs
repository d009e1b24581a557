//! [`Operands`]: the microkernel's arithmetic on words: `f32`, widened half precision, `bf16` pairs by one instruction,
//! int8.

use types::{bf16, f16};

use crate::simd::vector::{LANES, Portable, Vector};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) use self::neon::{DotBytes, Each};

/// An `f32`, two half-precision numbers, or four bytes. It has no alignment.
pub(crate) type Word = [u8; 4];

/// How words are loaded and multiplied by an instruction set.
pub(crate) trait Operands<V: Vector> {
    /// A word of `x` broadcast to all lanes, the weights of sixteen lanes, and their sums.
    type Item: Copy;
    type Weights: Copy;
    type Sum: Copy;

    /// A part of the sums that all rows share; it is added up once.
    type Common: Copy + Default;

    /// Bytes from one weight to the next.
    const WEIGHT_BYTES: usize = size_of::<Word>();
    /// Whether the sums of weights are multiplied by a scale for each channel in the end, before a bias is added.
    const IS_SCALED: bool = false;

    /// # Safety
    /// It can be read.
    unsafe fn item(from: *const Word) -> Self::Item;

    /// # Safety
    /// Sixteen weights can be read.
    unsafe fn weights(from: *const Word) -> Self::Weights;

    fn mul_add(item: Self::Item, weights: Self::Weights, sum: Self::Sum) -> Self::Sum;

    /// A sum with an initial value in each lane; an int8 sum starts at 0.
    fn sum(lanes: V) -> Self::Sum;

    /// Adds one term's weights to the part that rows share.
    #[inline(always)]
    fn add_common(common: Self::Common, _: Self::Weights) -> Self::Common {
        common
    }

    fn add(sum: Self::Sum, other: Self::Sum) -> Self::Sum;

    /// The sum of each lane.
    fn lanes(sum: Self::Sum, common: Self::Common) -> V;
}

/// `f32` by `bf16` weights.
pub(crate) struct ByBf16;

/// `f32` by int8 weights.
pub(crate) struct ByInt8;

/// `f32` by weights of `f32`, or of fewer bits that are widened when they are loaded.
macro_rules! by_weights {
    ($name:ident, $load:ident, $bytes:literal, $scaled:literal) => {
        impl<V: Vector> Operands<V> for $name {
            type Item = V;
            type Weights = V;
            type Sum = V;
            type Common = ();

            const WEIGHT_BYTES: usize = $bytes;
            const IS_SCALED: bool = $scaled;

            #[inline(always)]
            unsafe fn item(from: *const Word) -> V {
                // SAFETY: the caller's promise.
                V::splat(unsafe { from.cast::<f32>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn weights(from: *const Word) -> V {
                // SAFETY: the caller's promise: sixteen weights.
                unsafe { V::$load(from.cast()) }
            }

            #[inline(always)]
            fn mul_add(item: V, weights: V, sum: V) -> V {
                item.mul_add(weights, sum)
            }

            #[inline(always)]
            fn sum(lanes: V) -> V {
                lanes
            }

            #[inline(always)]
            fn add(sum: V, other: V) -> V {
                sum.add(other)
            }

            #[inline(always)]
            fn lanes(sum: V, (): ()) -> V {
                sum
            }
        }
    };
}

by_weights!(f32, load, 4, false);
by_weights!(ByBf16, load_bf16, 2, false);
by_weights!(ByInt8, load_i8, 1, true);

/// Half precision, widened: the two elements of a word alternate over lanes, as do the two weights of eight lanes each,
/// so that a lane's sum is that of two neighbors in the end.
macro_rules! widened {
    ($half:ident, $splat:ident, $load:ident) => {
        impl<V: Vector> Operands<V> for $half {
            type Item = V;
            type Weights = [V; 2];
            type Sum = [V; 2];
            type Common = ();

            #[inline(always)]
            unsafe fn item(from: *const Word) -> V {
                // SAFETY: the caller's promise; the read is unaligned.
                V::$splat(unsafe { from.cast::<u32>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn weights(from: *const Word) -> [V; 2] {
                // SAFETY: the caller's promise: 32 elements.
                unsafe { [V::$load(from.cast()), V::$load(from.add(LANES / 2).cast())] }
            }

            #[inline(always)]
            fn mul_add(item: V, weights: [V; 2], sum: [V; 2]) -> [V; 2] {
                [item.mul_add(weights[0], sum[0]), item.mul_add(weights[1], sum[1])]
            }

            #[inline(always)]
            fn sum(lanes: V) -> [V; 2] {
                lanes.zip(V::zero())
            }

            #[inline(always)]
            fn add(sum: [V; 2], other: [V; 2]) -> [V; 2] {
                [sum[0].add(other[0]), sum[1].add(other[1])]
            }

            #[inline(always)]
            fn lanes(sum: [V; 2], (): ()) -> V {
                sum[0].pair_sums(sum[1])
            }
        }
    };
}

widened!(bf16, splat_bf16, load_bf16);
widened!(f16, splat_f16, load_f16);

/// Pairs of `bf16` that the processor multiplies and adds in one instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Dot;

#[cfg(target_arch = "x86_64")]
impl Operands<crate::simd::vector::x86::Avx512> for Dot {
    type Item = crate::simd::vector::x86::Avx512;
    type Weights = crate::simd::vector::x86::Avx512;
    type Sum = crate::simd::vector::x86::Avx512;
    type Common = ();

    #[inline(always)]
    unsafe fn item(from: *const Word) -> Self::Item {
        // SAFETY: the caller's promise; the read is unaligned. The bits are a pair, not an `f32`.
        Vector::splat(f32::from_bits(unsafe { from.cast::<u32>().read_unaligned() }))
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> Self::Weights {
        // SAFETY: the caller's promise.
        unsafe { Vector::load(from.cast()) }
    }

    #[inline(always)]
    fn mul_add(item: Self::Item, weights: Self::Weights, sum: Self::Sum) -> Self::Sum {
        sum.add_dot(item, weights)
    }

    #[inline(always)]
    fn sum(lanes: Self::Sum) -> Self::Sum {
        lanes
    }

    #[inline(always)]
    fn add(sum: Self::Sum, other: Self::Sum) -> Self::Sum {
        Vector::add(sum, other)
    }

    #[inline(always)]
    fn lanes(sum: Self::Sum, (): ()) -> Self::Sum {
        sum
    }
}

/// Four `u8` of `x` by four `i8`. Sums are exact in `i32`; lanes hold their bits.
pub(crate) struct Bytes;

impl Operands<Portable> for Bytes {
    type Item = [u8; 4];
    type Weights = [[i8; 4]; LANES];
    type Sum = [i32; LANES];
    type Common = ();

    #[inline(always)]
    unsafe fn item(from: *const Word) -> [u8; 4] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> [[i8; 4]; LANES] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[i8; 4]; LANES]>().read() }
    }

    #[inline(always)]
    fn mul_add(item: [u8; 4], weights: [[i8; 4]; LANES], sum: [i32; LANES]) -> [i32; LANES] {
        let product = |weights: [i8; 4]| (0..4).map(|ix| i32::from(item[ix]) * i32::from(weights[ix])).sum::<i32>();
        std::array::from_fn(|lane| sum[lane].wrapping_add(product(weights[lane])))
    }

    #[inline(always)]
    fn sum(_: Portable) -> [i32; LANES] {
        [0; LANES]
    }

    #[inline(always)]
    fn add(sum: [i32; LANES], other: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|lane| sum[lane].wrapping_add(other[lane]))
    }

    #[inline(always)]
    fn lanes(sum: [i32; LANES], (): ()) -> Portable {
        Portable::read(&sum.map(|sum| f32::from_bits(sum.cast_unsigned())))
    }
}

/// As [`Bytes`], with sums that begin at the integers of [`Dequant`](crate::gemm::tile::Dequant) and end as `f32`.
#[cfg(target_arch = "x86_64")]
pub(crate) struct DequantizedBytes;

#[cfg(target_arch = "x86_64")]
mod x86_bytes {
    use super::{Bytes, DequantizedBytes, Operands, Word};
    use crate::simd::vector::Vector;
    use crate::simd::vector::x86::{Avx512, Int32Lanes512};

    // In one instruction, AVX512-VNNI.
    macro_rules! bytes {
        ($name:ident, $scaled:literal) => {
            impl Operands<Avx512> for $name {
                type Item = Int32Lanes512;
                type Weights = Int32Lanes512;
                type Sum = Int32Lanes512;
                type Common = ();

                const IS_SCALED: bool = $scaled;

                #[inline(always)]
                unsafe fn item(from: *const Word) -> Int32Lanes512 {
                    // SAFETY: the caller's promise.
                    Int32Lanes512::splat(unsafe { from.cast::<u32>().read_unaligned() })
                }

                #[inline(always)]
                unsafe fn weights(from: *const Word) -> Int32Lanes512 {
                    // SAFETY: the caller's promise.
                    unsafe { Int32Lanes512::load(from.cast()) }
                }

                #[inline(always)]
                fn mul_add(item: Int32Lanes512, weights: Int32Lanes512, sum: Int32Lanes512) -> Int32Lanes512 {
                    sum.add_dot(item, weights)
                }

                #[inline(always)]
                fn sum(lanes: Avx512) -> Int32Lanes512 {
                    if $scaled { Int32Lanes512::of_bits(lanes) } else { Int32Lanes512::zero() }
                }

                #[inline(always)]
                fn add(sum: Int32Lanes512, other: Int32Lanes512) -> Int32Lanes512 {
                    sum.add(other)
                }

                #[inline(always)]
                fn lanes(sum: Int32Lanes512, (): ()) -> Avx512 {
                    if $scaled { sum.bits().i32_to_f32() } else { sum.bits() }
                }
            }
        };
    }
    bytes!(Bytes, false);
    bytes!(DequantizedBytes, true);
}
