//! Operators of domain `com.microsoft` that the quantizer of ONNX Runtime writes: each is defined as dequantize, an operator
//! on floats, and quantize. Source: onnxruntime, docs/ContribOperators.md.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::{linear, pool, quantized};
use crate::common::{NodeResult, Operand, axis, refuse};
use crate::onnx::node::ImportedNode;

/// Dequantizes input `at`; the next two inputs are its scale and zero point, one number each.
fn numbers(node: &mut ImportedNode, at: usize) -> Result<Operand, Refusal> {
    let x = node.input(at)?;
    let (scale, zero) = parameters(node, at + 1)?;
    linear::dequantized(node, x, scale, zero)
}

/// Quantizes with the scale in input `at` and the zero point in the next one; without a zero point to the dtype of input
/// `like`.
fn bytes(node: &mut ImportedNode, y: Operand, at: usize, like: usize) -> NodeResult {
    let (scale, zero) = parameters(node, at)?;
    let like = node.input(like)?;
    let dtype = zero.map_or(node.dtype(like), |zero| node.dtype(zero));
    Ok(vec![linear::quantized(node, y, scale, zero, dtype)?])
}

fn parameters(node: &mut ImportedNode, at: usize) -> Result<(Operand, Option<Operand>), Refusal> {
    let scale = node.input(at)?;
    let scale = number(node, scale)?;
    let zero = match node.optional(at + 1) {
        Some(zero) => Some(number(node, zero)?),
        None => None,
    };
    Ok((scale, zero))
}

fn number(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    match node.shape(x).elements() {
        1 => node.reshape(x, Shape::scalar()),
        count => refuse!("scale and zero point must have 1 element, got {count}"),
    }
}

/// `a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero`
fn between(node: &mut ImportedNode, function: Binary) -> NodeResult {
    let (a, b) = (numbers(node, 0)?, numbers(node, 3)?);
    let y = node.binary(function, a, b)?;
    bytes(node, y, 6, 0)
}

pub(super) fn add(node: &mut ImportedNode) -> NodeResult {
    between(node, Binary::Add)
}

pub(super) fn mul(node: &mut ImportedNode) -> NodeResult {
    between(node, Binary::Mul)
}

/// `x, x_scale, x_zero, y_scale, y_zero`
fn each(node: &mut ImportedNode, function: Unary) -> NodeResult {
    let x = numbers(node, 0)?;
    let y = node.unary(function, x)?;
    bytes(node, y, 3, 0)
}

pub(super) fn leaky_relu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 0.01)?;
    each(node, Unary::LeakyRelu { alpha })
}

pub(super) fn sigmoid(node: &mut ImportedNode) -> NodeResult {
    each(node, Unary::Sigmoid)
}

/// `x, x_scale, x_zero, y_scale, y_zero`; attribute `opset` is the version of `Softmax`.
pub(super) fn softmax(node: &mut ImportedNode) -> NodeResult {
    let x = numbers(node, 0)?;
    let rank = node.shape(x).rank();
    let is_one_axis = 13 <= node.int_or("opset", 13)?;
    let at = axis(node.int_or("axis", -1)?, rank)?;
    if !is_one_axis && at + 1 != rank {
        refuse!("softmax over several axes is not supported");
    }
    let y = node.apply(ops::Softmax { axis: at, log: false }, &[x])?;
    bytes(node, y, 3, 0)
}

/// `condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero`
pub(super) fn select(node: &mut ImportedNode) -> NodeResult {
    let condition = node.input(0)?;
    let (x, y) = (numbers(node, 1)?, numbers(node, 4)?);
    let z = node.select(condition, x, y)?;
    bytes(node, z, 7, 1)
}

/// `ExpandDims`: an axis of extent 1 in front of axis `axis` of the result, a constant operand.
pub(super) fn expand_dims(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let mut shape = node.shape(x);
    let at = axis(node.constant_number(1, "axis")? as i64, shape.rank() + 1)?;
    shape.insert(at, 1);
    Ok(vec![node.reshape(x, shape)?])
}

fn refuse_channels_last(node: &mut ImportedNode) -> Result<(), Refusal> {
    if node.flag("channels_last")? {
        refuse!("attribute `channels_last` is not supported");
    }
    Ok(())
}

pub(super) fn conv(node: &mut ImportedNode) -> NodeResult {
    refuse_channels_last(node)?;
    quantized::q_linear_conv(node)
}

pub(super) fn global_average(node: &mut ImportedNode) -> NodeResult {
    refuse_channels_last(node)?;
    let x = numbers(node, 0)?;
    let rank = node.shape(x).rank();
    let y = node.reduce(ops::ReduceKind::Mean, x, (2..rank).collect(), true)?;
    bytes(node, y, 3, 0)
}

pub(super) fn average(node: &mut ImportedNode) -> NodeResult {
    refuse_channels_last(node)?;
    let pool = pool::average_of(node)?;
    let x = numbers(node, 0)?;
    let y = node.apply(pool, &[x])?;
    bytes(node, y, 3, 0)
}

/// `y_scale, y_zero`, then per part its tensor, scale and zero point.
pub(super) fn concat(node: &mut ImportedNode) -> NodeResult {
    let Some(at) = node.int("axis")? else { refuse!("attribute `axis` is missing") };
    let count = node.all_inputs()?.len();
    if count < 5 || count % 3 != 2 {
        refuse!("inputs must be a scale, a zero point, and three per part");
    }
    let parts: Vec<Operand> = (2..count).step_by(3).map(|part| numbers(node, part)).collect::<Result<_, _>>()?;
    let axis = axis(at, node.shape(parts[0]).rank())?;
    // Parts are requantized to the common scale before concatenation.
    let parts: Vec<Operand> =
        parts.into_iter().map(|part| Ok(bytes(node, part, 0, 2)?.swap_remove(0))).collect::<Result<_, Refusal>>()?;
    match parts[..] {
        [part] => Ok(vec![part]),
        _ => Ok(vec![node.apply(ops::Concat { axis }, &parts)?]),
    }
}

/// `a, a_scale, a_zero, b, b_scale, b_zero`, optionally `c` in `i32` with the scale of the products, `y_scale` and `y_zero`;
/// without those the result is float.
pub(super) fn gemm(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.0)?;
    let (trans_a, trans_b) = (node.flag("transA")?, node.flag("transB")?);
    let a = numbers(node, 0)?;
    let b = node.input(3)?;
    if node.shape(a).rank() != 2 || node.shape(b).rank() != 2 {
        refuse!("operands must be matrices, got {} and {}", node.shape(a), node.shape(b));
    }
    // A scale per column of the result.
    let columns = node.shape(b)[usize::from(!trans_b)];
    let b_scale = node.input(4)?;
    let across = |node: &mut ImportedNode, part: Operand| -> Result<Operand, Refusal> {
        match (node.shape(part).elements(), trans_b) {
            (1, _) => node.reshape(part, Shape::scalar()),
            (count, true) if count == columns => node.reshape(part, Shape::from([columns, 1])),
            (count, false) if count == columns => node.reshape(part, Shape::from([columns])),
            (count, _) => refuse!("scales and zero points must have 1 or {columns} elements, got {count}"),
        }
    };
    let b_along = across(node, b_scale)?;
    let b_zero = match node.optional(5) {
        Some(zero) => Some(across(node, zero)?),
        None => None,
    };
    let b = linear::dequantized(node, b, b_along, b_zero)?;
    let a = if trans_a { node.transpose(a, &[1, 0])? } else { a };
    let b = if trans_b { node.transpose(b, &[1, 0])? } else { b };
    let mut y = node.apply(ops::MatMul::default(), &[a, b])?;
    if let Some(c) = node.optional(6) {
        let a_scale = node.input(1)?;
        let a_scale = number(node, a_scale)?;
        let b_scale = match node.shape(b_scale).elements() {
            1 => node.reshape(b_scale, Shape::scalar())?,
            _ => b_scale,
        };
        let scale = node.binary(Binary::Mul, a_scale, b_scale)?;
        let c = linear::dequantized(node, c, scale, None)?;
        y = node.binary(Binary::Add, y, c)?;
    }
    if alpha != 1.0 {
        let alpha = node.number(f64::from(alpha), DType::F32);
        y = node.binary(Binary::Mul, y, alpha)?;
    }
    match node.optional(7) {
        Some(_) => bytes(node, y, 7, 0),
        None => Ok(vec![y]),
    }
}
