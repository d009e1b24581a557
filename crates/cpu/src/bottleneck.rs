//! [`InvertedBottleneck`]: a product over channels, a depthwise convolution, another product, in one pass over bands.
//!
//! ```text
//!    x  ──► expand 1x1 ──► depthwise ──► project 1x1 ──► out        a band: some rows of one picture
//!           32 channels    all channels
//!           at a time      of a band
//!           ── scratch of a task: stays in its second-level cache ──
//! ```
//!
//! The wide values between the narrow ones are never written to memory that another core reads. Rows at the border of two
//! bands are expanded for both. A band belongs to one of a fixed number of slots, each with its own scratch, so the scratch
//! does not depend on the number of threads; neither does a bit of the result.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blocked::{Pixel, padded};
use crate::depthwise_blocked::Rows;
use crate::epilogue::Epilogue;
use crate::kernel::{Args, KernelFn, Misfit, Sizes, elements_mut, input, input_or_in_place, product};
use crate::shared::SharedMut;
use crate::tile::{self, Again, Ahead, Loop, Nest, ROWS, Row, Start, Tile};
use crate::vector::LANES;
use crate::{ConvBlocked, DepthwiseBlocked, Isa, Pool, Stored, Window};

/// Blocks of channels that a tile has at most.
const PANEL: usize = 2;

/// Blocked `x: [batch, ceil(in_channels / 16), rows, columns, 16]` through, where there is an `expand`, a product over
/// channels to `channels`; a depthwise convolution; and a product over channels to `out_channels`, blocked. Operands: `x`,
/// then for each of the three its packed weights and, by its epilogue, its bias; the residual of `project` last. `f32`.
///
/// Refuses: a residual of another than `project`; bands of no row; `in_channels` other than `channels` without `expand`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvertedBottleneck {
    /// Pictures.
    pub batch: usize,
    /// Channels of `x`.
    pub in_channels: usize,
    /// Channels of the depthwise convolution.
    pub channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Rows and columns of the depthwise convolution.
    pub window: Window,
    /// What happens to each result of the product in front, where there is one.
    pub expand: Option<Epilogue>,
    /// What happens to each result of the depthwise convolution.
    pub depthwise: Epilogue,
    /// What happens to each result of the product behind.
    pub project: Epilogue,
    /// Rows of the output in a band.
    pub band: usize,
}

impl InvertedBottleneck {
    /// Bands in work at once at most, each with scratch of its own.
    pub const SLOTS: usize = 8;

    /// Bands in work at once.
    pub fn slots(&self) -> usize {
        Self::SLOTS.min(self.bands())
    }

    /// The product in front as a kernel of its own, which packs its weights.
    pub fn expand_kernel(&self) -> Option<ConvBlocked> {
        let plane = self.window.input;
        self.expand.as_ref().map(|epilogue| self.pointwise(self.in_channels, self.channels, plane, epilogue))
    }

    /// The depthwise convolution as a kernel of its own, which packs its weights.
    pub fn depthwise_kernel(&self) -> DepthwiseBlocked {
        let InvertedBottleneck { batch, channels, window, .. } = *self;
        DepthwiseBlocked {
            batch,
            channels,
            window,
            stored: Stored::F32,
            zero: 0,
            result: Stored::F32,
            epilogue: self.depthwise.clone(),
        }
    }

    /// The product behind as a kernel of its own, which packs its weights.
    pub fn project_kernel(&self) -> ConvBlocked {
        self.pointwise(self.channels, self.out_channels, self.window.output, &self.project)
    }

    fn pointwise(&self, ins: usize, outs: usize, plane: [usize; 2], epilogue: &Epilogue) -> ConvBlocked {
        ConvBlocked {
            batch: self.batch,
            in_channels: ins,
            out_channels: outs,
            groups: 1,
            window: Window {
                input: plane,
                output: plane,
                kernel: [1, 1],
                stride: [1, 1],
                dilation: [1, 1],
                pad: [0, 0],
            },
            input_blocked: true,
            gathered: false,
            factors: Stored::F32,
            zero: 0,
            result: Stored::F32,
            epilogue: epilogue.clone(),
        }
    }

    fn bands(&self) -> usize {
        self.batch * self.window.output[0].div_ceil(self.band.max(1))
    }

    /// Elements of a slot: the depthwise results of a band, then the rows of a panel that they are made from.
    fn slot(&self) -> Option<[usize; 2]> {
        let Window { input, output, kernel, stride, dilation, .. } = self.window;
        let rows = self.band.min(output[0]);
        let results = product(&[padded(self.channels)?, rows, output[1]])?;
        let reach = rows.saturating_sub(1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1;
        let expanded = product(&[PANEL * LANES, reach.min(input[0]), input[1]])?;
        Some([results, if self.expand.is_some() { expanded } else { 0 }])
    }

    /// The rows of the picture that rows of the output are made from.
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

    fn sizes(&self) -> Result<Sizes, Misfit> {
        for epilogue in self.expand.iter().chain([&self.depthwise, &self.project]) {
            epilogue.check_unscaled()?;
        }
        self.window.check()?;
        if self.depthwise.residual || self.expand.as_ref().is_some_and(|expand| expand.residual) {
            return Err(Misfit("only the last product has a residual"));
        }
        if self.band == 0 {
            return Err(Misfit("a band has rows"));
        }
        if self.expand.is_none() && self.in_channels != self.channels {
            return Err(Misfit("channels change without a product"));
        }
        let overflow = Misfit("its sizes overflow");
        let [ins, channels, outs] = [self.in_channels, self.channels, self.out_channels].map(padded);
        let (ins, channels, outs) = (ins.ok_or(overflow)?, channels.ok_or(overflow)?, outs.ok_or(overflow)?);
        let Window { input, output, kernel, .. } = self.window;
        let out = product(&[self.batch, outs, output[0], output[1]]);
        let mut inputs = vec![product(&[self.batch, ins, input[0], input[1]])];
        if let Some(expand) = &self.expand {
            inputs.push(product(&[channels, self.in_channels]));
            inputs.extend(expand.operands(channels, None));
        }
        inputs.push(product(&[channels, kernel[0], kernel[1]]));
        inputs.extend(self.depthwise.operands(channels, None));
        inputs.push(product(&[outs, self.channels]));
        inputs.extend(self.project.operands(outs, out));
        let slots = product(&[self.batch, output[0].div_ceil(self.band)]).map(|bands| bands.min(Self::SLOTS));
        let slot = self.slot().and_then(|[results, expanded]| results.checked_add(expanded));
        let scratch = slots.zip(slot).and_then(|(slots, slot)| slots.checked_mul(slot));
        Sizes::with_workspace(&inputs, out, scratch, 4)
    }

    fn may_share(&self, input: usize) -> bool {
        let operands = |epilogue: &Epilogue| 1 + usize::from(epilogue.bias);
        let before = 1 + self.expand.as_ref().map_or(0, operands) + operands(&self.depthwise) + operands(&self.project);
        // The residual's element is read before the result takes its place.
        self.project.residual && input == before
    }

    fn run(&self, args: Args, pool: &Pool) {
        let mut next = 1;
        let mut layer = |bias: bool| {
            let weights: &[f32] = input(&args, next);
            let bias: Option<&[f32]> = bias.then(|| input(&args, next + 1));
            next += 1 + usize::from(bias.is_some());
            Layer { weights, bias }
        };
        let expand = self.expand.as_ref().map(|epilogue| layer(epilogue.bias));
        let (depthwise, project) = (layer(self.depthwise.bias), layer(self.project.bias));
        let residual = self.project.residual.then(|| input_or_in_place(&args, args.inputs.len() - 1));
        let x: &[f32] = input(&args, 0);
        let Args { outputs, workspace, .. } = args;
        let out = SharedMut::new(elements_mut::<f32>(outputs[0]));
        let [results, expanded] = self.slot().expect("`sizes` accepted the kernel");
        let slots = self.slots();
        let scratch = SharedMut::new(elements_mut::<f32>(workspace));
        let job = Job { kernel: self, isa: pool.isa(), x, expand, depthwise, project, residual, out };
        pool.run(slots, &|slot| {
            // SAFETY: each slot has its own part.
            let scratch = unsafe { scratch.part(slot * (results + expanded), results + expanded) };
            let (results, expanded) = scratch.split_at_mut(results);
            let mut used = [0, 0];
            for band in (slot..self.bands()).step_by(slots) {
                let [a, b] = job.run(band, results, expanded);
                used = [used[0].max(a), used[1].max(b)];
            }
            // Bands at the end of a picture may be lower than others.
            results[used[0]..].fill(0.0);
            expanded[used[1]..].fill(0.0);
        });
    }
}

/// The operands of one of the three.
#[derive(Clone, Copy)]
struct Layer<'a> {
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl Layer<'_> {
    fn start(&self, block: usize) -> Start {
        self.bias.map_or(Start::Zero, |bias| Start::Bias(bias[block * LANES..].as_ptr()))
    }
}

/// What all bands of a run know. The slices have the sizes that `sizes` states.
struct Job<'a> {
    kernel: &'a InvertedBottleneck,
    isa: Isa,
    x: &'a [f32],
    expand: Option<Layer<'a>>,
    depthwise: Layer<'a>,
    project: Layer<'a>,
    /// `Some(None)`: the output holds the residual.
    residual: Option<Option<&'a [f32]>>,
    out: SharedMut<'a, f32>,
}

impl Job<'_> {
    /// Computes a band and says how many elements of both parts of its scratch it used.
    fn run(&self, band: usize, results: &mut [f32], expanded: &mut [f32]) -> [usize; 2] {
        let kernel = self.kernel;
        let Window { input: [_, width], output: [height, columns], .. } = kernel.window;
        let (per_image, blocks) = (height.div_ceil(kernel.band), kernel.channels.div_ceil(LANES));
        let (image, first) = (band / per_image, band % per_image * kernel.band);
        let rows = first..height.min(first + kernel.band);
        let read = kernel.rows_read(&rows);
        let (pixels, pixels_read) = (rows.len() * columns, read.len() * width);
        let results = &mut results[..blocks * LANES * pixels];
        for block in (0..blocks).step_by(PANEL) {
            let panel = block..blocks.min(block + PANEL);
            if self.expand.is_some() {
                self.expand(image, &panel, read.start * width, &mut expanded[..panel.len() * LANES * pixels_read]);
            }
            for block in panel.clone() {
                let x: &[f32] = match self.expand {
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
        [results.len(), if self.expand.is_some() { blocks.min(PANEL) * LANES * pixels_read } else { 0 }]
    }

    /// A panel of channels of some pixels of the picture, from `first` on.
    fn expand(&self, image: usize, panel: &Range<usize>, first: usize, expanded: &mut [f32]) {
        let (kernel, layer) = (self.kernel, self.expand.expect("there is a product in front"));
        let epilogue = kernel.expand.as_ref().expect("there is a product in front");
        let plane = kernel.window.input_plane();
        let limits = epilogue.limits();
        let pixels = expanded.len() / (panel.len() * LANES);
        let product = Product {
            x: self.x.as_ptr().wrapping_add((image * kernel.in_channels.div_ceil(LANES) * plane + first) * LANES),
            x_block: plane * LANES,
            channels: kernel.in_channels,
            weights: layer.weights[panel.start * LANES * kernel.in_channels..].as_ptr(),
            start: layer.start(panel.start),
            vectors: panel.len(),
            out: expanded.as_mut_ptr(),
            out_block: pixels * LANES,
            residual: None,
            limits,
        };
        // SAFETY: the pixels are some of the picture's, the weights are the panel's, `expanded` has room for both blocks.
        unsafe { product.run(self.isa, pixels) };
        if limits.is_none() {
            epilogue.activate(self.isa, expanded);
        }
    }

    /// Rows of one block's depthwise results; `x` is where its plane starts or would start.
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
            stored: Stored::F32,
            zero: 0,
            result: Stored::F32,
            x: x.cast(),
            weights: layer.weights[block * taps * LANES..][..taps * LANES].as_ptr().cast(),
            scale: [1.0; LANES],
            bias,
            residual: None,
            limits: limits.unwrap_or(Epilogue::UNLIMITED),
            functions: &[],
            rows,
            out: results.as_mut_ptr().cast(),
        };
        // SAFETY: behind `x` are the rows that the window reaches, the kernel is the block's, the results have room for
        // the rows and are this task's alone.
        unsafe { rows.run(self.isa) };
        if limits.is_none() {
            kernel.depthwise.activate(self.isa, results);
        }
    }

    /// Some pixels of the output, from `first` on.
    fn project(&self, image: usize, first: usize, pixels: usize, results: &[f32]) {
        let (kernel, layer) = (self.kernel, self.project);
        let (plane, blocks) = (kernel.window.output_plane(), kernel.out_channels.div_ceil(LANES));
        let limits = kernel.project.limits();
        for block in (0..blocks).step_by(PANEL) {
            let vectors = PANEL.min(blocks - block);
            let place = ((image * blocks + block) * plane + first) * LANES;
            // SAFETY: the band's pixels of these blocks are this task's alone; parts of two blocks do not overlap.
            let part = |vector: usize| unsafe { self.out.part(place + vector * plane * LANES, pixels * LANES) };
            let out = self.out.start().wrapping_add(place);
            let product = Product {
                x: results.as_ptr(),
                x_block: pixels * LANES,
                channels: kernel.channels,
                weights: layer.weights[block * LANES * kernel.channels..].as_ptr(),
                start: layer.start(block),
                vectors,
                out,
                out_block: plane * LANES,
                residual: self
                    .residual
                    .map(|residual| residual.map_or(out.cast_const(), |items| items[place..].as_ptr())),
                limits,
            };
            // SAFETY: the results have the pixels of all channels, the weights are the panel's, and out and residual have
            // these pixels in each of its blocks.
            unsafe { product.run(self.isa, pixels) };
            if limits.is_none() {
                (0..vectors).for_each(|vector| kernel.project.activate(self.isa, part(vector)));
            }
        }
    }
}

/// A product of neighbouring pixels with a panel of weights.
struct Product {
    x: *const f32,
    /// Elements from a block of channels to the next.
    x_block: usize,
    channels: usize,
    weights: *const f32,
    start: Start,
    vectors: usize,
    out: *mut f32,
    out_block: usize,
    residual: Option<*const f32>,
    limits: Option<[f32; 2]>,
}

impl Product {
    /// Computes so many pixels.
    ///
    /// # Safety
    /// The processor has the family. Pixels of all channels, the panel's weights, its start and the residual can be read;
    /// the output's pixels can be written, and nobody else uses them meanwhile.
    unsafe fn run(&self, isa: Isa, pixels: usize) {
        let (full, rest) = (self.channels / LANES, self.channels % LANES);
        let width = self.vectors * LANES;
        let blocks = Loop { turns: full, x: self.x_block, weights: LANES * width };
        let nests = [
            Nest { x: 0, weights: 0, loops: [Loop::ONCE, Loop::ONCE, blocks], depth: LANES },
            Nest { x: full * self.x_block, weights: full * LANES * width, loops: [Loop::ONCE; 3], depth: rest },
        ];
        let rows: [Row; ROWS] = std::array::from_fn(|ix| Row { x: ix * LANES, out: ix * LANES });
        let mut at = 0;
        for (height, turns) in tile::heights(pixels, tile::rows_max(isa)) {
            let first = at;
            at += height * turns;
            if height * turns == 0 {
                continue;
            }
            let tile = Tile {
                factors: Stored::F32,
                x: self.x.wrapping_add(first * LANES).cast(),
                weights: self.weights.cast(),
                weight_stride: self.vectors * LANES,
                result: Stored::F32,
                out: self.out.wrapping_add(first * LANES).cast(),
                rows: &rows[..height],
                vectors: self.vectors,
                vector_stride: self.out_block,
                nests: &nests[..if rest == 0 { 1 } else { 2 }],
                start: self.start,
                residual: self.residual.map(|residual| residual.wrapping_add(first * LANES).cast()),
                limits: self.limits,
                ahead: Ahead::NOTHING,
                again: Again { turns, x: height * LANES, weights: 0, out: height * LANES },
            };
            // SAFETY: the caller's promise; pads of the last block are not read.
            unsafe { tile::multiply(isa, &tile) };
        }
    }
}
