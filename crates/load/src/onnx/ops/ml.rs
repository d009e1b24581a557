//! Numeric operators of domain `ai.onnx.ml`.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::Compare;
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, refuse};
use crate::onnx::node::ImportedNode;

/// Elements along the last axis by index; a vector is a matrix of one row.
pub(super) fn array_feature_extractor(node: &mut ImportedNode) -> NodeResult {
    let (x, index) = (node.input(0)?, node.input(1)?);
    let mut shape = node.shape(x);
    let count = node.shape(index).elements();
    let Some(last) = shape.rank().checked_sub(1) else { refuse!("input must have rank >= 1, got {shape}") };
    if let Some(known) = node.constant_value(index)
        && let Some(outside) = known.to_i64().iter().find(|&&ix| !(0..shape[last] as i64).contains(&ix))
    {
        refuse!("indices must be within axis {last} of {shape}, got {outside}");
    }
    let index = node.reshape(index, Shape::from([count]))?;
    let y = node.apply(ops::Gather { axis: last }, &[x, index])?;
    shape[last] = count;
    if last == 0 {
        shape.insert(0, 1);
    }
    Ok(vec![node.reshape(y, shape)?])
}

/// 1 above a threshold, else 0.
pub(super) fn binarizer(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    let threshold = node.float_or("threshold", 0.0)?;
    let threshold = node.number(f64::from(threshold), dtype);
    let exceeds = node.compare(Compare::Greater, x, threshold)?;
    Ok(vec![node.cast(exceeds, dtype)?])
}

/// Maps each number by a table of keys and values, with a default.
pub(super) fn label_encoder(node: &mut ImportedNode) -> NodeResult {
    for name in ["keys_strings", "values_strings", "classes_strings"] {
        if node.texts(name)?.is_some() {
            refuse!("attribute `{name}`: strings are not supported");
        }
    }
    node.ignore(&["default_string"]);
    let x = node.input(0)?;
    let keys = list(node, ["keys_tensor", "keys_floats", "keys_int64s"])?;
    let values = list(node, ["values_tensor", "values_floats", "values_int64s"])?;
    let (float, int) = (node.float_or("default_float", -0.0)?, node.int_or("default_int64", -1)?);
    let default = match node.tensor_attribute("default_tensor")? {
        Some(tensor) => tensor,
        None if values.dtype().is_float() => Tensor::scalar(float).cast(values.dtype()),
        None => Tensor::scalar(int).cast(values.dtype()),
    };
    let (count, shape) = (keys.elements(), node.shape(x));
    if values.elements() != count || default.elements() != 1 || default.dtype() != values.dtype() || count == 0 {
        refuse!(
            "keys, values and default must fit, got {count} keys and {} values of {}",
            values.elements(),
            values.dtype()
        );
    }
    if keys.dtype() != node.dtype(x) {
        refuse!("keys must have the dtype of the input, got {} and {}", keys.dtype(), node.dtype(x));
    }
    let mut sorted = keys.to_f64();
    sorted.sort_by(f64::total_cmp);
    if sorted.iter().any(|key| key.is_nan()) || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        refuse!("keys must be distinct and not NaN");
    }
    // A column per key, and a last one for the default.
    let mut column = shape.clone();
    column.push(1);
    let x = node.reshape(x, column)?;
    let keys = keys.reshape(Shape::from([count])).map_err(|error| Refusal(error.to_string()))?;
    let keys = node.constant(keys);
    let hot = node.compare(Compare::Equal, x, keys)?;
    let hot = node.cast(hot, DType::F32)?;
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], shape.rank());
    pad.push([0, 1]);
    let hot = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.5), pad }, &[hot])?;
    let which = node.apply(ops::ArgExtreme { axis: shape.rank(), keep: false, max: true, last: false }, &[hot])?;
    let one =
        |tensor: Tensor, count: usize| tensor.reshape(Shape::from([count])).map_err(|error| Refusal(error.to_string()));
    let values = node.constant(one(values, count)?);
    let default = node.constant(one(default, 1)?);
    let table = node.apply(ops::Concat { axis: 0 }, &[values, default])?;
    Ok(vec![node.rows(table, which)?])
}

/// Keys or values, from the attribute that has them.
fn list(node: &ImportedNode, [tensor, floats, ints]: [&str; 3]) -> Result<Tensor, Refusal> {
    if let Some(tensor) = node.tensor_attribute(tensor)? {
        return Ok(tensor);
    }
    if let Some(floats) = node.floats(floats)? {
        return Ok(Tensor::vector(floats.to_vec()));
    }
    match node.ints(ints)? {
        Some(ints) => Ok(Tensor::vector(ints)),
        None => refuse!("attribute `{tensor}`, `{floats}` or `{ints}` is required"),
    }
}
