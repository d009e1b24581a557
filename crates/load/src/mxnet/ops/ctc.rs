//! Connectionist temporal classification: the loss of unaligned labels (Graves et al. 2006, section 4.1).
//!
//! Labels are extended to states `blank, label, blank, label, .., blank`; `alpha[s]` is the logarithm of the probability of
//! all paths that reach state `s`. A step stays, moves to the next state, or skips a blank between two different labels. Each
//! step of the sequence is a dozen ops on `[batch, 2 labels + 1]`.

use ir::Refusal;
use ir::ops::{Concat, Gather, Pad, PadMode, ReduceKind, Slice, Softmax};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, refuse};
use crate::mxnet::node::ImportedNode;

/// The logarithm of probability 0: finite, and far below all others.
const NOTHING: f64 = -1e30;

/// `data: [seq, batch, classes]`, `label: [batch, labels]`, then the lengths in use -> `[batch]`.
pub(super) fn ctc_loss(node: &mut ImportedNode) -> NodeResult {
    let [data, label] = node.inputs()?;
    let (&[seq, batch, classes], &[rows, labels]) = (&node.shape(data)[..], &node.shape(label)[..]) else {
        refuse!("data and labels must have rank 3 and 2, got {} and {}", node.shape(data), node.shape(label));
    };
    if rows != batch || seq == 0 || classes == 0 {
        refuse!("labels must fit {batch} sequences of {seq} with {classes} classes, got {} rows", rows);
    }
    // The class of the blank, and the padding of short label lists.
    let (blank, padding) = match node.text_or("blank_label", "first") {
        "first" => (0, 0.0),
        "last" => (classes - 1, -1.0),
        other => refuse!("attribute `blank_label` must be `first` or `last`, got `{other}`"),
    };
    let (use_data, use_label) = (node.flag("use_data_lengths")?, node.flag("use_label_lengths")?);
    let data_lengths = if use_data { Some(node.input(2)?) } else { None };
    let label_lengths = if use_label { Some(node.input(2 + usize::from(use_data))?) } else { None };

    let label = node.cast(label, DType::I64)?;
    let label_lengths = match label_lengths {
        Some(lengths) => node.cast(lengths, DType::I64)?,
        None => wrap_negative(node, label, padding)?,
    };
    let places = 2 * labels + 1;
    let spread = spread(node, label, [batch, labels], blank)?;
    let logs = place_logs(node, data, spread, [seq, batch, classes, places])?;
    let skips = skips(node, spread, [batch, places], blank)?;
    let start = started(node, labels, places)?;
    let first = step_of(node, logs, 0)?;
    let nothing = node.number(NOTHING, DType::F32);
    let mut alpha = node.select(start, first, nothing)?;
    for step in 1..seq {
        let stay = alpha;
        let on = shifted(node, alpha, 1)?;
        let over = shifted(node, alpha, 2)?;
        let over = node.select(skips, over, nothing)?;
        let sum = log_sum(node, &[stay, on, over])?;
        let log = step_of(node, logs, step)?;
        let next = node.binary(Binary::Add, sum, log)?;
        alpha = match data_lengths {
            None => next,
            Some(lengths) => {
                let lengths = node.cast(lengths, DType::I64)?;
                let lengths = node.reshape(lengths, Shape::from([batch, 1]))?;
                let at = node.number(step as f64, DType::I64);
                let goes_on = node.compare(Compare::Less, at, lengths)?;
                node.select(goes_on, next, alpha)?
            }
        };
    }
    // Paths end at the last label or at the blank after it.
    let two = node.number(2.0, DType::I64);
    let end = node.binary(Binary::Mul, label_lengths, two)?;
    let end = node.reshape(end, Shape::from([batch, 1]))?;
    let one = node.number(1.0, DType::I64);
    let before = node.binary(Binary::Sub, end, one)?;
    let ends = [end, before].map(|end| at_place(node, alpha, end, places));
    let [end, before] = ends;
    let sum = log_sum(node, &[end?, before?])?;
    let loss = node.unary(Unary::Neg, sum)?;
    Ok(vec![node.reshape(loss, Shape::from([batch]))?])
}

/// Number of labels without padding, `[batch]`.
fn wrap_negative(node: &mut ImportedNode, label: Operand, padding: f64) -> Result<Operand, Refusal> {
    let padding = node.number(padding, DType::I64);
    let is_padding = node.compare(Compare::Equal, label, padding)?;
    let is_label = node.unary(Unary::Not, is_padding)?;
    let ones = node.cast(is_label, DType::F32)?;
    let count = node.reduce(ReduceKind::Sum, ones, smallvec![1], false)?;
    node.cast(count, DType::I64)
}

/// Labels with blanks before, between and after them, `[batch, 2 labels + 1]`.
fn spread(
    node: &mut ImportedNode,
    label: Operand,
    [batch, labels]: [usize; 2],
    blank: usize,
) -> Result<Operand, Refusal> {
    let shape = Shape::from([batch, labels, 1]);
    let between = node.constant_of(shape.clone(), |_| blank as i64)?;
    let label = node.reshape(label, shape)?;
    let pairs = node.apply(Concat { axis: 2 }, &[between, label])?;
    let pairs = node.reshape(pairs, Shape::from([batch, 2 * labels]))?;
    let last = node.constant_of([batch, 1], |_| blank as i64)?;
    node.apply(Concat { axis: 1 }, &[pairs, last])
}

/// Logarithms of the probabilities of the states' classes, `[seq, batch, states]`.
fn place_logs(
    node: &mut ImportedNode,
    data: Operand,
    spread: Operand,
    [seq, batch, classes, places]: [usize; 4],
) -> Result<Operand, Refusal> {
    let logs = node.apply_f32(Softmax { axis: 2, log: true }, &[data])?;
    let logs = node.cast(logs, DType::F32)?;
    let table = node.reshape(logs, Shape::from([seq, batch * classes]))?;
    let rows = node.positions(batch, 0, 2)?;
    let width = node.number(classes as f64, DType::I64);
    let starts = node.binary(Binary::Mul, rows, width)?;
    // Padding may be -1: any class will do, since no counted path reaches it.
    let zero = node.number(0.0, DType::I64);
    let class = node.binary(Binary::Max, spread, zero)?;
    let index = node.binary(Binary::Add, starts, class)?;
    let index = node.reshape(index, Shape::from([batch * places]))?;
    let logs = node.apply(Gather { axis: 1 }, &[table, index])?;
    node.reshape(logs, Shape::from([seq, batch, places]))
}

/// Whether a state can be reached by skipping the blank before it: it is a label that differs from the previous label.
fn skips(
    node: &mut ImportedNode,
    spread: Operand,
    [batch, places]: [usize; 2],
    blank: usize,
) -> Result<Operand, Refusal> {
    let before = node.apply(pad_front(2), &[spread])?;
    let before = node.apply(Slice::range(&Shape::from([batch, places + 2]), 1, 0, places), &[before])?;
    let is_same = node.compare(Compare::Equal, spread, before)?;
    let blank = node.number(blank as f64, DType::I64);
    let is_blank = node.compare(Compare::Equal, spread, blank)?;
    let either = node.binary(Binary::Or, is_same, is_blank)?;
    node.unary(Unary::Not, either)
}

/// Paths begin at the first blank or at the first label.
fn started(node: &mut ImportedNode, labels: usize, places: usize) -> Result<Operand, Refusal> {
    let positions = node.positions(places, 1, 2)?;
    let bound = node.number(if labels == 0 { 1.0 } else { 2.0 }, DType::I64);
    node.compare(Compare::Less, positions, bound)
}

/// `[batch, states]` of a step.
fn step_of(node: &mut ImportedNode, logs: Operand, step: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(logs);
    let log = node.apply(Slice::range(&shape, 0, step, 1), &[logs])?;
    node.reshape(log, shape[1..].into())
}

fn pad_front(places: isize) -> Pad {
    Pad { mode: PadMode::Constant(NOTHING), pad: smallvec![[0, 0], [places, 0]] }
}

/// `alpha` shifted by some states.
fn shifted(node: &mut ImportedNode, alpha: Operand, places: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(alpha);
    let padded = node.apply(pad_front(places as isize), &[alpha])?;
    let wide = node.shape(padded);
    node.apply(Slice::range(&wide, 1, 0, shape[1]), &[padded])
}

/// `log(exp(a) + exp(b) + ..)`
fn log_sum(node: &mut ImportedNode, logs: &[Operand]) -> Result<Operand, Refusal> {
    let mut top = logs[0];
    for &log in &logs[1..] {
        top = node.binary(Binary::Max, top, log)?;
    }
    let mut sum = None;
    for &log in logs {
        let below = node.binary(Binary::Sub, log, top)?;
        let power = node.unary(Unary::Exp, below)?;
        sum = Some(match sum {
            None => power,
            Some(sum) => node.binary(Binary::Add, sum, power)?,
        });
    }
    let log = node.unary(Unary::Log, sum.expect("at least one operand"))?;
    node.binary(Binary::Add, top, log)
}

/// `alpha` at one state of each row, or `NOTHING` if the state is before the first.
fn at_place(node: &mut ImportedNode, alpha: Operand, place: Operand, places: usize) -> Result<Operand, Refusal> {
    let positions = node.positions(places, 1, 2)?;
    let is_it = node.compare(Compare::Equal, positions, place)?;
    let nothing = node.number(NOTHING, DType::F32);
    let chosen = node.select(is_it, alpha, nothing)?;
    node.reduce(ReduceKind::Max, chosen, smallvec![1], true)
}
