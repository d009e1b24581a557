//! The functions of [`compute`] for the portable vectors, by rows of one vector.

use types::{bf16, f16};

use super::{Microkernel, MicrokernelTable};
use crate::gemm::microkernel::{ANYWHERE, compute};
use crate::gemm::operands::{ByBf16, ByInt8, Bytes, Operands};
use crate::gemm::tile::{Row, Tile};
use crate::simd::storage::Item;
use crate::simd::vector::Portable;

/// # Safety
/// As [`super::multiply`].
unsafe fn portable<F: Operands<Portable>, T: Item, const R: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { compute::<Portable, F, T, R, 1, 1, ANYWHERE>(tile, rows, vector) }
}

macro_rules! portable_by_rows {
    ($operands:ty => $item:ty) => {
        [
            portable::<$operands, $item, 1>,
            portable::<$operands, $item, 2>,
            portable::<$operands, $item, 3>,
            portable::<$operands, $item, 4>,
        ]
    };
}

const F32: &[Microkernel] = &portable_by_rows!(f32 => f32);
const COMPACT: [&[Microkernel]; 2] = [&portable_by_rows!(ByBf16 => f32), &portable_by_rows!(ByInt8 => f32)];
const BYTES: &[Microkernel] = &portable_by_rows!(Bytes => f32);
const BF16: &[Microkernel] = &portable_by_rows!(bf16 => bf16);
const BF16_TO_F32: &[Microkernel] = &portable_by_rows!(bf16 => f32);
const F16: &[Microkernel] = &portable_by_rows!(f16 => f16);
const F16_TO_F32: &[Microkernel] = &portable_by_rows!(f16 => f32);

pub(super) const PORTABLE_PARTS: MicrokernelTable =
    MicrokernelTable::narrow(F32, COMPACT, BF16, BF16_TO_F32, F16, F16_TO_F32, BYTES);
