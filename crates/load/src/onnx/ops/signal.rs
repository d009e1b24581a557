//! Window functions, Fourier transforms and mel filters: constants, and products with matrices of sines and cosines.

use std::f64::consts::PI;

use ir::{Refusal, ops};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

/// `sum of terms[k] cos(2 pi k n / N)`, with `N` less by one if the window is not periodic.
fn window(node: &mut ImportedNode, terms: &[f64]) -> NodeResult {
    let size = counts(&[node.constant_number(0, "size")? as i64], "size")?[0];
    let periodic = node.int_or("periodic", 1)? != 0;
    let dtype = node.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let period = if periodic { size as f64 } else { size as f64 - 1.0 };
    let at =
        |n: usize| (0..).zip(terms).map(|(k, term)| term * (2.0 * PI * f64::from(k) * n as f64 / period).cos()).sum();
    Ok(vec![node.constant_as(dtype, [size], |n| -> f64 { at(n) })?])
}

pub(super) fn hann(node: &mut ImportedNode) -> NodeResult {
    window(node, &[0.5, -0.5])
}

pub(super) fn hamming(node: &mut ImportedNode) -> NodeResult {
    window(node, &[25.0 / 46.0, -21.0 / 46.0])
}

pub(super) fn blackman(node: &mut ImportedNode) -> NodeResult {
    window(node, &[0.42, -0.5, 0.08])
}

/// `x: [.., n, .., 1 or 2]`, with real and imaginary parts along the last axis -> `[.., k, .., 2]`, over one axis.
pub(super) fn dft(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if shape.rank() < 2 || !matches!(shape[shape.rank() - 1], 1 | 2) || node.dtype(x) != DType::F32 {
        refuse!("input must be f32 with a last axis of extent 1 or 2, got {}{shape}", node.dtype(x));
    }
    let at = match node.opset() < 20 {
        true => node.int_or("axis", 1)?,
        false if node.optional(2).is_some() => node.constant_number(2, "axis")? as i64,
        false => -2,
    };
    let (at, last) = (axis(at, shape.rank())?, shape.rank() - 1);
    if at == last {
        refuse!("the axis must not be that of real and imaginary parts");
    }
    let (inverse, one_sided) = (node.flag("inverse")?, node.flag("onesided")?);
    let length = match node.optional(1) {
        Some(_) => counts(&[node.constant_number(1, "dft_length")? as i64], "dft_length")?[0],
        None => shape[at],
    };
    if length == 0 || (inverse && one_sided) {
        refuse!("an inverse one-sided transform, or one of length {length}, is not supported");
    }
    let bins = if one_sided { length / 2 + 1 } else { length };
    Ok(vec![transform(node, x, at, [length, bins], inverse)?])
}

/// Moves the axis and the parts to the end, multiplies by `[2 n, 2 k]` and moves them back.
fn transform(
    node: &mut ImportedNode,
    x: Operand,
    at: usize,
    [length, bins]: [usize; 2],
    inverse: bool,
) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let (rank, parts) = (shape.rank(), shape[shape.rank() - 1]);
    let order: Vec<usize> = (0..rank - 1).filter(|&axis| axis != at).chain([at, rank - 1]).collect();
    // Elements beyond the length of the transform are dropped; missing ones are zero.
    let used = shape[at].min(length);
    let x = match used == shape[at] {
        true => x,
        false => node.apply(ops::Slice::range(&shape, at, 0, used), &[x])?,
    };
    let x = node.transpose(x, &order)?;
    let moved = node.shape(x);
    let outer: usize = moved[..rank - 2].iter().product();
    let x = node.reshape(x, Shape::from([outer, used * parts]))?;
    let matrix_shape = Shape::from([used * parts, bins * 2]);
    let sign = if inverse { 1.0 } else { -1.0 };
    let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
    // A row per part of each element, a column per part of each result.
    let matrix = node.computed(matrix_shape, |place| {
        let (row, column) = (place / (bins * 2), place % (bins * 2));
        let angle = sign * 2.0 * PI * ((row / parts) * (column / 2) % length) as f64 / length as f64;
        let number = match (row % parts, column % 2) {
            (0, 0) => angle.cos(),
            (0, _) => angle.sin(),
            (_, 0) => -angle.sin(),
            (_, _) => angle.cos(),
        };
        (number * scale) as f32
    })?;
    let matrix = node.constant(matrix);
    let y = node.apply(ops::MatMul::default(), &[x, matrix])?;
    let out: Shape = moved[..rank - 2].iter().copied().chain([bins, 2]).collect();
    let y = node.reshape(y, out)?;
    let back: Vec<usize> =
        (0..rank).map(|axis| order.iter().position(|&from| from == axis).expect("each once")).collect();
    node.transpose(y, &back)
}

/// Windowed frames of a signal `[batch, n]` or `[batch, n, 1]`, each transformed: `[batch, frames, k, 2]`.
pub(super) fn stft(node: &mut ImportedNode) -> NodeResult {
    let signal = node.input(0)?;
    let shape = node.shape(signal);
    let (batch, samples) = match shape[..] {
        [batch, samples] | [batch, samples, 1] => (batch, samples),
        _ => refuse!("the signal must be [batch, samples, 1], got {shape}"),
    };
    if node.dtype(signal) != DType::F32 {
        refuse!("dtype must be f32, got {}", node.dtype(signal));
    }
    let step = counts(&[node.constant_number(1, "frame_step")? as i64], "frame_step")?[0];
    let length = match (node.optional(3), node.optional(2)) {
        (Some(_), _) => counts(&[node.constant_number(3, "frame_length")? as i64], "frame_length")?[0],
        (None, Some(window)) => node.shape(window).elements(),
        (None, None) => refuse!("a window or `frame_length` is required"),
    };
    let Some(room) = samples.checked_sub(length).filter(|_| step != 0 && length != 0) else {
        refuse!("frames of {length} with step {step} do not fit {samples} samples");
    };
    let frames = room / step + 1;
    let places = node.constant_of([frames, length], |at| (at / length * step + at % length) as i64)?;
    let flat = node.reshape(signal, Shape::from([batch, samples]))?;
    let mut x = node.apply(ops::Gather { axis: 1 }, &[flat, places])?;
    if let Some(window) = node.optional(2) {
        x = node.binary(types::pointwise::Binary::Mul, x, window)?;
    }
    let x = node.reshape(x, Shape::from([batch, frames, length, 1]))?;
    let bins = if node.int_or("onesided", 1)? != 0 { length / 2 + 1 } else { length };
    Ok(vec![transform(node, x, 2, [length, bins], false)?])
}

/// Triangular filters between frequencies at equal distances on the mel scale, `[bins of the spectrum, filters]`.
pub(super) fn mel_weights(node: &mut ImportedNode) -> NodeResult {
    let number = |ix: usize, name: &str| node.constant_number(ix, name);
    let (bands, length, rate) = (number(0, "num_mel_bins")?, number(1, "dft_length")?, number(2, "sample_rate")?);
    let (low, high) = (number(3, "lower_edge_hertz")?, number(4, "upper_edge_hertz")?);
    let dtype = node.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let (bands, length) = (counts(&[bands as i64], "num_mel_bins")?[0], counts(&[length as i64], "dft_length")?[0]);
    let shape = Shape::from([length / 2 + 1, bands]);
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let hertz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let step = (mel(high) - mel(low)) / (bands + 2) as f64;
    let edge = |at: usize| ((length + 1) as f64 * hertz(mel(low) + at as f64 * step) / rate).floor();
    let weights = node.computed(shape, |place| -> f64 {
        let (bin, band) = ((place / bands) as f64, place % bands);
        let [left, middle, right] = [edge(band), edge(band + 1), edge(band + 2)];
        if middle == left && bin == middle {
            1.0
        } else if left <= bin && bin <= middle && left < middle {
            (bin - left) / (middle - left)
        } else if middle <= bin && bin < right {
            (right - bin) / (right - middle)
        } else {
            0.0
        }
    })?;
    Ok(vec![node.constant(weights.cast(dtype))])
}
