//! What training ends with, which exporters sometimes leave in.

use ir::Refusal;
use ir::ops::{Gather, ReduceKind, Softmax};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// `x: [n, c, d..]` of logarithms, `target: [n, d..]` and weights `[c]`.
pub(super) fn negative_log_likelihood(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    Ok(vec![loss(call, x)?])
}

/// The same behind a softmax over the classes, whose logarithms are the second output.
pub(super) fn softmax_cross_entropy(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    if call.shape(x).rank() < 2 {
        refuse!("input {} has no classes", call.shape(x));
    }
    let logs = call.apply_f32(Softmax { axis: 1, log: true }, &[x])?;
    Ok(vec![loss(call, logs)?, logs])
}

fn loss(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    let target = call.input(1)?;
    let (shape, dtype) = (call.shape(x), call.dtype(x));
    let &[n, classes, ref inner @ ..] = &shape[..] else { refuse!("input {shape} has no classes") };
    let lines: Shape = [n].into_iter().chain(inner.iter().copied()).collect();
    if call.shape(target) != lines {
        refuse!("targets of shape {} are not {lines}", call.shape(target));
    }
    let chosen = call.picked(x, target, 1)?;
    let chosen = call.reshape(chosen, lines.clone())?;
    let mut losses = call.unary(Unary::Neg, chosen)?;
    // What each line counts.
    let mut weight = None;
    if let Some(weights) = call.optional(2) {
        if call.shape(weights)[..] != [classes] {
            refuse!("weights of shape {} are not [{classes}]", call.shape(weights));
        }
        let index = call.clipped(target, classes)?;
        weight = Some(call.apply(Gather { axis: 0 }, &[weights, index])?);
    }
    if let Some(ignored) = call.int("ignore_index")? {
        let ignored = call.number(ignored as f64, DType::I64);
        let target = call.cast(target, DType::I64)?;
        let is_ignored = call.compare(Compare::Equal, target, ignored)?;
        let (zero, one) = (call.number(0.0, dtype), call.number(1.0, dtype));
        weight = Some(call.select(is_ignored, zero, weight.unwrap_or(one))?);
    }
    if let Some(weight) = weight {
        losses = call.binary(Binary::Mul, losses, weight)?;
    }
    let all = (0..lines.rank()).collect();
    match (call.text_or("reduction", "mean"), weight) {
        ("none", _) => Ok(losses),
        ("sum", _) => call.reduce(ReduceKind::Sum, losses, all, false),
        ("mean", None) => call.reduce(ReduceKind::Mean, losses, all, false),
        ("mean", Some(weight)) => {
            let sum = call.reduce(ReduceKind::Sum, losses, all, false)?;
            let all = (0..call.shape(weight).rank()).collect();
            let weight = call.reduce(ReduceKind::Sum, weight, all, false)?;
            call.binary(Binary::Div, sum, weight)
        }
        (other, _) => refuse!("attribute `reduction` is `{other}`"),
    }
}
