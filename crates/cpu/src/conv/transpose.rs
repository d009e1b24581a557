//! [`ConvTranspose`]: transposed convolution: a product into the workspace, then a sum of its rows into images
//! (col2im).

use serde::{Deserialize, Serialize};

use crate::conv::{Window, check_groups};
use crate::gemm::dispatch;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{Init, KLoop, Loop, Repeat, Row, Tile};
use crate::gemm::weights::Weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::simd::StorageType;
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// Transposed convolution of `x: [batch, in_channels, rows, columns]`; then by the epilogue a bias. Output: `[batch,
/// out_channels, rows, columns]`. `window` is that of the convolution this transposes: its `input` is our output and
/// its `output` our input. All `f32`; no residual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Images.
    pub batch: usize,
    /// Channels of an image; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// Rows and columns, seen from the output.
    pub window: Window,
    /// Whether the weights were packed when the plan was written.
    pub weights: Weights,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

/// Rows of the product that a task computes: two tiles of AVX2 or NEON, one of AVX-512.
const ROWS_OF_TASK: usize = 12;
/// Columns of the product that a task computes.
const COLUMNS_OF_TASK: usize = 256;
/// Elements of a stripe of output rows, one task's, unless a row has more.
const BAND: usize = 1 << 12;

impl ConvTranspose {
    /// Weights `[in_channels, out_channels / groups, ..kernel]` in the order in which the kernel reads them: for each
    /// group the matrix of output channel x tap by input channel.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let (m, k) = self.product();
        assert_eq!(weights.len(), self.groups * m * k, "the weights must have the kernel's shape");
        let mut packed = vec![0.0; weights.len()];
        packed.chunks_exact_mut(k.max(1)).enumerate().for_each(|(row, cells)| self.pack_row(weights, row, cells));
        packed
    }

    /// A row of the matrices, counted over all groups.
    fn pack_row(&self, weights: &[f32], row: usize, cells: &mut [f32]) {
        let (m, k) = self.product();
        let (group, row) = (row / m, row % m);
        let source = weights[group * k * m + row..].iter().step_by(m);
        cells.iter_mut().zip(source).for_each(|(cell, weight)| *cell = *weight);
    }

    /// Rows (output channel x tap) and terms (input channels) of one group's product.
    fn product(&self) -> (usize, usize) {
        (self.out_channels / self.groups * self.window.taps(), self.in_channels / self.groups)
    }
}

impl KernelFn for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvTranspose { batch, in_channels, out_channels, groups, window, epilogue, .. } = self;
        window.check()?;
        check_groups(*groups, *in_channels, *out_channels)?;
        epilogue.check_unscaled()?;
        if epilogue.residual {
            return Err(InvalidKernel("a transposed convolution takes no residual"));
        }
        let x = product(&[*batch, *in_channels, window.output[0], window.output[1]]);
        let output = product(&[*batch, *out_channels, window.input[0], window.input[1]]);
        let m = product(&[out_channels / groups, window.kernel[0], window.kernel[1]]);
        let elements = m.and_then(|m| product(&[*groups, m, in_channels / groups]));
        // The product of one image, and its input with rows of whole vectors.
        let columns = window.output_plane().checked_next_multiple_of(LANES);
        let spread = m.zip(columns).and_then(|(m, columns)| product(&[m, columns]));
        let packed = columns.and_then(|columns| product(&[in_channels / groups, columns]));
        let patches = spread.zip(packed).and_then(|(spread, packed)| spread.checked_add(packed));
        let (weights, workspace) = self.weights.elements([elements; 2], patches);
        let empty = x == Some(0) || output == Some(0);
        let mut inputs = vec![x, weights];
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
        let columns = pixels.next_multiple_of(LANES);
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
        let weights = match self.weights {
            Weights::Packed => weights,
            Weights::Dynamic => {
                for_each_chunk(pool, own, k, &|row, cells| self.pack_row(weights, row, cells));
                &*own
            }
        };
        assert_eq!(weights.len(), self.groups * m * k, "the weights must have their size");
        for image in 0..self.batch {
            for group in 0..self.groups {
                let source = &x[(image * self.in_channels + group * k) * pixels..][..k * pixels];
                for_each_chunk(pool, packed, columns, &|row, cells| {
                    cells[..pixels].copy_from_slice(&source[row * pixels..][..pixels]);
                    cells[pixels..].fill(0.0);
                });
                let (weights, packed) = (&weights[group * m * k..][..m * k], &*packed);
                multiply(weights, packed, [m, k, columns], &SharedMut::new(&mut *spread), pool);
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
                    // SAFETY: a channel's stripe belongs to its task.
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

/// The product of `[m, k]` and `[k, columns]`, row-major, of whole vectors of columns.
fn multiply(a: &[f32], b: &[f32], [m, k, columns]: [usize; 3], out: &SharedMut<'_, f32>, pool: &Pool) {
    assert_eq!([a.len(), b.len(), out.len()], [m * k, k * columns, m * columns], "the matrices must have their sizes");
    let chunks = columns.div_ceil(COLUMNS_OF_TASK);
    pool.run(m.div_ceil(ROWS_OF_TASK) * chunks, &|task| {
        let (row, column) = (task / chunks * ROWS_OF_TASK, task % chunks * COLUMNS_OF_TASK);
        let count = ROWS_OF_TASK.min(m - row);
        let rows: [Row; ROWS_OF_TASK] = std::array::from_fn(|ix| Row { x: ix * k, out: ix * columns });
        let width = COLUMNS_OF_TASK.min(columns - column);
        let (iterations, rest) = (width / (2 * LANES), width % (2 * LANES) / LANES);
        let tiles = [(column, 2, iterations), (column + iterations * 2 * LANES, 1, rest)];
        for (column, vectors, iterations) in tiles.into_iter().filter(|&(_, _, iterations)| iterations != 0) {
            let tile = Tile {
                operands: StorageType::F32,
                x: a[row * k..].as_ptr().cast(),
                weights: b[column..].as_ptr().cast(),
                compact: None,
                weight_stride: columns,
                weight_vector: LANES,
                result: StorageType::F32,
                out: out.start().wrapping_add(row * columns + column).cast(),
                rows: &rows[..count],
                vectors,
                vector_stride: LANES,
                k_loops: &[KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth: k }],
                init: Init::Zero,
                residual: None,
                limits: None,
                marks: None,
                read_back: false,
                prefetch: Prefetch::NONE,
                repeat: Repeat { iterations, x: 0, weights: 2 * LANES, out: 2 * LANES },
            };
            // SAFETY: the rows and columns are in the matrices, whose sizes are asserted above; in the result they
            // belong to this task.
            unsafe { dispatch::multiply(pool.isa(), &tile) };
        }
    });
}

/// Sums the product's rows of each tap into the rows of a plane from `top` on, tap by tap.
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
    // Each input writes a pair of its own, as in upsampling by two.
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
