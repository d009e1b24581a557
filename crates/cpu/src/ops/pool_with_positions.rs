//! [`PoolWithPositions`]: maxima of windows and their places, for the gradient of a maximum.
//!
//! A task has a plane of the results. Positions are counted in `f32` lanes, where all of them are exact, and stored as bytes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input};
use crate::ops::batch_norm::Planes;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector, read_every, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// `x: [batch, channels, ..window.input]` to the maxima `[batch, channels, ..window.output]`, both `f32`, and for each the
/// number of the first largest cell in its window as `u8`. All in one layout. A NaN is the maximum of its window, but has no
/// position; the position of a window without cells is 0.
///
/// Refuses: windows of more than 256 cells, a plane of another size than the window's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolWithPositions {
    /// The extents of the results.
    pub planes: Planes,
    /// Geometry over rows and columns.
    pub window: Window,
}

impl KernelFn for PoolWithPositions {
    const NAME: &'static str = "pool_with_positions";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        self.window.check()?;
        check_positions(&self.window)?;
        if self.planes.plane != self.window.output_plane() {
            return Err(InvalidKernel("the plane must be that of the window's output"));
        }
        let [y, x] =
            [self.planes.plane, self.window.input_plane()].map(|plane| Planes { plane, ..self.planes }.elements());
        let mut sizes = Sizes::new(&[x], y, 4)?;
        sizes.outputs.push(sizes.outputs[0] / 4);
        Ok(sizes)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let [y, positions] = args.outputs else { unreachable!("`sizes` states two outputs") };
        let (y, positions): (&mut [f32], &mut [u8]) = (elements_mut(y), elements_mut(positions));
        let lanes = self.planes.lanes();
        let [size, input_size] = [self.planes.plane * lanes, self.window.input_plane() * lanes];
        let positions = SharedMut::new(positions);
        for_each_chunk(pool, y, size, &|number, y| {
            let x = &x[number * input_size..][..input_size];
            // SAFETY: each number is claimed once, and the parts of different numbers are disjoint.
            let positions = unsafe { positions.part(number * size, size) };
            let window = &self.window;
            match lanes {
                1 => with_vector!(pool.isa(), plane(
                    window: &Window, x: &[f32], y: &mut [f32], positions: &mut [u8]
                )),
                _ => with_vector!(pool.isa(), blocks(
                    window: &Window, x: &[f32], y: &mut [f32], positions: &mut [u8]
                )),
            }
        });
    }
}

/// Rejects windows whose cells have no number in a byte.
pub(crate) fn check_positions(window: &Window) -> Result<(), InvalidKernel> {
    match window.kernel[0].checked_mul(window.kernel[1]) {
        Some(cells) if cells <= 256 => Ok(()),
        _ => Err(InvalidKernel("a window with positions must have at most 256 cells")),
    }
}

/// Calls `take` with the number in the window and the pixel of each cell that is inside the input, in order.
#[inline(always)]
pub(crate) fn each_cell(window: &Window, [oy, ox]: [usize; 2], mut take: impl FnMut(usize, usize)) {
    let (rows, columns) = (window.taps_inside(0, oy), window.taps_inside(1, ox));
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    let top = oy * window.stride[0] + rows.start * window.dilation[0] - window.pad[0];
    let left = ox * window.stride[1] + columns.start * window.dilation[1] - window.pad[1];
    for (row, ky) in rows.enumerate() {
        let mut pixel = (top + row * window.dilation[0]) * window.input[1] + left;
        for kx in columns.clone() {
            take(ky * window.kernel[1] + kx, pixel);
            pixel += window.dilation[1];
        }
    }
}

#[inline(always)]
fn plane<V: Vector>(window: &Window, x: &[f32], y: &mut [f32], positions: &mut [u8]) {
    let (width, interior) = (window.output[1], window.interior(1));
    let rows = y.chunks_exact_mut(width).zip(positions.chunks_exact_mut(width));
    for (oy, (y, positions)) in rows.enumerate() {
        for ox in (0..interior.start).chain(interior.end..width) {
            (y[ox], positions[ox]) = one(window, x, [oy, ox]);
        }
        for ox in interior.clone().step_by(LANES) {
            let part = ox..interior.end.min(ox + LANES);
            let (results, first) = part_of_row::<V>(window, x, oy, part.clone());
            results.write_part(&mut y[part.clone()]);
            u8::write_part(first, &mut positions[part]);
        }
    }
}

/// The maximum of a window and its position.
#[inline(always)]
fn one(window: &Window, x: &[f32], at: [usize; 2]) -> (f32, u8) {
    let (mut result, mut most, mut first) = (f32::NEG_INFINITY, f32::NEG_INFINITY, None);
    each_cell(window, at, |tap, pixel| {
        let item = x[pixel];
        if first.is_none() || most < item {
            first = Some(tap);
        }
        most = if most < item { item } else { most };
        result = if result < item || item.is_nan() { item } else { result };
    });
    (result, first.unwrap_or(0) as u8)
}

/// The maxima of at most sixteen neighboring windows of a row that have all their columns in the input, and their positions.
/// Other lanes have unspecified contents.
#[inline(always)]
pub(crate) fn part_of_row<V: Vector>(window: &Window, x: &[f32], oy: usize, part: Range<usize>) -> (V, V) {
    let lowest = V::splat(f32::NEG_INFINITY);
    let (mut result, mut most, mut first) = (lowest, lowest, None);
    for ky in window.taps_inside(0, oy) {
        let row = oy * window.stride[0] + ky * window.dilation[0] - window.pad[0];
        let start = row * window.input[1] + part.start * window.stride[1] - window.pad[1];
        for kx in 0..window.kernel[1] {
            let tap = V::splat((ky * window.kernel[1] + kx) as f32);
            let item: V = read_every(&x[start + kx * window.dilation[1]..], window.stride[1]);
            let before = first.unwrap_or(tap);
            first = Some(most.if_less(item, tap, before));
            most = most.if_less(item, item, most);
            result = result.max_or_nan(item);
        }
    }
    (result, first.unwrap_or(V::zero()))
}

#[inline(always)]
fn blocks<V: Vector>(window: &Window, x: &[f32], y: &mut [f32], positions: &mut [u8]) {
    let columns = window.output[1];
    let cells = y.chunks_exact_mut(LANES).zip(positions.chunks_exact_mut(LANES));
    for (at, (y, position)) in cells.enumerate() {
        let lowest = V::splat(f32::NEG_INFINITY);
        let (mut result, mut most, mut first) = (lowest, lowest, None);
        each_cell(window, [at / columns, at % columns], |tap, pixel| {
            let (item, tap) = (V::read(&x[pixel * LANES..]), V::splat(tap as f32));
            let before = first.unwrap_or(tap);
            first = Some(most.if_less(item, tap, before));
            most = most.if_less(item, item, most);
            result = result.max_or_nan(item);
        });
        result.write(y);
        u8::write(first.unwrap_or(V::zero()), position);
    }
}
