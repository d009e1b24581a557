//! Random masks, `RandomUniformLike(x) < keep`, as PyTorch's exporters write stochastic depth and dropout of channels. Other
//! uses of random numbers are refused.

use types::{DType, Shape};

use super::{constant, pointwise};
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::{Entry, ImportedNode};

/// Random elements that no value of the graph has.
#[derive(Clone, Debug)]
pub(in crate::onnx) struct Random {
    shape: Shape,
    dtype: DType,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Evenly distributed from 0 to 1.
    Uniform,
    /// Ones with this probability, else zeros.
    Mask { keep: f64 },
}

fn entries(operands: Vec<Operand>) -> Vec<Entry> {
    operands.into_iter().map(Entry::Operand).collect()
}

pub(super) fn uniform_like(node: &mut ImportedNode) -> NodeResult<Entry> {
    let x = node.input(0)?;
    node.ignore(&["seed"]);
    if !node.is_training() && !node.is_inference() {
        return node.refuse_mode("its result is random");
    }
    let (low, high) = (node.float_or("low", 0.0)?, node.float_or("high", 1.0)?);
    if (low, high) != (0.0, 1.0) {
        refuse!("attributes `low` and `high` must be 0 and 1, got {low} and {high}");
    }
    let dtype = node.dtype_attribute("dtype")?.unwrap_or(node.dtype(x));
    Ok(vec![Entry::Random(Random { shape: node.shape(x), dtype, kind: Kind::Uniform })])
}

pub(super) fn less(node: &mut ImportedNode) -> NodeResult<Entry> {
    let Some(Entry::Random(Random { shape, kind: Kind::Uniform, .. })) = node.entry(0).cloned() else {
        node.only_tensors()?;
        return pointwise::less(node).map(entries);
    };
    let keep = node.constant_number(1, "probability")?;
    if !(0.0 < keep && keep <= 1.0) {
        refuse!("the limit of random numbers must be a probability above 0, got {keep}");
    }
    Ok(vec![Entry::Random(Random { shape, dtype: DType::Bool, kind: Kind::Mask { keep } })])
}

pub(super) fn cast(node: &mut ImportedNode) -> NodeResult<Entry> {
    let Some(Entry::Random(mask @ Random { kind: Kind::Mask { .. }, .. })) = node.entry(0).cloned() else {
        node.only_tensors()?;
        return constant::cast(node).map(entries);
    };
    match node.dtype_attribute("to")? {
        Some(dtype) if dtype.is_float() => Ok(vec![Entry::Random(Random { dtype, ..mask })]),
        _ => refuse!("a random mask must be cast to a float"),
    }
}

/// A probability is cast to the type of the random numbers that it is compared with.
pub(super) fn cast_like(node: &mut ImportedNode) -> NodeResult<Entry> {
    let Some(&Entry::Random(Random { dtype, .. })) = node.entry(1) else {
        node.only_tensors()?;
        return constant::cast_like(node).map(entries);
    };
    let x = node.input(0)?;
    Ok(vec![Entry::Operand(node.cast(x, dtype)?)])
}

/// A quotient. A mask over its probability is the dropout of ones, so that it is 1 in inference and in an evaluation.
pub(super) fn div(node: &mut ImportedNode) -> NodeResult<Entry> {
    let Some(Entry::Random(Random { shape, dtype, kind: Kind::Mask { keep } })) = node.entry(0).cloned() else {
        node.only_tensors()?;
        return pointwise::div(node).map(entries);
    };
    let divisor = node.constant_number(1, "probability")?;
    // Both are rounded to the element type.
    if 1e-3 < (divisor - keep).abs() {
        refuse!("a random mask of probability {keep} must be divided by it, got {divisor}");
    }
    let ones = node.constant_as(dtype, shape, |_| 1.0f32)?;
    Ok(vec![Entry::Operand(node.dropout(ones, 1.0 - keep)?)])
}
