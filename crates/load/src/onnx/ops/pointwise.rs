//! Pointwise functions.

use ir::Refusal;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Tensor};

use crate::common::{NodeResult, Operand, axis, refuse};
use crate::onnx::node::ImportedNode;

macro_rules! unary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            one(node, Unary::$function)
        })*
    };
}

unary! {
    abs Abs, acos Acos, acosh Acosh, asin Asin, asinh Asinh, atan Atan, atanh Atanh, ceil Ceil, cos Cos, cosh Cosh,
    erf Erf, exp Exp, floor Floor, hard_swish HardSwish, is_nan IsNan, log Log, mish Mish, neg Neg, not Not,
    reciprocal Reciprocal, relu Relu, round Round, sigmoid Sigmoid, sign Sign, sin Sin, sinh Sinh, softplus Softplus,
    softsign Softsign, sqrt Sqrt, tan Tan, tanh Tanh,
}

fn one(node: &mut ImportedNode, function: Unary) -> NodeResult {
    Ok(vec![node.unary(function, node.input(0)?)?])
}

pub(super) fn celu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.0)?;
    one(node, Unary::Celu { alpha })
}

pub(super) fn elu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.0)?;
    one(node, Unary::Elu { alpha })
}

pub(super) fn gelu(node: &mut ImportedNode) -> NodeResult {
    let function = match node.text_or("approximate", "none") {
        "none" => Unary::Gelu,
        "tanh" => Unary::GeluTanh,
        other => refuse!("attribute `approximate` must be `none` or `tanh`, got `{other}`"),
    };
    one(node, function)
}

pub(super) fn swish(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.0)?;
    swish_of(node, alpha)
}

/// `a sigmoid(alpha a) b`, of equal shapes.
pub(super) fn swiglu(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = (node.input(0)?, node.input(1)?);
    if node.shape(a) != node.shape(b) {
        refuse!("operands must have equal shapes, got {} and {}", node.shape(a), node.shape(b));
    }
    let gate = swish(node)?[0];
    Ok(vec![node.binary(Binary::Mul, gate, b)?])
}

/// `x sigmoid(alpha x)`
pub(super) fn swish_of(node: &mut ImportedNode, alpha: f32) -> NodeResult {
    let x = node.input(0)?;
    let mut scaled = x;
    if alpha != 1.0 {
        let alpha = node.number(f64::from(alpha), node.dtype(x));
        scaled = node.binary(Binary::Mul, x, alpha)?;
    }
    let gate = node.unary(Unary::Sigmoid, scaled)?;
    Ok(vec![node.binary(Binary::Mul, x, gate)?])
}

pub(super) fn hard_sigmoid(node: &mut ImportedNode) -> NodeResult {
    let (alpha, beta) = (node.float_or("alpha", 0.2)?, node.float_or("beta", 0.5)?);
    one(node, Unary::HardSigmoid { alpha, beta })
}

pub(super) fn is_inf(node: &mut ImportedNode) -> NodeResult {
    let negative = node.int_or("detect_negative", 1)? != 0;
    let positive = node.int_or("detect_positive", 1)? != 0;
    one(node, Unary::IsInf { negative, positive })
}

pub(super) fn leaky_relu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 0.01)?;
    one(node, Unary::LeakyRelu { alpha })
}

pub(super) fn selu(node: &mut ImportedNode) -> NodeResult {
    let (alpha, gamma) = if node.opset() < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
    let (alpha, gamma) = (node.float_or("alpha", alpha)?, node.float_or("gamma", gamma)?);
    one(node, Unary::Selu { alpha, gamma })
}

pub(super) fn shrink(node: &mut ImportedNode) -> NodeResult {
    let (bias, lambda) = (node.float_or("bias", 0.0)?, node.float_or("lambd", 0.5)?);
    one(node, Unary::Shrink { bias, lambda })
}

pub(super) fn thresholded_relu(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1.0)?;
    one(node, Unary::ThresholdedRelu { alpha })
}

/// Limits are attributes before opset 11 and operands from then on; absent ones are infinite.
pub(super) fn clip(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    if node.opset() < 11 {
        let min = node.float_or("min", f32::NEG_INFINITY)?;
        let max = node.float_or("max", f32::INFINITY)?;
        return one(node, Unary::Clip { min, max });
    }
    // Limits of the fused function are f32; integers and f64 use minimum and maximum.
    let narrow = matches!(node.dtype(x), DType::F32 | DType::F16 | DType::Bf16);
    let limit = |ix: usize, open: f32| match node.optional(ix) {
        None => Some(open),
        Some(limit) => node.constant_value(limit).and_then(|limit| limit.to_f64().first().map(|&limit| limit as f32)),
    };
    let limits = limit(1, f32::NEG_INFINITY).zip(limit(2, f32::INFINITY));
    if let (true, Some((min, max))) = (narrow, limits) {
        return match min == f32::NEG_INFINITY && max == f32::INFINITY {
            true => Ok(vec![x]),
            false => one(node, Unary::Clip { min, max }),
        };
    }
    let mut y = x;
    for (ix, function) in [(1, Binary::Max), (2, Binary::Min)] {
        if let Some(limit) = node.optional(ix) {
            y = node.binary(function, y, limit)?;
        }
    }
    Ok(vec![y])
}

macro_rules! binary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            let (a, b) = pair(node)?;
            Ok(vec![node.binary(Binary::$function, a, b)?])
        })*
    };
}

binary! {
    add Add, and And, bitwise_and And, bitwise_or Or, bitwise_xor Xor, div Div, mul Mul, or Or, sub Sub, xor Xor,
}

macro_rules! compare {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            let (a, b) = pair(node)?;
            Ok(vec![node.compare(Compare::$function, a, b)?])
        })*
    };
}

compare! {
    equal Equal, greater Greater, greater_or_equal GreaterOrEqual, less Less, less_or_equal LessOrEqual,
}

/// Two operands; before opset 7 the second one is aligned from `axis` on instead of from the right.
fn pair(node: &mut ImportedNode) -> Result<(Operand, Operand), Refusal> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    if 7 <= node.opset() {
        return Ok((a, b));
    }
    let broadcasts = node.flag("broadcast")?;
    let at = node.int("axis")?;
    let (rank, b_rank) = (node.shape(a).rank(), node.shape(b).rank());
    if !broadcasts && node.shape(a) != node.shape(b) {
        refuse!(
            "operands must have equal shapes without attribute `broadcast`, got {} and {}",
            node.shape(a),
            node.shape(b)
        );
    }
    match at {
        Some(at) if broadcasts && 0 < b_rank && b_rank <= rank => {
            let first = axis(at, rank)?;
            if rank < first + b_rank {
                refuse!("attribute `axis`: {at} does not fit shapes {} and {}", node.shape(a), node.shape(b));
            }
            let b = node.aligned(b, first + b_rank - 1, rank)?;
            Ok((a, b))
        }
        _ => Ok((a, b)),
    }
}

/// The exponent may have another dtype than the base; the result has that of the base.
pub(super) fn pow(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = pair(node)?;
    let (base, exponent) = (node.dtype(a), node.dtype(b));
    if base.is_integer() && exponent.is_float() {
        let (a, b) = (node.cast(a, DType::F64)?, node.cast(b, DType::F64)?);
        let y = node.binary(Binary::Pow, a, b)?;
        return Ok(vec![node.cast(y, base)?]);
    }
    let b = node.cast(b, base)?;
    Ok(vec![node.binary(Binary::Pow, a, b)?])
}

/// Before opset 7 one slope per channel; from then on broadcast from the right.
pub(super) fn prelu(node: &mut ImportedNode) -> NodeResult {
    let (x, mut slope) = (node.input(0)?, node.input(1)?);
    let (rank, slope_shape) = (node.shape(x).rank(), node.shape(slope));
    if node.opset() < 7 && slope_shape.rank() == 1 && 2 <= rank {
        slope = node.aligned(slope, 1, rank)?;
    }
    Ok(vec![node.binary(Binary::PRelu, x, slope)?])
}

pub(super) fn modulo(node: &mut ImportedNode) -> NodeResult {
    let function = if node.flag("fmod")? { Binary::Rem } else { Binary::Mod };
    let (a, b) = (node.input(0)?, node.input(1)?);
    Ok(vec![node.binary(function, a, b)?])
}

pub(super) fn bit_shift(node: &mut ImportedNode) -> NodeResult {
    let function = match node.text_or("direction", "") {
        "LEFT" => Binary::ShiftLeft,
        "RIGHT" => Binary::ShiftRight,
        other => refuse!("attribute `direction` must be `LEFT` or `RIGHT`, got `{other}`"),
    };
    let (a, b) = (node.input(0)?, node.input(1)?);
    let dtype = node.dtype(a);
    let unsigned = match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        _ => return Ok(vec![node.binary(function, a, b)?]),
    };
    // A negative shift becomes a large one, which moves all bits out.
    let by = node.cast(b, unsigned)?;
    if function == Binary::ShiftLeft {
        let bits = node.cast(a, unsigned)?;
        let bits = node.binary(function, bits, by)?;
        return Ok(vec![node.cast(bits, dtype)?]);
    }
    // Copies of the sign come in: those of a negative number's complement are zeros.
    let (zero, ones) = (node.number(0.0, dtype), node.number(-1.0, dtype));
    let is_negative = node.compare(Compare::Less, a, zero)?;
    let sign = node.select(is_negative, ones, zero)?;
    let bits = node.binary(Binary::Xor, a, sign)?;
    let bits = node.cast(bits, unsigned)?;
    let bits = node.binary(function, bits, by)?;
    let bits = node.cast(bits, dtype)?;
    Ok(vec![node.binary(Binary::Xor, bits, sign)?])
}

pub(super) fn bitwise_not(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let ones = Tensor::scalar(-1i64).cast(node.dtype(x));
    let ones = node.constant(ones);
    Ok(vec![node.binary(Binary::Xor, x, ones)?])
}

fn many(node: &mut ImportedNode, function: Binary) -> Result<Operand, Refusal> {
    let inputs = node.all_inputs()?;
    let mut y = inputs[0];
    for &input in &inputs[1..] {
        y = node.binary(function, y, input)?;
    }
    Ok(y)
}

pub(super) fn max(node: &mut ImportedNode) -> NodeResult {
    Ok(vec![many(node, Binary::Max)?])
}

pub(super) fn min(node: &mut ImportedNode) -> NodeResult {
    Ok(vec![many(node, Binary::Min)?])
}

pub(super) fn sum(node: &mut ImportedNode) -> NodeResult {
    Ok(vec![many(node, Binary::Add)?])
}

pub(super) fn mean(node: &mut ImportedNode) -> NodeResult {
    let count = node.all_inputs()?.len();
    let sum = many(node, Binary::Add)?;
    if count == 1 {
        return Ok(vec![sum]);
    }
    let count = node.number(count as f64, node.dtype(sum));
    Ok(vec![node.binary(Binary::Div, sum, count)?])
}

pub(super) fn select(node: &mut ImportedNode) -> NodeResult {
    let (condition, a, b) = (node.input(0)?, node.input(1)?, node.input(2)?);
    Ok(vec![node.select(condition, a, b)?])
}
