//! [`Factors`]: a tile's inner loop over `f32`, over halves that are widened, and over pairs that the processor multiplies.

use types::{bf16, f16};

use super::Word;
use crate::vector::{LANES, Vector};

/// What words hold and how they are multiplied, in one family of instructions.
pub(super) trait Factors<V: Vector> {
    /// A word of `x` beside all lanes, the weights of sixteen lanes, and their sums.
    type Item: Copy;
    type Weights: Copy;
    type Sum: Copy;

    /// # Safety
    /// It can be read.
    unsafe fn item(from: *const Word) -> Self::Item;

    /// # Safety
    /// Sixteen words can be read.
    unsafe fn weights(from: *const Word) -> Self::Weights;

    fn mul_add(item: Self::Item, weights: Self::Weights, sum: Self::Sum) -> Self::Sum;

    /// A sum that is a number in each lane so far.
    fn sum(lanes: V) -> Self::Sum;

    fn add(sum: Self::Sum, other: Self::Sum) -> Self::Sum;

    /// The sum of each lane.
    fn lanes(sum: Self::Sum) -> V;
}

impl<V: Vector> Factors<V> for f32 {
    type Item = V;
    type Weights = V;
    type Sum = V;

    #[inline(always)]
    unsafe fn item(from: *const Word) -> V {
        // SAFETY: the caller's promise.
        V::splat(unsafe { from.cast::<f32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from.cast()) }
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
    fn lanes(sum: V) -> V {
        sum
    }
}

/// Halves that are widened: a word's two in turns, by the two weights of eight lanes, so that a lane's sum is that of two
/// neighbours in the end.
macro_rules! widened {
    ($half:ident, $splat:ident, $load:ident) => {
        impl<V: Vector> Factors<V> for $half {
            type Item = V;
            type Weights = [V; 2];
            type Sum = [V; 2];

            #[inline(always)]
            unsafe fn item(from: *const Word) -> V {
                // SAFETY: the caller's promise; two halves need no more than their own alignment.
                V::$splat(unsafe { from.cast::<u32>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn weights(from: *const Word) -> [V; 2] {
                // SAFETY: the caller's promise: 32 halves.
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
            fn lanes(sum: [V; 2]) -> V {
                sum[0].pair_sums(sum[1])
            }
        }
    };
}

widened!(bf16, splat_bf16, load_bf16);
widened!(f16, splat_f16, load_f16);

/// Pairs of `bf16` that the processor multiplies and adds in one instruction.
#[cfg(target_arch = "x86_64")]
pub(super) struct Dot;

#[cfg(target_arch = "x86_64")]
impl Factors<crate::vector::x86::Avx512> for Dot {
    type Item = crate::vector::x86::Avx512;
    type Weights = crate::vector::x86::Avx512;
    type Sum = crate::vector::x86::Avx512;

    #[inline(always)]
    unsafe fn item(from: *const Word) -> Self::Item {
        // SAFETY: the caller's promise; two halves need no more than their own alignment. The bits are no number here.
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
    fn lanes(sum: Self::Sum) -> Self::Sum {
        sum
    }
}
