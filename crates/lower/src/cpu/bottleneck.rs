//! Convolutions in a row as one [`cpu::InvertedBottleneck`].

use cpu::{PackedConv, Packing, Window};
use ir::ops::{Conv, ConvChain};
use ir::{Call, CallInput, Graph, NodeId, Op, Operator, TensorType, UNLIMITED, ValueId};
use smallvec::SmallVec;
use types::{Bytes, DType, Shape, WeightFormat};

use super::CpuTarget;
use super::blocked::{BLOCK, LAYOUT};
use super::select::{call, epilogue, packed, suffix};
use super::windows::{label, window};
use crate::NodeView;

/// The least bytes between the convolutions of a chain for which fusion pays: less stays in caches and is read back
/// nearly as fast as it was written, and recomputed rows cost more (docs/measurements/cpu.md has both sides).
const WIDE: u64 = 3 << 19;
/// The same for a chain that begins with the row-major input of a network: recomputing a full convolution costs more
/// than recomputing a product, and fusion pays only if no core's cache holds the results.
const WIDE_FRONT: u64 = 8 << 20;
/// The most rows of a stripe, and the most scratch of a stripe, which must fit into a second-level cache together with
/// the weights.
const BAND_MAX: usize = 14;
const BAND_SCRATCH: u64 = 384 << 10;

/// The workspace of a run of nodes as one step, if it is an inverted bottleneck, the last two of its three
/// convolutions, or the beginning of a network, and is faster as one step: stripes fit the caches, threads share them,
/// few rows are computed twice, and it needs no more memory than single steps.
pub(super) fn fused_workspace(graph: &Graph, run: &[NodeId], weights: Option<WeightFormat>) -> Option<Bytes> {
    let first = graph.node(run[0]);
    let blocked = |value: ValueId| graph.value(value).layout == LAYOUT;
    let mut operands: SmallVec<[ValueId; 8]> = SmallVec::from_slice(&first.inputs[..1]);
    let mut convs = Vec::new();
    for &id in run {
        let node = graph.node(id);
        let Op::Conv(conv) = &node.op else { return None };
        let known = node.inputs[1..2 + usize::from(conv.epilogue.bias)]
            .iter()
            .all(|&value| graph.value(value).tensor().is_some());
        if !known || !blocked(node.outputs[0]) {
            return None;
        }
        operands.extend_from_slice(&node.inputs[1..]);
        convs.push(conv.clone());
    }
    let types: SmallVec<[&TensorType; 8]> = operands.iter().map(|&value| graph.ty(value)).collect();
    let out = &graph.ty(graph.node(run[run.len() - 1]).outputs[0]).shape;
    let halves =
        types.iter().any(|ty| ty.dtype != DType::F32) || convs.iter().any(|conv| conv.epilogue.result.is_some());
    if halves {
        return None;
    }
    let kernel = kernel_of(&ConvChain { convs }, &types, blocked(first.inputs[0]), out, UNLIMITED, weights).ok()?;
    let Values { wide, saved } = Values::of(&kernel);
    let scratch = cpu::Kernel::from(kernel.clone()).sizes().ok()?.workspace;
    let slots = kernel.slots() as u64;
    let (rows, read) = kernel.rows_of_band();
    let fits = 1 < slots && scratch <= slots * BAND_SCRATCH && 2 * read <= 3 * rows;
    let least = if blocked(first.inputs[0]) { WIDE } else { WIDE_FRONT };
    (least < wide && fits && scratch <= saved?).then_some(Bytes(scratch))
}

/// Bytes of the values that a chain reads, writes and keeps to itself.
struct Values {
    /// The widest of those between its convolutions.
    wide: u64,
    /// By how many bytes the live bytes fall below those of one step for each convolution, scratch not included. `None`
    /// if they grow: a narrow value between wide ones is better stored.
    saved: Option<u64>,
}

impl Values {
    fn of(kernel: &cpu::InvertedBottleneck) -> Values {
        let cpu::InvertedBottleneck { batch, in_channels, channels, out_channels, window, front, .. } = kernel;
        let bytes = |channels: usize, plane: [usize; 2]| {
            [*batch, channels, plane[0], plane[1], 4]
                .iter()
                .fold(1, |all: u64, &extent| all.saturating_mul(extent as u64))
        };
        let block = |channels: usize| channels.next_multiple_of(BLOCK);
        let mut values: SmallVec<[u64; 4]> = SmallVec::new();
        if let Some(cpu::Front { window, layout, .. }) = front {
            values.push(bytes(
                if *layout == cpu::ImageLayout::Blocked { block(*in_channels) } else { *in_channels },
                window.input,
            ));
        }
        values.extend([window.input, window.output].map(|plane| bytes(block(*channels), plane)));
        values.push(bytes(block(*out_channels), window.output));
        let last = values.len() - 1;
        let apart = values.windows(2).map(|step| step[0].saturating_add(step[1])).max().unwrap_or(0);
        Values {
            wide: values[1..last].iter().copied().max().unwrap_or(0),
            saved: apart.checked_sub(values[0].saturating_add(values[last])),
        }
    }
}

/// The kernels of a chain, from the highest stripes within the node's workspace to single rows: lower ones need less workspace
/// and compute more rows twice.
///
/// # Errors
/// The reason that there is no kernel.
pub(super) fn kernels(
    node: &NodeView,
    chain: &ConvChain,
    weights: Option<WeightFormat>,
) -> Result<Vec<cpu::InvertedBottleneck>, String> {
    if !node.is_blocked() {
        return Err("its channels are not in blocks".into());
    }
    let types: SmallVec<[&TensorType; 8]> = node.node.inputs.iter().map(|&input| node.graph.ty(input)).collect();
    let is_blocked = node.input_layout(0) == LAYOUT;
    let highest = kernel_of(chain, &types, is_blocked, &node.output().shape, node.workspace, weights)?;
    let workspace = |kernel: &cpu::InvertedBottleneck| {
        cpu::Kernel::from(kernel.clone()).sizes().map_or(u64::MAX, |sizes| sizes.workspace)
    };
    let lower = std::iter::successors(Some(highest.band), |&band| (1 < band).then_some(band / 2)).skip(1);
    let mut least = workspace(&highest);
    let mut kernels = vec![highest];
    for band in lower {
        let kernel = cpu::InvertedBottleneck { band, ..kernels[0].clone() };
        // Lower stripes may be more at a time.
        if workspace(&kernel) < least {
            least = workspace(&kernel);
            kernels.push(kernel);
        }
    }
    Ok(kernels)
}

/// The modelled time of a kernel in picoseconds: that of its convolutions, the one in front as often as its rows are computed.
/// `None` if one of them is not modelled.
pub(super) fn time(kernel: &cpu::InvertedBottleneck, target: &CpuTarget) -> Option<u64> {
    let time = |part: cpu::Kernel| target.time(&part);
    let front = match kernel.front_kernel() {
        Some(front) => {
            let (rows, read) = kernel.rows_of_band();
            let again = u128::from(time(front.into())?) * read.max(rows) as u128 / rows.max(1) as u128;
            u64::try_from(again).unwrap_or(u64::MAX)
        }
        None => 0,
    };
    let behind = time(kernel.depthwise_kernel().into())?.saturating_add(time(kernel.project_kernel().into())?);
    Some(front.saturating_add(behind))
}

pub(super) fn call_of(node: &NodeView, chain: &ConvChain, kernel: cpu::InvertedBottleneck) -> Result<Call, String> {
    let types: SmallVec<[&TensorType; 8]> = node.node.inputs.iter().map(|&input| node.graph.ty(input)).collect();
    let mut inputs: Vec<CallInput> = (0..types.len()).map(CallInput::Value).collect();
    let first = 3 - chain.convs.len();
    for (ix, (conv, own)) in chain.parts().enumerate() {
        let part = match first + ix {
            0 => PackedConv::Direct(kernel.front_kernel().ok_or("its kernel has no convolution in front")?),
            1 => PackedConv::Depthwise(kernel.depthwise_kernel()),
            _ => PackedConv::Direct(kernel.project_kernel()),
        };
        let packing = Packing::Convolution { kernel: part, groups: 1, together: 1, out_channels: 0 };
        inputs[own.start] = packed(own.start, packing);
        if conv.epilogue.bias {
            inputs[own.start + 1] = packed(own.start + 1, Packing::Padded);
        }
    }
    let in_front = kernel.front.as_ref().map(|front| {
        let Window { kernel: [rows, columns], stride, .. } = front.window;
        let step = if stride[1] == 1 { String::new() } else { format!("/{}", stride[1]) };
        format!("{rows}x{columns}{step} {} ", kernel.channels)
    });
    let front = in_front.unwrap_or_default();
    let last = chain.convs.last().map(|conv| suffix(&conv.epilogue)).unwrap_or_default();
    let label = format!("{front}{} by {} rows", label(&kernel.window, &node.output().shape, &last), kernel.band);
    call(kernel, label, inputs)
}

/// The kernel of a chain whose operands and result have these types, with at most `scratch` bytes of workspace if it
/// can. Its first stage may be any convolution of a row-major image, whose few channels make it cheap.
fn kernel_of(
    chain: &ConvChain,
    inputs: &[&TensorType],
    input_blocked: bool,
    out: &Shape,
    scratch: Bytes,
    weights: Option<WeightFormat>,
) -> Result<cpu::InvertedBottleneck, String> {
    let shapes: SmallVec<[&Shape; 3]> = chain.parts().map(|(_, own)| &inputs[own.start].shape).collect();
    let is_product = |ix: usize| {
        let Conv { stride, pad, groups, .. } = &chain.convs[ix];
        let ones = shapes[ix][2..].iter().chain(stride).all(|&extent| extent == 1);
        ones && *groups == 1 && pad.iter().all(|pad| *pad == [0, 0])
    };
    let (front, [depthwise, project]) = match &chain.convs[..] {
        [depthwise, project] if input_blocked => (None, [depthwise, project]),
        [front, depthwise, project] if is_product(0) || (!input_blocked && front.groups == 1) => {
            (Some(front), [depthwise, project])
        }
        _ => return Err("it is no inverted bottleneck".into()),
    };
    let [kernel, behind] = [shapes[shapes.len() - 2], shapes[shapes.len() - 1]];
    let channels = kernel[0];
    let is_depthwise = depthwise.groups == channels && kernel[1] == 1 && 1 < channels;
    if !is_depthwise || !is_product(chain.convs.len() - 1) {
        return Err("it is no inverted bottleneck".into());
    }
    let x = &inputs[0].shape;
    // The depthwise convolution's picture.
    let (mut picture, mut in_front) = (x.clone(), None);
    if let (Some(conv), Some((_, own))) = (front, chain.parts().next()) {
        let operands: SmallVec<[&TensorType; 4]> = inputs[..1].iter().chain(&inputs[own]).copied().collect();
        picture = conv.infer(&operands).map_err(|refusal| refusal.to_string())?.remove(0).shape;
        in_front = Some(cpu::Front {
            window: window(x, &picture, &shapes[0][2..], &conv.stride, &conv.dilation, &conv.pad)?,
            layout: if input_blocked { cpu::ImageLayout::Blocked } else { cpu::ImageLayout::RowMajor },
            epilogue: epilogue(&conv.epilogue),
        });
    }
    let kernel = cpu::InvertedBottleneck {
        batch: x[0],
        in_channels: x[1],
        channels,
        out_channels: behind[0],
        // The product behind keeps the picture's extents.
        window: window(&picture, out, &kernel[2..], &depthwise.stride, &depthwise.dilation, &depthwise.pad)?,
        front: in_front,
        depthwise: epilogue(&depthwise.epilogue),
        project: epilogue(&project.epilogue),
        band: 1,
        weights,
    };
    Ok(in_bands(kernel, scratch))
}

/// A kernel with the highest stripes that leave enough of them to share between threads and whose scratch fits.
fn in_bands(kernel: cpu::InvertedBottleneck, scratch: Bytes) -> cpu::InvertedBottleneck {
    let rows = kernel.batch * kernel.window.output[0];
    let scratch = scratch.0.min(Values::of(&kernel).saved.unwrap_or(0));
    let most = rows.div_ceil(cpu::InvertedBottleneck::SLOTS).clamp(1, BAND_MAX);
    let with_band = |band: usize| cpu::InvertedBottleneck { band, ..kernel.clone() };
    let fits = |kernel: &cpu::InvertedBottleneck| {
        let workspace = cpu::Kernel::from(kernel.clone()).sizes().map_or(u64::MAX, |sizes| sizes.workspace);
        let slots = kernel.slots().max(1) as u64;
        workspace <= scratch && workspace / slots <= BAND_SCRATCH
    };
    (1..=most).rev().map(with_band).find(fits).unwrap_or_else(|| with_band(1))
}

#[cfg(test)]
mod tests {
    use ir::ops::Epilogue;
    use types::pointwise::Unary;
    use types::{DType, Random, Scope, Tensor};

    use super::*;
    use ir::{Query, Target};

    /// A bottleneck on blocked values, with its three nodes.
    fn bottleneck(channels: usize, plane: usize, stride: usize) -> (Graph, Vec<NodeId>) {
        let depthwise = Conv { groups: channels, ..Conv::square(stride, 1) };
        chain(
            [1, 16, plane, plane],
            [
                (Conv::square(1, 0), [channels, 16, 1, 1]),
                (depthwise, [channels, 1, 3, 3]),
                (Conv::square(1, 0), [24, channels, 1, 1]),
            ],
        )
    }

    /// Convolutions in a row, with their nodes. A picture of few channels is row-major.
    fn chain(x: [usize; 4], convs: [(Conv, [usize; 4]); 3]) -> (Graph, Vec<NodeId>) {
        let mut random = Random::new(2);
        let mut graph = Graph::new("chain");
        let mut value = graph.add_input("x", DType::F32, Shape::from(x));
        if x[1] == BLOCK {
            graph.value_mut(value).layout = LAYOUT;
        }
        let epilogue = Epilogue { activation: [Unary::Relu].into_iter().collect(), ..Epilogue::bias(true) };
        for (conv, weight) in convs {
            let mut known = |shape: &[usize]| Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0));
            let (bias, weight) = (known(&weight[..1]), known(&weight));
            let weight = graph.add_weight("w", weight);
            let bias = graph.add_weight("b", bias);
            let conv = Conv { epilogue: epilogue.clone(), ..conv };
            value = graph.add1(Op::Conv(conv), &[value, weight, bias], Scope::new("conv")).unwrap();
            graph.value_mut(value).layout = LAYOUT;
        }
        graph.set_outputs(vec![("y".into(), value)]);
        let nodes = graph.nodes().keys().collect();
        (graph, nodes)
    }

    #[test]
    fn tensors_larger_than_the_caches_are_fused() {
        let (graph, nodes) = bottleneck(96, 112, 2);
        assert!(fused_workspace(&graph, &nodes, None).is_some());
        assert!(
            fused_workspace(&graph, &nodes[1..], None).is_none(),
            "what the depthwise convolution leaves is 1.15 MiB"
        );
        assert!(fused_workspace(&graph, &nodes[..2], None).is_none(), "the last of the row is a product over channels");
        let (graph, nodes) = bottleneck(192, 28, 1);
        assert!(fused_workspace(&graph, &nodes, None).is_none(), "588 KiB stay in the caches");
    }

    #[test]
    fn the_begin_of_a_network_is_fused_where_that_saves_memory() {
        // The first three convolutions of MobileNet, their channels divided by so much.
        let begin = |batch: usize, divided: usize, stride: usize| {
            let channels = 32 / divided;
            let depthwise = Conv { groups: channels, ..Conv::square(stride, 1) };
            let convs = [
                (Conv::square(2, 1), [channels, 3, 3, 3]),
                (depthwise, [channels, 1, 3, 3]),
                (Conv::square(1, 0), [2 * channels, channels, 1, 1]),
            ];
            chain([batch, 3, 224, 224], convs)
        };
        for (batch, divided) in [(32, 1), (32, 4)] {
            let (graph, nodes) = begin(batch, divided, 1);
            assert!(fused_workspace(&graph, &nodes, None).is_some(), "{batch} images, channels by {divided}");
        }
        let (graph, nodes) = begin(4, 1, 1);
        assert!(
            fused_workspace(&graph, &nodes, None).is_none(),
            "6.1 MiB are read back nearly as fast as they were written"
        );
        let signal = chain(
            [1, 16, 1, 8000],
            [
                (Conv::square(1, 0), [96, 16, 1, 1]),
                (Conv { groups: 96, pad: [[0, 0], [1, 1]].into_iter().collect(), ..Conv::square(1, 0) }, [96, 1, 1, 3]),
                (Conv::square(1, 0), [24, 96, 1, 1]),
            ],
        );
        assert!(fused_workspace(&signal.0, &signal.1, None).is_none(), "one row is one band, for one thread");
        let (graph, nodes) = begin(32, 1, 1);
        let mut narrow = graph.clone();
        narrow.value_mut(graph.inputs()[0]).layout = LAYOUT;
        assert!(fused_workspace(&narrow, &nodes, None).is_none(), "in front of many channels the halo would be dear");
        let (graph, nodes) = begin(32, 1, 4);
        assert!(
            fused_workspace(&graph, &nodes[1..], None).is_none(),
            "what the depthwise convolution leaves is narrower than both its neighbours"
        );
    }

    #[test]
    fn less_scratch_is_lower_bands() {
        let (graph, nodes) = bottleneck(96, 112, 2);
        let (fused, id) = as_one_step(&graph, &nodes);
        let workspace = |workspace: Bytes| {
            let query = Query { workspace, ..Query::GIVEN };
            CpuTarget::new().candidates(&fused, &[id], &query).unwrap()[0].workspace
        };
        let free = workspace(UNLIMITED);
        assert!(workspace(Bytes(free.0 / 2)).0 <= free.0 / 2);
        assert!(workspace(Bytes(0)) < Bytes(free.0 / 2), "one row at a time is the least");
    }

    /// A chain with one node for all of its convolutions behind them.
    fn as_one_step(graph: &Graph, nodes: &[NodeId]) -> (Graph, NodeId) {
        let mut fused = graph.clone();
        let mut inputs = vec![graph.inputs()[0]];
        inputs.extend(graph.nodes().values().flat_map(|node| node.inputs[1..].to_vec()));
        let convs = nodes.iter().map(|&id| match &graph.node(id).op {
            Op::Conv(conv) => conv.clone(),
            op => unreachable!("{op:?}"),
        });
        let y = fused.add1(ConvChain { convs: convs.collect() }.into(), &inputs, Scope::new("all")).unwrap();
        fused.value_mut(y).layout = LAYOUT;
        let id = fused.value(y).producer().unwrap();
        (fused, id)
    }

    #[test]
    fn lower_stripes_are_candidates_and_take_longer() {
        let (graph, nodes) = bottleneck(96, 112, 2);
        let (fused, id) = as_one_step(&graph, &nodes);
        let candidates = CpuTarget::new().candidates(&fused, &[id], &Query::GIVEN).unwrap();
        assert!(1 < candidates.len());
        for pair in candidates.windows(2) {
            assert!(
                pair[1].workspace < pair[0].workspace && pair[0].cost < pair[1].cost,
                "more rows are computed twice"
            );
        }
    }
}
