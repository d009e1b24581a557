//! Pointwise functions.

use ir::Refusal;
use types::DType;
use types::pointwise::{Binary, Compare, Unary};

use crate::common::{NodeResult, Operand, refuse};
use crate::mxnet::node::ImportedNode;

macro_rules! unary {
    ($($name:ident $function:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            one(node, Unary::$function)
        })*
    };
}

unary! {
    abs Abs, acos Acos, acosh Acosh, asin Asin, asinh Asinh, atan Atan, atanh Atanh, ceil Ceil, cos Cos, cosh Cosh,
    erf Erf, exp Exp, floor Floor, log Log, mish Mish, neg Neg, reciprocal Reciprocal, relu Relu, rint Round,
    sigmoid Sigmoid, sign Sign, sin Sin, sinh Sinh, softsign Softsign, sqrt Sqrt, tan Tan, tanh Tanh,
}

fn one(node: &mut ImportedNode, function: Unary) -> NodeResult {
    Ok(vec![node.unary(function, node.input(0)?)?])
}

/// A function of the input and a scalar.
fn with_number(node: &mut ImportedNode, function: Binary, number: f64) -> NodeResult {
    let x = node.input(0)?;
    let number = node.number(number, node.dtype(x));
    Ok(vec![node.binary(function, x, number)?])
}

/// `log(x)` times a scalar.
fn log_times(node: &mut ImportedNode, factor: f64) -> NodeResult {
    let x = node.input(0)?;
    let logarithm = node.unary(Unary::Log, x)?;
    let factor = node.number(factor, node.dtype(x));
    Ok(vec![node.binary(Binary::Mul, logarithm, factor)?])
}

pub(super) fn log2(node: &mut ImportedNode) -> NodeResult {
    log_times(node, std::f64::consts::LOG2_E)
}

pub(super) fn log10(node: &mut ImportedNode) -> NodeResult {
    log_times(node, std::f64::consts::LOG10_E)
}

pub(super) fn log1p(node: &mut ImportedNode) -> NodeResult {
    let x = with_number(node, Binary::Add, 1.0)?;
    Ok(vec![node.unary(Unary::Log, x[0])?])
}

pub(super) fn expm1(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let power = node.unary(Unary::Exp, x)?;
    let one = node.number(1.0, node.dtype(x));
    Ok(vec![node.binary(Binary::Sub, power, one)?])
}

pub(super) fn degrees(node: &mut ImportedNode) -> NodeResult {
    with_number(node, Binary::Mul, 180.0 / std::f64::consts::PI)
}

pub(super) fn radians(node: &mut ImportedNode) -> NodeResult {
    with_number(node, Binary::Mul, std::f64::consts::PI / 180.0)
}

pub(super) fn square(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    Ok(vec![node.binary(Binary::Mul, x, x)?])
}

pub(super) fn rsqrt(node: &mut ImportedNode) -> NodeResult {
    let root = sqrt(node)?;
    Ok(vec![node.unary(Unary::Reciprocal, root[0])?])
}

/// `sign(x) |x|^(1 / 3)`
pub(super) fn cbrt(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let size = node.unary(Unary::Abs, x)?;
    let third = node.number(1.0 / 3.0, node.dtype(x));
    let root = node.binary(Binary::Pow, size, third)?;
    let sign = node.unary(Unary::Sign, x)?;
    Ok(vec![node.binary(Binary::Mul, sign, root)?])
}

pub(super) fn rcbrt(node: &mut ImportedNode) -> NodeResult {
    let root = cbrt(node)?;
    Ok(vec![node.unary(Unary::Reciprocal, root[0])?])
}

/// Rounds towards zero.
pub(super) fn fix(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let size = node.unary(Unary::Abs, x)?;
    let whole = node.unary(Unary::Floor, size)?;
    let sign = node.unary(Unary::Sign, x)?;
    Ok(vec![node.binary(Binary::Mul, sign, whole)?])
}

pub(super) fn div_sqrt_dim(node: &mut ImportedNode) -> NodeResult {
    let shape = node.shape(node.input(0)?);
    let Some(&last) = shape.last() else { refuse!("input must have rank >= 1, got {shape}") };
    with_number(node, Binary::Div, (last as f64).sqrt())
}

pub(super) fn activation(node: &mut ImportedNode) -> NodeResult {
    let function = match node.text_or("act_type", "") {
        "relu" => Unary::Relu,
        "sigmoid" => Unary::Sigmoid,
        "tanh" => Unary::Tanh,
        "softrelu" => Unary::Softplus,
        "softsign" => Unary::Softsign,
        "log_sigmoid" => {
            let x = node.input(0)?;
            let turned = node.unary(Unary::Neg, x)?;
            let y = node.unary(Unary::Softplus, turned)?;
            return Ok(vec![node.unary(Unary::Neg, y)?]);
        }
        "mish" => Unary::Mish,
        other => refuse!("attribute `act_type`: `{other}` is not supported"),
    };
    one(node, function)
}

/// `rrelu` uses the mean of its slope bounds in inference.
pub(super) fn leaky_relu(node: &mut ImportedNode) -> NodeResult {
    let slope = node.float_or("slope", 0.25)? as f32;
    let bounds = [node.float_or("lower_bound", 0.125)?, node.float_or("upper_bound", 0.334)?];
    let function = match node.text_or("act_type", "leaky") {
        "leaky" => Unary::LeakyRelu { alpha: slope },
        "rrelu" => Unary::LeakyRelu { alpha: ((bounds[0] + bounds[1]) / 2.0) as f32 },
        "elu" => Unary::Elu { alpha: slope },
        // Constants of Klambauer et al. 2017.
        "selu" => Unary::Selu { alpha: 1.673_263_2, gamma: 1.050_701 },
        "gelu" => Unary::Gelu,
        "prelu" => {
            let [x, gamma] = node.inputs()?;
            // A slope per channel, or one for all.
            let rank = node.shape(x).rank();
            let gamma = match node.shape(gamma).rank() {
                1 if 1 < rank && node.shape(gamma)[0] != 1 => node.aligned(gamma, 1, rank)?,
                _ => gamma,
            };
            return Ok(vec![node.binary(Binary::PRelu, x, gamma)?]);
        }
        other => refuse!("attribute `act_type`: `{other}` is not supported"),
    };
    one(node, function)
}

pub(super) fn clip(node: &mut ImportedNode) -> NodeResult {
    let (Some(min), Some(max)) = (node.float("a_min")?, node.float("a_max")?) else {
        refuse!("attribute `a_min` or `a_max` is missing")
    };
    one(node, Unary::Clip { min: min as f32, max: max as f32 })
}

pub(super) fn hard_sigmoid(node: &mut ImportedNode) -> NodeResult {
    let (alpha, beta) = (node.float_or("alpha", 0.2)? as f32, node.float_or("beta", 0.5)? as f32);
    one(node, Unary::HardSigmoid { alpha, beta })
}

/// `(sx)^2 / 2` where `|x| < 1 / s^2`, else `|x| - 1 / (2 s^2)`.
pub(super) fn smooth_l1(node: &mut ImportedNode) -> NodeResult {
    let squared = node.float_or("scalar", 1.0)?.powi(2);
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    let [half, bound, less] = [0.5 * squared, 1.0 / squared, 0.5 / squared].map(|number| node.number(number, dtype));
    let squares = node.binary(Binary::Mul, x, x)?;
    let near = node.binary(Binary::Mul, squares, half)?;
    let size = node.unary(Unary::Abs, x)?;
    let far = node.binary(Binary::Sub, size, less)?;
    let is_near = node.compare(Compare::Less, size, bound)?;
    Ok(vec![node.select(is_near, near, far)?])
}

macro_rules! binary {
    ($($name:ident $with_scalar:ident $function:ident,)*) => {
        $(
            pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
                let [a, b] = node.inputs()?;
                Ok(vec![node.binary(Binary::$function, a, b)?])
            }

            pub(super) fn $with_scalar(node: &mut ImportedNode) -> NodeResult {
                let [x, scalar] = scalar(node)?;
                Ok(vec![node.binary(Binary::$function, x, scalar)?])
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
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            let [x, scalar] = scalar(node)?;
            Ok(vec![node.binary(Binary::$function, scalar, x)?])
        })*
    };
}

scalar_first! {
    scalar_sub Sub, scalar_div Div, scalar_power Pow, scalar_mod Mod,
}

/// The input and the attribute `scalar` in its dtype.
fn scalar(node: &mut ImportedNode) -> Result<[Operand; 2], Refusal> {
    // Whether the scalar is written as an integer.
    node.ignore(&["is_int"]);
    let x = node.input(0)?;
    let Some(number) = node.float("scalar")? else { refuse!("attribute `scalar` is missing") };
    Ok([x, node.number(number, node.dtype(x))])
}

/// Comparisons return 0 and 1 in the dtype of their operands.
fn compared(node: &mut ImportedNode, function: Compare, negate: bool, [a, b]: [Operand; 2]) -> NodeResult {
    let dtype = node.dtype(a);
    let mut truth = node.compare(function, a, b)?;
    if negate {
        truth = node.unary(Unary::Not, truth)?;
    }
    Ok(vec![node.cast(truth, dtype)?])
}

macro_rules! compare {
    ($($name:ident $with_scalar:ident $function:ident $negate:literal,)*) => {
        $(
            pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
                let operands = node.inputs()?;
                compared(node, Compare::$function, $negate, operands)
            }

            pub(super) fn $with_scalar(node: &mut ImportedNode) -> NodeResult {
                let operands = scalar(node)?;
                compared(node, Compare::$function, $negate, operands)
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

/// Whether elements differ from 0.
fn truth(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let zero = node.number(0.0, node.dtype(x));
    let is_zero = node.compare(Compare::Equal, x, zero)?;
    node.unary(Unary::Not, is_zero)
}

fn logical(node: &mut ImportedNode, function: Binary) -> NodeResult {
    let [a, b] = node.inputs()?;
    let dtype = node.dtype(a);
    let (a, b) = (truth(node, a)?, truth(node, b)?);
    let both = node.binary(function, a, b)?;
    Ok(vec![node.cast(both, dtype)?])
}

pub(super) fn logical_and(node: &mut ImportedNode) -> NodeResult {
    logical(node, Binary::And)
}

pub(super) fn logical_or(node: &mut ImportedNode) -> NodeResult {
    logical(node, Binary::Or)
}

pub(super) fn logical_xor(node: &mut ImportedNode) -> NodeResult {
    logical(node, Binary::Xor)
}

pub(super) fn logical_not(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let zero = node.number(0.0, node.dtype(x));
    compared(node, Compare::Equal, false, [x, zero])
}

pub(super) fn hypot(node: &mut ImportedNode) -> NodeResult {
    let [a, b] = node.inputs()?;
    let a = node.binary(Binary::Mul, a, a)?;
    let b = node.binary(Binary::Mul, b, b)?;
    let sum = node.binary(Binary::Add, a, b)?;
    Ok(vec![node.unary(Unary::Sqrt, sum)?])
}

pub(super) fn add_n(node: &mut ImportedNode) -> NodeResult {
    let inputs = node.all_inputs()?;
    let mut sum = inputs[0];
    for &next in &inputs[1..] {
        sum = node.binary(Binary::Add, sum, next)?;
    }
    Ok(vec![sum])
}

/// A condition of rank 1 selects whole rows.
pub(super) fn select(node: &mut ImportedNode) -> NodeResult {
    let [condition, a, b] = node.inputs()?;
    let rank = node.shape(a).rank();
    let mut condition = truth(node, condition)?;
    if node.shape(condition).rank() == 1 && 1 < rank {
        condition = node.aligned(condition, 0, rank)?;
    }
    Ok(vec![node.select(condition, a, b)?])
}

pub(super) fn cast(node: &mut ImportedNode) -> NodeResult {
    let Some(dtype) = node.dtype_attribute("dtype")? else { refuse!("attribute `dtype` is missing") };
    let x = node.input(0)?;
    if dtype == DType::Bool {
        return Ok(vec![truth(node, x)?]);
    }
    Ok(vec![node.cast(x, dtype)?])
}
