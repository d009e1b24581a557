//! Losses, which some exporters leave in the model.

use ir::Refusal;
use ir::ops::{Gather, ReduceKind, Softmax};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// `x: [n, c, d..]` of log probabilities, `target: [n, d..]` and weights `[c]`.
pub(super) fn negative_log_likelihood(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    Ok(vec![loss(node, x)?])
}

/// The same after a log softmax over the classes, which is the second output.
pub(super) fn softmax_cross_entropy(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    if node.shape(x).rank() < 2 {
        refuse!("input must have a class axis, got {}", node.shape(x));
    }
    let logs = node.apply_f32(Softmax { axis: 1, log: true }, &[x])?;
    Ok(vec![loss(node, logs)?, logs])
}

fn loss(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let target = node.input(1)?;
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let &[n, classes, ref inner @ ..] = &shape[..] else { refuse!("input must have a class axis, got {shape}") };
    let lines: Shape = [n].into_iter().chain(inner.iter().copied()).collect();
    if node.shape(target) != lines {
        refuse!("targets must have shape {lines}, got {}", node.shape(target));
    }
    let chosen = node.select_along(x, target, 1)?;
    let chosen = node.reshape(chosen, lines.clone())?;
    let mut losses = node.unary(Unary::Neg, chosen)?;
    // The weight of each target.
    let mut weight = None;
    if let Some(weights) = node.optional(2) {
        if node.shape(weights)[..] != [classes] {
            refuse!("weights must have shape [{classes}], got {}", node.shape(weights));
        }
        let index = node.clamp_index(target, classes)?;
        weight = Some(node.apply(Gather { axis: 0 }, &[weights, index])?);
    }
    if let Some(ignored) = node.int("ignore_index")? {
        let ignored = node.number(ignored as f64, DType::I64);
        let target = node.cast(target, DType::I64)?;
        let is_ignored = node.compare(Compare::Equal, target, ignored)?;
        let (zero, one) = (node.number(0.0, dtype), node.number(1.0, dtype));
        weight = Some(node.select(is_ignored, zero, weight.unwrap_or(one))?);
    }
    if let Some(weight) = weight {
        losses = node.binary(Binary::Mul, losses, weight)?;
    }
    let all = (0..lines.rank()).collect();
    match (node.text_or("reduction", "mean"), weight) {
        ("none", _) => Ok(losses),
        ("sum", _) => node.reduce(ReduceKind::Sum, losses, all, false),
        ("mean", None) => node.reduce(ReduceKind::Mean, losses, all, false),
        ("mean", Some(weight)) => {
            let sum = node.reduce(ReduceKind::Sum, losses, all, false)?;
            let all = (0..node.shape(weight).rank()).collect();
            let weight = node.reduce(ReduceKind::Sum, weight, all, false)?;
            node.binary(Binary::Div, sum, weight)
        }
        (other, _) => refuse!("attribute `reduction`: `{other}` is not supported"),
    }
}
