//! Shapes, concatenation, padding and other moves of elements.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::{Shape, Tensor, broadcast};

use super::normalize::flat_axis;
use crate::common::{NodeResult, axes, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

pub(super) fn reshape(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let Some(wanted) = node.ints_or_input("shape", 1, 4)? else { refuse!("`shape` is missing") };
    let keeps_zero = node.flag("allowzero")?;
    let shape = node.shape(x);
    let mut open = None;
    let mut out = Shape::scalar();
    for (ix, &extent) in wanted.iter().enumerate() {
        out.push(match extent {
            0 if keeps_zero => 0,
            0 if ix < shape.rank() => shape[ix],
            0 => refuse!("`shape` copies axis {ix}, which must be within {shape}"),
            -1 if open.is_none() => {
                open = Some(ix);
                1
            }
            extent => counts(&[extent], "shape")?[0],
        });
    }
    if let Some(open) = open {
        let rest = out.elements();
        if rest == 0 || !shape.elements().is_multiple_of(rest) {
            refuse!("{shape} cannot be reshaped to {wanted:?}: no extent fits for -1");
        }
        out[open] = shape.elements() / rest;
    }
    Ok(vec![node.reshape(x, out)?])
}

pub(super) fn flatten(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let at = flat_axis(node, &shape)?;
    let product = |extents: &[usize]| Shape::from(extents).elements();
    let out = Shape::from([product(&shape[..at]), product(&shape[at..])]);
    Ok(vec![node.reshape(x, out)?])
}

pub(super) fn squeeze(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axes = match node.ints_or_input("axes", 1, 12)? {
        Some(list) => axes(&list, shape.rank())?,
        None => (0..shape.rank()).filter(|&axis| shape[axis] == 1).collect(),
    };
    if let Some(axis) = axes.iter().find(|&&axis| shape[axis] != 1) {
        refuse!("axis {axis} must have extent 1 to be squeezed, got {shape}");
    }
    let out = (0..shape.rank()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
    Ok(vec![node.reshape(x, out)?])
}

pub(super) fn unsqueeze(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let Some(list) = node.ints_or_input("axes", 1, 12)? else { refuse!("`axes` is missing") };
    let rank = shape.rank() + list.len();
    let axes = axes(&list, rank)?;
    let mut left = shape.iter().copied();
    let out = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { left.next().unwrap_or(1) }).collect();
    Ok(vec![node.reshape(x, out)?])
}

pub(super) fn transpose(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let order: SmallVec<[usize; 6]> = match node.ints("perm")? {
        Some(list) => list.iter().map(|&item| axis(item, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![node.transpose(x, &order)?])
}

pub(super) fn expand(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let wanted: Shape = counts(&node.constant_ints(1, "shape")?, "shape")?.into_iter().collect();
    // The requested shape is broadcast with that of the operand.
    let out = broadcast(&node.shape(x), &wanted).map_err(|error| Refusal(error.to_string()))?;
    Ok(vec![node.expand(x, out)?])
}

pub(super) fn tile(node: &mut ImportedNode) -> NodeResult {
    if node.opset() < 6 {
        refuse!("`Tile` before opset 6 is not supported");
    }
    let x = node.input(0)?;
    let shape = node.shape(x);
    let repeats = counts(&node.constant_ints(1, "repeats")?, "repeats")?;
    if repeats.len() != shape.rank() {
        refuse!("`repeats` must have one number per axis, got {} for {} axes", repeats.len(), shape.rank());
    }
    Ok(vec![node.tiled(x, &repeats)?])
}

pub(super) fn concat(node: &mut ImportedNode) -> NodeResult {
    let inputs = node.all_inputs()?;
    let default = if node.opset() < 4 { Some(1) } else { None };
    let Some(at) = node.int("axis")?.or(default) else { refuse!("attribute `axis` is missing") };
    let axis = axis(at, node.shape(inputs[0]).rank())?;
    match inputs[..] {
        [x] => Ok(vec![x]),
        _ => Ok(vec![node.apply(ops::Concat { axis }, &inputs)?]),
    }
}

/// Attributes up to opset 10 (`paddings` in opset 1), operands from then on; `axes` from opset 18 on.
pub(super) fn pad(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let name = if node.opset() < 2 { "paddings" } else { "pads" };
    let Some(list) = node.ints_or_input(name, 1, 10)? else { refuse!("`{name}` is missing") };
    let value = match (node.opset() < 11, node.optional(2)) {
        (true, _) => f64::from(node.float_or("value", 0.0)?),
        (false, None) => 0.0,
        (false, Some(_)) => node.constant_number(2, "constant_value")?,
    };
    let along: SmallVec<[usize; 4]> = match node.optional(3) {
        Some(_) => node.constant_ints(3, "axes")?.iter().map(|&item| axis(item, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if list.len() != 2 * along.len() {
        refuse!("`{name}` must have two numbers per axis, got {} for {} axes", list.len(), along.len());
    }
    if let Some(item) = list.iter().find(|item| item.unsigned_abs() > 1 << 40) {
        refuse!("`{name}`: {item} is not supported");
    }
    let mode = match node.text_or("mode", "constant") {
        "constant" => ops::PadMode::Constant(value),
        "edge" => ops::PadMode::Edge,
        "reflect" => ops::PadMode::Reflect,
        "wrap" => ops::PadMode::Wrap,
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], rank);
    for (ix, &axis) in along.iter().enumerate() {
        pad[axis] = [list[ix] as isize, list[along.len() + ix] as isize];
    }
    if pad.iter().all(|pad| *pad == [0, 0]) {
        return Ok(vec![x]);
    }
    Ok(vec![node.apply(ops::Pad { mode, pad }, &[x])?])
}

pub(super) fn shape(node: &mut ImportedNode) -> NodeResult {
    let shape = node.shape(node.input(0)?);
    let rank = shape.rank() as i64;
    let bound = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (bound(node.int_or("start", 0)?), bound(node.int_or("end", rank)?));
    let extents: Vec<i64> = shape[start..end.max(start)].iter().map(|&extent| extent as i64).collect();
    Ok(vec![node.constant(Tensor::vector(extents))])
}

pub(super) fn size(node: &mut ImportedNode) -> NodeResult {
    let elements = node.shape(node.input(0)?).elements();
    Ok(vec![node.constant(Tensor::scalar(elements as i64))])
}

/// Attribute `blocksize`, which must be >= 1.
fn block(node: &ImportedNode) -> Result<usize, Refusal> {
    match node.int("blocksize")? {
        Some(block @ 1..=0x1_0000) => Ok(block as usize),
        Some(block) => refuse!("attribute `blocksize`: {block} is not supported"),
        None => refuse!("attribute `blocksize` is missing"),
    }
}

/// Attribute `mode`: whether the depth varies slowest (`CRD`) instead of the cells of a block.
fn mode(node: &ImportedNode) -> Result<bool, Refusal> {
    match node.text_or("mode", "DCR") {
        "DCR" => Ok(false),
        "CRD" => Ok(true),
        other => refuse!("attribute `mode` must be `DCR` or `CRD`, got `{other}`"),
    }
}

pub(super) fn depth_to_space(node: &mut ImportedNode) -> NodeResult {
    let (x, block) = (node.input(0)?, block(node)?);
    let depth_first = mode(node)?;
    Ok(vec![node.depth_to_space(x, block, depth_first)?])
}

pub(super) fn space_to_depth(node: &mut ImportedNode) -> NodeResult {
    let (x, block) = (node.input(0)?, block(node)?);
    let depth_first = mode(node)?;
    Ok(vec![node.space_to_depth(x, block, depth_first)?])
}

/// Crops or pads each axis to its extent, equally at both ends; an odd element is at the end.
pub(super) fn center_crop_pad(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    let rank = node.shape(x).rank();
    let wanted = counts(&node.constant_ints(1, "shape")?, "shape")?;
    let along: SmallVec<[usize; 4]> = match node.ints("axes")? {
        None => (0..rank).collect(),
        Some(list) => list.iter().map(|&item| axis(item, rank)).collect::<Result<_, _>>()?,
    };
    if along.len() != wanted.len() {
        refuse!("`shape` must have one number per axis, got {} for {} axes", wanted.len(), along.len());
    }
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], rank);
    for (&axis, &wanted) in along.iter().zip(&wanted) {
        let shape = node.shape(x);
        match shape[axis].checked_sub(wanted) {
            Some(0) => {}
            Some(less) => x = node.apply(ops::Slice::range(&shape, axis, less / 2, wanted), &[x])?,
            None => {
                let more = wanted - shape[axis];
                pad[axis] = [(more / 2) as isize, (more - more / 2) as isize];
            }
        }
    }
    if pad.iter().all(|pad| *pad == [0, 0]) {
        return Ok(vec![x]);
    }
    Ok(vec![node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[x])?])
}
