//! [`Pool2d`]: max and average pooling over row-major images.
//!
//! Its lanes are pixels of a row, those of [`PoolBlocked`](super::pooling_blocked::PoolBlocked) channels of a block.
//! They share no loop and stay two kernels.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
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
        let (plane, input_plane) = (self.window.output_plane(), self.window.input_plane());
        if plane == 0 {
            return;
        }
        for_each_chunk(pool, out, plane, &|number, cells| {
            let source = &x[number * input_plane..][..input_plane];
            match self.kind {
                Pool2dKind::Max => self.run_max(source, cells),
                _ => self.run_mean(source, cells),
            }
        });
    }
}

/// Rejects padding too large for any image.
pub(crate) fn check_kind(kind: Pool2dKind) -> Result<(), InvalidKernel> {
    match kind {
        Pool2dKind::MeanWithPadding { pad_end } if pad_end.iter().any(|&pad| 1 << 28 <= pad) => {
            Err(InvalidKernel("padding must be less than 2^28"))
        }
        _ => Ok(()),
    }
}

impl Pool2d {
    fn run_max(&self, source: &[f32], cells: &mut [f32]) {
        cells.fill(f32::NEG_INFINITY);
        self.each_tap(source, cells, |cell, item| {
            if item > *cell || item.is_nan() {
                *cell = item;
            }
        });
    }

    fn run_mean(&self, source: &[f32], cells: &mut [f32]) {
        cells.fill(0.0);
        self.each_tap(source, cells, |cell, item| *cell += item);
        let window = &self.window;
        for (oy, row) in cells.chunks_exact_mut(window.output[1]).enumerate() {
            let rows = self.counted(0, oy);
            row.iter_mut().enumerate().for_each(|(ox, cell)| *cell /= (rows * self.counted(1, ox)) as f32);
        }
    }

    /// Cells of the window at an output position that count for the mean, along one axis.
    pub(crate) fn counted(&self, axis: usize, at: usize) -> usize {
        let window = &self.window;
        let reach = |tap: &usize| at * window.stride[axis] + tap * window.dilation[axis];
        match self.kind {
            Pool2dKind::MeanWithPadding { pad_end } => {
                let end = window.pad[axis] + window.input[axis] + pad_end[axis];
                (0..window.kernel[axis]).filter(|tap| reach(tap) < end).count()
            }
            _ => (0..window.kernel[axis]).filter(|&tap| window.source(axis, at, tap).is_some()).count(),
        }
    }

    /// Calls `take` for each output cell and each cell of its window inside the input, tap by tap.
    #[inline(always)]
    fn each_tap(&self, source: &[f32], cells: &mut [f32], take: impl Fn(&mut f32, f32)) {
        let window = &self.window;
        for (oy, row) in cells.chunks_exact_mut(window.output[1]).enumerate() {
            for ky in 0..window.kernel[0] {
                let Some(iy) = window.source(0, oy, ky) else { continue };
                let source = &source[iy * window.input[1]..][..window.input[1]];
                if window.output[1] == 1 {
                    // If the window is as wide as the input, as in global pooling, all cells of a row belong to one
                    // output.
                    for kx in 0..window.kernel[1] {
                        if let Some(ix) = window.source(1, 0, kx) {
                            take(&mut row[0], source[ix]);
                        }
                    }
                    continue;
                }
                for kx in 0..window.kernel[1] {
                    let inside = window.inside(1, kx);
                    if inside.is_empty() {
                        continue;
                    }
                    let start = inside.start * window.stride[1] + kx * window.dilation[1] - window.pad[1];
                    let items = source[start..].iter().step_by(window.stride[1]);
                    row[inside].iter_mut().zip(items).for_each(|(cell, &item)| take(cell, item));
                }
            }
        }
    }
}
