//! Products of few rows by a packed right factor: each strip is read once, with independent sums for all rows.

use std::array::from_fn;

use types::WeightFormat;

use super::{FEW_ROWS, MatMul, Product, numbers};
use crate::gemm::operands::{ByBf16, ByInt8, Operands};
use crate::movement::strips::STRIP;
use crate::simd::Isa;
use crate::simd::vector::{LANES, Vector};

/// Multiplies all rows, at most [`FEW_ROWS`], by one strip.
#[inline(always)]
pub(super) fn few_rows<V: Vector>(work: &Product<'_>, matrix: usize, strip: usize) {
    match work.kernel.weights {
        None => few_rows_by::<V, f32>(work, matrix, strip),
        Some(WeightFormat::Bf16) => few_rows_by::<V, ByBf16>(work, matrix, strip),
        Some(WeightFormat::Int8) => few_rows_by::<V, ByInt8>(work, matrix, strip),
    }
}

/// The same by weights in one form.
#[inline(always)]
fn few_rows_by<V: Vector, F: Operands<V, Weights = V>>(work: &Product<'_>, matrix: usize, strip: usize) {
    let MatMul { m, n, .. } = *work.kernel;
    let (column, columns) = (strip * STRIP, work.columns(strip));
    let mut sums = [[0.0; STRIP]; FEW_ROWS];
    // Independent accumulators, as many as fit in registers.
    match (V::ISA, m, columns <= LANES) {
        (Isa::Avx512, 1, false) => sum_rows::<V, F, 1, 2, 4>(work, matrix, strip, 0, &mut sums),
        (Isa::Avx512, 2, false) => sum_rows::<V, F, 2, 2, 2>(work, matrix, strip, 0, &mut sums),
        (Isa::Avx512, 3, false) => sum_rows::<V, F, 3, 2, 2>(work, matrix, strip, 0, &mut sums),
        (_, 1, false) => sum_rows::<V, F, 1, 2, 2>(work, matrix, strip, 0, &mut sums),
        (Isa::Avx512, 4, false) => sum_rows::<V, F, 4, 2, 1>(work, matrix, strip, 0, &mut sums),
        _ => {
            for vector in 0..columns.div_ceil(LANES) {
                match m {
                    1 => sum_rows::<V, F, 1, 1, 4>(work, matrix, strip, vector, &mut sums),
                    2 => sum_rows::<V, F, 2, 1, 2>(work, matrix, strip, vector, &mut sums),
                    3 => sum_rows::<V, F, 3, 1, 1>(work, matrix, strip, vector, &mut sums),
                    _ => sum_rows::<V, F, 4, 1, 1>(work, matrix, strip, vector, &mut sums),
                }
            }
        }
    }
    for (row, sums) in sums.iter_mut().enumerate().take(m) {
        if F::IS_SCALED {
            sums.iter_mut().zip(&work.scales[column..]).for_each(|(sum, scale)| *sum *= scale);
        }
        // SAFETY: a strip of a matrix belongs to one task.
        unsafe { work.finish(V::ISA, (matrix * m + row) * n + column, column, &mut sums[..columns]) };
    }
}

/// `sums[row][(vector + v) * 16 + lane]` for R rows and N vectors of a packed strip. Term `t` is added to partial sum
/// `t % S`, the remainder to the first.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
fn sum_rows<V: Vector, F: Operands<V, Weights = V>, const R: usize, const N: usize, const S: usize>(
    work: &Product<'_>,
    matrix: usize,
    strip: usize,
    vector: usize,
    sums: &mut [[f32; STRIP]; FEW_ROWS],
) {
    let k = work.kernel.k;
    let width = work.columns(strip).next_multiple_of(LANES);
    let a = work.a(matrix);
    let size = F::WEIGHT_BYTES;
    let strip = &work.packed[strip * STRIP * k * size..][..width * k * size];
    assert!((vector + N) * LANES <= width, "the vectors lie in the strip");
    let mut parts = [[[V::zero(); N]; R]; S];
    for part in 0..work.kernel.packed_parts() {
        let terms = work.kernel.packed_terms(part);
        let depth = terms.len();
        let rows: [&[f32]; R] = from_fn(|row| &numbers(&a[row * k..][..k])[terms.clone()]);
        let cells = &strip[terms.start * width * size..terms.end * width * size];
        let cells = &cells[vector * depth * LANES * size..][..N * depth * LANES * size];
        for at in (0..depth / S * S).step_by(S) {
            for s in 0..S {
                // SAFETY: terms are less than `depth`, the length of the rows, and each of the N vectors of `cells` has
                // as many.
                parts[s] = unsafe { term::<V, F, R, N>(parts[s], rows, cells, depth, at + s) };
            }
        }
        for at in depth / S * S..depth {
            // SAFETY: as above.
            parts[0] = unsafe { term::<V, F, R, N>(parts[0], rows, cells, depth, at) };
        }
    }
    for r in 0..R {
        for v in 0..N {
            let mut sum = parts[0][r][v];
            for s in 1..S {
                sum = sum.add(parts[s][r][v]);
            }
            sum.write(&mut sums[r][(vector + v) * LANES..]);
        }
    }
}

/// Adds one term: the element at `at` of each row times the vectors of the strip.
///
/// # Safety
/// `at` must be less than `depth` and within the rows, and `cells` must have N vectors of `depth` terms.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
unsafe fn term<V: Vector, F: Operands<V, Weights = V>, const R: usize, const N: usize>(
    mut sums: [[V; N]; R],
    rows: [&[f32]; R],
    cells: &[u8],
    depth: usize,
    at: usize,
) -> [[V; N]; R] {
    let mut operands = [V::zero(); N];
    for v in 0..N {
        // SAFETY: guaranteed by the caller.
        operands[v] = unsafe { F::weights(cells.as_ptr().add((v * depth + at) * LANES * F::WEIGHT_BYTES).cast()) };
    }
    for r in 0..R {
        // SAFETY: guaranteed by the caller.
        let item = V::splat(unsafe { *rows[r].get_unchecked(at) });
        for v in 0..N {
            sums[r][v] = item.mul_add(operands[v], sums[r][v]);
        }
    }
    sums
}
