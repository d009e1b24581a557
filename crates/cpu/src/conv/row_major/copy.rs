//! The copy of a block's input rows: with their padding, divided into phases.

use super::{Conv, Part};
use crate::gemm::prefetch::LINE;
use crate::simd::vector::{LANES, Vector};

/// Copies a channel of a block, for an instruction set.
#[inline(always)]
pub(super) fn copy_channel<V: Vector>(conv: &Conv, x: &[f32], part: &Part, channel: usize, cells: &mut [f32]) {
    conv.copy_channel::<V>(x, part, channel, cells);
}

/// Copies every `stride`-th element.
#[inline(always)]
fn copy_strided<V: Vector>(from: &[f32], stride: usize, to: &mut [f32]) {
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
            _ => V::read_part(from, 0.0).evens(V::read_part(from.get(LANES..).unwrap_or_default(), 0.0)),
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
        let mut rows = cells.chunks_exact_mut(block.pitch);
        for phase in (0..block.copies[0]).map(|number| self.phase(0, number)) {
            for number in 0..block.copies[1] {
                // The columns of the copy that are in the input.
                let stride = window.stride[1];
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
                        let cells = rows.next().expect("a block has its rows");
                        let source = (row * window.stride[0] + phase.remainder).checked_sub(window.pad[0]);
                        let Some(source) = source.filter(|&row| row < window.input[0] && begin < end) else {
                            cells.fill(0.0);
                            continue;
                        };
                        let source = &plane[source * window.input[1]..][..window.input[1]];
                        cells[..begin].fill(0.0);
                        cells[end..].fill(0.0);
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
