//! [`PoolGradient`]: the gradient of max and average pooling.
//!
//! A task has a plane: each element of it is written by one thread, windows in order. The position of a maximum is either
//! given or searched again in the pool's operand; of equal elements the first in the window's order takes the gradient.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::ops::batch_norm::Planes;
use crate::ops::pool_with_positions::{check_positions, each_cell, part_of_row};
use crate::ops::pooling::check_kind;
use crate::ops::{Pool2d, Pool2dKind};
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `dy: [batch, channels, ..window.output]`, for a maximum also `x: [batch, channels, ..window.input]` or the positions of
/// [`PoolWithPositions`](crate::PoolWithPositions), to `dx` of `x`'s shape. All in one layout; all but positions `f32`.
///
/// Refuses: a plane of another size than the window's output, positions of means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolGradient {
    /// The reduction of the pooling.
    pub kind: Pool2dKind,
    /// The extents of `dy`.
    pub planes: Planes,
    /// Geometry over rows and columns of the pooling.
    pub window: Window,
    /// Whether the second operand of a maximum has positions.
    pub positions: bool,
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
            Pool2dKind::Max if self.positions => {
                check_positions(&self.window)?;
                let mut sizes = Sizes::new(&[dy], dx, 4)?;
                sizes.inputs.push(sizes.inputs[0] / 4);
                Ok(sizes)
            }
            Pool2dKind::Max => Sizes::new(&[dy, dx], dx, 4),
            _ if self.positions => Err(InvalidKernel("only a maximum has positions")),
            Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => Sizes::new(&[dy], dx, 4),
        }
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dy: &[f32] = input(&args, 0);
        let (x, positions): (&[f32], &[u8]) = match self.kind {
            Pool2dKind::Max if self.positions => (&[], input(&args, 1)),
            Pool2dKind::Max => (input(&args, 1), &[]),
            Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => (&[], &[]),
        };
        let dx: &mut [f32] = elements_mut(args.outputs[0]);
        let lanes = self.planes.lanes();
        let [size, input_size] = [self.planes.plane * lanes, self.window.input_plane() * lanes];
        for_each_chunk(pool, dx, input_size, &|number, dx| {
            let dy = &dy[number * size..][..size];
            let kernel = self;
            match (self.kind, lanes) {
                (Pool2dKind::Max, 1) if self.positions => {
                    let positions = &positions[number * size..][..size];
                    with_vector!(pool.isa(), placed_plane(
                        kernel: &PoolGradient, dy: &[f32], positions: &[u8], dx: &mut [f32]
                    ));
                }
                (Pool2dKind::Max, _) if self.positions => {
                    let positions = &positions[number * size..][..size];
                    with_vector!(pool.isa(), placed_blocks(
                        kernel: &PoolGradient, dy: &[f32], positions: &[u8], dx: &mut [f32]
                    ));
                }
                (Pool2dKind::Max, 1) => {
                    let x = &x[number * input_size..][..input_size];
                    with_vector!(pool.isa(), max_plane(
                        kernel: &PoolGradient, dy: &[f32], x: &[f32], dx: &mut [f32]
                    ));
                }
                (Pool2dKind::Max, _) => {
                    let x = &x[number * input_size..][..input_size];
                    with_vector!(pool.isa(), max_blocks(
                        kernel: &PoolGradient, dy: &[f32], x: &[f32], dx: &mut [f32]
                    ));
                }
                (Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. }, 1) => with_vector!(pool.isa(), mean_plane(
                    kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]
                )),
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
}

/// Positions up to this number are exact as `f32`.
const EXACT_MAX: usize = 1 << 24;

#[inline(always)]
fn max_plane<V: Vector>(kernel: &PoolGradient, dy: &[f32], x: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let window = &kernel.window;
    let width = window.output[1];
    let interior = if window.taps() <= EXACT_MAX { window.interior(1) } else { 0..0 };
    for (oy, dy) in dy.chunks_exact(width.max(1)).enumerate() {
        for ox in (0..interior.start).chain(interior.end..width) {
            let (mut largest, mut most) = (None, f32::NEG_INFINITY);
            each_cell(window, [oy, ox], |_, pixel| {
                if largest.is_none() || most < x[pixel] {
                    largest = Some(pixel);
                    most = most.max(x[pixel]);
                }
            });
            if let Some(pixel) = largest {
                dx[pixel] += dy[ox];
            }
        }
        let place = Place::of_row(window, oy);
        for ox in interior.clone().step_by(LANES) {
            let part = ox..interior.end.min(ox + LANES);
            let (_, positions) = part_of_row::<V>(window, x, oy, part.clone());
            for (ox, position) in part.zip(positions.to_array()) {
                if let Some(pixel) = place.pixel(ox, position as u32) {
                    dx[pixel] += dy[ox];
                }
            }
        }
    }
}

#[inline(always)]
fn placed_plane<V: Vector>(kernel: &PoolGradient, dy: &[f32], positions: &[u8], dx: &mut [f32]) {
    dx.fill(0.0);
    let window = &kernel.window;
    let (width, interior) = (window.output[1], window.interior(1));
    for (oy, (dy, positions)) in dy.chunks_exact(width.max(1)).zip(positions.chunks_exact(width.max(1))).enumerate() {
        let place = Place::of_row(window, oy);
        for (ox, (slope, &position)) in dy.iter().zip(positions).enumerate() {
            let column = usize::from(position) % window.kernel[1];
            if let Some(pixel) = place.pixel(ox, position.into())
                && (interior.contains(&ox) || window.taps_inside(1, ox).contains(&column))
            {
                dx[pixel] += slope;
            }
        }
    }
}

/// The pixels that the windows of a row of outputs read.
struct Place<'a> {
    window: &'a Window,
    /// Rows of a window that are in the input.
    rows: Range<usize>,
    /// The pixel of the first window's first cell, less than 0 as a wrapped number.
    start: usize,
}

impl Place<'_> {
    fn of_row(window: &Window, oy: usize) -> Place<'_> {
        let top = (oy * window.stride[0]).wrapping_sub(window.pad[0]);
        let start = top.wrapping_mul(window.input[1]).wrapping_sub(window.pad[1]);
        Place { window, rows: window.taps_inside(0, oy), start }
    }

    /// The pixel of a window's cell, `None` if its row is not in the input. Its column must be.
    #[inline(always)]
    fn pixel(&self, ox: usize, position: u32) -> Option<usize> {
        let columns = self.window.kernel[1] as u32;
        let (row, column) = ((position / columns) as usize, (position % columns) as usize);
        let inside = row * self.window.dilation[0] * self.window.input[1] + column * self.window.dilation[1];
        let pixel = self.start.wrapping_add(ox * self.window.stride[1]).wrapping_add(inside);
        self.rows.contains(&row).then_some(pixel)
    }
}

#[inline(always)]
fn mean_plane<V: Vector>(kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let (window, share) = (&kernel.window, kernel.share());
    let (width, interior) = (window.output[1], window.interior(1));
    for (oy, dy) in dy.chunks_exact(width.max(1)).enumerate() {
        for ox in (0..interior.start).chain(interior.end..width) {
            let own = dy[ox] * share(oy, ox);
            each_cell(window, [oy, ox], |_, pixel| dx[pixel] += own);
        }
        if interior.is_empty() {
            continue;
        }
        let (share, dy) = (share(oy, interior.start), &dy[interior.clone()]);
        for ky in window.taps_inside(0, oy) {
            let row = oy * window.stride[0] + ky * window.dilation[0] - window.pad[0];
            let start = row * window.input[1] + interior.start * window.stride[1] - window.pad[1];
            for kx in 0..window.kernel[1] {
                let cells = &mut dx[start + kx * window.dilation[1]..];
                match window.stride[1] {
                    // The compiler vectorizes this loop.
                    1 => cells.iter_mut().zip(dy).for_each(|(cell, slope)| *cell += slope * share),
                    stride => {
                        cells.iter_mut().step_by(stride).zip(dy).for_each(|(cell, slope)| *cell += slope * share);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn max_blocks<V: Vector>(kernel: &PoolGradient, dy: &[f32], x: &[f32], dx: &mut [f32]) {
    let window = &kernel.window;
    // Windows side by side write each element once.
    let tiles = kernel.windows_tile();
    if !tiles {
        dx.fill(0.0);
    }
    let (columns, zero) = (window.output[1], V::zero());
    for (at, dy) in dy.chunks_exact(LANES).enumerate() {
        let at = [at / columns, at % columns];
        let mut largest: Option<V> = None;
        each_cell(window, at, |_, pixel| {
            let item = V::read(&x[pixel * LANES..]);
            // Nothing is less than a NaN, so that none is kept.
            let most = largest.unwrap_or(V::splat(f32::NEG_INFINITY));
            largest = Some(most.if_less(item, item, most));
        });
        let Some(largest) = largest else { continue };
        let mut rest = V::read(dy);
        each_cell(window, at, |_, pixel| {
            // An element that is not less is the maximum: it takes the rest that no element before it took.
            let (item, cell) = (V::read(&x[pixel * LANES..]), &mut dx[pixel * LANES..][..LANES]);
            let own = item.if_less(largest, zero, rest);
            if tiles {
                own.write(cell)
            } else {
                own.add(V::read(cell)).write(cell)
            }
            rest = item.if_less(largest, rest, zero);
        });
    }
}

#[inline(always)]
fn placed_blocks<V: Vector>(kernel: &PoolGradient, dy: &[f32], positions: &[u8], dx: &mut [f32]) {
    let window = &kernel.window;
    let tiles = kernel.windows_tile();
    if !tiles {
        dx.fill(0.0);
    }
    let (columns, zero) = (window.output[1], V::zero());
    for (at, (dy, positions)) in dy.chunks_exact(LANES).zip(positions.chunks_exact(LANES)).enumerate() {
        let (slope, position) = (V::read(dy), u8::read::<V>(positions));
        each_cell(window, [at / columns, at % columns], |tap, pixel| {
            let (tap, cell) = (V::splat(tap as f32), &mut dx[pixel * LANES..][..LANES]);
            let own = position.if_less(tap, zero, tap.if_less(position, zero, slope));
            if tiles { own.write(cell) } else { own.add(V::read(cell)).write(cell) }
        });
    }
}

#[inline(always)]
fn mean_blocks<V: Vector>(kernel: &PoolGradient, dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let (columns, share) = (kernel.window.output[1], kernel.share());
    for (at, dy) in dy.chunks_exact(LANES).enumerate() {
        let (row, column) = (at / columns, at % columns);
        let own = V::read(dy).mul(V::splat(share(row, column)));
        each_cell(&kernel.window, [row, column], |_, pixel| {
            let cell = &mut dx[pixel * LANES..][..LANES];
            own.add(V::read(cell)).write(cell);
        });
    }
}
