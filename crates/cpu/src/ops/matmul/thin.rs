//! Products with one column, and products of few rows with a right factor that is not packed: the larger factor is read
//! once, in the order of memory.

use super::{FEW_ROWS, FEW_ROWS_BYTES, MatMul, MatMulB, Product, numbers};
use crate::simd::StorageType;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::StackBuffer;

/// Results that a task holds at a time.
const RUN: usize = 64;
/// Columns of a task whose right factor has rows: half a page of each.
const COLUMNS: usize = 512;
/// Terms that are added to a result between a load and a store.
const TERMS: usize = 4;

/// The form of a product without tiles.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Thin {
    /// Dot products of the rows of one factor with the few rows of the other.
    Dots,
    /// Sums of the rows of the right factor, a few times.
    Sums,
}

impl Thin {
    /// The form, if the product has one.
    pub(super) fn of(kernel: &MatMul) -> Option<Thin> {
        let is_plain = [kernel.operands, kernel.result] == [StorageType::F32; 2];
        match kernel.b {
            MatMulB::Dynamic | MatMulB::Transposed if is_plain && kernel.n == 1 => Some(Thin::Dots),
            MatMulB::Transposed if is_plain && kernel.m <= FEW_ROWS => Some(Thin::Dots),
            MatMulB::Dynamic if is_plain && kernel.m <= FEW_ROWS => Some(Thin::Sums),
            _ => None,
        }
    }

    pub(super) fn run(self, work: &Product<'_>, matrices: usize, pool: &Pool) {
        let MatMul { m, k, n, .. } = *work.kernel;
        // Rows or columns of a task.
        let (all, size) = match self {
            Thin::Dots => (if n == 1 { m } else { n }, (FEW_ROWS_BYTES / 4 / k.max(1)).max(1)),
            Thin::Sums => (n, COLUMNS),
        };
        let tasks = all.div_ceil(size);
        // Small matrices share a task.
        let together = (FEW_ROWS_BYTES / 4 / (k * all.min(size)).max(1)).max(1);
        let all_tasks = matrices * tasks;
        pool.run(all_tasks.div_ceil(together), &|task| {
            for task in task * together..all_tasks.min((task + 1) * together) {
                let (matrix, first) = (task / tasks, task % tasks * size);
                let count = size.min(all - first);
                match self {
                    Thin::Dots => {
                        with_vector!(pool.isa(), dots(work: &Product<'_>, matrix: usize, first: usize, count: usize));
                    }
                    Thin::Sums => {
                        with_vector!(pool.isa(), sums(work: &Product<'_>, matrix: usize, first: usize, count: usize));
                    }
                }
            }
        });
    }
}

/// The dot products of `count` rows from `first` on.
#[inline(always)]
fn dots<V: Vector>(work: &Product<'_>, matrix: usize, first: usize, count: usize) {
    let MatMul { m, k, n, .. } = *work.kernel;
    let (a, b) = (numbers(work.a(matrix)), numbers(work.b(matrix)));
    // The factor of many rows and that of few.
    let (long, short, few) = if n == 1 { (a, b, 1) } else { (b, a, m) };
    for first in (first..first + count).step_by(RUN).map(|at| at..(first + count).min(at + RUN)) {
        let mut results = [[0.0; RUN]; FEW_ROWS];
        // Four rows share a load of the one vector.
        let together = if few == 1 { first.len() / 4 * 4 } else { 0 };
        for (ix, found) in results[0][..together].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let row = |number: usize| &long[(first.start + 4 * ix + number) * k..][..k];
            *found = dot::<V, 4, 1>(&short[..k], [row(0), row(1), row(2), row(3)]);
        }
        for (ix, row) in first.clone().enumerate().skip(together) {
            let long = &long[row * k..][..k];
            let row = |number: usize| &short[number * k..][..k];
            match few {
                1 => results[0][ix] = dot::<V, 1, 1>(long, [row(0)])[0],
                2 => [results[0][ix], results[1][ix]] = dot::<V, 2, 2>(long, [row(0), row(1)]),
                3 => [results[0][ix], results[1][ix], results[2][ix]] = dot::<V, 3, 1>(long, [row(0), row(1), row(2)]),
                _ => {
                    let found = dot::<V, 4, 1>(long, [row(0), row(1), row(2), row(3)]);
                    results.iter_mut().zip(found).for_each(|(results, found)| results[ix] = found);
                }
            }
        }
        for (number, results) in results.iter_mut().enumerate().take(few) {
            let start = (matrix * m + number) * n + first.start;
            // SAFETY: a task has the results of its rows or columns.
            unsafe { work.finish(V::ISA, start, first.start, &mut results[..first.len()]) };
        }
    }
}

/// The products of a row with S others, each the total of P partial sums.
#[inline(always)]
fn dot<V: Vector, const S: usize, const P: usize>(long: &[f32], short: [&[f32]; S]) -> [f32; S] {
    let mut parts = [[V::zero(); P]; S];
    let whole = long.len() / (P * LANES) * (P * LANES);
    for at in (0..whole).step_by(P * LANES) {
        for part in 0..P {
            let items = V::read(&long[at + part * LANES..]);
            for number in 0..S {
                parts[number][part] = items.mul_add(V::read(&short[number][at + part * LANES..]), parts[number][part]);
            }
        }
    }
    for at in (whole..long.len()).step_by(LANES) {
        let items = V::read_part(&long[at..], 0.0);
        for number in 0..S {
            parts[number][0] = items.mul_add(V::read_part(&short[number][at..], 0.0), parts[number][0]);
        }
    }
    // Loops instead of closures: only inlined code is compiled for the ISA.
    let mut found = [0.0; S];
    for number in 0..S {
        let mut sum = parts[number][0];
        for part in &parts[number][1..] {
            sum = sum.add(*part);
        }
        found[number] = sum.sum();
    }
    found
}

/// Columns from `first` on of few rows.
#[inline(always)]
fn sums<V: Vector>(work: &Product<'_>, matrix: usize, first: usize, count: usize) {
    let MatMul { m, k, n, .. } = *work.kernel;
    let (a, b) = (numbers(work.a(matrix)), numbers(work.b(matrix)));
    let mut room = StackBuffer::<{ FEW_ROWS * COLUMNS }>::new();
    let results = room.zeros(m * count);
    let row = |term: usize| &b[term * n + first..][..count];
    for term in (0..k / TERMS * TERMS).step_by(TERMS) {
        let rows: [&[f32]; TERMS] = std::array::from_fn(|ix| row(term + ix));
        for (number, results) in results.chunks_exact_mut(count).enumerate() {
            let mut factors = [V::zero(); TERMS];
            for (factor, item) in factors.iter_mut().zip(&a[number * k + term..]) {
                *factor = V::splat(*item);
            }
            add_rows(rows, factors, results);
        }
    }
    for term in k / TERMS * TERMS..k {
        for (number, results) in results.chunks_exact_mut(count).enumerate() {
            add_rows([row(term)], [V::splat(a[number * k + term])], results);
        }
    }
    for (number, results) in results.chunks_exact_mut(count).enumerate() {
        // SAFETY: a task has the results of its columns.
        unsafe { work.finish(V::ISA, (matrix * m + number) * n + first, first, results) };
    }
}

/// Adds rows, each times a factor.
#[inline(always)]
fn add_rows<V: Vector, const T: usize>(rows: [&[f32]; T], factors: [V; T], results: &mut [f32]) {
    let rows = rows.map(|row| &row[..results.len()]);
    let whole = results.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let mut sum = V::read(&results[at..]);
        for (row, factor) in rows.iter().zip(factors) {
            sum = factor.mul_add(V::read(&row[at..]), sum);
        }
        sum.write(&mut results[at..]);
    }
    let mut sum = V::read_part(&results[whole..], 0.0);
    for (row, factor) in rows.iter().zip(factors) {
        sum = factor.mul_add(V::read_part(&row[whole..], 0.0), sum);
    }
    sum.write_part(&mut results[whole..]);
}
