//! Functions of one, two or many elements.

use ir::Refusal;
use types::DType;
use types::pointwise::{Binary, Compare, Unary};

use super::Yield;
use crate::common::{Operand, refuse};
use crate::mxnet::call::Call;

macro_rules! unary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            one(call, Unary::$function)
        })*
    };
}

unary! {
    abs Abs, acos Acos, acosh Acosh, asin Asin, asinh Asinh, atan Atan, atanh Atanh, ceil Ceil, cos Cos, cosh Cosh,
    erf Erf, exp Exp, floor Floor, log Log, mish Mish, neg Neg, reciprocal Reciprocal, relu Relu, rint Round,
    sigmoid Sigmoid, sign Sign, sin Sin, sinh Sinh, softsign Softsign, sqrt Sqrt, tan Tan, tanh Tanh,
}

fn one(call: &mut Call, function: Unary) -> Yield {
    Ok(vec![call.unary(function, call.input(0)?)?])
}

/// A function of the input and a number.
fn with_number(call: &mut Call, function: Binary, number: f64) -> Yield {
    let x = call.input(0)?;
    let number = call.number(number, call.dtype(x));
    Ok(vec![call.binary(function, x, number)?])
}

/// `log(x)` times a number.
fn log_times(call: &mut Call, factor: f64) -> Yield {
    let x = call.input(0)?;
    let logarithm = call.unary(Unary::Log, x)?;
    let factor = call.number(factor, call.dtype(x));
    Ok(vec![call.binary(Binary::Mul, logarithm, factor)?])
}

pub(super) fn log2(call: &mut Call) -> Yield {
    log_times(call, std::f64::consts::LOG2_E)
}

pub(super) fn log10(call: &mut Call) -> Yield {
    log_times(call, std::f64::consts::LOG10_E)
}

pub(super) fn log1p(call: &mut Call) -> Yield {
    let x = with_number(call, Binary::Add, 1.0)?;
    Ok(vec![call.unary(Unary::Log, x[0])?])
}

pub(super) fn expm1(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let power = call.unary(Unary::Exp, x)?;
    let one = call.number(1.0, call.dtype(x));
    Ok(vec![call.binary(Binary::Sub, power, one)?])
}

pub(super) fn degrees(call: &mut Call) -> Yield {
    with_number(call, Binary::Mul, 180.0 / std::f64::consts::PI)
}

pub(super) fn radians(call: &mut Call) -> Yield {
    with_number(call, Binary::Mul, std::f64::consts::PI / 180.0)
}

pub(super) fn square(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    Ok(vec![call.binary(Binary::Mul, x, x)?])
}

pub(super) fn rsqrt(call: &mut Call) -> Yield {
    let root = sqrt(call)?;
    Ok(vec![call.unary(Unary::Reciprocal, root[0])?])
}

/// `sign(x) |x|^(1 / 3)`
pub(super) fn cbrt(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let size = call.unary(Unary::Abs, x)?;
    let third = call.number(1.0 / 3.0, call.dtype(x));
    let root = call.binary(Binary::Pow, size, third)?;
    let sign = call.unary(Unary::Sign, x)?;
    Ok(vec![call.binary(Binary::Mul, sign, root)?])
}

pub(super) fn rcbrt(call: &mut Call) -> Yield {
    let root = cbrt(call)?;
    Ok(vec![call.unary(Unary::Reciprocal, root[0])?])
}

/// The next whole number towards zero.
pub(super) fn fix(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let size = call.unary(Unary::Abs, x)?;
    let whole = call.unary(Unary::Floor, size)?;
    let sign = call.unary(Unary::Sign, x)?;
    Ok(vec![call.binary(Binary::Mul, sign, whole)?])
}

pub(super) fn div_sqrt_dim(call: &mut Call) -> Yield {
    let shape = call.shape(call.input(0)?);
    let Some(&last) = shape.last() else { refuse!("input {shape} has no dimensions") };
    with_number(call, Binary::Div, (last as f64).sqrt())
}

pub(super) fn activation(call: &mut Call) -> Yield {
    let function = match call.text_or("act_type", "") {
        "relu" => Unary::Relu,
        "sigmoid" => Unary::Sigmoid,
        "tanh" => Unary::Tanh,
        "softrelu" => Unary::Softplus,
        "softsign" => Unary::Softsign,
        "log_sigmoid" => {
            let x = call.input(0)?;
            let turned = call.unary(Unary::Neg, x)?;
            let y = call.unary(Unary::Softplus, turned)?;
            return Ok(vec![call.unary(Unary::Neg, y)?]);
        }
        "mish" => Unary::Mish,
        other => refuse!("attribute `act_type` is `{other}`"),
    };
    one(call, function)
}

/// `rrelu` has the mean of its slopes in inference.
pub(super) fn leaky_relu(call: &mut Call) -> Yield {
    let slope = call.float_or("slope", 0.25)? as f32;
    let bounds = [call.float_or("lower_bound", 0.125)?, call.float_or("upper_bound", 0.334)?];
    let function = match call.text_or("act_type", "leaky") {
        "leaky" => Unary::LeakyRelu { alpha: slope },
        "rrelu" => Unary::LeakyRelu { alpha: ((bounds[0] + bounds[1]) / 2.0) as f32 },
        "elu" => Unary::Elu { alpha: slope },
        // The numbers of Klambauer et al. 2017.
        "selu" => Unary::Selu { alpha: 1.673_263_2, gamma: 1.050_701 },
        "gelu" => Unary::Gelu,
        "prelu" => {
            let [x, gamma] = call.inputs()?;
            // A slope for each channel, or one for all.
            let rank = call.shape(x).rank();
            let gamma = match call.shape(gamma).rank() {
                1 if 1 < rank && call.shape(gamma)[0] != 1 => call.aligned(gamma, 1, rank)?,
                _ => gamma,
            };
            return Ok(vec![call.binary(Binary::PRelu, x, gamma)?]);
        }
        other => refuse!("attribute `act_type` is `{other}`"),
    };
    one(call, function)
}

pub(super) fn clip(call: &mut Call) -> Yield {
    let (Some(min), Some(max)) = (call.float("a_min")?, call.float("a_max")?) else {
        refuse!("attribute `a_min` or `a_max` is missing")
    };
    one(call, Unary::Clip { min: min as f32, max: max as f32 })
}

pub(super) fn hard_sigmoid(call: &mut Call) -> Yield {
    let (alpha, beta) = (call.float_or("alpha", 0.2)? as f32, call.float_or("beta", 0.5)? as f32);
    one(call, Unary::HardSigmoid { alpha, beta })
}

/// `(sx)^2 / 2` where `|x| < 1 / s^2`, else `|x| - 1 / (2 s^2)`.
pub(super) fn smooth_l1(call: &mut Call) -> Yield {
    let squared = call.float_or("scalar", 1.0)?.powi(2);
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let [half, bound, less] = [0.5 * squared, 1.0 / squared, 0.5 / squared].map(|number| call.number(number, dtype));
    let squares = call.binary(Binary::Mul, x, x)?;
    let near = call.binary(Binary::Mul, squares, half)?;
    let size = call.unary(Unary::Abs, x)?;
    let far = call.binary(Binary::Sub, size, less)?;
    let is_near = call.compare(Compare::Less, size, bound)?;
    Ok(vec![call.select(is_near, near, far)?])
}

macro_rules! binary {
    ($($name:ident $with_scalar:ident $function:ident,)*) => {
        $(
            pub(super) fn $name(call: &mut Call) -> Yield {
                let [a, b] = call.inputs()?;
                Ok(vec![call.binary(Binary::$function, a, b)?])
            }

            pub(super) fn $with_scalar(call: &mut Call) -> Yield {
                let [x, scalar] = scalar(call)?;
                Ok(vec![call.binary(Binary::$function, x, scalar)?])
            }
        )*
    };
}

binary! {
    add add_scalar Add,
    sub sub_scalar Sub,
    mul mul_scalar Mul,
    div div_scalar Div,
    power power_scalar Pow,
    maximum maximum_scalar Max,
    minimum minimum_scalar Min,
    modulo mod_scalar Mod,
}

macro_rules! scalar_first {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            let [x, scalar] = scalar(call)?;
            Ok(vec![call.binary(Binary::$function, scalar, x)?])
        })*
    };
}

scalar_first! {
    scalar_sub Sub, scalar_div Div, scalar_power Pow, scalar_mod Mod,
}

/// The input and the attribute `scalar` in its dtype.
fn scalar(call: &mut Call) -> Result<[Operand; 2], Refusal> {
    // Whether the number was written as a whole one.
    call.ignore(&["is_int"]);
    let x = call.input(0)?;
    let Some(number) = call.float("scalar")? else { refuse!("attribute `scalar` is missing") };
    Ok([x, call.number(number, call.dtype(x))])
}

/// Comparisons yield 0 and 1 in the dtype of their operands.
fn compared(call: &mut Call, function: Compare, negate: bool, [a, b]: [Operand; 2]) -> Yield {
    let dtype = call.dtype(a);
    let mut truth = call.compare(function, a, b)?;
    if negate {
        truth = call.unary(Unary::Not, truth)?;
    }
    Ok(vec![call.cast(truth, dtype)?])
}

macro_rules! compare {
    ($($name:ident $with_scalar:ident $function:ident $negate:literal,)*) => {
        $(
            pub(super) fn $name(call: &mut Call) -> Yield {
                let operands = call.inputs()?;
                compared(call, Compare::$function, $negate, operands)
            }

            pub(super) fn $with_scalar(call: &mut Call) -> Yield {
                let operands = scalar(call)?;
                compared(call, Compare::$function, $negate, operands)
            }
        )*
    };
}

compare! {
    equal equal_scalar Equal false,
    not_equal not_equal_scalar Equal true,
    greater greater_scalar Greater false,
    greater_equal greater_equal_scalar GreaterOrEqual false,
    lesser lesser_scalar Less false,
    lesser_equal lesser_equal_scalar LessOrEqual false,
}

/// Whether elements are something else than 0.
fn truth(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    let zero = call.number(0.0, call.dtype(x));
    let is_zero = call.compare(Compare::Equal, x, zero)?;
    call.unary(Unary::Not, is_zero)
}

fn logical(call: &mut Call, function: Binary) -> Yield {
    let [a, b] = call.inputs()?;
    let dtype = call.dtype(a);
    let (a, b) = (truth(call, a)?, truth(call, b)?);
    let both = call.binary(function, a, b)?;
    Ok(vec![call.cast(both, dtype)?])
}

pub(super) fn logical_and(call: &mut Call) -> Yield {
    logical(call, Binary::And)
}

pub(super) fn logical_or(call: &mut Call) -> Yield {
    logical(call, Binary::Or)
}

pub(super) fn logical_xor(call: &mut Call) -> Yield {
    logical(call, Binary::Xor)
}

pub(super) fn logical_not(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let zero = call.number(0.0, call.dtype(x));
    compared(call, Compare::Equal, false, [x, zero])
}

pub(super) fn hypot(call: &mut Call) -> Yield {
    let [a, b] = call.inputs()?;
    let a = call.binary(Binary::Mul, a, a)?;
    let b = call.binary(Binary::Mul, b, b)?;
    let sum = call.binary(Binary::Add, a, b)?;
    Ok(vec![call.unary(Unary::Sqrt, sum)?])
}

pub(super) fn add_n(call: &mut Call) -> Yield {
    let inputs = call.all_inputs()?;
    let mut sum = inputs[0];
    for &next in &inputs[1..] {
        sum = call.binary(Binary::Add, sum, next)?;
    }
    Ok(vec![sum])
}

/// A condition of rank 1 chooses whole rows.
pub(super) fn select(call: &mut Call) -> Yield {
    let [condition, a, b] = call.inputs()?;
    let rank = call.shape(a).rank();
    let mut condition = truth(call, condition)?;
    if call.shape(condition).rank() == 1 && 1 < rank {
        condition = call.aligned(condition, 0, rank)?;
    }
    Ok(vec![call.select(condition, a, b)?])
}

pub(super) fn cast(call: &mut Call) -> Yield {
    let Some(dtype) = call.dtype_attribute("dtype")? else { refuse!("attribute `dtype` is missing") };
    let x = call.input(0)?;
    if dtype == DType::Bool {
        return Ok(vec![truth(call, x)?]);
    }
    Ok(vec![call.cast(x, dtype)?])
}
