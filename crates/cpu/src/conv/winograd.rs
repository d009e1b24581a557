//! [`Winograd`]: 3 x 3 convolution by Winograd's algorithm, with a fraction of the multiplications.
//!
//! Outputs are divided into tiles of `m x m`, each of which reads `t x t` inputs, `t = m + 2`. Inputs and weights are
//! transformed by small matrices, multiplied place by place and summed over the input channels, and the sums are
//! transformed back (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015): `Y = A' [(G g G') *
//! (B' d B)] A`. The middle is `t^2` products of tiles by channels.
//!
//! ```text
//!   x --B'dB--> values [place][in channel][tile] --x weights [place]--> sums [place][tile][out channel] --A'MA--> out
//!                 in the workspace, all threads                      on the stack of a task
//! ```
//!
//! The matrices come from polynomials through the points 0, infinity and pairs `+-p` (Toom and Cook). Points near 1
//! lose fewer bits than the usual integers (Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
//! Convolution", 2020); these are sixteenths, so that all coefficients are exact.
//!
//! An infinity or NaN in the input makes every tile that reads it NaN: differences of inputs are computed that the
//! definition does not have.

use std::mem::MaybeUninit;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;

use crate::conv::Window;
use crate::conv::dynamic::WeightView;
use crate::gemm::dispatch;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{Init, KLoop, Loop, ROWS, Repeat, Row, Tile};
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Channels of a panel of weights, and of a product.
const PANEL: usize = 2 * LANES;
/// Elements of a task's sums: 128 KB on its stack.
const SUMS: usize = 1 << 15;
/// Blocks of input channels that a task transforms.
const IN_BLOCKS: usize = 4;
/// Elements of run-time weights that are packed at once, if a panel has no more: 16 MiB.
const PACKED_AT_ONCE: usize = 1 << 22;
/// Number of tasks to aim at.
const TASKS: usize = 8;

/// Convolution of `x: [batch, in_channels, rows, columns]` with packed weights of 3 x 3, stride 1 and dilation 1; then
/// by the epilogue a bias (with an element for each lane of the output's blocks) and a residual. Output: `[batch,
/// out_channels, rows, columns]`. Images have their channels in blocks of sixteen. All `f32`.
///
/// Refuses: another kernel, stride or dilation, tiles other than 2, 4 and 6.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Winograd {
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub in_channels: usize,
    /// Channels of a result.
    pub out_channels: usize,
    /// Rows and columns.
    pub window: Window,
    /// Rows and columns of a tile of outputs: 2, 4 or 6.
    pub tile: usize,
    /// Applied to each result.
    pub epilogue: Epilogue,
    /// Elements of transformed input at most; the minimum is one block of tiles.
    pub workspace_max: usize,
}

/// Division of the tiles of all images, counted in one row.
#[derive(Clone, Copy)]
struct Cut {
    count: usize,
    /// Tiles of a product, of a task, and of a transform. Each is a multiple of the one before; the last ones may have
    /// fewer.
    block: usize,
    chunk: usize,
    group: usize,
}

impl Winograd {
    /// Elements of transformed input if memory is not limited: 2 MB.
    pub const WORKSPACE_MAX: usize = 1 << 19;

    /// Weights `[out_channels, in_channels, 3, 3]` in the order in which the kernel reads them: panels of 32 output
    /// channels (the last may have 16, filled up with zeros); a panel has, for each place of the transformed tile, block
    /// of 16 output channels and input channel, its 16 weights. Computed in `f64`, rounded once.
    ///
    /// # Panics
    /// Another number of weights, or parameters that `sizes` refuses.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        assert_eq!(weights.len(), self.out_channels * self.in_channels * 9, "the weights must have the kernel's shape");
        self.pack_panels(weights, 0..self.panel_count())
    }

    /// The number of panels of packed weights.
    pub(crate) fn panel_count(&self) -> usize {
        self.out_lanes().div_ceil(PANEL)
    }

    /// The packed weights of some panels.
    pub(crate) fn pack_panels(&self, weights: &[f32], panels: Range<usize>) -> Vec<f32> {
        let (side, lanes) = (self.side(), self.out_lanes());
        let outs = panels.start * PANEL..self.out_channels.min(panels.end * PANEL);
        let start = panels.start * PANEL * side * side * self.in_channels;
        let matrix = match self.tile {
            2 => &Points::<4>::weights()[..],
            4 => &Points::<6>::weights()[..],
            6 => &Points::<8>::weights()[..],
            _ => panic!("`tile` must be 2, 4 or 6"),
        };
        let width = lanes.min(panels.end * PANEL) - panels.start * PANEL;
        let mut packed = vec![0.0; side * side * self.in_channels * width];
        let of_panels = &weights[outs.start * self.in_channels * 9..outs.end * self.in_channels * 9];
        for (number, cells) in of_panels.chunks_exact(9).enumerate() {
            let (out, channel) = (outs.start + number / self.in_channels, number % self.in_channels);
            let first = out / PANEL * PANEL;
            let width = PANEL.min(lanes - first);
            for place in 0..side * side {
                let [left, right] = [matrix[place / side], matrix[place % side]];
                let mut sum = 0.0;
                for (tap, &cell) in cells.iter().enumerate() {
                    sum += left[tap / 3] * right[tap % 3] * f64::from(cell);
                }
                let block = first * side * side + place * width + (out - first) / LANES * LANES;
                packed[block * self.in_channels + channel * LANES + out % LANES - start] = sum as f32;
            }
        }
        packed
    }

    /// The same for some panels in any order, on the threads of a run. Computed in `f32`.
    fn pack_view(&self, weights: WeightView<'_>, panels: Range<usize>, packed: &mut [f32], pool: &Pool) {
        let (channels, blocks) = (self.in_channels, self.in_blocks());
        let (packed, isa) = (&SharedMut::new(packed), pool.isa());
        let (start, end) = (panels.start * PANEL, self.out_lanes().min(panels.end * PANEL));
        pool.run((end - start) / LANES * blocks, &|task| {
            let (first, channel) = (start + task / blocks * LANES, task % blocks * LANES);
            let channels = channel..channels.min(channel + LANES);
            let job = (self, weights, start);
            with_vector!(isa, transform_weights(
                job: (&Winograd, WeightView<'_>, usize), first: usize, channels: Range<usize>,
                packed: &SharedMut<'_, f32>
            ));
        });
    }

    /// Convolves by run-time weights. A few panels at a time are packed into `packed`. Inputs are transformed
    /// again for each part.
    ///
    /// # Panics
    /// Packed weights of another number than [`Winograd::packed_at_once`].
    pub(crate) fn run_packing(&self, args: &mut Args, weights: WeightView<'_>, packed: &mut [f32], pool: &Pool) {
        assert_eq!(packed.len(), self.packed_at_once(), "the packed weights must have their size");
        let panels = self.panel_count();
        let at_once = self.panels_at_once();
        for start in (0..panels).step_by(at_once.max(1)) {
            let part = start..panels.min(start + at_once);
            let lanes = self.out_lanes().min(part.end * PANEL) - start * PANEL;
            let packed = &mut packed[..self.side() * self.side() * self.in_channels * lanes];
            self.pack_view(weights, part.clone(), packed, pool);
            self.run_panels(args, packed, part, pool);
        }
    }

    /// Panels of run-time weights that are packed at once: as many as 16 MiB hold.
    fn panels_at_once(&self) -> usize {
        let panel = self.side() * self.side() * self.in_channels.max(1) * PANEL;
        (PACKED_AT_ONCE / panel).clamp(1, self.out_lanes().div_ceil(PANEL).max(1))
    }

    /// Elements of run-time weights that are packed at once.
    pub fn packed_at_once(&self) -> usize {
        let lanes = self.out_lanes().min(self.panels_at_once() * PANEL);
        self.side() * self.side() * self.in_channels * lanes
    }

    /// Elements of the packed weights.
    pub fn packed_elements(&self) -> usize {
        self.side() * self.side() * self.in_channels * self.out_lanes()
    }

    /// Floating-point operations of the products: two for each tile, place, input and output channel.
    pub fn product_flops(&self) -> u64 {
        let tiles = self.tiles() as u64;
        [self.side() * self.side(), self.in_channels, self.out_lanes()]
            .iter()
            .fold(2 * tiles, |product, &factor| product.saturating_mul(factor as u64))
    }

    /// Floating-point operations of the transforms.
    pub fn transform_flops(&self) -> u64 {
        let (pairs, side, tile) = (self.tile as u64 / 2, self.side() as u64, self.tile as u64);
        // Rows: `pairs` steps for each of the two ends, `2 pairs` for each pair.
        let forward = 2 * (2 * pairs + 2 * pairs * pairs);
        // Columns: sums and differences, and a step for each output and pair.
        let back = 2 * pairs + 2 * tile * pairs + 2;
        let input = 2 * side * forward * (self.in_channels.div_ceil(LANES) * LANES) as u64;
        let output = (side + tile) * back * self.out_lanes() as u64;
        (self.tiles() as u64).saturating_mul(input.saturating_add(output))
    }

    /// Floating-point operations.
    pub fn flops(&self) -> u64 {
        self.product_flops().saturating_add(self.transform_flops())
    }

    /// Rows and columns of a transformed tile.
    fn side(&self) -> usize {
        self.tile + 2
    }

    fn in_blocks(&self) -> usize {
        self.in_channels.div_ceil(LANES)
    }

    fn out_lanes(&self) -> usize {
        self.out_channels.div_ceil(LANES) * LANES
    }

    fn grid(&self) -> [usize; 2] {
        self.window.output.map(|extent| extent.div_ceil(self.tile))
    }

    /// Tiles of all images.
    fn tiles(&self) -> usize {
        self.batch * self.grid()[0] * self.grid()[1]
    }

    /// Elements of a tile's transformed input.
    fn values(&self) -> usize {
        self.side() * self.side() * self.in_blocks() * LANES
    }

    fn cut(&self) -> Cut {
        let count = self.tiles();
        // Parts of nearly equal size: two products of 8 tiles are faster than one of 14 and one of 2.
        let even = |whole: usize, most: usize| whole.div_ceil(whole.div_ceil(most).max(1)).max(1);
        let block = even(count, ROWS);
        let blocks = count.div_ceil(block);
        let fit = |tiles: usize| self.workspace_max / tiles.saturating_mul(self.values()).max(1);
        let sums = SUMS / (self.side() * self.side() * PANEL * block);
        let tasks = blocks * self.out_lanes().div_ceil(PANEL) / TASKS;
        let chunk = even(blocks, sums.min(fit(block)).min(tasks).max(1));
        let chunks = blocks.div_ceil(chunk);
        let group = even(chunks, fit(chunk * block).max(1));
        Cut { count, block, chunk: chunk * block, group: count.min(group * chunk * block) }
    }
}

impl KernelFn for Winograd {
    const NAME: &'static str = "winograd";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let Winograd { batch, in_channels, out_channels, window, tile, .. } = self;
        window.check()?;
        if (window.kernel, window.stride, window.dilation) != ([3, 3], [1, 1], [1, 1]) {
            return Err(InvalidKernel("the kernel must be 3 x 3 with stride 1 and dilation 1"));
        }
        if ![2, 4, 6].contains(tile) {
            return Err(InvalidKernel("`tile` must be 2, 4 or 6"));
        }
        let side = self.side();
        let lanes = product(&[out_channels.div_ceil(LANES), LANES]).ok_or(InvalidKernel("sizes must not overflow"))?;
        let output = product(&[*batch, lanes, window.output[0], window.output[1]]);
        let x = product(&[*batch, in_channels.div_ceil(LANES), LANES, window.input[0], window.input[1]]);
        let weights = product(&[side, side, *in_channels, lanes]);
        let values = product(&[side, side, in_channels.div_ceil(LANES), LANES]);
        // Everything that is multiplied below fits where these do.
        Sizes::new(&[x, weights, values], output, 4)?;
        let workspace = values.and_then(|values| product(&[self.cut().group, values]));
        let mut inputs: SmallVec<[Option<usize>; 8]> = SmallVec::from_slice(&[x, weights]);
        self.epilogue.check_unscaled()?;
        inputs.extend(self.epilogue.operands(lanes, output));
        Sizes::with_workspace(&inputs, output, workspace, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == 2 + usize::from(self.epilogue.bias)
    }

    fn run(&self, mut args: Args, pool: &Pool) {
        let weights: &[f32] = input(&args, 1);
        assert_eq!(weights.len(), self.packed_elements(), "the weights must have their size");
        let panels = 0..self.out_lanes().div_ceil(PANEL);
        self.run_panels(&mut args, weights, panels, pool);
    }
}

impl Winograd {
    /// Computes the output channels of some panels by their packed weights.
    fn run_panels(&self, args: &mut Args, weights: &[f32], panels: Range<usize>, pool: &Pool) {
        let x: &[f32] = input(args, 0);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(args, 2));
        let residual = self.epilogue.residual.then(|| input_or_in_place(args, args.inputs.len() - 1));
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let scratch: &mut [f32] = elements_mut(args.workspace);
        let (limits, functions) = self.epilogue.limits_and_functions();
        let (cut, isa, out) = (self.cut(), pool.isa(), SharedMut::new(out));
        let (grid, first_panel) = (self.grid(), panels.start);
        let job = Job { kernel: self, grid, isa, x, weights, first_panel, bias, residual, limits, functions, out };
        let (values, block_values) = (self.values(), self.side() * self.side() * LANES);
        let (parts, panels) = (self.in_blocks().div_ceil(IN_BLOCKS), panels.len());
        for start in (0..cut.count).step_by(cut.group) {
            let end = cut.count.min(start + cut.group);
            let group = SharedMut::new(&mut scratch[..(end - start) * values]);
            pool.run((end - start).div_ceil(cut.block) * parts, &|task| {
                let first = start + task / parts * cut.block;
                let tiles = first..end.min(first + cut.block);
                let channel = task % parts * IN_BLOCKS;
                let channels = channel..self.in_blocks().min(channel + IN_BLOCKS);
                let part = (first - start) * values + channel * tiles.len() * block_values;
                // SAFETY: tasks differ in tiles or channels, and each block of both has its own part.
                let cells = unsafe { group.part(part, channels.len() * tiles.len() * block_values) };
                let job = &job;
                with_vector!(isa, transform_input(
                    job: &Job<'_>, tiles: Range<usize>, channels: Range<usize>, cells: &mut [f32]
                ));
            });
            let group = &scratch[..(end - start) * values];
            let chunks = (end - start).div_ceil(cut.chunk);
            // The larger operand is read by one thread: weights, all chunks of a panel, or values, all panels of a
            // chunk, which the same thread has just transformed.
            let by_panels = group.len() <= weights.len();
            let place = |task: usize| match by_panels {
                true => (task / chunks, task % chunks),
                false => (task % panels, task / panels),
            };
            pool.run(chunks * panels, &|task| {
                let (panel, chunk) = place(task);
                let first = start + chunk * cut.chunk;
                let tiles = first..end.min(first + cut.chunk);
                let values = &group[(first - start) * values..(tiles.end - start) * values];
                // The panel that this thread probably computes next, if no thread has read its weights yet.
                let (next, next_chunk) = place(task + 1);
                let is_new = next != panel && next < panels && next_chunk == 0 && start == 0;
                job.run_chunk(panel, tiles, cut.block, values, is_new.then_some(next));
            });
        }
    }
}

/// The operands that tasks share.
struct Job<'a> {
    kernel: &'a Winograd,
    grid: [usize; 2],
    isa: Isa,
    x: &'a [f32],
    /// Packed weights from this panel on.
    weights: &'a [f32],
    first_panel: usize,
    bias: Option<&'a [f32]>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
    limits: Option<[f32; 2]>,
    /// Functions after the bounds.
    functions: &'a [Unary],
    out: SharedMut<'a, f32>,
}

/// Sums of products on the stack; only initialized ones are read.
#[repr(align(64))]
struct Sums([MaybeUninit<f32>; SUMS]);

impl Job<'_> {
    /// Image, row and column of a tile's first output.
    #[inline(always)]
    fn place(&self, tile: usize) -> [usize; 3] {
        let [rows, columns] = self.grid;
        let (image, at) = (tile / (rows * columns), tile % (rows * columns));
        [image, at / columns * self.kernel.tile, at % columns * self.kernel.tile]
    }

    /// Computes a panel, counted from the first one, of some tiles, whose transformed inputs are `values` in blocks of `block` tiles, and prefetches
    /// the weights of another.
    fn run_chunk(&self, panel: usize, tiles: Range<usize>, block: usize, values: &[f32], next: Option<usize>) {
        let kernel = self.kernel;
        let (channels, places) = (kernel.in_channels, kernel.side() * kernel.side());
        let first = (self.first_panel + panel) * PANEL;
        let width = PANEL.min(kernel.out_lanes() - first);
        let weights = &self.weights[panel * PANEL * channels * places..][..width * channels * places];
        let mut prefetch = next.map_or(Prefetch::NONE, |next| {
            let weights = &self.weights[next * PANEL * channels * places..];
            let steps = places * tiles.len().div_ceil(block) * channels.div_ceil(LANES);
            Prefetch::new(weights.as_ptr().cast(), weights.len().min(PANEL * channels * places), steps)
        });
        let mut sums = Sums([MaybeUninit::uninit(); SUMS]);
        let sums: &mut [MaybeUninit<f32>] = &mut sums.0[..places * tiles.len() * width];
        let rows: [Row; ROWS] = std::array::from_fn(|r| Row { x: r * LANES, out: r * width });
        // A block of tiles, at one place or at all in turn; or several blocks at one place, whose weights stay cached.
        let mut product = |place: usize, first: usize, height: usize, repeat: Repeat| {
            // The places of a block of input channels precede those of the next block.
            let (row, whole, rest) = (height * LANES, channels / LANES, channels % LANES);
            let step = Loop { iterations: whole, x: places * row, weights: LANES * LANES };
            let k_loop = |x, weights, step, depth| KLoop { x, weights, loops: [Loop::ONCE, Loop::ONCE, step], depth };
            let k_loops = [
                k_loop(place * row, place * channels * width, step, LANES),
                k_loop(
                    (whole * places + place) * row,
                    place * channels * width + whole * LANES * LANES,
                    Loop::ONCE,
                    rest,
                ),
            ];
            let k_loops = &k_loops[..if rest == 0 { 1 } else { 2 }];
            let tile = Tile {
                operands: StorageType::F32,
                x: values[first * kernel.values()..].as_ptr().cast(),
                weights: weights.as_ptr().cast(),
                compact: None,
                weight_stride: LANES,
                weight_vector: channels * LANES,
                result: StorageType::F32,
                out: sums[(place * tiles.len() + first) * width..].as_mut_ptr().cast(),
                rows: &rows[..height],
                vectors: width / LANES,
                vector_stride: LANES,
                k_loops,
                init: Init::Zero,
                residual: None,
                limits: None,
                marks: None,
                read_back: false,
                prefetch: prefetch.share(k_loops, repeat.iterations),
                repeat,
            };
            // SAFETY: each row has a value for every input channel at each place, a row of weights for each of these,
            // and `width` sums, all within the slices, which have the sizes of that many tiles. The sums belong to this
            // task.
            unsafe { dispatch::multiply(self.isa, &tile) };
        };
        if tiles.len() <= block {
            let height = tiles.len();
            let repeat =
                Repeat { iterations: places, x: height * LANES, weights: channels * width, out: height * width };
            product(0, 0, height, repeat);
        } else {
            let (blocks, rest) = (tiles.len() / block, tiles.len() % block);
            for place in 0..places {
                let repeat = Repeat { iterations: blocks, x: block * kernel.values(), weights: 0, out: block * width };
                product(place, 0, block, repeat);
                if rest != 0 {
                    product(place, blocks * block, rest, Repeat::ONCE);
                }
            }
        }
        // SAFETY: the products above wrote all these sums: all places, all tiles, the panel's width.
        let sums: &[f32] = unsafe { std::slice::from_raw_parts(sums.as_ptr().cast(), sums.len()) };
        for block in 0..width / LANES {
            let (job, tiles, sums, channel) = (self, tiles.clone(), &sums[block * LANES..], first + block * LANES);
            with_vector!(self.isa, transform_output(
                job: &Job<'_>, tiles: Range<usize>, sums: &[f32], width: usize, channel: usize
            ));
        }
    }
}

/// Transforms the weights of sixteen output channels, from `first` on, and of some input channels. The packed weights begin
/// with output channel `start`.
#[inline(always)]
fn transform_weights<V: Vector>(
    (kernel, weights, start): (&Winograd, WeightView<'_>, usize),
    first: usize,
    channels: Range<usize>,
    packed: &SharedMut<'_, f32>,
) {
    match kernel.tile {
        2 => weight_tiles::<V, 4>((kernel, weights, start), first, channels, packed),
        4 => weight_tiles::<V, 6>((kernel, weights, start), first, channels, packed),
        _ => weight_tiles::<V, 8>((kernel, weights, start), first, channels, packed),
    }
}

#[inline(always)]
fn weight_tiles<V: Vector, const T: usize>(
    (kernel, weights, start): (&Winograd, WeightView<'_>, usize),
    first: usize,
    channels: Range<usize>,
    packed: &SharedMut<'_, f32>,
) {
    let matrix: [[f32; 3]; T] = Points::<T>::WEIGHTS;
    let panel = first / PANEL * PANEL;
    let (width, half) = (PANEL.min(kernel.out_lanes() - panel), first - panel);
    let filled = LANES.min(kernel.out_channels - first);
    let start = (panel - start) * T * T * kernel.in_channels;
    for channel in channels {
        let mut taps = [V::zero(); 9];
        for (tap, vector) in taps.iter_mut().enumerate() {
            let from = first * weights.out + channel * weights.channel + weights.tap(0, tap / 3, tap % 3);
            let mut lanes = [0.0; LANES];
            for (lane, cell) in lanes.iter_mut().enumerate().take(filled) {
                *cell = weights.items[from + lane * weights.out];
            }
            *vector = V::read(&lanes);
        }
        for (left, row) in matrix.iter().enumerate() {
            let mut half_done = [V::zero(); 3];
            for (c, half_done) in half_done.iter_mut().enumerate() {
                *half_done = product_of_taps(row, [taps[c], taps[3 + c], taps[6 + c]]);
            }
            for (right, column) in matrix.iter().enumerate() {
                let place = left * T + right;
                let at = start + (place * width + half) * kernel.in_channels + channel * LANES;
                // SAFETY: tasks differ in output or input channels, and so do the rows of weights they write.
                product_of_taps(column, half_done).write(unsafe { packed.part(at, LANES) });
            }
        }
    }
}

#[inline(always)]
fn product_of_taps<V: Vector>(row: &[f32; 3], taps: [V; 3]) -> V {
    let sum = taps[0].mul(V::splat(row[0]));
    let sum = taps[1].mul_add(V::splat(row[1]), sum);
    taps[2].mul_add(V::splat(row[2]), sum)
}

/// Transforms some blocks of channels of some tiles: `cells[channel block][place][tile]`.
#[inline(always)]
fn transform_input<V: Vector>(job: &Job, tiles: Range<usize>, channels: Range<usize>, cells: &mut [f32]) {
    match job.kernel.tile {
        2 => input_tiles::<V, 4>(job, tiles, channels, cells),
        4 => input_tiles::<V, 6>(job, tiles, channels, cells),
        _ => input_tiles::<V, 8>(job, tiles, channels, cells),
    }
}

#[inline(always)]
fn input_tiles<V: Vector, const T: usize>(job: &Job, tiles: Range<usize>, channels: Range<usize>, cells: &mut [f32]) {
    let Window { input, pad, .. } = job.kernel.window;
    let plane = input[0] * input[1] * LANES;
    for (block, cells) in channels.zip(cells.chunks_exact_mut(T * T * tiles.len() * LANES)) {
        for (number, tile) in tiles.clone().enumerate() {
            let [image, row, column] = job.place(tile);
            let picture = &job.x[(image * job.kernel.in_blocks() + block) * plane..][..plane];
            let rows = inside::<T>(row, pad[0], input[0]);
            let columns = inside::<T>(column, pad[1], input[1]);
            // The pixel at the upper left corner may be outside.
            let at = |r: usize, c: usize| ((row + r - pad[0]) * input[1] + column + c - pad[1]) * LANES;
            let mut half = [[V::zero(); T]; T];
            if rows.len() == T && columns.len() == T {
                let corner = &picture[at(0, 0)..at(T - 1, T - 1) + LANES];
                for (c, half) in half.iter_mut().enumerate() {
                    // SAFETY: the slice ends with the last pixel of the tile.
                    let pixel = |r: usize| unsafe { V::load(corner.as_ptr().add((r * input[1] + c) * LANES)) };
                    *half = Points::<T>::forward(std::array::from_fn(pixel));
                }
            } else {
                for c in columns {
                    let pixel = |r: usize| match rows.contains(&r) {
                        true => V::read(&picture[at(r, c)..]),
                        false => V::zero(),
                    };
                    half[c] = Points::<T>::forward(std::array::from_fn(pixel));
                }
            }
            let cells = &mut cells[number * LANES..];
            let end = tiles.len().checked_mul((T * T - 1) * LANES).and_then(|end| end.checked_add(LANES));
            assert!(end.is_some_and(|end| end <= cells.len()), "the last place must have this tile");
            #[expect(clippy::needless_range_loop, reason = "a column of `half`, not a row")]
            for r in 0..T {
                let line = Points::<T>::forward(std::array::from_fn(|c| half[c][r]));
                for (c, value) in line.into_iter().enumerate() {
                    // SAFETY: the last place is in the slice, as asserted, and the others precede it.
                    unsafe { value.store(cells.as_mut_ptr().add((r * T + c) * tiles.len() * LANES)) };
                }
            }
        }
    }
}

/// Bits of those of T pixels from `at - pad` on that are in an image.
#[inline(always)]
fn inside<const T: usize>(at: usize, pad: usize, extent: usize) -> Range<usize> {
    let first = pad.saturating_sub(at).min(T);
    first..(extent + pad).saturating_sub(at).clamp(first, T)
}

/// Transforms the sums of a block of output channels back: `sums[place][tile][..width]`.
#[inline(always)]
fn transform_output<V: Vector>(job: &Job, tiles: Range<usize>, sums: &[f32], width: usize, channel: usize) {
    match job.kernel.tile {
        2 => output_tiles::<V, 4>(job, tiles, sums, width, channel),
        4 => output_tiles::<V, 6>(job, tiles, sums, width, channel),
        _ => output_tiles::<V, 8>(job, tiles, sums, width, channel),
    }
}

#[inline(always)]
fn output_tiles<V: Vector, const T: usize>(job: &Job, tiles: Range<usize>, sums: &[f32], width: usize, channel: usize) {
    let output = job.kernel.window.output;
    let bias = job.bias.map_or(V::zero(), |bias| V::read(&bias[channel..]));
    let limits = job.limits.map(|limits| limits.map(V::splat));
    let last = tiles.len().checked_mul(T * T).and_then(|places| places.checked_sub(1));
    let end = last.and_then(|last| last.checked_mul(width)?.checked_add(LANES));
    assert!(end.is_some_and(|end| end <= sums.len()), "the last place must have the last tile");
    for (number, tile) in tiles.clone().enumerate() {
        let [image, row, column] = job.place(tile);
        let mut half = [[V::zero(); T]; T];
        for (c, half) in half.iter_mut().enumerate() {
            // SAFETY: the sums of the last place and tile are in the slice, as asserted, and all others precede them.
            let sum = |r: usize| unsafe { V::load(sums.as_ptr().add(((r * T + c) * tiles.len() + number) * width)) };
            *half = Points::<T>::back(std::array::from_fn(sum));
        }
        let channels = image * job.kernel.out_lanes() + channel;
        let columns = (T - 2).min(output[1] - column);
        #[expect(clippy::needless_range_loop, reason = "a column of `half`, not a row")]
        for r in 0..(T - 2).min(output[0] - row) {
            let line = Points::<T>::back(std::array::from_fn(|c| half[c][r]));
            let start = (channels * output[0] + (row + r) * LANES) * output[1] + column * LANES;
            // SAFETY: tasks differ in tiles or channels, and so do the outputs they write.
            let cells = unsafe { job.out.part(start, columns * LANES) };
            for c in 0..T - 2 {
                if columns <= c {
                    break;
                }
                let cell = &mut cells[c * LANES..(c + 1) * LANES];
                let mut result = line[c].add(bias);
                match job.residual {
                    Some(Some(residual)) => result = result.add(V::read(&residual[start + c * LANES..])),
                    Some(None) => result = result.add(V::read(cell)),
                    None => {}
                }
                if let Some([low, high]) = limits {
                    result = result.at_least(low).at_most(high);
                }
                result.write(cell);
            }
            job.functions.iter().for_each(|&function| math::apply(V::ISA, function, cells));
        }
    }
}

/// The transforms of a tile with T inputs a side, along one axis: the polynomials through 0, infinity and pairs of
/// points `+-p`.
///
/// The product of `x - q` over all points `q` but one has the coefficients of that point's row of `B'`; over all of
/// them, those of infinity. For `p` and `-p` they are `x^2 R(x^2) +- p x R(x^2)`, which halves the work.
struct Points<const T: usize>;

impl<const T: usize> Points<T> {
    /// Number of pairs.
    const PAIRS: usize = T / 2 - 1;

    /// The pairs.
    const PAIR: [f64; 3] = match T {
        4 => [1.0, 0.0, 0.0],
        6 => [0.6875, 1.5, 0.0],
        _ => [0.5, 1.0, 1.75],
    };

    /// The product of `z - p^2` for all pairs, by powers of `z`. The highest coefficient is 1.
    const ALL: [f32; 4] = Self::polynomial(usize::MAX);

    /// The same for all but one.
    const BUT: [[f32; 4]; 3] = [Self::polynomial(0), Self::polynomial(1), Self::polynomial(2)];

    /// Powers of each pair.
    const POWERS: [[f32; 6]; 3] = {
        let mut powers = [[1.0; 6]; 3];
        let mut pair = 0;
        while pair < 3 {
            let mut power = 1;
            while power < 6 {
                powers[pair][power] = powers[pair][power - 1] * Self::PAIR[pair] as f32;
                power += 1;
            }
            pair += 1;
        }
        powers
    };

    const fn polynomial(without: usize) -> [f32; 4] {
        let mut product = [1.0, 0.0, 0.0, 0.0];
        let mut pair = 0;
        while pair < Self::PAIRS {
            if pair != without {
                let square = Self::PAIR[pair] * Self::PAIR[pair];
                let mut power = 3;
                while 0 < power {
                    product[power] = product[power - 1] - square * product[power];
                    power -= 1;
                }
                product[0] *= -square;
            }
            pair += 1;
        }
        [product[0] as f32, product[1] as f32, product[2] as f32, product[3] as f32]
    }

    /// `G` rounded to `f32`.
    const WEIGHTS: [[f32; 3]; T] = {
        let mut rows = [[0.0; 3]; T];
        let mut point = 0;
        while point + 1 < T {
            let own = Self::point(point);
            let (mut distances, mut other) = (1.0, 0);
            while other + 1 < T {
                if other != point {
                    distances *= own - Self::point(other);
                }
                other += 1;
            }
            rows[point] = [(1.0 / distances) as f32, (own / distances) as f32, (own * own / distances) as f32];
            point += 1;
        }
        rows[T - 1] = [0.0, 0.0, 1.0];
        rows
    };

    /// The finite points in the order of `G`: 0, then `p` and `-p` of each pair.
    const fn point(number: usize) -> f64 {
        match number {
            0 => 0.0,
            _ if number % 2 == 1 => Self::PAIR[number / 2],
            _ => -Self::PAIR[number / 2 - 1],
        }
    }

    /// `G`: for each point `q` its powers, divided by the product of its distances to all others.
    fn weights() -> Vec<[f64; 3]> {
        let pairs = &Self::PAIR[..Self::PAIRS];
        let points: Vec<f64> = std::iter::once(0.0).chain(pairs.iter().flat_map(|&p| [p, -p])).collect();
        let row = |&point: &f64| {
            let distances: f64 = points.iter().filter(|&&other| other != point).map(|other| point - other).product();
            [1.0 / distances, point / distances, point * point / distances]
        };
        points.iter().map(row).chain([[0.0, 0.0, 1.0]]).collect()
    }

    /// `B' d`.
    #[inline(always)]
    fn forward<V: Vector>(d: [V; T]) -> [V; T] {
        let polynomial = |coefficients: &[f32; 4], degree: usize, first: usize| {
            let mut sum = d[first + 2 * degree];
            for power in 0..degree {
                sum = d[first + 2 * power].mul_add(V::splat(coefficients[power]), sum);
            }
            sum
        };
        let mut values = [V::zero(); T];
        values[0] = polynomial(&Self::ALL, Self::PAIRS, 0);
        for pair in 0..Self::PAIRS {
            let even = polynomial(&Self::BUT[pair], Self::PAIRS - 1, 2);
            let odd = polynomial(&Self::BUT[pair], Self::PAIRS - 1, 1);
            let point = Self::POWERS[pair][1];
            values[2 * pair + 1] = odd.mul_add(V::splat(point), even);
            values[2 * pair + 2] = odd.mul_add(V::splat(-point), even);
        }
        values[T - 1] = polynomial(&Self::ALL, Self::PAIRS, 1);
        values
    }

    /// `A' m`, in the first `T - 2` places.
    #[inline(always)]
    fn back<V: Vector>(m: [V; T]) -> [V; T] {
        let mut results = [V::zero(); T];
        for (power, result) in results.iter_mut().enumerate().take(T - 2) {
            let mut sum = match power {
                0 => m[0],
                _ if power == T - 3 => m[T - 1],
                _ => V::zero(),
            };
            for pair in 0..Self::PAIRS {
                let [plus, minus] = [m[2 * pair + 1], m[2 * pair + 2]];
                let both = if power % 2 == 0 { plus.add(minus) } else { plus.sub(minus) };
                sum = match Self::POWERS[pair][power] {
                    1.0 => sum.add(both),
                    factor => both.mul_add(V::splat(factor), sum),
                };
            }
            *result = sum;
        }
        results
    }
}
