//! Functions of one, two or many elements.

use ir::Refusal;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Tensor};

use crate::common::{Operand, axis, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

macro_rules! unary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            one(call, Unary::$function)
        })*
    };
}

unary! {
    abs Abs, acos Acos, acosh Acosh, asin Asin, asinh Asinh, atan Atan, atanh Atanh, ceil Ceil, cos Cos, cosh Cosh,
    erf Erf, exp Exp, floor Floor, hard_swish HardSwish, is_nan IsNan, log Log, mish Mish, neg Neg, not Not,
    reciprocal Reciprocal, relu Relu, round Round, sigmoid Sigmoid, sign Sign, sin Sin, sinh Sinh, softplus Softplus,
    softsign Softsign, sqrt Sqrt, tan Tan, tanh Tanh,
}

fn one(call: &mut Call, function: Unary) -> Yield {
    Ok(vec![call.unary(function, call.input(0)?)?])
}

pub(super) fn celu(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 1.0)?;
    one(call, Unary::Celu { alpha })
}

pub(super) fn elu(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 1.0)?;
    one(call, Unary::Elu { alpha })
}

pub(super) fn gelu(call: &mut Call) -> Yield {
    let function = match call.text_or("approximate", "none") {
        "none" => Unary::Gelu,
        "tanh" => Unary::GeluTanh,
        other => refuse!("attribute `approximate` is `{other}`, not `none` or `tanh`"),
    };
    one(call, function)
}

pub(super) fn hard_sigmoid(call: &mut Call) -> Yield {
    let (alpha, beta) = (call.float_or("alpha", 0.2)?, call.float_or("beta", 0.5)?);
    one(call, Unary::HardSigmoid { alpha, beta })
}

pub(super) fn is_inf(call: &mut Call) -> Yield {
    let negative = call.int_or("detect_negative", 1)? != 0;
    let positive = call.int_or("detect_positive", 1)? != 0;
    one(call, Unary::IsInf { negative, positive })
}

pub(super) fn leaky_relu(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 0.01)?;
    one(call, Unary::LeakyRelu { alpha })
}

pub(super) fn selu(call: &mut Call) -> Yield {
    let (alpha, gamma) = if call.opset() < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
    let (alpha, gamma) = (call.float_or("alpha", alpha)?, call.float_or("gamma", gamma)?);
    one(call, Unary::Selu { alpha, gamma })
}

pub(super) fn shrink(call: &mut Call) -> Yield {
    let (bias, lambda) = (call.float_or("bias", 0.0)?, call.float_or("lambd", 0.5)?);
    one(call, Unary::Shrink { bias, lambda })
}

pub(super) fn thresholded_relu(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 1.0)?;
    one(call, Unary::ThresholdedRelu { alpha })
}

/// Limits are attributes before opset 11 and operands from then on; open sides are infinite.
pub(super) fn clip(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    if call.opset() < 11 {
        let min = call.float_or("min", f32::NEG_INFINITY)?;
        let max = call.float_or("max", f32::INFINITY)?;
        return one(call, Unary::Clip { min, max });
    }
    // Integers and f64 do not go through the function's f32 limits.
    let narrow = matches!(call.dtype(x), DType::F32 | DType::F16 | DType::Bf16);
    let limit = |ix: usize, open: f32| match call.optional(ix) {
        None => Some(open),
        Some(limit) => call.peek(limit).and_then(|limit| limit.to_f64().first().map(|&limit| limit as f32)),
    };
    let limits = limit(1, f32::NEG_INFINITY).zip(limit(2, f32::INFINITY));
    if let (true, Some((min, max))) = (narrow, limits) {
        return match min == f32::NEG_INFINITY && max == f32::INFINITY {
            true => Ok(vec![x]),
            false => one(call, Unary::Clip { min, max }),
        };
    }
    let mut y = x;
    for (ix, function) in [(1, Binary::Max), (2, Binary::Min)] {
        if let Some(limit) = call.optional(ix) {
            y = call.binary(function, y, limit)?;
        }
    }
    Ok(vec![y])
}

macro_rules! binary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            let (a, b) = pair(call)?;
            Ok(vec![call.binary(Binary::$function, a, b)?])
        })*
    };
}

binary! {
    add Add, and And, bitwise_and And, bitwise_or Or, bitwise_xor Xor, div Div, mul Mul, or Or, sub Sub, xor Xor,
}

macro_rules! compare {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            let (a, b) = pair(call)?;
            Ok(vec![call.compare(Compare::$function, a, b)?])
        })*
    };
}

compare! {
    equal Equal, greater Greater, greater_or_equal GreaterOrEqual, less Less, less_or_equal LessOrEqual,
}

/// Two operands, the second one aligned as opsets before 7 say it: from `axis` on instead of from the right.
fn pair(call: &mut Call) -> Result<(Operand, Operand), Refusal> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    if 7 <= call.opset() {
        return Ok((a, b));
    }
    let broadcasts = call.flag("broadcast")?;
    let at = call.int("axis")?;
    let (rank, b_rank) = (call.shape(a).rank(), call.shape(b).rank());
    if !broadcasts && call.shape(a) != call.shape(b) {
        refuse!("operands have shapes {} and {}, and attribute `broadcast` is not set", call.shape(a), call.shape(b));
    }
    match at {
        Some(at) if broadcasts && 0 < b_rank && b_rank <= rank => {
            let first = axis(at, rank)?;
            if rank < first + b_rank {
                refuse!("attribute `axis` is {at}, which does not fit shapes {} and {}", call.shape(a), call.shape(b));
            }
            let b = call.aligned(b, first + b_rank - 1, rank)?;
            Ok((a, b))
        }
        _ => Ok((a, b)),
    }
}

/// The exponent may have another dtype than the base; the result has the base's.
pub(super) fn pow(call: &mut Call) -> Yield {
    let (a, b) = pair(call)?;
    let (base, exponent) = (call.dtype(a), call.dtype(b));
    if base.is_integer() && exponent.is_float() {
        let (a, b) = (call.cast(a, DType::F64)?, call.cast(b, DType::F64)?);
        let y = call.binary(Binary::Pow, a, b)?;
        return Ok(vec![call.cast(y, base)?]);
    }
    let b = call.cast(b, base)?;
    Ok(vec![call.binary(Binary::Pow, a, b)?])
}

/// Before opset 7 one slope a channel; from then on broadcast from the right.
pub(super) fn prelu(call: &mut Call) -> Yield {
    let (x, mut slope) = (call.input(0)?, call.input(1)?);
    let (rank, slope_shape) = (call.shape(x).rank(), call.shape(slope));
    if call.opset() < 7 && slope_shape.rank() == 1 && 2 <= rank {
        slope = call.aligned(slope, 1, rank)?;
    }
    Ok(vec![call.binary(Binary::PRelu, x, slope)?])
}

pub(super) fn modulo(call: &mut Call) -> Yield {
    let function = if call.flag("fmod")? { Binary::Rem } else { Binary::Mod };
    let (a, b) = (call.input(0)?, call.input(1)?);
    Ok(vec![call.binary(function, a, b)?])
}

pub(super) fn bit_shift(call: &mut Call) -> Yield {
    let function = match call.text_or("direction", "") {
        "LEFT" => Binary::ShiftLeft,
        "RIGHT" => Binary::ShiftRight,
        other => refuse!("attribute `direction` is `{other}`, not `LEFT` or `RIGHT`"),
    };
    let (a, b) = (call.input(0)?, call.input(1)?);
    Ok(vec![call.binary(function, a, b)?])
}

pub(super) fn bitwise_not(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let ones = Tensor::scalar(-1i64).cast(call.dtype(x));
    let ones = call.constant(ones);
    Ok(vec![call.binary(Binary::Xor, x, ones)?])
}

fn many(call: &mut Call, function: Binary) -> Result<Operand, Refusal> {
    let inputs = call.all_inputs()?;
    let mut y = inputs[0];
    for &input in &inputs[1..] {
        y = call.binary(function, y, input)?;
    }
    Ok(y)
}

pub(super) fn max(call: &mut Call) -> Yield {
    Ok(vec![many(call, Binary::Max)?])
}

pub(super) fn min(call: &mut Call) -> Yield {
    Ok(vec![many(call, Binary::Min)?])
}

pub(super) fn sum(call: &mut Call) -> Yield {
    Ok(vec![many(call, Binary::Add)?])
}

pub(super) fn mean(call: &mut Call) -> Yield {
    let count = call.all_inputs()?.len();
    let sum = many(call, Binary::Add)?;
    if count == 1 {
        return Ok(vec![sum]);
    }
    let count = call.number(count as f64, call.dtype(sum));
    Ok(vec![call.binary(Binary::Div, sum, count)?])
}

pub(super) fn select(call: &mut Call) -> Yield {
    let (condition, a, b) = (call.input(0)?, call.input(1)?, call.input(2)?);
    Ok(vec![call.select(condition, a, b)?])
}
