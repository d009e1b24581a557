//! Recurrent networks: the input's part of all gates is one matrix product over all steps, the rest is one op.

use ir::{Refusal, ops};
use types::pointwise::Unary;
use types::recurrent::{Cell, Reset, Sweep};
use types::{DType, Shape, Tensor};

use crate::onnx::builder::Operand;
use crate::onnx::call::{Call, refuse};

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
    let (mut x, w, r) = (required[0], required[1], required[2]);
    if batch_first && call.shape(x).rank() == 3 {
        x = call.transpose(x, &[1, 0, 2])?;
    }
    let ([seq, batch, _], [_, _, units]) = (&call.shape(x)[..], &call.shape(r)[..]) else {
        refuse!("{} and {} do not both have three dimensions", call.shape(x), call.shape(r));
    };
    let sizes = Sizes { seq: *seq, batch: *batch, units: *units, directions: sweep.directions(), gates: cell.gates() };
    check(call, &sizes, w, r)?;
    full_sequences(call, &sizes)?;

    let (bias, own) = biases(call, &cell, &sizes)?;
    let gates = input_product(call, &sizes, x, w, bias)?;
    let mut operands = vec![gates, r];
    for ix in 5..6 + usize::from(cell.has_memory()) {
        operands.push(first_state(call, &sizes, ix, batch_first)?);
    }
    if let Cell::Lstm { peepholes: true, .. } = cell {
        let peepholes = call.input(7)?;
        operands.push(call.widen(&[peepholes])?.0[0]);
    }
    operands.extend(own);
    let mut yielded = call.apply_all(ops::Recurrent { cell, sweep }, &operands)?;
    for (ix, output) in yielded.iter_mut().enumerate() {
        if batch_first {
            let order: &[usize] = if ix == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
            *output = call.transpose(*output, order)?;
        }
        *output = call.cast(*output, dtype)?;
    }
    Ok(yielded)
}

struct Sizes {
    seq: usize,
    batch: usize,
    units: usize,
    directions: usize,
    gates: usize,
}

impl Sizes {
    /// Rows of the weights of one direction.
    fn rows(&self) -> usize {
        self.gates * self.units
    }
}

/// Weights and `hidden_size` agree.
fn check(call: &Call, sizes: &Sizes, w: Operand, r: Operand) -> Result<(), Refusal> {
    if let Some(declared) = call.int("hidden_size")?
        && declared != sizes.units as i64
    {
        refuse!("`hidden_size` is {declared} where the recurrent weights have {} units", sizes.units);
    }
    let inputs = *call.shape(call.input(0)?).last().expect("it has three dimensions");
    let want = [Shape::from([sizes.directions, sizes.rows(), inputs]), {
        Shape::from([sizes.directions, sizes.rows(), sizes.units])
    }];
    for (operand, want) in [w, r].into_iter().zip(want) {
        if call.shape(operand) != want {
            refuse!("weights of shape {} are not {want}", call.shape(operand));
        }
    }
    Ok(())
}

/// Refuses sequences that do not all have the full length.
fn full_sequences(call: &Call, sizes: &Sizes) -> Result<(), Refusal> {
    if call.optional(4).is_none() {
        return Ok(());
    }
    let lengths = call.known_ints(4, "sequence_lens")?;
    match lengths.iter().all(|&length| length == sizes.seq as i64) {
        true => Ok(()),
        false => refuse!("`sequence_lens` {lengths:?} are not all {}; pad the outputs instead", sizes.seq),
    }
}

/// What is added to the input product, `[d g u]`, and the bias that a GRU's candidate adds later, `[d, u]`.
///
/// `B` is `[d, 2 g u]`: biases of the input product, then of the recurrent one. Nearly always both are added anyway.
fn biases(call: &mut Call, cell: &Cell, sizes: &Sizes) -> Result<(Option<Operand>, Option<Operand>), Refusal> {
    let (directions, units, rows) = (sizes.directions, sizes.units, sizes.rows());
    let apart = matches!(cell, Cell::Gru { reset: Reset::AfterProduct, .. });
    let Some(b) = call.optional(3) else {
        let zeros = apart.then(|| call.constant(Tensor::from_fn(Shape::from([directions, units]), |_| 0.0f32)));
        return Ok((None, zeros));
    };
    let b = call.widen(&[b])?.0[0];
    let shape = Shape::from([directions, 2 * rows]);
    if call.shape(b) != shape {
        refuse!("biases of shape {} are not {shape}", call.shape(b));
    }
    let columns = |call: &mut Call, start: usize, count: usize| {
        call.apply_always(ops::Slice::range(&shape, 1, start, count), &[b])
    };
    let input = columns(call, 0, rows)?;
    let own = if apart { Some(columns(call, 2 * rows - units, units)?) } else { None };
    let recurrent = match apart {
        false => columns(call, rows, rows)?,
        true => {
            let first = columns(call, rows, rows - units)?;
            let zeros = call.constant(Tensor::from_fn(Shape::from([directions, units]), |_| 0.0f32));
            call.apply_always(ops::Concat { axis: 1 }, &[first, zeros])?
        }
    };
    let sum = call.apply_always(ops::Binary(types::pointwise::Binary::Add), &[input, recurrent])?;
    let sum = call.reshape(sum, Shape::from([directions * rows]))?;
    Ok((Some(sum), own))
}

/// `X W' + bias` for all steps and directions at once, `[seq, batch, d g u]`.
fn input_product(
    call: &mut Call,
    sizes: &Sizes,
    x: Operand,
    w: Operand,
    bias: Option<Operand>,
) -> Result<Operand, Refusal> {
    let inputs = call.shape(w)[2];
    let rows = sizes.directions * sizes.rows();
    let w = call.reshape(w, Shape::from([rows, inputs]))?;
    let w = call.transpose(w, &[1, 0])?;
    let x = call.reshape(x, Shape::from([sizes.seq * sizes.batch, inputs]))?;
    let epilogue = ops::Epilogue::bias(bias.is_some());
    let factors: Vec<Operand> = [x, w].into_iter().chain(bias).collect();
    let gates = call.apply(ops::MatMul { epilogue }, &factors)?;
    call.reshape(gates, Shape::from([sizes.seq, sizes.batch, rows]))
}

/// Input `ix`, or zeros, as `[d, batch, u]`.
fn first_state(call: &mut Call, sizes: &Sizes, ix: usize, batch_first: bool) -> Result<Operand, Refusal> {
    let Some(state) = call.optional(ix) else {
        let shape = Shape::from([sizes.directions, sizes.batch, sizes.units]);
        call.reserve(DType::F32, &shape)?;
        return Ok(call.constant(Tensor::from_fn(shape, |_| 0.0f32)));
    };
    let state = call.widen(&[state])?.0[0];
    match batch_first && call.shape(state).rank() == 3 {
        true => call.transpose(state, &[1, 0, 2]),
        false => Ok(state),
    }
}
