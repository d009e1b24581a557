//! Cumulative sums and products.

use ir::{Refusal, ops};
use types::DType;
use types::pointwise::Binary;

use crate::common::{NodeResult, Operand, axis};
use crate::onnx::node::ImportedNode;

/// Half precision is summed in `f32` and rounded once.
pub(super) fn cum_sum(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let axis = axis(node.constant_number(1, "axis")? as i64, node.shape(x).rank())?;
    let (exclusive, reverse) = (node.flag("exclusive")?, node.flag("reverse")?);
    let sum = ops::CumulativeSum { axis, exclusive, reverse };
    let dtype = node.dtype(x);
    if !matches!(dtype, DType::F16 | DType::Bf16) {
        return Ok(vec![node.apply(sum, &[x])?]);
    }
    let wide = node.apply(ops::Cast { to: DType::F32 }, &[x])?;
    let sums = node.apply(sum, &[wide])?;
    Ok(vec![node.apply(ops::Cast { to: dtype }, &[sums])?])
}

/// `CumProd`: products of the elements along an axis up to each one, without itself if `exclusive`, from the end if
/// `reverse`.
///
/// Each step multiplies the products of as many elements as there were before, so that `n` elements take `log2 n` steps; the
/// order of the factors, and with it the rounding, is not that of a loop. Half precision is multiplied in `f32`.
pub(super) fn cum_prod(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    let axis = axis(node.constant_number(1, "axis")? as i64, node.shape(x).rank())?;
    let (exclusive, reverse) = (node.flag("exclusive")?, node.flag("reverse")?);
    let (wide, _) = node.widen(&[x])?;
    let (mut y, extent) = (wide[0], node.shape(x)[axis]);
    if exclusive {
        y = moved(node, y, axis, extent.min(1), reverse)?;
    }
    let mut step = 1;
    while step < extent {
        let earlier = moved(node, y, axis, step, reverse)?;
        y = node.binary(Binary::Mul, y, earlier)?;
        step *= 2;
    }
    Ok(vec![node.cast(y, dtype)?])
}

/// `x` moved by some elements along an axis, towards its end or, if `reverse`, its start. The elements that come in are 1.
fn moved(node: &mut ImportedNode, x: Operand, axis: usize, by: usize, reverse: bool) -> Result<Operand, Refusal> {
    let mut shape = node.shape(x);
    if by == 0 || shape[axis] < by {
        return Ok(x);
    }
    let kept = shape[axis] - by;
    let start = if reverse { by } else { 0 };
    let part = node.apply(ops::Slice::range(&shape, axis, start, kept), &[x])?;
    shape[axis] = by;
    let one = node.number(1.0, node.dtype(x));
    let ones = node.expand(one, shape)?;
    let parts = if reverse { [part, ones] } else { [ones, part] };
    node.apply(ops::Concat { axis }, &parts)
}
