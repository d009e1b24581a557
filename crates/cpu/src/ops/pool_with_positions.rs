//! [`PoolWithPositions`]: maxima of windows and their places, for the gradient of a maximum.
//!
//! A task has a plane of the results. Positions are counted in `f32` lanes, where all of them are exact, and stored as bytes.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input};
use crate::ops::batch_norm::Planes;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector, with_vector};
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
                1 => plane(window, x, y, positions),
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

fn plane(window: &Window, x: &[f32], y: &mut [f32], positions: &mut [u8]) {
    let columns = window.output[1];
    for (at, (y, position)) in y.iter_mut().zip(positions).enumerate() {
        let (mut result, mut most, mut first) = (f32::NEG_INFINITY, f32::NEG_INFINITY, None);
        each_cell(window, [at / columns, at % columns], |tap, pixel| {
            let item = x[pixel];
            if first.is_none() || most < item {
                first = Some(tap);
            }
            most = if most < item { item } else { most };
            result = if result < item || item.is_nan() { item } else { result };
        });
        (*y, *position) = (result, first.unwrap_or(0) as u8);
    }
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
