//! [`Conv`]: convolution as a product of packed weights and patches of the input.
//!
//! The product has a row for each output channel, a column for each output position of the whole batch, and runs over
//! `k` = input channel x kernel cell. It is done in blocks: all threads together pack a block of patches into the scratch
//! (strips of 32 columns, some hundred `k` deep, as many as [`Conv::scratch`] allows), then share out its tiles. Sums over
//! several blocks of `k` gather in the output; bias and residual are added with the first block, functions applied with
//! the last. How big a block is does not depend on the number of threads, so neither does the scratch; no bit of the
//! result depends on either.

use serde::{Deserialize, Serialize};

use crate::conv::Window;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::planar::{COLUMNS, ROWS, Rows, multiply};
use crate::gemm::weight_panels::{Panels, Weights};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, for_each_chunk};

/// The most `k` of one block.
const K_BLOCK_MAX: usize = 512;

/// Convolution of `x: [batch, in_channels, rows, columns]` with weights; then by the epilogue a bias and a residual.
/// Output: `[batch, out_channels, rows, columns]`. All `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of a result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Rows and columns.
    pub window: Window,
    /// How the weights come.
    pub weights: Weights,
    /// What happens to each result.
    pub epilogue: Epilogue,
    /// Elements of a block of patches at most; one strip of them is the least there is.
    pub scratch: usize,
}

/// How the product is cut into blocks.
#[derive(Clone, Copy)]
struct Blocks {
    /// Rows of a group's product, columns, and terms.
    m: usize,
    n: usize,
    k: usize,
    /// Terms of a block, and strips of one.
    k_block: usize,
    strips: usize,
}

impl Conv {
    /// Elements of a block where memory does not matter: 1 MB, half of a common second-level cache for each of two
    /// threads.
    pub const SCRATCH: usize = 1 << 18;

    /// Weights `[out_channels, in_channels / groups, ..kernel]` as the kernel reads them: for each group, panels of 12
    /// output channels (the last filled up with zeros), in each panel for each `k` its 12 weights side by side.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        self.panels().pack(weights)
    }

    fn panels(&self) -> Panels {
        let Blocks { m, k, .. } = self.blocks();
        Panels { groups: self.groups, m, k, row_stride: k, k_stride: 1 }
    }

    fn blocks(&self) -> Blocks {
        let groups = self.groups.max(1);
        let k = self.in_channels / groups * self.window.taps();
        let n = self.batch * self.window.output_plane();
        let k_block = k.div_ceil(k.div_ceil(K_BLOCK_MAX).max(1)).max(1);
        let strips = (self.scratch / (k_block * COLUMNS)).clamp(1, n.div_ceil(COLUMNS).max(1));
        Blocks { m: self.out_channels / groups, n, k, k_block, strips }
    }

    /// Fills one strip of the scratch with terms `k_range` of 32 columns from `column` on.
    fn pack_strip(&self, x: &[f32], group: usize, k_range: std::ops::Range<usize>, column: usize, strip: &mut [f32]) {
        let window = &self.window;
        let (plane, taps) = (window.output_plane(), window.taps());
        let n = self.batch * plane;
        let group_channels = self.in_channels / self.groups;
        let pointwise = taps == 1 && window.stride == [1, 1] && window.pad == [0, 0] && window.input == window.output;
        // Columns that are neighbours in one row of the output (or in one picture, for pointwise kernels) go together.
        let mut at = 0;
        while at < COLUMNS {
            let first = column + at;
            if n <= first {
                strip.chunks_exact_mut(COLUMNS).for_each(|row| row[at..].fill(0.0));
                return;
            }
            let (image, pixel) = (first / plane, first % plane);
            let (oy, ox) = (pixel / window.output[1], pixel % window.output[1]);
            let run = if pointwise { plane - pixel } else { window.output[1] - ox }.min(COLUMNS - at);
            for (p, row) in k_range.clone().zip(strip.chunks_exact_mut(COLUMNS)) {
                let (channel, tap) = (group * group_channels + p / taps, p % taps);
                let source = &x[(image * self.in_channels + channel) * window.input_plane()..][..window.input_plane()];
                let cells = &mut row[at..at + run];
                if pointwise {
                    cells.copy_from_slice(&source[pixel..pixel + run]);
                } else {
                    self.pack_run(source, [oy, ox], [tap / window.kernel[1], tap % window.kernel[1]], cells);
                }
            }
            at += run;
        }
    }

    /// Fills neighbours in one row of the output with the cells that one tap of the kernel sees.
    fn pack_run(&self, source: &[f32], [oy, ox]: [usize; 2], [ky, kx]: [usize; 2], cells: &mut [f32]) {
        let window = &self.window;
        let Some(iy) = window.source(0, oy, ky) else {
            cells.fill(0.0);
            return;
        };
        let inside = window.inside(1, kx);
        let (from, to) = (inside.start.clamp(ox, ox + cells.len()) - ox, inside.end.clamp(ox, ox + cells.len()) - ox);
        cells[..from].fill(0.0);
        cells[to.max(from)..].fill(0.0);
        if to <= from {
            return;
        }
        let stride = window.stride[1];
        let start = iy * window.input[1] + (ox + from) * stride + kx * window.dilation[1] - window.pad[1];
        match stride {
            1 => cells[from..to].copy_from_slice(&source[start..start + to - from]),
            _ => {
                let picked = source[start..].iter().step_by(stride);
                cells[from..to].iter_mut().zip(picked).for_each(|(cell, item)| *cell = *item);
            }
        }
    }
}

impl KernelFn for Conv {
    const NAME: &'static str = "conv";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let Conv { batch, in_channels, out_channels, groups, window, .. } = self;
        window.check()?;
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Err(InvalidKernel("the groups do not divide the channels"));
        }
        let output = product(&[*batch, *out_channels, window.output[0], window.output[1]]);
        let x = product(&[*batch, *in_channels, window.input[0], window.input[1]]);
        let k = product(&[in_channels / groups, window.kernel[0], window.kernel[1]]);
        let elements = Panels::elements(*groups, Some(out_channels / groups), k);
        // Everything that is multiplied below fits where these do.
        Sizes::new(&[x, elements[1]], output, 4)?;
        let Blocks { k_block, strips, n, .. } = self.blocks();
        let block = if n == 0 || k == Some(0) { Some(0) } else { product(&[k_block, strips, COLUMNS]) };
        let (weights, workspace) = self.weights.elements(elements, block);
        let mut inputs = vec![x, weights];
        self.epilogue.check_unscaled()?;
        inputs.extend(self.epilogue.operands(*out_channels, output));
        Sizes::with_workspace(&inputs, output, workspace, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let x: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, 2));
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let Args { outputs, workspace, .. } = args;
        let out: &mut [f32] = elements_mut(outputs[0]);
        let blocks = self.blocks();
        let block = if blocks.n == 0 || blocks.k == 0 { 0 } else { blocks.k_block * blocks.strips * COLUMNS };
        let (scratch, own) = elements_mut(workspace).split_at_mut(block);
        let weights = self.panels().ready(self.weights, weights, own, pool);
        let store = Store { conv: self, bias, residual, plane: self.window.output_plane() };
        if blocks.k == 0 {
            self.run_empty(&store, out, pool);
            return;
        }
        let out = SharedMut::new(out);
        for group in 0..self.groups {
            let panels = blocks.m.div_ceil(ROWS);
            let group_weights = &weights[group * panels * ROWS * blocks.k..][..panels * ROWS * blocks.k];
            for column in (0..blocks.n).step_by(blocks.strips * COLUMNS) {
                let strips = blocks.strips.min((blocks.n - column).div_ceil(COLUMNS));
                for k_start in (0..blocks.k).step_by(blocks.k_block) {
                    let k_range = k_start..blocks.k.min(k_start + blocks.k_block);
                    let depth = k_range.len();
                    let block = &mut scratch[..strips * depth * COLUMNS];
                    for_each_chunk(pool, block, depth * COLUMNS, &|strip, cells| {
                        self.pack_strip(x, group, k_range.clone(), column + strip * COLUMNS, cells);
                    });
                    let block = &*block;
                    pool.run(panels * strips, &|task| {
                        let (panel, strip) = (task / strips, task % strips);
                        let rows = ROWS.min(blocks.m - panel * ROWS);
                        let left = Rows {
                            items: &group_weights[panel * ROWS * blocks.k..(panel + 1) * ROWS * blocks.k],
                            start: k_start * ROWS,
                            row_stride: 1,
                            k_stride: ROWS,
                        };
                        let mut tile = [[0.0; COLUMNS]; ROWS];
                        let cells = &block[strip * depth * COLUMNS..(strip + 1) * depth * COLUMNS];
                        multiply(pool.isa(), rows, depth, left, cells, &mut tile);
                        let place = Place {
                            channel: group * blocks.m + panel * ROWS,
                            column: column + strip * COLUMNS,
                            columns: COLUMNS.min(blocks.n - column - strip * COLUMNS),
                            first: k_range.start == 0,
                            last: k_range.end == blocks.k,
                        };
                        let (store, tile, out) = (&store, &mut tile[..rows], &out);
                        with_vector!(pool.isa(), store_tile(
                            store: &Store<'_>, place: Place, tile: &mut [[f32; COLUMNS]], out: &SharedMut<'_, f32>
                        ));
                    });
                }
            }
        }
    }
}

impl Conv {
    /// No term at all: bias, residual and functions alone.
    fn run_empty(&self, store: &Store, out: &mut [f32], pool: &Pool) {
        let n = self.blocks().n;
        let out = SharedMut::new(out);
        pool.run(self.out_channels * n.div_ceil(COLUMNS), &|task| {
            let (channel, strip) = (task / n.div_ceil(COLUMNS), task % n.div_ceil(COLUMNS));
            let column = strip * COLUMNS;
            let place = Place { channel, column, columns: COLUMNS.min(n - column), first: true, last: true };
            let (tile, out) = (&mut [[0.0; COLUMNS]][..], &out);
            with_vector!(pool.isa(), store_tile(
                store: &Store<'_>, place: Place, tile: &mut [[f32; COLUMNS]], out: &SharedMut<'_, f32>
            ));
        });
    }
}

/// Where the results of a tile go, and what is added to them.
struct Store<'a> {
    conv: &'a Conv,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
    plane: usize,
}

/// A tile's place in the product, and whether its terms are the first and the last.
#[derive(Clone, Copy)]
struct Place {
    channel: usize,
    column: usize,
    columns: usize,
    first: bool,
    last: bool,
}

#[inline(always)]
fn store_tile<V: Vector>(store: &Store<'_>, place: Place, tile: &mut [[f32; COLUMNS]], out: &SharedMut<'_, f32>) {
    for (row, items) in tile.iter_mut().enumerate() {
        let channel = place.channel + row;
        let mut at = 0;
        while at < place.columns {
            let (image, pixel) = ((place.column + at) / store.plane, (place.column + at) % store.plane);
            let run = (store.plane - pixel).min(place.columns - at);
            let start = (image * store.conv.out_channels + channel) * store.plane + pixel;
            let items = &mut items[at..at + run];
            // SAFETY: a tile's rows and columns are its own: no other task of this job has this channel and column.
            let cells = unsafe { out.part(start, run) };
            if place.first {
                match store.residual {
                    Some(Some(residual)) => add(items, &residual[start..start + run]),
                    Some(None) => add(items, cells),
                    None => {}
                }
                if let Some(bias) = store.bias {
                    items.iter_mut().for_each(|item| *item += bias[channel]);
                }
            } else {
                add(items, cells);
            }
            if place.last {
                store.conv.epilogue.activate(V::ISA, items);
            }
            cells.copy_from_slice(items);
            at += run;
        }
    }
}

#[inline(always)]
fn add(items: &mut [f32], more: &[f32]) {
    items.iter_mut().zip(more).for_each(|(item, more)| *item += more);
}
