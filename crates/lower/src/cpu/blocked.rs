//! Kernels whose values have their channels in blocks of sixteen, and what layouts cost.

use cpu::{ConvAlgorithm, ImageLayout, Pool2dKind, StorageType, Window};
use ir::ops::{Conv, Pool, PoolKind, Reduce, ReduceKind};
use ir::{Graph, HalfSupport, Node, Op, TensorType, ValueId};
use types::{Bytes, DType, Layout, Shape};

use super::windows::{label, rows_columns, window};
use super::{Algorithm, CpuTarget, Layer, View, around, call, epilogue, packed, packed_bytes, suffix};
use crate::{Call, CallInput, FREE_SCRATCH};

/// Channels of a block: the lanes of a vector.
pub(super) const BLOCK: usize = 16;
/// The layout of these kernels.
pub(super) const LAYOUT: Layout = Layout::ChannelsBlocked(BLOCK as u16);
/// Pictures with at most so many channels are read row-major by the convolution that comes first.
const STEM_CHANNELS: usize = 4;

/// The elements of a known operand in its physical form: aligned on the right with `to`'s extents but the last, which are
/// the lanes. Lanes without a channel hold 0.
pub(super) fn block(items: &[f32], from: &Shape, to: &Shape) -> Vec<f32> {
    let rank = to.rank() - 1;
    let extent = |axis: usize| if axis + from.rank() < rank { 1 } else { from[axis + from.rank() - rank] };
    let (outer, channels, inner) = (extent(0), extent(1), (2..rank).map(extent).product::<usize>());
    let mut blocked = vec![0.0; to.elements()];
    for (number, item) in items.iter().enumerate().take(outer * channels * inner) {
        let (image, channel, at) = (number / inner / channels, number / inner % channels, number % inner);
        blocked[((image * to[1] + channel / BLOCK) * inner + at) * BLOCK + channel % BLOCK] = *item;
    }
    blocked
}

/// A vector along the channels, filled up with zeros.
pub(super) fn padded(mut items: Vec<f32>) -> Vec<f32> {
    items.resize(items.len().next_multiple_of(BLOCK), 0.0);
    items
}

pub(super) fn relayout(node: &View) -> Result<Call, String> {
    let shape = &node.graph.ty(node.node.inputs[0]).shape;
    let Some(stored) = StorageType::of(node.output().dtype).filter(|_| node.is_blocked != (node.layout(0) == LAYOUT))
    else {
        return Err("it is not between row-major and blocked floats".into());
    };
    let (batch, channels, plane) = around(shape, 1);
    let kernel = cpu::Reorder { batch, channels, plane, to_blocked: node.is_blocked, stored };
    let to = if node.is_blocked { "to blocks" } else { "from blocks" };
    Ok(call(kernel, format!("{shape} {to}"), node.values()))
}

/// The kernel of a convolution over blocked channels.
enum ConvKernel {
    Depthwise(cpu::DepthwiseBlocked),
    Direct(cpu::ConvBlocked),
    Winograd(cpu::Winograd),
}

/// The fastest kernel of a convolution with at most `scratch` bytes of workspace.
fn conv_kernel(
    graph: &Graph,
    node: &Node,
    conv: &Conv,
    scratch: Bytes,
    target: &CpuTarget,
) -> Result<ConvKernel, String> {
    let direct = match exact_kernel(graph, node, conv)? {
        ConvKernel::Direct(direct) if direct.operands != StorageType::F32 => {
            return Ok(ConvKernel::Direct(gathered(direct, scratch)));
        }
        ConvKernel::Direct(direct) if !target.exact => direct,
        kernel => return Ok(kernel),
    };
    let algorithm = target.tuned.get(&layer_name(&direct)).unwrap_or_else(|| modelled(&direct, target.pictures));
    let winograd = match algorithm {
        Algorithm::Direct => None,
        Algorithm::Winograd { tile } => winograd(&direct, tile, scratch),
    };
    Ok(winograd.map_or(ConvKernel::Direct(direct), ConvKernel::Winograd))
}

/// As many multiplications of each number of the input as are worth bringing the channels of pixels side by side: between 256
/// and 288 measured on convolutions of ResNet-50 and DenseNet-121 by the matrix unit.
const GATHERED_USES: usize = 272;
/// The same in front of a stride, where pictures are large: their copies would be the most that ResNet-50 needs at a time.
const GATHERED_USES_STRIDED: usize = 512;

/// A convolution of halves or bytes whose channels are brought side by side first, where there are several blocks of them,
/// each pixel is multiplied often enough to be worth that, and the workspace suffices: sums then run over many words in one
/// go. Planes are gathered in any case, as nothing else takes them.
fn gathered(direct: cpu::ConvBlocked, scratch: Bytes) -> cpu::ConvBlocked {
    let kernel = cpu::ConvBlocked { algorithm: ConvAlgorithm::Packed, ..direct.clone() };
    let sizes = cpu::Kernel::from(kernel.clone()).sizes();
    let fits = sizes.is_ok_and(|sizes| sizes.workspace <= scratch.0);
    let least = if direct.window.stride == [1, 1] { GATHERED_USES } else { GATHERED_USES_STRIDED };
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

/// How often a convolution multiplies each number of its input.
fn uses(conv: &cpu::ConvBlocked) -> usize {
    let cells = |extents: [usize; 2]| extents[0] * extents[1];
    let Window { kernel, input, output, .. } = conv.window;
    conv.out_channels * cells(kernel) * cells(output) / cells(input).max(1)
}

/// The kernel of a convolution that computes the sums of products.
fn exact_kernel(graph: &Graph, node: &Node, conv: &Conv) -> Result<ConvKernel, String> {
    let known = |ix: usize| graph.value(node.inputs[ix]).tensor().is_some();
    let vectors = conv.epilogue.operands() - usize::from(conv.epilogue.residual);
    if !(1..2 + vectors).all(known) {
        return Err("its weight, scale or bias is not known before the run".into());
    }
    // What is known lies row-major, and kernels find a residual as the result lies.
    if conv.epilogue.residual && known(node.inputs.len() - 1) {
        return Err("its residual is known before the run".into());
    }
    kernel_of_known(graph, node, conv)
}

/// The same, whatever is known.
fn kernel_of_known(graph: &Graph, node: &Node, conv: &Conv) -> Result<ConvKernel, String> {
    let ty = |ix: usize| &graph.ty(node.inputs[ix]).shape;
    let (x, weight, out) = (ty(0), ty(1), &graph.ty(node.outputs[0]).shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let epilogue = epilogue(&conv.epilogue);
    let stored = |value: ValueId| StorageType::of(graph.ty(value).dtype).ok_or("it is not of floats");
    let (operands, result) = (stored(node.inputs[0])?, stored(node.outputs[0])?);
    if conv.groups == x[1] && weight[1] == 1 && out[1] == x[1] && 1 < x[1] {
        let (batch, channels, zero_point) = (x[0], x[1], conv.zero as u8);
        let kernel = cpu::DepthwiseBlocked { batch, channels, window, stored: operands, zero_point, result, epilogue };
        return match cpu::Kernel::from(kernel.clone()).sizes() {
            Ok(_) => Ok(ConvKernel::Depthwise(kernel)),
            Err(misfit) => Err(misfit.to_string()),
        };
    }
    let layout = if reads_blocked(graph, node, 0) { ImageLayout::Blocked } else { ImageLayout::RowMajor };
    let (batch, in_channels, out_channels, groups) = (x[0], x[1], out[1], conv.groups);
    Ok(ConvKernel::Direct(cpu::ConvBlocked {
        batch,
        in_channels,
        out_channels,
        groups,
        window,
        layout,
        algorithm: ConvAlgorithm::InPlace,
        operands,
        zero_point: conv.zero as u8,
        result,
        epilogue,
    }))
}

/// Products of bytes whose sum an `i32` holds in any case.
pub(super) const BYTE_TERMS_MAX: usize = i32::MAX as usize / (255 * 128);

/// Whether a value is known before the run, if perhaps in bytes so far.
fn will_be_known(graph: &Graph, value: ValueId) -> bool {
    let is_known = |value: ValueId| graph.value(value).tensor().is_some();
    is_known(value)
        || graph.value(value).producer().is_some_and(|producer| {
            let node = graph.node(producer);
            matches!(node.op, Op::Chain(_)) && node.inputs.iter().all(|&input| is_known(input))
        })
}

/// Whether there is a kernel for a convolution like this one, of bytes.
pub(super) fn convolves_bytes(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let terms: usize = graph.ty(node.inputs[1]).shape[1..].iter().product();
    if BYTE_TERMS_MAX < terms || !node.inputs[2..].iter().all(|&vector| will_be_known(graph, vector)) {
        return false;
    }
    match kernel_of_known(graph, node, conv) {
        Ok(ConvKernel::Direct(direct)) => {
            let epilogue = cpu::Epilogue { scale: true, ..direct.epilogue.clone() };
            let algorithm = required_algorithm(direct.layout);
            let kernel = cpu::ConvBlocked { operands: StorageType::U8, zero_point: 1, algorithm, epilogue, ..direct };
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

/// Whether the kernel of a convolution can write bytes.
pub(super) fn writes_bytes(graph: &Graph, node: &Node, conv: &Conv) -> bool {
    let kernel: cpu::Kernel = match exact_kernel(graph, node, conv) {
        Ok(ConvKernel::Direct(direct)) => cpu::ConvBlocked { result: StorageType::U8, ..direct }.into(),
        Ok(ConvKernel::Depthwise(depthwise)) => cpu::DepthwiseBlocked { result: StorageType::U8, ..depthwise }.into(),
        _ => return false,
    };
    kernel.sizes().is_ok()
}

/// How there are kernels for a convolution of `f32` that take halves.
pub(super) fn conv_halves(graph: &Graph, node: &Node, conv: &Conv, half: StorageType) -> HalfSupport {
    let fits = |kernel: cpu::Kernel| kernel.sizes().is_ok();
    match exact_kernel(graph, node, conv) {
        Ok(ConvKernel::Depthwise(kernel))
            if fits(cpu::DepthwiseBlocked { stored: half, result: half, ..kernel.clone() }.into()) =>
        {
            HalfSupport::Follow
        }
        Ok(ConvKernel::Direct(direct)) => {
            let to_half = cpu::ConvBlocked { result: half, ..direct };
            let algorithm = required_algorithm(to_half.layout);
            let of_halves = cpu::ConvBlocked { operands: half, algorithm, ..to_half.clone() };
            // A picture that is used rarely is not worth being rounded and brought together first.
            let pays = algorithm == ConvAlgorithm::InPlace || GATHERED_USES <= uses(&to_half);
            match (pays && fits(of_halves.into()), fits(to_half.into())) {
                (true, _) => HalfSupport::Operands([0, 1].into_iter().collect()),
                (false, true) => HalfSupport::Operands([].into_iter().collect()),
                (false, false) => HalfSupport::None,
            }
        }
        _ => HalfSupport::None,
    }
}

/// Whether there is a kernel for pooling halves.
pub(super) fn pools_halves(graph: &Graph, node: &Node, pool: &Pool) -> bool {
    let kernel = pool_kernel(graph.ty(node.inputs[0]), &graph.ty(node.outputs[0]).shape, pool);
    kernel.is_ok_and(|kernel| cpu::Kernel::from(kernel).sizes().is_ok())
}

/// Whether a reduction is one of whole pictures, for which there is a kernel.
pub(super) fn is_global_pool(graph: &Graph, node: &Node, reduce: &Reduce) -> bool {
    let x = &graph.ty(node.inputs[0]).shape;
    let all = reduce.axes.iter().copied().eq(2..x.rank()) && 2 < x.rank();
    all && matches!(reduce.kind, ReduceKind::Max | ReduceKind::Mean) && !x.contains(&0)
}

/// What a convolution's time depends on, the batch apart.
fn layer_name(conv: &cpu::ConvBlocked) -> String {
    let cpu::ConvBlocked { in_channels, out_channels, window, .. } = conv;
    let [[kernel_rows, kernel_columns], [rows, columns], [out_rows, out_columns]] =
        [window.kernel, window.input, window.output];
    format!(
        "conv {kernel_rows}x{kernel_columns} of {in_channels}x{rows}x{columns} pad {}x{} to \
         {out_channels}x{out_rows}x{out_columns}",
        window.pad[0], window.pad[1]
    )
}

/// The ways to compute a convolution, where there are several.
pub(super) fn candidates(graph: &Graph, node: &Node, conv: &Conv, pictures: Option<usize>) -> Option<Layer> {
    let Ok(ConvKernel::Direct(direct)) = exact_kernel(graph, node, conv) else { return None };
    let kernel = |algorithm: Algorithm| -> Option<cpu::Kernel> {
        match algorithm {
            Algorithm::Direct => Some(direct.clone().into()),
            Algorithm::Winograd { tile } => winograd(&direct, tile, FREE_SCRATCH).map(Into::into),
        }
    };
    let candidates: Vec<_> = Algorithm::ALL.iter().filter_map(|&way| kernel(way).map(|kernel| (way, kernel))).collect();
    let modelled = modelled(&direct, pictures);
    (1 < candidates.len()).then(|| Layer { name: layer_name(&direct), modelled, candidates })
}

/// The algorithm that is faster by the model, where weights are read once for so many pictures, or for the batch: Winograd's
/// from pictures and channels of some size on. Larger tiles multiply less and have more weights: what few tiles share, memory
/// decides.
fn modelled(direct: &cpu::ConvBlocked, pictures: Option<usize>) -> Algorithm {
    let cpu::ConvBlocked { in_channels, out_channels, window, .. } = direct;
    if window.output.iter().any(|&extent| extent < 12) || *in_channels < 16 || *out_channels < 32 {
        return Algorithm::Direct;
    }
    let time = |tile: usize| {
        let kernel = winograd(&cpu::ConvBlocked { batch: 1, ..direct.clone() }, tile, FREE_SCRATCH)?;
        let flops = kernel.flops().saturating_mul(pictures.unwrap_or(direct.batch) as u64);
        let bytes = 4 * kernel.packed_elements() as u64;
        Some(flops / FLOPS_BLOCKED + bytes / BYTES_WEIGHTS)
    };
    let ways = [4, 2].into_iter().filter_map(|tile| time(tile).map(|time| (time, tile)));
    ways.min_by_key(|&(time, _)| time).map_or(Algorithm::Direct, |(_, tile)| Algorithm::Winograd { tile })
}

/// Winograd's algorithm for a convolution, where it is one of 3 x 3 and the workspace suffices.
fn winograd(direct: &cpu::ConvBlocked, tile: usize, scratch: Bytes) -> Option<cpu::Winograd> {
    let cpu::ConvBlocked {
        batch,
        in_channels,
        out_channels,
        groups,
        window,
        layout,
        algorithm: _,
        operands,
        zero_point: _,
        result,
        epilogue,
    } = direct;
    let is_3x3 = (window.kernel, window.stride, window.dilation) == ([3, 3], [1, 1], [1, 1]);
    let is_f32 = [*operands, *result] == [StorageType::F32; 2];
    if !is_3x3 || *groups != 1 || *layout != ImageLayout::Blocked || !is_f32 || epilogue.scale {
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

pub(super) fn conv(node: &View, conv: &Conv) -> Result<Call, String> {
    let out = &node.output().shape;
    let kernel = conv_kernel(node.graph, node.node, conv, node.scratch, node.target)?;
    let mut inputs: Vec<CallInput> = (0..node.node.inputs.len()).map(CallInput::Value).collect();
    let vectors = conv.epilogue.operands() - usize::from(conv.epilogue.residual);
    for (ix, input) in inputs.iter_mut().enumerate().skip(2).take(vectors) {
        *input = packed(ix, |items| padded(items.to_vec()));
    }
    let label = |window: &Window| label(window, out, &suffix(&conv.epilogue));
    macro_rules! packing {
        ($kernel:expr, $packed:ident) => {{
            let (label, packing) = (label(&$kernel.window), $kernel.clone());
            inputs[1] = $packed(1, move |items| packing.pack(items));
            call($kernel, label, inputs)
        }};
    }
    Ok(match kernel {
        ConvKernel::Depthwise(kernel) => packing!(kernel, packed),
        ConvKernel::Direct(kernel) => packing!(kernel, packed_bytes),
        ConvKernel::Winograd(kernel) => packing!(kernel, packed),
    })
}

fn pool_kernel(x: &TensorType, out: &Shape, pool: &Pool) -> Result<cpu::PoolBlocked, String> {
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

pub(super) fn pool(node: &View, pool: &Pool) -> Result<Call, String> {
    let (x, out) = (node.graph.ty(node.node.inputs[0]), &node.output().shape);
    let kernel = pool_kernel(x, out, pool)?;
    let name = if pool.kind == PoolKind::Max { " max" } else { " mean" };
    let label = label(&kernel.window, out, name);
    Ok(call(kernel, label, node.values()))
}

/// A reduction of whole pictures, as pooling by a window as large as they are.
pub(super) fn global_pool(node: &View, reduce: &Reduce) -> Option<Call> {
    let kind = match reduce.kind {
        ReduceKind::Max => Pool2dKind::Max,
        ReduceKind::Mean => Pool2dKind::Mean,
        _ => return None,
    };
    let x = &node.graph.ty(node.node.inputs[0]).shape;
    if !node.is_blocked || !is_global_pool(node.graph, node.node, reduce) {
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
    match &node.op {
        Op::Conv(_) | Op::ConvChain(_) => input != 0 || STEM_CHANNELS < x.ty.shape[1],
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) => {
            x.ty.shape.rank() == out.shape.rank() && x.ty.shape.get(1) == out.shape.get(1)
        }
        _ => true,
    }
}

/// A layout among a node's values that its kernels do not take there.
pub(super) fn misplaced(graph: &Graph, node: &Node) -> Option<Layout> {
    let layout = |value: ValueId| graph.value(value).layout;
    let own = layout(node.outputs[0]);
    let other = node.outputs.iter().map(|&output| layout(output)).find(|&layout| layout != own);
    if other.is_some()
        || ![Layout::RowMajor, LAYOUT].contains(&own)
        || (own == LAYOUT && !has_blocked_form(graph, node))
    {
        return other.or(Some(own));
    }
    let inputs = node.inputs.iter().enumerate().filter(|_| !matches!(node.op, Op::Relayout(_)));
    inputs
        .map(|(ix, &input)| (layout(input), own == LAYOUT && reads_blocked(graph, node, ix)))
        .find(|&(layout, blocked)| layout != if blocked { LAYOUT } else { Layout::RowMajor })
        .map(|(layout, _)| layout)
}

fn has_blocked_form(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Conv(_) | Op::ConvChain(_) | Op::Pool(_) | Op::Relayout(_))
        || graph.blocked_op(node, BLOCK as u16).is_some()
}

// The model of times: what two cores with AVX-512 do in a nanosecond. Only relations matter. All times but that of reading
// weights, which is taken for one number of pictures, are proportional to the batch, so that plans for several batches choose
// alike and share their packed weights.
const FLOPS_BLOCKED: u64 = 200;
const FLOPS_ROW_MAJOR: u64 = 110;
const FLOPS_SLOW: u64 = 10;
const BYTES: u64 = 40;
/// Weights come from memory, with every run again.
const BYTES_WEIGHTS: u64 = 20;
const BYTES_RELAYOUT: u64 = 20;
/// What a step costs beside its work, in nanoseconds.
const STEP: u64 = 1000;
/// Times are in picoseconds.
const PER_NANOSECOND: u64 = 1000;

/// The modelled time of a node whose result has a layout; none where there is no kernel for that.
pub(super) fn time(graph: &Graph, node: &Node, layout: Layout, target: &CpuTarget) -> Option<u64> {
    let blocked = match layout {
        Layout::RowMajor => false,
        LAYOUT => true,
        _ => return None,
    };
    let bytes = |value: ValueId, layout: Layout| {
        let value = graph.value(value);
        if value.tensor().is_some() { 0 } else { layout.size(&value.ty.shape, value.ty.dtype).0 }
    };
    let moved: u64 = node.inputs.iter().chain(&node.outputs).map(|&value| bytes(value, layout)).sum();
    let (flops, moved) = (graph.node_flops(node) * PER_NANOSECOND, moved * PER_NANOSECOND);
    let fits = |kernel: cpu::Kernel| kernel.sizes().is_ok();
    let work = match (&node.op, blocked) {
        (Op::Conv(conv), true) => match conv_kernel(graph, node, conv, FREE_SCRATCH, target).ok()? {
            ConvKernel::Depthwise(kernel) if fits(kernel.clone().into()) => flops / (FLOPS_BLOCKED / 4),
            ConvKernel::Direct(kernel) if fits(kernel.clone().into()) => {
                let real = kernel.out_channels.max(1) as u64;
                flops / real * real.next_multiple_of(BLOCK as u64) / FLOPS_BLOCKED
            }
            // Two to four times fewer multiplications, and transforms.
            ConvKernel::Winograd(kernel) if fits(kernel.clone().into()) => flops / (2 * FLOPS_BLOCKED),
            _ => return None,
        },
        (Op::Conv(conv), false) => flops / if 1 < conv.groups { FLOPS_SLOW } else { FLOPS_ROW_MAJOR },
        (Op::Pool(pool), true) => {
            let out = &graph.ty(node.outputs[0]).shape;
            let kernel = pool_kernel(graph.ty(node.inputs[0]), out, pool).ok()?;
            if !fits(kernel.into()) {
                return None;
            }
            flops / FLOPS_BLOCKED * 2
        }
        (Op::Pool(_) | Op::Reduce(_), false) => flops / FLOPS_SLOW,
        (_, true) => {
            graph.blocked_op(node, BLOCK as u16)?;
            0
        }
        (_, false) => 0,
    };
    let mut values = node.inputs.iter().chain(&node.outputs);
    let possible = match (&node.op, blocked) {
        // Sliding windows write halves and bytes to blocks alone.
        (Op::Conv(_) | Op::Pool(_), false) => values.all(|&value| graph.ty(value).dtype == DType::F32),
        (_, true) => values.all(|&value| StorageType::of(graph.ty(value).dtype).is_some()),
        (_, false) => true,
    };
    possible.then_some(work.max(moved / BYTES))
}

/// The modelled time it takes to turn a value from one layout to the other.
pub(super) fn relayout_time(graph: &Graph, value: ValueId) -> u64 {
    let ty = graph.ty(value);
    if ty.shape.rank() < 2 {
        return 0;
    }
    let is_alias = ty.shape.iter().skip(2).all(|&extent| extent == 1) && ty.shape[1].is_multiple_of(BLOCK);
    let Bytes(bytes) = LAYOUT.size(&ty.shape, ty.dtype);
    let batch = ty.shape[0] as u64;
    if is_alias { 0 } else { (STEP * batch + 2 * bytes / BYTES_RELAYOUT) * PER_NANOSECOND }
}
