//! Operators of the domain `ai.onnx.ml` that are about numbers.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::Compare;
use types::{DType, Shape, Tensor};

use crate::common::{Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// Elements along the last axis, by index; a vector counts as a matrix of one row.
pub(super) fn array_feature_extractor(call: &mut Call) -> Yield {
    let (x, index) = (call.input(0)?, call.input(1)?);
    let mut shape = call.shape(x);
    let count = call.shape(index).elements();
    let Some(last) = shape.rank().checked_sub(1) else { refuse!("input {shape} has no axis") };
    if let Some(known) = call.peek(index)
        && let Some(outside) = known.to_i64().iter().find(|&&ix| !(0..shape[last] as i64).contains(&ix))
    {
        refuse!("index {outside} lies outside axis {last} of {shape}");
    }
    let index = call.reshape(index, Shape::from([count]))?;
    let y = call.apply(ops::Gather { axis: last }, &[x, index])?;
    shape[last] = count;
    if last == 0 {
        shape.insert(0, 1);
    }
    Ok(vec![call.reshape(y, shape)?])
}

/// 1 where a threshold is exceeded, else 0.
pub(super) fn binarizer(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let threshold = call.float_or("threshold", 0.0)?;
    let threshold = call.number(f64::from(threshold), dtype);
    let exceeds = call.compare(Compare::Greater, x, threshold)?;
    Ok(vec![call.cast(exceeds, dtype)?])
}

/// For each number the value that stands beside it in a table, or a default.
pub(super) fn label_encoder(call: &mut Call) -> Yield {
    for name in ["keys_strings", "values_strings", "classes_strings"] {
        if call.texts(name)?.is_some() {
            refuse!("attribute `{name}`: strings are not supported");
        }
    }
    call.ignore(&["default_string"]);
    let x = call.input(0)?;
    let keys = list(call, ["keys_tensor", "keys_floats", "keys_int64s"])?;
    let values = list(call, ["values_tensor", "values_floats", "values_int64s"])?;
    let (float, int) = (call.float_or("default_float", -0.0)?, call.int_or("default_int64", -1)?);
    let default = match call.tensor_attribute("default_tensor")? {
        Some(tensor) => tensor,
        None if values.dtype().is_float() => Tensor::scalar(float).cast(values.dtype()),
        None => Tensor::scalar(int).cast(values.dtype()),
    };
    let (count, shape) = (keys.elements(), call.shape(x));
    if values.elements() != count || default.elements() != 1 || default.dtype() != values.dtype() || count == 0 {
        refuse!("{count} keys and {} values of {} with a default do not fit", values.elements(), values.dtype());
    }
    if keys.dtype() != call.dtype(x) {
        refuse!("keys of {} do not name elements of {}", keys.dtype(), call.dtype(x));
    }
    let mut sorted = keys.to_f64();
    sorted.sort_by(f64::total_cmp);
    if sorted.iter().any(|key| key.is_nan()) || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        refuse!("keys that are not numbers or that occur twice are not supported");
    }
    // A column for each key, and a last one that wins where no key does.
    let mut column = shape.clone();
    column.push(1);
    let x = call.reshape(x, column)?;
    let keys = keys.reshape(Shape::from([count])).map_err(|error| Refusal(error.to_string()))?;
    let keys = call.constant(keys);
    let hot = call.compare(Compare::Equal, x, keys)?;
    let hot = call.cast(hot, DType::F32)?;
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], shape.rank());
    pad.push([0, 1]);
    let hot = call.apply(ops::Pad { mode: ops::PadMode::Constant(0.5), pad }, &[hot])?;
    let which = call.apply(ops::ArgExtreme { axis: shape.rank(), keep: false, max: true, last: false }, &[hot])?;
    let one =
        |tensor: Tensor, count: usize| tensor.reshape(Shape::from([count])).map_err(|error| Refusal(error.to_string()));
    let values = call.constant(one(values, count)?);
    let default = call.constant(one(default, 1)?);
    let table = call.apply(ops::Concat { axis: 0 }, &[values, default])?;
    Ok(vec![call.rows(table, which)?])
}

/// Keys or values, in whichever attribute they stand.
fn list(call: &Call, [tensor, floats, ints]: [&str; 3]) -> Result<Tensor, Refusal> {
    if let Some(tensor) = call.tensor_attribute(tensor)? {
        return Ok(tensor);
    }
    if let Some(floats) = call.floats(floats)? {
        return Ok(Tensor::vector(floats.to_vec()));
    }
    match call.ints(ints)? {
        Some(ints) => Ok(Tensor::vector(ints)),
        None => refuse!("there is no attribute `{tensor}`, `{floats}` or `{ints}`"),
    }
}
