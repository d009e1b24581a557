//! Normalisations and softmax.

use ir::Refusal;
use ir::ops::{BatchNorm, Lrn, ReduceKind, Softmax};
use types::Shape;
use types::pointwise::{Binary, Unary};

use crate::common::{Operand, Standard, axes, axis, counts, refuse};
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
    call.ignore(&["is_test"]);
    let momentum = call.float_or("momentum", 0.9)?;
    if call.int_or("spatial", 1)? != 1 {
        refuse!("attribute `spatial` is 0: statistics for each cell are not supported");
    }
    let inputs: Vec<Operand> = (0..5).map(|ix| call.input(ix)).collect::<Result<_, _>>()?;
    if call.flag("training_mode")? {
        return batch_in_training(call, &inputs, epsilon, momentum);
    }
    if (1..5).any(|ix| call.wants(ix)) {
        refuse!("training mode before opset 14 is not supported; export the model for inference");
    }
    Ok(vec![call.apply_f32(BatchNorm { epsilon }, &inputs)?])
}

/// Normalised by the batch's own mean and variance, which then move those of the file a little.
fn batch_in_training(call: &mut Call, inputs: &[Operand], epsilon: f32, momentum: f32) -> Yield {
    let dtypes: Vec<_> = inputs.iter().map(|&input| call.dtype(input)).collect();
    let (inputs, _) = call.widen(inputs)?;
    let shape = call.shape(inputs[0]);
    if shape.rank() < 2 || shape.elements() == 0 {
        refuse!("input {shape} has no channels");
    }
    let axes = (0..shape.rank()).filter(|&axis| axis != 1).collect();
    let Standard { y, mean, variance, .. } = call.standardize(inputs[0], axes, epsilon)?;
    let y = call.scale_shift(y, [inputs[1], inputs[2]], 1)?;
    let mut yielded = vec![call.cast(y, dtypes[0])?];
    for (ix, statistic) in [(3, mean), (4, variance)] {
        let (dtype, channels) = (call.dtype(inputs[ix]), call.shape(inputs[ix]));
        let statistic = call.reshape(statistic, channels)?;
        let (old, new) = (call.number(f64::from(momentum), dtype), call.number(1.0 - f64::from(momentum), dtype));
        let old = call.binary(Binary::Mul, inputs[ix], old)?;
        let new = call.binary(Binary::Mul, statistic, new)?;
        let moved = call.binary(Binary::Add, old, new)?;
        yielded.push(call.cast(moved, dtypes[ix])?);
    }
    Ok(yielded)
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
    let Standard { mut y, mean, inverse, .. } = call.standardize(widened[0], (first..rank).collect(), epsilon)?;
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
