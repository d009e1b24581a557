//! Kernels of gradients and updates, in both layouts.

use cpu::{ImageLayout, Kernel, LabeledRows, LabeledSequences, Planes, Pool2dKind};
use ir::ops::{
    ConvWeightGradient, Ctc, Pool, PoolGradient, PoolKind, RecurrentGradient, Reduce, ReduceKind, SoftmaxCrossEntropy,
};
use ir::{Call, Graph, Node, Op};
use types::{DType, Layout, Shape};

use super::blocked::{LAYOUT, reads_blocked};
use super::channel_moves::{ChannelMove, moved_channels};
use super::select::{call, recurrent_label};
use super::windows::{label, rows_columns, window, windows};
use crate::NodeView;

/// Whether a node works on blocked values: whether its first result is blocked, or for results along channels its operand.
pub(super) fn works_on_blocks(graph: &Graph, node: &Node) -> bool {
    let value = match deciding_operand(graph, node) {
        Some(input) => node.inputs[input],
        None => node.outputs[0],
    };
    graph.value(value).layout == LAYOUT
}

/// The operand whose layout is that of the work, for nodes whose result is row-major in any case.
fn deciding_operand(graph: &Graph, node: &Node) -> Option<usize> {
    if matches!(node.op, Op::ConvWeightGradient(_)) {
        return Some(1);
    }
    if moved_channels(graph, node) == Some(ChannelMove::ToBack) {
        return Some(0);
    }
    matches!(&node.op, Op::Reduce(reduce) if is_channel_sum(graph, node, reduce)).then_some(0)
}

/// Whether a result is blocked if the node works on blocked values: gradients of parameters and statistics never are, the
/// positions of maxima are as the maxima.
pub(super) fn writes_blocked(graph: &Graph, node: &Node, output: usize) -> bool {
    (output == 0 || matches!(node.op, Op::PoolWithPositions(_))) && deciding_operand(graph, node).is_none()
}

/// Whether a reduction sums images and pixels of each channel, as the gradient of a bias. Its result is row-major, whether
/// summed axes stay or not.
pub(super) fn is_channel_sum(graph: &Graph, node: &Node, reduce: &Reduce) -> bool {
    let x = graph.ty(node.inputs[0]);
    let others = (0..x.shape.rank()).filter(|&axis| axis != 1);
    let is_sum = reduce.kind == ReduceKind::Sum && x.dtype == DType::F32;
    is_sum && 2 < x.shape.rank() && reduce.axes.iter().copied().eq(others)
}

/// The images of a value.
fn planes(shape: &Shape, layout: Layout) -> Planes {
    let layout = if layout == LAYOUT { ImageLayout::Blocked } else { ImageLayout::RowMajor };
    Planes { batch: shape[0], channels: shape[1], plane: shape[2..].iter().product(), layout }
}

pub(super) fn channel_sum(node: &NodeView) -> Result<Call, String> {
    let x = node.graph.ty(node.node.inputs[0]);
    let kernel = cpu::ChannelSum { planes: planes(&x.shape, node.input_layout(0)) };
    call(kernel, format!("sum of {} by channel", x.shape), node.values())
}

/// The kernel of a weight gradient, whose result is row-major, on operands in a layout.
pub(super) fn weight_gradient_kernel(
    graph: &Graph,
    node: &Node,
    op: &ConvWeightGradient,
    is_blocked: bool,
) -> Result<Kernel, String> {
    let values = || node.inputs.iter().chain(&node.outputs);
    if let Some(&other) = values().find(|&&value| graph.ty(value).dtype != DType::F32) {
        return Err(format!("its kernel computes with f32, not with {}", graph.ty(other).dtype));
    }
    let [x, dy] = [0, 1].map(|ix: usize| &graph.ty(node.inputs[ix]).shape);
    if is_blocked && op.kernel.len() == 3 {
        return Err("its blocked kernel takes two spatial axes".into());
    }
    let [depth, window] = windows(x, dy, &op.kernel, &op.stride, &op.dilation, &op.pad)?;
    let (batch, in_channels, out_channels, groups) = (x[0], x[1], dy[1], op.groups);
    let kernel: Kernel = if !is_blocked {
        cpu::WeightGradientRows { batch, in_channels, out_channels, groups, depth, window }.into()
    } else if groups == in_channels && groups == out_channels && 1 < groups {
        if !reads_blocked(graph, node, 0) {
            return Err("its blocked kernel takes more channels".into());
        }
        cpu::DepthwiseWeightGradient { batch, channels: groups, window }.into()
    } else {
        let layout = if reads_blocked(graph, node, 0) { ImageLayout::Blocked } else { ImageLayout::RowMajor };
        cpu::ConvWeightGradient { batch, in_channels, out_channels, groups, window, layout }.into()
    };
    match kernel.sizes() {
        Ok(_) => Ok(kernel),
        Err(misfit) => Err(misfit.to_string()),
    }
}

/// The call of the gradient of a recurrent layer.
pub(super) fn recurrent_gradient(node: &NodeView, op: &RecurrentGradient) -> Result<Call, String> {
    let y = &node.input(op.layer_operands()).shape;
    let (cell, direction) = (op.recurrent.cell.clone(), op.recurrent.direction);
    let kernel = cpu::RecurrentGradient { cell, direction, seq: y[0], batch: y[2], units: y[3], values: op.values };
    match Kernel::from(kernel.clone()).sizes() {
        Ok(_) => call(kernel, recurrent_label(node, &op.recurrent), node.values()),
        Err(misfit) => Err(misfit.to_string()),
    }
}

pub(super) fn weight_gradient(node: &NodeView, op: &ConvWeightGradient) -> Result<Call, String> {
    let kernel = weight_gradient_kernel(node.graph, node.node, op, works_on_blocks(node.graph, node.node))?;
    let taps = op.kernel.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let label = format!("{taps}/{} weight gradient {}", op.stride.last().copied().unwrap_or(1), node.output().shape);
    call(kernel, label, node.values())
}

/// The kernel of a pool's gradient, whose operands and result have one layout.
pub(super) fn pool_gradient_kernel(
    graph: &Graph,
    node: &Node,
    op: &PoolGradient,
    layout: Layout,
) -> Result<cpu::PoolGradient, String> {
    let (dy, dx) = (graph.ty(node.inputs[0]), &graph.ty(node.outputs[0]).shape);
    if dy.dtype != DType::F32 {
        return Err(format!("its kernel computes with f32, not with {}", dy.dtype));
    }
    let pool = &op.pool;
    let window = window(dx, &dy.shape, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    let kind = match pool.kind {
        PoolKind::Max => Pool2dKind::Max,
        PoolKind::Mean => Pool2dKind::Mean,
        PoolKind::MeanWithPadding => Pool2dKind::MeanWithPadding { pad_end: rows_columns(&back, 0)? },
    };
    let kernel = cpu::PoolGradient { kind, planes: planes(&dy.shape, layout), window, positions: op.positions };
    match Kernel::from(kernel.clone()).sizes() {
        Ok(_) => Ok(kernel),
        Err(misfit) => Err(misfit.to_string()),
    }
}

pub(super) fn pool_gradient(node: &NodeView, op: &PoolGradient) -> Result<Call, String> {
    let kernel = pool_gradient_kernel(node.graph, node.node, op, node.layout)?;
    let name = if op.pool.kind == PoolKind::Max { " max gradient" } else { " mean gradient" };
    let label = label(&kernel.window, &node.graph.ty(node.node.outputs[0]).shape, name);
    call(kernel, label, node.values())
}

/// The kernel of a maximum pool with positions, whose operand and results have one layout.
pub(super) fn pool_with_positions_kernel(
    graph: &Graph,
    node: &Node,
    pool: &Pool,
    layout: Layout,
) -> Result<cpu::PoolWithPositions, String> {
    let [x, y] = [node.inputs[0], node.outputs[0]].map(|value| graph.ty(value));
    if y.dtype != DType::F32 {
        return Err(format!("its kernel computes with f32, not with {}", y.dtype));
    }
    let window = window(&x.shape, &y.shape, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let kernel = cpu::PoolWithPositions { planes: planes(&y.shape, layout), window };
    match Kernel::from(kernel.clone()).sizes() {
        Ok(_) => Ok(kernel),
        Err(misfit) => Err(misfit.to_string()),
    }
}

pub(super) fn pool_with_positions(node: &NodeView, pool: &Pool) -> Result<Call, String> {
    let kernel = pool_with_positions_kernel(node.graph, node.node, pool, node.layout)?;
    let label = label(&kernel.window, &node.output().shape, " max with positions");
    call(kernel, label, node.values())
}

pub(super) fn batch_norm_training(node: &NodeView, epsilon: f32) -> Result<Call, String> {
    let x = &node.graph.ty(node.node.inputs[0]).shape;
    let kernel = cpu::BatchNormTraining { planes: planes(x, node.layout), epsilon, relu: false };
    call(kernel, format!("statistics of {x}"), node.values())
}

pub(super) fn batch_norm_gradient(node: &NodeView, epsilon: f32) -> Result<Call, String> {
    let x = &node.graph.ty(node.node.inputs[0]).shape;
    let kernel = cpu::BatchNormGradient { planes: planes(x, node.layout), epsilon, relu: false };
    call(kernel, format!("normalization gradient {x}"), node.values())
}

/// The rows of logits and labels.
fn labeled_rows(node: &NodeView, logits: usize, loss: &SoftmaxCrossEntropy) -> LabeledRows {
    let shape = &node.input(logits).shape;
    let classes = shape.last().copied().unwrap_or(1);
    LabeledRows {
        rows: shape[..shape.rank() - 1].iter().product(),
        classes,
        wide: node.input(logits + 1).dtype == DType::I64,
        ignore: loss.ignore,
        smoothing: loss.smoothing,
    }
}

pub(super) fn cross_entropy(node: &NodeView, loss: &SoftmaxCrossEntropy) -> Result<Call, String> {
    let rows = labeled_rows(node, 0, loss);
    call(cpu::SoftmaxCrossEntropy { rows }, format!("{} x {}", rows.rows, rows.classes), node.values())
}

pub(super) fn cross_entropy_gradient(node: &NodeView, loss: &SoftmaxCrossEntropy) -> Result<Call, String> {
    let rows = labeled_rows(node, 1, loss);
    call(cpu::SoftmaxCrossEntropyGradient { rows }, format!("{} x {}", rows.rows, rows.classes), node.values())
}

/// The sequences of logits and labels.
fn labeled_sequences(node: &NodeView, logits: usize, loss: &Ctc) -> LabeledSequences {
    let (shape, labels) = (&node.input(logits).shape, node.input(logits + 1));
    let wide = labels.dtype == DType::I64;
    let (steps, batch, classes) = (shape[0], shape[1], shape[2]);
    LabeledSequences { steps, batch, classes, labels: labels.shape[1], wide, blank: loss.blank }
}

pub(super) fn ctc(node: &NodeView, loss: &Ctc) -> Result<Call, String> {
    let sequences = labeled_sequences(node, 0, loss);
    let label = format!("{} steps x {} x {}", sequences.steps, sequences.batch, sequences.classes);
    call(cpu::Ctc { sequences }, label, node.values())
}

pub(super) fn ctc_gradient(node: &NodeView, loss: &Ctc) -> Result<Call, String> {
    let sequences = labeled_sequences(node, 1, loss);
    let label = format!("{} steps x {} x {}", sequences.steps, sequences.batch, sequences.classes);
    call(cpu::CtcGradient { sequences }, label, node.values())
}

pub(super) fn update(node: &NodeView, op: &ir::ops::Update) -> Result<Call, String> {
    let shape = &node.input(0).shape;
    if op.factors {
        let (m, k, n) = (shape[0], node.input(1).shape[1], shape[1]);
        let kernel = cpu::UpdateByFactors::new(op.rule, m, k, n);
        return call(kernel, format!("{} of {shape} by {k} terms", op.rule.name()), node.values());
    }
    let kernel = cpu::Update { rule: op.rule, elements: shape.elements() };
    call(kernel, format!("{} of {shape}", op.rule.name()), node.values())
}

pub(super) fn dropout(node: &NodeView, op: &ir::ops::Dropout) -> Result<Call, String> {
    let shape = &node.input(0).shape;
    let kernel = cpu::Dropout { elements: shape.elements(), rate: op.rate, stream: op.stream };
    call(kernel, format!("{} of {shape}", op.rate), node.values())
}

pub(super) fn scatter_add(node: &NodeView, op: &ir::ops::ScatterAdd) -> Result<Call, String> {
    let (index, out) = (node.input(0), &node.output().shape);
    let indices = index.shape.elements();
    let kernel = cpu::ScatterAdd {
        outer: out[..op.axis].iter().product(),
        axis: op.extent,
        inner: out[op.axis + 1..].iter().product(),
        indices,
        wide: index.dtype == DType::I64,
    };
    call(kernel, format!("{indices} rows to {out}"), node.values())
}
