//! Indexing. Indices of MXNet are mostly `f32`; those out of range are clamped.

use ir::ops::Gather;
use types::DType;
use types::pointwise::{Binary, Compare};

use crate::common::{NodeResult, axis, refuse};
use crate::mxnet::node::ImportedNode;

pub(super) fn embedding(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["input_dim", "output_dim", "dtype", "sparse_grad"]);
    let [index, table] = node.inputs()?;
    let extent = node.shape(table).first().copied().unwrap_or_default();
    let index = node.clamp_index(index, extent)?;
    Ok(vec![node.apply(Gather { axis: 0 }, &[table, index])?])
}

pub(super) fn take(node: &mut ImportedNode) -> NodeResult {
    let [table, index] = node.inputs()?;
    let shape = node.shape(table);
    let axis = node.axis_or("axis", 0, shape.rank())?;
    let index = match node.text_or("mode", "clip") {
        "clip" | "raise" => node.clamp_index(index, shape[axis])?,
        "wrap" => {
            let index = node.cast(index, DType::I64)?;
            let extent = node.number(shape[axis] as f64, DType::I64);
            node.binary(Binary::Mod, index, extent)?
        }
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    Ok(vec![node.apply(Gather { axis }, &[table, index])?])
}

pub(super) fn pick(node: &mut ImportedNode) -> NodeResult {
    let [x, index] = node.inputs()?;
    let mut shape = node.shape(x);
    let at = axis(node.int_or("axis", -1)?, shape.rank())?;
    match node.text_or("mode", "clip") {
        "clip" => {}
        other => refuse!("attribute `mode` is `{other}`; `clip` is supported"),
    }
    let keep = node.flag("keepdims")?;
    let y = node.select_along(x, index, at)?;
    if keep {
        return Ok(vec![y]);
    }
    shape.remove(at);
    Ok(vec![node.reshape(y, shape)?])
}

/// One-hot along a new last axis; an index out of range gives no `on_value`.
pub(super) fn one_hot(node: &mut ImportedNode) -> NodeResult {
    let index = node.input(0)?;
    let depth = node.count("depth")?;
    let (on, off) = (node.float_or("on_value", 1.0)?, node.float_or("off_value", 0.0)?);
    let dtype = node.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    let mut shape = node.shape(index);
    shape.push(1);
    let index = node.cast(index, DType::I64)?;
    let index = node.reshape(index, shape.clone())?;
    let positions = node.positions(depth, shape.rank() - 1, shape.rank())?;
    let hot = node.compare(Compare::Equal, positions, index)?;
    let (on, off) = (node.number(on, dtype), node.number(off, dtype));
    Ok(vec![node.select(hot, on, off)?])
}
