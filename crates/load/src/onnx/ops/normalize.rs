//! Normalisations and softmax.

use ir::Refusal;
use ir::ops::{BatchNorm, Lrn, ReduceKind, Softmax};
use types::Shape;
use types::pointwise::{Binary, Unary};

use crate::build::{Operand, Standard, axes, axis, counts, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

pub(super) fn softmax(call: &mut Call) -> Yield {
    exponentials(call, false)
}

pub(super) fn log_softmax(call: &mut Call) -> Yield {
    exponentials(call, true)
}

/// Before opset 13 everything from `axis` on sums to one together.
fn exponentials(call: &mut Call, log: bool) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    if 13 <= call.opset() {
        let axis = axis(call.int_or("axis", -1)?, shape.rank())?;
        return Ok(vec![call.apply_f32(Softmax { axis, log }, &[x])?]);
    }
    let axis = flat_axis(call, &shape)?;
    let tail = &shape[axis..];
    // One long dimension needs no reshaping.
    if let Some(long) = (0..tail.len()).find(|&ix| (0..tail.len()).all(|other| other == ix || tail[other] == 1)) {
        return Ok(vec![call.apply_f32(Softmax { axis: axis + long, log }, &[x])?]);
    }
    let flat = Shape::from([shape[..axis].iter().product(), shape[axis..].iter().product()]);
    let x = call.reshape(x, flat)?;
    let y = call.apply_f32(Softmax { axis: 1, log }, &[x])?;
    Ok(vec![call.reshape(y, shape)?])
}

/// The axis at which opsets before 13 cut a tensor into a matrix; it may be the rank.
pub(super) fn flat_axis(call: &Call, shape: &Shape) -> Result<usize, Refusal> {
    match call.int_or("axis", 1)? {
        at if at == shape.rank() as i64 => Ok(shape.rank()),
        at => axis(at, shape.rank()),
    }
}

pub(super) fn batch(call: &mut Call) -> Yield {
    let epsilon = call.float_or("epsilon", 1e-5)?;
    call.ignore(&["momentum", "is_test"]);
    if call.int_or("spatial", 1)? != 1 {
        refuse!("attribute `spatial` is 0: statistics for each cell are not supported");
    }
    if call.flag("training_mode")? || (1..5).any(|ix| call.wants(ix)) {
        refuse!("training mode is not supported; export the model for inference");
    }
    let inputs: Vec<Operand> = (0..5).map(|ix| call.input(ix)).collect::<Result<_, _>>()?;
    Ok(vec![call.apply_f32(BatchNorm { epsilon }, &inputs)?])
}

pub(super) fn lrn(call: &mut Call) -> Yield {
    let alpha = call.float_or("alpha", 1e-4)?;
    let beta = call.float_or("beta", 0.75)?;
    let bias = call.float_or("bias", 1.0)?;
    let Some(size) = call.int("size")? else { refuse!("attribute `size` is missing") };
    let size = match size {
        1..=65_536 => size as usize,
        _ => refuse!("attribute `size` is {size}"),
    };
    Ok(vec![call.apply_f32(Lrn { size, alpha, beta, bias }, &[call.input(0)?])?])
}

pub(super) fn instance(call: &mut Call) -> Yield {
    let (x, scale, shift) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let epsilon = call.float_or("epsilon", 1e-5)?;
    let axes = (2..call.shape(x).rank()).collect();
    let y = call.standardize(x, axes, epsilon)?.y;
    Ok(vec![call.scale_shift(y, [scale, shift], 1)?])
}

pub(super) fn layer(call: &mut Call) -> Yield {
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let epsilon = call.float_or("epsilon", 1e-5)?;
    // The statistics' dtype; here they have the input's.
    call.ignore(&["stash_type"]);
    let rank = call.shape(x).rank();
    let first = axis(call.int_or("axis", -1)?, rank)?;
    let dtype = call.dtype(x);
    let (widened, _) = call.widen(&[x, scale])?;
    let Standard { mut y, mean, inverse } = call.standardize(widened[0], (first..rank).collect(), epsilon)?;
    y = call.binary(Binary::Mul, y, widened[1])?;
    if let Some(shift) = call.optional(2) {
        let (shift, _) = call.widen(&[shift])?;
        y = call.binary(Binary::Add, y, shift[0])?;
    }
    Ok(vec![call.cast(y, dtype)?, mean, inverse])
}

/// Scale and shift are given for each group before opset 21, for each channel from then on.
pub(super) fn group(call: &mut Call) -> Yield {
    let (x, scale, shift) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let epsilon = call.float_or("epsilon", 1e-5)?;
    call.ignore(&["stash_type"]);
    let shape = call.shape(x);
    let Some(groups) = call.int("num_groups")? else { refuse!("attribute `num_groups` is missing") };
    let groups = counts(&[groups], "num_groups")?[0];
    if shape.rank() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) || shape.elements() == 0 {
        refuse!("input {shape} does not fall into {groups} groups of channels");
    }
    let grouped = Shape::from([shape[0], groups, shape.elements() / shape[0] / groups]);
    let x = call.reshape(x, grouped)?;
    let mut y = call.standardize(x, [2].into_iter().collect(), epsilon)?.y;
    if call.opset() < 21 {
        y = call.scale_shift(y, [scale, shift], 1)?;
        return Ok(vec![call.reshape(y, shape)?]);
    }
    y = call.reshape(y, shape)?;
    Ok(vec![call.scale_shift(y, [scale, shift], 1)?])
}

pub(super) fn mean_variance(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let list = call.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes(&list, rank)?;
    // The root of the variance plus this, in ONNX's own definition.
    let dtype = call.dtype(x);
    let mean = call.reduce(ReduceKind::Mean, x, axes.clone(), true)?;
    let centred = call.binary(Binary::Sub, x, mean)?;
    let squares = call.binary(Binary::Mul, centred, centred)?;
    let variance = call.reduce(ReduceKind::Mean, squares, axes, true)?;
    let deviation = call.unary(Unary::Sqrt, variance)?;
    let epsilon = call.number(1e-9, dtype);
    let deviation = call.binary(Binary::Add, deviation, epsilon)?;
    Ok(vec![call.binary(Binary::Div, centred, deviation)?])
}

pub(super) fn lp(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let kind = match call.int_or("p", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        p => refuse!("attribute `p` is {p}; 1 and 2 are supported"),
    };
    let axis = axis(call.int_or("axis", -1)?, call.shape(x).rank())?;
    let norm = call.reduce(kind, x, [axis].into_iter().collect(), true)?;
    Ok(vec![call.binary(Binary::Div, x, norm)?])
}
