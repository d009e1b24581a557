//! Normalization and softmax.

use ir::ops::{Lrn, ReduceKind, Softmax};
use ir::{Moving, Refusal};
use smallvec::SmallVec;
use types::Shape;
use types::pointwise::{Binary, Unary};

use super::sequence::within;
use crate::common::{NodeResult, Normalized, Operand, axis, counts, refuse};
use crate::mxnet::node::ImportedNode;

/// With the moving statistics: training replaces them by those of the batch, unless `use_global_stats` is set.
pub(super) fn batch(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["output_mean_var", "ndev", "key", "min_calib_range", "max_calib_range"]);
    let epsilon = node.float_or("eps", 1e-3)? as f32;
    let momentum = node.float_or("momentum", 0.9)? as f32;
    let moving = Moving { momentum, unbiased: false, fixed: node.flag("use_global_stats")? };
    let [x, mut gamma, beta, mean, variance] = node.inputs()?;
    let rank = node.shape(x).rank();
    let at = node.axis_or("axis", 1, rank)?;
    if node.flag_or("fix_gamma", true)? {
        gamma = node.constant_of(node.shape(gamma), |_| 1.0f32)?;
    }
    if at == 1 {
        return Ok(vec![node.batch_norm(&[x, gamma, beta, mean, variance], epsilon, moving)?]);
    }
    // Channels are moved to the second axis and back.
    let order: Vec<usize> = [0, at].into_iter().chain((1..rank).filter(|&axis| axis != at)).collect();
    if at == 0 {
        refuse!("attribute `axis` must not be 0");
    }
    let back: Vec<usize> =
        (0..rank).map(|axis| order.iter().position(|&from| from == axis).expect("`order` is a permutation")).collect();
    let x = node.transpose(x, &order)?;
    let y = node.batch_norm(&[x, gamma, beta, mean, variance], epsilon, moving)?;
    Ok(vec![node.transpose(y, &back)?])
}

pub(super) fn instance(node: &mut ImportedNode) -> NodeResult {
    let [x, gamma, beta] = node.inputs()?;
    let epsilon = node.float_or("eps", 1e-3)? as f32;
    let axes = (2..node.shape(x).rank()).collect();
    let y = node.standardize(x, axes, epsilon)?.y;
    Ok(vec![node.scale_shift(y, [gamma, beta], 1)?])
}

pub(super) fn group(node: &mut ImportedNode) -> NodeResult {
    let [x, gamma, beta] = node.inputs()?;
    let epsilon = node.float_or("eps", 1e-5)? as f32;
    let groups = counts(&[node.int_or("num_groups", 1)?], "num_groups")?[0];
    let shape = node.shape(x);
    if shape.rank() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) || shape.elements() == 0 {
        refuse!("channels must be a multiple of {groups} groups, got input {shape}");
    }
    let grouped = node.reshape(x, Shape::from([shape[0], groups, shape.elements() / shape[0] / groups]))?;
    let y = node.standardize(grouped, [2].into_iter().collect(), epsilon)?.y;
    let y = node.reshape(y, shape)?;
    Ok(vec![node.scale_shift(y, [gamma, beta], 1)?])
}

pub(super) fn layer(node: &mut ImportedNode) -> NodeResult {
    let [x, gamma, beta] = node.inputs()?;
    let epsilon = node.float_or("eps", 1e-5)? as f32;
    let at = node.axis_or("axis", -1, node.shape(x).rank())?;
    node.ignore(&["output_mean_var"]);
    let Normalized { y, mean, .. } = node.standardize(x, [at].into_iter().collect(), epsilon)?;
    let y = node.scale_shift(y, [gamma, beta], at)?;
    let mut yielded = vec![y];
    if 1 < node.n_outputs() {
        yielded.push(mean);
    }
    Ok(yielded)
}

/// `x / sqrt(sum of squares + eps)` per sample, over channels, or per channel.
pub(super) fn l2(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let axes: SmallVec<[usize; 4]> = match node.text_or("mode", "instance") {
        "instance" => (1..rank).collect(),
        "channel" => (1..rank.min(2)).collect(),
        "spatial" => (2..rank).collect(),
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let epsilon = node.float_or("eps", 1e-10)?;
    let squares = node.reduce(ReduceKind::SumSquare, x, axes, true)?;
    let epsilon = node.number(epsilon, node.dtype(x));
    let shifted = node.binary(Binary::Add, squares, epsilon)?;
    let norm = node.unary(Unary::Sqrt, shifted)?;
    Ok(vec![node.binary(Binary::Div, x, norm)?])
}

pub(super) fn lrn(node: &mut ImportedNode) -> NodeResult {
    let size = node.count("nsize")?;
    let [alpha, beta, bias] =
        [("alpha", 1e-4), ("beta", 0.75), ("knorm", 2.0)].map(|(name, default)| node.float_or(name, default));
    let lrn = Lrn { size, alpha: alpha? as f32, beta: beta? as f32, bias: bias? as f32 };
    Ok(vec![node.apply_f32(lrn, &[node.input(0)?])?])
}

pub(super) fn softmax(node: &mut ImportedNode) -> NodeResult {
    exponentials(node, false, 1.0)
}

pub(super) fn softmin(node: &mut ImportedNode) -> NodeResult {
    exponentials(node, false, -1.0)
}

pub(super) fn log_softmax(node: &mut ImportedNode) -> NodeResult {
    exponentials(node, true, 1.0)
}

/// Elements beyond an optional length are excluded and become 0.
fn exponentials(node: &mut ImportedNode, log: bool, sign: f64) -> NodeResult {
    let x = node.input(0)?;
    let dtype = node.dtype_attribute("dtype")?;
    let at = node.axis_or("axis", -1, node.shape(x).rank())?;
    let factor = sign / node.float_or("temperature", 1.0)?;
    let mut x = x;
    if factor != 1.0 {
        let factor = node.number(factor, node.dtype(x));
        x = node.binary(Binary::Mul, x, factor)?;
    }
    let used = match node.flag("use_length")? {
        true => Some(lengths(node, x, at)?),
        false => None,
    };
    if let Some(used) = used {
        let nothing = node.number(f64::NEG_INFINITY, node.dtype(x));
        x = node.select(used, x, nothing)?;
    }
    let mut y = node.apply_f32(Softmax { axis: at, log }, &[x])?;
    if let Some(used) = used {
        let zero = node.number(0.0, node.dtype(y));
        y = node.select(used, y, zero)?;
    }
    Ok(vec![match dtype {
        Some(dtype) => node.cast(y, dtype)?,
        None => y,
    }])
}

/// Mask of elements within the lengths, operand 1, which has the shape without axis `at`.
fn lengths(node: &mut ImportedNode, x: Operand, at: usize) -> Result<Operand, Refusal> {
    let lengths = node.input(1)?;
    let shape = node.shape(x);
    let mut spread = node.shape(lengths);
    if spread.rank() + 1 != shape.rank() {
        refuse!("lengths must have the shape {shape} with extent 1 along the axis, got {spread}");
    }
    spread.insert(at, 1);
    let lengths = node.reshape(lengths, spread)?;
    within(node, lengths, shape[at], at, shape.rank())
}

/// Softmax over all elements of a sample, or over channels.
pub(super) fn softmax_activation(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    match node.text_or("mode", "instance") {
        "instance" => Ok(vec![flat_softmax(node, x)?]),
        "channel" => {
            let at = axis(1, node.shape(x).rank())?;
            Ok(vec![node.apply_f32(Softmax { axis: at, log: false }, &[x])?])
        }
        other => refuse!("attribute `mode` must be `instance` or `channel`, got `{other}`"),
    }
}

/// Softmax over all axes but the first.
pub(super) fn flat_softmax(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let flat = super::shape::flattened(node, x)?;
    let y = node.apply_f32(Softmax { axis: 1, log: false }, &[flat])?;
    node.reshape(y, shape)
}
