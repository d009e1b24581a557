//! `Resize`, whose attributes and inputs are redundant.

use ir::ops::{Coordinates, Resize, ResizeMode, Rounding};
use types::{Shape, Tensor};

use crate::attribute::Attribute;
use crate::translate::Made;

impl Made<'_> {
    /// Resizes `x` of shape `from`; an error names a resize that ONNX cannot express.
    pub(crate) fn resize(&mut self, op: &Resize, x: String, from: &Shape) -> Result<(), String> {
        let mut attributes = vec![Attribute::text("coordinate_transformation_mode", coordinates(&op.coordinates))];
        if op.antialias {
            attributes.push(Attribute::flag("antialias", true));
        }
        match op.mode {
            ResizeMode::Nearest(rounding) => {
                attributes.push(Attribute::text("mode", "nearest"));
                attributes.push(Attribute::text("nearest_mode", nearest(rounding)));
            }
            ResizeMode::Linear => attributes.push(Attribute::text("mode", "linear")),
            ResizeMode::Cubic { a, exclude_outside } => {
                attributes.push(Attribute::text("mode", "cubic"));
                attributes.push(Attribute::float("cubic_coeff_a", a));
                attributes.push(Attribute::flag("exclude_outside", exclude_outside));
            }
        }
        let region = match &op.coordinates {
            // All starts, then all ends.
            Coordinates::Region(parts) => {
                let ends: Vec<f32> = (0..2).flat_map(|end| parts.iter().map(move |part| part[end])).collect();
                self.constant(Tensor::vector(ends))
            }
            _ => String::new(),
        };
        let inputs = match Target::of(op, from)? {
            Target::Sizes => vec![x, region, String::new(), self.extents(&op.shape)],
            Target::Scales => vec![x, region, self.constant(Tensor::vector(op.scale.to_vec()))],
            Target::Policy(policy, axes) => {
                attributes.push(Attribute::text("keep_aspect_ratio_policy", policy));
                attributes.push(Attribute::ints("axes", axes.iter().copied()));
                let sizes: Vec<usize> = axes.iter().map(|&axis| op.shape[axis]).collect();
                vec![x, region, String::new(), self.extents(&sizes)]
            }
        };
        self.push_all("Resize", inputs, attributes);
        Ok(())
    }
}

fn coordinates(coordinates: &Coordinates) -> &'static str {
    match coordinates {
        Coordinates::HalfPixel => "half_pixel",
        Coordinates::HalfPixelSymmetric => "half_pixel_symmetric",
        Coordinates::PytorchHalfPixel => "pytorch_half_pixel",
        Coordinates::Asymmetric => "asymmetric",
        Coordinates::AlignCorners => "align_corners",
        // Outside the input ONNX uses 0 and `ir` the edge value; graphs that need other values replace them after it.
        Coordinates::Region(_) => "tf_crop_and_resize",
    }
}

fn nearest(rounding: Rounding) -> &'static str {
    match rounding {
        Rounding::HalfDown => "round_prefer_floor",
        Rounding::HalfUp => "round_prefer_ceil",
        Rounding::Floor => "floor",
        Rounding::Ceil => "ceil",
    }
}

/// The way a file states the result of a resize: extents or scales; the other follows.
enum Target {
    /// Scales are quotients of extents.
    Sizes,
    /// Extents are those of the input, scaled and rounded down.
    Scales,
    /// One scale for some axes, the largest or the least quotient of the requested extents.
    Policy(&'static str, Vec<usize>),
}

impl Target {
    fn of(op: &Resize, from: &Shape) -> Result<Target, String> {
        let all = || from.iter().zip(&op.shape[..]).zip(&op.scale);
        if all().all(|((&from, &to), &scale)| to as f32 / from as f32 == scale) {
            return Ok(Target::Sizes);
        }
        if all().all(|((&from, &to), &scale)| (from as f32 * scale) as usize == to) {
            return Ok(Target::Scales);
        }
        let axes: Vec<usize> = (0..from.rank()).filter(|&axis| op.scale[axis] != 1.0).collect();
        let scale = axes.first().map_or(1.0, |&axis| op.scale[axis]);
        let quotients = axes.iter().map(|&axis| op.shape[axis] as f32 / from[axis] as f32);
        let rounded = |axis: usize| (from[axis] as f32 * scale + 0.5) as usize == op.shape[axis];
        let policy = match (quotients.clone().reduce(f32::min), quotients.reduce(f32::max)) {
            (Some(least), _) if least == scale => "not_larger",
            (_, Some(largest)) if largest == scale => "not_smaller",
            _ => "",
        };
        match !policy.is_empty() && axes.iter().all(|&axis| op.scale[axis] == scale && rounded(axis)) {
            true => Ok(Target::Policy(policy, axes)),
            false => Err("a resize to extents that do not follow from its scales".into()),
        }
    }
}
