//! The functions of [`compute`] for x86-64, by rows and vectors.

use types::{bf16, f16};

use super::{ByRows, Microkernel, MicrokernelTable};
use crate::gemm::bytes_avx2::{Dequantized, Plain, sum_bytes};
use crate::gemm::microkernel::{ANYWHERE, EVENLY, compute};
use crate::gemm::operands::{ByBf16, ByInt8, Bytes, DequantizedBytes, Dot, Operands};
use crate::gemm::tile::{Row, Tile};
use crate::simd::storage::{AtOnce, Item};
use crate::simd::vector::LANES;
use crate::simd::vector::x86::{Avx2, Avx512};

// Never inlined: compiled on its own, each has all registers for its sums.
macro_rules! family {
    ($name:ident, $vector:ty, $features:literal) => {
        /// # Safety
        /// As [`super::multiply`]; the processor has the features.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn $name<
            F: Operands<$vector>,
            T: Item,
            const R: usize,
            const N: usize,
            const U: usize,
            const S: usize,
        >(
            tile: &Tile,
            rows: &[Row],
            vector: usize,
        ) {
            // SAFETY: the caller's promise.
            unsafe { compute::<$vector, F, T, R, N, U, S>(tile, rows, vector) }
        }
    };
}
family!(avx512, Avx512, "avx512f,avx2,fma,f16c");
family!(dot, Avx512, "avx512f,avx512bf16,avx2,fma,f16c");
family!(vnni, Avx512, "avx512f,avx512vnni,avx2,fma,f16c");
family!(avx2, Avx2, "avx2,fma,f16c");

macro_rules! by_rows {
    ($family:ident $operands:ty => $item:ty, $step:expr, $vectors:literal: $($rows:literal of $partial:literal)*) => {
        [$($family::<$operands, $item, $rows, $vectors, $partial, { $step }>),*]
    };
}

// Few rows have several partial sums, to hide the latency of four cycles at two multiplications per cycle.
macro_rules! wide {
    ($family:ident $operands:ty => $item:ty, $step:expr) => {
        by_rows!($family $operands => $item, $step, 2: 1 of 4 2 of 2 3 of 2 4 of 1 5 of 1 6 of 1 7 of 1 8 of 1 9 of 1 10 of 1 11 of 1 12 of 1 13 of 1 14 of 1)
    };
}
macro_rules! narrow {
    ($family:ident $operands:ty => $item:ty, $step:expr) => {
        by_rows!($family $operands => $item, $step, 1: 1 of 4 2 of 4 3 of 2 4 of 2 5 of 2 6 of 2 7 of 2 8 of 1 9 of 1 10 of 1 11 of 1 12 of 1 13 of 1 14 of 1)
    };
}
const AVX512: &[Microkernel] = &wide!(avx512 f32 => f32, ANYWHERE);
const AVX512_NARROW: &[Microkernel] = &narrow!(avx512 f32 => f32, ANYWHERE);
const AVX512_LINE: &[Microkernel] = &wide!(avx512 f32 => f32, LANES);
const AVX512_LINE_NARROW: &[Microkernel] = &narrow!(avx512 f32 => f32, LANES);
const AVX512_EVEN: &[Microkernel] = &wide!(avx512 f32 => f32, EVENLY);
const AVX512_EVEN_NARROW: &[Microkernel] = &narrow!(avx512 f32 => f32, EVENLY);
const AVX2: &[Microkernel] = &by_rows!(avx2 f32 => f32, ANYWHERE, 1: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1);

const AVX512_COMPACT: [ByRows; 2] = [
    ByRows::wide(&narrow!(avx512 ByBf16 => f32, ANYWHERE), &wide!(avx512 ByBf16 => f32, ANYWHERE)),
    ByRows::wide(&narrow!(avx512 ByInt8 => f32, ANYWHERE), &wide!(avx512 ByInt8 => f32, ANYWHERE)),
];
const AVX2_COMPACT: [&[Microkernel]; 2] = [
    &by_rows!(avx2 ByBf16 => f32, ANYWHERE, 1: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1),
    &by_rows!(avx2 ByInt8 => f32, ANYWHERE, 1: 1 of 4 2 of 2 3 of 1 4 of 1 5 of 1 6 of 1),
];

const DOT: &[Microkernel] = &wide!(dot Dot => AtOnce, ANYWHERE);
const DOT_NARROW: &[Microkernel] = &narrow!(dot Dot => AtOnce, ANYWHERE);
const DOT_TO_F32: &[Microkernel] = &wide!(dot Dot => f32, ANYWHERE);
const DOT_NARROW_TO_F32: &[Microkernel] = &narrow!(dot Dot => f32, ANYWHERE);

const BYTES: &[Microkernel] = &wide!(vnni Bytes => f32, ANYWHERE);
const BYTES_NARROW: &[Microkernel] = &narrow!(vnni Bytes => f32, ANYWHERE);
macro_rules! vnni_dequantized {
    ($results:ty) => {
        ByRows::wide(
            &narrow!(vnni DequantizedBytes => $results, ANYWHERE),
            &wide!(vnni DequantizedBytes => $results, ANYWHERE),
        )
    };
}
const VNNI_DEQUANTIZED: [ByRows; 2] = [vnni_dequantized!(f32), vnni_dequantized!(u8)];
macro_rules! bytes_by_rows {
    ($results:ty, $vectors:literal: $($rows:literal)*) => { [$(sum_bytes::<$results, $rows, $vectors>),*] };
}
macro_rules! bytes {
    ($results:ty) => {
        ByRows::wide(&bytes_by_rows!($results, 1: 1 2 3 4 5 6), &bytes_by_rows!($results, 2: 1 2 3 4 5 6))
    };
}
const AVX2_BYTES: ByRows = bytes!(Plain);
const AVX2_DEQUANTIZED: [ByRows; 2] = [bytes!(Dequantized<f32>), bytes!(Dequantized<u8>)];

// Widened half precision has two sums for each vector.
macro_rules! widened {
    ($operands:ty => $item:ty) => {
        by_rows!(avx512 $operands => $item, ANYWHERE, 2: 1 of 2 2 of 1 3 of 1 4 of 1 5 of 1 6 of 1)
    };
}
macro_rules! widened_narrow {
    ($operands:ty => $item:ty) => {
        by_rows!(avx512 $operands => $item, ANYWHERE, 1: 1 of 4 2 of 2 3 of 2 4 of 1 5 of 1 6 of 1 7 of 1)
    };
}
const AVX512_BF16: &[Microkernel] = &widened!(bf16 => bf16);
const AVX512_BF16_TO_F32: &[Microkernel] = &widened!(bf16 => f32);
const AVX512_BF16_NARROW: &[Microkernel] = &widened_narrow!(bf16 => bf16);
const AVX512_BF16_NARROW_TO_F32: &[Microkernel] = &widened_narrow!(bf16 => f32);
const AVX512_F16: &[Microkernel] = &widened!(f16 => f16);
const AVX512_F16_TO_F32: &[Microkernel] = &widened!(f16 => f32);
const AVX512_F16_NARROW: &[Microkernel] = &widened_narrow!(f16 => f16);
const AVX512_F16_NARROW_TO_F32: &[Microkernel] = &widened_narrow!(f16 => f32);
const AVX2_BF16: &[Microkernel] = &by_rows!(avx2 bf16 => bf16, ANYWHERE, 1: 1 of 1 2 of 1);
const AVX2_BF16_TO_F32: &[Microkernel] = &by_rows!(avx2 bf16 => f32, ANYWHERE, 1: 1 of 1 2 of 1);
const AVX2_F16: &[Microkernel] = &by_rows!(avx2 f16 => f16, ANYWHERE, 1: 1 of 1 2 of 1);
const AVX2_F16_TO_F32: &[Microkernel] = &by_rows!(avx2 f16 => f32, ANYWHERE, 1: 1 of 1 2 of 1);

pub(super) const AVX512_PARTS: MicrokernelTable = MicrokernelTable {
    f32: ByRows::wide(AVX512_NARROW, AVX512),
    compact: AVX512_COMPACT,
    f32_by_distance: Some([
        ByRows::wide(AVX512_LINE_NARROW, AVX512_LINE),
        ByRows::wide(AVX512_EVEN_NARROW, AVX512_EVEN),
    ]),
    bf16: ByRows::wide(AVX512_BF16_NARROW, AVX512_BF16),
    bf16_to_f32: ByRows::wide(AVX512_BF16_NARROW_TO_F32, AVX512_BF16_TO_F32),
    f16: ByRows::wide(AVX512_F16_NARROW, AVX512_F16),
    f16_to_f32: ByRows::wide(AVX512_F16_NARROW_TO_F32, AVX512_F16_TO_F32),
    bytes: AVX2_BYTES,
    dequantized: Some(AVX2_DEQUANTIZED),
    bf16_dot: ByRows::wide(DOT_NARROW, DOT),
    bf16_dot_to_f32: ByRows::wide(DOT_NARROW_TO_F32, DOT_TO_F32),
    bytes_dot: ByRows::wide(BYTES_NARROW, BYTES),
    dequantized_dot: Some(VNNI_DEQUANTIZED),
};

pub(super) const AVX2_PARTS: MicrokernelTable = MicrokernelTable {
    bytes: AVX2_BYTES,
    dequantized: Some(AVX2_DEQUANTIZED),
    ..MicrokernelTable::narrow(
        AVX2,
        AVX2_COMPACT,
        AVX2_BF16,
        AVX2_BF16_TO_F32,
        AVX2_F16,
        AVX2_F16_TO_F32,
        AVX2_BYTES.one,
    )
};
