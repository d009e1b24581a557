//! Products of whole numbers in 8 bits. They are computed exactly: `f32` holds sums of 256 such products, and longer sums
//! are parts that are added in `i32`.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::conv;
use crate::build::{Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// Products of two numbers of at most 255 whose sum is less than 2^24.
const EXACT_TERMS: usize = 256;

/// Numbers without their zero point, in `f32`. A zero point for each row or column is along axis `at`.
fn centred(call: &mut Call, x: Operand, zero: Option<Operand>, at: usize) -> Result<Operand, Refusal> {
    if !matches!(call.dtype(x), DType::I8 | DType::U8) {
        refuse!("numbers of {} are not supported; i8 and u8 are", call.dtype(x));
    }
    let wide = call.cast(x, DType::F32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = call.cast(zero, DType::F32)?;
    let zero = along(call, zero, at, call.shape(x).rank())?;
    call.binary(Binary::Sub, wide, zero)
}

/// One number, or one for each index of an axis.
fn along(call: &mut Call, part: Operand, at: usize, rank: usize) -> Result<Operand, Refusal> {
    match call.shape(part).elements() {
        1 => call.reshape(part, Shape::scalar()),
        _ if call.shape(part).rank() == 1 => call.aligned(part, at, rank),
        _ => Ok(part),
    }
}

/// The product of matrices of whole numbers in `f32`, as `i32`.
fn exact_product(call: &mut Call, a: Operand, b: Operand) -> Result<Operand, Refusal> {
    let (a_shape, b_shape) = (call.shape(a), call.shape(b));
    if a_shape.rank() < 2 || b_shape.rank() < 2 {
        refuse!("{a_shape} and {b_shape} are not both matrices");
    }
    let terms = a_shape[a_shape.rank() - 1];
    let mut sum = None;
    for start in (0..terms.max(1)).step_by(EXACT_TERMS) {
        let count = EXACT_TERMS.min(terms - start);
        let (mut left, mut right) = (a, b);
        if count != terms {
            left = call.apply(ops::Slice::range(&a_shape, a_shape.rank() - 1, start, count), &[a])?;
            right = call.apply(ops::Slice::range(&b_shape, b_shape.rank() - 2, start, count), &[b])?;
        }
        let part = call.apply(ops::MatMul::default(), &[left, right])?;
        sum = Some(added(call, sum, part)?);
    }
    sum.ok_or_else(|| Refusal("there is nothing to multiply".into()))
}

/// One more part of an exact sum.
fn added(call: &mut Call, sum: Option<Operand>, part: Operand) -> Result<Operand, Refusal> {
    let part = call.cast(part, DType::I32)?;
    match sum {
        None => Ok(part),
        Some(sum) => call.binary(Binary::Add, sum, part),
    }
}

/// Whole numbers times a scale, rounded, moved to their zero point and within its dtype.
fn requantized(call: &mut Call, x: Operand, scale: Operand, zero: Operand) -> Result<Operand, Refusal> {
    let dtype = call.dtype(zero);
    let (min, max) = match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        other => refuse!("results of {other} are not supported; i8 and u8 are"),
    };
    let x = call.cast(x, DType::F32)?;
    let scaled = call.binary(Binary::Mul, x, scale)?;
    let rounded = call.unary(Unary::Round, scaled)?;
    let zero = call.cast(zero, DType::F32)?;
    let zero = along(call, zero, 1, call.shape(rounded).rank())?;
    let moved = call.binary(Binary::Add, rounded, zero)?;
    let held = call.unary(Unary::Clip { min, max }, moved)?;
    call.cast(held, dtype)
}

pub(super) fn mat_mul_integer(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (a_rank, b_rank) = (call.shape(a).rank(), call.shape(b).rank());
    let (a_zero, b_zero) = (call.optional(2), call.optional(3));
    let a = centred(call, a, a_zero, a_rank.saturating_sub(2))?;
    let b = centred(call, b, b_zero, b_rank.saturating_sub(1))?;
    Ok(vec![exact_product(call, a, b)?])
}

/// `a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero`
pub(super) fn q_linear_mat_mul(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(3)?);
    let (a_rank, b_rank) = (call.shape(a).rank(), call.shape(b).rank());
    let (a_at, b_at) = (a_rank.saturating_sub(2), b_rank.saturating_sub(1));
    let (a_zero, b_zero, y_zero) = (call.input(2)?, call.input(5)?, call.input(7)?);
    let a = centred(call, a, Some(a_zero), a_at)?;
    let b = centred(call, b, Some(b_zero), b_at)?;
    let sums = exact_product(call, a, b)?;
    let [a_scale, b_scale, y_scale] = [1, 4, 6].map(|ix| call.input(ix));
    let (a_scale, b_scale, y_scale) = (a_scale?, b_scale?, y_scale?);
    let a_scale = call.cast(a_scale, DType::F32)?;
    let a_scale = along(call, a_scale, a_at, a_rank)?;
    let b_scale = call.cast(b_scale, DType::F32)?;
    let b_scale = along(call, b_scale, b_at, b_rank)?;
    let y_scale = call.cast(y_scale, DType::F32)?;
    let y_scale = along(call, y_scale, a_at, a_rank)?;
    let scale = call.binary(Binary::Mul, a_scale, b_scale)?;
    let scale = call.binary(Binary::Div, scale, y_scale)?;
    Ok(vec![requantized(call, sums, scale, y_zero)?])
}

/// A convolution of whole numbers in `f32`, as `i32`. Padding is the zero point, which is 0 here.
fn exact_convolution(call: &mut Call, x: Operand, weight: Operand) -> Result<Operand, Refusal> {
    let (shape, weight_shape) = (call.shape(x), call.shape(weight));
    let conv = conv::read(call, &shape, &weight_shape)?;
    let cells: usize = weight_shape[2..].iter().product();
    let channels = weight_shape[1];
    if channels.saturating_mul(cells) <= EXACT_TERMS {
        let y = call.apply(conv, &[x, weight])?;
        return call.cast(y, DType::I32);
    }
    let step = EXACT_TERMS.checked_div(cells).unwrap_or(0);
    if conv.groups != 1 || step == 0 {
        refuse!("sums of {channels} channels times {cells} cells in {} groups are not supported", conv.groups);
    }
    let mut sum = None;
    for start in (0..channels).step_by(step) {
        let count = step.min(channels - start);
        let part = call.apply(ops::Slice::range(&shape, 1, start, count), &[x])?;
        let part_weight = call.apply_always(ops::Slice::range(&weight_shape, 1, start, count), &[weight])?;
        let y = call.apply(conv.clone(), &[part, part_weight])?;
        sum = Some(added(call, sum, y)?);
    }
    sum.ok_or_else(|| Refusal("there is nothing to sum".into()))
}

pub(super) fn conv_integer(call: &mut Call) -> Yield {
    let (x, weight) = (call.input(0)?, call.input(1)?);
    let (x_zero, weight_zero) = (call.optional(2), call.optional(3));
    let x = centred(call, x, x_zero, 1)?;
    let weight = centred(call, weight, weight_zero, 0)?;
    Ok(vec![exact_convolution(call, x, weight)?])
}

/// `x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero` and a bias in `i32`, whose scale is that of the sums.
pub(super) fn q_linear_conv(call: &mut Call) -> Yield {
    let (x, weight) = (call.input(0)?, call.input(3)?);
    let rank = call.shape(x).rank();
    let (x_zero, weight_zero, y_zero) = (call.input(2)?, call.input(5)?, call.input(7)?);
    let x = centred(call, x, Some(x_zero), 1)?;
    let weight = centred(call, weight, Some(weight_zero), 0)?;
    let mut sums = exact_convolution(call, x, weight)?;
    if let Some(bias) = call.optional(8) {
        let bias = call.aligned(bias, 1, rank)?;
        sums = call.binary(Binary::Add, sums, bias)?;
    }
    let (x_scale, weight_scale, y_scale) = (call.input(1)?, call.input(4)?, call.input(6)?);
    let x_scale = along(call, x_scale, 1, rank)?;
    let weight_scale = along(call, weight_scale, 1, rank)?;
    let y_scale = along(call, y_scale, 1, rank)?;
    let scale = call.binary(Binary::Mul, x_scale, weight_scale)?;
    let scale = call.binary(Binary::Div, scale, y_scale)?;
    Ok(vec![requantized(call, sums, scale, y_zero)?])
}

/// To `u8` by the range of the numbers, which is made to contain 0: `y`, its scale and its zero point.
pub(super) fn dynamic_quantize(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    if call.dtype(x) != DType::F32 {
        refuse!("input of {} is not supported; f32 is", call.dtype(x));
    }
    let all = || (0..call.shape(x).rank()).collect();
    let (axes, axes_again) = (all(), all());
    let [zero, steps, one] = [0.0, 255.0, 1.0].map(|number| call.number(number, DType::F32));
    let low = call.reduce(ops::ReduceKind::Min, x, axes, false)?;
    let low = call.binary(Binary::Min, low, zero)?;
    let high = call.reduce(ops::ReduceKind::Max, x, axes_again, false)?;
    let high = call.binary(Binary::Max, high, zero)?;
    let range = call.binary(Binary::Sub, high, low)?;
    let scale = call.binary(Binary::Div, range, steps)?;
    // Nothing but zeros: any scale does.
    let is_zero = call.compare(types::pointwise::Compare::Equal, scale, zero)?;
    let divisor = call.select(is_zero, one, scale)?;
    let start = call.binary(Binary::Div, low, divisor)?;
    let start = call.unary(Unary::Neg, start)?;
    let byte = Unary::Clip { min: 0.0, max: 255.0 };
    let start = call.unary(byte, start)?;
    let start = call.unary(Unary::Round, start)?;
    let y = call.binary(Binary::Div, x, divisor)?;
    let y = call.unary(Unary::Round, y)?;
    let y = call.binary(Binary::Add, y, start)?;
    let y = call.unary(byte, y)?;
    Ok(vec![call.cast(y, DType::U8)?, scale, call.cast(start, DType::U8)?])
}
