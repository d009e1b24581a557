//! Int8 operators. `QLinear..` follow their definition: dequantize, an operator on floats, quantize; passes match int8
//! products in it. Operators with `i32` results are exact: a constant right operand gives an int8 product; otherwise `f32`
//! products, which are exact for sums of 256 terms, with longer sums split and added in `i32`.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape, Tensor};

use super::{conv, linear};
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// Terms of a sum of products of two numbers up to 255 that stays below 2^24.
const EXACT_TERMS: usize = 256;

/// Int8 minus its zero point, in `f32`. Zero points per row or column are along axis `at`.
fn centred(node: &mut ImportedNode, x: Operand, zero: Option<Operand>, at: usize) -> Result<Operand, Refusal> {
    if !matches!(node.dtype(x), DType::I8 | DType::U8) {
        refuse!("dtype must be i8 or u8, got {}", node.dtype(x));
    }
    let wide = node.cast(x, DType::F32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = node.cast(zero, DType::F32)?;
    let zero = along(node, zero, at, node.shape(x).rank())?;
    node.binary(Binary::Sub, wide, zero)
}

/// One number, or one per index of an axis.
fn along(node: &mut ImportedNode, part: Operand, at: usize, rank: usize) -> Result<Operand, Refusal> {
    match node.shape(part).elements() {
        1 => node.reshape(part, Shape::scalar()),
        _ if node.shape(part).rank() == 1 => node.aligned(part, at, rank),
        _ => Ok(part),
    }
}

/// The product of integer matrices stored as `f32`, as `i32`.
fn exact_product(node: &mut ImportedNode, a: Operand, b: Operand) -> Result<Operand, Refusal> {
    let (a_shape, b_shape) = (node.shape(a), node.shape(b));
    if a_shape.rank() < 2 || b_shape.rank() < 2 {
        refuse!("operands must be matrices, got {a_shape} and {b_shape}");
    }
    let terms = a_shape[a_shape.rank() - 1];
    let mut sum = None;
    for start in (0..terms.max(1)).step_by(EXACT_TERMS) {
        let count = EXACT_TERMS.min(terms - start);
        let (mut left, mut right) = (a, b);
        if count != terms {
            left = node.apply(ops::Slice::range(&a_shape, a_shape.rank() - 1, start, count), &[a])?;
            right = node.apply(ops::Slice::range(&b_shape, b_shape.rank() - 2, start, count), &[b])?;
        }
        let part = node.apply(ops::MatMul::default(), &[left, right])?;
        sum = Some(added(node, sum, part)?);
    }
    sum.ok_or_else(|| Refusal("the contracted axis must not be empty".into()))
}

/// Adds a partial sum.
fn added(node: &mut ImportedNode, sum: Option<Operand>, part: Operand) -> Result<Operand, Refusal> {
    let part = node.cast(part, DType::I32)?;
    match sum {
        None => Ok(part),
        Some(sum) => node.binary(Binary::Add, sum, part),
    }
}

/// An int8 product with a constant right operand. The zero point of the left operand is constant or a run-time input.
pub(super) fn mat_mul_integer(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = (node.input(0)?, node.input(1)?);
    Ok(vec![integer_product(node, a, b, node.optional(2), node.optional(3))?])
}

/// The exact `i32` product of matrices of bytes, minus their zero points.
pub(super) fn integer_product(
    node: &mut ImportedNode,
    a: Operand,
    b: Operand,
    a_zero: Option<Operand>,
    b_zero: Option<Operand>,
) -> Result<Operand, Refusal> {
    let (a_rank, b_rank) = (node.shape(a).rank(), node.shape(b).rank());
    if let Some((b, sums)) = signed_matrix(node, b, b_zero)
        && matches!(node.dtype(a), DType::I8 | DType::U8)
    {
        let known = |node: &ImportedNode, zero: Operand| node.constant_value(zero).filter(|zero| zero.elements() == 1);
        let zero = match a_zero {
            None => Some(0),
            Some(zero) => known(node, zero).map(|zero| zero.to_f64()[0] as i32),
        };
        let b = node.constant_of_file(b);
        if let Some(zero) = zero {
            return node.apply(ops::MatMul { zero, ..ops::MatMul::default() }, &[a, b]);
        }
        let zero = a_zero.ok_or_else(|| Refusal("the left zero point is required".into()))?;
        if node.shape(zero).elements() == 1 {
            let y = node.apply(ops::MatMul::default(), &[a, b])?;
            let zero = node.reshape(zero, Shape::scalar())?;
            let zero = node.cast(zero, DType::I32)?;
            let sums = node.constant(sums);
            let moved = node.binary(Binary::Mul, sums, zero)?;
            return node.binary(Binary::Sub, y, moved);
        }
    }
    let a = centred(node, a, a_zero, a_rank.saturating_sub(2))?;
    let b = centred(node, b, b_zero, b_rank.saturating_sub(1))?;
    exact_product(node, a, b)
}

/// A constant matrix minus its zero points if that fits `i8`, and the sum of each column.
fn signed_matrix(node: &mut ImportedNode, b: Operand, zero: Option<Operand>) -> Option<(Tensor, Tensor)> {
    let shape = node.shape(b);
    let &[_, columns] = &shape[..] else { return None };
    let numbers = node.constant_value(b)?.to_f64();
    let zeros = match zero {
        Some(zero) => node.constant_value(zero)?.to_f64(),
        None => vec![0.0],
    };
    if ![1, columns].contains(&zeros.len()) || columns == 0 {
        return None;
    }
    let zero = |column: usize| zeros[column % zeros.len()];
    let numbers: Vec<f64> = numbers.iter().enumerate().map(|(at, number)| number - zero(at % columns)).collect();
    let mut sums = vec![0.0; columns];
    numbers.iter().enumerate().for_each(|(at, number)| sums[at % columns] += number);
    let fits = numbers.iter().all(|number| (-128.0..=127.0).contains(number));
    let matrix = Tensor::new(shape, numbers).ok()?.cast(DType::I8);
    fits.then(|| (matrix, Tensor::vector(sums).cast(DType::I32)))
}

/// `a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero`
pub(super) fn q_linear_mat_mul(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = (node.input(0)?, node.input(3)?);
    let (a_rank, b_rank) = (node.shape(a).rank(), node.shape(b).rank());
    let (a_at, b_at) = (a_rank.saturating_sub(2), b_rank.saturating_sub(1));
    let a = dequantized_along(node, a, [1, 2], a_at)?;
    let b = dequantized_along(node, b, [4, 5], b_at)?;
    let y = node.apply(ops::MatMul::default(), &[a, b])?;
    Ok(vec![quantized_along(node, y, [6, 7], a_at)?])
}

/// Dequantizes input with scale and zero point, per tensor or per index of an axis.
fn dequantized_along(
    node: &mut ImportedNode,
    x: Operand,
    [scale, zero]: [usize; 2],
    at: usize,
) -> Result<Operand, Refusal> {
    let (scale, zero) = (node.input(scale)?, node.input(zero)?);
    let rank = node.shape(x).rank();
    let scale = node.cast(scale, DType::F32)?;
    let (scale, zero) = (along(node, scale, at, rank)?, along(node, zero, at, rank)?);
    linear::dequantized(node, x, scale, Some(zero))
}

/// The inverse: quantizes.
fn quantized_along(
    node: &mut ImportedNode,
    x: Operand,
    [scale, zero]: [usize; 2],
    at: usize,
) -> Result<Operand, Refusal> {
    let (scale, zero) = (node.input(scale)?, node.input(zero)?);
    let (rank, dtype) = (node.shape(x).rank(), node.dtype(zero));
    let scale = node.cast(scale, DType::F32)?;
    let (scale, zero) = (along(node, scale, at, rank)?, along(node, zero, at, rank)?);
    linear::quantized(node, x, scale, Some(zero), dtype)
}

/// A convolution of integers stored as `f32`, as `i32`. Padding is the zero point, which is 0 here.
fn exact_convolution(node: &mut ImportedNode, x: Operand, weight: Operand) -> Result<Operand, Refusal> {
    let (shape, weight_shape) = (node.shape(x), node.shape(weight));
    let conv = conv::read(node, &shape, &weight_shape)?;
    let cells: usize = weight_shape[2..].iter().product();
    let channels = weight_shape[1];
    if channels.saturating_mul(cells) <= EXACT_TERMS {
        let y = node.apply(conv, &[x, weight])?;
        return node.cast(y, DType::I32);
    }
    let step = EXACT_TERMS.checked_div(cells).unwrap_or(0);
    if conv.groups != 1 || step == 0 {
        refuse!("sums over {channels} channels x {cells} cells in {} groups are not supported", conv.groups);
    }
    let mut sum = None;
    for start in (0..channels).step_by(step) {
        let count = step.min(channels - start);
        let part = node.apply(ops::Slice::range(&shape, 1, start, count), &[x])?;
        let part_weight = node.apply_folded(ops::Slice::range(&weight_shape, 1, start, count), &[weight])?;
        let y = node.apply(conv.clone(), &[part, part_weight])?;
        sum = Some(added(node, sum, y)?);
    }
    sum.ok_or_else(|| Refusal("the input must have channels".into()))
}

pub(super) fn conv_integer(node: &mut ImportedNode) -> NodeResult {
    let (x, weight) = (node.input(0)?, node.input(1)?);
    let (x_zero, weight_zero) = (node.optional(2), node.optional(3));
    let x = centred(node, x, x_zero, 1)?;
    let weight = centred(node, weight, weight_zero, 0)?;
    Ok(vec![exact_convolution(node, x, weight)?])
}

/// `x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero` and a bias in `i32` with the scale of the sums.
pub(super) fn q_linear_conv(node: &mut ImportedNode) -> NodeResult {
    let (x, weight) = (node.input(0)?, node.input(3)?);
    let conv = conv::read(node, &node.shape(x), &node.shape(weight))?;
    let x = dequantized_along(node, x, [1, 2], 1)?;
    let weight = dequantized_along(node, weight, [4, 5], 0)?;
    let mut inputs = vec![x, weight];
    if let Some(bias) = node.optional(8) {
        let (x_scale, weight_scale) = (node.input(1)?, node.input(4)?);
        let [x_scale, weight_scale] = [along(node, x_scale, 0, 1)?, along(node, weight_scale, 0, 1)?];
        let scale = node.binary(Binary::Mul, x_scale, weight_scale)?;
        inputs.push(linear::dequantized(node, bias, scale, None)?);
    }
    let y = node.apply(ops::Conv { epilogue: ops::Epilogue::bias(inputs.len() == 3), ..conv }, &inputs)?;
    Ok(vec![quantized_along(node, y, [6, 7], 1)?])
}

/// Quantizes to `u8` by the range of the input, extended to contain 0: `y`, its scale and its zero point.
pub(super) fn dynamic_quantize(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    Ok(by_range(node, x)?.into())
}

/// `x` in bytes over its range, their scale and zero point.
pub(super) fn by_range(node: &mut ImportedNode, x: Operand) -> Result<[Operand; 3], Refusal> {
    if node.dtype(x) != DType::F32 {
        refuse!("input must be f32, got {}", node.dtype(x));
    }
    let all = || (0..node.shape(x).rank()).collect();
    let (axes, axes_again) = (all(), all());
    let [zero, steps, one] = [0.0, 255.0, 1.0].map(|number| node.number(number, DType::F32));
    let low = node.reduce(ops::ReduceKind::Min, x, axes, false)?;
    let low = node.binary(Binary::Min, low, zero)?;
    let high = node.reduce(ops::ReduceKind::Max, x, axes_again, false)?;
    let high = node.binary(Binary::Max, high, zero)?;
    let range = node.binary(Binary::Sub, high, low)?;
    let scale = node.binary(Binary::Div, range, steps)?;
    // All zeros: any scale is valid.
    let is_zero = node.compare(types::pointwise::Compare::Equal, scale, zero)?;
    let divisor = node.select(is_zero, one, scale)?;
    let start = node.binary(Binary::Div, low, divisor)?;
    let start = node.unary(Unary::Neg, start)?;
    let byte = Unary::Clip { min: 0.0, max: 255.0 };
    let start = node.unary(byte, start)?;
    let start = node.unary(Unary::Round, start)?;
    let y = node.binary(Binary::Div, x, divisor)?;
    let y = node.unary(Unary::Round, y)?;
    let y = node.binary(Binary::Add, y, start)?;
    let y = node.unary(byte, y)?;
    Ok([node.cast(y, DType::U8)?, scale, node.cast(start, DType::U8)?])
}
