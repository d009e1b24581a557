//! [`Conv`]: convolution of images as one matrix product per group, `weights x patches`.
//!
//! The patches are never stored as a whole. A block of them (some columns of output positions, some k of channels and
//! taps) is packed into the workspace by all threads and then multiplied with all weights by all threads. Sums over k
//! go on in the output from block to block; the bias and the activation wait for the last one.
//!
//! ```text
//!  patches: k = channel * taps + tap, down; columns = image * plane + position, across
//!  ┌──────────┬──────────┬────┐
//!  │ block 0  │ block 2  │ …  │   a block is packed as strips of 32 columns
//!  ├──────────┼──────────┼────┤
//!  │ block 1  │ block 3  │ …  │
//!  └──────────┴──────────┴────┘
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use crate::epilogue::Epilogue;
use crate::gemm::{self, COLUMNS, Panel, ROWS, Tile};
use crate::isa::{Isa, vectorised};
use crate::kernel::{Fit, KernelFn, Sizes, count, floats, require};
use crate::operand::{Cells, Operands};
use crate::pool::Pool;
use crate::window::Window;

/// Rows of k in a block: a strip of so many rows and a panel share the nearest cache.
const DEPTH: usize = 320;
/// Floats in a packed block: about 1 MB.
const BLOCK: usize = 256 * 1024;

/// Convolution, with the epilogue fused.
///
/// Inputs: `x [batch, in_channels, input]`, weights packed by [`Conv::pack`], the epilogue's bias `[out_channels]` and
/// residual. Output: `[batch, out_channels, output]`. The pads at the end are what the output's extent implies; reads
/// outside of the input give zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Channels of the input, over all groups.
    pub in_channels: usize,
    /// Channels of the output, over all groups.
    pub out_channels: usize,
    /// Groups; divides both numbers of channels.
    pub groups: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance of neighbouring windows.
    pub stride: [usize; 2],
    /// Distance of neighbouring taps.
    pub dilation: [usize; 2],
    /// Zeros above and to the left.
    pub pad_begin: [usize; 2],
    /// What follows the product.
    pub epilogue: Epilogue,
}

/// The geometry in the form that the loops want.
pub(crate) struct Geometry {
    y: Window,
    x: Window,
    /// Input channels and output channels of a group.
    channels: [usize; 2],
    plane: usize,
    columns: usize,
    depth: usize,
    /// Rows of k per block, columns per block (a multiple of 32).
    block: [usize; 2],
}

impl Conv {
    /// Packs weights `[out_channels, in_channels / groups, kernel]` for [`Kernel::run`](crate::Kernel::run).
    ///
    /// # Panics
    /// Where the fields are malformed or `weights` has another number of elements.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let geometry = self.geometry().expect("`sizes` accepts the fields");
        let (depth, rows) = (geometry.depth, geometry.channels[1]);
        assert_eq!(weights.len(), self.out_channels * depth, "weights of a convolution");
        (0..self.groups)
            .flat_map(|group| gemm::pack_panels(rows, depth, |row, k| weights[(group * rows + row) * depth + k]))
            .collect()
    }

    fn geometry(&self) -> Fit<Geometry> {
        require(1 <= self.groups, "no groups")?;
        let divides = self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups);
        require(divides, "groups do not divide the channels")?;
        let numbers = [self.stride, self.dilation, self.pad_begin];
        let window = |axis| Window::new(axis, self.input, self.output, self.kernel, numbers);
        let (mut y, mut x) = (window(0)?, window(1)?);
        let plane = count(&self.output)?;
        let pointwise = self.kernel == [1, 1] && self.stride == [1, 1] && self.pad_begin == [0, 0];
        if pointwise && self.input == self.output && plane < 1 << 31 {
            // Rows of an image follow each other without pads: the image is one long row.
            (y.input, y.output, x.input, x.output) = (1, 1, plane, plane);
        }
        let channels = [self.in_channels / self.groups, self.out_channels / self.groups];
        let depth = count(&[channels[0], self.kernel[0], self.kernel[1]])?;
        let columns = count(&[self.batch, plane])?;
        require(columns <= isize::MAX as usize / 64, "a size overflows")?;
        let rows = depth.div_ceil(depth.div_ceil(DEPTH).max(1));
        let wide = (BLOCK / rows.max(1) / COLUMNS * COLUMNS).max(COLUMNS);
        let block = [rows, wide.min(columns.next_multiple_of(COLUMNS))];
        Ok(Geometry { y, x, channels, plane, columns, depth, block })
    }
}

impl KernelFn for Conv {
    const NAME: &'static str = "conv";

    fn sizes(&self) -> Fit<Sizes> {
        let geometry = self.geometry()?;
        let panels = geometry.channels[1].div_ceil(ROWS);
        let mut sizes = Sizes {
            inputs: smallvec![
                floats(&[self.batch, self.in_channels, self.input[0], self.input[1]])?,
                floats(&[self.groups, panels, ROWS, geometry.depth])?,
            ],
            outputs: smallvec![floats(&[self.out_channels, geometry.columns])?],
            workspace: floats(&geometry.block)?,
        };
        if sizes.outputs[0] == 0 {
            sizes.workspace = 0;
        }
        self.epilogue.push_sizes(&mut sizes, self.out_channels)?;
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        self.epilogue.residual_input(2) == Some(input)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok(geometry) = self.geometry() else { return };
        let x = operands.input::<f32>(0);
        let weights = operands.input::<f32>(1);
        let workspace = operands.workspace::<f32>();
        let finish = Finish {
            geometry: &geometry,
            out_channels: self.out_channels,
            epilogue: &self.epilogue,
            bias: if self.epilogue.bias { operands.input(2) } else { &[] },
            residual: self.epilogue.residual_input(2).map(|input| operands.shared(input)),
            out: operands.output(),
            isa: pool.isa(),
        };
        let [deep, wide] = geometry.block;
        let panels = geometry.channels[1].div_ceil(ROWS);
        for group in 0..self.groups {
            for first in (0..geometry.columns).step_by(wide.max(1)) {
                let columns = first..(first + wide).min(geometry.columns);
                let strips = columns.len().div_ceil(COLUMNS);
                let mut k = 0;
                loop {
                    let ks = k..(k + deep).min(geometry.depth);
                    let strip_len = ks.len() * COLUMNS;
                    // Few strips: their rows are packed in parallel, too.
                    let parts = (4 * pool.threads()).div_ceil(strips).min(ks.len().div_ceil(32)).max(1);
                    let part = ks.len().div_ceil(parts);
                    pool.run(strips * parts, &|task| {
                        let (strip, start) = (task / parts, task % parts * part);
                        let rows = (ks.start + start).min(ks.end)..(ks.start + start + part).min(ks.end);
                        let at = strip * strip_len + (rows.start - ks.start) * COLUMNS;
                        // SAFETY: each task packs rows of its own, and nobody reads before `run` returns.
                        let into = unsafe { workspace.write(at, rows.len() * COLUMNS) };
                        let from = columns.start + strip * COLUMNS;
                        let span = from..(from + COLUMNS).min(columns.end);
                        pack(pool.isa(), &geometry, [self.in_channels, group], x, span, rows, into);
                    });
                    // SAFETY: packing is over, and nobody writes before the next block.
                    let packed = unsafe { workspace.read(0, strips * strip_len) };
                    let pieces = (4 * pool.threads()).div_ceil(strips).clamp(1, panels);
                    let piece = panels.div_ceil(pieces);
                    pool.run(strips * pieces, &|task| {
                        let (strip, start) = (task / pieces, task % pieces * piece);
                        let from = columns.start + strip * COLUMNS;
                        let span = from..(from + COLUMNS).min(columns.end);
                        let strip = &packed[strip * strip_len..][..strip_len];
                        for panel in start..(start + piece).min(panels) {
                            let rows = ROWS.min(geometry.channels[1] - panel * ROWS);
                            let items = &weights[(group * panels + panel) * ROWS * geometry.depth..];
                            let view = Panel::packed(&items[ks.start * ROWS..ks.end * ROWS], rows);
                            let channel = group * geometry.channels[1] + panel * ROWS;
                            finish.tile(view, ks.clone(), strip, channel, span.clone());
                        }
                    });
                    k = ks.end;
                    if geometry.depth <= k {
                        break;
                    }
                }
            }
        }
    }
}

/// What happens to a tile: where it begins, and where it goes.
struct Finish<'a> {
    geometry: &'a Geometry,
    out_channels: usize,
    epilogue: &'a Epilogue,
    bias: &'a [f32],
    residual: Option<Cells<'a, f32>>,
    out: Cells<'a, f32>,
    isa: Isa,
}

impl Finish<'_> {
    /// Adds `panel * strip` to the tile of output channels from `channel` and columns `span`.
    ///
    /// The residual is where the sum begins, so that it may lie in the output itself.
    fn tile(&self, panel: Panel, ks: Range<usize>, strip: &[f32], channel: usize, span: Range<usize>) {
        let rows = panel.rows;
        let mut tile = Tile([0.0; ROWS * COLUMNS]);
        let begin = if ks.start == 0 { self.residual } else { Some(self.out) };
        if let Some(begin) = begin {
            self.segments(channel, rows, span.clone(), |at, start, len| {
                // SAFETY: these are this task's own output elements, or the residual's at the same place.
                let from = unsafe { begin.read(start, len) };
                copy_short(from, &mut tile.0[at..at + len]);
            });
        }
        gemm::multiply(self.isa, ks.len(), panel, strip, &mut tile);
        if ks.end == self.geometry.depth {
            let items = &mut tile.0[..rows * COLUMNS];
            if !self.bias.is_empty() {
                for (row, &bias) in items.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(&self.bias[channel..]) {
                    row.iter_mut().for_each(|item| *item += bias);
                }
            }
            self.epilogue.activate(self.isa, items);
        }
        self.segments(channel, rows, span, |at, start, len| {
            // SAFETY: a column of a panel's channels belongs to one task, and the reads above are over.
            let into = unsafe { self.out.write(start, len) };
            copy_short(&tile.0[at..at + len], into);
        });
    }

    /// Calls `with(position in the tile, position in the output, length)` for each stretch of a row in one image.
    #[inline(always)]
    fn segments(&self, channel: usize, rows: usize, span: Range<usize>, mut with: impl FnMut(usize, usize, usize)) {
        let plane = self.geometry.plane;
        let mut column = span.start;
        while column < span.end {
            let (image, position) = (column / plane, column % plane);
            let len = (plane - position).min(span.end - column);
            for row in 0..rows {
                let start = (image * self.out_channels + channel + row) * plane + position;
                with(row * COLUMNS + column - span.start, start, len);
            }
            column += len;
        }
    }
}

/// Columns of a strip that follow each other in one row of the output.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Position in the strip.
    at: usize,
    image: usize,
    y: usize,
    x: usize,
    len: usize,
}

vectorised! {
    /// Packs rows `ks` of the patches under output columns `span`. `[in_channels, group]` says whose channels.
    fn pack(geometry: &Geometry, channels: [usize; 2], x: &[f32], span: Range<usize>, ks: Range<usize>, into: &mut [f32]) {
        let (wy, wx) = (geometry.y, geometry.x);
        let [in_channels, group] = channels;
        let plane = wy.input * wx.input;
        let taps = wy.kernel * wx.kernel;
        let mut runs = [Run::default(); COLUMNS];
        let mut count = 0;
        let mut column = span.start;
        while column < span.end {
            let (image, position) = (column / geometry.plane, column % geometry.plane);
            let (y, x) = (position / wx.output, position % wx.output);
            let len = (wx.output - x).min(span.end - column);
            runs[count] = Run { at: column - span.start, image, y, x, len };
            count += 1;
            column += len;
        }
        let padded = wy.pad + wx.pad != 0 || wy.input <= (wy.output - 1) * wy.stride + (wy.kernel - 1) * wy.dilation
            || wx.input <= (wx.output - 1) * wx.stride + (wx.kernel - 1) * wx.dilation;
        if padded || span.len() < COLUMNS {
            into.fill(0.0);
        }
        // Only taps that occur in `ks`: all of them, unless the block is shorter than one channel.
        for nth in 0..taps.min(ks.len()) {
            let tap = (ks.start + nth) % taps;
            let (ky, kx) = (tap / wx.kernel, tap % wx.kernel);
            let first = (ks.start + nth) / taps;
            let rows = (ks.len() - nth).div_ceil(taps);
            for run in &runs[..count] {
                let Some(iy) = wy.inside(run.y, ky) else { continue };
                let outputs = wx.outputs(kx, run.x..run.x + run.len);
                if outputs.is_empty() {
                    continue;
                }
                let ix = wx.at(outputs.start, kx) as usize;
                let width = outputs.len();
                let mut source = ((run.image * in_channels + group * geometry.channels[0] + first) * wy.input + iy) * wx.input + ix;
                let mut target = nth * COLUMNS + run.at + outputs.start - run.x;
                for _ in 0..rows {
                    if wx.stride == 1 {
                        copy_short(&x[source..source + width], &mut into[target..target + width]);
                    } else {
                        let from = x[source..=source + (width - 1) * wx.stride].iter().step_by(wx.stride);
                        into[target..target + width].iter_mut().zip(from).for_each(|(into, &from)| *into = from);
                    }
                    source += plane;
                    target += taps * COLUMNS;
                }
            }
        }
    }
}

/// Copies at most 32 floats with two overlapping moves of fixed length; both slices are equally long.
#[inline(always)]
fn copy_short(from: &[f32], into: &mut [f32]) {
    #[inline(always)]
    fn both_ends<const N: usize>(from: &[f32], into: &mut [f32]) {
        let last = from.len() - N;
        let tail: [f32; N] = std::array::from_fn(|index| from[last + index]);
        into[..N].copy_from_slice(&from[..N]);
        into[last..].copy_from_slice(&tail);
    }
    match from.len() {
        16..=32 => both_ends::<16>(from, into),
        8..16 => both_ends::<8>(from, into),
        4..8 => both_ends::<4>(from, into),
        _ => into.iter_mut().zip(from).for_each(|(into, &from)| *into = from),
    }
}
