//! Losses: in inference the prediction, without the label.

use ir::ops::{ReduceKind, Softmax};
use types::pointwise::Unary;

use super::normalize::flat_softmax;
use crate::common::{NodeResult, axis, refuse};
use crate::mxnet::node::ImportedNode;

/// Softmax over channels with `multi_output`, over the last axis with `preserve_shape`, else over all elements of a sample.
pub(super) fn softmax_output(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["grad_scale", "ignore_label", "use_ignore", "normalization", "out_grad", "smooth_alpha"]);
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let at = match (node.flag("multi_output")?, node.flag("preserve_shape")?) {
        (false, false) => return Ok(vec![flat_softmax(node, x)?]),
        (true, _) => axis(1, rank)?,
        (false, true) => axis(-1, rank)?,
    };
    Ok(vec![node.apply_f32(Softmax { axis: at, log: false }, &[x])?])
}

pub(super) fn regression(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["grad_scale", "margin", "regularization_coefficient", "use_linear"]);
    Ok(vec![node.input(0)?])
}

pub(super) fn logistic(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["grad_scale"]);
    let x = node.input(0)?;
    Ok(vec![node.unary(Unary::Sigmoid, x)?])
}

pub(super) fn make_loss(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["grad_scale", "valid_thresh", "normalization"]);
    Ok(vec![node.input(0)?])
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
    let sum = node.reshape(sum, types::Shape::from([1]))?;
    Ok(vec![node.unary(Unary::Neg, sum)?])
}
