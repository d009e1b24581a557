//! Operators of domain `com.microsoft` that ONNX Runtime's quantizer writes: each is numbers from bytes, an operator, and
//! bytes from numbers, by definition. Source: onnxruntime, docs/ContribOperators.md.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::{linear, pool};
use crate::common::{Operand, axis, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// The numbers of the bytes that input `at` is; the two behind it are its scale and its zero point, one number each.
fn numbers(call: &mut Call, at: usize) -> Result<Operand, Refusal> {
    let x = call.input(at)?;
    let (scale, zero) = parameters(call, at + 1)?;
    linear::dequantized(call, x, scale, zero)
}

/// The bytes of numbers by the scale that is input `at` and the zero point behind it; without one, of the dtype of input
/// `like`.
fn bytes(call: &mut Call, y: Operand, at: usize, like: usize) -> Yield {
    let (scale, zero) = parameters(call, at)?;
    let like = call.input(like)?;
    let dtype = zero.map_or(call.dtype(like), |zero| call.dtype(zero));
    Ok(vec![linear::quantized(call, y, scale, zero, dtype)?])
}

fn parameters(call: &mut Call, at: usize) -> Result<(Operand, Option<Operand>), Refusal> {
    let scale = call.input(at)?;
    let scale = number(call, scale)?;
    let zero = match call.optional(at + 1) {
        Some(zero) => Some(number(call, zero)?),
        None => None,
    };
    Ok((scale, zero))
}

fn number(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    match call.shape(x).elements() {
        1 => call.reshape(x, Shape::scalar()),
        count => refuse!("a scale or zero point of {count} numbers is not supported here; one is"),
    }
}

/// `a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero`
fn between(call: &mut Call, function: Binary) -> Yield {
    let (a, b) = (numbers(call, 0)?, numbers(call, 3)?);
    let y = call.binary(function, a, b)?;
    bytes(call, y, 6, 0)
}

pub(super) fn add(call: &mut Call) -> Yield {
    between(call, Binary::Add)
}

pub(super) fn mul(call: &mut Call) -> Yield {
    between(call, Binary::Mul)
}

/// `x, x_scale, x_zero, y_scale, y_zero`
fn each(call: &mut Call, function: Unary) -> Yield {
    let x = numbers(call, 0)?;
    let y = call.unary(function, x)?;
    bytes(call, y, 3, 0)
}

pub(super) fn leaky_relu(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 0.01)?;
    each(call, Unary::LeakyRelu { alpha })
}

pub(super) fn sigmoid(call: &mut Call) -> Yield {
    each(call, Unary::Sigmoid)
}

/// `x, x_scale, x_zero, y_scale, y_zero`; as in the default domain's version that attribute `opset` names.
pub(super) fn softmax(call: &mut Call) -> Yield {
    let x = numbers(call, 0)?;
    let rank = call.shape(x).rank();
    let is_one_axis = 13 <= call.int_or("opset", 13)?;
    let at = axis(call.int_or("axis", -1)?, rank)?;
    if !is_one_axis && at + 1 != rank {
        refuse!("a softmax of several axes is not supported here");
    }
    let y = call.apply(ops::Softmax { axis: at, log: false }, &[x])?;
    bytes(call, y, 3, 0)
}

fn refuse_channels_last(call: &mut Call) -> Result<(), Refusal> {
    if call.flag("channels_last")? {
        refuse!("attribute `channels_last` is not supported");
    }
    Ok(())
}

pub(super) fn global_average(call: &mut Call) -> Yield {
    refuse_channels_last(call)?;
    let x = numbers(call, 0)?;
    let rank = call.shape(x).rank();
    let y = call.reduce(ops::ReduceKind::Mean, x, (2..rank).collect(), true)?;
    bytes(call, y, 3, 0)
}

pub(super) fn average(call: &mut Call) -> Yield {
    refuse_channels_last(call)?;
    let pool = pool::average_of(call)?;
    let x = numbers(call, 0)?;
    let y = call.apply(pool, &[x])?;
    bytes(call, y, 3, 0)
}

/// `y_scale, y_zero`, then for each part itself, its scale and its zero point.
pub(super) fn concat(call: &mut Call) -> Yield {
    let Some(at) = call.int("axis")? else { refuse!("attribute `axis` is missing") };
    let count = call.all_inputs()?.len();
    if count < 5 || count % 3 != 2 {
        refuse!("takes a scale and a zero point, and three inputs for each part");
    }
    let parts: Vec<Operand> = (2..count).step_by(3).map(|part| numbers(call, part)).collect::<Result<_, _>>()?;
    let axis = axis(at, call.shape(parts[0]).rank())?;
    // Parts become bytes of the common scale before they are put side by side.
    let parts: Vec<Operand> =
        parts.into_iter().map(|part| Ok(bytes(call, part, 0, 2)?.swap_remove(0))).collect::<Result<_, Refusal>>()?;
    match parts[..] {
        [part] => Ok(vec![part]),
        _ => Ok(vec![call.apply(ops::Concat { axis }, &parts)?]),
    }
}

/// `a, a_scale, a_zero, b, b_scale, b_zero`, perhaps `c` in `i32` by the scale of the products, `y_scale` and `y_zero`;
/// without those the result is numbers.
pub(super) fn gemm(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 1.0)?;
    let (trans_a, trans_b) = (call.flag("transA")?, call.flag("transB")?);
    let a = numbers(call, 0)?;
    let b = call.input(3)?;
    if call.shape(a).rank() != 2 || call.shape(b).rank() != 2 {
        refuse!("{} and {} are not both matrices", call.shape(a), call.shape(b));
    }
    // A scale for each column of the result.
    let columns = call.shape(b)[usize::from(!trans_b)];
    let b_scale = call.input(4)?;
    let across = |call: &mut Call, part: Operand| -> Result<Operand, Refusal> {
        match (call.shape(part).elements(), trans_b) {
            (1, _) => call.reshape(part, Shape::scalar()),
            (count, true) if count == columns => call.reshape(part, Shape::from([columns, 1])),
            (count, false) if count == columns => call.reshape(part, Shape::from([columns])),
            (count, _) => refuse!("{count} scales or zero points for {columns} columns are not supported"),
        }
    };
    let b_along = across(call, b_scale)?;
    let b_zero = match call.optional(5) {
        Some(zero) => Some(across(call, zero)?),
        None => None,
    };
    let b = linear::dequantized(call, b, b_along, b_zero)?;
    let a = if trans_a { call.transpose(a, &[1, 0])? } else { a };
    let b = if trans_b { call.transpose(b, &[1, 0])? } else { b };
    let mut y = call.apply(ops::MatMul::default(), &[a, b])?;
    if let Some(c) = call.optional(6) {
        let a_scale = call.input(1)?;
        let a_scale = number(call, a_scale)?;
        let b_scale = match call.shape(b_scale).elements() {
            1 => call.reshape(b_scale, Shape::scalar())?,
            _ => b_scale,
        };
        let scale = call.binary(Binary::Mul, a_scale, b_scale)?;
        let c = linear::dequantized(call, c, scale, None)?;
        y = call.binary(Binary::Add, y, c)?;
    }
    if alpha != 1.0 {
        let alpha = call.number(f64::from(alpha), DType::F32);
        y = call.binary(Binary::Mul, y, alpha)?;
    }
    match call.optional(7) {
        Some(_) => bytes(call, y, 7, 0),
        None => Ok(vec![y]),
    }
}
