//! Steps of optimizers, of the domain `ai.onnx.preview.training`: plain arithmetic on parameters, gradients and what is
//! remembered of earlier steps.

use ir::Refusal;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// The inputs: rate, number of the step, then all parameters, all gradients, and lists of what is remembered.
struct Step {
    rate: Operand,
    count: Operand,
    /// For each parameter itself, its gradient with the regularization's, and what is remembered of it.
    parameters: Vec<Vec<Operand>>,
}

/// Reads the inputs, of which each parameter has so many.
fn step(call: &mut Call, each: usize) -> Result<Step, Refusal> {
    let inputs = call.all_inputs()?;
    let count = inputs.len().saturating_sub(2) / each;
    if count == 0 || inputs.len() != 2 + each * count {
        refuse!("{} inputs are not two and {each} for each parameter", inputs.len());
    }
    let dtype = call.dtype(inputs[2]);
    if !matches!(dtype, DType::F32 | DType::F64) {
        refuse!("parameters of {dtype} are not supported, only f32 and f64 are");
    }
    let rate = call.reshape(inputs[0], Shape::scalar())?;
    let rate = call.cast(rate, dtype)?;
    let number = call.reshape(inputs[1], Shape::scalar())?;
    let number = call.cast(number, dtype)?;
    let norm = call.float_or("norm_coefficient", 0.0)?;
    let mut parameters = Vec::new();
    for ix in 0..count {
        let mut parameter: Vec<Operand> = (0..each).map(|list| inputs[2 + list * count + ix]).collect();
        let shape = call.shape(parameter[0]);
        if parameter.iter().any(|&operand| call.shape(operand) != shape || call.dtype(operand) != dtype) {
            refuse!("parameter {ix} of {dtype}{shape} has a gradient or a memory of another type");
        }
        let decay = scaled(call, parameter[0], norm)?;
        parameter[1] = call.binary(Binary::Add, decay, parameter[1])?;
        parameters.push(parameter);
    }
    Ok(Step { rate, count: number, parameters })
}

fn scaled(call: &mut Call, x: Operand, factor: f32) -> Result<Operand, Refusal> {
    let factor = call.number(f64::from(factor), call.dtype(x));
    call.binary(Binary::Mul, x, factor)
}

fn shifted(call: &mut Call, x: Operand, term: f32) -> Result<Operand, Refusal> {
    let term = call.number(f64::from(term), call.dtype(x));
    call.binary(Binary::Add, x, term)
}

/// `a x + b y`
fn mixed(call: &mut Call, [a, b]: [f32; 2], [x, y]: [Operand; 2]) -> Result<Operand, Refusal> {
    let (x, y) = (scaled(call, x, a)?, scaled(call, y, b)?);
    call.binary(Binary::Add, x, y)
}

/// Lists of what each parameter yields, one behind the other.
fn joined(yielded: &[Vec<Operand>]) -> Yield {
    let each = yielded.first().map_or(0, Vec::len);
    Ok((0..each).flat_map(|list| yielded.iter().map(move |parameter| parameter[list])).collect())
}

/// Duchi et al. 2011. `h` is the sum of all squared gradients.
pub(super) fn adagrad(call: &mut Call) -> Yield {
    let (decay, epsilon) = (call.float_or("decay_factor", 0.0)?, call.float_or("epsilon", 1e-6)?);
    let step = step(call, 3)?;
    let slower = scaled(call, step.count, decay)?;
    let slower = shifted(call, slower, 1.0)?;
    let rate = call.binary(Binary::Div, step.rate, slower)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, h] = parameter[..] else { refuse!("a parameter has three inputs") };
        let squares = call.binary(Binary::Mul, g, g)?;
        let h = call.binary(Binary::Add, h, squares)?;
        let root = call.unary(Unary::Sqrt, h)?;
        let root = shifted(call, root, epsilon)?;
        let way = call.binary(Binary::Mul, rate, g)?;
        let way = call.binary(Binary::Div, way, root)?;
        yielded.push(vec![call.binary(Binary::Sub, x, way)?, h]);
    }
    joined(&yielded)
}

/// Kingma & Ba 2014. `v` and `h` are the means of gradients and of their squares.
pub(super) fn adam(call: &mut Call) -> Yield {
    let (alpha, beta) = (call.float_or("alpha", 0.9)?, call.float_or("beta", 0.999)?);
    let epsilon = call.float_or("epsilon", 1e-6)?;
    let norm_post = call.float_or("norm_coefficient_post", 0.0)?;
    let step = step(call, 4)?;
    let dtype = call.dtype(step.rate);
    // Means that began at 0 are too small in the first steps; step 0 is taken as it is.
    let gone = |call: &mut Call, factor: f32| {
        let factor = call.number(f64::from(factor), dtype);
        let power = call.binary(Binary::Pow, factor, step.count)?;
        let one = call.number(1.0, dtype);
        call.binary(Binary::Sub, one, power)
    };
    let (squares, gradients) = (gone(call, beta)?, gone(call, alpha)?);
    let root = call.unary(Unary::Sqrt, squares)?;
    let corrected = call.binary(Binary::Mul, step.rate, root)?;
    let corrected = call.binary(Binary::Div, corrected, gradients)?;
    let is_later = is_later(call, step.count)?;
    let rate = call.select(is_later, corrected, step.rate)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, v, h] = parameter[..] else { refuse!("a parameter has four inputs") };
        let v = mixed(call, [alpha, 1.0 - alpha], [v, g])?;
        let squares = call.binary(Binary::Mul, g, g)?;
        let h = mixed(call, [beta, 1.0 - beta], [h, squares])?;
        let root = call.unary(Unary::Sqrt, h)?;
        let root = shifted(call, root, epsilon)?;
        let way = call.binary(Binary::Div, v, root)?;
        let way = call.binary(Binary::Mul, rate, way)?;
        let x = call.binary(Binary::Sub, x, way)?;
        yielded.push(vec![scaled(call, x, 1.0 - norm_post)?, v, h]);
    }
    joined(&yielded)
}

/// Gradients with a memory `v`, which Nesterov's way looks one step ahead.
pub(super) fn momentum(call: &mut Call) -> Yield {
    let (Some(alpha), Some(beta)) = (call.float("alpha")?, call.float("beta")?) else {
        refuse!("attribute `alpha` or `beta` is missing")
    };
    let is_nesterov = match call.text_or("mode", "") {
        "standard" => false,
        "nesterov" => true,
        other => refuse!("attribute `mode` is `{other}`, not `standard` or `nesterov`"),
    };
    let step = step(call, 3)?;
    let dtype = call.dtype(step.rate);
    // The first gradient counts as a whole.
    let is_later = is_later(call, step.count)?;
    let (later, first) = (call.number(f64::from(beta), dtype), call.number(1.0, dtype));
    let beta = call.select(is_later, later, first)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, v] = parameter[..] else { refuse!("a parameter has three inputs") };
        let v = scaled(call, v, alpha)?;
        let part = call.binary(Binary::Mul, beta, g)?;
        let v = call.binary(Binary::Add, v, part)?;
        let way = match is_nesterov {
            false => v,
            true => mixed(call, [1.0, alpha], [g, v])?,
        };
        let way = call.binary(Binary::Mul, step.rate, way)?;
        yielded.push(vec![call.binary(Binary::Sub, x, way)?, v]);
    }
    joined(&yielded)
}

/// Whether this is not step 0.
fn is_later(call: &mut Call, count: Operand) -> Result<Operand, Refusal> {
    let zero = call.number(0.0, call.dtype(count));
    call.compare(Compare::Greater, count, zero)
}
