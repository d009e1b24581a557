//! [`Columns`]: the rows of a window folded for each column, which the windows of an output row share.
//!
//! ```text
//!   pad | columns of the input | more      a fold of the rows of the window each; START in the padding
//!     [  window  ]                         sixteen neighboring outputs fold the same column of their windows at a time
//! ```

use crate::conv::Window;
use crate::ops::pooling::Fold;
use crate::simd::vector::{LANES, Vector, read_every};

/// The most columns, with padding.
const COLUMNS: usize = 1024;
/// With fewer columns of the input, most lanes have none.
const COLUMNS_MIN: usize = 4;

/// Vectors that are folded together, so that a row or tap is found once for all of them.
const GROUP: usize = 4;

#[inline(always)]
fn read_group<V: Vector>(items: &[f32; GROUP * LANES]) -> [V; GROUP] {
    let mut vectors = [V::zero(); GROUP];
    for (vector, items) in vectors.iter_mut().zip(items.as_chunks::<LANES>().0) {
        *vector = V::read(items);
    }
    vectors
}

#[inline(always)]
fn write_group<V: Vector>(vectors: [V; GROUP], cells: &mut [f32; GROUP * LANES]) {
    for (vector, cells) in vectors.into_iter().zip(cells.as_chunks_mut::<LANES>().0) {
        vector.write(cells);
    }
}

/// The folded columns of a row of windows.
pub(crate) struct Columns<'a> {
    window: &'a Window,
    cells: [f32; COLUMNS],
}

impl<'a> Columns<'a> {
    /// Whether windows have this form: they overlap or touch, and their columns fit.
    pub(crate) fn fit(window: &Window) -> bool {
        let [input, output] = [window.input[1], window.output[1]];
        1 < output && COLUMNS_MIN <= input && window.stride[1] <= window.kernel[1] && Columns::length(window) <= COLUMNS
    }

    /// The columns that sixteen outputs read at a time, and those of the input.
    fn length(window: &Window) -> usize {
        let taps = (window.kernel[1] - 1) * window.dilation[1];
        let outputs = window.output[1].next_multiple_of(LANES) * window.stride[1] + taps;
        outputs.max(window.pad[1] + window.input[1])
    }

    /// Columns without rows.
    #[inline(always)]
    pub(crate) fn new<F: Fold>(window: &'a Window) -> Columns<'a> {
        Columns { window, cells: [F::START; COLUMNS] }
    }

    /// Forgets all rows.
    #[inline(always)]
    pub(crate) fn clear<F: Fold>(&mut self) {
        self.cells[self.window.pad[1]..][..self.window.input[1]].fill(F::START);
    }

    /// Adds `count` rows of the input: those at the window's dilation, from the first of `source` on.
    #[inline(always)]
    pub(crate) fn add<V: Vector, F: Fold>(&mut self, source: &[f32], count: usize) {
        let width = self.window.input[1];
        let pitch = self.window.dilation[0] * width;
        let cells = &mut self.cells[self.window.pad[1]..][..width];
        let (groups, rest) = cells.as_chunks_mut::<{ GROUP * LANES }>();
        let first = groups.len() * GROUP * LANES;
        for (group, cells) in groups.iter_mut().enumerate() {
            let mut folds = read_group::<V>(cells);
            for row in 0..count {
                let items = source[row * pitch + group * GROUP * LANES..].first_chunk().expect("rows have the width");
                for (fold, items) in folds.iter_mut().zip(read_group::<V>(items)) {
                    *fold = F::lanes(*fold, items);
                }
            }
            write_group(folds, cells);
        }
        for (block, cells) in rest.chunks_mut(LANES).enumerate() {
            let mut fold = V::read_part(cells, 0.0);
            for row in 0..count {
                let row = &source[row * pitch..][..width];
                fold = F::lanes(fold, V::read_part(&row[first + block * LANES..], 0.0));
            }
            fold.write_part(cells);
        }
    }

    /// Folds the columns of each window.
    #[inline(always)]
    pub(crate) fn fold<V: Vector, F: Fold>(&self, outputs: &mut [f32]) {
        let Window { stride: [_, stride], kernel: [_, taps], dilation: [_, dilation], .. } = *self.window;
        // Groups of vectors at a stride of one; other outputs vector by vector.
        let groups = if stride == 1 { outputs.len() / (GROUP * LANES) } else { 0 };
        let (whole, rest) = outputs.split_at_mut(groups * GROUP * LANES);
        for (group, outputs) in whole.as_chunks_mut::<{ GROUP * LANES }>().0.iter_mut().enumerate() {
            let mut folds = [V::splat(F::START); GROUP];
            for tap in 0..taps {
                let cells = self.cells[group * GROUP * LANES + tap * dilation..].first_chunk().expect("columns fit");
                for (fold, cells) in folds.iter_mut().zip(read_group::<V>(cells)) {
                    *fold = F::lanes(*fold, cells);
                }
            }
            write_group(folds, outputs);
        }
        for (block, outputs) in rest.chunks_mut(LANES).enumerate() {
            let cells = &self.cells[(groups * GROUP + block) * LANES * stride..];
            let mut lanes = V::splat(F::START);
            for tap in 0..taps {
                lanes = F::lanes(lanes, read_every(&cells[tap * dilation..], stride));
            }
            lanes.write_part(outputs);
        }
    }
}
