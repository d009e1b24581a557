//! Normalization with batch statistics, dropout, losses and sums by index, with their gradients.

use ir::Call;
use ir::ops::{Ctc, Dropout, ScatterAdd, SoftmaxCrossEntropy};
use types::{Bytes, Philox};

use super::c_source::number;
use super::emit::{Block, Emitted, KernelKind, Template, around, blocks, call};
use crate::NodeView;

/// The call of a kernel that reads all operands of a node.
fn by(node: &NodeView, kind: KernelKind, blocks: [u32; 3], body: String, label: String, in_place: &[usize]) -> Call {
    let needs = vec![Template::Rows, Template::Training];
    let emitted = Emitted {
        kind,
        parameters: node.all_parameters(),
        body,
        grid: blocks,
        block: Block::USUAL,
        iterations: None,
        needs,
    };
    call(emitted, label, &(0..node.operand_count()).collect::<Vec<_>>(), in_place)
}

/// A grid with a block for each row, and at least one.
fn rows(count: usize) -> [u32; 3] {
    [count.max(1) as u32, 1, 1]
}

pub(super) fn batch_norm(node: &NodeView, epsilon: f32) -> Vec<Call> {
    let x = &node.input(0).shape;
    let [images, channels, cells] = around(x, 1);
    let body = match channels {
        0 => String::new(),
        _ => format!(
            "    batch_norm_training<{images}, {channels}, {cells}>(a0, a1, a2, y0, y1, y2, {});\n",
            number(epsilon)
        ),
    };
    vec![by(node, KernelKind::BatchNorm, rows(channels), body, format!("statistics of {x}"), &[])]
}

pub(super) fn batch_norm_gradient(node: &NodeView, epsilon: f32) -> Vec<Call> {
    let x = &node.input(1).shape;
    let [images, channels, cells] = around(x, 1);
    let body = match channels {
        0 => String::new(),
        _ => format!(
            "    batch_norm_gradient<{images}, {channels}, {cells}>(a0, a1, a2, a3, a4, y0, y1, y2, {});\n",
            number(epsilon)
        ),
    };
    let label = format!("gradient of the normalization of {x}");
    vec![by(node, KernelKind::BatchNormGradient, rows(channels), body, label, &[0, 1])]
}

pub(super) fn dropout(node: &NodeView, dropout: &Dropout) -> Vec<Call> {
    let elements = node.output().shape.elements();
    let (threshold, scale) = (Philox::threshold(dropout.rate), 1.0 / (1.0 - dropout.rate));
    let body = match elements {
        0 => String::new(),
        _ => format!("    drop<{elements}>(a0, a1, y0, {}u, {threshold}u, {});\n", dropout.stream, number(scale)),
    };
    let grid = blocks(elements.div_ceil(Philox::BLOCK));
    vec![by(node, KernelKind::Dropout, grid, body, format!("{} of {}", dropout.rate, node.output().shape), &[0])]
}

/// `[](long long label) { .. }`: whether a label counts.
fn counts(loss: &SoftmaxCrossEntropy, classes: usize) -> String {
    let ignored = loss.ignore.map(|label| format!(" && label != {}", integer(label))).unwrap_or_default();
    format!("[](long long label) {{ return 0 <= label && label < {classes}{ignored}; }}")
}

/// An integer as a C literal. The least one has none: its digits alone are out of range.
fn integer(value: i64) -> String {
    if value == i64::MIN { format!("({}ll - 1)", value + 1) } else { format!("{value}ll") }
}

pub(super) fn cross_entropy(node: &NodeView, loss: &SoftmaxCrossEntropy) -> Vec<Call> {
    let (logits, count) = (&node.input(0).shape, node.output().shape.elements());
    let classes = logits[logits.rank() - 1];
    let (smooth, smoothing) = (loss.smoothing != 0.0, number(loss.smoothing));
    let body = match count {
        0 => String::new(),
        _ => format!("    cross_entropy<{classes}, {smooth}>(a0, a1, y0, {smoothing}, {});\n", counts(loss, classes)),
    };
    vec![by(node, KernelKind::Loss, rows(count), body, format!("{count} x {classes}"), &[])]
}

pub(super) fn cross_entropy_gradient(node: &NodeView, loss: &SoftmaxCrossEntropy) -> Vec<Call> {
    let (logits, count) = (&node.input(1).shape, node.input(0).shape.elements());
    let classes = logits[logits.rank() - 1];
    let (smoothing, counts) = (number(loss.smoothing), counts(loss, classes));
    let body = match count {
        0 => String::new(),
        _ => format!("    cross_entropy_gradient<{classes}>(a0, a1, a2, y0, {smoothing}, {counts});\n"),
    };
    vec![by(node, KernelKind::LossGradient, rows(count), body, format!("{count} x {classes}"), &[1])]
}

pub(super) fn scatter_add(node: &NodeView, scatter: &ScatterAdd) -> Vec<Call> {
    let (out, count) = (&node.output().shape, node.input(0).shape.elements());
    let [outer, extent, inner] = around(out, scatter.axis);
    let body = match out.elements() {
        0 => String::new(),
        _ => format!("    scatter_add<{count}, {extent}, {inner}>(a0, a1, y0);\n"),
    };
    let label = format!("{count} rows to {out}");
    vec![by(node, KernelKind::ScatterAdd, rows(outer * extent), body, label, &[])]
}

/// A kernel of a block for each sequence, whose workspace has `kept` steps of forward sums.
fn by_sequence(node: &NodeView, kind: KernelKind, loss: &Ctc, operand: usize, kept: usize) -> Vec<Call> {
    let (logits, length) = (&node.input(operand).shape, node.input(operand + 1).shape[1]);
    let [steps, batch, classes] = [logits[0], logits[1], logits[2]];
    let (name, states) = (if operand == 0 { "ctc" } else { "ctc_gradient" }, 2 * length + 1);
    let arguments: String =
        (0..node.operand_count()).map(|ix| format!("a{ix}, ")).chain(["y0, workspace".into()]).collect();
    let body = match batch {
        0 => String::new(),
        _ => format!("    {name}<{steps}, {batch}, {classes}, {length}, {}>({arguments});\n", loss.blank),
    };
    let mut parameters = node.all_parameters();
    parameters.push(("double*".into(), "workspace".into()));
    let needs = vec![Template::Ctc];
    let emitted = Emitted { kind, parameters, body, grid: rows(batch), block: Block::USUAL, iterations: None, needs };
    let label = format!("{batch} sequences of {steps} steps, {length} labels of {classes}");
    let call = call(emitted, label, &(0..node.operand_count()).collect::<Vec<_>>(), &[]);
    // As `Alignments::NUMBERS` of the template.
    let numbers = steps + kept * states + 2 * states + (states + 2) / 2;
    vec![Call { workspace: Bytes((batch.max(1) * numbers * size_of::<f64>()) as u64), ..call }]
}

pub(super) fn ctc(node: &NodeView, loss: &Ctc) -> Vec<Call> {
    by_sequence(node, KernelKind::Ctc, loss, 0, 2)
}

pub(super) fn ctc_gradient(node: &NodeView, loss: &Ctc) -> Vec<Call> {
    by_sequence(node, KernelKind::CtcGradient, loss, 1, node.input(1).shape[0].max(1))
}
