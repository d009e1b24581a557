//! Reductions.

use ir::ops::{ArgExtreme, ReduceKind};
use types::DType;

use crate::common::{NodeResult, axes, axis};
use crate::onnx::node::ImportedNode;

macro_rules! reduce {
    ($($name:ident $kind:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            reduce(node, ReduceKind::$kind)
        })*
    };
}

reduce! {
    l1 L1, l2 L2, log_sum LogSum, log_sum_exp LogSumExp, max Max, mean Mean, min Min, prod Prod, sum Sum,
    sum_square SumSquare,
}

/// Axes are an attribute up to opset 17 (`ReduceSum` 12), an operand from then on. If absent, all axes.
fn reduce(node: &mut ImportedNode, kind: ReduceKind) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let last = if kind == ReduceKind::Sum { 12 } else { 17 };
    let list = node.ints_or_input("axes", 1, last)?.unwrap_or_default();
    let keep = node.int_or("keepdims", 1)? != 0;
    if node.flag("noop_with_empty_axes")? && list.is_empty() {
        return Ok(vec![x]);
    }
    let axes = if list.is_empty() { (0..rank).collect() } else { axes(&list, rank)? };
    let is_extreme = matches!(kind, ReduceKind::Max | ReduceKind::Min);
    let is_empty = node.shape(x).elements() == 0;
    let y = node.reduce(kind, x, axes, keep)?;
    if node.dtype(x) == DType::Bool && is_extreme && is_empty {
        // No element is the least value of the dtype, or the greatest.
        let shape = node.shape(y);
        return Ok(vec![node.constant_of(shape, |_| kind == ReduceKind::Min)?]);
    }
    Ok(vec![y])
}

pub(super) fn arg_max(node: &mut ImportedNode) -> NodeResult {
    arg_extreme(node, true)
}

pub(super) fn arg_min(node: &mut ImportedNode) -> NodeResult {
    arg_extreme(node, false)
}

fn arg_extreme(node: &mut ImportedNode, max: bool) -> NodeResult {
    let x = node.input(0)?;
    let axis = axis(node.int_or("axis", 0)?, node.shape(x).rank())?;
    let keep = node.int_or("keepdims", 1)? != 0;
    let last = node.flag("select_last_index")?;
    let (x, _) = node.widen(&[x])?;
    Ok(vec![node.apply(ArgExtreme { axis, keep, max, last }, &x)?])
}
