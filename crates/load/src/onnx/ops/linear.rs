//! Matrix products, quantization, determinants.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Vectors become matrices of one row or column, which is removed from the result.
pub(super) fn mat_mul(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (a_shape, b_shape) = (node.shape(a), node.shape(b));
    if a_shape.rank() == 0 || b_shape.rank() == 0 {
        refuse!("operands must have rank >= 1, got {a_shape} and {b_shape}");
    }
    let row = if a_shape.rank() == 1 { node.reshape(a, Shape::from([1, a_shape[0]]))? } else { a };
    let column = if b_shape.rank() == 1 { node.reshape(b, Shape::from([b_shape[0], 1]))? } else { b };
    let mut y = node.mat_mul(row, column)?;
    let mut shape = node.shape(y);
    if b_shape.rank() == 1 {
        shape.remove(shape.rank() - 1);
    }
    if a_shape.rank() == 1 {
        let at = shape.rank() - if b_shape.rank() == 1 { 1 } else { 2 };
        shape.remove(at);
    }
    y = node.reshape(y, shape)?;
    Ok(vec![y])
}

/// `alpha A B + beta C`. Transposes and factors of constant operands are folded.
pub(super) fn gemm(node: &mut ImportedNode) -> NodeResult {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (alpha, beta) = (node.float_or("alpha", 1.0)?, node.float_or("beta", 1.0)?);
    let (trans_a, trans_b) = (node.flag("transA")?, node.flag("transB")?);
    // Up to opset 6 this allows `C` to be broadcast.
    node.ignore(&["broadcast"]);
    if node.shape(a).rank() != 2 || node.shape(b).rank() != 2 {
        refuse!("operands must be matrices, got {} and {}", node.shape(a), node.shape(b));
    }
    let (inputs, dtype) = node.widen(&[a, b])?;
    if node.dtype(inputs[0]) != DType::F32 {
        refuse!("dtype must be f32, got {dtype}");
    }
    let a = if trans_a { node.transpose(inputs[0], &[1, 0])? } else { inputs[0] };
    let mut b = if trans_b { node.transpose(inputs[1], &[1, 0])? } else { inputs[1] };
    let mut c = match node.optional(2).filter(|_| beta != 0.0) {
        Some(c) => {
            let (c, _) = node.widen(&[c])?;
            Some(scaled(node, c[0], beta)?)
        }
        None => None,
    };
    let alpha_is_in_b = alpha == 1.0 || node.constant_value(b).is_some();
    if alpha_is_in_b {
        b = scaled(node, b, alpha)?;
    }
    let (columns, mut bias) = (node.shape(b)[1], None);
    if let Some(c_operand) = c
        && alpha_is_in_b
        && is_row(&node.shape(c_operand), columns, node.constant_value(c_operand).is_some())
    {
        bias = Some(row(node, c_operand, columns)?);
        c = None;
    }
    let epilogue = ops::Epilogue::bias(bias.is_some());
    let inputs: Vec<Operand> = [a, b].into_iter().chain(bias).collect();
    let mut y = node.apply(ops::MatMul { epilogue, ..ops::MatMul::default() }, &inputs)?;
    if !alpha_is_in_b {
        y = scaled(node, y, alpha)?;
    }
    if let Some(c) = c {
        let shape = node.shape(y);
        y = node.binary(Binary::Add, y, c)?;
        if node.shape(y) != shape {
            refuse!("input 2 must broadcast to {shape}, got {}", node.shape(c));
        }
    }
    Ok(vec![node.cast(y, dtype)?])
}

fn scaled(node: &mut ImportedNode, x: Operand, factor: f32) -> Result<Operand, Refusal> {
    if factor == 1.0 {
        return Ok(x);
    }
    let factor = node.number(f64::from(factor), DType::F32);
    node.apply_folded(ops::Binary(Binary::Mul), &[x, factor])
}

/// Whether a tensor is equal for all rows of a product with `columns` columns.
fn is_row(shape: &Shape, columns: usize, is_constant: bool) -> bool {
    let rows_are_one = shape.rank() <= 2 && (shape.rank() < 2 || shape[0] == 1);
    let last = shape.last().copied().unwrap_or(1);
    rows_are_one && (last == columns || (last == 1 && is_constant))
}

/// That tensor as a vector.
fn row(node: &mut ImportedNode, x: Operand, columns: usize) -> Result<Operand, Refusal> {
    let last = node.shape(x).last().copied().unwrap_or(1);
    let x = node.reshape(x, Shape::from([last]))?;
    if last == columns { Ok(x) } else { node.apply_folded(ops::Expand { shape: Shape::from([columns]) }, &[x]) }
}

/// Scale or zero point per tensor, per axis, or per block of an axis.
fn along_axis(node: &mut ImportedNode, x: Operand, part: Operand) -> Result<Operand, Refusal> {
    let (shape, part_shape) = (node.shape(x), node.shape(part));
    if node.int_or("block_size", 0)? != 0 {
        return in_blocks(node, &shape, part);
    }
    match part_shape.rank() {
        0 => Ok(part),
        1 if part_shape[0] == 1 => node.reshape(part, Shape::scalar()),
        1 => {
            let at = axis(node.int_or("axis", 1)?, shape.rank())?;
            node.aligned(part, at, shape.rank())
        }
        _ => refuse!("scales must be a scalar or a vector without `block_size`, got shape {part_shape}"),
    }
}

/// One number per block along an axis, repeated for each element.
fn in_blocks(node: &mut ImportedNode, shape: &Shape, part: Operand) -> Result<Operand, Refusal> {
    let at = axis(node.int_or("axis", 1)?, shape.rank())?;
    let block = counts(&[node.int_or("block_size", 0)?], "block_size")?[0];
    let mut blocks = shape.clone();
    blocks[at] = shape[at].div_ceil(block);
    if node.shape(part) != blocks {
        refuse!("scales must fit blocks of {block} along axis {at} of {shape}, got shape {}", node.shape(part));
    }
    spread_blocks(node, part, at, block, shape[at])
}

/// Each number along axis `at` repeated `block` times, to `extent` in all: the last block may be shorter.
pub(super) fn spread_blocks(
    node: &mut ImportedNode,
    part: Operand,
    at: usize,
    block: usize,
    extent: usize,
) -> Result<Operand, Refusal> {
    let mut blocks = node.shape(part);
    if block == 1 || (blocks[at] == 1 && extent <= block) {
        // A single block broadcasts.
        return Ok(part);
    }
    let mut spread = blocks.clone();
    spread.insert(at + 1, 1);
    let part = node.reshape(part, spread.clone())?;
    spread[at + 1] = block;
    let part = node.expand(part, spread)?;
    blocks[at] = blocks[at].saturating_mul(block);
    let part = node.reshape(part, blocks.clone())?;
    if blocks[at] == extent { Ok(part) } else { node.apply(ops::Slice::range(&blocks, at, 0, extent), &[part]) }
}

/// Refuses a precision of the arithmetic other than that of the scales, the default (0).
fn precision_of(node: &ImportedNode, name: &str, scale: Operand) -> Result<(), Refusal> {
    if node.int_or(name, 0)? != 0 {
        let own = node.dtype(scale);
        match node.dtype_attribute(name)? {
            Some(dtype) if dtype != own => {
                refuse!("attribute `{name}` must be {own}, the dtype of the scales, got {dtype}")
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn dequantize(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["axis", "block_size"]);
    let (x, scale) = (node.input(0)?, node.input(1)?);
    precision_of(node, "output_dtype", scale)?;
    if node.narrow(x) != node.optional(2).map_or(node.narrow(x), |zero| node.narrow(zero)) {
        refuse!("the zero point must have the element type of the input");
    }
    let zero = match node.optional(2) {
        Some(zero) => Some(along_axis(node, x, zero)?),
        None => None,
    };
    let scale = along_axis(node, x, scale)?;
    Ok(vec![dequantized(node, x, scale, zero)?])
}

/// `(x - zero_point) * scale`, both broadcast over `x`, in `f32` and rounded to the dtype of the scale once.
pub(super) fn dequantized(
    node: &mut ImportedNode,
    x: Operand,
    scale: Operand,
    zero: Option<Operand>,
) -> Result<Operand, Refusal> {
    use DType::{Bf16, F16, F32, I8, I16, I32, U8, U16};
    // Narrow floats are read as `f32`.
    let is_quantized = matches!(node.dtype(x), I8 | U8 | I16 | U16 | I32) || node.narrow(x).is_some();
    if !is_quantized || !matches!(node.dtype(scale), F32 | F16 | Bf16) {
        refuse!("input {} with scales {} is not supported", node.dtype(x), node.dtype(scale));
    }
    // Int8 weights are not folded: passes decide whether an int8 kernel uses them.
    let mut y = match node.constant_value(x).is_some() && matches!(node.dtype(x), I8 | U8) && 1 < node.shape(x).rank() {
        true => node.apply_all(ops::Cast { to: F32 }, &[x])?.swap_remove(0),
        false => node.cast(x, F32)?,
    };
    if let Some(zero) = zero {
        let zero = node.cast(zero, F32)?;
        y = node.binary(Binary::Sub, y, zero)?;
    }
    let wide = node.cast(scale, F32)?;
    let y = node.binary(Binary::Mul, y, wide)?;
    node.cast(y, node.dtype(scale))
}

pub(super) fn quantize(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["axis", "saturate"]);
    let (x, scale) = (node.input(0)?, node.input(1)?);
    precision_of(node, "precision", scale)?;
    let declared = match (node.int_or("output_dtype", 0)?, node.narrow_attribute("output_dtype")?) {
        (0, _) => None,
        (_, Some(narrow)) => Some((narrow.dtype(), Some(narrow))),
        (_, None) => node.dtype_attribute("output_dtype")?.map(|dtype| (dtype, None)),
    };
    let zero = node.optional(2).map(|zero| (node.dtype(zero), node.narrow(zero)));
    let (dtype, narrow) = zero.or(declared).unwrap_or((DType::U8, None));
    if declared.is_some_and(|declared| declared != (dtype, narrow)) {
        refuse!("attribute `output_dtype` must be {dtype}, the dtype of the zero point");
    }
    let range = match narrow {
        Some(narrow) => match narrow.range() {
            Some([least, most]) => [f32::from(least), f32::from(most)],
            None => refuse!("quantization to {} is not supported", narrow.name()),
        },
        None => range(dtype)?,
    };
    let scale = along_axis(node, x, scale)?;
    let zero = match node.optional(2) {
        Some(zero) => Some(along_axis(node, x, zero)?),
        None => None,
    };
    let y = quantized_within(node, x, scale, zero, (dtype, range))?;
    if let Some(narrow) = narrow {
        node.mark_narrow(y, narrow);
    }
    Ok(vec![y])
}

/// The integers of a dtype that floats are quantized to.
fn range(dtype: DType) -> Result<[f32; 2], Refusal> {
    Ok(match dtype {
        DType::I8 => [-128.0, 127.0],
        DType::U8 => [0.0, 255.0],
        DType::I16 => [-32_768.0, 32_767.0],
        DType::U16 => [0.0, 65_535.0],
        other => refuse!("quantization to {other} is not supported"),
    })
}

/// `x / scale` rounded, plus the zero point, saturated to `dtype`; scale and zero point broadcast over `x`.
pub(super) fn quantized(
    node: &mut ImportedNode,
    x: Operand,
    scale: Operand,
    zero: Option<Operand>,
    dtype: DType,
) -> Result<Operand, Refusal> {
    let range = range(dtype)?;
    quantized_within(node, x, scale, zero, (dtype, range))
}

/// [`quantized`], to integers of a range. Half precision is divided in `f32`, as ONNX Runtime does.
fn quantized_within(
    node: &mut ImportedNode,
    x: Operand,
    scale: Operand,
    zero: Option<Operand>,
    (dtype, [min, max]): (DType, [f32; 2]),
) -> Result<Operand, Refusal> {
    let (wide, _) = node.widen(&[x, scale])?;
    if node.dtype(wide[0]) != DType::F32 || node.dtype(wide[1]) != DType::F32 {
        refuse!("input {} with scales {} is not supported", node.dtype(x), node.dtype(scale));
    }
    let mut y = node.binary(Binary::Div, wide[0], wide[1])?;
    y = node.unary(Unary::Round, y)?;
    if let Some(zero) = zero {
        let zero = node.cast(zero, DType::F32)?;
        y = node.binary(Binary::Add, y, zero)?;
    }
    y = node.unary(Unary::Clip { min, max }, y)?;
    node.cast(y, dtype)
}

/// The determinant of small matrices, by expansion along the first row.
pub(super) fn det(node: &mut ImportedNode) -> NodeResult {
    const LARGEST: usize = 4;
    let x = node.input(0)?;
    let shape = node.shape(x);
    let &[ref outer @ .., rows, columns] = &shape[..] else { refuse!("input must have rank >= 2, got {shape}") };
    if rows != columns || rows == 0 || LARGEST < rows {
        refuse!("matrices must be square and at most {LARGEST} x {LARGEST}, got {rows} x {columns}");
    }
    let outer = Shape::from(outer);
    let mut cells = Vec::new();
    for row in 0..rows {
        let line = node.apply(ops::Slice::range(&shape, shape.rank() - 2, row, 1), &[x])?;
        let line_shape = node.shape(line);
        for column in 0..columns {
            let cell = node.apply(ops::Slice::range(&line_shape, shape.rank() - 1, column, 1), &[line])?;
            cells.push(node.reshape(cell, outer.clone())?);
        }
    }
    let all: Vec<usize> = (0..columns).collect();
    Ok(vec![minor(node, &cells, columns, 0, &all)?])
}

/// The determinant of the rows from `row` on and of some columns.
fn minor(
    node: &mut ImportedNode,
    cells: &[Operand],
    width: usize,
    row: usize,
    columns: &[usize],
) -> Result<Operand, Refusal> {
    let cell = |column: usize| cells[row * width + column];
    let mut sum = None;
    for (ix, &column) in columns.iter().enumerate() {
        let rest: Vec<usize> = columns.iter().copied().filter(|&other| other != column).collect();
        let part = match rest.is_empty() {
            true => cell(column),
            false => {
                let inner = minor(node, cells, width, row + 1, &rest)?;
                node.binary(Binary::Mul, cell(column), inner)?
            }
        };
        sum = Some(match sum {
            None => part,
            Some(sum) if ix % 2 == 1 => node.binary(Binary::Sub, sum, part)?,
            Some(sum) => node.binary(Binary::Add, sum, part)?,
        });
    }
    sum.ok_or_else(|| Refusal("matrices must not be empty".into()))
}
