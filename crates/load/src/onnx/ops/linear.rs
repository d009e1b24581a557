//! Products of matrices, and numbers in fewer bits.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use crate::common::{Operand, axis, counts, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// Vectors become matrices of one row or column, which leave the result again.
pub(super) fn mat_mul(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (a_shape, b_shape) = (call.shape(a), call.shape(b));
    if a_shape.rank() == 0 || b_shape.rank() == 0 {
        refuse!("{a_shape} and {b_shape} are not both vectors or matrices");
    }
    let row = if a_shape.rank() == 1 { call.reshape(a, Shape::from([1, a_shape[0]]))? } else { a };
    let column = if b_shape.rank() == 1 { call.reshape(b, Shape::from([b_shape[0], 1]))? } else { b };
    let mut y = call.mat_mul(row, column)?;
    let mut shape = call.shape(y);
    if b_shape.rank() == 1 {
        shape.remove(shape.rank() - 1);
    }
    if a_shape.rank() == 1 {
        let at = shape.rank() - if b_shape.rank() == 1 { 1 } else { 2 };
        shape.remove(at);
    }
    y = call.reshape(y, shape)?;
    Ok(vec![y])
}

/// `alpha A B + beta C`. Transposes and factors of known operands are worked into them.
pub(super) fn gemm(call: &mut Call) -> Yield {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let (alpha, beta) = (call.float_or("alpha", 1.0)?, call.float_or("beta", 1.0)?);
    let (trans_a, trans_b) = (call.flag("transA")?, call.flag("transB")?);
    // Until opset 7 this allowed `C` to be broadcast.
    call.ignore(&["broadcast"]);
    if call.shape(a).rank() != 2 || call.shape(b).rank() != 2 {
        refuse!("{} and {} are not both matrices", call.shape(a), call.shape(b));
    }
    let (inputs, dtype) = call.widen(&[a, b])?;
    if call.dtype(inputs[0]) != DType::F32 {
        refuse!("computes in f32, not in {dtype}");
    }
    let a = if trans_a { call.transpose(inputs[0], &[1, 0])? } else { inputs[0] };
    let mut b = if trans_b { call.transpose(inputs[1], &[1, 0])? } else { inputs[1] };
    let mut c = match call.optional(2).filter(|_| beta != 0.0) {
        Some(c) => {
            let (c, _) = call.widen(&[c])?;
            Some(scaled(call, c[0], beta)?)
        }
        None => None,
    };
    let alpha_is_in_b = alpha == 1.0 || call.peek(b).is_some();
    if alpha_is_in_b {
        b = scaled(call, b, alpha)?;
    }
    let (columns, mut bias) = (call.shape(b)[1], None);
    if let Some(c_operand) = c
        && alpha_is_in_b
        && is_row(&call.shape(c_operand), columns, call.peek(c_operand).is_some())
    {
        bias = Some(row(call, c_operand, columns)?);
        c = None;
    }
    let epilogue = ops::Epilogue::bias(bias.is_some());
    let inputs: Vec<Operand> = [a, b].into_iter().chain(bias).collect();
    let mut y = call.apply(ops::MatMul { epilogue, ..ops::MatMul::default() }, &inputs)?;
    if !alpha_is_in_b {
        y = scaled(call, y, alpha)?;
    }
    if let Some(c) = c {
        let shape = call.shape(y);
        y = call.binary(Binary::Add, y, c)?;
        if call.shape(y) != shape {
            refuse!("input 2 of shape {} does not broadcast to {shape}", call.shape(c));
        }
    }
    Ok(vec![call.cast(y, dtype)?])
}

fn scaled(call: &mut Call, x: Operand, factor: f32) -> Result<Operand, Refusal> {
    if factor == 1.0 {
        return Ok(x);
    }
    let factor = call.number(f64::from(factor), DType::F32);
    call.apply_always(ops::Binary(Binary::Mul), &[x, factor])
}

/// Whether a tensor is the same for each row of a product with so many columns.
fn is_row(shape: &Shape, columns: usize, is_known: bool) -> bool {
    let rows_are_one = shape.rank() <= 2 && (shape.rank() < 2 || shape[0] == 1);
    let last = shape.last().copied().unwrap_or(1);
    rows_are_one && (last == columns || (last == 1 && is_known))
}

/// Such a tensor as a vector.
fn row(call: &mut Call, x: Operand, columns: usize) -> Result<Operand, Refusal> {
    let last = call.shape(x).last().copied().unwrap_or(1);
    let x = call.reshape(x, Shape::from([last]))?;
    if last == columns { Ok(x) } else { call.apply_always(ops::Expand { shape: Shape::from([columns]) }, &[x]) }
}

/// Scale and zero point broadcast along one axis, in blocks there, or as they are.
fn along_axis(call: &mut Call, x: Operand, part: Operand) -> Result<Operand, Refusal> {
    let (shape, part_shape) = (call.shape(x), call.shape(part));
    if call.int_or("block_size", 0)? != 0 {
        return in_blocks(call, &shape, part);
    }
    match part_shape.rank() {
        0 => Ok(part),
        1 if part_shape[0] == 1 => call.reshape(part, Shape::scalar()),
        1 => {
            let at = axis(call.int_or("axis", 1)?, shape.rank())?;
            call.aligned(part, at, shape.rank())
        }
        _ => refuse!("scales of shape {part_shape} without `block_size` are not supported"),
    }
}

/// One number for each block along an axis, repeated for each element.
fn in_blocks(call: &mut Call, shape: &Shape, part: Operand) -> Result<Operand, Refusal> {
    let at = axis(call.int_or("axis", 1)?, shape.rank())?;
    let block = counts(&[call.int_or("block_size", 0)?], "block_size")?[0];
    let mut blocks = shape.clone();
    blocks[at] = shape[at].div_ceil(block);
    if call.shape(part) != blocks {
        refuse!("scales of shape {} are not those of blocks of {block} along axis {at} of {shape}", call.shape(part));
    }
    let mut spread = blocks.clone();
    spread.insert(at + 1, 1);
    let part = call.reshape(part, spread.clone())?;
    spread[at + 1] = block;
    let part = call.expand(part, spread)?;
    blocks[at] = blocks[at].saturating_mul(block);
    let part = call.reshape(part, blocks.clone())?;
    // The last block may hang over.
    if blocks == *shape { Ok(part) } else { call.apply(ops::Slice::range(&blocks, at, 0, shape[at]), &[part]) }
}

pub(super) fn dequantize(call: &mut Call) -> Yield {
    call.ignore(&["axis", "block_size"]);
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let zero = match call.optional(2) {
        Some(zero) => Some(along_axis(call, x, zero)?),
        None => None,
    };
    let scale = along_axis(call, x, scale)?;
    Ok(vec![dequantized(call, x, scale, zero)?])
}

/// `(x - zero) * scale`, both broadcast over `x`.
pub(super) fn dequantized(
    call: &mut Call,
    x: Operand,
    scale: Operand,
    zero: Option<Operand>,
) -> Result<Operand, Refusal> {
    use DType::{I8, I16, I32, U8, U16};
    if !matches!(call.dtype(x), I8 | U8 | I16 | U16 | I32) || call.dtype(scale) != DType::F32 {
        refuse!("{} with scales of {} is not supported", call.dtype(x), call.dtype(scale));
    }
    // Weights in bytes stay so until it is known whether some kernel multiplies them as they are.
    let mut y = match call.peek(x).is_some() && matches!(call.dtype(x), I8 | U8) && 1 < call.shape(x).rank() {
        true => call.apply_all(ops::Cast { to: DType::F32 }, &[x])?.swap_remove(0),
        false => call.cast(x, DType::F32)?,
    };
    if let Some(zero) = zero {
        let zero = call.cast(zero, DType::F32)?;
        y = call.binary(Binary::Sub, y, zero)?;
    }
    call.binary(Binary::Mul, y, scale)
}

pub(super) fn quantize(call: &mut Call) -> Yield {
    call.ignore(&["axis", "saturate"]);
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let declared = if call.int_or("output_dtype", 0)? == 0 { None } else { call.dtype_attribute("output_dtype")? };
    let dtype = call.optional(2).map(|zero| call.dtype(zero)).or(declared).unwrap_or(DType::U8);
    if declared.is_some_and(|declared| declared != dtype) {
        refuse!("attribute `output_dtype` is not {dtype}, the zero point's dtype");
    }
    let scale = along_axis(call, x, scale)?;
    let zero = match call.optional(2) {
        Some(zero) => Some(along_axis(call, x, zero)?),
        None => None,
    };
    Ok(vec![quantized(call, x, scale, zero, dtype)?])
}

/// `x / scale` rounded, moved by the zero point, and within what `dtype` holds; scale and zero broadcast over `x`.
pub(super) fn quantized(
    call: &mut Call,
    x: Operand,
    scale: Operand,
    zero: Option<Operand>,
    dtype: DType,
) -> Result<Operand, Refusal> {
    let (min, max) = match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::I16 => (-32_768.0, 32_767.0),
        DType::U16 => (0.0, 65_535.0),
        other => refuse!("quantizing to {other} is not supported"),
    };
    if call.dtype(x) != DType::F32 || call.dtype(scale) != DType::F32 {
        refuse!("{} with scales of {} is not supported", call.dtype(x), call.dtype(scale));
    }
    let mut y = call.binary(Binary::Div, x, scale)?;
    y = call.unary(Unary::Round, y)?;
    if let Some(zero) = zero {
        let zero = call.cast(zero, DType::F32)?;
        y = call.binary(Binary::Add, y, zero)?;
    }
    y = call.unary(Unary::Clip { min, max }, y)?;
    call.cast(y, dtype)
}

/// The determinant of small matrices, by its first row.
pub(super) fn det(call: &mut Call) -> Yield {
    const LARGEST: usize = 4;
    let x = call.input(0)?;
    let shape = call.shape(x);
    let &[ref outer @ .., rows, columns] = &shape[..] else { refuse!("input {shape} is no matrix") };
    if rows != columns || rows == 0 || LARGEST < rows {
        refuse!("matrices of {rows} by {columns} are not supported; square ones up to {LARGEST} by {LARGEST} are");
    }
    let outer = Shape::from(outer);
    let mut cells = Vec::new();
    for row in 0..rows {
        let line = call.apply(ops::Slice::range(&shape, shape.rank() - 2, row, 1), &[x])?;
        let line_shape = call.shape(line);
        for column in 0..columns {
            let cell = call.apply(ops::Slice::range(&line_shape, shape.rank() - 1, column, 1), &[line])?;
            cells.push(call.reshape(cell, outer.clone())?);
        }
    }
    let all: Vec<usize> = (0..columns).collect();
    Ok(vec![minor(call, &cells, columns, 0, &all)?])
}

/// The determinant of the rows from `row` on and some columns.
fn minor(call: &mut Call, cells: &[Operand], width: usize, row: usize, columns: &[usize]) -> Result<Operand, Refusal> {
    let cell = |column: usize| cells[row * width + column];
    let mut sum = None;
    for (ix, &column) in columns.iter().enumerate() {
        let rest: Vec<usize> = columns.iter().copied().filter(|&other| other != column).collect();
        let part = match rest.is_empty() {
            true => cell(column),
            false => {
                let inner = minor(call, cells, width, row + 1, &rest)?;
                call.binary(Binary::Mul, cell(column), inner)?
            }
        };
        sum = Some(match sum {
            None => part,
            Some(sum) if ix % 2 == 1 => call.binary(Binary::Sub, sum, part)?,
            Some(sum) => call.binary(Binary::Add, sum, part)?,
        });
    }
    sum.ok_or_else(|| Refusal("a matrix has columns".into()))
}
