//! Cumulative sums.

use ir::ops;
use types::DType;

use crate::common::{NodeResult, axis};
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
