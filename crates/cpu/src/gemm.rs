//! The product of a 12-row panel and a 32-column strip, which every matrix-like kernel is made of.
//!
//! ```text
//!              strip: k rows of 32 floats, one after the other
//!             ┌────────────────────────────────┐
//!             │ b[k * 32 + column]             │
//!             └────────────────────────────────┘
//!  ┌───────┐  ┌────────────────────────────────┐
//!  │ panel │  │ tile: up to 12 rows of 32      │  tile += panel * strip
//!  └───────┘  └────────────────────────────────┘
//! ```
//! A panel is a view with two strides: packed panels have `(1, 12)`, row-major matrices `(k, 1)`. All instruction sets
//! read the same formats, so packed constants do not depend on the machine. Each element is one sum in the order of k.

use std::ops::Range;

use crate::isa::Isa;

/// Rows of a panel.
pub(crate) const ROWS: usize = 12;
/// Columns of a strip.
pub(crate) const COLUMNS: usize = 32;

/// A panel's product with a strip, row-major, 32 columns.
#[repr(align(64))]
pub(crate) struct Tile(pub(crate) [f32; ROWS * COLUMNS]);

/// A view of up to 12 rows of the left matrix: element `(row, k)` is `items[row * row_stride + k * k_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) items: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) row_stride: usize,
    pub(crate) k_stride: usize,
}

impl<'a> Panel<'a> {
    /// A panel that was packed k-major.
    pub(crate) fn packed(items: &'a [f32], rows: usize) -> Self {
        Panel { items, rows, row_stride: 1, k_stride: ROWS }
    }
}

/// Packs a row-major `rows x depth` matrix into panels of 12 rows, k-major; the last panel is filled up with zeros.
pub(crate) fn pack_panels(rows: usize, depth: usize, element: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut packed = vec![0.0; rows.div_ceil(ROWS) * ROWS * depth];
    for row in 0..rows {
        let panel = row / ROWS * ROWS * depth;
        for k in 0..depth {
            packed[panel + k * ROWS + row % ROWS] = element(row, k);
        }
    }
    packed
}

/// Packs rows `ks` of a row-major matrix, columns from `column`, into a strip; columns past the end become zeros.
pub(crate) fn pack_strip(matrix: &[f32], columns: usize, column: usize, ks: Range<usize>, strip: &mut [f32]) {
    let width = COLUMNS.min(columns - column);
    for (k, into) in ks.zip(strip.as_chunks_mut::<COLUMNS>().0) {
        let start = k * columns + column;
        if let Some(from) = matrix[start..].first_chunk::<COLUMNS>()
            && width == COLUMNS
        {
            *into = *from;
        } else {
            into[..width].copy_from_slice(&matrix[start..start + width]);
            into[width..].fill(0.0);
        }
    }
}

/// `tile += panel * strip` over `depth` steps of k. Rows of the tile past the panel's stay as they are.
#[inline]
pub(crate) fn multiply(isa: Isa, depth: usize, panel: Panel, strip: &[f32], tile: &mut Tile) {
    if depth == 0 || panel.rows == 0 {
        return;
    }
    assert!(panel.rows <= ROWS && depth * COLUMNS <= strip.len());
    assert!((panel.rows - 1) * panel.row_stride + (depth - 1) * panel.k_stride < panel.items.len());
    match isa {
        // SAFETY: the pool found the instructions on this machine; the asserts above bound every access.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::avx512(depth, panel, strip.as_ptr(), &mut tile.0) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(depth, panel, strip.as_ptr(), &mut tile.0) },
        _ => portable(depth, panel, strip, &mut tile.0),
    }
}

fn portable(depth: usize, panel: Panel, strip: &[f32], tile: &mut [f32; ROWS * COLUMNS]) {
    for (row, sums) in tile.as_chunks_mut::<COLUMNS>().0.iter_mut().take(panel.rows).enumerate() {
        for (k, b) in strip.as_chunks::<COLUMNS>().0.iter().take(depth).enumerate() {
            let a = panel.items[row * panel.row_stride + k * panel.k_stride];
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, Panel, ROWS};

    /// # Safety
    /// The machine has AVX-512F; `panel` covers `depth` steps and `strip` has `depth * 32` floats.
    pub(super) unsafe fn avx512(depth: usize, panel: Panel, strip: *const f32, tile: &mut [f32; ROWS * COLUMNS]) {
        macro_rules! pick {
            ($($rows:literal),*) => {
                match (panel.rows, panel.row_stride, panel.k_stride) {
                    // SAFETY: the caller's promise, handed on; rows and strides are the panel's.
                    $(($rows, 1, ROWS) => unsafe { tile_avx512::<$rows, true>(depth, panel, strip, tile) },
                    // SAFETY: as above.
                    ($rows, _, _) => unsafe { tile_avx512::<$rows, false>(depth, panel, strip, tile) },)*
                    _ => {}
                }
            };
        }
        pick!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    }

    /// # Safety
    /// As for [`avx512`]; `panel` has `R` rows, and strides `(1, 12)` where `PACKED`.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_avx512<const R: usize, const PACKED: bool>(
        depth: usize,
        panel: Panel,
        strip: *const f32,
        tile: &mut [f32; ROWS * COLUMNS],
    ) {
        let (row, step) = if PACKED { (1, ROWS) } else { (panel.row_stride, panel.k_stride) };
        let tile = tile.as_mut_ptr();
        // SAFETY: `r < R <= 12` keeps tile accesses inside its 384 floats. At step k the strip is read at
        // `32 k .. 32 k + 32` and the panel at `r * row + k * step`, both inside as the caller promises. The pointers
        // are moved with `wrapping_add`, since after the last step they may point past the end.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            for (r, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm512_loadu_ps(tile.add(r * COLUMNS));
                sum[1] = _mm512_loadu_ps(tile.add(r * COLUMNS + 16));
            }
            // Four pointers of three rows each: addresses stay in registers whatever the stride.
            let mut a = [0, 1, 2, 3].map(|third| panel.items.as_ptr().wrapping_add(3 * third * row));
            let mut b = strip;
            for _ in 0..depth {
                let b0 = _mm512_loadu_ps(b);
                let b1 = _mm512_loadu_ps(b.wrapping_add(16));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let value = _mm512_set1_ps(*a[r / 3].wrapping_add(r % 3 * row));
                    sum[0] = _mm512_fmadd_ps(value, b0, sum[0]);
                    sum[1] = _mm512_fmadd_ps(value, b1, sum[1]);
                }
                a = a.map(|pointer| pointer.wrapping_add(step));
                b = b.wrapping_add(COLUMNS);
            }
            for (r, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(tile.add(r * COLUMNS), sum[0]);
                _mm512_storeu_ps(tile.add(r * COLUMNS + 16), sum[1]);
            }
        }
    }

    /// # Safety
    /// The machine has AVX2 and FMA; `panel` covers `depth` steps and `strip` has `depth * 32` floats.
    pub(super) unsafe fn avx2(depth: usize, panel: Panel, strip: *const f32, tile: &mut [f32; ROWS * COLUMNS]) {
        macro_rules! pick {
            ($count:expr, $first:expr, $half:expr, $($rows:literal),*) => {
                match $count {
                    // SAFETY: the caller's promise, handed on; `first + rows` is at most the panel's rows.
                    $($rows => unsafe { tile_avx2::<$rows>(depth, panel, $first, strip.wrapping_add($half), $half, tile) },)*
                    _ => {}
                }
            };
        }
        for first in [0, 6] {
            let count = panel.rows.saturating_sub(first).min(6);
            for half in [0, 16] {
                pick!(count, first, half, 1, 2, 3, 4, 5, 6);
            }
        }
    }

    /// Six rows by sixteen columns: twelve accumulators of the sixteen registers.
    ///
    /// # Safety
    /// As for [`avx2`]; `first + R <= panel.rows`, `half` is 0 or 16 and `strip` is moved by it.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile_avx2<const R: usize>(
        depth: usize,
        panel: Panel,
        first: usize,
        strip: *const f32,
        half: usize,
        tile: &mut [f32; ROWS * COLUMNS],
    ) {
        let (row, step) = (panel.row_stride, panel.k_stride);
        // SAFETY: `first + r < 12` and `half + 16 <= 32` keep tile accesses inside; the strip is read at
        // `32 k + half .. + 16` and the panel at `(first + r) * row + k * step`, inside as the caller promises.
        unsafe {
            let tile = tile.as_mut_ptr().add(first * COLUMNS + half);
            let mut sums = [[_mm256_setzero_ps(); 2]; R];
            for (r, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm256_loadu_ps(tile.add(r * COLUMNS));
                sum[1] = _mm256_loadu_ps(tile.add(r * COLUMNS + 8));
            }
            let mut a = [0, 1].map(|third| panel.items.as_ptr().wrapping_add((first + 3 * third) * row));
            let mut b = strip;
            for _ in 0..depth {
                let b0 = _mm256_loadu_ps(b);
                let b1 = _mm256_loadu_ps(b.wrapping_add(8));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let value = _mm256_set1_ps(*a[r / 3].wrapping_add(r % 3 * row));
                    sum[0] = _mm256_fmadd_ps(value, b0, sum[0]);
                    sum[1] = _mm256_fmadd_ps(value, b1, sum[1]);
                }
                a = a.map(|pointer| pointer.wrapping_add(step));
                b = b.wrapping_add(COLUMNS);
            }
            for (r, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(tile.add(r * COLUMNS), sum[0]);
                _mm256_storeu_ps(tile.add(r * COLUMNS + 8), sum[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_height_and_layout_agrees_with_plain_sums() {
        for rows in 1..=ROWS {
            for depth in [0, 1, 5, 33] {
                let a: Vec<f32> = (0..rows * depth).map(|index| (index % 7) as f32 - 3.0).collect();
                let strip: Vec<f32> = (0..depth * COLUMNS).map(|index| (index % 11) as f32 - 5.0).collect();
                let packed = pack_panels(rows, depth, |row, k| a[row * depth + k]);
                let want = |row: usize, column: usize| {
                    1.0 + (0..depth).map(|k| a[row * depth + k] * strip[k * COLUMNS + column]).sum::<f32>()
                };
                for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                    let isa = isa.min(Isa::detect());
                    let plain = Panel { items: &a, rows, row_stride: depth, k_stride: 1 };
                    for panel in [plain, Panel::packed(&packed, rows)] {
                        let mut tile = Tile([1.0; ROWS * COLUMNS]);
                        multiply(isa, depth, panel, &strip, &mut tile);
                        for (index, &got) in tile.0.iter().enumerate() {
                            let (row, column) = (index / COLUMNS, index % COLUMNS);
                            // Small integers: every order of additions is exact.
                            assert_eq!(got, if row < rows { want(row, column) } else { 1.0 }, "{isa:?} {rows} {depth}");
                        }
                    }
                }
            }
        }
    }
}
