//! Tensors from attributes, other dtypes, and operators that hand on what they get.

use ir::Refusal;
use types::{DType, Shape, Tensor};

use crate::common::{Operand, counts, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

pub(super) fn constant(call: &mut Call) -> Yield {
    let tensor = if let Some(tensor) = call.tensor_attribute("value")? {
        tensor
    } else if let Some(number) = call.float("value_float")? {
        Tensor::scalar(number)
    } else if let Some(numbers) = call.floats("value_floats")? {
        Tensor::vector(numbers.to_vec())
    } else if let Some(number) = call.int("value_int")? {
        Tensor::scalar(number)
    } else if let Some(numbers) = call.ints("value_ints")? {
        Tensor::vector(numbers)
    } else {
        refuse!("there is no attribute `value`, `value_float`, `value_floats`, `value_int` or `value_ints`")
    };
    Ok(vec![call.constant_of_file(tensor)])
}

pub(super) fn constant_of_shape(call: &mut Call) -> Yield {
    let shape: Shape = counts(&call.known_ints(0, "input")?, "input")?.into_iter().collect();
    let value = call.tensor_attribute("value")?.unwrap_or_else(|| Tensor::vector(vec![0.0f32]));
    if value.elements() != 1 {
        refuse!("attribute `value` has {} elements, not 1", value.elements());
    }
    call.reserve(value.dtype(), &shape)?;
    let filled = fill(&value, shape);
    Ok(vec![call.constant_of_file(filled)])
}

/// A tensor whose elements are all the one of `value`.
fn fill(value: &Tensor, shape: Shape) -> Tensor {
    use types::{Element, each_data};
    fn run<T: Element>(items: &[T], shape: Shape) -> Tensor {
        Tensor::full(shape, items[0])
    }
    each_data!(value.data(), items => run(items, shape))
}

/// Does nothing, in inference and where nothing is dropped. The mask says so.
pub(super) fn dropout(call: &mut Call) -> Yield {
    call.ignore(&["ratio", "is_test", "seed"]);
    if call.optional(2).is_some() && call.known_number(2, "training_mode")? != 0.0 {
        let ratio = if call.optional(1).is_some() { call.known_number(1, "ratio")? } else { 0.5 };
        if ratio != 0.0 {
            refuse!("training mode drops elements at random, which is not supported; export the model for inference");
        }
    }
    let x = call.input(0)?;
    if !call.wants(1) {
        return Ok(vec![x]);
    }
    let shape = call.shape(x);
    let dtype = if call.opset() < 10 { call.dtype(x) } else { DType::Bool };
    call.reserve(dtype, &shape)?;
    let mask = fill(&Tensor::scalar(true).cast(dtype), shape);
    Ok(vec![x, call.constant(mask)])
}

pub(super) fn cast(call: &mut Call) -> Yield {
    call.ignore(&["saturate"]);
    let to = if call.opset() < 6 {
        let name = call.text_or("to", "").to_ascii_lowercase();
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
            _ => refuse!("attribute `to` is `{name}`, which is not supported"),
        };
        short.parse().map_err(Refusal)?
    } else {
        match call.dtype_attribute("to")? {
            Some(to) => to,
            None => refuse!("attribute `to` is missing"),
        }
    };
    Ok(vec![call.cast(call.input(0)?, to)?])
}

pub(super) fn cast_like(call: &mut Call) -> Yield {
    call.ignore(&["saturate"]);
    let to = call.dtype(call.input(1)?);
    Ok(vec![call.cast(call.input(0)?, to)?])
}

/// Numbers from `start` up to `limit`, which is not reached.
pub(super) fn range(call: &mut Call) -> Yield {
    let start = call.known_number(0, "start")?;
    let limit = call.known_number(1, "limit")?;
    let delta = call.known_number(2, "delta")?;
    let dtype = call.dtype(call.input(0)?);
    let count = ((limit - start) / delta).ceil();
    if !count.is_finite() {
        refuse!("no range goes from {start} to {limit} in steps of {delta}");
    }
    let count = count.max(0.0) as usize;
    call.reserve(DType::F64, &Shape::from([count]))?;
    let numbers = Tensor::from_fn(Shape::from([count]), |at| start + at as f64 * delta).cast(dtype);
    Ok(vec![call.constant(numbers)])
}

pub(super) fn eye_like(call: &mut Call) -> Yield {
    let like = call.input(0)?;
    let shape = call.shape(like);
    let dtype = call.dtype_attribute("dtype")?.unwrap_or(call.dtype(like));
    let k = call.int_or("k", 0)?;
    if shape.rank() != 2 {
        refuse!("{shape} is not the shape of a matrix");
    }
    call.reserve(DType::F64, &shape)?;
    let columns = shape[1].max(1);
    let on_diagonal = |at: usize| (at % columns) as i64 == (at / columns) as i64 + k.clamp(-(1 << 41), 1 << 41);
    let eye = Tensor::from_fn(shape, on_diagonal).cast(dtype);
    Ok(vec![call.constant(eye)])
}

/// Keeps one side of a diagonal: a choice between `x` and zero by a mask that is known.
pub(super) fn trilu(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let k = match call.optional(1) {
        Some(_) => call.known_number(1, "k")? as i64,
        None => 0,
    };
    let upper = call.int_or("upper", 1)? != 0;
    if shape.rank() < 2 {
        refuse!("{shape} is not the shape of matrices");
    }
    let matrix = Shape::from(&shape[shape.rank() - 2..]);
    call.reserve(DType::Bool, &matrix)?;
    let columns = matrix[1].max(1);
    let k = k.clamp(-(1 << 41), 1 << 41);
    let mask = Tensor::from_fn(matrix, |at| {
        let beyond = (at % columns) as i64 - (at / columns) as i64 - k;
        if upper { 0 <= beyond } else { beyond <= 0 }
    });
    let (mask, zero) = (call.constant(mask), call.number(0.0, call.dtype(x)));
    Ok(vec![call.select(mask, x, zero)?])
}

/// The positions of what is known not to be 0, `[rank, count]`.
pub(super) fn non_zero(call: &mut Call) -> Yield {
    let x = call.known_for_shape(0, "X")?;
    let (items, strides) = (x.to_f64(), x.shape().row_major_strides());
    let places: Vec<usize> = (0..items.len()).filter(|&at| items[at] != 0.0).collect();
    let rank = x.shape().rank();
    let mut positions = Vec::new();
    for axis in 0..rank {
        positions.extend(places.iter().map(|&at| (at / strides[axis] % x.shape()[axis]) as i64));
    }
    let shape = Shape::from([rank, positions.len().checked_div(rank).unwrap_or(0)]);
    let positions = Tensor::new(shape, positions).map_err(|error| Refusal(error.to_string()))?;
    Ok(vec![call.constant(positions)])
}
