//! Optimizer steps of domain `ai.onnx.preview.training`: arithmetic on parameters, gradients and optimizer state.

use ir::Refusal;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// The inputs: learning rate, step, then all parameters, all gradients, and the lists of optimizer state.
struct Step {
    rate: Operand,
    count: Operand,
    /// Per parameter its value, its gradient with that of the regularization, and its state.
    parameters: Vec<Vec<Operand>>,
}

/// Reads the inputs, `each` per parameter.
fn step(node: &mut ImportedNode, each: usize) -> Result<Step, Refusal> {
    let inputs = node.all_inputs()?;
    let count = inputs.len().saturating_sub(2) / each;
    if count == 0 || inputs.len() != 2 + each * count {
        refuse!("inputs must be two and {each} per parameter, got {}", inputs.len());
    }
    let dtype = node.dtype(inputs[2]);
    if !matches!(dtype, DType::F32 | DType::F64) {
        refuse!("parameters must be f32 or f64, got {dtype}");
    }
    let rate = node.reshape(inputs[0], Shape::scalar())?;
    let rate = node.cast(rate, dtype)?;
    let number = node.reshape(inputs[1], Shape::scalar())?;
    let number = node.cast(number, dtype)?;
    let norm = node.float_or("norm_coefficient", 0.0)?;
    let mut parameters = Vec::new();
    for ix in 0..count {
        let mut parameter: Vec<Operand> = (0..each).map(|list| inputs[2 + list * count + ix]).collect();
        let shape = node.shape(parameter[0]);
        if parameter.iter().any(|&operand| node.shape(operand) != shape || node.dtype(operand) != dtype) {
            refuse!("gradient and state of parameter {ix} must be {dtype}{shape}");
        }
        let decay = scaled(node, parameter[0], norm)?;
        parameter[1] = node.binary(Binary::Add, decay, parameter[1])?;
        parameters.push(parameter);
    }
    Ok(Step { rate, count: number, parameters })
}

fn scaled(node: &mut ImportedNode, x: Operand, factor: f32) -> Result<Operand, Refusal> {
    let factor = node.number(f64::from(factor), node.dtype(x));
    node.binary(Binary::Mul, x, factor)
}

fn shifted(node: &mut ImportedNode, x: Operand, term: f32) -> Result<Operand, Refusal> {
    let term = node.number(f64::from(term), node.dtype(x));
    node.binary(Binary::Add, x, term)
}

/// `a x + b y`
fn mixed(node: &mut ImportedNode, [a, b]: [f32; 2], [x, y]: [Operand; 2]) -> Result<Operand, Refusal> {
    let (x, y) = (scaled(node, x, a)?, scaled(node, y, b)?);
    node.binary(Binary::Add, x, y)
}

/// The outputs: all parameters, then each list of state.
fn joined(yielded: &[Vec<Operand>]) -> NodeResult {
    let each = yielded.first().map_or(0, Vec::len);
    Ok((0..each).flat_map(|list| yielded.iter().map(move |parameter| parameter[list])).collect())
}

/// Duchi et al. 2011. `h` is the sum of all squared gradients.
pub(super) fn adagrad(node: &mut ImportedNode) -> NodeResult {
    let (decay, epsilon) = (node.float_or("decay_factor", 0.0)?, node.float_or("epsilon", 1e-6)?);
    let step = step(node, 3)?;
    let slower = scaled(node, step.count, decay)?;
    let slower = shifted(node, slower, 1.0)?;
    let rate = node.binary(Binary::Div, step.rate, slower)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, h] = parameter[..] else { refuse!("three inputs per parameter are required") };
        let squares = node.binary(Binary::Mul, g, g)?;
        let h = node.binary(Binary::Add, h, squares)?;
        let root = node.unary(Unary::Sqrt, h)?;
        let root = shifted(node, root, epsilon)?;
        let way = node.binary(Binary::Mul, rate, g)?;
        let way = node.binary(Binary::Div, way, root)?;
        yielded.push(vec![node.binary(Binary::Sub, x, way)?, h]);
    }
    joined(&yielded)
}

/// Kingma & Ba 2014. `v` and `h` are the means of gradients and of their squares.
pub(super) fn adam(node: &mut ImportedNode) -> NodeResult {
    let (alpha, beta) = (node.float_or("alpha", 0.9)?, node.float_or("beta", 0.999)?);
    let epsilon = node.float_or("epsilon", 1e-6)?;
    let norm_post = node.float_or("norm_coefficient_post", 0.0)?;
    let step = step(node, 4)?;
    let dtype = node.dtype(step.rate);
    // Bias correction of the running means; step 0 has none.
    let gone = |node: &mut ImportedNode, factor: f32| {
        let factor = node.number(f64::from(factor), dtype);
        let power = node.binary(Binary::Pow, factor, step.count)?;
        let one = node.number(1.0, dtype);
        node.binary(Binary::Sub, one, power)
    };
    let (squares, gradients) = (gone(node, beta)?, gone(node, alpha)?);
    let root = node.unary(Unary::Sqrt, squares)?;
    let corrected = node.binary(Binary::Mul, step.rate, root)?;
    let corrected = node.binary(Binary::Div, corrected, gradients)?;
    let is_later = is_later(node, step.count)?;
    let rate = node.select(is_later, corrected, step.rate)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, v, h] = parameter[..] else { refuse!("four inputs per parameter are required") };
        let v = mixed(node, [alpha, 1.0 - alpha], [v, g])?;
        let squares = node.binary(Binary::Mul, g, g)?;
        let h = mixed(node, [beta, 1.0 - beta], [h, squares])?;
        let root = node.unary(Unary::Sqrt, h)?;
        let root = shifted(node, root, epsilon)?;
        let way = node.binary(Binary::Div, v, root)?;
        let way = node.binary(Binary::Mul, rate, way)?;
        let x = node.binary(Binary::Sub, x, way)?;
        yielded.push(vec![scaled(node, x, 1.0 - norm_post)?, v, h]);
    }
    joined(&yielded)
}

/// Gradient descent with momentum `v`, standard or Nesterov.
pub(super) fn momentum(node: &mut ImportedNode) -> NodeResult {
    let (Some(alpha), Some(beta)) = (node.float("alpha")?, node.float("beta")?) else {
        refuse!("attributes `alpha` and `beta` are required")
    };
    let is_nesterov = match node.text_or("mode", "") {
        "standard" => false,
        "nesterov" => true,
        other => refuse!("attribute `mode` must be `standard` or `nesterov`, got `{other}`"),
    };
    let step = step(node, 3)?;
    let dtype = node.dtype(step.rate);
    // The first gradient has weight 1.
    let is_later = is_later(node, step.count)?;
    let (later, first) = (node.number(f64::from(beta), dtype), node.number(1.0, dtype));
    let beta = node.select(is_later, later, first)?;
    let mut yielded = Vec::new();
    for parameter in step.parameters {
        let [x, g, v] = parameter[..] else { refuse!("three inputs per parameter are required") };
        let v = scaled(node, v, alpha)?;
        let part = node.binary(Binary::Mul, beta, g)?;
        let v = node.binary(Binary::Add, v, part)?;
        let way = match is_nesterov {
            false => v,
            true => mixed(node, [1.0, alpha], [g, v])?,
        };
        let way = node.binary(Binary::Mul, step.rate, way)?;
        yielded.push(vec![node.binary(Binary::Sub, x, way)?, v]);
    }
    joined(&yielded)
}

/// Whether the step is not 0.
fn is_later(node: &mut ImportedNode, count: Operand) -> Result<Operand, Refusal> {
    let zero = node.number(0.0, node.dtype(count));
    node.compare(Compare::Greater, count, zero)
}
