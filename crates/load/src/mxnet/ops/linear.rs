//! Matrix products.

use ir::Refusal;
use ir::ops::{Epilogue, MatMul, Slice};
use types::pointwise::Binary;
use types::{DType, Shape};

use super::shape::flattened;
use crate::common::{NodeResult, Operand, refuse};
use crate::mxnet::node::ImportedNode;

/// `x weight' + bias`, `weight: [num_hidden, in]`. All axes of `x` but the first are flattened unless `flatten` is off.
pub(super) fn fully_connected(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["num_hidden"]);
    let mut operands = vec![node.input(0)?, node.input(1)?];
    if !node.flag("no_bias")? {
        operands.push(node.input(2)?);
    }
    let flatten = node.flag_or("flatten", true)?;
    let (mut operands, dtype) = node.widen(&operands)?;
    if node.shape(operands[1]).rank() != 2 {
        refuse!("the weight must be a matrix, got {}", node.shape(operands[1]));
    }
    if flatten {
        operands[0] = flattened(node, operands[0])?;
    }
    let shape = node.shape(operands[0]);
    let Some((&last, outer)) = shape.split_last() else { refuse!("input must have rank >= 1, got {shape}") };
    let rows = Shape::from([outer.iter().product(), last]);
    operands[0] = node.reshape(operands[0], rows)?;
    operands[1] = node.transpose(operands[1], &[1, 0])?;
    let columns = node.shape(operands[1])[1];
    let y = node.apply(MatMul { epilogue: Epilogue::bias(operands.len() == 3), ..MatMul::default() }, &operands)?;
    let mut out = Shape::from(outer);
    out.push(columns);
    let y = node.reshape(y, out)?;
    Ok(vec![node.cast(y, dtype)?])
}

/// A batch of matrices, transposed if `turn`.
fn transposed_if(node: &mut ImportedNode, x: Operand, turn: bool) -> Result<Operand, Refusal> {
    let rank = node.shape(x).rank();
    if !turn || rank < 2 {
        return Ok(x);
    }
    let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    node.transpose(x, &order)
}

pub(super) fn batch_dot(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["forward_stype"]);
    let [a, b] = node.inputs()?;
    let (turn_a, turn_b) = (node.flag("transpose_a")?, node.flag("transpose_b")?);
    if node.shape(a).rank() < 3 || node.shape(a).rank() != node.shape(b).rank() {
        refuse!("operands must be batches of matrices, got {} and {}", node.shape(a), node.shape(b));
    }
    let a = transposed_if(node, a, turn_a)?;
    let b = transposed_if(node, b, turn_b)?;
    Ok(vec![node.apply_f32(MatMul::default(), &[a, b])?])
}

pub(super) fn gemm2(node: &mut ImportedNode) -> NodeResult {
    let [a, b] = node.inputs()?;
    let (turn_a, turn_b) = (node.flag("transpose_a")?, node.flag("transpose_b")?);
    let alpha = node.float_or("alpha", 1.0)?;
    if node.int_or("axis", -2)? != -2 {
        refuse!("attribute `axis` must be -2");
    }
    let a = transposed_if(node, a, turn_a)?;
    let b = transposed_if(node, b, turn_b)?;
    let y = node.apply_f32(MatMul::default(), &[a, b])?;
    if alpha == 1.0 {
        return Ok(vec![y]);
    }
    let alpha = node.number(alpha, node.dtype(y));
    Ok(vec![node.binary(Binary::Mul, y, alpha)?])
}

/// Contracts the last axis of the left operand (first with `transpose_a`) with the first axis of the right one (last with
/// `transpose_b`).
pub(super) fn dot(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["forward_stype"]);
    let [a, b] = node.inputs()?;
    let (turn_a, turn_b) = (node.flag("transpose_a")?, node.flag("transpose_b")?);
    let (a_shape, b_shape) = (node.shape(a), node.shape(b));
    if a_shape.rank() == 0 || b_shape.rank() == 0 {
        refuse!("operands must have rank >= 1, got {a_shape} and {b_shape}");
    }
    // Moves the contracted axis to the end of the left operand and to the front of the right one.
    let moved = |node: &mut ImportedNode, x: Operand, first_to_last: bool| {
        let rank = node.shape(x).rank();
        let order: Vec<usize> = match first_to_last {
            true => (1..rank).chain([0]).collect(),
            false => [rank - 1].into_iter().chain(0..rank - 1).collect(),
        };
        node.transpose(x, &order)
    };
    let a = if turn_a { moved(node, a, true)? } else { a };
    let b = if turn_b { moved(node, b, false)? } else { b };
    let (a_shape, b_shape) = (node.shape(a), node.shape(b));
    let (outer, inner) = (&a_shape[..a_shape.rank() - 1], &b_shape[1..]);
    let rows = Shape::from([outer.iter().product(), a_shape[a_shape.rank() - 1]]);
    let columns = Shape::from([b_shape[0], inner.iter().product()]);
    let mut out: Shape = outer.iter().chain(inner).copied().collect();
    if out.rank() == 0 {
        out.push(1);
    }
    let a = node.reshape(a, rows)?;
    let b = node.reshape(b, columns)?;
    let y = node.apply_f32(MatMul::default(), &[a, b])?;
    Ok(vec![node.reshape(y, out)?])
}

/// Queries, keys or values from `[seq, batch, heads * 3 * width]`, where those of a head are adjacent, as
/// `[batch * heads, seq, width]`.
fn interleaved(node: &mut ImportedNode, x: Operand, heads: usize, part: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let &[seq, batch, all] = &shape[..] else { refuse!("input must have rank 3, got {shape}") };
    if !all.is_multiple_of(3 * heads) {
        refuse!("columns must be a multiple of 3 x {heads} heads, got {all}");
    }
    let width = all / 3 / heads;
    let split = Shape::from([seq, batch, heads, 3, width]);
    let x = node.reshape(x, split.clone())?;
    let x = node.apply(Slice::range(&split, 3, part, 1), &[x])?;
    let x = node.reshape(x, Shape::from([seq, batch, heads, width]))?;
    let x = node.transpose(x, &[1, 2, 0, 3])?;
    node.reshape(x, Shape::from([batch * heads, seq, width]))
}

pub(super) fn interleaved_scores(node: &mut ImportedNode) -> NodeResult {
    let heads = node.count("heads")?;
    let x = node.input(0)?;
    let q = interleaved(node, x, heads, 0)?;
    let k = interleaved(node, x, heads, 1)?;
    let width = node.shape(q)[2];
    let factor = node.number(1.0 / (width as f64).sqrt(), DType::F32);
    let q = node.binary(Binary::Mul, q, factor)?;
    let k = node.transpose(k, &[0, 2, 1])?;
    Ok(vec![node.apply_f32(MatMul::default(), &[q, k])?])
}

pub(super) fn interleaved_values(node: &mut ImportedNode) -> NodeResult {
    let heads = node.count("heads")?;
    let [x, weights] = node.inputs()?;
    let v = interleaved(node, x, heads, 2)?;
    let [seq, batch] = [0, 1].map(|axis| node.shape(x)[axis]);
    let width = node.shape(v)[2];
    let y = node.apply_f32(MatMul::default(), &[weights, v])?;
    let y = node.reshape(y, Shape::from([batch, heads, seq, width]))?;
    let y = node.transpose(y, &[2, 0, 1, 3])?;
    Ok(vec![node.reshape(y, Shape::from([seq, batch, heads * width]))?])
}
