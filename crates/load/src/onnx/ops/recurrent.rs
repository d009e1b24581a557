//! Recurrent networks.

use ir::{Refusal, ops};
use types::DType;
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use crate::common::{Network, NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

pub(super) fn lstm(node: &mut ImportedNode) -> NodeResult {
    if node.flag("input_forget")? {
        refuse!("`input_forget` is not supported");
    }
    let peepholes = node.optional(7).is_some();
    let activation = activations(node, [Unary::Sigmoid, Unary::Tanh, Unary::Tanh])?;
    recurrent(node, Cell::Lstm { activation, peepholes })
}

pub(super) fn gru(node: &mut ImportedNode) -> NodeResult {
    // Before opset 3 there was one definition only.
    let reset = if node.flag("linear_before_reset")? { Reset::AfterProduct } else { Reset::BeforeProduct };
    let activation = activations(node, [Unary::Sigmoid, Unary::Tanh])?;
    recurrent(node, Cell::Gru { activation, reset })
}

pub(super) fn rnn(node: &mut ImportedNode) -> NodeResult {
    let [activation] = activations(node, [Unary::Tanh])?;
    recurrent(node, Cell::Rnn { activation })
}

/// The activations of a direction; those of two directions must be equal. `activation_alpha` and `activation_beta` are not
/// read, so that they are refused.
fn activations<const N: usize>(node: &ImportedNode, usual: [Unary; N]) -> Result<[Unary; N], Refusal> {
    let Some(names) = node.texts("activations")? else { return Ok(usual) };
    let functions: Vec<Unary> = names.iter().map(|name| activation(name)).collect::<Result<_, _>>()?;
    let (first, rest) = functions.split_at(functions.len().min(N));
    match first.try_into() {
        Ok(first) if rest.is_empty() || rest == first => Ok(first),
        _ => refuse!("`activations` must be {N} functions, equal for all directions, got {names:?}"),
    }
}

/// An activation by name, with ONNX's default parameters. Exporters differ in case.
fn activation(name: &str) -> Result<Unary, Refusal> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "elu" => Unary::Elu { alpha: 1.0 },
        "hardsigmoid" => Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
        "leakyrelu" => Unary::LeakyRelu { alpha: 0.01 },
        "relu" => Unary::Relu,
        "sigmoid" => Unary::Sigmoid,
        "softplus" => Unary::Softplus,
        "softsign" => Unary::Softsign,
        "tanh" => Unary::Tanh,
        "thresholdedrelu" => Unary::ThresholdedRelu { alpha: 1.0 },
        _ => refuse!("activation `{name}` is not supported"),
    })
}

/// `X, W, R, B, sequence_lens, initial_h, initial_c, P` to `Y, Y_h, Y_c`; GRU and RNN have the first six and two.
fn recurrent(node: &mut ImportedNode, cell: Cell) -> NodeResult {
    let direction = match node.text_or("direction", "forward") {
        "forward" => Direction::Forward,
        "reverse" => Direction::Reverse,
        "bidirectional" => Direction::Bidirectional,
        other => refuse!("attribute `direction` must be `forward`, `reverse` or `bidirectional`, got `{other}`"),
    };
    if node.float("clip")?.is_some() {
        refuse!("`clip` is not supported");
    }
    let batch_first = node.flag("layout")?;
    // A hint up to opset 6 that outputs are used.
    node.ignore(&["output_sequence"]);
    let (required, dtype) = node.widen(&[node.input(0)?, node.input(1)?, node.input(2)?])?;
    if node.dtype(required[0]) != DType::F32 {
        refuse!("dtype must be f32, got {dtype}");
    }
    let (x, w, r) = (batch_second(node, required[0], batch_first)?, required[1], required[2]);
    check_lengths(node, x, r)?;
    let peepholes = match cell {
        Cell::Lstm { peepholes: true, .. } => Some(widened(node, node.input(7)?)?),
        _ => None,
    };
    let [h, c] = [5, 6].map(|ix| node.optional(ix));
    let c = c.filter(|_| cell.has_memory());
    let state = |node: &mut ImportedNode, state: Option<Operand>| match state {
        None => Ok(None),
        Some(state) => {
            let state = widened(node, state)?;
            batch_second(node, state, batch_first).map(Some)
        }
    };
    let (h, c) = (state(node, h)?, state(node, c)?);
    let biases = biases(node)?;
    let mut yielded = node.recurrent(Network { cell, direction, x, w, r, biases, h, c, peepholes })?;
    for (ix, output) in yielded.iter_mut().enumerate() {
        if batch_first {
            let order: &[usize] = if ix == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
            *output = node.transpose(*output, order)?;
        }
        *output = node.cast(*output, dtype)?;
    }
    Ok(yielded)
}

fn widened(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    Ok(node.widen(&[x])?.0[0])
}

/// An operand with its first two axes exchanged if the batch is first.
fn batch_second(node: &mut ImportedNode, x: Operand, batch_first: bool) -> Result<Operand, Refusal> {
    match batch_first && node.shape(x).rank() == 3 {
        true => node.transpose(x, &[1, 0, 2]),
        false => Ok(x),
    }
}

/// Checks that the number of units matches the weights and that all sequences have full length.
fn check_lengths(node: &ImportedNode, x: Operand, r: Operand) -> Result<(), Refusal> {
    let units = node.shape(r).last().copied().unwrap_or_default() as i64;
    if let Some(declared) = node.int("hidden_size")?
        && declared != units
    {
        refuse!("`hidden_size` must be {units} as in the recurrent weights, got {declared}");
    }
    if node.optional(4).is_none() {
        return Ok(());
    }
    let lengths = node.constant_ints(4, "sequence_lens")?;
    let seq = node.shape(x).first().copied().unwrap_or_default();
    match lengths.iter().all(|&length| length == seq as i64) {
        true => Ok(()),
        false => refuse!("`sequence_lens` must all be {seq}, got {lengths:?}; pad the outputs instead"),
    }
}

/// `B` is `[d, 2 g u]`: biases of the input product, then of the recurrent one.
fn biases(node: &mut ImportedNode) -> Result<Option<[Operand; 2]>, Refusal> {
    let Some(b) = node.optional(3) else { return Ok(None) };
    let b = widened(node, b)?;
    let shape = node.shape(b);
    let &[_, columns] = &shape[..] else { refuse!("biases must have rank 2, got {shape}") };
    let half = columns / 2;
    let input = node.apply_folded(ops::Slice::range(&shape, 1, 0, half), &[b])?;
    let recurrent = node.apply_folded(ops::Slice::range(&shape, 1, half, columns - half), &[b])?;
    Ok(Some([input, recurrent]))
}
