//! Boxes in images: non-maximum suppression and RoiAlign.

use ir::ops::ReduceKind;
use ir::{Refusal, ops};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use super::grid::{Mode, OutsideMode, Sampler};
use crate::common::{NodeResult, counts, refuse};
use crate::onnx::node::ImportedNode;

/// `x: [n, c, h, w]`, `boxes: [r, 4]` from corner to corner, `images: [r]` -> `[r, c, output_height, output_width]`: each box
/// is divided into bins, and each bin is the mean or the maximum of a grid of samples.
pub(super) fn roi_align(node: &mut ImportedNode) -> NodeResult {
    let (x, boxes, images) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (shape, count) = (node.shape(x), node.shape(boxes)[..].first().copied().unwrap_or(0));
    if shape.rank() != 4 || node.shape(boxes)[..] != [count, 4] || node.shape(images)[..] != [count] {
        refuse!(
            "boxes and their image indices must be [r, 4] and [r] for input {shape}, got {} and {}",
            node.shape(boxes),
            node.shape(images)
        );
    }
    if [x, boxes].iter().any(|&operand| node.dtype(operand) != DType::F32) || shape.elements() == 0 {
        refuse!("input must be f32 and not empty, got {}{shape}", node.dtype(x));
    }
    let (kind, join) = match node.text_or("mode", "avg") {
        "avg" => (ReduceKind::Mean, Binary::Add),
        // ONNX defines the maximum over the four weighted cells, not over their sums.
        "max" => (ReduceKind::Max, Binary::Max),
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let default = if node.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half_pixel = match node.text_or("coordinate_transformation_mode", default) {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => refuse!("attribute `coordinate_transformation_mode`: `{other}` is not supported"),
    };
    let scale = f64::from(node.float_or("spatial_scale", 1.0)?);
    let bins = counts(&[node.int_or("output_height", 1)?, node.int_or("output_width", 1)?], "output_height")?;
    let samples = counts(&[node.int_or("sampling_ratio", 0)?], "sampling_ratio")?[0];
    if samples == 0 {
        refuse!(
            "attribute `sampling_ratio` must not be 0: a number of samples that depends on the box is not supported"
        );
    }
    if bins.iter().any(|&bins| !(1..=1 << 12).contains(&bins)) || 1 << 8 < samples {
        refuse!("{bins:?} bins of {samples} x {samples} samples are not supported");
    }
    let places = Shape::from([count, bins[0] * samples, bins[1] * samples]);
    let (mut taps, mut inside) = (Vec::new(), None);
    for axis in 0..2 {
        // Columns: left, top, right, bottom.
        let corner = |node: &mut ImportedNode, column: usize| {
            let corner = node.apply(ops::Slice::range(&Shape::from([count, 4]), 1, column, 1), &[boxes])?;
            let (scale, half) = (node.number(scale, DType::F32), node.number(0.5, DType::F32));
            let corner = node.binary(Binary::Mul, corner, scale)?;
            if half_pixel { node.binary(Binary::Sub, corner, half) } else { Ok(corner) }
        };
        let (start, end) = (corner(node, 1 - axis)?, corner(node, 3 - axis)?);
        let mut size = node.binary(Binary::Sub, end, start)?;
        if !half_pixel {
            let one = node.number(1.0, DType::F32);
            size = node.binary(Binary::Max, size, one)?;
        }
        let whole = node.number(bins[axis] as f64, DType::F32);
        let bin = node.binary(Binary::Div, size, whole)?;
        let steps = Shape::from([1, places[axis + 1]]);
        let steps = node.constant_of(steps, |at| (at as f32 + 0.5) / samples as f32)?;
        let way = node.binary(Binary::Mul, bin, steps)?;
        let at = node.binary(Binary::Add, start, way)?;
        let mut spread = Shape::from([count, 1, 1]);
        spread[axis + 1] = places[axis + 1];
        let at = node.reshape(at, spread)?;
        // Samples up to one cell outside are clamped to the edge, those farther out are 0.
        let extent = shape[axis + 2] as f64;
        let (low, high) = (node.number(-1.0, DType::F32), node.number(extent, DType::F32));
        let is_behind = node.compare(Compare::GreaterOrEqual, at, low)?;
        let is_before = node.compare(Compare::LessOrEqual, at, high)?;
        let is_inside = node.binary(Binary::And, is_behind, is_before)?;
        inside = Some(match inside {
            None => is_inside,
            Some(other) => node.binary(Binary::And, other, is_inside)?,
        });
        let held = node.unary(Unary::Clip { min: 0.0, max: extent as f32 - 1.0 }, at)?;
        taps.push(Mode::Linear.taps(node, held)?);
    }
    let images = node.cast(images, DType::I64)?;
    let images = node.reshape(images, Shape::from([count, 1, 1]))?;
    let sampler = Sampler::new(node, x, images, OutsideMode::Border, &places, Mode::Linear)?;
    let mut y = sampler.sampled(node, &taps, &places, join)?;
    if let Some(inside) = inside {
        let mut spread = places;
        spread.push(1);
        let (inside, zero) = (node.reshape(inside, spread)?, node.number(0.0, DType::F32));
        y = node.select(inside, y, zero)?;
    }
    let y = node.reshape(y, Shape::from([count, bins[0], samples, bins[1], samples, shape[1]]))?;
    let y = node.reduce(kind, y, smallvec![2, 4], false)?;
    Ok(vec![node.transpose(y, &[0, 3, 1, 2])?])
}

/// Corners in increasing order: top, left, bottom, right.
#[derive(Clone, Copy)]
struct Rectangle {
    low: [f32; 2],
    high: [f32; 2],
}

impl Rectangle {
    /// From two opposite corners, or from center, width and height.
    fn read(numbers: &[f32], is_middle: bool) -> Rectangle {
        let (a, b, c, d) = (numbers[0], numbers[1], numbers[2], numbers[3]);
        match is_middle {
            true => Rectangle { low: [b - d / 2.0, a - c / 2.0], high: [b + d / 2.0, a + c / 2.0] },
            false => Rectangle { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] },
        }
    }

    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Intersection over union.
    fn overlap(&self, other: &Rectangle) -> f32 {
        let both = Rectangle {
            low: [self.low[0].max(other.low[0]), self.low[1].max(other.low[1])],
            high: [self.high[0].min(other.high[0]), self.high[1].min(other.high[1])],
        };
        if both.high[0] <= both.low[0] || both.high[1] <= both.low[1] {
            return 0.0;
        }
        let (a, b, common) = (self.area(), other.area(), both.area());
        let union = a + b - common;
        if a <= 0.0 || b <= 0.0 || union <= 0.0 { 0.0 } else { common / union }
    }
}

/// `boxes: [n, b, 4]`, `scores: [n, classes, b]`, both constant -> `[kept, 3]` with batch, class and box: per class, boxes by
/// decreasing score, without those that overlap a better one too much.
pub(super) fn non_max_suppression(node: &mut ImportedNode) -> NodeResult {
    let (boxes, scores) = (node.constant_for_shape(0, "boxes")?, node.constant_for_shape(1, "scores")?);
    let is_middle = match node.int_or("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => refuse!("attribute `center_point_box`: {other} is not supported"),
    };
    let number = |node: &ImportedNode, ix: usize, name: &str| match node.optional(ix) {
        None => Ok(None),
        Some(_) => node.constant_number(ix, name).map(Some),
    };
    let most = number(node, 2, "max_output_boxes_per_class")?.unwrap_or(0.0).max(0.0) as usize;
    let overlap_most = number(node, 3, "iou_threshold")?.unwrap_or(0.0) as f32;
    let score_least = number(node, 4, "score_threshold")?.map(|least| least as f32);
    let (&[n, count, 4], &[batches, classes, others]) = (&boxes.shape()[..], &scores.shape()[..]) else {
        refuse!("boxes and scores must have rank 3, got {} and {}", boxes.shape(), scores.shape());
    };
    let (Some(boxes), Some(scores)) = (boxes.as_slice::<f32>(), scores.as_slice::<f32>()) else {
        refuse!("boxes and scores must be f32");
    };
    if [batches, others] != [n, count] {
        refuse!("scores must be given for {n} x {count} boxes, got {batches} x {others}");
    }
    let work = [n, classes, count, most.min(count)].iter().fold(1usize, |product, &size| product.saturating_mul(size));
    if 1 << 28 < work {
        refuse!("{classes} classes of {count} boxes are too many to compare while loading");
    }
    let mut kept = Vec::new();
    for (row, scores) in scores.chunks_exact(count.max(1)).enumerate() {
        let (batch, class) = (row / classes, row % classes);
        let rectangle = |ix: usize| Rectangle::read(&boxes[(batch * count + ix) * 4..][..4], is_middle);
        let mut candidates: Vec<usize> =
            (0..count).filter(|&ix| score_least.is_none_or(|least| least < scores[ix])).collect();
        // Of equal scores, the first box comes first.
        candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut chosen: Vec<Rectangle> = Vec::new();
        for ix in candidates {
            if most <= chosen.len() {
                break;
            }
            let candidate = rectangle(ix);
            if chosen.iter().all(|better| better.overlap(&candidate) <= overlap_most) {
                chosen.push(candidate);
                kept.extend([batch as i64, class as i64, ix as i64]);
            }
        }
    }
    let kept = Tensor::new(Shape::from([kept.len() / 3, 3]), kept).map_err(|error| Refusal(error.to_string()))?;
    Ok(vec![node.constant(kept)])
}
