//! Slicing and indexing.

use ir::ops;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor};

use super::normalize::flat_axis;
use crate::common::{NodeResult, StridedRange, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

pub(super) fn gather(node: &mut ImportedNode) -> NodeResult {
    let (table, index) = (node.input(0)?, node.input(1)?);
    let shape = node.shape(table);
    let axis = axis(node.int_or("axis", 0)?, shape.rank())?;
    if let Some(known) = node.constant_value(index) {
        let extent = shape[axis] as i64;
        if let Some(outside) = known.to_i64().iter().find(|&&ix| !(-extent..extent).contains(&ix)) {
            refuse!("indices must be within axis {axis} of {shape}, got {outside}");
        }
    }
    Ok(vec![node.apply(ops::Gather { axis }, &[table, index])?])
}

/// Attributes up to opset 9, operands from then on. Bounds are clamped.
pub(super) fn slice(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let list = |name: &str, ix: usize| node.ints_or_input(name, ix, 9);
    let (Some(starts), Some(ends)) = (list("starts", 1)?, list("ends", 2)?) else {
        refuse!("`starts` and `ends` are required")
    };
    let along = list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match node.optional(4) {
        Some(_) => node.constant_ints(4, "steps")?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        refuse!("`starts`, `ends`, `axes` and `steps` must have equal lengths");
    }
    let mut slice = ops::Slice::whole(&shape);
    for ix in 0..starts.len() {
        let axis = axis(along[ix], shape.rank())?;
        let span = StridedRange { begin: Some(starts[ix]), end: Some(ends[ix]), step: steps[ix] };
        span.narrow(&mut slice, axis, shape[axis])?;
    }
    if slice.count == shape && slice.step.iter().all(|&step| step == 1) {
        return Ok(vec![x]);
    }
    Ok(vec![node.apply(slice, &[x])?])
}

/// Lengths are an attribute up to opset 12 and an operand from then on; if absent, the parts are equal.
pub(super) fn split(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = axis(node.int_or("axis", 0)?, shape.rank())?;
    let parts = node.n_outputs();
    // Before opset 2 lengths could also be an operand.
    let last = if node.opset() < 2 && node.optional(1).is_some() { 0 } else { 12 };
    let lengths = node.ints_or_input("split", 1, last)?;
    let declared = node.int("num_outputs")?;
    if declared.is_some_and(|declared| declared != parts as i64) {
        refuse!("attribute `num_outputs` must be {parts}, the number of outputs");
    }
    let lengths = match lengths {
        Some(lengths) => counts(&lengths, "split")?,
        None => {
            if parts == 0 || (node.opset() < 18 && !shape[axis].is_multiple_of(parts)) {
                refuse!("axis {axis} of {shape} must be a multiple of {parts}");
            }
            // The last part may be shorter.
            let length = shape[axis].div_ceil(parts);
            (0..parts).map(|ix| length.min(shape[axis].saturating_sub(ix * length))).collect()
        }
    };
    if lengths.len() < parts || lengths.iter().fold(0usize, |sum, &length| sum.saturating_add(length)) != shape[axis] {
        refuse!("lengths must add up to axis {axis} of {shape}, got {lengths:?}");
    }
    let mut start = 0;
    let mut outputs = Vec::new();
    for (ix, length) in lengths.into_iter().take(parts).enumerate() {
        // Unused parts are not sliced; any operand takes their place.
        outputs.push(match node.has_output(ix) && length != shape[axis] {
            true => node.apply(ops::Slice::range(&shape, axis, start, length), &[x])?,
            false => x,
        });
        start += length;
    }
    Ok(outputs)
}

pub(super) fn one_hot(node: &mut ImportedNode) -> NodeResult {
    let (index, values) = (node.input(0)?, node.input(2)?);
    let depth = node.constant_number(1, "depth")?;
    if !(1.0..=1e12).contains(&depth) {
        refuse!("`depth` must be in 1..=10^12, got {depth}");
    }
    if node.shape(values)[..] != [2] {
        refuse!("`values` must have shape [2], got {}", node.shape(values));
    }
    let mut shape = node.shape(index);
    let axis = axis(node.int_or("axis", -1)?, shape.rank() + 1)?;
    shape.insert(axis, 1);
    let rank = shape.rank();
    let index = node.wrap_negative(index, depth as usize)?;
    let index = node.reshape(index, shape)?;
    let positions = node.positions(depth as usize, axis, rank)?;
    let hot = node.compare(Compare::Equal, positions, index)?;
    let values_shape = node.shape(values);
    let off = node.apply(ops::Slice::range(&values_shape, 0, 0, 1), &[values])?;
    let on = node.apply(ops::Slice::range(&values_shape, 0, 1, 1), &[values])?;
    Ok(vec![node.select(hot, on, off)?])
}

/// 1 at the first largest element along an axis; before opset 13 the axes from `axis` on are flattened.
pub(super) fn hardmax(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let (flat, axis) = match node.opset() < 13 {
        false => (shape.clone(), axis(node.int_or("axis", -1)?, shape.rank())?),
        true => {
            let at = flat_axis(node, &shape)?;
            let product = |extents: &[usize]| Shape::from(extents).elements();
            (Shape::from([product(&shape[..at]), product(&shape[at..])]), 1)
        }
    };
    let x = node.reshape(x, flat.clone())?;
    let best = node.apply(ops::ArgExtreme { axis, keep: true, max: true, last: false }, &[x])?;
    let positions = node.positions(flat[axis], axis, flat.rank())?;
    let hot = node.compare(Compare::Equal, positions, best)?;
    let y = node.cast(hot, DType::F32)?;
    Ok(vec![node.reshape(y, shape)?])
}

pub(super) fn gather_elements(node: &mut ImportedNode) -> NodeResult {
    let (x, index) = (node.input(0)?, node.input(1)?);
    let axis = axis(node.int_or("axis", 0)?, node.shape(x).rank())?;
    Ok(vec![node.elements_along(x, index, axis)?])
}

/// Indices are vectors along the last axis; they select slices of the remaining axes.
pub(super) fn gather_nd(node: &mut ImportedNode) -> NodeResult {
    let (x, index) = (node.input(0)?, node.input(1)?);
    let (shape, places) = (node.shape(x), node.shape(index));
    let batch = counts(&[node.int_or("batch_dims", 0)?], "batch_dims")?[0];
    let Some((&named, outer)) = places.split_last() else { refuse!("indices must have rank >= 1") };
    if outer.len() < batch || shape.rank() < batch + named || shape[..batch] != places[..batch] {
        refuse!("indices of shape {places} with {batch} batch axes do not fit {shape}");
    }
    let mut indices = Vec::new();
    for axis in 0..batch {
        indices.push(node.positions(shape[axis], axis, outer.len())?);
    }
    indices.extend(node.index_vectors(index, &shape[batch..batch + named])?);
    let (rows, inner) = shape.split_at(batch + named);
    let flat = node.flat_index(&indices, rows)?;
    let flat = node.expand(flat, Shape::from(outer))?;
    let table: Shape = [rows.iter().product()].into_iter().chain(inner.iter().copied()).collect();
    let table = node.reshape(x, table)?;
    Ok(vec![node.rows(table, flat)?])
}

/// Reverses the first elements of each sequence; `batch_axis` and `time_axis` are 0 and 1.
pub(super) fn reverse_sequence(node: &mut ImportedNode) -> NodeResult {
    let (x, lengths) = (node.input(0)?, node.input(1)?);
    let shape = node.shape(x);
    let time = match (node.int_or("time_axis", 0)?, node.int_or("batch_axis", 1)?) {
        (0, 1) => 0,
        (1, 0) => 1,
        (time, batch) => refuse!("attributes `time_axis` and `batch_axis` must be 0 and 1, got {time} and {batch}"),
    };
    if shape.rank() < 2 || node.shape(lengths)[..] != [shape[1 - time]] {
        refuse!("lengths must have one element per batch of {shape}, got shape {}", node.shape(lengths));
    }
    let rank = shape.rank();
    let lengths = node.cast(lengths, DType::I64)?;
    let lengths = node.aligned(lengths, 1 - time, rank)?;
    let steps = node.positions(shape[time], time, rank)?;
    let is_within = node.compare(Compare::Less, steps, lengths)?;
    let one = node.number(1.0, DType::I64);
    let last = node.binary(Binary::Sub, lengths, one)?;
    let turned = node.binary(Binary::Sub, last, steps)?;
    let from = node.select(is_within, turned, steps)?;
    let index = node.expand(from, shape)?;
    Ok(vec![node.elements_along(x, index, time)?])
}

/// The elements where a constant condition is true; without an axis those of the flattened tensor.
pub(super) fn compress(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    let condition = node.constant_input(1, "condition")?.to_i64();
    let at = match node.int("axis")? {
        Some(at) => axis(at, node.shape(x).rank())?,
        None => {
            let elements = node.shape(x).elements();
            x = node.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let kept: Vec<i64> = (0..).zip(&condition).filter(|(_, keep)| **keep != 0).map(|(ix, _)| ix).collect();
    if kept.last().is_some_and(|&last| node.shape(x)[at] as i64 <= last) {
        refuse!("the condition must not be longer than axis {at} of {}", node.shape(x));
    }
    let kept = node.constant(Tensor::vector(kept));
    Ok(vec![node.apply(ops::Gather { axis: at }, &[x, kept])?])
}

pub(super) fn top_k(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["sorted"]);
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = axis(node.int_or("axis", -1)?, shape.rank())?;
    let k = match node.opset() < 10 {
        true => node.int("k")?.unwrap_or(-1),
        false => node.constant_number(1, "K")? as i64,
    };
    let k = counts(&[k], "k")?[0];
    if shape[axis] < k {
        refuse!("`k` must be at most the extent of axis {axis} of {shape}, got {k}");
    }
    let largest = node.int_or("largest", 1)? != 0;
    node.apply_all(ops::TopK { axis, k, largest }, &[x])
}
