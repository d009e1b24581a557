//! Operators of domain `com.microsoft` that the optimizer of ONNX Runtime writes in place of several: each is translated to
//! those. Source: onnxruntime, docs/ContribOperators.md.

use ir::ops::{self, ReduceKind};
use ir::{Op, Refusal};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::{conv, linear, normalize, pointwise, quantized};
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// `gelu(x + bias)`
pub(super) fn bias_gelu(node: &mut ImportedNode) -> NodeResult {
    let x = node.binary(Binary::Add, node.input(0)?, node.input(1)?)?;
    Ok(vec![node.unary(Unary::Gelu, x)?])
}

/// The same with an optional bias, by the hyperbolic tangent.
pub(super) fn fast_gelu(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    if let Some(bias) = node.optional(1) {
        x = node.binary(Binary::Add, x, bias)?;
    }
    Ok(vec![node.unary(Unary::GeluTanh, x)?])
}

/// `x sigmoid(alpha x)`
pub(super) fn quick_gelu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.702)?;
    pointwise::swish_of(node, alpha)
}

/// `x + skip + bias`, normalized by its mean and variance; operands `x, skip, scale`, and optionally `shift` and `bias`. The
/// fourth result is the sum.
pub(super) fn skip_layer(node: &mut ImportedNode) -> NodeResult {
    let epsilon = node.float_or("epsilon", 1e-12)?;
    let sum = skip_sum(node, 4)?;
    let (scale, shift) = (node.input(2)?, node.optional(3));
    let first = node.shape(sum).rank().saturating_sub(1);
    let [y, mean, inverse] = normalize::layer_of(node, sum, scale, shift, first, epsilon)?;
    Ok(vec![y, mean, inverse, sum])
}

/// The same normalized by the mean of squares; operands `x, skip, scale`, and optionally `bias`.
pub(super) fn skip_rms(node: &mut ImportedNode) -> NodeResult {
    let epsilon = node.float_or("epsilon", 1e-5)?;
    let sum = skip_sum(node, 3)?;
    let scale = node.input(2)?;
    let first = node.shape(sum).rank().saturating_sub(1);
    let [y, inverse] = normalize::rms_of(node, sum, scale, first, epsilon)?;
    Ok(vec![y, inverse, inverse, sum])
}

fn skip_sum(node: &mut ImportedNode, bias: usize) -> Result<Operand, Refusal> {
    let sum = node.binary(Binary::Add, node.input(0)?, node.input(1)?)?;
    match node.optional(bias) {
        Some(bias) => node.binary(Binary::Add, sum, bias),
        None => Ok(sum),
    }
}

/// The sum of the embeddings of words, positions and optionally segments, normalized; then the number of tokens that a mask
/// has for each sequence, and the sum.
pub(super) fn embed(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["mask_index_type"]);
    let epsilon = node.float_or("epsilon", 1e-12)?;
    let words = node.input(0)?;
    let shape = node.shape(words);
    let [batch, tokens] = shape[..] else { refuse!("numbers of words must be a matrix, got {shape}") };
    let row = |node: &mut ImportedNode, table: Operand, numbers: Operand| {
        node.apply(ops::Gather { axis: 0 }, &[table, numbers])
    };
    let table = node.input(2)?;
    let mut sum = row(node, table, words)?;
    let positions = match node.optional(8) {
        Some(positions) => positions,
        None => node.constant_of([1, tokens], |at| at as i64)?,
    };
    let table = node.input(3)?;
    let of_positions = row(node, table, positions)?;
    sum = node.binary(Binary::Add, sum, of_positions)?;
    if let (Some(segments), Some(table)) = (node.optional(1), node.optional(4)) {
        let of_segments = row(node, table, segments)?;
        sum = node.binary(Binary::Add, sum, of_segments)?;
    }
    let (scale, shift) = (node.input(5)?, node.optional(6));
    let [y, ..] = normalize::layer_of(node, sum, scale, shift, 2, epsilon)?;
    let count = match node.optional(7) {
        Some(mask) => {
            let mask = node.cast(mask, DType::I32)?;
            node.reduce(ReduceKind::Sum, mask, [1].into_iter().collect(), false)?
        }
        None => node.constant_of([batch], |_| 0i32)?,
    };
    Ok(vec![y, count, sum])
}

/// The activation that attribute `activation` names, with these parameters.
fn activation(node: &ImportedNode, parameters: [Option<f32>; 2]) -> Result<Option<Op>, Refusal> {
    let [first, second] = parameters;
    let function = match node.text_or("activation", "") {
        "" => return Ok(None),
        "Relu" => Unary::Relu,
        "Tanh" => Unary::Tanh,
        "Sigmoid" => Unary::Sigmoid,
        "Gelu" => Unary::Gelu,
        "LeakyRelu" => Unary::LeakyRelu { alpha: first.unwrap_or(0.01) },
        "HardSigmoid" => Unary::HardSigmoid { alpha: first.unwrap_or(0.2), beta: second.unwrap_or(0.5) },
        "Clip" => Unary::Clip { min: first.unwrap_or(f32::MIN), max: second.unwrap_or(f32::MAX) },
        other => refuse!("attribute `activation`: `{other}` is not supported"),
    };
    Ok(Some(ops::Unary(function).into()))
}

fn activated(node: &mut ImportedNode, y: Operand, parameters: [Option<f32>; 2]) -> NodeResult {
    match activation(node, parameters)? {
        Some(function) => Ok(vec![node.apply(function, &[y])?]),
        None => Ok(vec![y]),
    }
}

/// `activation(conv(x) + z)`
pub(super) fn fused_conv(node: &mut ImportedNode) -> NodeResult {
    let parameters = node.floats("activation_params")?.unwrap_or_default();
    let parameters = [parameters.first().copied(), parameters.get(1).copied()];
    let mut y = conv::conv(node)?.swap_remove(0);
    if let Some(z) = node.optional(3) {
        y = node.binary(Binary::Add, y, z)?;
    }
    activated(node, y, parameters)
}

/// `activation(gemm(a, b, c))`
pub(super) fn fused_gemm(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["activation_gamma"]);
    let parameters = [node.float("activation_alpha")?, node.float("activation_beta")?];
    let y = linear::gemm(node)?.swap_remove(0);
    activated(node, y, parameters)
}

/// `alpha a b` of matrices or their transposes.
pub(super) fn fused_product(node: &mut ImportedNode) -> NodeResult {
    if node.flag("transBatchA")? || node.flag("transBatchB")? {
        refuse!("attributes `transBatchA` and `transBatchB` are not supported");
    }
    let mut operands = [node.input(0)?, node.input(1)?];
    for (operand, name) in operands.iter_mut().zip(["transA", "transB"]) {
        let rank = node.shape(*operand).rank();
        // A vector is its own transpose.
        if node.flag(name)? && 2 <= rank {
            let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            *operand = node.transpose(*operand, &order)?;
        }
    }
    let y = node.mat_mul(operands[0], operands[1])?;
    match node.float_or("alpha", 1.0)? {
        1.0 => Ok(vec![y]),
        alpha => {
            let alpha = node.number(f64::from(alpha), node.dtype(y));
            Ok(vec![node.binary(Binary::Mul, y, alpha)?])
        }
    }
}

/// `a, b, a_scale, b_scale`, and optionally zero points of both and a bias: bytes whose product is a number.
pub(super) fn integer_product(node: &mut ImportedNode) -> NodeResult {
    let (a, b, a_scale, b_scale) = (node.input(0)?, node.input(1)?, node.input(2)?, node.input(3)?);
    let sums = quantized::integer_product(node, a, b, node.optional(4), node.optional(5))?;
    scaled(node, sums, a_scale, b_scale, node.optional(6))
}

/// `a, b, b_scale`, and optionally the zero point of `b` and a bias: `a` is quantized by its range.
pub(super) fn dynamic_product(node: &mut ImportedNode) -> NodeResult {
    let (a, b, b_scale) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let [bytes, scale, zero] = quantized::by_range(node, a)?;
    let sums = quantized::integer_product(node, bytes, b, Some(zero), node.optional(3))?;
    scaled(node, sums, scale, b_scale, node.optional(4))
}

pub(super) fn scaled(
    node: &mut ImportedNode,
    sums: Operand,
    a_scale: Operand,
    b_scale: Operand,
    bias: Option<Operand>,
) -> NodeResult {
    let number = |node: &mut ImportedNode, scale: Operand| match node.shape(scale).elements() {
        1 => node.reshape(scale, Shape::scalar()),
        _ => Ok(scale),
    };
    let (a_scale, b_scale) = (number(node, a_scale)?, number(node, b_scale)?);
    let scale = node.binary(Binary::Mul, a_scale, b_scale)?;
    let sums = node.cast(sums, node.dtype(scale))?;
    let y = node.binary(Binary::Mul, sums, scale)?;
    match bias {
        Some(bias) => Ok(vec![node.binary(Binary::Add, y, bias)?]),
        None => Ok(vec![y]),
    }
}
