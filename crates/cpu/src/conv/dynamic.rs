//! [`DynamicConv`]: convolution of blocked images by run-time weights, which each run packs.
//!
//! Trained weights are state: their bytes change with every run, so nothing can pack them ahead of time. A run packs them
//! into the workspace, which costs a small part of the convolution, and then runs the kernel for packed weights.
//!
//! The data gradient of a convolution is a convolution of the gradient by the same weights, with input and output channels
//! exchanged and taps in reverse order. A stride above 1 divides the result into *phases*, the pixels at one distance from
//! a multiple of the stride. Each phase uses its own part of the taps, with stride 1:
//!
//! ```text
//!   stride 2, kernel 3, padding 1       phase 0: tap 1           . 0 1 0 1 0 1
//!                                       phase 1: taps 0 and 2
//! ```

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::conv::winograd::Winograd;
use crate::conv::{ConvAlgorithm, ConvBlocked, DepthwiseBlocked, ImageLayout, Window, check_groups};
use crate::gemm::epilogue::Epilogue;
use crate::gemm::weights::Weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input, input_or_in_place, product};
use crate::simd::StorageType;
use crate::simd::vector::LANES;
use crate::threads::Pool;

/// The kernel that convolves once the weights are packed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PackedConv {
    /// The sum of products.
    Direct(ConvBlocked),
    /// Winograd's algorithm.
    Winograd(Winograd),
    /// Each channel with its own kernel.
    Depthwise(DepthwiseBlocked),
}

/// The order of weights that a run packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightOrder {
    /// `[out_channels, in_channels / groups, ..kernel]`.
    Forward,
    /// `[in_channels, out_channels / groups, ..kernel]` with taps in reverse order: the weights of the convolution whose
    /// data gradient this one is.
    Gradient,
}

/// A convolution by row-major weights. The other operands and the result are those of [`DynamicConv::conv`], except that a
/// bias has an element for each output channel. All `f32`.
///
/// Refuses: half precision and int8; parameters that [`DynamicConv::conv`] refuses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DynamicConv {
    /// The convolution by packed weights.
    pub conv: PackedConv,
    /// The order of the given weights.
    pub order: WeightOrder,
}

/// The data gradient of a strided convolution over blocked images: `dy: [batch, in_channels, ..window.output]` and weights
/// `[in_channels, out_channels / groups, ..kernel]` to `[batch, out_channels, ..window.input]`, both in blocks of sixteen
/// channels; then by the epilogue a bias (with an element for each lane of the result's blocks) and a residual. All `f32`.
/// A transposed convolution is the same.
///
/// Refuses: dilation, and a padding so large that taps begin outside of `dy`. Neighboring groups are joined
/// ([`groups_of_blocks`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvDataGradient {
    /// Images.
    pub batch: usize,
    /// Channels of `dy`; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of the result; a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that are convolved independently.
    pub groups: usize,
    /// Rows and columns of the convolution whose gradient this is: its output is our input.
    pub window: Window,
    /// Whether the weights were packed when the plan was written.
    pub weights: Weights,
    /// Applied to each result.
    pub epilogue: Epilogue,
}

/// Neighboring groups whose channels together fill blocks. The least number is a power of two, at most the size of a block.
/// They are computed as one, with zeros for the weights between them. `groups` must divide the channels.
pub fn groups_of_blocks(groups: usize, in_channels: usize, out_channels: usize) -> usize {
    let fills = |joined: &usize| {
        let fill = |channels: usize| (channels / groups % LANES * joined).is_multiple_of(LANES);
        fill(in_channels) && fill(out_channels)
    };
    if groups <= 1 { 1 } else { (1..=LANES).find(fills).unwrap_or(LANES) }
}

/// Row-major weights and the distances from one to the next, so that one loop packs every order of them.
#[derive(Clone, Copy)]
pub(crate) struct WeightView<'a> {
    pub(crate) items: &'a [f32],
    /// Given groups in a packed one, and the input and output channels of each.
    pub(crate) joined: usize,
    pub(crate) channels: [usize; 2],
    /// Elements from one group, output channel and input channel to the next.
    pub(crate) group: usize,
    pub(crate) out: usize,
    pub(crate) channel: usize,
    /// The element of the first tap of the first channels, and elements to the next row and column of taps.
    pub(crate) first: usize,
    pub(crate) row: isize,
    pub(crate) column: isize,
}

impl<'a> WeightView<'a> {
    /// The weights of a convolution in groups of these input and output channels; packing joins some.
    pub(crate) fn new(
        items: &'a [f32],
        order: WeightOrder,
        joined: usize,
        channels: [usize; 2],
        kernel: [usize; 2],
    ) -> Self {
        let ([ins, outs], taps) = (channels, kernel[0] * kernel[1]);
        let (group, row) = (ins * outs * taps, kernel[1] as isize);
        match order {
            WeightOrder::Forward => {
                WeightView { items, joined, channels, group, out: ins * taps, channel: taps, first: 0, row, column: 1 }
            }
            WeightOrder::Gradient => {
                let (out, channel, first) = (taps, outs * taps, taps - 1);
                WeightView { items, joined, channels, group, out, channel, first, row: -row, column: -1 }
            }
        }
    }

    /// Where the weights of two channels of a packed group are; `None` for channels of different given groups, whose weights
    /// are zeros.
    #[inline(always)]
    pub(crate) fn pair(&self, group: usize, out: usize, channel: usize) -> Option<usize> {
        if self.joined == 1 {
            return Some(group * self.group + out * self.out + channel * self.channel);
        }
        let [ins, outs] = self.channels;
        let group = group * self.joined + out / outs;
        let at = group * self.group + out % outs * self.out + channel % ins * self.channel;
        (out / outs == channel / ins).then_some(at)
    }

    /// The first of the taps of two channels and whether they follow in reverse, if vectors of neighbors have them.
    pub(crate) fn neighboring_taps(&self, kernel: [usize; 2]) -> Option<(usize, bool)> {
        let last = kernel[0] * kernel[1] - 1;
        let is_whole = self.row == self.column * kernel[1] as isize;
        match (self.column, self.first) {
            _ if last == 0 && (self.out == 1 || self.channel == 1) => Some((self.first, false)),
            (1, 0) if is_whole => Some((0, false)),
            (-1, first) if is_whole && first == last => Some((0, true)),
            _ => None,
        }
    }

    /// The element of a tap, from which those of other channels follow.
    #[inline(always)]
    pub(crate) fn tap(&self, group: usize, row: usize, column: usize) -> usize {
        let shift = row as isize * self.row + column as isize * self.column;
        (group * self.group + self.first).wrapping_add_signed(shift)
    }
}

impl PackedConv {
    fn window(&self) -> &Window {
        match self {
            PackedConv::Direct(conv) => &conv.window,
            PackedConv::Winograd(conv) => &conv.window,
            PackedConv::Depthwise(conv) => &conv.window,
        }
    }

    fn epilogue(&self) -> &Epilogue {
        match self {
            PackedConv::Direct(conv) => &conv.epilogue,
            PackedConv::Winograd(conv) => &conv.epilogue,
            PackedConv::Depthwise(conv) => &conv.epilogue,
        }
    }

    /// Groups, and the input and output channels of each.
    fn channels(&self) -> (usize, [usize; 2]) {
        match self {
            PackedConv::Direct(conv) => (conv.groups, conv.part_channels()),
            PackedConv::Winograd(conv) => (1, [conv.in_channels, conv.out_channels]),
            PackedConv::Depthwise(conv) => (conv.channels / conv.group[1], conv.group),
        }
    }

    /// Groups that are computed as one.
    fn joined(&self) -> usize {
        match self {
            PackedConv::Direct(conv) => conv.joined,
            PackedConv::Winograd(_) | PackedConv::Depthwise(_) => 1,
        }
    }

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        match self {
            PackedConv::Direct(conv) => conv.sizes(),
            PackedConv::Winograd(conv) => conv.sizes(),
            PackedConv::Depthwise(conv) => conv.sizes(),
        }
    }

    fn run(&self, args: Args, pool: &Pool) {
        match self {
            PackedConv::Direct(conv) => conv.run(args, pool),
            PackedConv::Winograd(conv) => conv.run(args, pool),
            PackedConv::Depthwise(conv) => conv.run(args, pool),
        }
    }
}

impl DynamicConv {
    /// Elements of the bias in the workspace.
    fn bias_elements(&self, sizes: &Sizes) -> u64 {
        if self.conv.epilogue().bias { sizes.inputs[2] / 4 } else { 0 }
    }

    /// Bytes of packed weights in the workspace.
    fn packed_bytes(&self, sizes: &Sizes) -> u64 {
        match &self.conv {
            PackedConv::Winograd(conv) => 4 * conv.packed_at_once() as u64,
            PackedConv::Direct(_) | PackedConv::Depthwise(_) => sizes.inputs[1],
        }
    }
}

impl KernelFn for DynamicConv {
    const NAME: &'static str = "dynamic_conv";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let is_f32 = match &self.conv {
            PackedConv::Direct(conv) => {
                [conv.operands, conv.result] == [StorageType::F32; 2]
                    && conv.algorithm == ConvAlgorithm::InPlace
                    && conv.weights.is_none()
            }
            PackedConv::Depthwise(conv) => [conv.stored, conv.result] == [StorageType::F32; 2],
            PackedConv::Winograd(_) => true,
        };
        if !is_f32 {
            return Err(InvalidKernel("run-time weights must be f32"));
        }
        let mut sizes = self.conv.sizes()?;
        let overflow = InvalidKernel("sizes must not overflow");
        let (groups, [ins, outs]) = self.conv.channels();
        let kernel = self.conv.window().kernel;
        let bytes = |extents: &[usize]| product(extents)?.checked_mul(4);
        let weights = bytes(&[groups, ins, outs, kernel[0], kernel[1]]).ok_or(overflow)?;
        let bias = bytes(&[groups, outs]).ok_or(overflow)?;
        let packed = self.packed_bytes(&sizes) + 4 * self.bias_elements(&sizes);
        sizes.inputs[1] = weights as u64;
        if self.conv.epilogue().bias {
            sizes.inputs[2] = bias as u64;
        }
        if sizes.outputs[0] != 0 {
            let workspace = sizes.workspace.checked_add(packed).filter(|&bytes| bytes <= isize::MAX as u64);
            sizes.workspace = workspace.ok_or(overflow)?;
        }
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        let epilogue = self.conv.epilogue();
        epilogue.residual && input == epilogue.residual_at()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let weights: &[f32] = input(&args, 1);
        let given: Option<&[f32]> = self.conv.epilogue().bias.then(|| input(&args, 2));
        let sizes = self.conv.sizes().expect("`sizes` refused parameters that contradict each other");
        let (packed, rest) = args.workspace.split_at_mut(self.packed_bytes(&sizes) as usize);
        let (bias, workspace) = rest.split_at_mut(4 * self.bias_elements(&sizes) as usize);
        let (_, channels) = self.conv.channels();
        let view = WeightView::new(weights, self.order, self.conv.joined(), channels, self.conv.window().kernel);
        let mut inputs: SmallVec<[Operand; 4]> = SmallVec::from_slice(args.inputs);
        if let Some(given) = given {
            let lanes: &mut [f32] = elements_mut(bias);
            lanes[..given.len()].copy_from_slice(given);
            lanes[given.len()..].fill(0.0);
            inputs[2] = Operand::Bytes(bias);
        }
        let cells: &mut [f32] = elements_mut(packed);
        match &self.conv {
            PackedConv::Direct(conv) => conv.pack_view(view, cells, pool),
            PackedConv::Depthwise(conv) => conv.pack_view(view, cells, pool),
            PackedConv::Winograd(conv) => {
                let mut args = Args { inputs: &inputs, outputs: args.outputs, workspace };
                return conv.run_packing(&mut args, view, cells, pool);
            }
        }
        inputs[1] = Operand::Bytes(packed);
        self.conv.run(Args { inputs: &inputs, outputs: args.outputs, workspace }, pool);
    }
}

/// A phase along one axis.
#[derive(Clone, Copy)]
struct Phase {
    /// Its first pixel in the result, and its number of pixels.
    start: usize,
    pixels: usize,
    /// The first of its taps, and their number.
    tap: usize,
    taps: usize,
    /// Padding in front of `dy`.
    pad: usize,
}

impl ConvDataGradient {
    /// The number of phases along an axis.
    fn phases(&self, axis: usize) -> usize {
        self.window.stride[axis].min(self.window.input[axis])
    }

    /// A phase along an axis; `None` if its taps begin outside of `dy`.
    fn phase(&self, axis: usize, start: usize) -> Option<Phase> {
        let Window { input, kernel, stride, pad, .. } = self.window;
        let (extent, stride, kernel, pad) = (input[axis], stride[axis], kernel[axis], pad[axis]);
        let (tap, shift) = ((start + pad) % stride, (start + pad) / stride);
        let taps = kernel.saturating_sub(tap).div_ceil(stride);
        let pad = if taps == 0 { Some(0) } else { (taps - 1).checked_sub(shift) };
        let pixels = (extent - start).div_ceil(stride);
        Some(Phase { start, pixels, tap, taps, pad: pad? })
    }

    /// The convolution of a phase.
    fn conv(&self, rows: Phase, columns: Phase) -> ConvBlocked {
        ConvBlocked {
            batch: self.batch,
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            groups: self.groups,
            joined: groups_of_blocks(self.groups, self.in_channels, self.out_channels),
            window: Window {
                input: self.window.output,
                output: [rows.pixels, columns.pixels],
                kernel: [rows.taps.max(1), columns.taps.max(1)],
                stride: [1, 1],
                dilation: [1, 1],
                pad: [rows.pad, columns.pad],
            },
            layout: ImageLayout::Blocked,
            algorithm: ConvAlgorithm::InPlace,
            operands: StorageType::F32,
            weights: None,
            zero_point: 0,
            result: StorageType::F32,
            epilogue: self.epilogue.clone(),
        }
    }

    /// Elements of the packed weights of a phase.
    fn packed(&self, [rows, columns]: [Phase; 2]) -> Option<usize> {
        if rows.taps * columns.taps == 0 { Some(0) } else { self.conv(rows, columns).weight_words() }
    }

    /// The phases of rows and columns; `None` if taps begin outside of `dy`.
    fn all_phases(&self) -> Option<SmallVec<[[Phase; 2]; 4]>> {
        self.each_phase().collect()
    }

    /// The same one by one, without memory for all of them: strides above 2 have many.
    fn each_phase(&self) -> impl Iterator<Item = Option<[Phase; 2]>> {
        let numbers = (0..self.phases(0)).flat_map(|row| (0..self.phases(1)).map(move |column| [row, column]));
        numbers.map(|[row, column]| Some([self.phase(0, row)?, self.phase(1, column)?]))
    }

    /// The convolutions of the phases that have taps.
    pub fn convolutions(&self) -> Vec<ConvBlocked> {
        let phases = self.all_phases().unwrap_or_default();
        phases.iter().filter(|[rows, columns]| 0 < rows.taps * columns.taps).map(|&[r, c]| self.conv(r, c)).collect()
    }

    /// Weights `[in_channels, out_channels / groups, ..kernel]` in the order in which the kernel reads them: phase by phase,
    /// each as [`ConvBlocked::pack`] has them.
    ///
    /// # Panics
    /// Another number of weights; parameters that `sizes` refuses.
    pub fn pack(&self, weights: &[f32]) -> Vec<f32> {
        let shape = [self.in_channels, self.out_channels / self.groups, self.window.taps()];
        assert_eq!(Some(weights.len()), product(&shape), "the weights must have the kernel's shape");
        let (mut packed, pool) = (Vec::new(), Pool::new(1));
        for [rows, columns] in self.all_phases().expect("taps must begin inside of `dy`") {
            let start = packed.len();
            packed.resize(start + self.packed([rows, columns]).expect("the weights must have a size"), 0.0);
            self.pack_phase([rows, columns], weights, &mut packed[start..], &pool);
        }
        packed
    }

    /// Packs the weights of a phase.
    fn pack_phase(&self, [rows, columns]: [Phase; 2], weights: &[f32], cells: &mut [f32], pool: &Pool) {
        if rows.taps * columns.taps == 0 {
            return;
        }
        let channels = [self.in_channels / self.groups, self.out_channels / self.groups];
        let ([height, width], [down, right]) = (self.window.kernel, self.window.stride);
        let conv = self.conv(rows, columns);
        let last = |phase: Phase, stride: usize| phase.tap + (phase.taps - 1) * stride;
        assert!(last(rows, down) < height && last(columns, right) < width, "a phase's taps are in the kernel");
        let view = WeightView {
            first: last(rows, down) * width + last(columns, right),
            row: -((down * width) as isize),
            column: -(right as isize),
            ..WeightView::new(weights, WeightOrder::Gradient, conv.joined, channels, self.window.kernel)
        };
        conv.pack_view(view, cells, pool);
    }
}

impl KernelFn for ConvDataGradient {
    const NAME: &'static str = "conv_data_gradient";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let ConvDataGradient { batch, in_channels, out_channels, groups, window, weights: _, epilogue } = self;
        window.check()?;
        epilogue.check_unscaled()?;
        check_groups(*groups, *in_channels, *out_channels)?;
        if window.dilation != [1, 1] {
            return Err(InvalidKernel("`dilation` must be 1"));
        }
        if window.stride.iter().any(|&stride| 64 < stride) {
            return Err(InvalidKernel("the stride must be at most 64"));
        }
        let outside = InvalidKernel("taps must not begin outside of `dy`");
        let overflow = InvalidKernel("sizes must not overflow");
        let (mut most, mut all) = (0, 0usize);
        for [rows, columns] in self.all_phases().ok_or(outside)? {
            self.conv(rows, columns).sizes()?;
            let packed = self.packed([rows, columns]).ok_or(overflow)?;
            most = most.max(packed);
            all = all.checked_add(packed).ok_or(overflow)?;
        }
        if self.phases(0) * self.phases(1) == 0 {
            // An empty result still has channels that fit their groups.
            let one = Phase { start: 0, pixels: 1, tap: 0, taps: 1, pad: 0 };
            self.conv(one, one).sizes()?;
        }
        let lanes = |channels: usize| channels.checked_next_multiple_of(LANES);
        let (ins, outs) = lanes(*in_channels).zip(lanes(*out_channels)).ok_or(overflow)?;
        let dy = product(&[*batch, ins, window.output[0], window.output[1]]);
        let plain = product(&[*in_channels, out_channels / groups, window.kernel[0], window.kernel[1]]);
        let output = product(&[*batch, outs, window.input[0], window.input[1]]);
        let (weights, workspace) = match self.weights {
            Weights::Packed => (Some(all), 0),
            Weights::Dynamic => (plain, most),
        };
        let mut inputs: SmallVec<[Option<usize>; 4]> = SmallVec::from_slice(&[dy, weights]);
        inputs.extend(epilogue.operands(outs, output));
        Sizes::with_workspace(&inputs, output, Some(workspace), 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // The residual's element is read before the result takes its place.
        self.epilogue.residual && input == self.epilogue.residual_at()
    }

    fn run(&self, args: Args, pool: &Pool) {
        let dy: &[f32] = input(&args, 0);
        let weights: &[f32] = input(&args, 1);
        let bias: Option<&[f32]> = self.epilogue.bias.then(|| input(&args, self.epilogue.bias_at()));
        let residual = self.epilogue.residual.then(|| input_or_in_place(&args, self.epilogue.residual_at()));
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let workspace: &mut [f32] = elements_mut(args.workspace);
        let [down, right] = self.window.stride;
        let mut rest = weights;
        for phases in self.each_phase() {
            let [row, column] = phases.expect("`sizes` found them");
            let conv = self.conv(row, column);
            let taps = row.taps * column.taps;
            let first = row.start * self.window.input[1] + column.start;
            let grid =
                OutputGrid { first, row: down * self.window.input[1], column: right, plane: self.window.input_plane() };
            if taps == 0 {
                conv.fill_grid(grid, bias, residual, out, pool);
                continue;
            }
            let packed = self.packed([row, column]).expect("`sizes` computed it");
            let cells = match self.weights {
                Weights::Packed => rest.split_off(..packed).expect("`sizes` states all weights"),
                Weights::Dynamic => {
                    let cells = &mut workspace[..packed];
                    self.pack_phase([row, column], weights, cells, pool);
                    &*cells
                }
            };
            conv.run_on_grid(dy, cells, grid, bias, residual, out, pool);
        }
    }
}

/// Where the outputs of a convolution are in planes that have more pixels, in pixels.
#[derive(Clone, Copy)]
pub(crate) struct OutputGrid {
    /// The first output.
    pub(crate) first: usize,
    /// From one row to the next, and from one output of a row to the next.
    pub(crate) row: usize,
    pub(crate) column: usize,
    /// Pixels of a plane.
    pub(crate) plane: usize,
}
