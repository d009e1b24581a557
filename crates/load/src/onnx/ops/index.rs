//! Parts of tensors, and tensors from indices.

use ir::{Refusal, ops};
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor};

use super::normalize::flat_axis;
use crate::common::{Operand, Span, axis, counts, refuse};
use crate::onnx::call::Call;

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
    let mut slice = ops::Slice::whole(&shape);
    for ix in 0..starts.len() {
        let axis = axis(along[ix], shape.rank())?;
        let span = Span { begin: Some(starts[ix]), end: Some(ends[ix]), step: steps[ix] };
        span.narrow(&mut slice, axis, shape[axis])?;
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
    let last = if call.opset() < 2 && call.optional(1).is_some() { 0 } else { 12 };
    let lengths = call.ints_or_input("split", 1, last)?;
    let declared = call.int("num_outputs")?;
    if declared.is_some_and(|declared| declared != parts as i64) {
        refuse!("attribute `num_outputs` does not match {parts} outputs");
    }
    let lengths = match lengths {
        Some(lengths) => counts(&lengths, "split")?,
        None => {
            if parts == 0 || (call.opset() < 18 && !shape[axis].is_multiple_of(parts)) {
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
    let index = call.counted(index, depth as usize)?;
    let index = call.reshape(index, shape)?;
    let positions = call.positions(depth as usize, axis, rank)?;
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
    let (flat, axis) = match call.opset() < 13 {
        false => (shape.clone(), axis(call.int_or("axis", -1)?, shape.rank())?),
        true => {
            let at = flat_axis(call, &shape)?;
            let product = |extents: &[usize]| Shape::from(extents).elements();
            (Shape::from([product(&shape[..at]), product(&shape[at..])]), 1)
        }
    };
    let x = call.reshape(x, flat.clone())?;
    let best = call.apply(ops::ArgExtreme { axis, keep: true, max: true, last: false }, &[x])?;
    let positions = call.positions(flat[axis], axis, flat.rank())?;
    let hot = call.compare(Compare::Equal, positions, best)?;
    let y = call.cast(hot, DType::F32)?;
    Ok(vec![call.reshape(y, shape)?])
}

pub(super) fn gather_elements(call: &mut Call) -> Yield {
    let (x, index) = (call.input(0)?, call.input(1)?);
    let axis = axis(call.int_or("axis", 0)?, call.shape(x).rank())?;
    Ok(vec![call.elements_along(x, index, axis)?])
}

/// Indices are vectors along the last axis; behind the axes that they name whole slices follow.
pub(super) fn gather_nd(call: &mut Call) -> Yield {
    let (x, index) = (call.input(0)?, call.input(1)?);
    let (shape, places) = (call.shape(x), call.shape(index));
    let batch = counts(&[call.int_or("batch_dims", 0)?], "batch_dims")?[0];
    let Some((&named, outer)) = places.split_last() else { refuse!("indices have no dimensions") };
    if outer.len() < batch || shape.rank() < batch + named || shape[..batch] != places[..batch] {
        refuse!("indices of shape {places} with {batch} dimensions of batch do not fit {shape}");
    }
    let mut indices = Vec::new();
    for axis in 0..batch {
        indices.push(call.positions(shape[axis], axis, outer.len())?);
    }
    let index = call.cast(index, DType::I64)?;
    for at in 0..named {
        let part = call.apply(ops::Slice::range(&places, places.rank() - 1, at, 1), &[index])?;
        let part = call.reshape(part, Shape::from(outer))?;
        indices.push(call.counted(part, shape[batch + at])?);
    }
    let (rows, inner) = shape.split_at(batch + named);
    let flat = call.flat_index(&indices, rows)?;
    let flat = call.expand(flat, Shape::from(outer))?;
    let table: Shape = [rows.iter().product()].into_iter().chain(inner.iter().copied()).collect();
    let table = call.reshape(x, table)?;
    Ok(vec![call.rows(table, flat)?])
}

/// Turns the first elements of each sequence round; `batch_axis` and `time_axis` are 0 and 1.
pub(super) fn reverse_sequence(call: &mut Call) -> Yield {
    let (x, lengths) = (call.input(0)?, call.input(1)?);
    let shape = call.shape(x);
    let time = match (call.int_or("time_axis", 0)?, call.int_or("batch_axis", 1)?) {
        (0, 1) => 0,
        (1, 0) => 1,
        (time, batch) => refuse!("attributes `time_axis` {time} and `batch_axis` {batch} are not 0 and 1"),
    };
    if shape.rank() < 2 || call.shape(lengths)[..] != [shape[1 - time]] {
        refuse!("lengths of shape {} do not fit {shape}", call.shape(lengths));
    }
    let rank = shape.rank();
    let lengths = call.cast(lengths, DType::I64)?;
    let lengths = call.aligned(lengths, 1 - time, rank)?;
    let steps = call.positions(shape[time], time, rank)?;
    let is_within = call.compare(Compare::Less, steps, lengths)?;
    let one = call.number(1.0, DType::I64);
    let last = call.binary(Binary::Sub, lengths, one)?;
    let turned = call.binary(Binary::Sub, last, steps)?;
    let from = call.select(is_within, turned, steps)?;
    let index = call.expand(from, shape)?;
    Ok(vec![call.elements_along(x, index, time)?])
}

/// The elements that a known condition keeps; without an axis those of the flat tensor.
pub(super) fn compress(call: &mut Call) -> Yield {
    let mut x = call.input(0)?;
    let condition = call.known(1, "condition")?.to_i64();
    let at = match call.int("axis")? {
        Some(at) => axis(at, call.shape(x).rank())?,
        None => {
            let elements = call.shape(x).elements();
            x = call.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let kept: Vec<i64> = (0..).zip(&condition).filter(|(_, keep)| **keep != 0).map(|(ix, _)| ix).collect();
    if kept.last().is_some_and(|&last| call.shape(x)[at] as i64 <= last) {
        refuse!("the condition is longer than axis {at} of {}", call.shape(x));
    }
    let kept = call.constant(Tensor::vector(kept));
    Ok(vec![call.apply(ops::Gather { axis: at }, &[x, kept])?])
}

/// Elements are found one after another, the first of equal ones first; there may be a few of them only.
pub(super) fn top_k(call: &mut Call) -> Yield {
    const MOST: usize = 64;
    call.ignore(&["sorted"]);
    let x = call.input(0)?;
    let (shape, dtype) = (call.shape(x), call.dtype(x));
    let at = axis(call.int_or("axis", -1)?, shape.rank())?;
    let k = match call.opset() < 10 {
        true => call.int("k")?.unwrap_or(-1),
        false => call.known_number(1, "K")? as i64,
    };
    let k = counts(&[k], "k")?[0];
    if shape[at] < k || MOST < k {
        refuse!("the {k} best of {} are not supported; at most {MOST}, and as many as there are", shape[at]);
    }
    let largest = call.int_or("largest", 1)? != 0;
    let mut line = shape.clone();
    line[at] = k;
    if k == 0 {
        let (values, indices) = (Tensor::full(line.clone(), 0.0f32).cast(dtype), Tensor::full(line, 0i64));
        return Ok(vec![call.constant(values), call.constant(indices)]);
    }
    let gone = match (dtype.is_float(), largest) {
        (true, true) => f64::NEG_INFINITY,
        (true, false) => f64::INFINITY,
        (false, _) => refuse!("the best of {dtype} are not supported"),
    };
    let gone = call.number(gone, dtype);
    let positions = call.positions(shape[at], at, shape.rank())?;
    let (mut rest, mut values, mut indices) = (x, Vec::new(), Vec::new());
    for _ in 0..k {
        let best = call.apply(ops::ArgExtreme { axis: at, keep: true, max: largest, last: false }, &[rest])?;
        values.push(call.picked(rest, best, at)?);
        indices.push(best);
        let is_best = call.compare(Compare::Equal, positions, best)?;
        rest = call.select(is_best, gone, rest)?;
    }
    let joined = |call: &mut Call, parts: &[Operand]| match parts {
        [part] => Ok(*part),
        _ => call.apply(ops::Concat { axis: at }, parts),
    };
    Ok(vec![joined(call, &values)?, joined(call, &indices)?])
}
