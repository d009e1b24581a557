//! Products of whole numbers in 8 bits. `QLinear..` is what it is by definition: numbers by their scales, an operator, and
//! its results by theirs; passes find the products of whole numbers in it. Operators that give sums in `i32` compute them
//! exactly: with a known right factor as they are, else in `f32`, which holds sums of 256 such products, and longer sums are
//! parts that are added in `i32`.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape, Tensor};

use super::{conv, linear};
use crate::common::{Operand, refuse};
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

/// A known right factor is multiplied as it is; what is subtracted from the left one is known, or comes with the run.
pub(super) fn mat_mul_integer(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (a_rank, b_rank) = (call.shape(a).rank(), call.shape(b).rank());
    let (a_zero, b_zero) = (call.optional(2), call.optional(3));
    if let Some((b, sums)) = signed_matrix(call, b, b_zero)
        && matches!(call.dtype(a), DType::I8 | DType::U8)
    {
        let known = |call: &Call, zero: Operand| call.peek(zero).filter(|zero| zero.elements() == 1);
        let zero = match a_zero {
            None => Some(0),
            Some(zero) => known(call, zero).map(|zero| zero.to_f64()[0] as i32),
        };
        let b = call.constant_of_file(b);
        if let Some(zero) = zero {
            return Ok(vec![call.apply(ops::MatMul { zero, ..ops::MatMul::default() }, &[a, b])?]);
        }
        let zero = a_zero.ok_or_else(|| Refusal("it has a zero point".into()))?;
        if call.shape(zero).elements() == 1 {
            let y = call.apply(ops::MatMul::default(), &[a, b])?;
            let zero = call.reshape(zero, Shape::scalar())?;
            let zero = call.cast(zero, DType::I32)?;
            let sums = call.constant(sums);
            let moved = call.binary(Binary::Mul, sums, zero)?;
            return Ok(vec![call.binary(Binary::Sub, y, moved)?]);
        }
    }
    let a = centred(call, a, a_zero, a_rank.saturating_sub(2))?;
    let b = centred(call, b, b_zero, b_rank.saturating_sub(1))?;
    Ok(vec![exact_product(call, a, b)?])
}

/// A known matrix without its zero points, where its numbers are `i8` then, and the sum of each of its columns.
fn signed_matrix(call: &mut Call, b: Operand, zero: Option<Operand>) -> Option<(Tensor, Tensor)> {
    let shape = call.shape(b);
    let &[_, columns] = &shape[..] else { return None };
    let numbers = call.peek(b)?.to_f64();
    let zeros = match zero {
        Some(zero) => call.peek(zero)?.to_f64(),
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
pub(super) fn q_linear_mat_mul(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(3)?);
    let (a_rank, b_rank) = (call.shape(a).rank(), call.shape(b).rank());
    let (a_at, b_at) = (a_rank.saturating_sub(2), b_rank.saturating_sub(1));
    let a = dequantized_along(call, a, [1, 2], a_at)?;
    let b = dequantized_along(call, b, [4, 5], b_at)?;
    let y = call.apply(ops::MatMul::default(), &[a, b])?;
    Ok(vec![quantized_along(call, y, [6, 7], a_at)?])
}

/// A tensor with the scale and the zero point that are these inputs, one number or one for each index of an axis.
fn dequantized_along(call: &mut Call, x: Operand, [scale, zero]: [usize; 2], at: usize) -> Result<Operand, Refusal> {
    let (scale, zero) = (call.input(scale)?, call.input(zero)?);
    let rank = call.shape(x).rank();
    let scale = call.cast(scale, DType::F32)?;
    let (scale, zero) = (along(call, scale, at, rank)?, along(call, zero, at, rank)?);
    linear::dequantized(call, x, scale, Some(zero))
}

/// The reverse.
fn quantized_along(call: &mut Call, x: Operand, [scale, zero]: [usize; 2], at: usize) -> Result<Operand, Refusal> {
    let (scale, zero) = (call.input(scale)?, call.input(zero)?);
    let (rank, dtype) = (call.shape(x).rank(), call.dtype(zero));
    let scale = call.cast(scale, DType::F32)?;
    let (scale, zero) = (along(call, scale, at, rank)?, along(call, zero, at, rank)?);
    linear::quantized(call, x, scale, Some(zero), dtype)
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
    let conv = conv::read(call, &call.shape(x), &call.shape(weight))?;
    let x = dequantized_along(call, x, [1, 2], 1)?;
    let weight = dequantized_along(call, weight, [4, 5], 0)?;
    let mut inputs = vec![x, weight];
    if let Some(bias) = call.optional(8) {
        let (x_scale, weight_scale) = (call.input(1)?, call.input(4)?);
        let [x_scale, weight_scale] = [along(call, x_scale, 0, 1)?, along(call, weight_scale, 0, 1)?];
        let scale = call.binary(Binary::Mul, x_scale, weight_scale)?;
        inputs.push(linear::dequantized(call, bias, scale, None)?);
    }
    let y = call.apply(ops::Conv { epilogue: ops::Epilogue::bias(inputs.len() == 3), ..conv }, &inputs)?;
    Ok(vec![quantized_along(call, y, [6, 7], 1)?])
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
