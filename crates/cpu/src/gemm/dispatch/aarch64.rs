//! The functions of [`compute`] for NEON, by rows of one vector.

use types::{bf16, f16};

use super::{ByRows, Microkernel, MicrokernelTable};
use crate::gemm::microkernel::{ANYWHERE, compute};
use crate::gemm::operands::{ByBf16, ByInt8, Bytes, DotBytes, Each, Operands};
use crate::gemm::tile::{Row, Tile};
use crate::simd::storage::Item;
use crate::simd::vector::neon::Neon;

// Never inlined: compiled on its own, each has all registers for its sums.
macro_rules! family {
    ($name:ident $($features:literal)?) => {
        /// # Safety
        /// As [`super::multiply`]; the processor has the features.
        #[inline(never)]
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<F: Operands<Neon>, T: Item, const R: usize, const U: usize>(
            tile: &Tile,
            rows: &[Row],
            vector: usize,
        ) {
            // SAFETY: the caller's promise.
            unsafe { compute::<Neon, F, T, R, 1, U, ANYWHERE>(tile, rows, vector) }
        }
    };
}
family!(neon);
family!(dot "dotprod");

macro_rules! by_rows {
    ($family:ident $operands:ty => $item:ty: $($rows:literal of $partial:literal)*) => {
        [$($family::<$operands, $item, $rows, $partial>),*]
    };
}

// Few rows have several partial sums, to hide the latency of four cycles at two multiplications per cycle.
const F32: &[Microkernel] = &by_rows!(neon Each<f32> => f32: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1);

const COMPACT: [&[Microkernel]; 2] = [
    &by_rows!(neon ByBf16 => f32: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1),
    &by_rows!(neon ByInt8 => f32: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1),
];

macro_rules! halves {
    ($half:ty => $item:ty) => {
        by_rows!(neon Each<$half> => $item: 1 of 2 2 of 2 3 of 1 4 of 1)
    };
}
const BF16: &[Microkernel] = &halves!(bf16 => bf16);
const BF16_TO_F32: &[Microkernel] = &halves!(bf16 => f32);
const F16: &[Microkernel] = &halves!(f16 => f16);
const F16_TO_F32: &[Microkernel] = &halves!(f16 => f32);

// Eight registers of sums for each row.
const BYTES: &[Microkernel] = &by_rows!(neon Bytes => f32: 1 of 1 2 of 1);
const DOT_BYTES: &[Microkernel] = &by_rows!(dot DotBytes => f32: 1 of 4 2 of 2 3 of 1 4 of 1);

pub(super) const NEON_PARTS: MicrokernelTable = MicrokernelTable {
    bytes_dot: ByRows::narrow(DOT_BYTES),
    ..MicrokernelTable::narrow(F32, COMPACT, BF16, BF16_TO_F32, F16, F16_TO_F32, BYTES)
};
