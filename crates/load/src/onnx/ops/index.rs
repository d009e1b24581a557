//! Parts of tensors, and tensors from indices.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor};

use super::normalize::flat_axis;
use crate::onnx::builder::Operand;
use crate::onnx::call::{Call, axis, counts, refuse};

type Yield = Result<Vec<Operand>, Refusal>;

pub(super) fn gather(call: &mut Call) -> Yield {
    let (table, index) = (call.input(0)?, call.input(1)?);
    let shape = call.shape(table);
    let axis = axis(call.int_or("axis", 0)?, shape.rank())?;
    if let Some(known) = call.peek(index) {
        let extent = shape[axis] as i64;
        if let Some(outside) = known.to_i64().iter().find(|&&ix| !(-extent..extent).contains(&ix)) {
            refuse!("index {outside} lies outside axis {axis} of {shape}");
        }
    }
    Ok(vec![call.apply(ops::Gather { axis }, &[table, index])?])
}

/// Attributes up to opset 9, operands from then on. Bounds outside the axis are moved to its ends.
pub(super) fn slice(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let list = |name: &str, ix: usize| call.ints_or_input(name, ix, 9);
    let (Some(starts), Some(ends)) = (list("starts", 1)?, list("ends", 2)?) else {
        refuse!("`starts` or `ends` is missing")
    };
    let along = list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match call.optional(4) {
        Some(_) => call.known_ints(4, "steps")?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        refuse!("`starts`, `ends`, `axes` and `steps` do not have the same length");
    }
    let mut slice = ops::Slice {
        start: SmallVec::from_elem(0, shape.rank()),
        step: SmallVec::from_elem(1, shape.rank()),
        count: shape.clone(),
    };
    for ix in 0..starts.len() {
        let axis = axis(along[ix], shape.rank())?;
        let (extent, step) = (shape[axis] as i64, steps[ix]);
        let counted = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (start, end) = (counted(starts[ix]), counted(ends[ix]));
        let (start, span) = match step {
            0 => refuse!("`steps` has the number 0"),
            1.. => {
                let start = start.clamp(0, extent);
                (start, end.clamp(0, extent) - start)
            }
            _ => {
                let start = start.clamp(-1, extent - 1);
                (start, start - end.clamp(-1, extent - 1))
            }
        };
        let step_size = i64::try_from(step.unsigned_abs()).unwrap_or(i64::MAX);
        let count = if span <= 0 { 0 } else { (span - 1) / step_size + 1 };
        slice.count[axis] = count as usize;
        slice.start[axis] = if count == 0 { 0 } else { start as usize };
        slice.step[axis] = if count <= 1 { 1 } else { step as isize };
    }
    if slice.count == shape && slice.step.iter().all(|&step| step == 1) {
        return Ok(vec![x]);
    }
    Ok(vec![call.apply(slice, &[x])?])
}

/// Lengths are an attribute up to opset 12 and an operand from then on; without them the parts are alike.
pub(super) fn split(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let axis = axis(call.int_or("axis", 0)?, shape.rank())?;
    let parts = call.n_outputs();
    // Before opset 2 lengths could also be an operand.
    let last = if call.opset < 2 && call.optional(1).is_some() { 0 } else { 12 };
    let lengths = call.ints_or_input("split", 1, last)?;
    let declared = call.int("num_outputs")?;
    if declared.is_some_and(|declared| declared != parts as i64) {
        refuse!("attribute `num_outputs` does not match {parts} outputs");
    }
    let lengths = match lengths {
        Some(lengths) => counts(&lengths, "split")?,
        None => {
            if parts == 0 || (call.opset < 18 && !shape[axis].is_multiple_of(parts)) {
                refuse!("axis {axis} of {shape} does not fall into {parts} equal parts");
            }
            // The last part takes what is left.
            let length = shape[axis].div_ceil(parts);
            (0..parts).map(|ix| length.min(shape[axis].saturating_sub(ix * length))).collect()
        }
    };
    if lengths.len() < parts || lengths.iter().fold(0usize, |sum, &length| sum.saturating_add(length)) != shape[axis] {
        refuse!("parts of {lengths:?} do not make up axis {axis} of {shape}");
    }
    let mut start = 0;
    let mut outputs = Vec::new();
    for (ix, length) in lengths.into_iter().take(parts).enumerate() {
        // Parts that nobody reads are not cut out; any operand stands in their place.
        outputs.push(match call.wants(ix) && length != shape[axis] {
            true => call.apply(ops::Slice::range(&shape, axis, start, length), &[x])?,
            false => x,
        });
        start += length;
    }
    Ok(outputs)
}

/// `0, 1, ..` along `axis`, with extents of 1 elsewhere.
fn positions(call: &mut Call, extent: usize, axis: usize, rank: usize) -> Result<Operand, Refusal> {
    let mut shape: Shape = (0..rank).map(|_| 1).collect();
    shape[axis] = extent;
    call.reserve(DType::I64, &shape)?;
    let positions = Tensor::from_fn(shape, |at| at as i64);
    Ok(call.constant(positions))
}

pub(super) fn one_hot(call: &mut Call) -> Yield {
    let (index, values) = (call.input(0)?, call.input(2)?);
    let depth = call.known_number(1, "depth")?;
    if !(1.0..=1e12).contains(&depth) || call.shape(values)[..] != [2] {
        refuse!("`depth` is {depth} and `values` has shape {}, not [2]", call.shape(values));
    }
    let mut shape = call.shape(index);
    let axis = axis(call.int_or("axis", -1)?, shape.rank() + 1)?;
    shape.insert(axis, 1);
    let rank = shape.rank();
    let mut index = call.cast(index, DType::I64)?;
    index = call.reshape(index, shape)?;
    // Negative indices count from the end.
    let (zero, depth_operand) = (call.number(0.0, DType::I64), call.number(depth, DType::I64));
    let is_negative = call.compare(Compare::Less, index, zero)?;
    let counted = call.binary(Binary::Add, index, depth_operand)?;
    index = call.select(is_negative, counted, index)?;
    let positions = positions(call, depth as usize, axis, rank)?;
    let hot = call.compare(Compare::Equal, positions, index)?;
    let values_shape = call.shape(values);
    let off = call.apply(ops::Slice::range(&values_shape, 0, 0, 1), &[values])?;
    let on = call.apply(ops::Slice::range(&values_shape, 0, 1, 1), &[values])?;
    Ok(vec![call.select(hot, on, off)?])
}

/// 1 at the first largest element along an axis; before opset 13 everything from `axis` on is one.
pub(super) fn hardmax(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let (flat, axis) = match call.opset < 13 {
        false => (shape.clone(), axis(call.int_or("axis", -1)?, shape.rank())?),
        true => {
            let at = flat_axis(call, &shape)?;
            let product = |extents: &[usize]| Shape::from(extents).elements();
            (Shape::from([product(&shape[..at]), product(&shape[at..])]), 1)
        }
    };
    let x = call.reshape(x, flat.clone())?;
    let best = call.apply(ops::ArgExtreme { axis, keep: true, max: true, last: false }, &[x])?;
    let positions = positions(call, flat[axis], axis, flat.rank())?;
    let hot = call.compare(Compare::Equal, positions, best)?;
    let y = call.cast(hot, DType::F32)?;
    Ok(vec![call.reshape(y, shape)?])
}
