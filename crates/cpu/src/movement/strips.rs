//! The right operand of a packed `f32` product: strips of columns, each in parts of the inner dimension. A part has all
//! rows of the first vector of columns, then those of the second.

use std::ops::Range;

use crate::simd::vector::LANES;

/// Columns of a strip.
pub(crate) const STRIP: usize = 2 * LANES;
/// The most rows of a part, so that several parts fit a second-level cache.
pub(crate) const PART_ROWS: usize = 1024;

/// Parts of an inner dimension of `k`, whose sums are added one after the other.
pub(crate) fn parts(k: usize) -> usize {
    k.div_ceil(PART_ROWS).max(1)
}

/// The rows of one of `parts` parts.
pub(crate) fn rows(k: usize, parts: usize, part: usize) -> Range<usize> {
    part * k / parts..(part + 1) * k / parts
}

/// Copies up to 32 columns of rows at a distance into a part: all rows of the first vector of columns, then those of the second.
/// With AVX2, products read one vector after the other; as neighbors, both would take twice the sets of the first-level cache.
pub(crate) fn copy(items: &[f32], distance: usize, columns: usize, part: &mut [f32]) {
    let rows = part.len() / columns.next_multiple_of(LANES);
    for (vector, part) in part.chunks_exact_mut(rows * LANES).enumerate() {
        let (first, width) = (vector * LANES, LANES.min(columns - vector * LANES));
        for (row, cells) in part.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let items = &items[row * distance + first..];
            match items.first_chunk::<LANES>() {
                Some(items) if width == LANES => *cells = *items,
                _ => cells[..width].copy_from_slice(&items[..width]),
            }
        }
    }
}

/// A column of `n`: for each part its first element, and the number of elements, [`LANES`] apart.
pub(crate) fn column(k: usize, n: usize, column: usize) -> impl Iterator<Item = (usize, usize)> {
    let (first, parts) = (column / STRIP * STRIP, parts(k));
    let width = STRIP.min(n - first).next_multiple_of(LANES);
    (0..parts).map(move |part| {
        let rows = rows(k, parts, part);
        let vector = column % STRIP / LANES * rows.len() * LANES;
        (first * k + rows.start * width + vector + column % LANES, rows.len())
    })
}
