//! [`Operands`] for NEON: a word of `x` stays in one register, and instructions multiply one of its items by all lanes.

use std::marker::PhantomData;

use types::{bf16, f16};

use super::{Bytes, Operands, Word};
use crate::simd::vector::Vector;
use crate::simd::vector::neon::{DotWeights, DotWord, Int32Lanes, Items, Neon, WideInt32Lanes, WideWeights, WideWord};

/// Elements of a type, each item of a word by itself.
pub(crate) struct Each<T>(PhantomData<T>);

impl Operands<Neon> for Each<f32> {
    type Item = Items;
    type Weights = Neon;
    type Sum = Neon;
    type Common = ();

    #[inline(always)]
    unsafe fn item(from: *const Word) -> Items {
        // SAFETY: the caller's promise.
        Items::f32(unsafe { from.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> Neon {
        // SAFETY: the caller's promise.
        unsafe { Neon::load(from.cast()) }
    }

    #[inline(always)]
    fn mul_add(item: Items, weights: Neon, sum: Neon) -> Neon {
        weights.add_product::<0>(item, sum)
    }

    #[inline(always)]
    fn sum(lanes: Neon) -> Neon {
        lanes
    }

    #[inline(always)]
    fn add(sum: Neon, other: Neon) -> Neon {
        sum.add(other)
    }

    #[inline(always)]
    fn lanes(sum: Neon, (): ()) -> Neon {
        sum
    }
}

/// Half precision: the lower elements of all lanes first, then the others, so that a lane has one sum.
macro_rules! halves {
    ($half:ident, $apart:ident) => {
        impl Operands<Neon> for Each<$half> {
            type Item = Items;
            type Weights = [Neon; 2];
            type Sum = Neon;
            type Common = ();

            #[inline(always)]
            unsafe fn item(from: *const Word) -> Items {
                // SAFETY: the caller's promise.
                Items::$half(unsafe { from.cast::<u32>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn weights(from: *const Word) -> [Neon; 2] {
                // SAFETY: the caller's promise: 32 elements.
                unsafe { Neon::$apart(from.cast()) }
            }

            #[inline(always)]
            fn mul_add(item: Items, weights: [Neon; 2], sum: Neon) -> Neon {
                weights[1].add_product::<1>(item, weights[0].add_product::<0>(item, sum))
            }

            #[inline(always)]
            fn sum(lanes: Neon) -> Neon {
                lanes
            }

            #[inline(always)]
            fn add(sum: Neon, other: Neon) -> Neon {
                sum.add(other)
            }

            #[inline(always)]
            fn lanes(sum: Neon, (): ()) -> Neon {
                sum
            }
        }
    };
}

halves!(bf16, load_bf16_apart);
halves!(f16, load_f16_apart);

/// Widened to 16 bits each.
impl Operands<Neon> for Bytes {
    type Item = WideWord;
    type Weights = WideWeights;
    type Sum = WideInt32Lanes;
    type Common = ();

    #[inline(always)]
    unsafe fn item(from: *const Word) -> WideWord {
        // SAFETY: the caller's promise.
        WideWord::new(unsafe { from.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> WideWeights {
        // SAFETY: the caller's promise.
        unsafe { WideWeights::load(from.cast()) }
    }

    #[inline(always)]
    fn mul_add(item: WideWord, weights: WideWeights, sum: WideInt32Lanes) -> WideInt32Lanes {
        sum.add_products(item, weights)
    }

    #[inline(always)]
    fn sum(_: Neon) -> WideInt32Lanes {
        WideInt32Lanes::default()
    }

    #[inline(always)]
    fn add(sum: WideInt32Lanes, other: WideInt32Lanes) -> WideInt32Lanes {
        sum.add(other)
    }

    #[inline(always)]
    fn lanes(sum: WideInt32Lanes, (): ()) -> Neon {
        sum.bits()
    }
}

/// Four `u8` by four `i8` in one instruction, whose operands are both signed: `x - 128` is signed, and 128 times the
/// sum of the weights is the same for all rows.
pub(crate) struct DotBytes;

impl Operands<Neon> for DotBytes {
    type Item = DotWord;
    type Weights = DotWeights;
    type Sum = Int32Lanes;
    type Common = Int32Lanes;

    #[inline(always)]
    unsafe fn item(from: *const Word) -> DotWord {
        // SAFETY: the caller's promise.
        DotWord::less_128(unsafe { from.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn weights(from: *const Word) -> DotWeights {
        // SAFETY: the caller's promise.
        unsafe { DotWeights::load(from.cast()) }
    }

    #[inline(always)]
    fn mul_add(item: DotWord, weights: DotWeights, sum: Int32Lanes) -> Int32Lanes {
        sum.add_dot(item, weights)
    }

    #[inline(always)]
    fn add_common(common: Int32Lanes, weights: DotWeights) -> Int32Lanes {
        common.add_dot(DotWord::ones(), weights)
    }

    #[inline(always)]
    fn sum(_: Neon) -> Int32Lanes {
        Int32Lanes::default()
    }

    #[inline(always)]
    fn add(sum: Int32Lanes, other: Int32Lanes) -> Int32Lanes {
        sum.add(other)
    }

    #[inline(always)]
    fn lanes(sum: Int32Lanes, common: Int32Lanes) -> Neon {
        sum.add(common.times_128()).bits()
    }
}
