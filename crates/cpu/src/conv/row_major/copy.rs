//! The copy of a block's input rows: with their padding, divided into phases.

use super::{Conv, Part, gcd};
use crate::gemm::prefetch::LINE;
use crate::simd::vector::{LANES, Vector};

/// Copies a channel of a block, for an instruction set.
#[inline(always)]
pub(super) fn copy_channel<V: Vector>(conv: &Conv, x: &[f32], part: &Part, channel: usize, cells: &mut [f32]) {
    conv.copy_channel::<V>(x, part, channel, cells);
}

/// Every second of 32 elements; the last may be missing.
#[inline(always)]
fn evens<V: Vector>(from: &[f32]) -> V {
    V::read_part(from, 0.0).evens(V::read_part(from.get(LANES..).unwrap_or_default(), 0.0))
}

/// Copies every `stride`-th element.
#[inline(always)]
fn copy_strided<V: Vector>(from: &[f32], stride: usize, to: &mut [f32]) {
    if stride == 4 {
        let (whole, rest) = to.as_chunks_mut::<LANES>();
        for (to, from) in whole.iter_mut().zip(from.chunks(4 * LANES)) {
            let low = evens::<V>(from);
            let high = evens::<V>(from.get(2 * LANES..).unwrap_or_default());
            low.evens(high).write(to);
        }
        let from = from.get(whole.len() * 4 * LANES..).unwrap_or_default();
        rest.iter_mut().zip(from.iter().step_by(4)).for_each(|(to, from)| *to = *from);
        return;
    }
    if 2 < stride {
        for (to, from) in to.iter_mut().zip(from.iter().step_by(stride)) {
            *to = *from;
        }
        return;
    }
    for (ix, to) in to.chunks_mut(LANES).enumerate() {
        let from = &from[ix * stride * LANES..];
        let items = match stride {
            1 => V::read_part(from, 0.0),
            _ => evens::<V>(from),
        };
        items.write_part(to);
    }
}

impl Conv {
    /// Copies a channel of a block: for each phase of rows and of columns some rows of each image.
    #[inline(always)]
    fn copy_channel<V: Vector>(&self, x: &[f32], part: &Part, channel: usize, cells: &mut [f32]) {
        let (window, block) = (&self.window, part.block);
        // Of a part of an image, a channel does not follow the one before in memory.
        let is_scattered = part.rows < window.output[0] || part.columns < window.output[1];
        // If each tap has a copy, those of later taps are the copy of an earlier one, some pixels on.
        let (stride, dilation) = (window.stride[1], window.dilation[1]);
        let common = gcd(stride, dilation);
        let (period, ahead) = match self.expands_columns() {
            true => (stride / common, dilation / common),
            false => (usize::MAX, 0),
        };
        let rows_of_copy = part.images * (part.rows + block.more_rows);
        let mut start = 0;
        for phase in (0..block.copies[0]).map(|number| self.phase(0, number)) {
            for number in 0..block.copies[1] {
                // The columns of the copy that are in the input.
                let shift = part.column * stride
                    + match self.expands_columns() {
                        true => number * window.dilation[1],
                        false => self.phase(1, number).remainder,
                    };
                let begin = window.pad[1].saturating_sub(shift).div_ceil(stride).min(block.pitch);
                let end = (window.input[1] + window.pad[1]).saturating_sub(shift).div_ceil(stride).min(block.pitch);
                let end = end.max(begin);
                for image in part.image..part.image + part.images {
                    let plane = &x[(image * self.in_channels + channel) * window.input_plane()..];
                    for row in part.row..part.row + part.rows + block.more_rows {
                        let (earlier, cells) = cells.split_at_mut(start);
                        let cells = &mut cells[..block.pitch];
                        start += block.pitch;
                        let source = (row * window.stride[0] + phase.remainder).checked_sub(window.pad[0]);
                        let Some(source) = source.filter(|&row| row < window.input[0] && begin < end) else {
                            cells.fill(0.0);
                            continue;
                        };
                        let source = &plane[source * window.input[1]..][..window.input[1]];
                        cells[..begin].fill(0.0);
                        cells[end..].fill(0.0);
                        let mut begin = begin;
                        if period <= number && ahead < block.pitch {
                            let same = &earlier[earlier.len() - period * rows_of_copy * block.pitch..][..block.pitch];
                            cells[..block.pitch - ahead].copy_from_slice(&same[ahead..]);
                            begin = begin.max(block.pitch - ahead);
                            if end <= begin {
                                continue;
                            }
                        }
                        let source = &source[begin * stride + shift - window.pad[1]..];
                        if is_scattered {
                            let next = source.as_ptr().wrapping_add(window.input_plane());
                            for at in (0..(end - begin) * stride).step_by(LINE) {
                                V::prefetch_far(next.wrapping_add(at));
                            }
                        }
                        copy_strided::<V>(source, stride, &mut cells[begin..end]);
                    }
                }
            }
        }
    }
}
