//! Products of few terms: results are most of the traffic, so rows are written one after the other.

use std::ops::Range;

use super::{MatMul, MatMulB, Product, numbers};
use crate::simd::StorageType;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::StackBuffer;

/// The most terms; of columns that fill vectors, tiles of the microkernel are faster from fewer on.
const TERMS: usize = 16;
const TERMS_OF_VECTORS: usize = 8;
/// Rows that share a load of the right factor.
const ROWS: usize = 4;
/// Rows of a task at least, so that the right factor is rarely copied.
const TASK_ROWS: usize = 64;
/// Elements of the right factor that are copied at a time, some columns of all terms.
const ROOM: usize = 1 << 13;

/// Whether a product has few terms and no more than a bias and limits behind it.
pub(super) fn has_few_terms(work: &Product<'_>) -> bool {
    let MatMul { m, k, n, .. } = *work.kernel;
    let kernel = work.kernel;
    let is_plain = [kernel.operands, kernel.result] == [StorageType::F32; 2] && kernel.weights.is_none();
    let terms = if n.is_multiple_of(LANES) { TERMS_OF_VECTORS } else { TERMS };
    let is_simple = work.residual.is_none() && work.functions.is_empty();
    is_plain && (1..=terms).contains(&k) && LANES <= n && 4 * ROWS <= m && is_simple
}

pub(super) fn run(work: &Product<'_>, matrices: usize, pool: &Pool) {
    let m = work.kernel.m;
    let rows = m.div_ceil((m / TASK_ROWS).clamp(1, 4 * pool.threads()));
    let parts = m.div_ceil(rows);
    pool.run(matrices * parts, &|task| {
        let (matrix, part) = (task / parts, task % parts * rows);
        let rows = part..m.min(part + rows);
        with_vector!(pool.isa(), multiply(work: &Product<'_>, matrix: usize, rows: Range<usize>));
    });
}

/// Some rows of a matrix.
#[inline(always)]
fn multiply<V: Vector>(work: &Product<'_>, matrix: usize, rows: Range<usize>) {
    let MatMul { m, k, n, b: form, .. } = *work.kernel;
    let (a, b) = (numbers(work.a(matrix)), numbers(work.b(matrix)));
    let vectors = n.div_ceil(LANES);
    let together = if form == MatMulB::Packed { vectors } else { ROOM / (k * LANES) };
    let mut room = StackBuffer::<ROOM>::new();
    for first in (0..vectors).step_by(together) {
        // Vectors of the right factor: those of all terms of sixteen columns are neighbors, as in a packed one.
        let b = match form {
            MatMulB::Packed => b,
            MatMulB::Dynamic | MatMulB::Transposed => {
                let copy = room.zeros(together.min(vectors - first) * k * LANES);
                for (vector, cells) in copy.chunks_exact_mut(k * LANES).enumerate() {
                    copy_columns(b, form, [k, n], (first + vector) * LANES, cells);
                }
                copy
            }
        };
        let mut row = rows.start;
        while row < rows.end {
            let (a, start) = (&a[row * k..], (matrix * m + row) * n);
            row += match rows.end - row {
                // SAFETY: a task has the results of its rows.
                ROWS.. => unsafe { write_rows::<V, ROWS>(work, a, b, start, first) },
                // SAFETY: as above.
                _ => unsafe { write_rows::<V, 1>(work, a, b, start, first) },
            };
        }
    }
}

/// Copies up to sixteen columns of the right factor, term by term.
fn copy_columns(b: &[f32], form: MatMulB, [k, n]: [usize; 2], first: usize, cells: &mut [f32]) {
    let columns = LANES.min(n - first);
    for (term, cells) in cells.chunks_exact_mut(LANES).enumerate() {
        match form {
            MatMulB::Transposed => {
                let column = b[first * k + term..].iter().step_by(k);
                cells[..columns].iter_mut().zip(column).for_each(|(cell, item)| *cell = *item);
            }
            _ => cells[..columns].copy_from_slice(&b[term * n + first..][..columns]),
        }
    }
}

/// Writes the results of R neighboring rows, which begin at `start`, for the columns of `b`, from a vector on.
/// Returns R.
///
/// # Safety
/// No other task may use these results.
#[inline(always)]
unsafe fn write_rows<V: Vector, const R: usize>(
    work: &Product<'_>,
    a: &[f32],
    b: &[f32],
    start: usize,
    first_vector: usize,
) -> usize {
    let MatMul { k, n, .. } = *work.kernel;
    let size = size_of::<f32>();
    // SAFETY: the caller's promise.
    let results: &mut [f32] = bytemuck::cast_slice_mut(unsafe { work.out.part(start * size, R * n * size) });
    let a = &a[..R * k];
    for (vector, b) in b.chunks_exact(k * LANES).enumerate() {
        let first = (first_vector + vector) * LANES;
        let columns = LANES.min(n - first);
        let bias = match work.bias {
            Some(bias) => V::read_part(&bias[first..], 0.0),
            None => V::zero(),
        };
        let mut sums = [bias; R];
        for (term, items) in b.chunks_exact(LANES).enumerate() {
            let items = V::read(items);
            for row in 0..R {
                sums[row] = V::splat(a[row * k + term]).mul_add(items, sums[row]);
            }
        }
        for (row, mut sum) in sums.into_iter().enumerate() {
            if let Some([low, high]) = work.limits {
                sum = sum.at_least(V::splat(low)).at_most(V::splat(high));
            }
            let cells = &mut results[row * n + first..];
            match columns {
                LANES => sum.write(cells),
                _ => sum.write_part(&mut cells[..columns]),
            }
        }
    }
    R
}
