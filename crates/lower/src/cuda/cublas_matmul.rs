//! Matrix products by cuBLASLt, if it is enabled.
//!
//! It supports a bias, a residual, ReLU and the tanh form of GELU as epilogue. Other activations are an emitted kernel
//! behind it, in place.

use cuda_driver::FloatType;
use cuda_driver::cublas::{Activation, Product};
use ir::ops::MatMul;
use ir::{Call, CallInput, Pack};
use types::pointwise::Unary;
use types::{Bytes, DType, Layout};

use super::emit::{Chosen, Draft};
use super::layout::Rearranged;
use super::pointwise::go_on;
use super::reduction::Factors;
use super::select::LibraryCalls;
use super::{CUBLAS_PRODUCT, Cublas};
use crate::NodeView;

/// The calls of a product.
///
/// # Errors
/// The reason that cuBLASLt does not support it.
pub(super) fn calls(node: &NodeView, product: &MatMul, how: &Cublas) -> Result<LibraryCalls, String> {
    if node.layout != Layout::RowMajor {
        return Err(format!("its result lies in layout {}", node.layout));
    }
    let (factors, result) = numbers(node)?;
    let matrices = Factors::of(node);
    let Factors { batch, m, k, n, steps } = &matrices;
    if matrices.count() * m * n * k == 0 {
        return Err("there is nothing to multiply".into());
    }
    let [left_step, right_step] = steps.each_ref().map(|steps| step(batch, steps));
    let apart = || "its factors do not lie at one distance".to_string();
    let (bias, residual) = (product.epilogue.bias, product.epilogue.residual);
    if bias && !node.is_constant(2) {
        // cuBLASLt gets the alignment of each operand but not of a bias, and it may load sixteen bytes of that at once. A
        // constant is aligned to that; a part of a buffer may not be.
        return Err("its bias comes with the run, and may begin where cuBLASLt cannot read it".into());
    }
    let (activation, behind) = match &product.epilogue.activation[..] {
        [Unary::Relu, behind @ ..] => (Some(Activation::Relu), behind),
        [Unary::GeluTanh, behind @ ..] => (Some(Activation::GeluTanh), behind),
        behind => (None, behind),
    };
    // Elements are counted in 31 bits.
    let extent = |extent: usize| u32::try_from(extent).map_err(|_| format!("an extent of {extent}"));
    let mut planned = Product {
        factors,
        result,
        math: how.math,
        count: extent(matrices.count())?,
        rows: extent(*m)?,
        columns: extent(*n)?,
        terms: extent(*k)?,
        left_step: left_step.ok_or_else(apart)?,
        right_step: right_step.ok_or_else(apart)?,
        bias,
        residual,
        activation,
        workspace: how.workspace.min(node.workspace).0,
        algorithm: 0,
    };
    let layer = format!("{planned:?}");
    planned.algorithm = how.preferred.get(&planned).copied().unwrap_or_default();
    let mut inputs: Vec<CallInput> = (0..node.operand_count()).map(CallInput::Value).collect();
    if bias && node.input(2).dtype != node.output().dtype {
        // It takes a bias as it gives results.
        let stored = node.output().dtype;
        inputs[2] = CallInput::Packed { input: 2, pack: Pack::new(Rearranged::Cast(stored)) };
    }
    let own = Call {
        kernel: CUBLAS_PRODUCT,
        label: matrices.label(),
        workspace: Bytes(planned.workspace),
        code: Draft::code_of(Chosen::Cublas(planned)),
        inputs,
        // The residual may be the result's own bytes: an element is read before it is written.
        in_place: residual.then_some(node.operand_count() - 1).into_iter().collect(),
        slice: None,
    };
    let calls = match behind {
        [] => vec![own],
        behind => vec![own, go_on(node, behind)],
    };
    Ok(LibraryCalls::new(calls, how.math, layer))
}

/// The dtypes of factors and results.
fn numbers(node: &NodeView) -> Result<(FloatType, FloatType), String> {
    let [left, right, out] = [node.input(0).dtype, node.input(1).dtype, node.output().dtype];
    if left != right {
        return Err(format!("its factors are {left} and {right}"));
    }
    if out != left && out != DType::F32 {
        return Err(format!("its factors are {left} and its results {out}"));
    }
    let behind = 2..node.operand_count();
    let is_known_bias = |ix: usize| ix == 2 && node.input(ix).shape.rank() == 1 && node.is_constant(ix);
    let fits = |ix: usize| node.input(ix).dtype == out || (is_known_bias(ix) && number(node.input(ix).dtype).is_ok());
    match behind.into_iter().find(|&ix| !fits(ix)) {
        Some(ix) => Err(format!("the summand is {} and its results are {out}", node.input(ix).dtype)),
        None => Ok((number(left)?, number(out)?)),
    }
}

/// The libraries' name of a dtype, if they support it.
pub(super) fn number(dtype: DType) -> Result<FloatType, String> {
    match dtype {
        DType::F32 => Ok(FloatType::F32),
        DType::F16 => Ok(FloatType::F16),
        DType::Bf16 => Ok(FloatType::Bf16),
        other => Err(format!("its kernel computes in f32, not with {other}")),
    }
}

/// The stride between consecutive matrices, if it is the same for all of them.
fn step(batch: &[usize], steps: &[isize]) -> Option<u64> {
    let axes = || batch.iter().zip(steps).rev().filter(|(extent, _)| **extent != 1);
    let first = axes().next().map_or(0, |(_, step)| *step);
    let mut below = 1;
    for (&extent, &step) in axes() {
        if step != first * below {
            return None;
        }
        below *= extent as isize;
    }
    u64::try_from(first).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_at_one_distance_have_a_step() {
        assert_eq!(step(&[], &[]), Some(0));
        assert_eq!(step(&[2, 3], &[36, 12]), Some(12));
        assert_eq!(step(&[2, 1, 3], &[36, 0, 12]), Some(12));
        assert_eq!(step(&[2, 3], &[0, 0]), Some(0));
        assert_eq!(step(&[2, 3], &[0, 12]), None, "the same three for both");
        assert_eq!(step(&[2, 3], &[12, 0]), None, "each for three");
    }
}
