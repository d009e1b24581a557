//! [`PoolGradient`]: the gradient of max and average pooling.
//!
//! A task has a plane: each element of it is written by one thread, windows in order. The position of a maximum is found
//! again by comparison; of equal elements the first in the window's order takes the gradient.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::batch_norm::Planes;
use crate::ops::pooling::check_kind;
use crate::ops::{Pool2d, Pool2dKind};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `dy: [batch, channels, ..window.output]`, for a maximum also `x: [batch, channels, ..window.input]` and the pooled `y` of
/// `dy`'s shape, to `dx` of `x`'s shape. All in one layout and `f32`.
///
/// Refuses: a plane of another size than the window's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolGradient {
    /// The reduction of the pooling.
    pub kind: Pool2dKind,
    /// The extents of `dy`.
    pub planes: Planes,
    /// Geometry over rows and columns of the pooling.
    pub window: Window,
}

impl KernelFn for PoolGradient {
    const NAME: &'static str = "pool_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        check_kind(self.kind)?;
        if self.planes.plane != self.window.output_plane() {
            return Err(InvalidKernel("the plane must be that of the window's output"));
        }
        let [dy, dx] =
            [self.planes.plane, self.window.input_plane()].map(|plane| Planes { plane, ..self.planes }.elements());
        product(&[self.planes.batch, self.planes.channels, LANES]).ok_or(InvalidKernel("sizes must not overflow"))?;
        match self.kind {
            Pool2dKind::Max => Sizes::new(&[dy, dx, dy], dx, 4),
            Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => Sizes::new(&[dy], dx, 4),
        }
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dy: &[f32] = input(&args, 0);
        let (x, y): (&[f32], &[f32]) = match self.kind {
            Pool2dKind::Max => (input(&args, 1), input(&args, 2)),
            Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => (&[], dy),
        };
        let dx: &mut [f32] = elements_mut(args.outputs[0]);
        let lanes = self.planes.lanes();
        let [size, input_size] = [self.planes.plane * lanes, self.window.input_plane() * lanes];
        for_each_chunk(pool, dx, input_size, &|number, dx| {
            let [dy, y] = [dy, y].map(|items| &items[number * size..][..size]);
            let x = if x.is_empty() { &*x } else { &x[number * input_size..][..input_size] };
            let kernel = self;
            match (self.kind, lanes) {
                (Pool2dKind::Max, 1) => max_plane(kernel, [dy, x, y], dx),
                (Pool2dKind::Max, _) => with_vector!(pool.isa(), max_blocks(
                    kernel: &PoolGradient, dy: &[f32], x: &[f32], y: &[f32], dx: &mut [f32]
                )),
                (Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. }, 1) => {
                    mean_plane(kernel, dy, dx);
                }
                (Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. }, _) => with_vector!(pool.isa(), mean_blocks(
                    kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]
                )),
            }
        });
    }
}

impl PoolGradient {
    /// The reciprocal of the number of elements of a mean, by row and column of the output.
    fn share(&self) -> impl Fn(usize, usize) -> f32 {
        let counts = Pool2d { kind: self.kind, planes: 1, window: self.window };
        move |row, column| 1.0 / (counts.counted(0, row) * counts.counted(1, column)) as f32
    }

    /// Whether each pixel is in one window.
    fn windows_tile(&self) -> bool {
        let Window { input, output, kernel, stride, dilation, pad } = self.window;
        (0..2).all(|axis| {
            let side_by_side =
                (kernel[axis], pad[axis]) == (stride[axis], 0) && (dilation[axis] == 1 || kernel[axis] == 1);
            side_by_side && output[axis] * stride[axis] == input[axis]
        })
    }

    /// Calls `take` for each output with the pixels of its window in order.
    #[inline(always)]
    fn each_window(&self, mut take: impl FnMut([usize; 2], &mut dyn FnMut() -> Option<usize>)) {
        let window = &self.window;
        let [rows, columns] = window.output;
        for oy in 0..rows {
            let row_taps = window.taps_inside(0, oy);
            let y = window.source(0, oy, row_taps.start).unwrap_or(0);
            for ox in 0..columns {
                let taps = window.taps_inside(1, ox);
                let x = window.source(1, ox, taps.start).unwrap_or(0);
                let pixel = |ky: usize, kx: usize| {
                    let [y, x] = [y + ky * window.dilation[0], x + kx * window.dilation[1]];
                    y * window.input[1] + x
                };
                let width = taps.len();
                let mut pixels = (0..row_taps.len()).flat_map(|ky| (0..width).map(move |kx| pixel(ky, kx)));
                take([oy, ox], &mut || pixels.next());
            }
        }
    }
}

fn max_plane(kernel: &PoolGradient, [dy, x, y]: [&[f32]; 3], dx: &mut [f32]) {
    dx.fill(0.0);
    let columns = kernel.window.output[1];
    kernel.each_window(|[row, column], next| {
        let at = row * columns + column;
        let is_largest = |&pixel: &usize| x[pixel] == y[at] || (x[pixel].is_nan() && y[at].is_nan());
        if let Some(pixel) = std::iter::from_fn(next).find(is_largest) {
            dx[pixel] += dy[at];
        }
    });
}

fn mean_plane(kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let (columns, share) = (kernel.window.output[1], kernel.share());
    kernel.each_window(|[row, column], next| {
        let own = dy[row * columns + column] * share(row, column);
        std::iter::from_fn(next).for_each(|pixel| dx[pixel] += own);
    });
}

#[inline(always)]
fn max_blocks<V: Vector>(kernel: &PoolGradient, dy: &[f32], x: &[f32], y: &[f32], dx: &mut [f32]) {
    let window = &kernel.window;
    // Windows side by side write each element once.
    let tiles = kernel.windows_tile();
    if !tiles {
        dx.fill(0.0);
    }
    let (columns, zero) = (window.output[1], V::zero());
    for oy in 0..window.output[0] {
        let row_taps = window.taps_inside(0, oy);
        let Some(top) = window.source(0, oy, row_taps.start).filter(|_| !row_taps.is_empty()) else { continue };
        for ox in 0..columns {
            let taps = window.taps_inside(1, ox);
            let Some(left) = window.source(1, ox, taps.start).filter(|_| !taps.is_empty()) else { continue };
            let at = (oy * columns + ox) * LANES;
            let largest = V::read(&y[at..]);
            let mut rest = V::read(&dy[at..]);
            for ky in 0..row_taps.len() {
                let mut pixel = ((top + ky * window.dilation[0]) * window.input[1] + left) * LANES;
                for _ in 0..taps.len() {
                    let item = V::read(&x[pixel..]);
                    // An element that is not less is the maximum: it takes the rest that no element before it took.
                    let cell = &mut dx[pixel..pixel + LANES];
                    let own = item.if_less(largest, zero, rest);
                    if tiles {
                        own.write(cell)
                    } else {
                        own.add(V::read(cell)).write(cell)
                    }
                    rest = item.if_less(largest, rest, zero);
                    pixel += window.dilation[1] * LANES;
                }
            }
        }
    }
}

#[inline(always)]
fn mean_blocks<V: Vector>(kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let window = &kernel.window;
    let (columns, share) = (window.output[1], kernel.share());
    for oy in 0..window.output[0] {
        let row_taps = window.taps_inside(0, oy);
        let Some(top) = window.source(0, oy, row_taps.start).filter(|_| !row_taps.is_empty()) else { continue };
        for ox in 0..columns {
            let taps = window.taps_inside(1, ox);
            let Some(left) = window.source(1, ox, taps.start).filter(|_| !taps.is_empty()) else { continue };
            let own = V::read(&dy[(oy * columns + ox) * LANES..]).mul(V::splat(share(oy, ox)));
            for ky in 0..row_taps.len() {
                let mut pixel = ((top + ky * window.dilation[0]) * window.input[1] + left) * LANES;
                for _ in 0..taps.len() {
                    let cell = &mut dx[pixel..pixel + LANES];
                    own.add(V::read(cell)).write(cell);
                    pixel += window.dilation[1] * LANES;
                }
            }
        }
    }
}
