//! [`PoolVolumes`]: max and average pooling over row-major volumes, without values between its axes.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::pooling::{Fold, Largest, Pool2d, Pool2dKind, Sum, check_kind};
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Slides a window over `volumes` single-channel volumes in `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolVolumes {
    /// The reduction, with the padding behind rows and columns.
    pub kind: Pool2dKind,
    /// Batch size times channels.
    pub volumes: usize,
    /// Geometry over the depth, along axis 0.
    pub depth: Window,
    /// Padding behind the depth that counts for a mean with padding.
    pub depth_pad_end: usize,
    /// Geometry over rows and columns.
    pub window: Window,
}

/// Cells of windows that a task reduces.
const WORK: usize = 1 << 14;

impl PoolVolumes {
    fn depth_kind(&self) -> Pool2dKind {
        match self.kind {
            Pool2dKind::MeanWithPadding { .. } => Pool2dKind::MeanWithPadding { pad_end: [self.depth_pad_end, 0] },
            kind => kind,
        }
    }

    /// The pools over the depth and over planes.
    fn by_axes(&self) -> [Pool2d; 2] {
        let of = |kind, window| Pool2d { kind, planes: 1, window };
        [of(self.depth_kind(), self.depth), of(self.kind, self.window)]
    }
}

impl KernelFn for PoolVolumes {
    const NAME: &'static str = "pool_volumes";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.depth.check()?;
        self.window.check()?;
        self.depth.check_is_depth()?;
        check_kind(self.kind)?;
        check_kind(self.depth_kind())?;
        let size = |depth: [usize; 2], plane: [usize; 2]| product(&[self.volumes, depth[0], plane[0], plane[1]]);
        let x = size(self.depth.input, self.window.input);
        Sizes::new(&[x], size(self.depth.output, self.window.output), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let [height, width] = self.window.output;
        if self.depth.output[0] * height * width == 0 {
            return;
        }
        // Output rows are counted over all volumes.
        let rows = (WORK / (width * self.depth.taps() * self.window.taps()).max(1)).max(1);
        for_each_chunk(pool, out, rows * width, &|number, cells| {
            let (kernel, first) = (self, number * rows);
            with_vector!(pool.isa(), run_rows(kernel: &PoolVolumes, x: &[f32], first: usize, cells: &mut [f32]));
        });
    }
}

/// Some output rows, from row `first` of all volumes on. Compiled for an instruction set.
#[inline(always)]
fn run_rows<V: Vector>(kernel: &PoolVolumes, x: &[f32], first: usize, cells: &mut [f32]) {
    let [height, width] = kernel.window.output;
    let planes = kernel.depth.output[0];
    let [depth, plane] = kernel.by_axes();
    for (row, cells) in (first..).zip(cells.chunks_exact_mut(width)) {
        let (oy, oz, volume) = (row % height, row / height % planes, row / height / planes);
        if kernel.kind == Pool2dKind::Max {
            kernel.fold_row::<V, Largest>(x, [volume, oz, oy], cells);
            continue;
        }
        kernel.fold_row::<V, Sum>(x, [volume, oz, oy], cells);
        let count = depth.counted(0, oz) * plane.counted(0, oy);
        cells.iter_mut().enumerate().for_each(|(ox, cell)| *cell /= (count * plane.counted(1, ox)) as f32);
    }
}

impl PoolVolumes {
    /// Folds the cells of each output's window that are in the input: a row of the input for each tap.
    #[inline(always)]
    fn fold_row<V: Vector, F: Fold>(&self, x: &[f32], [volume, oz, oy]: [usize; 3], cells: &mut [f32]) {
        let (depth, window) = (&self.depth, &self.window);
        let [height, width] = window.input;
        cells.fill(F::START);
        for kz in depth.taps_inside(0, oz) {
            let Some(iz) = depth.source(0, oz, kz) else { continue };
            for ky in window.taps_inside(0, oy) {
                let Some(iy) = window.source(0, oy, ky) else { continue };
                let source = &x[((volume * depth.input[0] + iz) * height + iy) * width..][..width];
                for kx in 0..window.kernel[1] {
                    let inside = window.inside(1, kx);
                    let Some(ix) = window.source(1, inside.start, kx).filter(|_| !inside.is_empty()) else { continue };
                    let items = source[ix..].iter().step_by(window.stride[1]);
                    cells[inside].iter_mut().zip(items).for_each(|(cell, &item)| *cell = F::item(*cell, item));
                }
            }
        }
    }
}
