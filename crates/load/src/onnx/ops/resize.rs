//! Interpolation to other extents.

use ir::Refusal;
use ir::ops::{Coordinates, Resize, ResizeMode, Rounding};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use crate::common::{Operand, axis, counts, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// Scales are an attribute up to opset 8 and an operand in opset 9.
pub(super) fn upsample(call: &mut Call) -> Yield {
    let scale = match call.opset() {
        ..7 => {
            let (height, width) = (call.float_or("height_scale", 1.0)?, call.float_or("width_scale", 1.0)?);
            vec![1.0, 1.0, height, width]
        }
        7..9 => match call.floats("scales")? {
            Some(scales) => scales.to_vec(),
            None => refuse!("attribute `scales` is missing"),
        },
        _ => known_floats(call, 1, "scales")?,
    };
    asymmetric(call, &scale)
}

pub(super) fn resize(call: &mut Call) -> Yield {
    if call.opset() < 11 {
        let scale = known_floats(call, 1, "scales")?;
        return asymmetric(call, &scale);
    }
    let x = call.input(0)?;
    let shape = call.shape(x);
    let coordinates = match call.text_or("coordinate_transformation_mode", "half_pixel") {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "asymmetric" => Coordinates::Asymmetric,
        "align_corners" => Coordinates::AlignCorners,
        "tf_crop_and_resize" => Coordinates::Region(regions(call, &shape)?),
        other => refuse!("attribute `coordinate_transformation_mode` is `{other}`, which is not supported"),
    };
    let rounding = match call.text_or("nearest_mode", "round_prefer_floor") {
        "round_prefer_floor" => Rounding::HalfDown,
        "round_prefer_ceil" => Rounding::HalfUp,
        "floor" => Rounding::Floor,
        "ceil" => Rounding::Ceil,
        other => refuse!("attribute `nearest_mode` is `{other}`"),
    };
    let a = call.float_or("cubic_coeff_a", -0.75)?;
    let exclude_outside = call.flag("exclude_outside")?;
    let mode = match call.text_or("mode", "nearest") {
        "nearest" => ResizeMode::Nearest(rounding),
        "linear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic { a, exclude_outside },
        other => refuse!("attribute `mode` is `{other}`"),
    };
    if exclude_outside && mode == ResizeMode::Linear {
        refuse!("attribute `exclude_outside` is supported for cubic interpolation only");
    }
    let beyond = call.float_or("extrapolation_value", 0.0)?;
    let target = target(call, &shape)?;
    let antialias = call.flag("antialias")? && !matches!(mode, ResizeMode::Nearest(_));
    let resize = Resize { shape: target.shape, scale: target.scale, mode, coordinates, antialias };
    let y = resized(call, x, &resize)?;
    Ok(vec![extrapolated(call, y, &resize, &shape, beyond)?])
}

/// The parts of all axes that are resized, from operand 1: first where they begin, then where they end.
fn regions(call: &Call, shape: &Shape) -> Result<SmallVec<[[f32; 2]; 4]>, Refusal> {
    let along = axes_of(call, shape)?;
    let ends = known_floats(call, 1, "roi")?;
    if ends.len() != 2 * along.len() {
        refuse!("`roi` has {} numbers, not two for each of {} axes", ends.len(), along.len());
    }
    let mut parts = SmallVec::from_elem([0.0, 1.0], shape.rank());
    for (ix, &axis) in along.iter().enumerate() {
        parts[axis] = [ends[ix], ends[along.len() + ix]];
    }
    Ok(parts)
}

/// Puts a number wherever the coordinate along some axis lies outside the tensor.
fn extrapolated(call: &mut Call, y: Operand, resize: &Resize, from: &Shape, beyond: f32) -> Result<Operand, Refusal> {
    let (mut y, rank) = (y, from.rank());
    if !matches!(resize.coordinates, Coordinates::Region(_)) {
        return Ok(y);
    }
    for axis in 0..rank {
        let extent = resize.shape[axis];
        call.reserve(DType::Bool, &Shape::from([extent]))?;
        let outside: Vec<bool> = (0..extent).map(|ix| resize.is_outside(axis, from[axis], ix)).collect();
        if !outside.contains(&true) {
            continue;
        }
        let outside = call.constant(Tensor::vector(outside));
        let outside = call.aligned(outside, axis, rank)?;
        let beyond = call.number(f64::from(beyond), call.dtype(y));
        y = call.select(outside, beyond, y)?;
    }
    Ok(y)
}

/// The axes that scales, sizes and regions are about.
fn axes_of(call: &Call, shape: &Shape) -> Result<SmallVec<[usize; 4]>, Refusal> {
    match call.ints("axes")? {
        Some(list) => list.iter().map(|&item| axis(item, shape.rank())).collect(),
        None => Ok((0..shape.rank()).collect()),
    }
}

/// Where a resize leads.
struct Target {
    shape: Shape,
    scale: SmallVec<[f32; 4]>,
}

/// Reads scales or sizes, for all axes or for some.
fn target(call: &Call, shape: &Shape) -> Result<Target, Refusal> {
    let along = axes_of(call, shape)?;
    let policy = call.text_or("keep_aspect_ratio_policy", "stretch");
    let mut target = Target { shape: shape.clone(), scale: SmallVec::from_elem(1.0, shape.rank()) };
    // An operand without elements is one left out.
    let given = |ix: usize| call.optional(ix).is_some_and(|operand| call.shape(operand).elements() != 0);
    let fits = |count: usize, what: &str| match count == along.len() {
        true => Ok(()),
        false => Err(Refusal(format!("`{what}` has {count} numbers for {} axes", along.len()))),
    };
    if given(3) {
        let sizes = counts(&call.known_ints(3, "sizes")?, "sizes")?;
        fits(sizes.len(), "sizes")?;
        let ratios = || along.iter().zip(&sizes).map(|(&axis, &size)| size as f32 / shape[axis] as f32);
        let common = match policy {
            "stretch" => None,
            "not_larger" => ratios().reduce(f32::min),
            "not_smaller" => ratios().reduce(f32::max),
            other => refuse!("attribute `keep_aspect_ratio_policy` is `{other}`"),
        };
        for ((&axis, &size), ratio) in along.iter().zip(&sizes).zip(ratios()) {
            target.scale[axis] = common.unwrap_or(ratio);
            target.shape[axis] =
                common.map_or(size, |common| (f64::from(common) * shape[axis] as f64 + 0.5).floor() as usize);
        }
        return Ok(target);
    }
    if !given(2) {
        refuse!("neither `scales` nor `sizes` are given");
    }
    let scales = known_floats(call, 2, "scales")?;
    fits(scales.len(), "scales")?;
    for (&axis, &scale) in along.iter().zip(&scales) {
        target.scale[axis] = scale;
        target.shape[axis] = scaled(shape[axis], scale);
    }
    Ok(target)
}

fn scaled(extent: usize, scale: f32) -> usize {
    (extent as f64 * f64::from(scale)).floor() as usize
}

fn known_floats(call: &Call, ix: usize, what: &str) -> Result<Vec<f32>, Refusal> {
    Ok(call.known(ix, what)?.to_f64().into_iter().map(|scale| scale as f32).collect())
}

/// The one way of opset 10 and before.
fn asymmetric(call: &mut Call, scale: &[f32]) -> Yield {
    let x = call.input(0)?;
    let mode = match call.text_or("mode", "nearest") {
        "nearest" => ResizeMode::Nearest(Rounding::Floor),
        "linear" | "bilinear" => ResizeMode::Linear,
        other => refuse!("attribute `mode` is `{other}`"),
    };
    let shape = call.shape(x);
    if scale.len() != shape.rank() {
        refuse!("`scales` has {} numbers for {} axes", scale.len(), shape.rank());
    }
    let out = shape.iter().zip(scale).map(|(&extent, &scale)| scaled(extent, scale)).collect();
    let coordinates = Coordinates::Asymmetric;
    let resize = Resize { shape: out, scale: scale.into(), mode, coordinates, antialias: false };
    Ok(vec![resized(call, x, &resize)?])
}

fn resized(call: &mut Call, x: Operand, resize: &Resize) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    if resize.scale.iter().any(|scale| !scale.is_finite()) {
        refuse!("`scales` are {:?}", resize.scale);
    }
    if (0..shape.rank()).all(|axis| resize.keeps(axis, shape[axis])) {
        return Ok(x);
    }
    match resize.mode {
        ResizeMode::Nearest(_) => call.apply(resize.clone(), &[x]),
        _ => call.apply_f32(resize.clone(), &[x]),
    }
}
