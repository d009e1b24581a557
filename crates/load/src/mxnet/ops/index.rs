//! Elements by index. MXNet's indices are mostly numbers in `f32`; those outside are moved to the ends.

use ir::ops::Gather;
use types::DType;
use types::pointwise::{Binary, Compare};

use super::Yield;
use crate::common::{axis, refuse};
use crate::mxnet::call::Call;

pub(super) fn embedding(call: &mut Call) -> Yield {
    call.ignore(&["input_dim", "output_dim", "dtype", "sparse_grad"]);
    let [index, table] = call.inputs()?;
    let extent = call.shape(table).first().copied().unwrap_or_default();
    let index = call.clipped(index, extent)?;
    Ok(vec![call.apply(Gather { axis: 0 }, &[table, index])?])
}

pub(super) fn take(call: &mut Call) -> Yield {
    let [table, index] = call.inputs()?;
    let shape = call.shape(table);
    let axis = call.axis_or("axis", 0, shape.rank())?;
    let index = match call.text_or("mode", "clip") {
        "clip" | "raise" => call.clipped(index, shape[axis])?,
        "wrap" => {
            let index = call.cast(index, DType::I64)?;
            let extent = call.number(shape[axis] as f64, DType::I64);
            call.binary(Binary::Mod, index, extent)?
        }
        other => refuse!("attribute `mode` is `{other}`"),
    };
    Ok(vec![call.apply(Gather { axis }, &[table, index])?])
}

pub(super) fn pick(call: &mut Call) -> Yield {
    let [x, index] = call.inputs()?;
    let mut shape = call.shape(x);
    let at = axis(call.int_or("axis", -1)?, shape.rank())?;
    match call.text_or("mode", "clip") {
        "clip" => {}
        other => refuse!("attribute `mode` is `{other}`; `clip` is supported"),
    }
    let keep = call.flag("keepdims")?;
    let y = call.picked(x, index, at)?;
    if keep {
        return Ok(vec![y]);
    }
    shape.remove(at);
    Ok(vec![call.reshape(y, shape)?])
}

/// Along a new last axis; an index outside gives no `on_value`.
pub(super) fn one_hot(call: &mut Call) -> Yield {
    let index = call.input(0)?;
    let depth = call.count("depth")?;
    let (on, off) = (call.float_or("on_value", 1.0)?, call.float_or("off_value", 0.0)?);
    let dtype = call.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    let mut shape = call.shape(index);
    shape.push(1);
    let index = call.cast(index, DType::I64)?;
    let index = call.reshape(index, shape.clone())?;
    let positions = call.positions(depth, shape.rank() - 1, shape.rank())?;
    let hot = call.compare(Compare::Equal, positions, index)?;
    let (on, off) = (call.number(on, dtype), call.number(off, dtype));
    Ok(vec![call.select(hot, on, off)?])
}
