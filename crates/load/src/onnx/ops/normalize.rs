//! Normalization and softmax.

use ir::ops::{Lrn, ReduceKind};
use ir::{Moving, Refusal};
use types::Shape;
use types::pointwise::{Binary, Compare, Unary};

use crate::common::{NodeResult, Normalized, Operand, axes, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

pub(super) fn softmax(node: &mut ImportedNode) -> NodeResult {
    exponentials(node, false)
}

pub(super) fn log_softmax(node: &mut ImportedNode) -> NodeResult {
    exponentials(node, true)
}

/// Before opset 13 the axes from `axis` on are flattened.
fn exponentials(node: &mut ImportedNode, log: bool) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if 13 <= node.opset() {
        let axis = axis(node.int_or("axis", -1)?, shape.rank())?;
        return Ok(vec![node.softmax(x, axis, log)?]);
    }
    let axis = flat_axis(node, &shape)?;
    let tail = &shape[axis..];
    // A single long axis needs no reshape.
    if let Some(long) = (0..tail.len()).find(|&ix| (0..tail.len()).all(|other| other == ix || tail[other] == 1)) {
        return Ok(vec![node.softmax(x, axis + long, log)?]);
    }
    let flat = Shape::from([shape[..axis].iter().product(), shape[axis..].iter().product()]);
    let x = node.reshape(x, flat)?;
    let y = node.softmax(x, 1, log)?;
    Ok(vec![node.reshape(y, shape)?])
}

/// The axis at which opsets before 13 flatten a tensor to a matrix; it may be the rank.
pub(super) fn flat_axis(node: &ImportedNode, shape: &Shape) -> Result<usize, Refusal> {
    match node.int_or("axis", 1)? {
        at if at == shape.rank() as i64 => Ok(shape.rank()),
        at => axis(at, shape.rank()),
    }
}

pub(super) fn batch(node: &mut ImportedNode) -> NodeResult {
    let epsilon = node.float_or("epsilon", 1e-5)?;
    node.ignore(&["is_test"]);
    let momentum = node.float_or("momentum", 0.9)?;
    if node.int_or("spatial", 1)? != 1 {
        refuse!("attribute `spatial` must be 1: statistics per cell are not supported");
    }
    let inputs: Vec<Operand> = (0..5).map(|ix| node.input(ix)).collect::<Result<_, _>>()?;
    // Before opset 14 the mode is stated by the outputs.
    let has_statistics = (1..5).any(|ix| node.has_output(ix));
    let is_training = node.flag("training_mode")? || (node.opset() < 14 && has_statistics);
    if node.is_training() {
        // Statistics that nodes compute are no running ones: in inference mode they stay operands.
        let fixed = !is_training && inputs[3..].iter().any(|&statistic| node.is_computed(statistic));
        let y = node.batch_norm(&inputs, epsilon, Moving { momentum, fixed, ..Moving::default() })?;
        node.note_mode(y, is_training);
        // The statistics that the node would yield are states of the training step.
        return Ok(vec![y, inputs[3], inputs[4], inputs[3], inputs[4]]);
    }
    if !is_training || node.is_inference() {
        let y = node.batch_norm(&inputs, epsilon, Moving::default())?;
        // Running statistics do not move in inference.
        return Ok(vec![y, inputs[3], inputs[4], inputs[3], inputs[4]]);
    }
    if node.opset() < 14 {
        return node.refuse_mode("it takes the statistics of the batch");
    }
    node.note_batch_statistics();
    batch_in_training(node, &inputs, epsilon, momentum)
}

/// Normalization by the mean and variance of the batch, and the updated running statistics.
fn batch_in_training(node: &mut ImportedNode, inputs: &[Operand], epsilon: f32, momentum: f32) -> NodeResult {
    let dtypes: Vec<_> = inputs.iter().map(|&input| node.dtype(input)).collect();
    let (inputs, _) = node.widen(inputs)?;
    let shape = node.shape(inputs[0]);
    if shape.rank() < 2 || shape.elements() == 0 {
        refuse!("input must have a channel axis, got {shape}");
    }
    let axes = (0..shape.rank()).filter(|&axis| axis != 1).collect();
    let Normalized { y, mean, variance, .. } = node.standardize(inputs[0], axes, epsilon)?;
    let y = node.scale_shift(y, [inputs[1], inputs[2]], 1)?;
    let mut yielded = vec![node.cast(y, dtypes[0])?];
    for (ix, statistic) in [(3, mean), (4, variance)] {
        let (dtype, channels) = (node.dtype(inputs[ix]), node.shape(inputs[ix]));
        let statistic = node.reshape(statistic, channels)?;
        let (old, new) = (node.number(f64::from(momentum), dtype), node.number(1.0 - f64::from(momentum), dtype));
        let old = node.binary(Binary::Mul, inputs[ix], old)?;
        let new = node.binary(Binary::Mul, statistic, new)?;
        let moved = node.binary(Binary::Add, old, new)?;
        yielded.push(node.cast(moved, dtypes[ix])?);
    }
    Ok(yielded)
}

pub(super) fn lrn(node: &mut ImportedNode) -> NodeResult {
    let alpha = node.float_or("alpha", 1e-4)?;
    let beta = node.float_or("beta", 0.75)?;
    let bias = node.float_or("bias", 1.0)?;
    let Some(size) = node.int("size")? else { refuse!("attribute `size` is missing") };
    let size = match size {
        1..=65_536 => size as usize,
        _ => refuse!("attribute `size`: {size} is not supported"),
    };
    Ok(vec![node.apply_f32(Lrn { size, alpha, beta, bias }, &[node.input(0)?])?])
}

pub(super) fn instance(node: &mut ImportedNode) -> NodeResult {
    let (x, scale, shift) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let epsilon = node.float_or("epsilon", 1e-5)?;
    let axes = (2..node.shape(x).rank()).collect();
    let y = node.standardize(x, axes, epsilon)?.y;
    Ok(vec![node.scale_shift(y, [scale, shift], 1)?])
}

pub(super) fn layer(node: &mut ImportedNode) -> NodeResult {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let epsilon = node.float_or("epsilon", 1e-5)?;
    // The dtype of the statistics, which is that of the input here.
    node.ignore(&["stash_type"]);
    let first = axis(node.int_or("axis", -1)?, node.shape(x).rank())?;
    Ok(layer_of(node, x, scale, node.optional(2), first, epsilon)?.into())
}

/// Normalization over the axes from `first` on, with the mean and the inverse deviation.
pub(super) fn layer_of(
    node: &mut ImportedNode,
    x: Operand,
    scale: Operand,
    shift: Option<Operand>,
    first: usize,
    epsilon: f32,
) -> Result<[Operand; 3], Refusal> {
    let (rank, dtype) = (node.shape(x).rank(), node.dtype(x));
    let (widened, _) = node.widen(&[x, scale])?;
    let Normalized { mut y, mean, inverse, .. } = node.standardize(widened[0], (first..rank).collect(), epsilon)?;
    y = node.binary(Binary::Mul, y, widened[1])?;
    if let Some(shift) = shift {
        let (shift, _) = node.widen(&[shift])?;
        y = node.binary(Binary::Add, y, shift[0])?;
    }
    Ok([node.cast(y, dtype)?, mean, inverse])
}

/// `RMSNormalization`, and `SimplifiedLayerNormalization` of ONNX Runtime.
pub(super) fn rms(node: &mut ImportedNode) -> NodeResult {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let epsilon = node.float_or("epsilon", 1e-5)?;
    // The dtype of the mean of squares, which is that of the input here.
    node.ignore(&["stash_type"]);
    let first = axis(node.int_or("axis", -1)?, node.shape(x).rank())?;
    Ok(rms_of(node, x, scale, first, epsilon)?.into())
}

/// `x / sqrt(mean(x^2) + epsilon) * scale` over the axes from `first` on, and the inverse root.
pub(super) fn rms_of(
    node: &mut ImportedNode,
    x: Operand,
    scale: Operand,
    first: usize,
    epsilon: f32,
) -> Result<[Operand; 2], Refusal> {
    let (rank, dtype) = (node.shape(x).rank(), node.dtype(x));
    let (widened, _) = node.widen(&[x, scale])?;
    let squares = node.binary(Binary::Mul, widened[0], widened[0])?;
    let mean = node.reduce(ReduceKind::Mean, squares, (first..rank).collect(), true)?;
    let epsilon = node.number(f64::from(epsilon), node.dtype(mean));
    let shifted = node.binary(Binary::Add, mean, epsilon)?;
    let root = node.unary(Unary::Sqrt, shifted)?;
    let inverse = node.unary(Unary::Reciprocal, root)?;
    let y = node.binary(Binary::Mul, widened[0], inverse)?;
    let y = node.binary(Binary::Mul, y, widened[1])?;
    Ok([node.cast(y, dtype)?, inverse])
}

/// Scale and shift are per group before opset 21, per channel from then on.
pub(super) fn group(node: &mut ImportedNode) -> NodeResult {
    let (x, scale, shift) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let epsilon = node.float_or("epsilon", 1e-5)?;
    node.ignore(&["stash_type"]);
    let shape = node.shape(x);
    let Some(groups) = node.int("num_groups")? else { refuse!("attribute `num_groups` is missing") };
    let groups = counts(&[groups], "num_groups")?[0];
    if shape.rank() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) || shape.elements() == 0 {
        refuse!("channels must be a multiple of {groups} groups, got input {shape}");
    }
    let grouped = Shape::from([shape[0], groups, shape.elements() / shape[0] / groups]);
    let x = node.reshape(x, grouped)?;
    let mut y = node.standardize(x, [2].into_iter().collect(), epsilon)?.y;
    if node.opset() < 21 {
        y = node.scale_shift(y, [scale, shift], 1)?;
        return Ok(vec![node.reshape(y, shape)?]);
    }
    y = node.reshape(y, shape)?;
    Ok(vec![node.scale_shift(y, [scale, shift], 1)?])
}

pub(super) fn mean_variance(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let list = node.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes(&list, rank)?;
    // ONNX adds this to the standard deviation.
    let dtype = node.dtype(x);
    let mean = node.reduce(ReduceKind::Mean, x, axes.clone(), true)?;
    let centred = node.binary(Binary::Sub, x, mean)?;
    let squares = node.binary(Binary::Mul, centred, centred)?;
    let variance = node.reduce(ReduceKind::Mean, squares, axes, true)?;
    let deviation = node.unary(Unary::Sqrt, variance)?;
    let epsilon = node.number(1e-9, dtype);
    let deviation = node.binary(Binary::Add, deviation, epsilon)?;
    Ok(vec![node.binary(Binary::Div, centred, deviation)?])
}

pub(super) fn lp(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let kind = match node.int_or("p", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        p => refuse!("attribute `p` must be 1 or 2, got {p}"),
    };
    let axis = axis(node.int_or("axis", -1)?, node.shape(x).rank())?;
    let norm = node.reduce(kind, x, [axis].into_iter().collect(), true)?;
    let y = node.binary(Binary::Div, x, norm)?;
    // Zeros stay zeros.
    let zero = node.number(0.0, node.dtype(x));
    let is_zero = node.compare(Compare::Equal, norm, zero)?;
    Ok(vec![node.select(is_zero, zero, y)?])
}
