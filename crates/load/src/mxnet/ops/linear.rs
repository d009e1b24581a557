//! Products of matrices.

use ir::Refusal;
use ir::ops::{Epilogue, MatMul, Slice};
use types::pointwise::Binary;
use types::{DType, Shape};

use super::Yield;
use super::shape::flattened;
use crate::common::{Operand, refuse};
use crate::mxnet::call::Call;

/// `x weight' + bias`, `weight: [num_hidden, in]`; all but the first dimension of `x` are one unless `flatten` is off.
pub(super) fn fully_connected(call: &mut Call) -> Yield {
    call.ignore(&["num_hidden"]);
    let mut operands = vec![call.input(0)?, call.input(1)?];
    if !call.flag("no_bias")? {
        operands.push(call.input(2)?);
    }
    let flatten = call.flag_or("flatten", true)?;
    let (mut operands, dtype) = call.widen(&operands)?;
    if call.shape(operands[1]).rank() != 2 {
        refuse!("the weight {} is no matrix", call.shape(operands[1]));
    }
    if flatten {
        operands[0] = flattened(call, operands[0])?;
    }
    let shape = call.shape(operands[0]);
    let Some((&last, outer)) = shape.split_last() else { refuse!("input {shape} has no dimensions") };
    let rows = Shape::from([outer.iter().product(), last]);
    operands[0] = call.reshape(operands[0], rows)?;
    operands[1] = call.transpose(operands[1], &[1, 0])?;
    let columns = call.shape(operands[1])[1];
    let y = call.apply(MatMul { epilogue: Epilogue::bias(operands.len() == 3), ..MatMul::default() }, &operands)?;
    let mut out = Shape::from(outer);
    out.push(columns);
    let y = call.reshape(y, out)?;
    Ok(vec![call.cast(y, dtype)?])
}

/// A matrix, or a batch of them, with its last two dimensions in the order asked for.
fn turned(call: &mut Call, x: Operand, turn: bool) -> Result<Operand, Refusal> {
    let rank = call.shape(x).rank();
    if !turn || rank < 2 {
        return Ok(x);
    }
    let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    call.transpose(x, &order)
}

pub(super) fn batch_dot(call: &mut Call) -> Yield {
    call.ignore(&["forward_stype"]);
    let [a, b] = call.inputs()?;
    let (turn_a, turn_b) = (call.flag("transpose_a")?, call.flag("transpose_b")?);
    if call.shape(a).rank() < 3 || call.shape(a).rank() != call.shape(b).rank() {
        refuse!("{} and {} are not batches of matrices", call.shape(a), call.shape(b));
    }
    let a = turned(call, a, turn_a)?;
    let b = turned(call, b, turn_b)?;
    Ok(vec![call.apply_f32(MatMul::default(), &[a, b])?])
}

pub(super) fn gemm2(call: &mut Call) -> Yield {
    let [a, b] = call.inputs()?;
    let (turn_a, turn_b) = (call.flag("transpose_a")?, call.flag("transpose_b")?);
    let alpha = call.float_or("alpha", 1.0)?;
    if call.int_or("axis", -2)? != -2 {
        refuse!("attribute `axis` is not -2");
    }
    let a = turned(call, a, turn_a)?;
    let b = turned(call, b, turn_b)?;
    let y = call.apply_f32(MatMul::default(), &[a, b])?;
    if alpha == 1.0 {
        return Ok(vec![y]);
    }
    let alpha = call.number(alpha, call.dtype(y));
    Ok(vec![call.binary(Binary::Mul, y, alpha)?])
}

/// Sums over the last dimension of the left operand and the first one of the right; with `transpose_a` over the first, with
/// `transpose_b` over the last.
pub(super) fn dot(call: &mut Call) -> Yield {
    call.ignore(&["forward_stype"]);
    let [a, b] = call.inputs()?;
    let (turn_a, turn_b) = (call.flag("transpose_a")?, call.flag("transpose_b")?);
    let (a_shape, b_shape) = (call.shape(a), call.shape(b));
    if a_shape.rank() == 0 || b_shape.rank() == 0 {
        refuse!("{a_shape} and {b_shape} are not both vectors or matrices");
    }
    // Moves the dimension that is summed to the end of the left operand and to the front of the right.
    let moved = |call: &mut Call, x: Operand, first_to_last: bool| {
        let rank = call.shape(x).rank();
        let order: Vec<usize> = match first_to_last {
            true => (1..rank).chain([0]).collect(),
            false => [rank - 1].into_iter().chain(0..rank - 1).collect(),
        };
        call.transpose(x, &order)
    };
    let a = if turn_a { moved(call, a, true)? } else { a };
    let b = if turn_b { moved(call, b, false)? } else { b };
    let (a_shape, b_shape) = (call.shape(a), call.shape(b));
    let (outer, inner) = (&a_shape[..a_shape.rank() - 1], &b_shape[1..]);
    let rows = Shape::from([outer.iter().product(), a_shape[a_shape.rank() - 1]]);
    let columns = Shape::from([b_shape[0], inner.iter().product()]);
    let mut out: Shape = outer.iter().chain(inner).copied().collect();
    if out.rank() == 0 {
        out.push(1);
    }
    let a = call.reshape(a, rows)?;
    let b = call.reshape(b, columns)?;
    let y = call.apply_f32(MatMul::default(), &[a, b])?;
    Ok(vec![call.reshape(y, out)?])
}

/// One of the parts of `[seq, batch, heads * 3 * width]`, queries, keys and values of each head side by side, as
/// `[batch * heads, seq, width]`.
fn interleaved(call: &mut Call, x: Operand, heads: usize, part: usize) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    let &[seq, batch, all] = &shape[..] else { refuse!("input {shape} does not have three dimensions") };
    if !all.is_multiple_of(3 * heads) {
        refuse!("{all} columns do not make {heads} heads of three parts");
    }
    let width = all / 3 / heads;
    let split = Shape::from([seq, batch, heads, 3, width]);
    let x = call.reshape(x, split.clone())?;
    let x = call.apply(Slice::range(&split, 3, part, 1), &[x])?;
    let x = call.reshape(x, Shape::from([seq, batch, heads, width]))?;
    let x = call.transpose(x, &[1, 2, 0, 3])?;
    call.reshape(x, Shape::from([batch * heads, seq, width]))
}

pub(super) fn interleaved_scores(call: &mut Call) -> Yield {
    let heads = call.count("heads")?;
    let x = call.input(0)?;
    let q = interleaved(call, x, heads, 0)?;
    let k = interleaved(call, x, heads, 1)?;
    let width = call.shape(q)[2];
    let factor = call.number(1.0 / (width as f64).sqrt(), DType::F32);
    let q = call.binary(Binary::Mul, q, factor)?;
    let k = call.transpose(k, &[0, 2, 1])?;
    Ok(vec![call.apply_f32(MatMul::default(), &[q, k])?])
}

pub(super) fn interleaved_values(call: &mut Call) -> Yield {
    let heads = call.count("heads")?;
    let [x, weights] = call.inputs()?;
    let v = interleaved(call, x, heads, 2)?;
    let [seq, batch] = [0, 1].map(|axis| call.shape(x)[axis]);
    let width = call.shape(v)[2];
    let y = call.apply_f32(MatMul::default(), &[weights, v])?;
    let y = call.reshape(y, Shape::from([batch, heads, seq, width]))?;
    let y = call.transpose(y, &[2, 0, 1, 3])?;
    Ok(vec![call.reshape(y, Shape::from([seq, batch, heads * width]))?])
}
