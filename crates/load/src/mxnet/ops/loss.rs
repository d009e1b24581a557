//! Losses: in inference the prediction, without the label. In training they also note how the label is compared with it.
//!
//! MXNet's `Module` divides the gradients of a batch by its size (`rescale_grad`); here the loss is a mean, which is the same.

use ir::ops::{ReduceKind, Softmax};
use ir::{LossForm, LossMean};
use types::pointwise::Unary;
use types::{DType, Shape};

use super::normalize::flat_softmax;
use super::shape::flattened;
use crate::common::{LossHead, NodeResult, axis, refuse};
use crate::mxnet::node::ImportedNode;

/// Softmax over channels with `multi_output`, over the last axis with `preserve_shape`, else over all elements of a sample.
pub(super) fn softmax_output(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let is_multi = node.flag("multi_output")?;
    let (at, output) = match (is_multi, node.flag("preserve_shape")?) {
        (false, false) => (None, flat_softmax(node, x)?),
        (true, _) => (Some(axis(1, rank)?), node.apply_f32(Softmax { axis: axis(1, rank)?, log: false }, &[x])?),
        (false, true) => (Some(axis(-1, rank)?), node.apply_f32(Softmax { axis: axis(-1, rank)?, log: false }, &[x])?),
    };
    let scale = node.float_or("grad_scale", 1.0)?;
    let ignored = node.flag("use_ignore")?.then_some(node.float_or("ignore_label", -1.0)? as i64);
    node.ignore(&["ignore_label"]);
    let (normalization, spread) = (node.text_or("normalization", "null"), node.float_or("smooth_alpha", 0.0)?);
    let uses_gradient = node.flag("out_grad")?;
    if !node.is_training() {
        return Ok(vec![output]);
    }
    if uses_gradient {
        refuse!("attribute `out_grad` must be False in training, got True");
    }
    let mean = match normalization {
        "null" | "batch" if is_multi => LossMean::Rows,
        "null" => LossMean::Samples,
        // All rows of a shape that is preserved, not the samples.
        "batch" => LossMean::Rows,
        "valid" => LossMean::Counted,
        other => refuse!("attribute `normalization` must be null, batch or valid, got `{other}`"),
    };
    let (prediction, axis) = match at {
        Some(axis) => (x, axis),
        None => (flattened(node, x)?, 1),
    };
    let mut rows = node.shape(prediction);
    let classes = rows.remove(axis);
    // MXNet spreads over all classes but the label, here over all. With `multi_output` it does not spread.
    let spread = if is_multi { 0.0 } else { spread };
    let smoothing = (spread * classes as f64 / (classes.max(2) - 1) as f64) as f32;
    let label = Some(node.label(DType::I32, rows)?);
    let form = LossForm::CrossEntropy { axis, ignored, smoothing };
    node.note_head(LossHead { form, mean, scale, prediction, output, label });
    Ok(vec![output])
}

/// Half the square of the difference.
pub(super) fn linear(node: &mut ImportedNode) -> NodeResult {
    regression(node, LossForm::Squared, 0.5)
}

/// The distance.
pub(super) fn absolute(node: &mut ImportedNode) -> NodeResult {
    regression(node, LossForm::Absolute, 1.0)
}

fn regression(node: &mut ImportedNode, form: LossForm, factor: f64) -> NodeResult {
    let x = node.input(0)?;
    note_numbers(node, form, factor, x, x).map(|()| vec![x])
}

pub(super) fn logistic(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let output = node.unary(Unary::Sigmoid, x)?;
    note_numbers(node, LossForm::Logistic, 1.0, x, output).map(|()| vec![output])
}

/// Notes a loss of labels that are numbers. A sample's gradient is divided by its number of outputs.
fn note_numbers(
    node: &mut ImportedNode,
    form: LossForm,
    factor: f64,
    prediction: crate::common::Operand,
    output: crate::common::Operand,
) -> Result<(), ir::Refusal> {
    let scale = factor * node.float_or("grad_scale", 1.0)?;
    if node.is_training() {
        let label = Some(node.label(DType::F32, node.shape(prediction))?);
        node.note_head(LossHead { form, mean: LossMean::Rows, scale, prediction, output, label });
    }
    Ok(())
}

/// The margin of each class, `max(0, margin - t x)` or its square, where `t` is 1 for the label and -1 for other classes.
pub(super) fn margin(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let margin = node.float_or("margin", 1.0)? as f32;
    let scale = node.float_or("regularization_coefficient", 1.0)?;
    let squared = !node.flag("use_linear")?;
    if node.is_training() {
        let prediction = flattened(node, x)?;
        let rows = Shape::from([node.shape(prediction)[0]]);
        let label = Some(node.label(DType::I32, rows)?);
        let (form, mean) = (LossForm::Margin { margin, squared }, LossMean::Samples);
        node.note_head(LossHead { form, mean, scale, prediction, output: x, label });
    }
    Ok(vec![x])
}

/// The operand is the loss. With the normalization `valid`, the sum is divided by the number of losses above `valid_thresh`.
pub(super) fn make_loss(node: &mut ImportedNode) -> NodeResult {
    let scale = node.float_or("grad_scale", 1.0)?;
    let threshold = node.float_or("valid_thresh", 0.0)? as f32;
    let mean = match node.text_or("normalization", "null") {
        "null" | "batch" => LossMean::Samples,
        "valid" => LossMean::Above(threshold),
        other => refuse!("attribute `normalization` must be null, batch or valid, got `{other}`"),
    };
    let x = node.input(0)?;
    if node.is_training() {
        node.note_head(LossHead { form: LossForm::Given, mean, scale, prediction: x, output: x, label: None });
    }
    Ok(vec![x])
}

/// The sum over the batch of the label's negative log probability, `[1]`.
pub(super) fn softmax_cross_entropy(node: &mut ImportedNode) -> NodeResult {
    let [x, label] = node.inputs()?;
    if node.shape(x).rank() != 2 {
        refuse!("input must be a matrix, got {}", node.shape(x));
    }
    let logs = node.apply_f32(Softmax { axis: 1, log: true }, &[x])?;
    let chosen = node.select_along(logs, label, 1)?;
    let sum = node.reduce(ReduceKind::Sum, chosen, [0].into_iter().collect(), true)?;
    let sum = node.reshape(sum, Shape::from([1]))?;
    let output = node.unary(Unary::Neg, sum)?;
    if node.is_training() {
        let form = LossForm::CrossEntropy { axis: 1, ignored: None, smoothing: 0.0 };
        let (mean, scale, label) = (LossMean::Samples, 1.0, Some(label));
        node.note_head(LossHead { form, mean, scale, prediction: x, output, label });
    }
    Ok(vec![output])
}
