//! [`ConvTranspose`]: the transpose of a convolution: a product into the scratch, then a gather from it.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::planar::{COLUMNS, ROWS, Rows, multiply};
use crate::gemm::weight_panels::{Panels, Weights};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// `x: [batch, in_channels, rows, columns]` spread through weights; then by the epilogue a bias. Output:
/// `[batch, out_channels, rows, columns]`. `window` is that of the convolution this transposes: its `input` is our
/// output and its `output` our input. All `f32`; no residual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Rows and columns, seen from the output.
    pub window: Window,
    /// How the weights come.
    pub weights: Weights,
    /// What happens to each result.
    pub epilogue: Epilogue,
}

/// Elements of a band of output rows, one task's, if a row has no more.
const BAND: usize = 1 << 12;

impl ConvTranspose {
    /// Weights `[in_channels, out_channels / groups, ..kernel]` as the kernel reads them: for each group the matrix of
    /// output channel x kernel cell by input channel, in panels of 12 rows.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        self.panels().pack(weights)
    }

    fn panels(&self) -> Panels {
        let (m, k) = self.product();
        Panels { groups: self.groups, m, k, row_stride: 1, k_stride: m }
    }

    /// Rows (output channel x kernel cell) and terms (input channels) of one group's product.
    fn product(&self) -> (usize, usize) {
        (self.out_channels / self.groups * self.window.taps(), self.in_channels / self.groups)
    }
}

impl KernelFn for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvTranspose { batch, in_channels, out_channels, groups, window, epilogue, .. } = self;
        window.check()?;
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 || epilogue.residual {
            return Err(InvalidKernel("the groups divide the channels, and there is no residual"));
        }
        let x = product(&[*batch, *in_channels, window.output[0], window.output[1]]);
        let output = product(&[*batch, *out_channels, window.input[0], window.input[1]]);
        let m = product(&[out_channels / groups, window.kernel[0], window.kernel[1]]);
        let elements = Panels::elements(*groups, m, Some(in_channels / groups));
        // The patches of one picture: the product's rows, padded strips of its pixels, and a strip of packed input.
        let columns = window.output_plane().checked_next_multiple_of(COLUMNS);
        let spread = m.zip(columns).and_then(|(m, columns)| product(&[m, columns]));
        let packed = columns.and_then(|columns| product(&[in_channels / groups, columns]));
        let patches = spread.zip(packed).and_then(|(spread, packed)| spread.checked_add(packed));
        let (weights, workspace) = self.weights.elements(elements, patches);
        let empty = x == Some(0) || output == Some(0);
        let mut inputs = vec![x, weights];
        epilogue.check_unscaled()?;
        inputs.extend(epilogue.operands(*out_channels, output));
        Sizes::with_workspace(&inputs, output, if empty { Some(0) } else { workspace }, 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, 2));
        let Args { outputs, workspace, .. } = args;
        let out: &mut [f32] = elements_mut(outputs[0]);
        let scratch: &mut [f32] = elements_mut(workspace);
        let (m, k) = self.product();
        let pixels = self.window.output_plane();
        let (strips, panels) = (pixels.div_ceil(COLUMNS), m.div_ceil(ROWS));
        let columns = strips * COLUMNS;
        let group_channels = self.out_channels / self.groups;
        let plane = self.window.input_plane();
        if out.is_empty() {
            return;
        }
        if x.is_empty() {
            for_each_chunk(pool, out, plane, &|number, cells| {
                cells.fill(bias.map_or(0.0, |bias| bias[number % self.out_channels]));
                self.epilogue.activate(pool.isa(), cells);
            });
            return;
        }
        let (spread, scratch) = scratch.split_at_mut(m * columns);
        let (packed, own) = scratch.split_at_mut(k * columns);
        let weights = self.panels().ready(self.weights, weights, own, pool);
        for image in 0..self.batch {
            for group in 0..self.groups {
                let source = &x[(image * self.in_channels + group * k) * pixels..][..k * pixels];
                for_each_chunk(pool, packed, (k * COLUMNS).max(1), &|strip, cells| {
                    let first = strip * COLUMNS;
                    let run = COLUMNS.min(pixels - first);
                    for (p, cells) in cells.chunks_exact_mut(COLUMNS).enumerate() {
                        cells[..run].copy_from_slice(&source[p * pixels + first..][..run]);
                        cells[run..].fill(0.0);
                    }
                });
                let shared = SharedMut::new(spread);
                let panel_elements = ROWS * k;
                pool.run(panels * strips, &|task| {
                    let (panel, strip) = (task / strips, task % strips);
                    let rows = ROWS.min(m - panel * ROWS);
                    let start = (group * panels + panel) * panel_elements;
                    let left = Rows { items: weights, start, row_stride: 1, k_stride: ROWS };
                    let mut tile = [[0.0; COLUMNS]; ROWS];
                    let cells = &packed[strip * k * COLUMNS..(strip + 1) * k * COLUMNS];
                    multiply(pool.isa(), rows, k, left, cells, &mut tile);
                    for (row, items) in tile.iter().enumerate().take(rows) {
                        let at = (panel * ROWS + row) * columns + strip * COLUMNS;
                        // SAFETY: a tile's rows and columns are its own: no other task of this job has them.
                        unsafe { shared.part(at, COLUMNS) }.copy_from_slice(items);
                    }
                });
                let spread = &*spread;
                let first = (image * self.out_channels + group * group_channels) * plane;
                let cells = SharedMut::new(&mut out[first..first + group_channels * plane]);
                let [height, width] = self.window.input;
                let band = (BAND / width).clamp(1, height);
                let bands = height.div_ceil(band);
                pool.run(group_channels * bands, &|task| {
                    let (channel, top) = (task / bands, task % bands * band);
                    let taps = self.window.taps();
                    let patches = &spread[channel * taps * columns..(channel + 1) * taps * columns];
                    let bias = bias.map_or(0.0, |bias| bias[group * group_channels + channel]);
                    let (start, rows) = (channel * plane + top * width, band.min(height - top));
                    // SAFETY: a channel's band is its task's alone.
                    let cells = unsafe { cells.part(start, rows * width) };
                    let kernel = self;
                    with_vector!(pool.isa(), gather_rows(
                        kernel: &ConvTranspose, patches: &[f32], columns: usize, bias: f32, top: usize, cells: &mut [f32]
                    ));
                });
            }
        }
    }
}

/// Sums what each kernel cell spread into the rows of a plane from `top` on, cell by cell in order.
#[inline(always)]
fn gather_rows<V: Vector>(
    kernel: &ConvTranspose,
    patches: &[f32],
    columns: usize,
    bias: f32,
    top: usize,
    cells: &mut [f32],
) {
    let window = &kernel.window;
    let width = window.output[1];
    // Each item goes to a pair of its own, as where feature maps are doubled.
    let doubles = [window.stride[1], window.kernel[1], window.dilation[1], window.pad[1]] == [2, 2, 1, 0]
        && window.input[1] == 2 * width;
    cells.fill(bias);
    for (row, cells) in cells.chunks_exact_mut(window.input[1]).enumerate() {
        for ky in 0..window.kernel[0] {
            let Some(shift) = (top + row + window.pad[0]).checked_sub(ky * window.dilation[0]) else { continue };
            let y = shift / window.stride[0];
            if shift % window.stride[0] != 0 || window.output[0] <= y {
                continue;
            }
            let tap = |kx: usize| &patches[(ky * window.kernel[1] + kx) * columns + y * width..][..width];
            if doubles {
                for ((pair, even), odd) in cells.as_chunks_mut::<2>().0.iter_mut().zip(tap(0)).zip(tap(1)) {
                    *pair = [pair[0] + even, pair[1] + odd];
                }
                continue;
            }
            for kx in 0..window.kernel[1] {
                let inside = window.inside(1, kx);
                if inside.is_empty() {
                    continue;
                }
                let start = inside.start * window.stride[1] + kx * window.dilation[1] - window.pad[1];
                let cells = cells[start..].iter_mut().step_by(window.stride[1]);
                cells.zip(&tap(kx)[inside]).for_each(|(cell, item)| *cell += item);
            }
        }
    }
    kernel.epilogue.activate(V::ISA, cells);
}
