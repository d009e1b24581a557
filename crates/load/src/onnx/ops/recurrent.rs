//! Recurrent networks.

use ir::{Refusal, ops};
use types::DType;
use types::pointwise::Unary;
use types::recurrent::{Cell, Reset, Sweep};

use crate::common::{Network, Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

pub(super) fn lstm(call: &mut Call) -> Yield {
    if call.flag("input_forget")? {
        refuse!("`input_forget` is not supported");
    }
    let peepholes = call.optional(7).is_some();
    let activation = activations(call, [Unary::Sigmoid, Unary::Tanh, Unary::Tanh])?;
    recurrent(call, Cell::Lstm { activation, peepholes })
}

pub(super) fn gru(call: &mut Call) -> Yield {
    // Before opset 3 there was only one way.
    let reset = if call.flag("linear_before_reset")? { Reset::AfterProduct } else { Reset::BeforeProduct };
    let activation = activations(call, [Unary::Sigmoid, Unary::Tanh])?;
    recurrent(call, Cell::Gru { activation, reset })
}

pub(super) fn rnn(call: &mut Call) -> Yield {
    let [activation] = activations(call, [Unary::Tanh])?;
    recurrent(call, Cell::Rnn { activation })
}

/// The functions of a direction; those of two directions must be the same. `activation_alpha` and `activation_beta` stay
/// unread, so that they are refused.
fn activations<const N: usize>(call: &Call, usual: [Unary; N]) -> Result<[Unary; N], Refusal> {
    let Some(names) = call.texts("activations")? else { return Ok(usual) };
    let functions: Vec<Unary> = names.iter().map(|name| activation(name)).collect::<Result<_, _>>()?;
    let (first, rest) = functions.split_at(functions.len().min(N));
    match first.try_into() {
        Ok(first) if rest.is_empty() || rest == first => Ok(first),
        _ => refuse!("`activations` {names:?} are not {N} functions, the same for all directions"),
    }
}

/// A function by its name, with ONNX's usual parameters. Names differ in case between exporters.
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
fn recurrent(call: &mut Call, cell: Cell) -> Yield {
    let sweep = match call.text_or("direction", "forward") {
        "forward" => Sweep::Forward,
        "reverse" => Sweep::Reverse,
        "bidirectional" => Sweep::Both,
        other => refuse!("direction `{other}` does not exist"),
    };
    if call.float("clip")?.is_some() {
        refuse!("`clip` is not supported");
    }
    let batch_first = call.flag("layout")?;
    // Until opset 7 a hint that the outputs are wanted; they always are there.
    call.ignore(&["output_sequence"]);
    let (required, dtype) = call.widen(&[call.input(0)?, call.input(1)?, call.input(2)?])?;
    if call.dtype(required[0]) != DType::F32 {
        refuse!("computes in f32, not in {dtype}");
    }
    let (x, w, r) = (batch_second(call, required[0], batch_first)?, required[1], required[2]);
    check_lengths(call, x, r)?;
    let peepholes = match cell {
        Cell::Lstm { peepholes: true, .. } => Some(widened(call, call.input(7)?)?),
        _ => None,
    };
    let [h, c] = [5, 6].map(|ix| call.optional(ix));
    let c = c.filter(|_| cell.has_memory());
    let state = |call: &mut Call, state: Option<Operand>| match state {
        None => Ok(None),
        Some(state) => {
            let state = widened(call, state)?;
            batch_second(call, state, batch_first).map(Some)
        }
    };
    let (h, c) = (state(call, h)?, state(call, c)?);
    let biases = biases(call)?;
    let mut yielded = call.recurrent(Network { cell, sweep, x, w, r, biases, h, c, peepholes })?;
    for (ix, output) in yielded.iter_mut().enumerate() {
        if batch_first {
            let order: &[usize] = if ix == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
            *output = call.transpose(*output, order)?;
        }
        *output = call.cast(*output, dtype)?;
    }
    Ok(yielded)
}

fn widened(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    Ok(call.widen(&[x])?.0[0])
}

/// An operand whose first two dimensions change places where the batch is the first of them.
fn batch_second(call: &mut Call, x: Operand, batch_first: bool) -> Result<Operand, Refusal> {
    match batch_first && call.shape(x).rank() == 3 {
        true => call.transpose(x, &[1, 0, 2]),
        false => Ok(x),
    }
}

/// Refuses units that are not those of the weights, and sequences that do not all have the full length.
fn check_lengths(call: &Call, x: Operand, r: Operand) -> Result<(), Refusal> {
    let units = call.shape(r).last().copied().unwrap_or_default() as i64;
    if let Some(declared) = call.int("hidden_size")?
        && declared != units
    {
        refuse!("`hidden_size` is {declared} where the recurrent weights have {units} units");
    }
    if call.optional(4).is_none() {
        return Ok(());
    }
    let lengths = call.known_ints(4, "sequence_lens")?;
    let seq = call.shape(x).first().copied().unwrap_or_default();
    match lengths.iter().all(|&length| length == seq as i64) {
        true => Ok(()),
        false => refuse!("`sequence_lens` {lengths:?} are not all {seq}; pad the outputs instead"),
    }
}

/// `B` is `[d, 2 g u]`: biases of the input product, then of the recurrent one.
fn biases(call: &mut Call) -> Result<Option<[Operand; 2]>, Refusal> {
    let Some(b) = call.optional(3) else { return Ok(None) };
    let b = widened(call, b)?;
    let shape = call.shape(b);
    let &[_, columns] = &shape[..] else { refuse!("biases of shape {shape} do not have two dimensions") };
    let half = columns / 2;
    let input = call.apply_always(ops::Slice::range(&shape, 1, 0, half), &[b])?;
    let recurrent = call.apply_always(ops::Slice::range(&shape, 1, half, columns - half), &[b])?;
    Ok(Some([input, recurrent]))
}
