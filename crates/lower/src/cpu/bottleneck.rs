//! Convolutions in a row as one [`cpu::InvertedBottleneck`].

use ir::ops::{Conv, ConvChain};
use ir::{Graph, NodeId, Op, TensorType, ValueId};
use smallvec::SmallVec;
use types::{Bytes, DType, Shape};

use super::blocked::{self, LAYOUT};
use super::windows::{label, window};
use super::{View, call, epilogue, packed, packed_bytes, suffix};
use crate::{Call, CallInput, FREE_SCRATCH};

/// What lies between the convolutions of a chain is to have more bytes than this, for each picture: about what two
/// second-level caches keep. Less is read back nearly as fast as it was written, and rows that are computed twice cost more
/// than that (docs/measurements/cpu.md has both sides).
const WIDE: Bytes = Bytes(3 << 19);
/// A band's rows at most, and what its part of the scratch may have: half of a second-level cache.
const BAND_MAX: usize = 14;
const BAND_SCRATCH: u64 = 384 << 10;

/// Whether a run of nodes is an inverted bottleneck, or the last two of its three convolutions, that is faster as one step.
pub(super) fn fuses(graph: &Graph, run: &[NodeId]) -> bool {
    let first = graph.node(run[0]);
    let blocked = |value: ValueId| graph.value(value).layout == LAYOUT;
    let mut operands: SmallVec<[ValueId; 8]> = SmallVec::from_slice(&first.inputs[..1]);
    let mut convs = Vec::new();
    for &id in run {
        let node = graph.node(id);
        let Op::Conv(conv) = &node.op else { return false };
        let known = node.inputs[1..2 + usize::from(conv.epilogue.bias)]
            .iter()
            .all(|&value| graph.value(value).tensor().is_some());
        if !known || !blocked(node.outputs[0]) {
            return false;
        }
        operands.extend_from_slice(&node.inputs[1..]);
        convs.push(conv.clone());
    }
    let types: SmallVec<[&TensorType; 8]> = operands.iter().map(|&value| graph.ty(value)).collect();
    let between = run[..run.len() - 1].iter().map(|&id| graph.ty(graph.node(id).outputs[0]));
    let wide = between.map(|ty| LAYOUT.size(&ty.shape, ty.dtype).0 / ty.shape[0].max(1) as u64).max();
    let out = &graph.ty(graph.node(run[run.len() - 1]).outputs[0]).shape;
    let halves =
        types.iter().any(|ty| ty.dtype != DType::F32) || convs.iter().any(|conv| conv.epilogue.result.is_some());
    blocked(first.inputs[0])
        && !halves
        && WIDE.0 < wide.unwrap_or(0)
        && kernel_of(&ConvChain { convs }, &types, out, FREE_SCRATCH)
            .is_ok_and(|kernel| cpu::Kernel::from(kernel).sizes().is_ok())
}

pub(super) fn lower(node: &View, chain: &ConvChain) -> Result<Call, String> {
    if !node.is_blocked {
        return Err("its channels are not in blocks".into());
    }
    let types: SmallVec<[&TensorType; 8]> = node.node.inputs.iter().map(|&input| node.graph.ty(input)).collect();
    let kernel = kernel_of(chain, &types, &node.output().shape, node.scratch)?;
    let mut inputs: Vec<CallInput> = (0..types.len()).map(CallInput::Value).collect();
    let first = 3 - chain.convs.len();
    for (ix, (conv, own)) in chain.parts().enumerate() {
        let packing = kernel.clone();
        inputs[own.start] = match first + ix {
            0 => packed_bytes(own.start, move |items| {
                packing.expand_kernel().map(|kernel| kernel.pack(items)).unwrap_or_default()
            }),
            1 => packed(own.start, move |items| packing.depthwise_kernel().pack(items)),
            _ => packed_bytes(own.start, move |items| packing.project_kernel().pack(items)),
        };
        if conv.epilogue.bias {
            inputs[own.start + 1] = packed(own.start + 1, |items| blocked::padded(items.to_vec()));
        }
    }
    let expand = if kernel.expand.is_some() { format!("1x1 {} ", kernel.channels) } else { String::new() };
    let last = chain.convs.last().map(|conv| suffix(&conv.epilogue)).unwrap_or_default();
    let label = format!("{expand}{} by {} rows", label(&kernel.window, &node.output().shape, &last), kernel.band);
    Ok(call(kernel, label, inputs))
}

/// The kernel of a chain of which the operands and the result have these types and shape, with at most `scratch` bytes of
/// workspace if it can.
fn kernel_of(
    chain: &ConvChain,
    inputs: &[&TensorType],
    out: &Shape,
    scratch: Bytes,
) -> Result<cpu::InvertedBottleneck, String> {
    let weight: SmallVec<[&Shape; 3]> = chain.parts().map(|(_, own)| &inputs[own.start].shape).collect();
    let is_product = |ix: usize| {
        let Conv { stride, pad, groups, .. } = &chain.convs[ix];
        let ones = weight[ix][2..].iter().chain(stride).all(|&extent| extent == 1);
        ones && *groups == 1 && pad.iter().all(|pad| *pad == [0, 0])
    };
    let (expand, [depthwise, project]) = match &chain.convs[..] {
        [depthwise, project] => (None, [depthwise, project]),
        [expand, depthwise, project] if is_product(0) => (Some(expand), [depthwise, project]),
        _ => return Err("it is no inverted bottleneck".into()),
    };
    let [kernel, behind] = [weight[weight.len() - 2], weight[weight.len() - 1]];
    let channels = kernel[0];
    let is_depthwise = depthwise.groups == channels && kernel[1] == 1 && 1 < channels;
    if !is_depthwise || !is_product(chain.convs.len() - 1) {
        return Err("it is no inverted bottleneck".into());
    }
    let x = &inputs[0].shape;
    let kernel = cpu::InvertedBottleneck {
        batch: x[0],
        in_channels: x[1],
        channels,
        out_channels: behind[0],
        // Products over channels keep the picture's extents.
        window: window(x, out, &kernel[2..], &depthwise.stride, &depthwise.dilation, &depthwise.pad)?,
        expand: expand.map(|conv| epilogue(&conv.epilogue)),
        depthwise: epilogue(&depthwise.epilogue),
        project: epilogue(&project.epilogue),
        band: 1,
    };
    Ok(in_bands(kernel, scratch))
}

/// A kernel with the highest bands that leave enough of them to share out and whose scratch fits.
fn in_bands(kernel: cpu::InvertedBottleneck, scratch: Bytes) -> cpu::InvertedBottleneck {
    let rows = kernel.batch * kernel.window.output[0];
    let most = rows.div_ceil(cpu::InvertedBottleneck::SLOTS).clamp(1, BAND_MAX);
    let with_band = |band: usize| cpu::InvertedBottleneck { band, ..kernel.clone() };
    let fits = |kernel: &cpu::InvertedBottleneck| {
        let workspace = cpu::Kernel::from(kernel.clone()).sizes().map_or(u64::MAX, |sizes| sizes.workspace);
        let slots = kernel.slots().max(1) as u64;
        workspace <= scratch.0 && workspace / slots <= BAND_SCRATCH
    };
    (1..=most).rev().map(with_band).find(fits).unwrap_or_else(|| with_band(1))
}

#[cfg(test)]
mod tests {
    use ir::ops::Epilogue;
    use types::pointwise::Unary;
    use types::{DType, Random, Scope, Tensor};

    use super::*;
    use crate::Target;
    use crate::cpu::CpuTarget;

    /// A bottleneck on blocked values, with its three nodes.
    fn bottleneck(channels: usize, plane: usize, stride: usize) -> (Graph, Vec<NodeId>) {
        let mut random = Random::new(2);
        let mut graph = Graph::new("bottleneck");
        let mut value = graph.add_input("x", DType::F32, Shape::from([1, 16, plane, plane]));
        graph.value_mut(value).layout = LAYOUT;
        let epilogue = Epilogue { activation: [Unary::Relu].into_iter().collect(), ..Epilogue::bias(true) };
        let depthwise = Conv { groups: channels, ..Conv::square(stride, 1) };
        for (conv, weight) in [
            (Conv::square(1, 0), [channels, 16, 1, 1]),
            (depthwise, [channels, 1, 3, 3]),
            (Conv::square(1, 0), [24, channels, 1, 1]),
        ] {
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
    fn what_outgrows_the_caches_is_fused() {
        let (graph, nodes) = bottleneck(96, 112, 2);
        assert!(fuses(&graph, &nodes));
        assert!(!fuses(&graph, &nodes[1..]), "what the depthwise convolution leaves is 1.15 MiB");
        assert!(!fuses(&graph, &nodes[..2]), "the last of the row is a product over channels");
        let (graph, nodes) = bottleneck(192, 28, 1);
        assert!(!fuses(&graph, &nodes), "588 KiB stay in the caches");
    }

    #[test]
    fn less_scratch_is_lower_bands() {
        let (graph, nodes) = bottleneck(96, 112, 2);
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
        let workspace = |scratch: Bytes| CpuTarget::new().calls(&fused, id, scratch).unwrap()[0].workspace;
        let free = workspace(FREE_SCRATCH);
        assert!(workspace(Bytes(free.0 / 2)).0 <= free.0 / 2);
        assert!(workspace(Bytes(0)) < Bytes(free.0 / 2), "one row at a time is the least");
    }
}
