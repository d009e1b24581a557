//! Resize and Upsample.

use ir::Refusal;
use ir::ops::{Coordinates, Resize, ResizeMode, Rounding};
use smallvec::SmallVec;
use types::Shape;

use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Scales are an attribute up to opset 8 and an operand in opset 9.
pub(super) fn upsample(node: &mut ImportedNode) -> NodeResult {
    let scale = match node.opset() {
        ..7 => {
            let (height, width) = (node.float_or("height_scale", 1.0)?, node.float_or("width_scale", 1.0)?);
            vec![1.0, 1.0, height, width]
        }
        7..9 => match node.floats("scales")? {
            Some(scales) => scales.to_vec(),
            None => refuse!("attribute `scales` is missing"),
        },
        _ => constant_floats(node, 1, "scales")?,
    };
    asymmetric(node, &scale)
}

pub(super) fn resize(node: &mut ImportedNode) -> NodeResult {
    if node.opset() < 11 {
        let scale = constant_floats(node, 1, "scales")?;
        return asymmetric(node, &scale);
    }
    let x = node.input(0)?;
    let shape = node.shape(x);
    let coordinates = match node.text_or("coordinate_transformation_mode", "half_pixel") {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "asymmetric" => Coordinates::Asymmetric,
        "align_corners" => Coordinates::AlignCorners,
        "tf_crop_and_resize" => Coordinates::Region(regions(node, &shape)?),
        other => refuse!("attribute `coordinate_transformation_mode`: `{other}` is not supported"),
    };
    let rounding = match node.text_or("nearest_mode", "round_prefer_floor") {
        "round_prefer_floor" => Rounding::HalfDown,
        "round_prefer_ceil" => Rounding::HalfUp,
        "floor" => Rounding::Floor,
        "ceil" => Rounding::Ceil,
        other => refuse!("attribute `nearest_mode`: `{other}` is not supported"),
    };
    let a = node.float_or("cubic_coeff_a", -0.75)?;
    let exclude_outside = node.flag("exclude_outside")?;
    let mode = match node.text_or("mode", "nearest") {
        "nearest" => ResizeMode::Nearest(rounding),
        "linear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic { a, exclude_outside },
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    if exclude_outside && mode == ResizeMode::Linear {
        refuse!("attribute `exclude_outside` requires cubic interpolation");
    }
    let beyond = node.float_or("extrapolation_value", 0.0)?;
    let target = target(node, &shape)?;
    let antialias = node.flag("antialias")? && !matches!(mode, ResizeMode::Nearest(_));
    let resize = Resize { shape: target.shape, scale: target.scale, mode, coordinates, antialias, range: None };
    let y = resized(node, x, &resize)?;
    Ok(vec![extrapolated(node, y, &resize, &shape, beyond)?])
}

/// The resized regions of all axes, from operand 1: all starts, then all ends.
fn regions(node: &ImportedNode, shape: &Shape) -> Result<SmallVec<[[f32; 2]; 4]>, Refusal> {
    let along = axes_of(node, shape)?;
    let ends = constant_floats(node, 1, "roi")?;
    if ends.len() != 2 * along.len() {
        refuse!("`roi` must have two numbers per axis, got {} for {} axes", ends.len(), along.len());
    }
    let mut parts = SmallVec::from_elem([0.0, 1.0], shape.rank());
    for (ix, &axis) in along.iter().enumerate() {
        parts[axis] = [ends[ix], ends[along.len() + ix]];
    }
    Ok(parts)
}

/// Writes a constant at positions whose coordinate along some axis is outside the tensor.
fn extrapolated(
    node: &mut ImportedNode,
    y: Operand,
    resize: &Resize,
    from: &Shape,
    beyond: f32,
) -> Result<Operand, Refusal> {
    let (mut y, rank) = (y, from.rank());
    if !matches!(resize.coordinates, Coordinates::Region(_)) {
        return Ok(y);
    }
    for axis in 0..rank {
        let extent = resize.shape[axis];
        let outside = node.computed(Shape::from([extent]), |ix| resize.is_outside(axis, from[axis], ix))?;
        if outside.as_slice().is_some_and(|outside| !outside.contains(&true)) {
            continue;
        }
        let outside = node.constant(outside);
        let outside = node.aligned(outside, axis, rank)?;
        let beyond = node.number(f64::from(beyond), node.dtype(y));
        y = node.select(outside, beyond, y)?;
    }
    Ok(y)
}

/// The axes of scales, sizes and regions.
fn axes_of(node: &ImportedNode, shape: &Shape) -> Result<SmallVec<[usize; 4]>, Refusal> {
    match node.ints("axes")? {
        Some(list) => list.iter().map(|&item| axis(item, shape.rank())).collect(),
        None => Ok((0..shape.rank()).collect()),
    }
}

/// The extents and scales of a resize.
struct Target {
    shape: Shape,
    scale: SmallVec<[f32; 4]>,
}

/// Reads scales or sizes, for all or some axes.
fn target(node: &ImportedNode, shape: &Shape) -> Result<Target, Refusal> {
    let along = axes_of(node, shape)?;
    let policy = node.text_or("keep_aspect_ratio_policy", "stretch");
    let mut target = Target { shape: shape.clone(), scale: SmallVec::from_elem(1.0, shape.rank()) };
    // An empty operand is absent.
    let given = |ix: usize| node.optional(ix).is_some_and(|operand| node.shape(operand).elements() != 0);
    let fits = |count: usize, name: &str| match count == along.len() {
        true => Ok(()),
        false => Err(Refusal(format!("`{name}` must have one number per axis, got {count} for {} axes", along.len()))),
    };
    if given(3) {
        let sizes = counts(&node.constant_ints(3, "sizes")?, "sizes")?;
        fits(sizes.len(), "sizes")?;
        let ratios = || along.iter().zip(&sizes).map(|(&axis, &size)| size as f32 / shape[axis] as f32);
        let common = match policy {
            "stretch" => None,
            "not_larger" => ratios().reduce(f32::min),
            "not_smaller" => ratios().reduce(f32::max),
            other => refuse!("attribute `keep_aspect_ratio_policy`: `{other}` is not supported"),
        };
        for ((&axis, &size), ratio) in along.iter().zip(&sizes).zip(ratios()) {
            target.scale[axis] = common.unwrap_or(ratio);
            target.shape[axis] =
                common.map_or(size, |common| (f64::from(common) * shape[axis] as f64 + 0.5).floor() as usize);
        }
        return Ok(target);
    }
    if !given(2) {
        refuse!("`scales` or `sizes` is required");
    }
    let scales = constant_floats(node, 2, "scales")?;
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

fn constant_floats(node: &ImportedNode, ix: usize, name: &str) -> Result<Vec<f32>, Refusal> {
    Ok(node.constant_input(ix, name)?.to_f64().into_iter().map(|scale| scale as f32).collect())
}

/// Opset 10 and before.
fn asymmetric(node: &mut ImportedNode, scale: &[f32]) -> NodeResult {
    let x = node.input(0)?;
    let mode = match node.text_or("mode", "nearest") {
        "nearest" => ResizeMode::Nearest(Rounding::Floor),
        "linear" | "bilinear" => ResizeMode::Linear,
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let shape = node.shape(x);
    if scale.len() != shape.rank() {
        refuse!("`scales` must have one number per axis, got {} for {} axes", scale.len(), shape.rank());
    }
    let out = shape.iter().zip(scale).map(|(&extent, &scale)| scaled(extent, scale)).collect();
    let coordinates = Coordinates::Asymmetric;
    let resize = Resize { shape: out, scale: scale.into(), mode, coordinates, antialias: false, range: None };
    Ok(vec![resized(node, x, &resize)?])
}

fn resized(node: &mut ImportedNode, x: Operand, resize: &Resize) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    if resize.scale.iter().any(|scale| !scale.is_finite()) {
        refuse!("`scales` must be positive, got {:?}", resize.scale);
    }
    if (0..shape.rank()).all(|axis| resize.keeps(axis, shape[axis])) {
        return Ok(x);
    }
    match resize.mode {
        ResizeMode::Nearest(_) => node.apply(resize.clone(), &[x]),
        _ => node.apply_f32(resize.clone(), &[x]),
    }
}
