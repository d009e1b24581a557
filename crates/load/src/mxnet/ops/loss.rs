//! What training ends with: in inference the prediction, without the label.

use ir::ops::{ReduceKind, Softmax};
use types::pointwise::Unary;

use super::Yield;
use super::normalize::flat_softmax;
use crate::common::{axis, refuse};
use crate::mxnet::call::Call;

/// Across channels with `multi_output`, over the last dimension with `preserve_shape`, else over everything of a sample.
pub(super) fn softmax_output(call: &mut Call) -> Yield {
    call.ignore(&["grad_scale", "ignore_label", "use_ignore", "normalization", "out_grad", "smooth_alpha"]);
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let at = match (call.flag("multi_output")?, call.flag("preserve_shape")?) {
        (false, false) => return Ok(vec![flat_softmax(call, x)?]),
        (true, _) => axis(1, rank)?,
        (false, true) => axis(-1, rank)?,
    };
    Ok(vec![call.apply_f32(Softmax { axis: at, log: false }, &[x])?])
}

pub(super) fn regression(call: &mut Call) -> Yield {
    call.ignore(&["grad_scale", "margin", "regularization_coefficient", "use_linear"]);
    Ok(vec![call.input(0)?])
}

pub(super) fn logistic(call: &mut Call) -> Yield {
    call.ignore(&["grad_scale"]);
    let x = call.input(0)?;
    Ok(vec![call.unary(Unary::Sigmoid, x)?])
}

pub(super) fn make_loss(call: &mut Call) -> Yield {
    call.ignore(&["grad_scale", "valid_thresh", "normalization"]);
    Ok(vec![call.input(0)?])
}

/// The sum over the batch of the negative logarithm of the label's probability, `[1]`.
pub(super) fn softmax_cross_entropy(call: &mut Call) -> Yield {
    let [x, label] = call.inputs()?;
    if call.shape(x).rank() != 2 {
        refuse!("input {} is no matrix", call.shape(x));
    }
    let logs = call.apply_f32(Softmax { axis: 1, log: true }, &[x])?;
    let chosen = call.picked(logs, label, 1)?;
    let sum = call.reduce(ReduceKind::Sum, chosen, [0].into_iter().collect(), true)?;
    let sum = call.reshape(sum, types::Shape::from([1]))?;
    Ok(vec![call.unary(Unary::Neg, sum)?])
}
