//! [`PoolVolumes`]: max and average pooling over row-major volumes, without values between its axes.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::column_folds::Columns;
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
        let taps =
            if self.has_columns() { self.rows() + self.window.kernel[1] } else { self.rows() * self.window.kernel[1] };
        let rows = (WORK / (width * taps).max(1)).max(1);
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
    let is_max = kernel.kind == Pool2dKind::Max;
    match (is_max, kernel.has_columns()) {
        (true, true) => kernel.fold_columns::<V, Largest>(x, first, cells),
        (false, true) => kernel.fold_columns::<V, Sum>(x, first, cells),
        (true, false) => kernel.fold_rows::<Largest>(x, first, cells),
        (false, false) => kernel.fold_rows::<Sum>(x, first, cells),
    }
    if is_max {
        return;
    }
    for (row, cells) in (first..).zip(cells.chunks_exact_mut(width)) {
        let (oy, oz) = (row % height, row / height % planes);
        let count = depth.counted(0, oz) * plane.counted(0, oy);
        cells.iter_mut().enumerate().for_each(|(ox, cell)| *cell /= (count * plane.counted(1, ox)) as f32);
    }
}

impl PoolVolumes {
    /// Rows of the input in a window.
    fn rows(&self) -> usize {
        self.depth.taps() * self.window.kernel[0]
    }

    /// Whether windows of several rows share the folds of their columns.
    fn has_columns(&self) -> bool {
        2 < self.rows() && Columns::fit(&self.window)
    }

    /// The volume of an output row, and its position along depth and height.
    fn place(&self, row: usize) -> [usize; 3] {
        let [height, planes] = [self.window.output[0], self.depth.output[0]];
        [row / height / planes, row / height % planes, row % height]
    }

    /// Folds the cells of each output's window: first its rows for each column, then the columns.
    #[inline(always)]
    fn fold_columns<V: Vector, F: Fold>(&self, x: &[f32], first: usize, cells: &mut [f32]) {
        let (depth, window) = (&self.depth, &self.window);
        let [height, width] = window.input;
        let mut columns = Columns::new::<F>(window);
        for (row, cells) in (first..).zip(cells.chunks_exact_mut(window.output[1])) {
            let [volume, oz, oy] = self.place(row);
            let taps = window.taps_inside(0, oy);
            columns.clear::<F>();
            for kz in depth.taps_inside(0, oz) {
                let Some(iz) = depth.source(0, oz, kz) else { continue };
                let Some(iy) = window.source(0, oy, taps.start).filter(|_| !taps.is_empty()) else { continue };
                columns.add::<V, F>(&x[((volume * depth.input[0] + iz) * height + iy) * width..], taps.len());
            }
            columns.fold::<V, F>(cells);
        }
    }

    /// Folds the cells of each output's window that are in the input: a row of the input for each tap.
    #[inline(always)]
    fn fold_rows<F: Fold>(&self, x: &[f32], first: usize, cells: &mut [f32]) {
        for (row, cells) in (first..).zip(cells.chunks_exact_mut(self.window.output[1])) {
            self.fold_row::<F>(x, self.place(row), cells);
        }
    }

    #[inline(always)]
    fn fold_row<F: Fold>(&self, x: &[f32], [volume, oz, oy]: [usize; 3], cells: &mut [f32]) {
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
