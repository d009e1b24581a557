//! Constants, casts, and operators that are the identity in inference.

use ir::{Refusal, ops};
use types::pointwise::Binary;
use types::{DType, Shape, Tensor, each_data};

use crate::common::{Narrow, NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

pub(super) fn constant(node: &mut ImportedNode) -> NodeResult {
    let tensor = if let Some(tensor) = node.tensor_attribute("value")? {
        tensor
    } else if let Some(number) = node.float("value_float")? {
        Tensor::scalar(number)
    } else if let Some(numbers) = node.floats("value_floats")? {
        Tensor::vector(numbers.to_vec())
    } else if let Some(number) = node.int("value_int")? {
        Tensor::scalar(number)
    } else if let Some(numbers) = node.ints("value_ints")? {
        Tensor::vector(numbers)
    } else {
        refuse!("attribute `value`, `value_float`, `value_floats`, `value_int` or `value_ints` is required")
    };
    let narrow = node.narrow_tensor("value");
    let constant = node.constant_of_file(tensor);
    if let Some(narrow) = narrow {
        node.mark_narrow(constant, narrow);
    }
    Ok(vec![constant])
}

pub(super) fn constant_of_shape(node: &mut ImportedNode) -> NodeResult {
    let shape: Shape = counts(&node.constant_ints(0, "input")?, "input")?.into_iter().collect();
    let value = node.tensor_attribute("value")?.unwrap_or_else(|| Tensor::vector(vec![0.0f32]));
    if value.elements() != 1 {
        refuse!("attribute `value` must have 1 element, got {}", value.elements());
    }
    let filled = fill(node, &value, shape)?;
    let narrow = node.narrow_tensor("value");
    let constant = node.constant_of_file(filled);
    if let Some(narrow) = narrow {
        node.mark_narrow(constant, narrow);
    }
    Ok(vec![constant])
}

/// A tensor filled with the element of `value`.
fn fill(node: &mut ImportedNode, value: &Tensor, shape: Shape) -> Result<Tensor, Refusal> {
    each_data!(value.data(), items => node.computed(shape, |_| items[0]))
}

/// The identity in inference; the mask is all true.
pub(super) fn dropout(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["is_test", "seed"]);
    let x = node.input(0)?;
    let of_mask = if node.opset() < 10 { node.dtype(x) } else { DType::Bool };
    if node.is_training() {
        // The ratio was an attribute before opset 12.
        let ratio = match node.optional(1) {
            Some(_) => node.constant_number(1, "ratio")?,
            None => f64::from(node.float_or("ratio", 0.5)?),
        };
        // PyTorch's older exporter names a mask that nothing reads.
        if !node.has_output(1) {
            return Ok(vec![node.dropout(x, ratio)?]);
        }
        let [y, mask] = node.dropout_with_mask(x, ratio)?;
        return Ok(vec![y, node.cast(mask, of_mask)?]);
    }
    node.ignore(&["ratio"]);
    if !node.is_inference() && node.optional(2).is_some() && node.constant_number(2, "training_mode")? != 0.0 {
        let ratio = if node.optional(1).is_some() { node.constant_number(1, "ratio")? } else { 0.5 };
        if ratio != 0.0 {
            return node.refuse_mode("its result is random");
        }
    }
    if !node.has_output(1) {
        return Ok(vec![x]);
    }
    let shape = node.shape(x);
    Ok(vec![x, node.constant_as(of_mask, shape, |_| true)?])
}

/// Attributes that have an effect on narrow floats only.
const SATURATION: &[&str] = &["saturate", "round_mode"];

pub(super) fn cast(node: &mut ImportedNode) -> NodeResult {
    node.ignore(SATURATION);
    let to = if node.opset() < 6 {
        let name = node.text_or("to", "").to_ascii_lowercase();
        let short = match name.as_str() {
            "float" => "f32",
            "double" => "f64",
            "float16" => "f16",
            "int8" => "i8",
            "int16" => "i16",
            "int32" => "i32",
            "int64" => "i64",
            "uint8" => "u8",
            "uint16" => "u16",
            "uint32" => "u32",
            "uint64" => "u64",
            "bool" => "bool",
            _ => refuse!("attribute `to`: `{name}` is not supported"),
        };
        short.parse().map_err(Refusal)?
    } else if let Some(narrow) = node.narrow_attribute("to")? {
        return Ok(vec![narrowed(node, node.input(0)?, narrow)?]);
    } else {
        match node.dtype_attribute("to")? {
            Some(to) => to,
            None => refuse!("attribute `to` is missing"),
        }
    };
    Ok(vec![node.cast(node.input(0)?, to)?])
}

pub(super) fn cast_like(node: &mut ImportedNode) -> NodeResult {
    node.ignore(SATURATION);
    let (x, like) = (node.input(0)?, node.input(1)?);
    Ok(vec![match node.narrow(like) {
        Some(narrow) => narrowed(node, x, narrow)?,
        None => node.cast(x, node.dtype(like))?,
    }])
}

/// Conversion to integers of few bits, which wraps. That of floats is refused: ONNX truncates, ONNX Runtime rounds, and
/// earlier versions of ONNX saturate.
fn narrowed(node: &mut ImportedNode, x: Operand, to: Narrow) -> Result<Operand, Refusal> {
    if node.narrow(x) == Some(to) {
        return Ok(x);
    }
    let Some([least, most]) = to.range().filter(|_| !node.dtype(x).is_float()) else {
        refuse!("conversion of {} to {} is not supported; use `QuantizeLinear`", node.dtype(x), to.name());
    };
    let [least, most] = [least, most].map(f64::from);
    let x = node.cast(x, DType::I32)?;
    let [shift, mask] = [-least, most - least].map(|number| node.number(number, DType::I32));
    let x = node.binary(Binary::Add, x, shift)?;
    let x = node.binary(Binary::And, x, mask)?;
    let x = node.binary(Binary::Sub, x, shift)?;
    let y = node.cast(x, to.dtype())?;
    node.mark_narrow(y, to);
    Ok(y)
}

/// `BitCast`: the same bytes as elements of dtype `to`, which must have the same size.
pub(super) fn bit_cast(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    if let Some(narrow) = node.narrow_attribute("to")?.or(node.narrow(x)) {
        // Its numbers are held in another dtype.
        refuse!("bits of {} are not supported", narrow.name());
    }
    let Some(to) = node.dtype_attribute("to")? else { refuse!("attribute `to` is missing") };
    // The bytes of `bool` are 0 and 1.
    if node.dtype(x) == to || (node.dtype(x) == DType::Bool && matches!(to, DType::I8 | DType::U8)) {
        return Ok(vec![node.cast(x, to)?]);
    }
    Ok(vec![node.apply_folded(ops::BitCast { to }, &[x])?])
}

/// Numbers from `start` up to `limit`, exclusive.
pub(super) fn range(node: &mut ImportedNode) -> NodeResult {
    // The precision of sums in half precision; here all are exact.
    node.ignore(&["stash_type"]);
    let start = node.constant_number(0, "start")?;
    let limit = node.constant_number(1, "limit")?;
    let delta = node.constant_number(2, "delta")?;
    let dtype = node.dtype(node.input(0)?);
    let count = ((limit - start) / delta).ceil();
    if !count.is_finite() {
        refuse!("a range from {start} to {limit} by {delta} is not supported");
    }
    let count = count.max(0.0) as usize;
    Ok(vec![node.constant_as(dtype, [count], |at| start + at as f64 * delta)?])
}

pub(super) fn eye_like(node: &mut ImportedNode) -> NodeResult {
    let like = node.input(0)?;
    let shape = node.shape(like);
    let dtype = node.dtype_attribute("dtype")?.unwrap_or(node.dtype(like));
    let k = node.int_or("k", 0)?;
    if shape.rank() != 2 {
        refuse!("input must be a matrix, got {shape}");
    }
    let columns = shape[1].max(1);
    let on_diagonal = |at: usize| (at % columns) as i64 == (at / columns) as i64 + k.clamp(-(1 << 41), 1 << 41);
    Ok(vec![node.constant_as(dtype, shape, on_diagonal)?])
}

/// Keeps one side of a diagonal: selects between `x` and zero with a constant mask.
pub(super) fn trilu(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let k = match node.optional(1) {
        Some(_) => node.constant_number(1, "k")? as i64,
        None => 0,
    };
    let upper = node.int_or("upper", 1)? != 0;
    if shape.rank() < 2 {
        refuse!("input must have rank >= 2, got {shape}");
    }
    let matrix = Shape::from(&shape[shape.rank() - 2..]);
    let columns = matrix[1].max(1);
    let k = k.clamp(-(1 << 41), 1 << 41);
    let mask = node.constant_of(matrix, |at| {
        let beyond = (at % columns) as i64 - (at / columns) as i64 - k;
        if upper { 0 <= beyond } else { beyond <= 0 }
    })?;
    let zero = node.number(0.0, node.dtype(x));
    Ok(vec![node.select(mask, x, zero)?])
}

/// The positions of nonzero elements of a constant, `[rank, count]`.
pub(super) fn non_zero(node: &mut ImportedNode) -> NodeResult {
    let x = node.constant_for_shape(0, "X")?;
    let (items, strides) = (x.to_f64(), x.shape().row_major_strides());
    let places: Vec<usize> = (0..items.len()).filter(|&at| items[at] != 0.0).collect();
    let rank = x.shape().rank();
    node.reserve(DType::I64, &Shape::from([places.len(), rank]))?;
    let mut positions = Vec::new();
    for axis in 0..rank {
        positions.extend(places.iter().map(|&at| (at / strides[axis] % x.shape()[axis]) as i64));
    }
    let shape = Shape::from([rank, positions.len().checked_div(rank).unwrap_or(0)]);
    let positions = Tensor::new(shape, positions).map_err(|error| Refusal(error.to_string()))?;
    Ok(vec![node.constant(positions)])
}
