//! Connectionist temporal classification: the loss of unaligned labels (Graves et al. 2006, section 4.1).
//!
//! Labels are spread to `blank, label, blank, label, .., blank`; `alpha[s]` is the logarithm of the probability of all paths
//! that have come to place `s`. A step stays, goes on, or leaves out a blank between two labels that differ. One step is a
//! dozen ops on `[batch, 2 labels + 1]`, as many times as the sequence is long.

use ir::Refusal;
use ir::ops::{Concat, Gather, Pad, PadMode, ReduceKind, Slice, Softmax};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use super::Yield;
use crate::common::{Operand, refuse};
use crate::mxnet::call::Call;

/// The logarithm of nothing: far below any other, and still a number.
const NOTHING: f64 = -1e30;

/// `data: [seq, batch, classes]`, `label: [batch, labels]`, then the lengths that are used -> `[batch]`.
pub(super) fn ctc_loss(call: &mut Call) -> Yield {
    let [data, label] = call.inputs()?;
    let (&[seq, batch, classes], &[rows, labels]) = (&call.shape(data)[..], &call.shape(label)[..]) else {
        refuse!("{} and {} are not sequences with their labels", call.shape(data), call.shape(label));
    };
    if rows != batch || seq == 0 || classes == 0 {
        refuse!("{} labels for {batch} sequences of {seq} with {classes} classes", rows);
    }
    // The blank's class, and what fills up labels that are too short.
    let (blank, padding) = match call.text_or("blank_label", "first") {
        "first" => (0, 0.0),
        "last" => (classes - 1, -1.0),
        other => refuse!("attribute `blank_label` is `{other}`, not `first` or `last`"),
    };
    let (use_data, use_label) = (call.flag("use_data_lengths")?, call.flag("use_label_lengths")?);
    let data_lengths = if use_data { Some(call.input(2)?) } else { None };
    let label_lengths = if use_label { Some(call.input(2 + usize::from(use_data))?) } else { None };

    let label = call.cast(label, DType::I64)?;
    let label_lengths = match label_lengths {
        Some(lengths) => call.cast(lengths, DType::I64)?,
        None => counted(call, label, padding)?,
    };
    let places = 2 * labels + 1;
    let spread = spread(call, label, [batch, labels], blank)?;
    let logs = place_logs(call, data, spread, [seq, batch, classes, places])?;
    let skips = skips(call, spread, [batch, places], blank)?;
    let start = started(call, labels, places)?;
    let first = step_of(call, logs, 0)?;
    let nothing = call.number(NOTHING, DType::F32);
    let mut alpha = call.select(start, first, nothing)?;
    for step in 1..seq {
        let stay = alpha;
        let on = shifted(call, alpha, 1)?;
        let over = shifted(call, alpha, 2)?;
        let over = call.select(skips, over, nothing)?;
        let sum = log_sum(call, &[stay, on, over])?;
        let log = step_of(call, logs, step)?;
        let next = call.binary(Binary::Add, sum, log)?;
        alpha = match data_lengths {
            None => next,
            Some(lengths) => {
                let lengths = call.cast(lengths, DType::I64)?;
                let lengths = call.reshape(lengths, Shape::from([batch, 1]))?;
                let at = call.number(step as f64, DType::I64);
                let goes_on = call.compare(Compare::Less, at, lengths)?;
                call.select(goes_on, next, alpha)?
            }
        };
    }
    // Paths end at the last label or at the blank behind it.
    let two = call.number(2.0, DType::I64);
    let end = call.binary(Binary::Mul, label_lengths, two)?;
    let end = call.reshape(end, Shape::from([batch, 1]))?;
    let one = call.number(1.0, DType::I64);
    let before = call.binary(Binary::Sub, end, one)?;
    let ends = [end, before].map(|end| at_place(call, alpha, end, places));
    let [end, before] = ends;
    let sum = log_sum(call, &[end?, before?])?;
    let loss = call.unary(Unary::Neg, sum)?;
    Ok(vec![call.reshape(loss, Shape::from([batch]))?])
}

/// How many labels are no padding, `[batch]`.
fn counted(call: &mut Call, label: Operand, padding: f64) -> Result<Operand, Refusal> {
    let padding = call.number(padding, DType::I64);
    let is_padding = call.compare(Compare::Equal, label, padding)?;
    let is_label = call.unary(Unary::Not, is_padding)?;
    let ones = call.cast(is_label, DType::F32)?;
    let count = call.reduce(ReduceKind::Sum, ones, smallvec![1], false)?;
    call.cast(count, DType::I64)
}

/// Labels with blanks before, between and behind them, `[batch, 2 labels + 1]`.
fn spread(call: &mut Call, label: Operand, [batch, labels]: [usize; 2], blank: usize) -> Result<Operand, Refusal> {
    let shape = Shape::from([batch, labels, 1]);
    let blanks = |shape: Shape| Tensor::full(shape, blank as i64);
    let between = call.constant(blanks(shape.clone()));
    let label = call.reshape(label, shape)?;
    let pairs = call.apply(Concat { axis: 2 }, &[between, label])?;
    let pairs = call.reshape(pairs, Shape::from([batch, 2 * labels]))?;
    let last = call.constant(blanks(Shape::from([batch, 1])));
    call.apply(Concat { axis: 1 }, &[pairs, last])
}

/// Logarithms of the probabilities of the places' classes, `[seq, batch, places]`.
fn place_logs(
    call: &mut Call,
    data: Operand,
    spread: Operand,
    [seq, batch, classes, places]: [usize; 4],
) -> Result<Operand, Refusal> {
    let logs = call.apply_f32(Softmax { axis: 2, log: true }, &[data])?;
    let logs = call.cast(logs, DType::F32)?;
    let table = call.reshape(logs, Shape::from([seq, batch * classes]))?;
    let rows = call.positions(batch, 0, 2)?;
    let width = call.number(classes as f64, DType::I64);
    let starts = call.binary(Binary::Mul, rows, width)?;
    // Padding may be -1: it takes any class, as no path that counts goes there.
    let zero = call.number(0.0, DType::I64);
    let class = call.binary(Binary::Max, spread, zero)?;
    let index = call.binary(Binary::Add, starts, class)?;
    let index = call.reshape(index, Shape::from([batch * places]))?;
    let logs = call.apply(Gather { axis: 1 }, &[table, index])?;
    call.reshape(logs, Shape::from([seq, batch, places]))
}

/// Whether a place may be come to over the blank before it: where it has a label, and another than the one before.
fn skips(call: &mut Call, spread: Operand, [batch, places]: [usize; 2], blank: usize) -> Result<Operand, Refusal> {
    let before = call.apply(pad_front(2), &[spread])?;
    let before = call.apply(Slice::range(&Shape::from([batch, places + 2]), 1, 0, places), &[before])?;
    let is_same = call.compare(Compare::Equal, spread, before)?;
    let blank = call.number(blank as f64, DType::I64);
    let is_blank = call.compare(Compare::Equal, spread, blank)?;
    let either = call.binary(Binary::Or, is_same, is_blank)?;
    call.unary(Unary::Not, either)
}

/// Paths begin at the first blank or at the first label.
fn started(call: &mut Call, labels: usize, places: usize) -> Result<Operand, Refusal> {
    let positions = call.positions(places, 1, 2)?;
    let bound = call.number(if labels == 0 { 1.0 } else { 2.0 }, DType::I64);
    call.compare(Compare::Less, positions, bound)
}

/// `[batch, places]` of a step.
fn step_of(call: &mut Call, logs: Operand, step: usize) -> Result<Operand, Refusal> {
    let shape = call.shape(logs);
    let log = call.apply(Slice::range(&shape, 0, step, 1), &[logs])?;
    call.reshape(log, shape[1..].into())
}

fn pad_front(places: isize) -> Pad {
    Pad { mode: PadMode::Constant(NOTHING), pad: smallvec![[0, 0], [places, 0]] }
}

/// What was some places before.
fn shifted(call: &mut Call, alpha: Operand, places: usize) -> Result<Operand, Refusal> {
    let shape = call.shape(alpha);
    let padded = call.apply(pad_front(places as isize), &[alpha])?;
    let wide = call.shape(padded);
    call.apply(Slice::range(&wide, 1, 0, shape[1]), &[padded])
}

/// `log(exp(a) + exp(b) + ..)`
fn log_sum(call: &mut Call, logs: &[Operand]) -> Result<Operand, Refusal> {
    let mut top = logs[0];
    for &log in &logs[1..] {
        top = call.binary(Binary::Max, top, log)?;
    }
    let mut sum = None;
    for &log in logs {
        let below = call.binary(Binary::Sub, log, top)?;
        let power = call.unary(Unary::Exp, below)?;
        sum = Some(match sum {
            None => power,
            Some(sum) => call.binary(Binary::Add, sum, power)?,
        });
    }
    let log = call.unary(Unary::Log, sum.expect("there is at least one"))?;
    call.binary(Binary::Add, top, log)
}

/// `alpha` at a place of each row, or nothing where the place is before the first.
fn at_place(call: &mut Call, alpha: Operand, place: Operand, places: usize) -> Result<Operand, Refusal> {
    let positions = call.positions(places, 1, 2)?;
    let is_it = call.compare(Compare::Equal, positions, place)?;
    let nothing = call.number(NOTHING, DType::F32);
    let chosen = call.select(is_it, alpha, nothing)?;
    call.reduce(ReduceKind::Max, chosen, smallvec![1], true)
}
