//! [`Pool2d`]: max and average pooling over row-major images.
//!
//! Its lanes are pixels of a row, those of [`PoolBlocked`](super::pooling_blocked::PoolBlocked) channels of a block.
//! They share no loop and stay two kernels.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::vector::{Vector, with_vector};
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
        let rows = (WORK / (width * self.window.taps()).max(1)).max(1);
        for_each_chunk(pool, out, rows * width, &|number, cells| {
            let (kernel, first) = (self, number * rows);
            with_vector!(pool.isa(), run_rows(kernel: &Pool2d, x: &[f32], first: usize, cells: &mut [f32]));
        });
    }
}

/// Cells of windows that a task reduces.
const WORK: usize = 1 << 14;
/// Partial results of a row that belongs to one output: cell `i` goes to number `i % PARTIAL`.
const PARTIAL: usize = 16;

/// Rejects padding too large for any image.
pub(crate) fn check_kind(kind: Pool2dKind) -> Result<(), InvalidKernel> {
    match kind {
        Pool2dKind::MeanWithPadding { pad_end } if pad_end.iter().any(|&pad| 1 << 28 <= pad) => {
            Err(InvalidKernel("padding must be less than 2^28"))
        }
        _ => Ok(()),
    }
}

/// Some output rows, from row `first` of all planes on. Compiled for an instruction set.
#[inline(always)]
fn run_rows<V: Vector>(kernel: &Pool2d, x: &[f32], first: usize, cells: &mut [f32]) {
    match kernel.kind {
        Pool2dKind::Max => {
            kernel.fold_rows(
                x,
                first,
                cells,
                f32::NEG_INFINITY,
                |cell, item| {
                    if item > cell || item.is_nan() { item } else { cell }
                },
            )
        }
        _ => kernel.fold_rows(x, first, cells, 0.0, |cell, item| cell + item),
    }
    if kernel.kind == Pool2dKind::Max {
        return;
    }
    let [height, width] = kernel.window.output;
    for (ix, row) in cells.chunks_exact_mut(width).enumerate() {
        let rows = kernel.counted(0, (first + ix) % height);
        row.iter_mut().enumerate().for_each(|(ox, cell)| *cell /= (rows * kernel.counted(1, ox)) as f32);
    }
}

impl Pool2d {
    /// Folds the cells of each output's window that are in the input, tap by tap.
    #[inline(always)]
    fn fold_rows(&self, x: &[f32], first: usize, cells: &mut [f32], start: f32, fold: impl Fn(f32, f32) -> f32 + Copy) {
        let window = &self.window;
        let [height, width] = window.output;
        for (ix, row) in cells.chunks_exact_mut(width).enumerate() {
            let (plane, oy) = ((first + ix) / height, (first + ix) % height);
            let source = &x[plane * window.input_plane()..][..window.input_plane()];
            row.fill(start);
            for ky in window.taps_inside(0, oy) {
                let Some(iy) = window.source(0, oy, ky) else { continue };
                let source = &source[iy * window.input[1]..][..window.input[1]];
                if width == 1 {
                    // All cells belong to one output, as in global pooling.
                    let taps = window.taps_inside(1, 0);
                    let Some(ix) = window.source(1, 0, taps.start).filter(|_| !taps.is_empty()) else { continue };
                    row[0] = fold_one(&source[ix..], taps.len(), window.dilation[1], row[0], start, fold);
                    continue;
                }
                for kx in 0..window.kernel[1] {
                    let inside = window.inside(1, kx);
                    if inside.is_empty() {
                        continue;
                    }
                    let ix = inside.start * window.stride[1] + kx * window.dilation[1] - window.pad[1];
                    fold_taps(&mut row[inside], &source[ix..], window.stride[1], fold);
                }
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

/// Folds one tap of neighboring outputs: items at a stride.
#[inline(always)]
fn fold_taps(row: &mut [f32], items: &[f32], stride: usize, fold: impl Fn(f32, f32) -> f32) {
    match stride {
        1 => {
            for (cell, &item) in row.iter_mut().zip(items) {
                *cell = fold(*cell, item);
            }
        }
        2 => {
            // The last output has no cell behind its own.
            let (last, row) = row.split_last_mut().expect("a tap has outputs");
            let at = 2 * row.len();
            for (cell, &[item, _]) in row.iter_mut().zip(items.as_chunks().0) {
                *cell = fold(*cell, item);
            }
            *last = fold(*last, items[at]);
        }
        _ => {
            for (cell, &item) in row.iter_mut().zip(items.iter().step_by(stride)) {
                *cell = fold(*cell, item);
            }
        }
    }
}

/// Folds items at a distance into one result.
#[inline(always)]
fn fold_one(
    items: &[f32],
    count: usize,
    distance: usize,
    begin: f32,
    start: f32,
    fold: impl Fn(f32, f32) -> f32 + Copy,
) -> f32 {
    if distance != 1 || count < PARTIAL {
        return items.iter().step_by(distance).take(count).fold(begin, |sum, &item| fold(sum, item));
    }
    let mut partial = [start; PARTIAL];
    let (whole, rest) = items[..count].as_chunks::<PARTIAL>();
    for items in whole {
        for (part, &item) in partial.iter_mut().zip(items) {
            *part = fold(*part, item);
        }
    }
    let begin = partial.into_iter().fold(begin, fold);
    rest.iter().fold(begin, |sum, &item| fold(sum, item))
}
