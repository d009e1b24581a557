//! [`InvertedBottleneck`]: an expanding convolution, a depthwise one and a projection, fused over stripes of rows.
//!
//! ```text
//!    x  ──►  front   ──►  depthwise  ──►  project 1x1  ──►  out     a stripe: some rows of one image
//!          32 channels    all channels
//!           at a time     of a stripe
//!          ── workspace of a task: stays in its second-level cache ──
//! ```
//!
//! The wide intermediate values are never written to memory that another core reads. In a bottleneck the front stage is
//! a 1 x 1 convolution; at the start of a network it is the first convolution. Rows at the border of two stripes are
//! computed for both. A stripe uses one of a fixed number of slots, each with its own workspace, so neither the
//! workspace nor any bit of the result depends on the number of threads.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::WeightFormat;

use crate::conv::depthwise::Rows;
use crate::conv::direct::{self, Stage};
use crate::conv::{ConvAlgorithm, ImageLayout};
use crate::conv::{ConvBlocked, DepthwiseBlocked, Window};
use crate::gemm::epilogue::Epilogue;
use crate::gemm::tile::Word;
use crate::gemm::weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, input_or_in_place, product};
use crate::movement::blocked_layout::{Pixel, padded};
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Blocks of channels of a panel.
const PANEL_BLOCKS: usize = direct::PANEL / LANES;

/// The convolution in front of the depthwise one: of one group; its result is the depthwise one's image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Front {
    /// Rows and columns.
    pub window: Window,
    /// The layout of `x`.
    pub layout: ImageLayout,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

/// `x: [batch, in_channels, rows, columns]` through an optional convolution `front` to `channels`; a depthwise
/// convolution; and a 1 x 1 convolution to `out_channels`, blocked. Without `front`, `x` is blocked. Operands: `x`,
/// then for each of the three its packed weights and, by its epilogue, its bias; the residual of `project` last. `f32`.
///
/// Refuses: a residual other than `project`'s; stripes without rows; `in_channels` other than `channels` without
/// `front`; a `front` whose result has other extents than the depthwise convolution's image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvertedBottleneck {
    /// Images.
    pub batch: usize,
    /// Channels of `x`.
    pub in_channels: usize,
    /// Channels of the depthwise convolution.
    pub channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Rows and columns of the depthwise convolution.
    pub window: Window,
    /// The optional convolution in front.
    pub front: Option<Front>,
    /// Applied to each result of the depthwise convolution.
    pub depthwise: Epilogue,
    /// Applied to each result of the projection.
    pub project: Epilogue,
    /// Rows of the output in a stripe.
    pub band: usize,
    /// The stored form of the weights of `front` and of the projection, if it is not `f32`.
    pub weights: Option<WeightFormat>,
}

impl InvertedBottleneck {
    /// The most stripes at a time, each with a workspace of its own.
    pub const SLOTS: usize = 8;

    /// Stripes at a time.
    pub fn slots(&self) -> usize {
        Self::SLOTS.min(self.bands())
    }

    /// The convolution in front as a kernel without its epilogue; it packs the weights.
    pub fn front_kernel(&self) -> Option<ConvBlocked> {
        self.front.as_ref().map(|Front { window, layout, .. }| ConvBlocked {
            in_channels: self.in_channels,
            layout: *layout,
            ..self.product(self.batch, *window, self.channels)
        })
    }

    /// The depthwise convolution as a kernel of its own, which packs its weights.
    pub fn depthwise_kernel(&self) -> DepthwiseBlocked {
        let InvertedBottleneck { batch, channels, window, .. } = *self;
        DepthwiseBlocked {
            batch,
            channels,
            group: [1, 1],
            window,
            stored: StorageType::F32,
            zero_point: 0,
            result: StorageType::F32,
            epilogue: self.depthwise.clone(),
        }
    }

    /// The projection as a kernel without its epilogue; it packs the weights.
    pub fn project_kernel(&self) -> ConvBlocked {
        self.product(self.batch, Self::pointwise(self.window.output), self.out_channels)
    }

    /// The window of the projection.
    fn pointwise(plane: [usize; 2]) -> Window {
        Window { input: plane, output: plane, kernel: [1, 1], stride: [1, 1], dilation: [1, 1], pad: [0, 0] }
    }

    /// A convolution of the depthwise one's channels.
    fn product(&self, batch: usize, window: Window, out_channels: usize) -> ConvBlocked {
        ConvBlocked {
            batch,
            in_channels: self.channels,
            out_channels,
            groups: 1,
            joined: 1,
            window,
            layout: ImageLayout::Blocked,
            algorithm: ConvAlgorithm::InPlace,
            operands: StorageType::F32,
            weights: self.weights,
            zero_point: 0,
            result: StorageType::F32,
            epilogue: Epilogue::default(),
        }
    }

    fn bands(&self) -> usize {
        self.batch * self.window.output[0].div_ceil(self.band.max(1))
    }

    /// Rows of the depthwise convolution's image from one stripe to the next, and rows that a stripe reads: the halo is
    /// computed, or read, for two stripes.
    pub fn rows_of_band(&self) -> (usize, usize) {
        let Window { input, output, kernel, stride, dilation, .. } = self.window;
        let rows = self.band.min(output[0]);
        let reach = rows.saturating_sub(1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1;
        (rows * stride[0], reach.min(input[0]))
    }

    /// Elements of a slot: the depthwise results of a stripe, then the rows of a panel that they are computed from.
    fn slot(&self) -> Option<[usize; 2]> {
        let Window { input, output, .. } = self.window;
        let results = product(&[padded(self.channels)?, self.band.min(output[0]), output[1]])?;
        let expanded = product(&[PANEL_BLOCKS * LANES, self.rows_of_band().1, input[1]])?;
        Some([results, if self.front.is_some() { expanded } else { 0 }])
    }

    /// The rows of the image that rows of the output read.
    fn rows_read(&self, rows: &Range<usize>) -> Range<usize> {
        let Window { input, kernel, stride, dilation, pad, .. } = self.window;
        let start = (rows.start * stride[0]).saturating_sub(pad[0]);
        let end = ((rows.end - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1).saturating_sub(pad[0]);
        let end = end.min(input[0]);
        start.min(end)..end
    }
}

impl KernelFn for InvertedBottleneck {
    const NAME: &'static str = "inverted_bottleneck";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let in_front = self.front.as_ref();
        for epilogue in in_front.map(|front| &front.epilogue).into_iter().chain([&self.depthwise, &self.project]) {
            epilogue.check_unscaled()?;
        }
        self.window.check()?;
        if self.depthwise.residual || in_front.is_some_and(|front| front.epilogue.residual) {
            return Err(InvalidKernel("only `project` may have a residual"));
        }
        if self.band == 0 {
            return Err(InvalidKernel("`band` must be >= 1"));
        }
        if self.front.is_none() && self.in_channels != self.channels {
            return Err(InvalidKernel("`in_channels` must equal `channels` without `front`"));
        }
        let overflow = InvalidKernel("sizes must not overflow");
        let [ins, channels, outs] = [self.in_channels, self.channels, self.out_channels].map(padded);
        let (mut ins, channels, outs) = (ins.ok_or(overflow)?, channels.ok_or(overflow)?, outs.ok_or(overflow)?);
        let Window { mut input, output, kernel, .. } = self.window;
        let out = product(&[self.batch, outs, output[0], output[1]]);
        let mut of_front = Vec::new();
        if let Some(Front { window, layout, epilogue }) = in_front {
            window.check()?;
            if window.output != input {
                return Err(InvalidKernel("the result of `front` must have the extents of the depthwise input"));
            }
            input = window.input;
            if *layout == ImageLayout::RowMajor {
                ins = self.in_channels;
            }
            let elements = product(&[channels, self.in_channels, window.kernel[0], window.kernel[1]]);
            of_front.push(weights::words(self.weights, elements, Some(channels)));
            of_front.extend(epilogue.operands(channels, None));
        }
        let mut inputs = vec![product(&[self.batch, ins, input[0], input[1]])];
        inputs.append(&mut of_front);
        inputs.push(product(&[channels, kernel[0], kernel[1]]));
        inputs.extend(self.depthwise.operands(channels, None));
        inputs.push(weights::words(self.weights, product(&[outs, self.channels]), Some(outs)));
        inputs.extend(self.project.operands(outs, out));
        let slots = product(&[self.batch, output[0].div_ceil(self.band)]).map(|bands| bands.min(Self::SLOTS));
        let slot = self.slot().and_then(|[results, expanded]| results.checked_add(expanded));
        let scratch = slots.zip(slot).and_then(|(slots, slot)| slots.checked_mul(slot));
        Sizes::with_workspace(&inputs, out, scratch, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        let operands = |epilogue: &Epilogue| 1 + usize::from(epilogue.bias);
        let in_front = self.front.as_ref().map_or(0, |front| operands(&front.epilogue));
        let before = 1 + in_front + operands(&self.depthwise) + operands(&self.project);
        // The residual's element is read before the result takes its place.
        self.project.residual && input == before
    }

    fn run(&self, args: Args, pool: &Pool) {
        let mut next = 1;
        let mut layer = |bias: bool| {
            let weights: &[Word] = input(&args, next);
            let bias: Option<&[f32]> = bias.then(|| input(&args, next + 1));
            next += 1 + usize::from(bias.is_some());
            Layer { weights, bias }
        };
        let front = self.front.as_ref().map(|front| layer(front.epilogue.bias));
        let (depthwise, project) = (layer(self.depthwise.bias), layer(self.project.bias));
        let residual = self.project.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let x: &[f32] = input(&args, 0);
        let Args { outputs, workspace, .. } = args;
        let out = SharedMut::new(&mut *outputs[0]);
        let [results, expanded] = self.slot().expect("`sizes` accepted the kernel");
        let slots = self.slots();
        let scratch = SharedMut::new(elements_mut::<f32>(workspace));
        let front = self.front_kernel().zip(self.front.as_ref()).zip(front);
        let job = Job { kernel: self, isa: pool.isa(), x, front, depthwise, project, residual, out: &out };
        pool.run(slots, &|slot| {
            // SAFETY: each slot has its own part.
            let scratch = unsafe { scratch.part(slot * (results + expanded), results + expanded) };
            let (results, expanded) = scratch.split_at_mut(results);
            let mut used = [0, 0];
            for band in (slot..self.bands()).step_by(slots) {
                let [a, b] = job.run(band, results, expanded);
                used = [used[0].max(a), used[1].max(b)];
            }
            // Stripes at the end of an image may be lower than others.
            results[used[0]..].fill(0.0);
            expanded[used[1]..].fill(0.0);
        });
    }
}

/// The operands of one of the three.
#[derive(Clone, Copy)]
struct Layer<'a> {
    weights: &'a [Word],
    bias: Option<&'a [f32]>,
}

/// The operands that stripes share. The slices have the sizes that `sizes` states.
struct Job<'a> {
    kernel: &'a InvertedBottleneck,
    isa: Isa,
    x: &'a [f32],
    front: Option<((ConvBlocked, &'a Front), Layer<'a>)>,
    depthwise: Layer<'a>,
    project: Layer<'a>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
    out: &'a SharedMut<'a, u8>,
}

impl Job<'_> {
    /// Computes a stripe and returns the elements of both parts of its workspace that it used.
    fn run(&self, band: usize, results: &mut [f32], expanded: &mut [f32]) -> [usize; 2] {
        let kernel = self.kernel;
        let Window { input: [_, width], output: [height, columns], .. } = kernel.window;
        let (per_image, blocks) = (height.div_ceil(kernel.band), kernel.channels.div_ceil(LANES));
        let (image, first) = (band / per_image, band % per_image * kernel.band);
        let rows = first..height.min(first + kernel.band);
        let read = kernel.rows_read(&rows);
        let (pixels, pixels_read) = (rows.len() * columns, read.len() * width);
        let results = &mut results[..blocks * LANES * pixels];
        for block in (0..blocks).step_by(PANEL_BLOCKS) {
            let panel = block..blocks.min(block + PANEL_BLOCKS);
            let expanded = &mut expanded[..if self.front.is_some() { panel.len() * LANES * pixels_read } else { 0 }];
            self.expand(image, block / PANEL_BLOCKS, read.clone(), expanded);
            for block in panel.clone() {
                let x: &[f32] = match self.front {
                    Some(_) => &expanded[(block - panel.start) * LANES * pixels_read..][..LANES * pixels_read],
                    None => {
                        let plane = kernel.window.input_plane();
                        let start = (image * blocks + block) * plane + read.start * width;
                        &self.x[start * LANES..][..LANES * pixels_read]
                    }
                };
                let results = &mut results[block * LANES * pixels..][..LANES * pixels];
                self.depthwise(
                    block,
                    rows.clone(),
                    x.as_ptr().cast::<Pixel>().wrapping_sub(read.start * width),
                    results,
                );
            }
        }
        self.project(image, first * columns, pixels, results);
        [results.len(), if self.front.is_some() { blocks.min(PANEL_BLOCKS) * LANES * pixels_read } else { 0 }]
    }

    /// Computes a panel of channels of some rows of the depthwise convolution's image by the convolution in front.
    fn expand(&self, image: usize, panel: usize, rows: Range<usize>, expanded: &mut [f32]) {
        let Some(((conv, Front { epilogue, .. }), Layer { weights, bias })) = &self.front else { return };
        let limits = epilogue.limits();
        let out = &SharedMut::new(bytemuck::cast_slice_mut(expanded));
        let out_plane = rows.len() * self.kernel.window.input[1];
        let (isa, x, residual) = (self.isa, self.x, None);
        let stage = Stage { isa, x, weights, bias: *bias, residual, limits, out, out_plane };
        // SAFETY: `expanded` has room for the rows of the panel's blocks and belongs to this task.
        unsafe { conv.run_rows(&stage, panel, image, rows, 0) };
        if limits.is_none() {
            epilogue.activate(isa, expanded);
        }
    }

    /// Computes rows of one block's depthwise results; `x` is where its plane starts or would start.
    fn depthwise(&self, block: usize, rows: Range<usize>, x: *const Pixel, results: &mut [f32]) {
        let (kernel, layer) = (self.kernel, self.depthwise);
        let taps = kernel.window.taps();
        let limits = kernel.depthwise.limits();
        let mut bias = [0.0; LANES];
        if let Some(numbers) = layer.bias {
            bias.copy_from_slice(&numbers[block * LANES..][..LANES]);
        }
        let rows = Rows {
            window: &kernel.window,
            stored: StorageType::F32,
            zero_point: 0,
            result: StorageType::F32,
            x: x.cast(),
            group: [1, 1],
            first_lane: 0,
            weights: layer.weights[block * taps * LANES..][..taps * LANES].as_ptr().cast(),
            scale: [1.0; LANES],
            bias,
            residual: None,
            limits: limits.unwrap_or(Epilogue::UNLIMITED),
            functions: &[],
            rows,
            out: results.as_mut_ptr().cast(),
        };
        // SAFETY: `x` has the rows that the window reaches, the kernel is the block's, and the results have room for
        // the rows and belong to this task.
        unsafe { rows.run(self.isa) };
        if limits.is_none() {
            kernel.depthwise.activate(self.isa, results);
        }
    }

    /// Computes some pixels of the output, from `first` on.
    fn project(&self, image: usize, first: usize, pixels: usize, results: &[f32]) {
        let (kernel, Layer { weights, bias }) = (self.kernel, self.project);
        let (isa, residual, limits) = (self.isa, self.residual, kernel.project.limits());
        let (out_plane, blocks) = (kernel.window.output_plane(), kernel.out_channels.div_ceil(LANES));
        let stage = Stage { isa, x: results, weights, bias, residual, limits, out: self.out, out_plane };
        // An image of the stripe's pixels only.
        let conv = kernel.product(1, InvertedBottleneck::pointwise([pixels, 1]), kernel.out_channels);
        for block in (0..blocks).step_by(PANEL_BLOCKS) {
            let place = ((image * blocks + block) * out_plane + first) * LANES;
            // SAFETY: the stripe's pixels of these blocks belong to this task; the residual has the layout of the
            // output.
            unsafe { conv.run_rows(&stage, block / PANEL_BLOCKS, 0, 0..pixels, place) };
            if limits.is_none() {
                for vector in 0..PANEL_BLOCKS.min(blocks - block) {
                    let start = (place + vector * out_plane * LANES) * size_of::<f32>();
                    // SAFETY: as above; parts of two blocks do not overlap.
                    let part = unsafe { self.out.part(start, pixels * LANES * size_of::<f32>()) };
                    kernel.project.activate(self.isa, bytemuck::cast_slice_mut(part));
                }
            }
        }
    }
}
