//! [`Pool2d`]: max and average pooling over row-major images.
//!
//! Its lanes are pixels of a row, those of [`PoolBlocked`](super::pooling_blocked::PoolBlocked) channels of a block.
//! They share no loop and stay two kernels.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::column_folds::Columns;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// The reduction of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pool2dKind {
    /// The largest cell inside the input; minus infinity if the window has none.
    Max,
    /// The mean of the cells inside the input.
    Mean,
    /// The mean of the cells inside the input and its padding, which is 0.
    MeanWithPadding {
        /// Padding after rows and columns.
        pad_end: [usize; 2],
    },
}

/// Slides a window over `planes` single-channel images in `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool2d {
    /// The reduction.
    pub kind: Pool2dKind,
    /// Batch size times channels.
    pub planes: usize,
    /// Geometry over rows and columns.
    pub window: Window,
}

impl KernelFn for Pool2d {
    const NAME: &'static str = "pool2d";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        check_kind(self.kind)?;
        let [input, output] = [self.window.input, self.window.output];
        let output = product(&[self.planes, output[0], output[1]]);
        Sizes::new(&[product(&[self.planes, input[0], input[1]])], output, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let [height, width] = self.window.output;
        if height * width == 0 {
            return;
        }
        // Output rows are counted over all planes.
        let taps = if self.has_columns() { self.window.kernel.iter().sum() } else { self.window.taps() };
        let rows = (WORK / (width * taps).max(1)).max(1);
        for_each_chunk(pool, out, rows * width, &|number, cells| {
            let (kernel, first) = (self, number * rows);
            with_vector!(pool.isa(), run_rows(kernel: &Pool2d, x: &[f32], first: usize, cells: &mut [f32]));
        });
    }
}

/// Cells of windows that a task reduces.
const WORK: usize = 1 << 14;
/// Partial results of cells that belong to one output: vector `i` goes to number `i % PARTIAL`.
const PARTIAL: usize = 4;

/// Rejects padding too large for any image.
pub(crate) fn check_kind(kind: Pool2dKind) -> Result<(), InvalidKernel> {
    match kind {
        Pool2dKind::MeanWithPadding { pad_end } if pad_end.iter().any(|&pad| 1 << 28 <= pad) => {
            Err(InvalidKernel("padding must be less than 2^28"))
        }
        _ => Ok(()),
    }
}

/// The input rows of a window that are in the input.
#[derive(Clone, Copy)]
struct Rows<'a> {
    /// The plane from the first of them on.
    source: &'a [f32],
    count: usize,
}

/// The arithmetic on a result for each cell of its window.
pub(crate) trait Fold {
    /// The result without cells.
    const START: f32;

    fn item(cell: f32, item: f32) -> f32;

    fn lanes<V: Vector>(cells: V, items: V) -> V;
}

/// The largest cell; NaN if one is NaN.
pub(crate) struct Largest;

impl Fold for Largest {
    const START: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn item(cell: f32, item: f32) -> f32 {
        // Selecting `item` or `cell` would be compiled to masked stores, which are slow.
        if item.is_nan() || cell.is_nan() { item + cell } else { cell.max(item) }
    }

    #[inline(always)]
    fn lanes<V: Vector>(cells: V, items: V) -> V {
        cells.max_or_nan(items)
    }
}

/// The same of cells without NaN, which takes a third of the instructions.
pub(crate) struct LargestNumber;

impl Fold for LargestNumber {
    const START: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn item(cell: f32, item: f32) -> f32 {
        cell.max(item)
    }

    #[inline(always)]
    fn lanes<V: Vector>(cells: V, items: V) -> V {
        cells.max(items)
    }
}

/// Whether all items are finite.
#[inline(always)]
pub(crate) fn are_finite<V: Vector>(items: &[f32]) -> bool {
    // The product of 0 and an infinity or NaN is NaN.
    let mut parts = [V::zero(); PARTIAL];
    let (groups, rest) = items.as_chunks::<{ PARTIAL * LANES }>();
    for group in groups {
        for (part, items) in parts.iter_mut().zip(group.as_chunks::<LANES>().0) {
            *part = V::read(items).mul_add(V::zero(), *part);
        }
    }
    for items in rest.chunks(LANES) {
        parts[0] = V::read_part(items, 0.0).mul_add(V::zero(), parts[0]);
    }
    parts[0].add(parts[1]).add(parts[2].add(parts[3])).sum() == 0.0
}

pub(crate) struct Sum;

impl Fold for Sum {
    const START: f32 = 0.0;

    #[inline(always)]
    fn item(cell: f32, item: f32) -> f32 {
        cell + item
    }

    #[inline(always)]
    fn lanes<V: Vector>(cells: V, items: V) -> V {
        cells.add(items)
    }
}

/// Some output rows, from row `first` of all planes on. Compiled for an instruction set.
#[inline(always)]
fn run_rows<V: Vector>(kernel: &Pool2d, x: &[f32], first: usize, cells: &mut [f32]) {
    let interior = kernel.window.interior(1);
    match (kernel.kind == Pool2dKind::Max, kernel.has_columns()) {
        (true, true)
            if are_finite::<V>(&x[kernel.window.pixels_read(first, cells.len() / kernel.window.output[1])]) =>
        {
            return kernel.fold_columns::<V, LargestNumber>(x, first, cells);
        }
        (true, true) => return kernel.fold_columns::<V, Largest>(x, first, cells),
        (true, false) => return kernel.fold_rows::<V, Largest>(x, first, cells, &interior),
        (false, true) => kernel.fold_columns::<V, Sum>(x, first, cells),
        (false, false) => kernel.fold_rows::<V, Sum>(x, first, cells, &interior),
    }
    let [height, width] = kernel.window.output;
    for (ix, row) in cells.chunks_exact_mut(width).enumerate() {
        let rows = kernel.counted(0, (first + ix) % height);
        for ox in (0..interior.start).chain(interior.end..width) {
            row[ox] /= (rows * kernel.counted(1, ox)) as f32;
        }
        let count = (rows * kernel.window.kernel[1]) as f32;
        row[interior.clone()].iter_mut().for_each(|cell| *cell /= count);
    }
}

impl Pool2d {
    /// Whether windows of several rows share the folds of their columns.
    fn has_columns(&self) -> bool {
        2 < self.window.kernel[0] && Columns::fit(&self.window)
    }

    /// The first row of the input that an output row reads, and the number of those it reads.
    #[inline(always)]
    fn taps_of(&self, oy: usize) -> (usize, usize) {
        let (window, taps) = (&self.window, self.window.taps_inside(0, oy));
        ((oy * window.stride[0] + taps.start * window.dilation[0]).saturating_sub(window.pad[0]), taps.len())
    }

    /// Folds the cells of each output's window: first its rows for each column, then the columns.
    #[inline(always)]
    fn fold_columns<V: Vector, F: Fold>(&self, x: &[f32], first: usize, cells: &mut [f32]) {
        let [height, width] = self.window.output;
        let mut columns = Columns::new::<F>(&self.window);
        for (ix, row) in cells.chunks_exact_mut(width).enumerate() {
            let (plane, oy) = ((first + ix) / height, (first + ix) % height);
            let (top, count) = self.taps_of(oy);
            columns.clear::<F>();
            columns.add::<V, F>(
                x.get((plane * self.window.input[0] + top) * self.window.input[1]..).unwrap_or_default(),
                count,
            );
            columns.fold::<V, F>(row);
        }
    }

    /// Folds the cells of each output's window that are in the input.
    #[inline(always)]
    fn fold_rows<V: Vector, F: Fold>(&self, x: &[f32], first: usize, cells: &mut [f32], interior: &Range<usize>) {
        let window = &self.window;
        let [height, width] = window.output;
        let is_wide = window.stride[1] <= 2 && LANES <= interior.len();
        for (ix, row) in cells.chunks_exact_mut(width).enumerate() {
            let (plane, oy) = ((first + ix) / height, (first + ix) % height);
            let source = &x[plane * window.input_plane()..];
            if !is_wide {
                self.fold_by_taps::<V, F>(source, oy, row);
                continue;
            }
            let (top, count) = self.taps_of(oy);
            let rows = Rows { source: source.get(top * window.input[1]..).unwrap_or_default(), count };
            for ox in (0..interior.start).chain(interior.end..width) {
                row[ox] = self.fold_window::<F>(rows, ox);
            }
            // The last vector overlaps the one in front of it.
            for ox in interior.clone().step_by(LANES) {
                let ox = ox.min(interior.end - LANES);
                self.fold_vector::<V, F>(rows, ox).write(&mut row[ox..]);
            }
        }
    }

    /// Sixteen neighboring outputs of the interior. Columns have a stride of 1 or 2.
    #[inline(always)]
    fn fold_vector<V: Vector, F: Fold>(&self, rows: Rows, ox: usize) -> V {
        let window = &self.window;
        let start = ox * window.stride[1] - window.pad[1];
        let (pitch, taps, dilation) = (window.dilation[0] * window.input[1], window.kernel[1], window.dilation[1]);
        let mut lanes = V::splat(F::START);
        for ky in 0..rows.count {
            let source = &rows.source[ky * pitch + start..];
            for kx in 0..taps {
                let source = &source[kx * dilation..];
                let items = match window.stride[1] {
                    1 => V::read(source),
                    // The last of 32 elements is not used and may be missing.
                    _ => V::read(source).evens(V::read_part(&source[LANES..], 0.0)),
                };
                lanes = F::lanes(lanes, items);
            }
        }
        lanes
    }

    /// One output.
    #[inline(always)]
    fn fold_window<F: Fold>(&self, rows: Rows, ox: usize) -> f32 {
        let window = &self.window;
        let taps = window.taps_inside(1, ox);
        let start = (ox * window.stride[1] + taps.start * window.dilation[1]).saturating_sub(window.pad[1]);
        let mut cell = F::START;
        for ky in 0..rows.count {
            let row = ky * window.dilation[0] * window.input[1] + start;
            for kx in 0..taps.len() {
                cell = F::item(cell, rows.source[row + kx * window.dilation[1]]);
            }
        }
        cell
    }

    /// A row of outputs, tap by tap.
    #[inline(always)]
    fn fold_by_taps<V: Vector, F: Fold>(&self, source: &[f32], oy: usize, row: &mut [f32]) {
        let window = &self.window;
        row.fill(F::START);
        if let [cell] = row
            && window.dilation == [1, 1]
            && window.taps_inside(1, 0).len() == window.input[1]
        {
            // Whole rows of the input are one run of cells.
            let rows = window.taps_inside(0, oy);
            let top = window.source(0, oy, rows.start).filter(|_| !rows.is_empty()).unwrap_or(0);
            let cells = &source[top * window.input[1]..][..rows.len() * window.input[1]];
            *cell = fold_one::<V, F>(cells, cells.len(), 1, *cell);
            return;
        }
        for ky in window.taps_inside(0, oy) {
            let Some(iy) = window.source(0, oy, ky) else { continue };
            let source = &source[iy * window.input[1]..][..window.input[1]];
            if row.len() == 1 {
                // All cells belong to one output, as in global pooling.
                let taps = window.taps_inside(1, 0);
                let Some(ix) = window.source(1, 0, taps.start).filter(|_| !taps.is_empty()) else { continue };
                row[0] = fold_one::<V, F>(&source[ix..], taps.len(), window.dilation[1], row[0]);
                continue;
            }
            for kx in 0..window.kernel[1] {
                let inside = window.inside(1, kx);
                if inside.is_empty() {
                    continue;
                }
                let ix = inside.start * window.stride[1] + kx * window.dilation[1] - window.pad[1];
                let items = source[ix..].iter().step_by(window.stride[1]);
                row[inside].iter_mut().zip(items).for_each(|(cell, &item)| *cell = F::item(*cell, item));
            }
        }
    }

    /// Cells of the window at an output position that count for the mean, along one axis.
    pub(crate) fn counted(&self, axis: usize, at: usize) -> usize {
        let window = &self.window;
        match self.kind {
            Pool2dKind::MeanWithPadding { pad_end } => {
                let end = window.pad[axis] + window.input[axis] + pad_end[axis];
                let reach = end.saturating_sub(at * window.stride[axis]).div_ceil(window.dilation[axis]);
                reach.min(window.kernel[axis])
            }
            _ => window.taps_inside(axis, at).len(),
        }
    }
}

/// Folds items at a distance into one result.
#[inline(always)]
fn fold_one<V: Vector, F: Fold>(items: &[f32], count: usize, distance: usize, begin: f32) -> f32 {
    if distance != 1 || count < PARTIAL * LANES {
        return items.iter().step_by(distance).take(count).fold(begin, |sum, &item| F::item(sum, item));
    }
    let mut partial = [V::splat(F::START); PARTIAL];
    let (whole, rest) = items[..count].as_chunks::<LANES>();
    for group in whole.chunks(PARTIAL) {
        for (part, items) in partial.iter_mut().zip(group) {
            *part = F::lanes(*part, V::read(items));
        }
    }
    let mut lanes = partial[0];
    for part in &partial[1..] {
        lanes = F::lanes(lanes, *part);
    }
    let begin = lanes.to_array().into_iter().fold(begin, F::item);
    rest.iter().fold(begin, |sum, &item| F::item(sum, item))
}
