//! [`Reorder`]: conversion between the row-major and the blocked layout.
//!
//! Tiles of 16 pixels by 16 channels are transposed in registers, so that whole cache lines are read and written.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::movement::blocked_layout::padded;
use crate::simd::StorageType;
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// Pixels of one block per task; a multiple of the lane count.
const TASK_PIXELS: usize = 512;

/// Converts `[batch, channels, plane]` to the blocked layout `[batch, ceil(channels / 16), plane, 16]`, or back.
/// Padding lanes of a blocked result are 0; those of a blocked operand are not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reorder {
    /// Images in the batch.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Pixels of a channel.
    pub plane: usize,
    /// Whether the result is blocked; otherwise the operand is.
    pub to_blocked: bool,
    /// Storage type of both sides.
    pub stored: StorageType,
}

impl KernelFn for Reorder {
    const NAME: &'static str = "reorder";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let padded = padded(self.channels).ok_or(InvalidKernel("the number of elements must fit in an address"))?;
        let rows = product(&[self.batch, self.channels, self.plane]);
        let blocked = product(&[self.batch, padded, self.plane]);
        let (from, to) = if self.to_blocked { (rows, blocked) } else { (blocked, rows) };
        Sizes::new(&[from], to, self.stored.size())
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.stored.size()
    }

    fn run(&self, args: Args, pool: &Pool) {
        with_item!(self.stored, T => {
            // A task is a part of one plane, or several planes if they are small.
            let chunk = match self.plane {
                0..TASK_PIXELS => self.plane * (TASK_PIXELS / self.plane.max(1)),
                _ => TASK_PIXELS,
            };
            let blocks = self.channels.div_ceil(LANES);
            if self.to_blocked {
                let rows: &[T] = input(&args, 0);
                let to_pixels = |source: &[T], channels: usize, pixels: &mut [[T; LANES]]| {
                    let plane = self.plane;
                    with_vector!(pool.isa(), to_pixels<T>(
                        source: &[T], plane: usize, channels: usize, pixels: &mut [[T; LANES]]
                    ));
                };
                let out: &mut [[T; LANES]] = elements_mut(args.outputs[0]);
                // Each plane is divided on its own, so that chunks start at multiples of 16 pixels within it.
                let per_plane = self.plane.div_ceil(chunk);
                if per_plane <= 1 {
                    for_each_chunk(pool, out, chunk, &|number, pixels| {
                        let first = number * (chunk / self.plane);
                        for (ix, pixels) in pixels.chunks_exact_mut(self.plane).enumerate() {
                            let source = &rows[self.start_of(first + ix)..];
                            let channels = self.channels_of(first + ix);
                            to_pixels(source, channels, pixels);
                        }
                    });
                    return;
                }
                let out = SharedMut::new(out);
                pool.run(self.batch * blocks * per_plane, &|task| {
                    let (block, start) = (task / per_plane, task % per_plane * chunk);
                    let count = chunk.min(self.plane - start);
                    // SAFETY: planes are disjoint, the chunks of a plane are disjoint, and each chunk belongs to one
                    // task.
                    let pixels = unsafe { out.part(block * self.plane + start, count) };
                    let source = &rows[self.start_of(block) + start..];
                    to_pixels(source, self.channels_of(block), pixels);
                });
            } else {
                let pixels: &[[T; LANES]] = input(&args, 0);
                let out = SharedMut::new(elements_mut(args.outputs[0]));
                let per_plane = self.plane.div_ceil(chunk);
                let planes = (chunk / self.plane).max(1);
                pool.run((self.batch * blocks).div_ceil(planes) * per_plane, &|task| {
                    let (first, start) = (task / per_plane * planes, task % per_plane * chunk);
                    let count = chunk.min(self.plane - start);
                    for block in first..(first + planes).min(self.batch * blocks) {
                        let pixels = &pixels[block * self.plane + start..][..count];
                        let place = Rows {
                            start: self.start_of(block) + start,
                            channels: self.channels_of(block),
                            plane: self.plane,
                        };
                        let out = &out;
                        with_vector!(pool.isa(), to_rows<T>(pixels: &[[T; LANES]], place: Rows, out: &SharedMut<'_, T>));
                    }
                });
            }
        });
    }
}

impl Reorder {
    /// Start of a block's channels in the row-major value. `block` counts over the whole batch.
    fn start_of(&self, block: usize) -> usize {
        let blocks = self.channels.div_ceil(LANES);
        (block / blocks * self.channels + block % blocks * LANES) * self.plane
    }

    /// Channels of a block without padding.
    fn channels_of(&self, block: usize) -> usize {
        (self.channels - block % self.channels.div_ceil(LANES) * LANES).min(LANES)
    }
}

/// Location of a block's channels in a row-major value.
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    channels: usize,
    plane: usize,
}

/// Channel `c` of the pixels starts at `source[c * plane]`.
#[inline(always)]
fn to_pixels<V: Vector, T: Item>(source: &[T], plane: usize, channels: usize, pixels: &mut [[T; LANES]]) {
    let count = pixels.len();
    let (tiles, rest) = pixels.as_chunks_mut::<LANES>();
    for (ix, tile) in tiles.iter_mut().enumerate() {
        let mut rows = [V::zero(); LANES];
        for (channel, row) in rows.iter_mut().enumerate() {
            if channel < channels {
                *row = T::read(&source[channel * plane + ix * LANES..][..LANES]);
            }
        }
        let columns = V::transpose(rows);
        for (pixel, column) in tile.iter_mut().zip(&columns) {
            T::write(*column, pixel);
        }
    }
    let start = count - rest.len();
    for (ix, pixel) in rest.iter_mut().enumerate() {
        *pixel = [T::zeroed(); LANES];
        for (channel, item) in pixel.iter_mut().enumerate().take(channels) {
            *item = source[channel * plane + start + ix];
        }
    }
}

#[inline(always)]
fn to_rows<V: Vector, T: Item>(pixels: &[[T; LANES]], place: Rows, out: &SharedMut<'_, T>) {
    let (tiles, rest) = pixels.as_chunks::<LANES>();
    // SAFETY: this task owns these pixels of the block, and these are their positions in the rows of its channels.
    let part = |channel: usize, pixel: usize, count: usize| unsafe {
        out.part(place.start + channel * place.plane + pixel, count)
    };
    for (ix, tile) in tiles.iter().enumerate() {
        let mut rows = [V::zero(); LANES];
        for (row, pixel) in rows.iter_mut().zip(tile) {
            *row = T::read(pixel);
        }
        let rows = V::transpose(rows);
        for (channel, row) in rows.iter().enumerate() {
            if channel < place.channels {
                T::write(*row, part(channel, ix * LANES, LANES));
            }
        }
    }
    let start = pixels.len() - rest.len();
    for channel in 0..place.channels {
        let cells = part(channel, start, rest.len());
        cells.iter_mut().zip(rest).for_each(|(cell, pixel)| *cell = pixel[channel]);
    }
}
