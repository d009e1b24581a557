//! The microkernel: a tile of up to 12 x 32 results of a product, its factors packed so that the inner loop reads forwards.
//!
//! ```text
//!            B: strip of 32 columns, one row of 32 after the other
//!            +----------------+
//!            | k x 32         |
//!            +----------------+
//! A: rows    +----------------+
//! k x 12     | 12 x 32 tile   |   24 vectors of 16 lanes stay in registers
//!            +----------------+
//! ```
//!
//! For each `k` two vectors of B are loaded and each of the 12 elements of A is broadcast and multiplied into both. A may
//! be packed (12 rows side by side for each `k`) or lie as it is: two strides say where an element is. All families of
//! instructions read the same B and the same A; they differ only in how many registers a row takes.

use crate::simd::Isa;

/// Rows of a tile.
pub(crate) const ROWS: usize = 12;
/// Columns of a tile, and of a strip of B.
pub(crate) const COLUMNS: usize = 32;

/// Results of a tile, row by row.
pub(crate) type Tile = [[f32; COLUMNS]; ROWS];

/// Rows of the left factor: element `(row, k)` is `items[start + row * row_stride + k * k_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) items: &'a [f32],
    pub(crate) start: usize,
    pub(crate) row_stride: usize,
    pub(crate) k_stride: usize,
}

/// `tile[r][c] = sum over k of a(r, k) * b[k * 32 + c]` for the first `rows` rows, in ascending order of `k`.
///
/// # Panics
/// Rows that leave `a`, or a `b` of another length than `k` strips of 32.
pub(crate) fn multiply(isa: Isa, rows: usize, k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
    assert!(rows <= ROWS && b.len() == k * COLUMNS, "a tile's operands fit");
    if rows == 0 || k == 0 {
        tile[..rows].iter_mut().for_each(|row| row.fill(0.0));
        return;
    }
    let last = a.start + (rows - 1) * a.row_stride + (k - 1) * a.k_stride;
    assert!(last < a.items.len(), "the rows lie in the left factor");
    macro_rules! by_rows {
        ($($count:literal)*) => {
            match rows {
                $($count => dispatch::<$count>(isa, k, a, b, tile),)*
                _ => unreachable!("asserted above"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
}

fn dispatch<const N: usize>(isa: Isa, k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the pool's family is one the processor has; `multiply` asserted that N rows of k elements lie in `a`
        // and that `b` has k strips.
        Isa::Avx512 => unsafe { x86::avx512::<N>(k, a, b, tile) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::avx2::<N>(k, a, b, tile) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::Neon => unsafe { aarch64::neon::<N>(k, a, b, tile) },
        _ => portable::<N>(k, a, b, tile),
    }
}

fn portable<const N: usize>(k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
    // One row at a time: 32 sums fit the registers of any processor.
    for (row, sums) in tile.iter_mut().enumerate().take(N) {
        *sums = [0.0; COLUMNS];
        for (p, strip) in b.chunks_exact(COLUMNS).enumerate().take(k) {
            let factor = a.items[a.start + row * a.row_stride + p * a.k_stride];
            sums.iter_mut().zip(strip).for_each(|(sum, item)| *sum += factor * item);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, Rows, Tile};

    /// # Safety
    /// The processor has AVX-512 F; N rows of `k` elements lie in `a`; `b` has `k` strips.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512<const N: usize>(k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
        let mut sums = [[_mm512_setzero_ps(); 2]; N];
        // SAFETY: the caller's promise: every address below is `start + row * row_stride + p * k_stride` with row < N and
        // p < k, or an element of strip p < k; the stores go to the first N rows of the tile.
        unsafe {
            let a_start = a.items.as_ptr().add(a.start);
            for p in 0..k {
                let strip = b.as_ptr().add(p * COLUMNS);
                let (left, right) = (_mm512_loadu_ps(strip), _mm512_loadu_ps(strip.add(16)));
                let a_at = a_start.add(p * a.k_stride);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = _mm512_set1_ps(*a_at.add(row * a.row_stride));
                    sums[0] = _mm512_fmadd_ps(factor, left, sums[0]);
                    sums[1] = _mm512_fmadd_ps(factor, right, sums[1]);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                _mm512_storeu_ps(tile[row].as_mut_ptr(), sums[0]);
                _mm512_storeu_ps(tile[row].as_mut_ptr().add(16), sums[1]);
            }
        }
    }

    /// # Safety
    /// The processor has AVX2 and FMA; N rows of `k` elements lie in `a`; `b` has `k` strips.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<const N: usize>(k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
        // 16 registers: 6 rows by 16 columns at a time.
        for half in 0..2 {
            let mut row = 0;
            while row < N {
                // SAFETY: the caller's promise, for the rows from `row` on.
                unsafe {
                    match N - row {
                        1 => avx2_part::<1>(row, half, k, a, b, tile),
                        2 => avx2_part::<2>(row, half, k, a, b, tile),
                        3 => avx2_part::<3>(row, half, k, a, b, tile),
                        4 => avx2_part::<4>(row, half, k, a, b, tile),
                        5 => avx2_part::<5>(row, half, k, a, b, tile),
                        _ => avx2_part::<6>(row, half, k, a, b, tile),
                    }
                }
                row += 6;
            }
        }
    }

    /// # Safety
    /// As `avx2`, for M rows from `first` on.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2_part<const M: usize>(first: usize, half: usize, k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
        let mut sums = [[_mm256_setzero_ps(); 2]; M];
        // SAFETY: the caller's promise, as in `avx512`; a half has 16 columns.
        unsafe {
            let a_start = a.items.as_ptr().add(a.start + first * a.row_stride);
            for p in 0..k {
                let strip = b.as_ptr().add(p * COLUMNS + half * 16);
                let (left, right) = (_mm256_loadu_ps(strip), _mm256_loadu_ps(strip.add(8)));
                let a_at = a_start.add(p * a.k_stride);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = _mm256_set1_ps(*a_at.add(row * a.row_stride));
                    sums[0] = _mm256_fmadd_ps(factor, left, sums[0]);
                    sums[1] = _mm256_fmadd_ps(factor, right, sums[1]);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let out = tile[first + row].as_mut_ptr().add(half * 16);
                _mm256_storeu_ps(out, sums[0]);
                _mm256_storeu_ps(out.add(8), sums[1]);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{COLUMNS, Rows, Tile};
    use crate::simd::vector::neon::{Items, Neon};
    use crate::simd::vector::{LANES, Vector};

    /// # Safety
    /// N rows of `k` elements lie in `a`; `b` has `k` strips.
    pub(super) unsafe fn neon<const N: usize>(k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
        // 32 registers: 6 rows by 16 columns at a time.
        for column in (0..COLUMNS).step_by(LANES) {
            for row in (0..N).step_by(6) {
                // SAFETY: the caller's promise, for the rows from `row` on.
                unsafe {
                    match N - row {
                        1 => part::<1>(row, column, k, a, b, tile),
                        2 => part::<2>(row, column, k, a, b, tile),
                        3 => part::<3>(row, column, k, a, b, tile),
                        4 => part::<4>(row, column, k, a, b, tile),
                        5 => part::<5>(row, column, k, a, b, tile),
                        _ => part::<6>(row, column, k, a, b, tile),
                    }
                }
            }
        }
    }

    /// Never inlined, so that sums get all registers.
    ///
    /// # Safety
    /// As `neon`, for M rows from `first` and 16 columns from `column` on.
    #[inline(never)]
    unsafe fn part<const M: usize>(first: usize, column: usize, k: usize, a: Rows, b: &[f32], tile: &mut Tile) {
        let mut sums = [Neon::zero(); M];
        // SAFETY: the caller's promise: every address is `start + row * row_stride + p * k_stride` with row < N and p < k, or
        // one of sixteen elements of strip p < k.
        unsafe {
            let a_start = a.items.as_ptr().add(a.start + first * a.row_stride);
            for p in 0..k {
                let strip = Neon::load(b.as_ptr().add(p * COLUMNS + column));
                let a_at = a_start.add(p * a.k_stride);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let item = Items::f32((*a_at.add(row * a.row_stride)).to_bits());
                    *sum = strip.add_product::<0>(item, *sum);
                }
            }
        }
        for (sum, row) in sums.iter().zip(&mut tile[first..]) {
            sum.write(&mut row[column..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_multiplies() {
        let mut random = types::Random::new(1);
        for isa in Isa::available() {
            for rows in 1..=ROWS {
                for k in [0, 1, 7, 64] {
                    let a: Vec<f32> = (0..rows * k).map(|_| random.uniform(-1.0, 1.0)).collect();
                    let b: Vec<f32> = (0..k * COLUMNS).map(|_| random.uniform(-1.0, 1.0)).collect();
                    let mut tile = [[9.0; COLUMNS]; ROWS];
                    let left = Rows { items: &a, start: 0, row_stride: k, k_stride: 1 };
                    multiply(isa, rows, k, left, &b, &mut tile);
                    for (row, got) in tile.iter().enumerate().take(rows) {
                        for (column, got) in got.iter().enumerate() {
                            let term = |p: usize| f64::from(a[row * k + p]) * f64::from(b[p * COLUMNS + column]);
                            let want: f64 = (0..k).map(term).sum();
                            assert!((f64::from(*got) - want).abs() < 1e-5, "{isa} {rows} {k}");
                        }
                    }
                }
            }
        }
    }
}
