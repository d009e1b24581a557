//! Normalisations and softmax.

use ir::Refusal;
use ir::ops::{BatchNorm, Lrn, ReduceKind, Softmax};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{Shape, Tensor};

use super::Yield;
use super::sequence::within;
use crate::common::{Operand, Standard, axis, counts, refuse};
use crate::mxnet::call::Call;

/// With the moving statistics, whatever `use_global_stats` says: that is inference.
pub(super) fn batch(call: &mut Call) -> Yield {
    call.ignore(&[
        "momentum",
        "use_global_stats",
        "output_mean_var",
        "ndev",
        "key",
        "min_calib_range",
        "max_calib_range",
    ]);
    let epsilon = call.float_or("eps", 1e-3)? as f32;
    let [x, mut gamma, beta, mean, variance] = call.inputs()?;
    let rank = call.shape(x).rank();
    let at = call.axis_or("axis", 1, rank)?;
    if call.flag_or("fix_gamma", true)? {
        gamma = call.constant(Tensor::full(call.shape(gamma), 1.0f32));
    }
    if at == 1 {
        return Ok(vec![call.apply_f32(BatchNorm { epsilon }, &[x, gamma, beta, mean, variance])?]);
    }
    // Channels become the second dimension and go back.
    let order: Vec<usize> = [0, at].into_iter().chain((1..rank).filter(|&axis| axis != at)).collect();
    if at == 0 {
        refuse!("attribute `axis` is 0: statistics for each picture are not supported");
    }
    let back: Vec<usize> =
        (0..rank).map(|axis| order.iter().position(|&from| from == axis).expect("each once")).collect();
    let x = call.transpose(x, &order)?;
    let y = call.apply_f32(BatchNorm { epsilon }, &[x, gamma, beta, mean, variance])?;
    Ok(vec![call.transpose(y, &back)?])
}

pub(super) fn instance(call: &mut Call) -> Yield {
    let [x, gamma, beta] = call.inputs()?;
    let epsilon = call.float_or("eps", 1e-3)? as f32;
    let axes = (2..call.shape(x).rank()).collect();
    let y = call.standardize(x, axes, epsilon)?.y;
    Ok(vec![call.scale_shift(y, [gamma, beta], 1)?])
}

pub(super) fn group(call: &mut Call) -> Yield {
    let [x, gamma, beta] = call.inputs()?;
    let epsilon = call.float_or("eps", 1e-5)? as f32;
    let groups = counts(&[call.int_or("num_groups", 1)?], "num_groups")?[0];
    let shape = call.shape(x);
    if shape.rank() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) || shape.elements() == 0 {
        refuse!("input {shape} does not fall into {groups} groups of channels");
    }
    let grouped = call.reshape(x, Shape::from([shape[0], groups, shape.elements() / shape[0] / groups]))?;
    let y = call.standardize(grouped, [2].into_iter().collect(), epsilon)?.y;
    let y = call.reshape(y, shape)?;
    Ok(vec![call.scale_shift(y, [gamma, beta], 1)?])
}

pub(super) fn layer(call: &mut Call) -> Yield {
    let [x, gamma, beta] = call.inputs()?;
    let epsilon = call.float_or("eps", 1e-5)? as f32;
    let at = call.axis_or("axis", -1, call.shape(x).rank())?;
    call.ignore(&["output_mean_var"]);
    let Standard { y, mean, .. } = call.standardize(x, [at].into_iter().collect(), epsilon)?;
    let y = call.scale_shift(y, [gamma, beta], at)?;
    let mut yielded = vec![y];
    if 1 < call.n_outputs() {
        yielded.push(mean);
    }
    Ok(yielded)
}

/// `x / sqrt(sum of squares + eps)` for each picture, across channels, or for each channel.
pub(super) fn l2(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let axes: SmallVec<[usize; 4]> = match call.text_or("mode", "instance") {
        "instance" => (1..rank).collect(),
        "channel" => (1..rank.min(2)).collect(),
        "spatial" => (2..rank).collect(),
        other => refuse!("attribute `mode` is `{other}`"),
    };
    let epsilon = call.float_or("eps", 1e-10)?;
    let squares = call.reduce(ReduceKind::SumSquare, x, axes, true)?;
    let epsilon = call.number(epsilon, call.dtype(x));
    let shifted = call.binary(Binary::Add, squares, epsilon)?;
    let norm = call.unary(Unary::Sqrt, shifted)?;
    Ok(vec![call.binary(Binary::Div, x, norm)?])
}

pub(super) fn lrn(call: &mut Call) -> Yield {
    let size = call.count("nsize")?;
    let [alpha, beta, bias] =
        [("alpha", 1e-4), ("beta", 0.75), ("knorm", 2.0)].map(|(name, default)| call.float_or(name, default));
    let lrn = Lrn { size, alpha: alpha? as f32, beta: beta? as f32, bias: bias? as f32 };
    Ok(vec![call.apply_f32(lrn, &[call.input(0)?])?])
}

pub(super) fn softmax(call: &mut Call) -> Yield {
    exponentials(call, false, 1.0)
}

pub(super) fn softmin(call: &mut Call) -> Yield {
    exponentials(call, false, -1.0)
}

pub(super) fn log_softmax(call: &mut Call) -> Yield {
    exponentials(call, true, 1.0)
}

/// With a length, what lies behind it has no part and becomes 0.
fn exponentials(call: &mut Call, log: bool, sign: f64) -> Yield {
    let x = call.input(0)?;
    let dtype = call.dtype_attribute("dtype")?;
    let at = call.axis_or("axis", -1, call.shape(x).rank())?;
    let factor = sign / call.float_or("temperature", 1.0)?;
    let mut x = x;
    if factor != 1.0 {
        let factor = call.number(factor, call.dtype(x));
        x = call.binary(Binary::Mul, x, factor)?;
    }
    let used = match call.flag("use_length")? {
        true => Some(lengths(call, x, at)?),
        false => None,
    };
    if let Some(used) = used {
        let nothing = call.number(f64::NEG_INFINITY, call.dtype(x));
        x = call.select(used, x, nothing)?;
    }
    let mut y = call.apply_f32(Softmax { axis: at, log }, &[x])?;
    if let Some(used) = used {
        let zero = call.number(0.0, call.dtype(y));
        y = call.select(used, y, zero)?;
    }
    Ok(vec![match dtype {
        Some(dtype) => call.cast(y, dtype)?,
        None => y,
    }])
}

/// Which elements lie within the lengths of operand 1, which has the shape without axis `at`.
fn lengths(call: &mut Call, x: Operand, at: usize) -> Result<Operand, Refusal> {
    let lengths = call.input(1)?;
    let shape = call.shape(x);
    let mut spread = call.shape(lengths);
    if spread.rank() + 1 != shape.rank() {
        refuse!("lengths of shape {spread} do not fit {shape}");
    }
    spread.insert(at, 1);
    let lengths = call.reshape(lengths, spread)?;
    within(call, lengths, shape[at], at, shape.rank())
}

/// Over everything of a picture, or across channels.
pub(super) fn softmax_activation(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    match call.text_or("mode", "instance") {
        "instance" => Ok(vec![flat_softmax(call, x)?]),
        "channel" => {
            let at = axis(1, call.shape(x).rank())?;
            Ok(vec![call.apply_f32(Softmax { axis: at, log: false }, &[x])?])
        }
        other => refuse!("attribute `mode` is `{other}`, not `instance` or `channel`"),
    }
}

/// Over all but the first dimension.
pub(super) fn flat_softmax(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    let flat = super::shape::flattened(call, x)?;
    let y = call.apply_f32(Softmax { axis: 1, log: false }, &[flat])?;
    call.reshape(y, shape)
}
