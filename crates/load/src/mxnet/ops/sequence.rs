//! Sequences of different lengths in one batch. `axis` 0 means `[seq, batch, ..]`, 1 `[batch, seq, ..]`; lengths are
//! `[batch]`, and without `use_sequence_length` all sequences have the full one.

use ir::Refusal;
use ir::ops::{Gather, ReduceKind, Slice};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use super::Yield;
use crate::common::{Operand, refuse};
use crate::mxnet::call::Call;

/// The operand, its shape, the axis of time, and the lengths as `i64` that broadcast to the shape.
struct Sequences {
    x: Operand,
    shape: Shape,
    axis: usize,
    lengths: Option<Operand>,
}

fn sequences(call: &mut Call) -> Result<Sequences, Refusal> {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let axis = match call.int_or("axis", 0)? {
        axis @ (0 | 1) => axis as usize,
        other => refuse!("attribute `axis` is {other}, neither 0 nor 1"),
    };
    if shape.rank() < 2 {
        refuse!("input {shape} has no sequences of a batch");
    }
    let lengths = match call.flag("use_sequence_length")? {
        false => None,
        true => {
            let lengths = call.input(1)?;
            let batch = shape[1 - axis];
            if call.shape(lengths)[..] != [batch] {
                refuse!("lengths of shape {} are not [{batch}]", call.shape(lengths));
            }
            let lengths = call.cast(lengths, DType::I64)?;
            Some(call.aligned(lengths, 1 - axis, shape.rank())?)
        }
    };
    Ok(Sequences { x, shape, axis, lengths })
}

/// Which of `extent` positions along `axis` lie before the lengths.
pub(super) fn within(
    call: &mut Call,
    lengths: Operand,
    extent: usize,
    axis: usize,
    rank: usize,
) -> Result<Operand, Refusal> {
    let positions = call.positions(extent, axis, rank)?;
    let lengths = call.cast(lengths, DType::I64)?;
    call.compare(Compare::Less, positions, lengths)
}

pub(super) fn mask(call: &mut Call) -> Yield {
    let value = call.float_or("value", 0.0)?;
    let Sequences { x, shape, axis, lengths } = sequences(call)?;
    let Some(lengths) = lengths else { return Ok(vec![x]) };
    let used = within(call, lengths, shape[axis], axis, shape.rank())?;
    let value = call.number(value, call.dtype(x));
    Ok(vec![call.select(used, x, value)?])
}

/// The last element of each sequence, without the axis of time.
pub(super) fn last(call: &mut Call) -> Yield {
    let Sequences { x, mut shape, axis, lengths } = sequences(call)?;
    let Some(end) = shape[axis].checked_sub(1) else { refuse!("input {shape} has no last element") };
    let Some(lengths) = lengths else {
        let y = call.apply(Slice::range(&shape, axis, end, 1), &[x])?;
        shape.remove(axis);
        return Ok(vec![call.reshape(y, shape)?]);
    };
    let one = call.number(1.0, DType::I64);
    let ends = call.binary(Binary::Sub, lengths, one)?;
    let positions = call.positions(shape[axis], axis, shape.rank())?;
    let hot = call.compare(Compare::Equal, positions, ends)?;
    let zero = call.number(0.0, call.dtype(x));
    let chosen = call.select(hot, x, zero)?;
    Ok(vec![call.reduce(ReduceKind::Sum, chosen, [axis].into_iter().collect(), false)?])
}

/// Each sequence from its end; what lies behind it stays. Positions of all sequences are rows of one table.
pub(super) fn reverse(call: &mut Call) -> Yield {
    let Sequences { x, shape, axis, lengths } = sequences(call)?;
    if axis != 0 {
        refuse!("attribute `axis` is 1; 0 is supported");
    }
    let Some(lengths) = lengths else { return Ok(vec![call.turned(x, 0)?]) };
    let (seq, batch) = (shape[0], shape[1]);
    let lengths = call.reshape(lengths, Shape::from([1, batch]))?;
    let steps = call.positions(seq, 0, 2)?;
    let used = call.compare(Compare::Less, steps, lengths)?;
    let next = call.unary(Unary::Neg, steps)?;
    let next = call.binary(Binary::Add, next, lengths)?;
    let one = call.number(1.0, DType::I64);
    let turned = call.binary(Binary::Sub, next, one)?;
    let from = call.select(used, turned, steps)?;
    let width = call.number(batch as f64, DType::I64);
    let rows = call.binary(Binary::Mul, from, width)?;
    let columns = call.positions(batch, 1, 2)?;
    let rows = call.binary(Binary::Add, rows, columns)?;
    let rows = call.reshape(rows, Shape::from([seq * batch]))?;
    let inner: Shape = shape[2..].into();
    let table: Shape = [seq * batch].into_iter().chain(inner.iter().copied()).collect();
    let table = call.reshape(x, table)?;
    let y = call.apply(Gather { axis: 0 }, &[table, rows])?;
    Ok(vec![call.reshape(y, shape)?])
}
