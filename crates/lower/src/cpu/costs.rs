//! The candidates of a node in a layout, with their costs: the modelled or measured times of kernels in picoseconds.

use cpu::{Kernel, StorageType};
use ir::{Candidate, Graph, Node, NodeId, Op, Query, UNLIMITED, ValueId};
use types::{Bytes, DType, Layout};

use super::blocked::{self, BLOCK, LAYOUT, reads_blocked};
use super::channel_moves::moved_channels;
use super::times::Workload;
use super::training::{self, is_channel_sum, writes_blocked};
use super::{CpuTarget, bottleneck, windows};
use crate::NodeView;

/// The candidates for a node whose result has a layout, the fastest first.
pub(super) fn candidates_in(
    graph: &Graph,
    id: NodeId,
    layout: Layout,
    query: &Query,
    target: &CpuTarget,
) -> Vec<Candidate> {
    let node = graph.node(id);
    let candidate = |(cost, workspace)| {
        let mut candidate = Candidate { cost, workspace, ..Candidate::given(graph, id) };
        let of = |blocked: bool| if layout == LAYOUT && blocked { LAYOUT } else { Layout::RowMajor };
        candidate.result.layout = of(writes_blocked(graph, node, 0));
        for (ix, further) in candidate.further.iter_mut().enumerate() {
            further.layout = of(writes_blocked(graph, node, ix + 1));
        }
        for (ix, operand) in candidate.operands.iter_mut().enumerate() {
            operand.layout = of(reads_blocked(graph, node, ix));
        }
        candidate
    };
    costs(graph, id, layout, query, target).into_iter().map(candidate).collect()
}

/// The time and the workspace of each kernel for a node whose result has a layout, in the order of `select`. The workspace of
/// nodes whose kernels are not listed by [`kernels`] is not modelled. Empty without a kernel.
pub(super) fn costs(graph: &Graph, id: NodeId, layout: Layout, query: &Query, target: &CpuTarget) -> Vec<(u64, Bytes)> {
    let node = graph.node(id);
    if let Op::Relayout(_) = &node.op {
        return vec![(relayout_time(graph, node.inputs[0], target), Bytes::ZERO)];
    }
    let is_blocked = match layout {
        Layout::RowMajor => false,
        LAYOUT => true,
        _ => return Vec::new(),
    };
    let mut values = node.inputs.iter().chain(&node.outputs);
    let is_possible = match is_blocked {
        true => values.all(|&value| StorageType::of(graph.ty(value).dtype).is_some()),
        // Windows write half precision and int8 only to blocked layouts.
        false if matches!(node.op, Op::Conv(_) | Op::Pool(_)) => {
            values.all(|&value| graph.ty(value).dtype == DType::F32)
        }
        false => true,
    };
    if !is_possible {
        return Vec::new();
    }
    let cost = |kernel: &Kernel| {
        let workspace = Bytes(kernel.sizes().ok()?.workspace);
        Some((target.time(kernel).unwrap_or_else(|| rough_time(graph, node, layout, target)), workspace))
    };
    if let Op::ConvChain(chain) = &node.op {
        let kernels = bottleneck::kernels(&NodeView::new(graph, id, query), chain, target.weights).unwrap_or_default();
        let cost = |kernel: &cpu::InvertedBottleneck| {
            let workspace = Bytes(Kernel::from(kernel.clone()).sizes().ok()?.workspace);
            let time = bottleneck::time(kernel, target).unwrap_or_else(|| rough_time(graph, node, layout, target));
            Some((time, workspace))
        };
        return kernels.iter().filter_map(cost).collect();
    }
    match kernels(graph, id, is_blocked, query, target) {
        Some(kernels) => kernels.iter().filter_map(cost).collect(),
        None => vec![(rough_time(graph, node, layout, target), Bytes::ZERO)],
    }
}

/// The time of a node whose kernel is not modelled: that of its bytes, and of products if it has them.
fn rough_time(graph: &Graph, node: &Node, layout: Layout, target: &CpuTarget) -> u64 {
    let bytes = |value: ValueId| {
        let value = graph.value(value);
        if value.tensor().is_some() { 0 } else { layout.size(&value.ty.shape, value.ty.dtype).0 }
    };
    let bytes: u64 = match node.moved_part() {
        Some(part) => 2 * bytes(part),
        None => node.inputs.iter().chain(&node.outputs).map(|&value| bytes(value)).sum(),
    };
    let multiplies =
        matches!(node.op, Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvChain(_) | Op::ConvWeightGradient(_));
    let products = if multiplies { graph.node_flops(node) as f64 / 2.0 } else { 0.0 };
    let family = if layout == LAYOUT { "direct" } else { "rows" };
    let arithmetic = target.times().of_work(&Workload { family, amounts: vec![("products", products)] });
    target.times().of_bytes(bytes).saturating_add(arithmetic.unwrap_or(0))
}

/// The kernels of a node in a layout, the fastest first; `None` if their time is that of its bytes.
fn kernels(graph: &Graph, id: NodeId, is_blocked: bool, query: &Query, target: &CpuTarget) -> Option<Vec<Kernel>> {
    let (node, view) = (graph.node(id), NodeView::new(graph, id, query));
    let layout = if is_blocked { LAYOUT } else { Layout::RowMajor };
    let one = |kernel: Result<Kernel, String>| Some(kernel.into_iter().collect());
    let of_rows = |kernels: Result<Vec<windows::RowMajorConv>, String>| {
        // A node without such a kernel still has a time, for comparisons of layouts.
        Some(kernels.ok()?.into_iter().map(|kernel| kernel.kernel()).collect())
    };
    match &node.op {
        Op::Conv(conv) if is_blocked => {
            let is_dynamic = graph.value(node.inputs[1]).tensor().is_none();
            let kernels = blocked::conv_choices(graph, node, conv, query.workspace, target).unwrap_or_default();
            Some(kernels.into_iter().map(|kernel| kernel.kernel(is_dynamic)).collect())
        }
        Op::ConvTranspose(conv) if is_blocked => {
            Some(blocked::data_gradient_kernels(graph, node, conv, query.workspace, target).unwrap_or_default())
        }
        Op::Conv(conv) => of_rows(windows::conv_kernels(&view, conv, target)),
        Op::ConvTranspose(conv) => of_rows(windows::conv_transpose_kernels(&view, conv, target)),
        Op::Pool(pool) if is_blocked => {
            let kernel = blocked::pool_kernel(graph.ty(node.inputs[0]), &graph.ty(node.outputs[0]).shape, pool);
            one(kernel.map(Kernel::from))
        }
        Op::Pool(pool) => Some(vec![windows::pool_kernel(&view, pool).ok()?.into()]),
        Op::ConvWeightGradient(op) if is_blocked => one(training::weight_gradient_kernel(graph, node, op, true)),
        Op::ConvWeightGradient(op) => Some(vec![training::weight_gradient_kernel(graph, node, op, false).ok()?]),
        Op::PoolGradient(op) => one(training::pool_gradient_kernel(graph, node, op, layout).map(Kernel::from)),
        Op::PoolWithPositions(op) => {
            one(training::pool_with_positions_kernel(graph, node, &op.pool, layout).map(Kernel::from))
        }
        Op::BatchNormTraining(_) | Op::BatchNormGradient(_) | Op::ConvChain(_) => None,
        Op::Reduce(reduce) if is_blocked && is_channel_sum(graph, node, reduce) => None,
        Op::Transpose(_) if is_blocked && moved_channels(graph, node).is_some() => None,
        Op::ArgExtreme(_)
        | Op::Attention(_)
        | Op::BatchNorm(_)
        | Op::Binary(_)
        | Op::BitCast(_)
        | Op::Cast(_)
        | Op::Chain(_)
        | Op::Compare(_)
        | Op::Concat(_)
        | Op::Ctc(_)
        | Op::CtcGradient(_)
        | Op::CumulativeSum(_)
        | Op::Dropout(_)
        | Op::Expand(_)
        | Op::Gather(_)
        | Op::Insert(_)
        | Op::LayerNorm(_)
        | Op::Lrn(_)
        | Op::MatMul(_)
        | Op::Pad(_)
        | Op::Recurrent(_)
        | Op::RecurrentGradient(_)
        | Op::RecurrentWithGates(_)
        | Op::Relayout(_)
        | Op::Reshape(_)
        | Op::Resize(_)
        | Op::Scatter(_)
        | Op::ScatterAdd(_)
        | Op::Select(_)
        | Op::Slice(_)
        | Op::Softmax(_)
        | Op::SoftmaxCrossEntropy(_)
        | Op::SoftmaxCrossEntropyGradient(_)
        | Op::StopGradient(_)
        | Op::TopK(_)
        | Op::Transpose(_)
        | Op::Unary(_)
        | Op::Update(_)
        | Op::Reduce(_) => (is_blocked && graph.blocked_op(node, BLOCK as u16).is_none()).then(Vec::new),
    }
}

/// All kernels of a node in any layout, if there are several: one is chosen by its time.
pub(super) fn alternatives(graph: &Graph, id: NodeId, target: &CpuTarget) -> Vec<Kernel> {
    let query = Query { workspace: UNLIMITED, ..Query::GIVEN };
    let (node, mut all) = (graph.node(id), Vec::new());
    if let Op::Conv(conv) = &node.op {
        let is_dynamic = graph.value(node.inputs[1]).tensor().is_none();
        let kernels = blocked::conv_kernels(graph, node, conv, UNLIMITED, target).unwrap_or_default();
        all.extend(kernels.into_iter().map(|kernel| kernel.kernel(is_dynamic)));
    } else if blocked::has_blocked_form(graph, node) {
        all.extend(kernels(graph, id, true, &query, target).unwrap_or_default());
    }
    all.extend(kernels(graph, id, false, &query, target).unwrap_or_default());
    all.retain(|kernel| kernel.sizes().is_ok());
    all
}

/// The time it takes to convert a value between the layouts, in picoseconds: the mean of both directions.
pub(super) fn relayout_time(graph: &Graph, value: ValueId, target: &CpuTarget) -> u64 {
    let ty = graph.ty(value);
    let Some(stored) = StorageType::of(ty.dtype).filter(|_| 2 <= ty.shape.rank()) else { return 0 };
    let is_alias = ty.shape.iter().skip(2).all(|&extent| extent == 1) && ty.shape[1].is_multiple_of(BLOCK);
    if is_alias {
        return 0;
    }
    let time = |to_blocked| target.time(&blocked::reorder(&ty.shape, stored, to_blocked).into()).unwrap_or(0);
    (time(true) + time(false)) / 2
}
