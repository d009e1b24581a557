//! Kernels for values with channels in blocks of sixteen.

use cpu::{
    ConvAlgorithm, ImageLayout, PackedConv, Packing, Pool2dKind, StorageType, WeightOrder, Weights, Window,
    groups_of_blocks,
};
use ir::ops::{Conv, ConvTranspose, Epilogue, Pool, PoolKind, Reduce, ReduceKind};
use ir::{Call, CallInput, Candidate, Graph, Node, NodeId, Op, TensorType, UNLIMITED, ValueId, Work};
use types::pointwise::QuantizedSum;
use types::{Bytes, DType, Layout, Shape};

use super::CpuTarget;
use super::channel_moves::{ChannelMove, moved_channels};
use super::select::{around, call, epilogue, packed, suffix};
use super::training::{is_channel_sum, works_on_blocks, writes_blocked};
use super::windows::{label, rows_columns, window};
use crate::NodeView;

/// Channels of a block: the lanes of a vector.
pub(super) const BLOCK: usize = 16;
/// The layout of these kernels.
pub(super) const LAYOUT: Layout = Layout::ChannelsBlocked(BLOCK as u16);
/// Images with at most this many channels are row-major operands of the first convolution.
const STEM_CHANNELS: usize = 4;
/// Padded images with fewer pixels may be copied with their padding: about a quarter of the outputs of a 3 x 3 kernel, or more,
/// use fewer taps than the others.
const PACKED_PLANE_MAX: usize = 16 * 16;

pub(super) fn relayout(node: &NodeView) -> Result<Call, String> {
    let shape = &node.graph.ty(node.node.inputs[0]).shape;
    let Some(stored) =
        StorageType::of(node.output().dtype).filter(|_| node.is_blocked() != (node.input_layout(0) == LAYOUT))
    else {
        return Err("it is not between row-major and blocked floats".into());
    };
    let kernel = reorder(shape, stored, node.is_blocked());
    let to = if node.is_blocked() { "to blocks" } else { "from blocks" };
    call(kernel, format!("{shape} {to}"), node.values())
}

/// The kernel that converts a value between the layouts.
pub(super) fn reorder(shape: &Shape, stored: StorageType, to_blocked: bool) -> cpu::Reorder {
    let (batch, channels, plane) = around(shape, 1);
    cpu::Reorder { batch, channels, plane, to_blocked, stored }
}

/// The kernel of a convolution over blocked channels.
#[derive(Clone, Debug)]
pub(super) enum ConvKernel {
    Depthwise(cpu::DepthwiseBlocked),
    Direct(cpu::ConvBlocked),
    Winograd(cpu::Winograd),
}

/// The kernels of a convolution. Workspaces stay within a limit if they can.
pub(super) fn conv_kernels(
    graph: &Graph,
    node: &Node,
    conv: &Conv,
    workspace: Bytes,
    target: &CpuTarget,
) -> Result<Vec<ConvKernel>, String> {
    let exact = match are_constants(graph, node, &conv.epilogue) {
        Ok(()) => kernel_of_known(graph, node, conv)?,
        Err(reason) if has_dynamic_kernel(graph, node, conv) => {
            kernel_of_known(graph, node, conv).map_err(|_| reason)?
        }
        Err(reason) => return Err(reason),
    };
    let weights = target.weights_of(graph, node);
    let direct = match exact {
        // Winograd's forms have several times the weights.
        ConvKernel::Direct(direct) if weights.is_some() => {
            return Ok(vec![ConvKernel::Direct(cpu::ConvBlocked { weights, ..direct })]);
        }
        ConvKernel::Direct(direct) if direct.operands != StorageType::F32 => {
            return Ok(vec![ConvKernel::Direct(gathered(direct, workspace))]);
        }
        ConvKernel::Direct(direct) if !target.exact => direct,
        kernel => return Ok(vec![kernel]),
    };
    let is_dynamic = graph.value(node.inputs[1]).tensor().is_none();
    Ok(with_alternatives(&direct, is_dynamic, workspace))
}

/// A convolution whose groups have so few channels that their members are taken one by one from blocks.
fn in_small_groups(direct: &cpu::ConvBlocked) -> Option<ConvKernel> {
    let &cpu::ConvBlocked { batch, out_channels: channels, groups, window, layout, result, .. } = direct;
    let group = [direct.in_channels / groups, channels / groups];
    if groups == 1 || layout != ImageLayout::Blocked {
        return None;
    }
    let (stored, epilogue) = (StorageType::F32, direct.epilogue.clone());
    let kernel = cpu::DepthwiseBlocked { batch, channels, group, window, stored, zero_point: 0, result, epilogue };
    cpu::Kernel::from(kernel.clone()).sizes().is_ok().then_some(ConvKernel::Depthwise(kernel))
}

/// A direct convolution and the other ways to compute it, those by Winograd's algorithm also in a quarter of their
/// workspace. Weights that are packed in each run are in the workspace too.
fn with_alternatives(direct: &cpu::ConvBlocked, is_dynamic: bool, workspace: Bytes) -> Vec<ConvKernel> {
    let of_tile = |tile: usize| {
        // Weights with zeros between groups are packed before a run only.
        if is_dynamic && 1 < direct.groups {
            return None;
        }
        let packed = if is_dynamic { 4 * winograd(direct, tile, UNLIMITED)?.packed_at_once() as u64 } else { 0 };
        winograd(direct, tile, Bytes(workspace.0.checked_sub(packed)?))
    };
    let in_a_quarter = |kernel: &cpu::Winograd| {
        let whole = cpu::Kernel::from(kernel.clone()).sizes().ok()?.workspace;
        let part = cpu::Winograd { workspace_max: (whole / 16) as usize, ..kernel.clone() };
        (cpu::Kernel::from(part.clone()).sizes().ok()?.workspace < whole).then_some(part)
    };
    let whole: Vec<cpu::Winograd> = [2, 4, 6].into_iter().filter_map(of_tile).collect();
    let parts: Vec<cpu::Winograd> = whole.iter().filter_map(in_a_quarter).collect();
    let winograd = whole.into_iter().chain(parts).map(ConvKernel::Winograd);
    let packed = if is_dynamic { None } else { of_packed_images(direct, workspace) };
    let first = [ConvKernel::Direct(direct.clone())];
    first.into_iter().chain(packed).chain(winograd).chain(in_small_groups(direct)).collect()
}

/// A convolution of a packed copy of its images, if they are strided, row-major, or small and padded.
fn of_packed_images(direct: &cpu::ConvBlocked, workspace: Bytes) -> Option<ConvKernel> {
    let Window { stride, pad, output, .. } = direct.window;
    let is_small = pad != [0, 0] && cells(output) < PACKED_PLANE_MAX;
    if stride == [1, 1] && direct.layout == ImageLayout::Blocked && !is_small {
        return None;
    }
    let kernel = cpu::ConvBlocked { algorithm: ConvAlgorithm::Packed, ..direct.clone() };
    let sizes = cpu::Kernel::from(kernel.clone()).sizes().ok()?;
    (sizes.workspace <= workspace.0).then_some(ConvKernel::Direct(kernel))
}

/// The kernels to choose from for a convolution, the fastest first.
pub(super) fn conv_choices(
    graph: &Graph,
    node: &Node,
    conv: &Conv,
    workspace: Bytes,
    target: &CpuTarget,
) -> Result<Vec<ConvKernel>, String> {
    let is_dynamic = graph.value(node.inputs[1]).tensor().is_none();
    let kernels = conv_kernels(graph, node, conv, workspace, target)?;
    Ok(target.fastest_first(kernels, |kernel| kernel.clone().kernel(is_dynamic)))
}

/// The kernels of a transposed convolution, the fastest first. With run-time weights it is the data gradient of a convolution
/// in a training step.
pub(super) fn data_gradient_kernels(
    graph: &Graph,
    node: &Node,
    conv: &ConvTranspose,
    workspace: Bytes,
    target: &CpuTarget,
) -> Result<Vec<cpu::Kernel>, String> {
    let is_f32 = node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    let is_constant = graph.value(node.inputs[1]).tensor().is_some();
    if !is_f32 {
        return Err("its blocked kernel takes f32".into());
    }
    match is_constant {
        true => are_constants(graph, node, &conv.epilogue)?,
        false if conv.epilogue.operands() != 0 => {
            return Err("its blocked kernel for run-time weights has no bias and no residual".into());
        }
        false => {}
    }
    if is_constant && target.weights_of(graph, node).is_some() {
        return Err("its blocked kernel reads weights of f32 only".into());
    }
    let ty = |ix: usize| &graph.ty(node.inputs[ix]).shape;
    let (x, weight, out) = (ty(0), ty(1), &graph.ty(node.outputs[0]).shape);
    // That of the convolution: its input is our output.
    let forward = window(out, x, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (batch, in_channels, out_channels, groups) = (x[0], x[1], out[1], conv.groups);
    let epilogue = epilogue(&conv.epilogue);
    let is_depthwise = is_depthwise(groups, x, out);
    if is_constant && is_depthwise {
        return Err("its blocked kernel has no depthwise form".into());
    }
    let kernels: Vec<cpu::Kernel> = match forward.stride {
        _ if is_constant => {
            let (window, weights) = (forward, Weights::Packed);
            vec![cpu::ConvDataGradient { batch, in_channels, out_channels, groups, window, weights, epilogue }.into()]
        }
        [1, 1] => {
            let reach = |axis: usize| forward.dilation[axis] * (forward.kernel[axis] - 1);
            let pad = |axis: usize| reach(axis).checked_sub(forward.pad[axis]).ok_or("its padding exceeds its kernel");
            let window = Window { input: forward.output, output: forward.input, pad: [pad(0)?, pad(1)?], ..forward };
            let stored = StorageType::F32;
            let kernels = match is_depthwise {
                true => vec![ConvKernel::Depthwise(cpu::DepthwiseBlocked {
                    batch,
                    channels: groups,
                    group: [1, 1],
                    window,
                    stored,
                    zero_point: 0,
                    result: stored,
                    epilogue,
                })],
                false => {
                    let direct = cpu::ConvBlocked {
                        batch,
                        in_channels,
                        out_channels,
                        groups,
                        joined: groups_of_blocks(groups, in_channels, out_channels),
                        window,
                        layout: ImageLayout::Blocked,
                        algorithm: ConvAlgorithm::InPlace,
                        operands: stored,
                        weights: None,
                        zero_point: 0,
                        result: stored,
                        epilogue,
                    };
                    match target.exact {
                        true => vec![ConvKernel::Direct(direct)],
                        false => with_alternatives(&direct, true, workspace),
                    }
                }
            };
            let kernels = kernels.into_iter().map(|kernel| kernel.dynamic(WeightOrder::Gradient).into()).collect();
            target.fastest_first(kernels, |kernel: &cpu::Kernel| kernel.clone())
        }
        _ => {
            let window = forward;
            if is_depthwise {
                return match epilogue == cpu::Epilogue::default() {
                    true => Ok(vec![cpu::DepthwiseDataGradient { batch, channels: groups, window }.into()]),
                    false => Err("its strided depthwise kernel has no epilogue".into()),
                };
            }
            let weights = Weights::Dynamic;
            vec![cpu::ConvDataGradient { batch, in_channels, out_channels, groups, window, weights, epilogue }.into()]
        }
    };
    match kernels.first().map(cpu::Kernel::sizes) {
        Some(Err(misfit)) => Err(misfit.to_string()),
        _ => Ok(kernels),
    }
}

/// The calls of a data gradient.
pub(super) fn data_gradient_call(node: &NodeView, conv: &ConvTranspose, kernel: cpu::Kernel) -> Result<Call, String> {
    let (out, weight) = (&node.output().shape, &node.input(1).shape);
    let kernel_size = weight[2..].iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let stride = conv.stride.last().copied().unwrap_or(1);
    let mut inputs: Vec<CallInput> = (0..node.node.inputs.len()).map(CallInput::Value).collect();
    let name = match &kernel {
        cpu::Kernel::ConvDataGradient(kernel) if kernel.weights == Weights::Packed => {
            inputs[1] = packed(1, Packing::BlockedTransposedConvolution(kernel.clone()));
            if conv.epilogue.bias {
                inputs[2] = packed(2, Packing::Padded);
            }
            "transposed to"
        }
        _ => "data gradient",
    };
    let label = format!("{kernel_size}/{stride} {name} {out}{}", suffix(&conv.epilogue));
    call(kernel, label, inputs)
}

/// Multiplications of each element that is read, from which packing pays in half precision: between 256 and 288, measured
/// on convolutions of ResNet-50 and DenseNet-121 with AMX.
const GATHERED_USES: usize = 272;
/// The same for strided convolutions of several taps, whose images are large: their packed copies would be the peak of
/// ResNet-50.
const GATHERED_USES_STRIDED: usize = 512;
/// The same for int8, of which a block fills a quarter of a row of the matrix unit.
const GATHERED_USES_INT8: usize = 128;
/// The same for channels that do not fill their last block, which the matrix unit takes from packed pixels only.
const GATHERED_USES_REST: usize = 16;

/// The kernel of a half-precision or int8 convolution. It packs the input first if there are several channel blocks,
/// each pixel is used often enough, and the workspace suffices: sums are then contiguous. Row-major inputs are always
/// packed.
fn gathered(direct: cpu::ConvBlocked, scratch: Bytes) -> cpu::ConvBlocked {
    let kernel = cpu::ConvBlocked { algorithm: ConvAlgorithm::Packed, ..direct.clone() };
    let sizes = cpu::Kernel::from(kernel.clone()).sizes();
    let fits = sizes.is_ok_and(|sizes| sizes.workspace <= scratch.0);
    let is_strided = (0..2).any(|axis| 1 < direct.window.kernel[axis] && 1 < direct.window.stride[axis]);
    let least = match direct.operands {
        _ if !direct.in_channels.is_multiple_of(BLOCK) => GATHERED_USES_REST,
        StorageType::U8 => GATHERED_USES_INT8,
        _ if is_strided => GATHERED_USES_STRIDED,
        _ => GATHERED_USES,
    };
    let pays = fits && BLOCK < direct.in_channels && least <= uses(&direct);
    if pays || direct.layout == ImageLayout::RowMajor { kernel } else { direct }
}

/// The algorithm that reads half precision and int8 in a layout whatever the channels: row-major images must be packed.
fn required_algorithm(layout: ImageLayout) -> ConvAlgorithm {
    match layout {
        ImageLayout::RowMajor => ConvAlgorithm::Packed,
        ImageLayout::Blocked => ConvAlgorithm::InPlace,
    }
}

/// A convolution of `f32` operands with operands of another type. Row-major images must be packed, and all of their groups in
/// one, with zeros between them.
fn with_operands(operands: StorageType, direct: cpu::ConvBlocked) -> cpu::ConvBlocked {
    match direct.layout {
        ImageLayout::Blocked => cpu::ConvBlocked { operands, ..direct },
        ImageLayout::RowMajor => cpu::ConvBlocked { operands, groups: groups_of_packed(&direct), joined: 1, ..direct },
    }
}

/// The groups of a convolution of packed images: one with zeros between the groups, if these fill no blocks by themselves.
fn groups_of_packed(direct: &cpu::ConvBlocked) -> usize {
    let joined = groups_of_blocks(direct.groups, direct.in_channels, direct.out_channels);
    if direct.groups.is_multiple_of(joined) { direct.groups / joined } else { 1 }
}

/// How often a convolution uses each element that it reads of its input.
fn uses(conv: &cpu::ConvBlocked) -> usize {
    let Window { kernel, output, .. } = conv.window;
    conv.out_channels * cells(kernel) * cells(output) / cells(pixels_read(&conv.window)).max(1)
}

/// Rows and columns of the pixels that a window reads: along an axis with one tap, those at its stride.
fn pixels_read(window: &Window) -> [usize; 2] {
    std::array::from_fn(|axis| match window.kernel[axis] {
        1 => window.input[axis].min(window.output[axis]),
        _ => window.input[axis],
    })
}

fn cells(extents: [usize; 2]) -> usize {
    extents[0] * extents[1]
}

/// The kernel of a convolution that computes the sums of products. Its weights are constants.
fn exact_kernel(graph: &Graph, node: &Node, conv: &Conv) -> Result<ConvKernel, String> {
    are_constants(graph, node, &conv.epilogue)?;
    kernel_of_known(graph, node, conv)
}

/// Refuses a convolution whose weights, scale or bias are not constants, or whose residual is one.
fn are_constants(graph: &Graph, node: &Node, epilogue: &Epilogue) -> Result<(), String> {
    let known = |ix: usize| graph.value(node.inputs[ix]).tensor().is_some();
    let vectors = epilogue.operands() - usize::from(epilogue.residual);
    if !(1..2 + vectors).all(known) {
        return Err("its weight, scale or bias is not known before the run".into());
    }
    // Constants are row-major, and a residual must have the layout of the result.
    if epilogue.residual && known(node.inputs.len() - 1) {
        return Err("its residual is known before the run".into());
    }
    Ok(())
}

/// Whether weights of a convolution can be packed in each run: all `f32`, and no residual that is a constant.
fn has_dynamic_kernel(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let is_f32 = node.inputs.iter().chain(&node.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    let is_constant = |value: ValueId| graph.value(value).tensor().is_some();
    is_f32
        && !is_constant(node.inputs[1])
        && !(conv.epilogue.residual && is_constant(node.inputs[node.inputs.len() - 1]))
}

/// The same without requiring constants.
fn kernel_of_known(graph: &Graph, node: &Node, conv: &Conv) -> Result<ConvKernel, String> {
    let ty = |ix: usize| &graph.ty(node.inputs[ix]).shape;
    let (x, weight, out) = (ty(0), ty(1), &graph.ty(node.outputs[0]).shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let epilogue = epilogue(&conv.epilogue);
    let stored = |value: ValueId| StorageType::of(graph.ty(value).dtype).ok_or("it is not of floats");
    let (operands, result) = (stored(node.inputs[0])?, stored(node.outputs[0])?);
    if is_depthwise(conv.groups, x, out) {
        let (batch, channels, zero_point) = (x[0], x[1], conv.zero as u8);
        let group = [1, 1];
        let kernel =
            cpu::DepthwiseBlocked { batch, channels, group, window, stored: operands, zero_point, result, epilogue };
        return match cpu::Kernel::from(kernel.clone()).sizes() {
            Ok(_) => Ok(ConvKernel::Depthwise(kernel)),
            Err(misfit) => Err(misfit.to_string()),
        };
    }
    let layout = if reads_blocked(graph, node, 0) { ImageLayout::Blocked } else { ImageLayout::RowMajor };
    let (batch, in_channels, out_channels) = (x[0], x[1], out[1]);
    let direct = cpu::ConvBlocked {
        batch,
        in_channels,
        out_channels,
        groups: conv.groups,
        joined: groups_of_blocks(conv.groups, in_channels, out_channels),
        window,
        layout,
        algorithm: ConvAlgorithm::InPlace,
        operands,
        weights: None,
        zero_point: conv.zero as u8,
        result,
        epilogue,
    };
    // The kernel of packed images does not leave out the zeros between joined groups.
    let is_packed = operands != StorageType::F32 && layout == ImageLayout::RowMajor;
    Ok(ConvKernel::Direct(if is_packed { with_operands(operands, direct) } else { direct }))
}

/// Whether each channel of a convolution is convolved with a kernel of its own.
fn is_depthwise(groups: usize, x: &Shape, out: &Shape) -> bool {
    1 < groups && groups == x[1] && groups == out[1]
}

/// The most int8 terms whose sum cannot overflow an `i32`.
pub(super) const INT8_TERMS_MAX: usize = i32::MAX as usize / (255 * 128);

/// Whether a value is a constant, or is dequantized from constants.
fn will_be_known(graph: &Graph, value: ValueId) -> bool {
    let is_known = |value: ValueId| graph.value(value).tensor().is_some();
    is_known(value)
        || graph.value(value).producer().is_some_and(|producer| {
            let node = graph.node(producer);
            matches!(node.op, Op::Chain(_)) && node.inputs.iter().all(|&input| is_known(input))
        })
}

/// Whether there is an int8 kernel for a convolution. Its operands may still be floats.
pub(super) fn multiplies_int8(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let terms: usize = graph.ty(node.inputs[1]).shape[1..].iter().product();
    if INT8_TERMS_MAX < terms || !node.inputs[2..].iter().all(|&vector| will_be_known(graph, vector)) {
        return false;
    }
    match kernel_of_known(graph, node, conv) {
        Ok(ConvKernel::Direct(direct)) => {
            let epilogue = cpu::Epilogue { scale: true, ..direct.epilogue.clone() };
            let algorithm = required_algorithm(direct.layout);
            let kernel = with_operands(StorageType::U8, direct);
            let kernel = cpu::ConvBlocked { zero_point: 1, algorithm, epilogue, ..kernel };
            cpu::Kernel::from(kernel).sizes().is_ok()
        }
        Ok(ConvKernel::Depthwise(depthwise)) => {
            let epilogue = cpu::Epilogue { scale: true, ..depthwise.epilogue.clone() };
            cpu::Kernel::from(cpu::DepthwiseBlocked { stored: StorageType::U8, zero_point: 1, epilogue, ..depthwise })
                .sizes()
                .is_ok()
        }
        _ => false,
    }
}

/// Whether the kernel of a convolution can write int8.
pub(super) fn writes_int8(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let kernel: cpu::Kernel = match exact_kernel(graph, node, conv) {
        Ok(ConvKernel::Direct(direct)) => cpu::ConvBlocked { result: StorageType::U8, ..direct }.into(),
        Ok(ConvKernel::Depthwise(depthwise)) => cpu::DepthwiseBlocked { result: StorageType::U8, ..depthwise }.into(),
        _ => return false,
    };
    kernel.sizes().is_ok()
}

/// Whether the kernel of an int8 convolution can add an int8 residual.
pub(super) fn adds_int8(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let Ok(ConvKernel::Direct(direct)) = exact_kernel(graph, node, conv) else { return false };
    let sum = QuantizedSum { own: 1.0, residual: 1.0, shift: 0.0, limits: [0.0, 255.0] };
    let epilogue = cpu::Epilogue { residual: true, quantized_sum: Some(sum), ..direct.epilogue.clone() };
    let algorithm = required_algorithm(direct.layout);
    cpu::Kernel::from(cpu::ConvBlocked { algorithm, epilogue, ..direct }).sizes().is_ok()
}

/// The candidates of a convolution with `f32` values whose operands or result are in half precision.
pub(super) fn half_candidates(
    graph: &Graph,
    id: NodeId,
    conv: &Conv,
    half: StorageType,
    dtype: DType,
) -> Vec<Candidate> {
    let fits = |kernel: cpu::Kernel| kernel.sizes().is_ok();
    match exact_kernel(graph, graph.node(id), conv) {
        Ok(ConvKernel::Depthwise(kernel))
            if fits(cpu::DepthwiseBlocked { stored: half, result: half, ..kernel.clone() }.into()) =>
        {
            Candidate::in_half(graph, id, dtype)
        }
        Ok(ConvKernel::Direct(direct)) => {
            let to_half = cpu::ConvBlocked { result: half, ..direct };
            let algorithm = required_algorithm(to_half.layout);
            let of_halves = cpu::ConvBlocked { algorithm, ..with_operands(half, to_half.clone()) };
            // An input that is used rarely is not worth being rounded and packed first.
            let pays = algorithm == ConvAlgorithm::InPlace || GATHERED_USES <= uses(&to_half);
            match (pays && fits(of_halves.into()), fits(to_half.into())) {
                (true, _) => Candidate::with_half_operands(graph, id, dtype, &[0, 1]),
                (false, true) => Candidate::with_half_operands(graph, id, dtype, &[]),
                (false, false) => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// Whether there is a kernel for this pool in half precision or int8.
pub(super) fn has_pool_kernel(graph: &Graph, node: &Node, pool: &Pool) -> bool {
    let kernel = pool_kernel(graph.ty(node.inputs[0]), &graph.ty(node.outputs[0]).shape, pool);
    kernel.is_ok_and(|kernel| cpu::Kernel::from(kernel).sizes().is_ok())
}

/// Whether a reduction is over whole images, for which there is a pooling kernel.
pub(super) fn is_global_pool(graph: &Graph, node: &Node, reduce: &Reduce) -> bool {
    let x = &graph.ty(node.inputs[0]).shape;
    let all = reduce.axes.iter().copied().eq(2..x.rank()) && 2 < x.rank();
    all && matches!(reduce.kind, ReduceKind::Max | ReduceKind::Mean) && !x.contains(&0)
}

/// Winograd's algorithm, for 3 x 3 convolutions whose workspace suffices.
fn winograd(direct: &cpu::ConvBlocked, tile: usize, scratch: Bytes) -> Option<cpu::Winograd> {
    let cpu::ConvBlocked {
        batch,
        in_channels,
        out_channels,
        groups,
        joined,
        window,
        layout,
        algorithm: _,
        operands,
        weights: _,
        zero_point: _,
        result,
        epilogue,
    } = direct;
    let is_3x3 = (window.kernel, window.stride, window.dilation) == ([3, 3], [1, 1], [1, 1]);
    let is_f32 = [*operands, *result] == [StorageType::F32; 2];
    if !is_3x3 || *joined < *groups || *layout != ImageLayout::Blocked || !is_f32 || epilogue.scale {
        return None;
    }
    let kernel = cpu::Winograd {
        batch: *batch,
        in_channels: *in_channels,
        out_channels: *out_channels,
        window: *window,
        tile,
        epilogue: epilogue.clone(),
        workspace_max: cpu::Winograd::WORKSPACE_MAX.min((scratch.0 / 4) as usize),
    };
    let sizes = cpu::Kernel::from(kernel.clone()).sizes().ok()?;
    (sizes.workspace <= scratch.0).then_some(kernel)
}

impl ConvKernel {
    /// The kernel for constant weights, or for weights that each run packs.
    pub(super) fn kernel(self, is_dynamic: bool) -> cpu::Kernel {
        if is_dynamic {
            return self.dynamic(WeightOrder::Forward).into();
        }
        match self {
            ConvKernel::Depthwise(kernel) => kernel.into(),
            ConvKernel::Direct(kernel) => kernel.into(),
            ConvKernel::Winograd(kernel) => kernel.into(),
        }
    }

    fn window(&self) -> &Window {
        match self {
            ConvKernel::Depthwise(kernel) => &kernel.window,
            ConvKernel::Direct(kernel) => &kernel.window,
            ConvKernel::Winograd(kernel) => &kernel.window,
        }
    }

    /// The kernel for weights that each run packs.
    fn dynamic(self, order: WeightOrder) -> cpu::DynamicConv {
        cpu::DynamicConv { conv: self.packed(), order }
    }

    /// The kernel that reads packed weights.
    fn packed(&self) -> PackedConv {
        match self.clone() {
            ConvKernel::Depthwise(kernel) => PackedConv::Depthwise(kernel),
            ConvKernel::Direct(kernel) => PackedConv::Direct(kernel),
            ConvKernel::Winograd(kernel) => PackedConv::Winograd(kernel),
        }
    }
}

pub(super) fn conv_call(node: &NodeView, conv: &Conv, kernel: ConvKernel) -> Result<Call, String> {
    let out = &node.output().shape;
    if !node.is_constant(1) {
        let label = label(kernel.window(), out, &suffix(&conv.epilogue));
        let inputs = (0..node.node.inputs.len()).map(CallInput::Value).collect();
        return call(kernel.dynamic(WeightOrder::Forward), label, inputs);
    }
    let mut inputs: Vec<CallInput> = (0..node.node.inputs.len()).map(CallInput::Value).collect();
    let vectors = conv.epilogue.operands() - usize::from(conv.epilogue.residual);
    for (ix, input) in inputs.iter_mut().enumerate().skip(2).take(vectors) {
        *input = packed(ix, Packing::Padded);
    }
    let label = |window: &Window| label(window, out, &suffix(&conv.epilogue));
    let (groups, out_channels) = (conv.groups, out[1]);
    let together = match &kernel {
        ConvKernel::Depthwise(_) => 1,
        ConvKernel::Direct(kernel) => kernel.part_channels()[0] / (kernel.in_channels / groups).max(1),
        ConvKernel::Winograd(_) => groups,
    };
    let label = label(kernel.window());
    let packed_kernel = kernel.packed();
    inputs[1] = packed(1, Packing::Convolution { kernel: packed_kernel, groups, together, out_channels });
    call(kernel.kernel(false), label, inputs)
}

pub(super) fn pool_kernel(x: &TensorType, out: &Shape, pool: &Pool) -> Result<cpu::PoolBlocked, String> {
    let stored = StorageType::of(x.dtype).ok_or("it is not of floats")?;
    let x = &x.shape;
    let window = window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    let kind = match pool.kind {
        PoolKind::Max => Pool2dKind::Max,
        PoolKind::Mean => Pool2dKind::Mean,
        PoolKind::MeanWithPadding => Pool2dKind::MeanWithPadding { pad_end: rows_columns(&back, 0)? },
    };
    Ok(cpu::PoolBlocked { kind, batch: x[0], channels: x[1], window, stored })
}

pub(super) fn pool(node: &NodeView, pool: &Pool) -> Result<Call, String> {
    let (x, out) = (node.graph.ty(node.node.inputs[0]), &node.output().shape);
    let kernel = pool_kernel(x, out, pool)?;
    let name = if pool.kind == PoolKind::Max { " max" } else { " mean" };
    let label = label(&kernel.window, out, name);
    call(kernel, label, node.values())
}

/// A reduction over whole images, as pooling with a window of the same size.
pub(super) fn global_pool(node: &NodeView, reduce: &Reduce) -> Option<Result<Call, String>> {
    let kind = match reduce.kind {
        ReduceKind::Max => Pool2dKind::Max,
        ReduceKind::Mean => Pool2dKind::Mean,
        _ => return None,
    };
    let x = &node.graph.ty(node.node.inputs[0]).shape;
    if !node.is_blocked() || !is_global_pool(node.graph, node.node, reduce) {
        return None;
    }
    let cells = [1, x[2..].iter().product()];
    let ones = [1, 1];
    let window = Window { input: cells, output: ones, kernel: cells, stride: ones, dilation: ones, pad: [0, 0] };
    let kernel =
        cpu::PoolBlocked { kind, batch: x[0], channels: x[1], window, stored: StorageType::of(node.output().dtype)? };
    Some(call(kernel, format!("{:?} of {x}", reduce.kind), node.values()))
}

/// Whether a node with a blocked result reads this operand blocked.
pub(super) fn reads_blocked(graph: &Graph, node: &Node, input: usize) -> bool {
    let (x, out) = (graph.value(node.inputs[input]), graph.ty(node.outputs[0]));
    if x.tensor().is_some() {
        return false;
    }
    if let Op::Conv(conv) = &node.op {
        return match input {
            0 => STEM_CHANNELS < x.ty.shape[1] || is_depthwise(conv.groups, &x.ty.shape, &out.shape),
            _ => conv.epilogue.residual && input + 1 == node.inputs.len(),
        };
    }
    if let Op::ConvTranspose(conv) = &node.op {
        return input == 0 || (conv.epilogue.residual && input + 1 == node.inputs.len());
    }
    if let Op::Transpose(_) = node.op {
        return moved_channels(graph, node) == Some(ChannelMove::ToBack);
    }
    if matches!(node.op, Op::BatchNormTraining(_)) {
        return input == 0;
    }
    if matches!(node.op, Op::BatchNormGradient(_)) {
        return input < 2;
    }
    if matches!(node.op, Op::ConvWeightGradient(_)) {
        return input == 1 || STEM_CHANNELS < x.ty.shape[1];
    }
    if matches!(node.op, Op::ConvChain(_)) {
        return input != 0 || STEM_CHANNELS < x.ty.shape[1];
    }
    // The axes of thousands of operands are not listed for each of them.
    if matches!(node.op, Op::Concat(_)) {
        return true;
    }
    let varies = x.ty.shape.rank() == out.shape.rank() && x.ty.shape.get(1) == out.shape.get(1);
    varies || graph.node_axes(node).work != Work::Elementwise
}

/// A layout among a node's values that its kernels do not take there.
pub(super) fn unsupported_layout(graph: &Graph, node: &Node) -> Option<Layout> {
    let layout = |value: ValueId| graph.value(value).layout;
    let is_blocked = works_on_blocks(graph, node);
    if !is_blocked && layout(node.outputs[0]) != Layout::RowMajor {
        return Some(layout(node.outputs[0]));
    }
    if is_blocked && !has_blocked_form(graph, node) {
        return Some(LAYOUT);
    }
    let outputs = node.outputs.iter().enumerate();
    let outputs = outputs.map(|(ix, &output)| (layout(output), is_blocked && writes_blocked(graph, node, ix)));
    let inputs = node.inputs.iter().enumerate().filter(|_| !matches!(node.op, Op::Relayout(_)));
    let inputs = inputs.map(|(ix, &input)| (layout(input), is_blocked && reads_blocked(graph, node, ix)));
    outputs
        .chain(inputs)
        .find(|&(layout, blocked)| layout != if blocked { LAYOUT } else { Layout::RowMajor })
        .map(|(layout, _)| layout)
}

pub(super) fn has_blocked_form(graph: &Graph, node: &Node) -> bool {
    let has_kernel = matches!(
        node.op,
        Op::Conv(_)
            | Op::ConvTranspose(_)
            | Op::ConvWeightGradient(_)
            | Op::ConvChain(_)
            | Op::Pool(_)
            | Op::PoolGradient(_)
            | Op::PoolWithPositions(_)
            | Op::BatchNormTraining(_)
            | Op::BatchNormGradient(_)
            | Op::Relayout(_)
    );
    let sums = |reduce: &Reduce| is_channel_sum(graph, node, reduce);
    has_kernel
        || moved_channels(graph, node).is_some()
        || matches!(&node.op, Op::Reduce(reduce) if sums(reduce))
        || graph.blocked_op(node, BLOCK as u16).is_some()
}
