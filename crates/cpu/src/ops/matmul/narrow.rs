//! Products of few terms and few columns: each lane has a row of the left factor, since rows of results would not fill a
//! vector.

use std::ops::Range;

use super::{MatMul, MatMulB, Product, TASK_FLOPS, numbers};
use crate::kernel::elements;
use crate::movement::short_rows;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;

/// Whether a product has so few terms and columns. Sixteen columns fill a vector.
pub(super) fn is_narrow(kernel: &MatMul) -> bool {
    let is_plain = [kernel.operands, kernel.result] == [StorageType::F32; 2] && kernel.weights.is_none();
    is_plain && (1..=LANES).contains(&kernel.k) && (2..LANES).contains(&kernel.n)
}

pub(super) fn run(work: &Product<'_>, matrices: usize, pool: &Pool) {
    let MatMul { m, k, n, .. } = *work.kernel;
    let flops = 2.0 * (k * n * m) as f64;
    // Some matrices, or some rows of one.
    let together = ((TASK_FLOPS / 4.0 / flops) as usize).clamp(1, matrices);
    let rows = match together {
        1 => m.div_ceil((4.0 * flops / TASK_FLOPS).ceil() as usize).next_multiple_of(LANES),
        _ => m,
    };
    let parts = m.div_ceil(rows);
    pool.run(matrices.div_ceil(together) * parts, &|task| {
        let (first, part) = (task / parts * together, task % parts * rows);
        let numbers = first..matrices.min(first + together);
        let rows = part..m.min(part + rows);
        with_vector!(pool.isa(), multiply(work: &Product<'_>, numbers: Range<usize>, rows: Range<usize>));
    });
}

/// Some rows of some matrices.
#[inline(always)]
fn multiply<V: Vector>(work: &Product<'_>, matrices: Range<usize>, rows: Range<usize>) {
    let (mut terms, mut columns) = ([[0.0; LANES]; LANES], [[0.0; LANES]; LANES]);
    let mut results = [0.0; LANES * LANES];
    let MatMul { m, k, n, b: form, .. } = *work.kernel;
    // The distances of rows and of columns of the right factor.
    let [row_step, column_step] = match form {
        MatMulB::Packed => [LANES, 1],
        MatMulB::Dynamic => [n, 1],
        MatMulB::Transposed => [1, k],
    };
    for matrix in matrices {
        let (a, b) = (numbers(work.a(matrix)), numbers(work.b(matrix)));
        for first in rows.clone().step_by(LANES) {
            let count = LANES.min(rows.end - first);
            short_rows::read::<V>(&a[first * k..(first + count) * k], &mut terms[..k]);
            for (column, sums) in columns.iter_mut().enumerate().take(n) {
                let mut sum = V::zero();
                for (term, items) in terms.iter().enumerate().take(k) {
                    sum = V::read(items).mul_add(V::splat(b[term * row_step + column * column_step]), sum);
                }
                sum.write(sums);
            }
            let results = &mut results[..count * n];
            short_rows::write::<V>(&columns[..n], results);
            // SAFETY: a task has the results of its rows.
            unsafe { finish_rows(work, V::ISA, (matrix * m + first) * n, results) };
        }
    }
}

/// Adds bias and residual to the sums of whole rows, applies the functions, and writes the results from `start` on.
///
/// # Safety
/// No other task may use these results.
unsafe fn finish_rows(work: &Product<'_>, isa: Isa, start: usize, sums: &mut [f32]) {
    // SAFETY: the caller's promise.
    let results = unsafe { work.out.part(start * size_of::<f32>(), size_of_val(sums)) };
    if let Some(bias) = work.bias {
        for row in sums.chunks_exact_mut(work.kernel.n) {
            row.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
    }
    if let Some(residual) = work.residual {
        let residual: &[f32] = match residual {
            Some(residual) => elements(&residual[start * size_of::<f32>()..][..results.len()]),
            None => elements(results),
        };
        sums.iter_mut().zip(residual).for_each(|(sum, item)| *sum += item);
    }
    work.kernel.epilogue.activate(isa, sums);
    results.copy_from_slice(bytemuck::cast_slice(sums));
}
