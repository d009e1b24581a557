//! Operators of domain `com.microsoft` on weights of few bits, which have a scale for each block: `MatMulNBits`,
//! `MatMulBnb4` and `GatherBlockQuantized`. Source: onnxruntime, docs/ContribOperators.md.
//!
//! The weights of products are decoded to `f32` while loading: four bytes for each, whatever their bits in the file. Rows of
//! tables are decoded after they are gathered, so that a table keeps its bits.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor};

use super::linear;
use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Rows of unsigned numbers of 2, 4 or 8 bits. Each row begins at a byte, lowest bits first.
struct Codes<'t> {
    bytes: &'t [u8],
    bits: usize,
    row_bytes: usize,
}

impl<'t> Codes<'t> {
    /// `rows` of `count` numbers each; the bytes may have any shape.
    fn new(tensor: &'t Tensor, name: &str, bits: usize, [rows, count]: [usize; 2]) -> Result<Codes<'t>, Refusal> {
        let row_bytes = count.saturating_mul(bits).div_ceil(8);
        match tensor.as_slice::<u8>() {
            Some(bytes) if bytes.len() == rows.saturating_mul(row_bytes) => Ok(Codes { bytes, bits, row_bytes }),
            _ => refuse!(
                "`{name}` must be u8 with {rows} rows of {row_bytes} bytes, got {} {}",
                tensor.dtype(),
                tensor.shape()
            ),
        }
    }

    fn at(&self, row: usize, ix: usize) -> u8 {
        let bit = ix * self.bits;
        let mask = (0xff_u32 >> (8 - self.bits)) as u8;
        self.bytes[row * self.row_bytes + bit / 8] >> (bit % 8) & mask
    }
}

/// Attribute `bits`: 2, 4 or 8.
fn bits(node: &ImportedNode) -> Result<usize, Refusal> {
    match node.int_or("bits", 4)? {
        bits @ (2 | 4 | 8) => Ok(bits as usize),
        bits => refuse!("attribute `bits` must be 2, 4 or 8, got {bits}"),
    }
}

/// Attribute `block_size`: a power of 2 from 16 on.
fn block_size(node: &ImportedNode, default: Option<i64>) -> Result<usize, Refusal> {
    let Some(size) = node.int("block_size")?.or(default) else { refuse!("attribute `block_size` is missing") };
    match usize::try_from(size) {
        Ok(size) if (16..=1 << 40).contains(&size) && size.is_power_of_two() => Ok(size),
        _ => refuse!("attribute `block_size` must be a power of 2 and at least 16, got {size}"),
    }
}

/// Attributes `K` and `N`: terms and columns of the product.
fn extents(node: &ImportedNode) -> Result<[usize; 2], Refusal> {
    let mut extents = [0; 2];
    for (extent, name) in extents.iter_mut().zip(["K", "N"]) {
        let Some(given) = node.int(name)? else { refuse!("attribute `{name}` is missing") };
        *extent = counts(&[given], name)?[0];
        if *extent == 0 {
            refuse!("attribute `{name}` must be at least 1, got 0");
        }
    }
    Ok(extents)
}

/// The elements of operand `ix`, which must be constant and have this many of them, as `f32`.
fn numbers(node: &ImportedNode, ix: usize, name: &str, count: usize) -> Result<Vec<f32>, Refusal> {
    let tensor = node.constant_input(ix, name)?;
    if !tensor.dtype().is_float() || tensor.elements() != count {
        refuse!("`{name}` must have {count} floats, got {} {}", tensor.dtype(), tensor.shape());
    }
    Ok(tensor.to_f64().into_iter().map(|number| number as f32).collect())
}

/// The matrix `[rows, columns]` of these elements, which are computed in tiles of columns: neighbors along a column are
/// neighbors in the file.
fn in_tiles(
    node: &mut ImportedNode,
    [rows, columns]: [usize; 2],
    item: impl Fn(usize, usize) -> f32,
) -> Result<Tensor, Refusal> {
    const TILE: usize = 64;
    let shape = Shape::from([rows, columns]);
    ir::TensorType::new(DType::F32, shape.clone()).check_size()?;
    node.reserve(DType::F32, &shape)?;
    let mut items = vec![0.0f32; rows * columns];
    for first in (0..columns).step_by(TILE) {
        for (row, line) in items.chunks_exact_mut(columns).enumerate() {
            let last = columns.min(first + TILE);
            line[first..last].iter_mut().zip(first..).for_each(|(place, column)| *place = item(row, column));
        }
    }
    Tensor::new(shape, items).map_err(|error| Refusal(error.to_string()))
}

/// `x b + bias`, in `f32` and rounded to the dtype of `x` once. `x: [.., k]`, `b: [k, n]`.
fn product(node: &mut ImportedNode, x: Operand, b: Operand, bias: Option<Operand>) -> NodeResult {
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let [terms, columns] = node.shape(b)[..] else { refuse!("weights must be a matrix, got {}", node.shape(b)) };
    if shape.rank() == 0 || shape[shape.rank() - 1] != terms {
        refuse!("the last axis of `A` must have {terms} elements, got {shape}");
    }
    let rows = if shape.rank() == 1 { node.reshape(x, Shape::from([1, terms]))? } else { x };
    let wide = node.cast(rows, DType::F32)?;
    let mut y = node.mat_mul(wide, b)?;
    if let Some(bias) = bias {
        if node.shape(bias)[..] != [columns] {
            refuse!("`bias` must have shape [{columns}], got {}", node.shape(bias));
        }
        let bias = node.cast(bias, DType::F32)?;
        y = node.binary(Binary::Add, y, bias)?;
    }
    let y = node.cast(y, dtype)?;
    let out = shape[..shape.rank() - 1].iter().copied().chain([columns]).collect();
    Ok(vec![node.reshape(y, out)?])
}

/// `MatMulNBits`: `A: [.., K]` times the transpose of `[N, K]` numbers of `bits` bits, each minus its block's zero point and
/// times its block's scale; `B: [N, blocks, bytes]`, `scales: [N, blocks]`, and optionally zero points in bits of the same
/// size or in floats, the block of each term (`g_idx`) and a bias `[N]`. The weights must be constant.
///
/// A `B` without elements is a matrix of zeros. Attribute `accuracy_level` permits less precision, which is not used.
pub(super) fn mat_mul(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["accuracy_level"]);
    if node.int_or("weight_prepacked", 0)? != 0 {
        refuse!("attribute `weight_prepacked` must be 0: other forms are those of one GPU's kernels");
    }
    let (bits, [terms, columns], block) = (bits(node)?, extents(node)?, block_size(node, None)?);
    let x = node.input(0)?;
    let bias = node.optional(5);
    let shape = node.shape(node.input(1)?);
    if shape.elements() == 0 {
        let nothing = node.constant_of([1, 1], |_| 0.0f32)?;
        let nothing = node.expand(nothing, Shape::from([terms, columns]))?;
        return product(node, x, nothing, bias);
    }
    let packed = node.constant_input(1, "B")?;
    let blocks = terms.div_ceil(block);
    let codes = Codes::new(&packed, "B", bits, [columns, blocks.saturating_mul(block)])?;
    let scales = numbers(node, 2, "scales", columns * blocks)?;
    let zeros: Vec<f32> = match node.optional(3) {
        None => vec![(1 << (bits - 1)) as f32],
        Some(zeros) if node.dtype(zeros) != DType::U8 => numbers(node, 3, "zero_points", columns * blocks)?,
        Some(_) => {
            let packed = node.constant_input(3, "zero_points")?;
            let codes = Codes::new(&packed, "zero_points", bits, [columns, blocks])?;
            (0..columns * blocks).map(|at| f32::from(codes.at(at / blocks, at % blocks))).collect()
        }
    };
    let block_of: Vec<usize> = match node.optional(4) {
        None => (0..terms).map(|term| term / block).collect(),
        Some(_) => {
            // Some files have an entry for each term of the last block's padding as well.
            let given = node.constant_ints(4, "g_idx")?;
            if given.len() != terms && given.len() != blocks * block {
                refuse!("`g_idx` must have {terms} numbers, got {}", given.len());
            }
            given[..terms]
                .iter()
                .map(|&at| match usize::try_from(at) {
                    Ok(at) if at < blocks => Ok(at),
                    _ => refuse!("numbers of `g_idx` must be in 0..{blocks}, got {at}"),
                })
                .collect::<Result<_, _>>()?
        }
    };
    let weights = in_tiles(node, [terms, columns], |term, column| {
        let at = column * blocks + block_of[term];
        (f32::from(codes.at(column, term)) - zeros[at % zeros.len()]) * scales[at]
    })?;
    let weights = node.constant_of_file(weights);
    product(node, x, weights, bias)
}

/// The numbers of 4-bit floats, and of quantiles of the normal distribution (Dettmers et al. 2023, QLoRA).
const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_4,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_4,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `MatMulBnb4`: `A: [.., K]` times the transpose of `[N, K]` numbers of a table with 16 entries, times the scale of their
/// block; `B` has two numbers a byte, the first in the high bits, and blocks go on from row to row. With `transB` 0, `A` is
/// `[.., N]` and the matrix is not transposed. The weights must be constant.
pub(super) fn mat_mul_bnb4(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["training_mode"]);
    let ([terms, columns], block) = (extents(node)?, block_size(node, None)?);
    let table = match node.int("quant_type")? {
        Some(0) => FP4,
        Some(1) => NF4,
        other => refuse!("attribute `quant_type` must be 0 (FP4) or 1 (NF4), got {}", other.unwrap_or(-1)),
    };
    let is_transposed = node.int_or("transB", 1)? != 0;
    let count = terms.saturating_mul(columns);
    let packed = node.constant_input(1, "B")?;
    let bytes = match packed.as_slice::<u8>() {
        Some(bytes) if bytes.len() == count.div_ceil(2) => bytes,
        _ => refuse!("`B` must be u8 with {} elements, got {} {}", count.div_ceil(2), packed.dtype(), packed.shape()),
    };
    let scales = numbers(node, 2, "absmax", count.div_ceil(block))?;
    let item = |term: usize, column: usize| {
        let at = column * terms + term;
        let code = bytes[at / 2] >> (if at.is_multiple_of(2) { 4 } else { 0 }) & 15;
        table[usize::from(code)] * scales[at / block]
    };
    let weights = match is_transposed {
        true => in_tiles(node, [terms, columns], item)?,
        false => in_tiles(node, [columns, terms], |column, term| item(term, column))?,
    };
    let weights = node.constant_of_file(weights);
    product(node, node.input(0)?, weights, None)
}

/// `GatherBlockQuantized`: slices of a table along `gather_axis`, each number minus its block's zero point and times its
/// block's scale; blocks are along `quantize_axis`. An index outside of the table gives zeros. A table of `u8` has `bits` for
/// each number, low bits first along the last axis; one of 4-bit integers has been read to a byte each.
pub(super) fn gather(node: &mut ImportedNode) -> NodeResult {
    let (table, index, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let shape = node.shape(table);
    let rank = shape.rank();
    let gathered = axis(node.int_or("gather_axis", 0)?, rank)?;
    let along = axis(node.int_or("quantize_axis", 1)?, rank)?;
    let block = block_size(node, Some(128))?;
    let narrow = node.narrow(table);
    let bits = match (node.dtype(table), narrow) {
        (_, Some(_)) => {
            node.ignore(&["bits"]);
            8
        }
        (DType::U8, None) => bits(node)?,
        (dtype, None) => refuse!("the table must be of u8 or 4-bit integers, got {dtype}"),
    };
    if !node.dtype(scales).is_float() || !matches!(node.dtype(table), DType::U8 | DType::I8) {
        refuse!("a table of {} with scales {} is not supported", node.dtype(table), node.dtype(scales));
    }
    if bits < 8 && (gathered + 1 == rank || along == gathered) {
        refuse!(
            "axes of rows and of blocks must differ for numbers of {bits} bits, and rows must not be along the last"
        );
    }
    // Numbers along each axis.
    let per_byte = 8 / bits;
    let mut wide = shape.clone();
    wide[rank - 1] = wide[rank - 1].saturating_mul(per_byte);
    let mut blocks = wide.clone();
    blocks[along] = wide[along].div_ceil(block);
    if node.shape(scales) != blocks {
        refuse!("scales must have the shape {blocks}, got {}", node.shape(scales));
    }
    let extent = shape[gathered];
    let index = node.wrap_negative(index, extent)?;
    let (zero, end) = (node.number(0.0, DType::I64), node.number(extent as f64, DType::I64));
    let is_after = node.compare(Compare::GreaterOrEqual, index, zero)?;
    let is_before = node.compare(Compare::Less, index, end)?;
    let is_inside = node.binary(Binary::And, is_after, is_before)?;
    let inner = node.clamp_index(index, extent)?;
    let places = node.shape(index);
    let of_block = match along == gathered {
        true => {
            let block = node.number(block as f64, DType::I64);
            node.binary(Binary::Div, inner, block)?
        }
        false => inner,
    };
    // Gathered slices have the axes of the index in the place of the gathered axis.
    let taken = |node: &mut ImportedNode, x: Operand, at: Operand| node.apply(ops::Gather { axis: gathered }, &[x, at]);
    let replaced = |extents: &Shape| -> Shape {
        extents[..gathered].iter().chain(places.iter()).chain(&extents[gathered + 1..]).copied().collect()
    };
    let out = replaced(&wide);
    let codes = taken(node, table, inner)?;
    let codes = unpacked(node, codes, bits, out[..].last().copied().unwrap_or(1))?;
    let scale = taken(node, scales, of_block)?;
    let zero = match (node.optional(3), narrow) {
        (Some(zeros), _) => {
            let zeros = taken(node, zeros, of_block)?;
            let columns = replaced(&blocks)[..].last().copied().unwrap_or(1);
            let zeros = unpacked(node, zeros, bits, columns)?;
            Some(node.cast(zeros, DType::F32)?)
        }
        (None, Some(_)) => None,
        (None, None) => Some(node.number(f64::from(1 << (bits - 1)), DType::F32)),
    };
    let dtype = node.dtype(scales);
    let mut y = node.cast(codes, DType::F32)?;
    let scale = node.cast(scale, DType::F32)?;
    let spread = |node: &mut ImportedNode, part: Operand| {
        // One number for all, or one for each gathered slice.
        if node.shape(part).rank() == 0 || along == gathered {
            return Ok(part);
        }
        let at = if along < gathered { along } else { along + places.rank() - 1 };
        linear::spread_blocks(node, part, at, block, out[at])
    };
    if let Some(zero) = zero {
        let zero = spread(node, zero)?;
        y = node.binary(Binary::Sub, y, zero)?;
    }
    let scale = spread(node, scale)?;
    y = node.binary(Binary::Mul, y, scale)?;
    let mask = places.iter().copied().chain(std::iter::repeat_n(1, rank - 1 - gathered)).collect();
    let mask = node.reshape(is_inside, mask)?;
    let nothing = node.number(0.0, DType::F32);
    y = node.select(mask, y, nothing)?;
    Ok(vec![node.cast(y, dtype)?])
}

/// Numbers of `bits` bits along the last axis of bytes, low bits first; `count` of them.
fn unpacked(node: &mut ImportedNode, x: Operand, bits: usize, count: usize) -> Result<Operand, Refusal> {
    if bits == 8 {
        return Ok(x);
    }
    let mut shape = node.shape(x);
    let last = shape.rank() - 1;
    let per_byte = 8 / bits;
    if node.dtype(x) != DType::U8 || shape[last] != count.div_ceil(per_byte) {
        refuse!("{count} numbers of {bits} bits must be in u8, got {} {shape}", node.dtype(x));
    }
    shape.push(1);
    let x = node.reshape(x, shape.clone())?;
    let shifts = node.constant_of([per_byte], |at| (at * bits) as u8)?;
    let mask = node.number(f64::from((1 << bits) - 1), DType::U8);
    let x = node.binary(Binary::ShiftRight, x, shifts)?;
    let x = node.binary(Binary::And, x, mask)?;
    shape.remove(last + 1);
    shape[last] *= per_byte;
    let x = node.reshape(x, shape.clone())?;
    if shape[last] == count { Ok(x) } else { node.apply(ops::Slice::range(&shape, last, 0, count), &[x]) }
}
