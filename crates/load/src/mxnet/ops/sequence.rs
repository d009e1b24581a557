//! Sequences of different lengths in one batch. `axis` 0 means `[seq, batch, ..]`, 1 `[batch, seq, ..]`; lengths are
//! `[batch]`; without `use_sequence_length` all sequences have full length.

use ir::Refusal;
use ir::ops::{Gather, ReduceKind, Slice};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, refuse};
use crate::mxnet::node::ImportedNode;

/// The operand, its shape, the time axis, and lengths as `i64` that broadcast to the shape.
struct Sequences {
    x: Operand,
    shape: Shape,
    axis: usize,
    lengths: Option<Operand>,
}

fn sequences(node: &mut ImportedNode) -> Result<Sequences, Refusal> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = match node.int_or("axis", 0)? {
        axis @ (0 | 1) => axis as usize,
        other => refuse!("attribute `axis` must be 0 or 1, got {other}"),
    };
    if shape.rank() < 2 {
        refuse!("input must have rank >= 2, got {shape}");
    }
    let lengths = match node.flag("use_sequence_length")? {
        false => None,
        true => {
            let lengths = node.input(1)?;
            let batch = shape[1 - axis];
            if node.shape(lengths)[..] != [batch] {
                refuse!("lengths must have shape [{batch}], got {}", node.shape(lengths));
            }
            let lengths = node.cast(lengths, DType::I64)?;
            Some(node.aligned(lengths, 1 - axis, shape.rank())?)
        }
    };
    Ok(Sequences { x, shape, axis, lengths })
}

/// Mask of positions along `axis` that are less than the lengths.
pub(super) fn within(
    node: &mut ImportedNode,
    lengths: Operand,
    extent: usize,
    axis: usize,
    rank: usize,
) -> Result<Operand, Refusal> {
    let positions = node.positions(extent, axis, rank)?;
    let lengths = node.cast(lengths, DType::I64)?;
    node.compare(Compare::Less, positions, lengths)
}

pub(super) fn mask(node: &mut ImportedNode) -> NodeResult {
    let value = node.float_or("value", 0.0)?;
    let Sequences { x, shape, axis, lengths } = sequences(node)?;
    let Some(lengths) = lengths else { return Ok(vec![x]) };
    let used = within(node, lengths, shape[axis], axis, shape.rank())?;
    let value = node.number(value, node.dtype(x));
    Ok(vec![node.select(used, x, value)?])
}

/// The last element of each sequence, without the time axis.
pub(super) fn last(node: &mut ImportedNode) -> NodeResult {
    let Sequences { x, mut shape, axis, lengths } = sequences(node)?;
    let Some(end) = shape[axis].checked_sub(1) else { refuse!("input must have a last element, got {shape}") };
    let Some(lengths) = lengths else {
        let y = node.apply(Slice::range(&shape, axis, end, 1), &[x])?;
        shape.remove(axis);
        return Ok(vec![node.reshape(y, shape)?]);
    };
    let one = node.number(1.0, DType::I64);
    let ends = node.binary(Binary::Sub, lengths, one)?;
    let positions = node.positions(shape[axis], axis, shape.rank())?;
    let hot = node.compare(Compare::Equal, positions, ends)?;
    let zero = node.number(0.0, node.dtype(x));
    let chosen = node.select(hot, x, zero)?;
    Ok(vec![node.reduce(ReduceKind::Sum, chosen, [axis].into_iter().collect(), false)?])
}

/// Each sequence reversed; elements beyond its length stay. Positions of all sequences are rows of one table.
pub(super) fn reverse(node: &mut ImportedNode) -> NodeResult {
    let Sequences { x, shape, axis, lengths } = sequences(node)?;
    if axis != 0 {
        refuse!("attribute `axis` must be 0, got 1");
    }
    let Some(lengths) = lengths else { return Ok(vec![node.reversed(x, 0)?]) };
    let (seq, batch) = (shape[0], shape[1]);
    let lengths = node.reshape(lengths, Shape::from([1, batch]))?;
    let steps = node.positions(seq, 0, 2)?;
    let used = node.compare(Compare::Less, steps, lengths)?;
    let next = node.unary(Unary::Neg, steps)?;
    let next = node.binary(Binary::Add, next, lengths)?;
    let one = node.number(1.0, DType::I64);
    let turned = node.binary(Binary::Sub, next, one)?;
    let from = node.select(used, turned, steps)?;
    let width = node.number(batch as f64, DType::I64);
    let rows = node.binary(Binary::Mul, from, width)?;
    let columns = node.positions(batch, 1, 2)?;
    let rows = node.binary(Binary::Add, rows, columns)?;
    let rows = node.reshape(rows, Shape::from([seq * batch]))?;
    let inner: Shape = shape[2..].into();
    let table: Shape = [seq * batch].into_iter().chain(inner.iter().copied()).collect();
    let table = node.reshape(x, table)?;
    let y = node.apply(Gather { axis: 0 }, &[table, rows])?;
    Ok(vec![node.reshape(y, shape)?])
}
