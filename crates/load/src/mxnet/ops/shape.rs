//! Other shapes, parts of tensors, and tensors that follow from a shape.

use ir::Refusal;
use ir::ops::{Concat, Pad, PadMode, Slice};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use super::Yield;
use crate::common::{Operand, Span, axes, axis, counts, refuse};
use crate::mxnet::call::Call;

pub(super) fn identity(call: &mut Call) -> Yield {
    call.ignore(&["sparseness_target", "penalty", "momentum"]);
    Ok(vec![call.input(0)?])
}

/// Does nothing in inference; `mode` could ask for more.
pub(super) fn dropout(call: &mut Call) -> Yield {
    call.ignore(&["p", "axes"]);
    match call.text_or("mode", "training") {
        "training" => Ok(vec![call.input(0)?]),
        other => refuse!("attribute `mode` is `{other}`: dropping at random in inference is not supported"),
    }
}

/// `[n, everything else]`
pub(super) fn flattened(call: &mut Call, x: Operand) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    let Some((&first, rest)) = shape.split_first() else { refuse!("input {shape} has no dimensions") };
    call.reshape(x, Shape::from([first, rest.iter().product()]))
}

pub(super) fn flatten(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    Ok(vec![flattened(call, x)?])
}

/// Codes: 0 keeps a dimension, -1 is what is left, -2 all further dimensions, -3 the product of the next two, -4 splits one
/// into the next two numbers. With `reverse` they are read from the end.
pub(super) fn reshape(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    if call.flag("keep_highest")? || call.ints("target_shape")?.is_some_and(|target| target.iter().any(|&n| n != 0)) {
        refuse!("attribute `target_shape` is not supported; use `shape`");
    }
    let Some(mut codes) = call.ints("shape")?.filter(|codes| !codes.is_empty()) else {
        refuse!("attribute `shape` is missing")
    };
    let reverse = call.flag("reverse")?;
    let mut from = shape.clone();
    if reverse {
        if codes.contains(&-4) {
            refuse!("attribute `shape` splits a dimension, which `reverse` is not supported with");
        }
        codes.reverse();
        from.reverse();
    }
    let mut to = reshaped(&from, &codes)?;
    if reverse {
        to.reverse();
    }
    Ok(vec![call.reshape(x, to)?])
}

fn reshaped(from: &Shape, codes: &[i64]) -> Result<Shape, Refusal> {
    let (mut to, mut next, mut open) = (Shape::scalar(), 0, None);
    let take = |next: &mut usize| match from.get(*next) {
        Some(&extent) => {
            *next += 1;
            Ok(extent)
        }
        None => Err(Refusal(format!("attribute `shape` {codes:?} asks for more dimensions than {from} has"))),
    };
    let mut codes = codes.iter();
    while let Some(&code) = codes.next() {
        match code {
            0 => to.push(take(&mut next)?),
            -1 if open.is_none() => {
                open = Some(to.rank());
                to.push(1);
                next += 1;
            }
            -2 => {
                from.iter().skip(next).for_each(|&extent| to.push(extent));
                next = from.rank();
            }
            -3 => {
                let pair = [take(&mut next)?, take(&mut next)?];
                to.push(pair[0] * pair[1]);
            }
            -4 => {
                let whole = take(&mut next)?;
                let (a, b) = match (codes.next(), codes.next()) {
                    (Some(-1), Some(&b @ 1..)) => (whole / b as usize, b as usize),
                    (Some(&a @ 1..), Some(-1)) => (a as usize, whole / a as usize),
                    (Some(&a @ 1..), Some(&b @ 1..)) => (a as usize, b as usize),
                    _ => return Err(Refusal("attribute `shape`: -4 is followed by two numbers".into())),
                };
                if a.checked_mul(b) != Some(whole) {
                    return Err(Refusal(format!("attribute `shape`: {whole} does not split into {a} times {b}")));
                }
                to.push(a);
                to.push(b);
            }
            1.. => {
                to.push(counts(&[code], "shape")?[0]);
                next += 1;
            }
            _ => return Err(Refusal(format!("attribute `shape` has the number {code}"))),
        }
    }
    if let Some(open) = open {
        let rest = to.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent)).unwrap_or(0);
        match from.elements().checked_rem(rest) {
            Some(0) => to[open] = from.elements() / rest,
            _ => return Err(Refusal(format!("{from} does not reshape to {to} with one dimension open"))),
        }
    }
    Ok(to)
}

pub(super) fn reshape_like(call: &mut Call) -> Yield {
    let [x, like] = call.inputs()?;
    let shape = call.shape(like);
    Ok(vec![call.reshape(x, shape)?])
}

/// Without axes their order is reversed.
pub(super) fn transpose(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let order = match call.ints("axes")?.filter(|axes| !axes.is_empty()) {
        None => (0..rank).rev().collect(),
        Some(list) => list.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<usize>, _>>()?,
    };
    Ok(vec![call.transpose(x, &order)?])
}

pub(super) fn swap_axes(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let (a, b) = (call.axis_or("dim1", 0, rank)?, call.axis_or("dim2", 0, rank)?);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(a, b);
    Ok(vec![call.transpose(x, &order)?])
}

pub(super) fn expand_dims(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let mut shape = call.shape(x);
    let Some(at) = call.int("axis")? else { refuse!("attribute `axis` is missing") };
    shape.insert(axis(at, shape.rank() + 1)?, 1);
    Ok(vec![call.reshape(x, shape)?])
}

/// Without axes all extents of 1 go; one of them stays where there is nothing else.
pub(super) fn squeeze(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let gone: SmallVec<[usize; 4]> = match call.ints("axis")? {
        Some(list) => axes(&list, shape.rank())?,
        None => (0..shape.rank()).filter(|&at| shape[at] == 1).collect(),
    };
    if let Some(&at) = gone.iter().find(|&&at| shape[at] != 1) {
        refuse!("axis {at} of {shape} is not 1");
    }
    let mut left: Shape = (0..shape.rank()).filter(|at| !gone.contains(at)).map(|at| shape[at]).collect();
    if left.rank() == 0 {
        left.push(1);
    }
    Ok(vec![call.reshape(x, left)?])
}

pub(super) fn concat(call: &mut Call) -> Yield {
    let inputs = call.all_inputs()?;
    let at = call.axis_or("dim", 1, call.shape(inputs[0]).rank())?;
    joined(call, &inputs, at)
}

fn joined(call: &mut Call, inputs: &[Operand], axis: usize) -> Yield {
    match inputs {
        [x] => Ok(vec![*x]),
        _ => Ok(vec![call.apply(Concat { axis }, inputs)?]),
    }
}

pub(super) fn stack(call: &mut Call) -> Yield {
    let inputs = call.all_inputs()?;
    let mut shape = call.shape(inputs[0]);
    let at = call.axis_or("axis", 0, shape.rank() + 1)?;
    shape.insert(at, 1);
    let spread = inputs.iter().map(|&input| call.reshape(input, shape.clone())).collect::<Result<Vec<_>, _>>()?;
    joined(call, &spread, at)
}

/// Equal parts along an axis, which leaves them with `squeeze_axis`.
pub(super) fn slice_channel(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let (parts, at) = (call.count("num_outputs")?, call.axis_or("axis", 1, shape.rank())?);
    let squeeze = call.flag("squeeze_axis")?;
    if !shape[at].is_multiple_of(parts) {
        refuse!("axis {at} of {shape} does not fall into {parts} equal parts");
    }
    let length = shape[at] / parts;
    let mut left = shape.clone();
    left[at] = length;
    if squeeze {
        if length != 1 {
            refuse!("attribute `squeeze_axis` is set, but parts have {length} elements along the axis");
        }
        left.remove(at);
    }
    let mut yielded = Vec::new();
    for part in 0..parts.min(call.n_outputs()) {
        let cut = match parts {
            1 => x,
            _ => call.apply(Slice::range(&shape, at, part * length, length), &[x])?,
        };
        yielded.push(call.reshape(cut, left.clone())?);
    }
    Ok(yielded)
}

pub(super) fn slice(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let list = |name: &str| call.open_ints(name);
    let (begin, end, step) =
        (list("begin")?.unwrap_or_default(), list("end")?.unwrap_or_default(), list("step")?.unwrap_or_default());
    if shape.rank() < begin.len() || begin.len() != end.len() || begin.len() < step.len() {
        refuse!("attributes `begin`, `end` and `step` do not fit {shape}");
    }
    let mut slice = Slice::whole(&shape);
    for at in 0..begin.len() {
        let step = step.get(at).copied().flatten().unwrap_or(1);
        Span { begin: begin[at], end: end[at], step }.narrow(&mut slice, at, shape[at])?;
    }
    Ok(vec![call.apply(slice, &[x])?])
}

pub(super) fn slice_axis(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let Some(at) = call.int("axis")? else { refuse!("attribute `axis` is missing") };
    let at = axis(at, shape.rank())?;
    let mut slice = Slice::whole(&shape);
    let span = Span { begin: call.int("begin")?, end: call.int("end")?, step: 1 };
    span.narrow(&mut slice, at, shape[at])?;
    Ok(vec![call.apply(slice, &[x])?])
}

/// The front part that has the extents of another tensor along some axes, or all.
pub(super) fn slice_like(call: &mut Call) -> Yield {
    let [x, like] = call.inputs()?;
    let (shape, want) = (call.shape(x), call.shape(like));
    let along = match call.ints("axes")?.filter(|axes| !axes.is_empty()) {
        None => (0..shape.rank()).collect(),
        Some(list) => axes(&list, shape.rank())?,
    };
    let mut slice = Slice::whole(&shape);
    for at in along {
        match want.get(at) {
            Some(&extent) if extent <= shape[at] => slice.count[at] = extent,
            _ => refuse!("{shape} has no front part like {want}"),
        }
    }
    Ok(vec![call.apply(slice, &[x])?])
}

pub(super) fn reverse(call: &mut Call) -> Yield {
    let mut x = call.input(0)?;
    let Some(list) = call.ints("axis")? else { refuse!("attribute `axis` is missing") };
    for at in axes(&list, call.shape(x).rank())? {
        x = call.turned(x, at)?;
    }
    Ok(vec![x])
}

pub(super) fn pad(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let Some(list) = call.ints("pad_width")? else { refuse!("attribute `pad_width` is missing") };
    let width = counts(&list, "pad_width")?;
    if width.len() != 2 * rank {
        refuse!("attribute `pad_width` has {} numbers, not two for each of {rank} dimensions", width.len());
    }
    let value = call.float_or("constant_value", 0.0)?;
    let mode = match call.text_or("mode", "constant") {
        "constant" => PadMode::Constant(value),
        "edge" => PadMode::Edge,
        "reflect" => PadMode::Reflect,
        other => refuse!("attribute `mode` is `{other}`"),
    };
    let pad = width.chunks(2).map(|pair| [pair[0] as isize, pair[1] as isize]).collect();
    Ok(vec![call.apply(Pad { mode, pad }, &[x])?])
}

/// Repeats a whole tensor along each axis; missing numbers and missing axes are 1, in front.
pub(super) fn tile(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let mut shape = call.shape(x);
    let Some(list) = call.ints("reps")? else { refuse!("attribute `reps` is missing") };
    let mut repeats = counts(&list, "reps")?;
    while shape.rank() < repeats.len() {
        shape.insert(0, 1);
    }
    while repeats.len() < shape.rank() {
        repeats.insert(0, 1);
    }
    let x = call.reshape(x, shape)?;
    Ok(vec![call.tiled(x, &repeats)?])
}

/// Repeats each element; without an axis those of the flat tensor.
pub(super) fn repeat(call: &mut Call) -> Yield {
    let mut x = call.input(0)?;
    let repeats = call.count("repeats")?;
    let at = match call.int("axis")? {
        Some(at) => axis(at, call.shape(x).rank())?,
        None => {
            let elements = call.shape(x).elements();
            x = call.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let shape = call.shape(x);
    let (mut spread, mut out) = (shape.clone(), shape.clone());
    spread.insert(at + 1, 1);
    out[at] = out[at].saturating_mul(repeats);
    let x = call.reshape(x, spread.clone())?;
    spread[at + 1] = repeats;
    let x = call.expand(x, spread)?;
    Ok(vec![call.reshape(x, out)?])
}

/// 0 keeps an extent.
pub(super) fn broadcast_to(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let Some(list) = call.ints("shape")? else { refuse!("attribute `shape` is missing") };
    let want = counts(&list, "shape")?;
    if want.len() != shape.rank() {
        refuse!("{shape} does not broadcast to {want:?}");
    }
    let out: Shape =
        want.iter().zip(&shape[..]).map(|(&want, &extent)| if want == 0 { extent } else { want }).collect();
    Ok(vec![call.expand(x, out)?])
}

pub(super) fn broadcast_axis(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let mut shape = call.shape(x);
    let along = call.ints("axis")?.unwrap_or_default();
    let sizes = counts(&call.ints("size")?.unwrap_or_default(), "size")?;
    if along.len() != sizes.len() {
        refuse!("attributes `axis` and `size` do not have the same length");
    }
    for (&at, &size) in along.iter().zip(&sizes) {
        let at = axis(at, shape.rank())?;
        if shape[at] != 1 {
            refuse!("axis {at} of {shape} is not 1");
        }
        shape[at] = size;
    }
    Ok(vec![call.expand(x, shape)?])
}

pub(super) fn broadcast_like(call: &mut Call) -> Yield {
    let [x, like] = call.inputs()?;
    if call.ints("lhs_axes")?.is_some() || call.ints("rhs_axes")?.is_some() {
        refuse!("attributes `lhs_axes` and `rhs_axes` are not supported");
    }
    let shape = call.shape(like);
    Ok(vec![call.expand(x, shape)?])
}

pub(super) fn depth_to_space(call: &mut Call) -> Yield {
    let (x, block) = (call.input(0)?, call.count("block_size")?);
    Ok(vec![call.depth_to_space(x, block, false)?])
}

pub(super) fn space_to_depth(call: &mut Call) -> Yield {
    let (x, block) = (call.input(0)?, call.count("block_size")?);
    Ok(vec![call.space_to_depth(x, block)?])
}

pub(super) fn shape_array(call: &mut Call) -> Yield {
    let shape = call.shape(call.input(0)?);
    let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    Ok(vec![call.constant(Tensor::vector(extents))])
}

pub(super) fn size_array(call: &mut Call) -> Yield {
    let elements = call.shape(call.input(0)?).elements();
    Ok(vec![call.constant(Tensor::vector(vec![elements as i64]))])
}

/// A tensor of one number.
fn filled(call: &mut Call, shape: Shape, number: f64, dtype: DType) -> Yield {
    call.reserve(dtype, &shape)?;
    let filled = Tensor::full(shape, number).cast(dtype);
    Ok(vec![call.constant(filled)])
}

/// By the attributes `shape` and `dtype`. An extent of 0 is left to MXNet's inference; here it is 1, which broadcasts.
fn made(call: &mut Call, number: f64) -> Yield {
    let list = call.ints("shape")?.unwrap_or_default();
    let shape: Shape = counts(&list, "shape")?.iter().map(|&extent| extent.max(1)).collect();
    let dtype = call.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    filled(call, shape, number, dtype)
}

pub(super) fn zeros(call: &mut Call) -> Yield {
    made(call, 0.0)
}

pub(super) fn ones(call: &mut Call) -> Yield {
    made(call, 1.0)
}

pub(super) fn full(call: &mut Call) -> Yield {
    let Some(value) = call.float("value")? else { refuse!("attribute `value` is missing") };
    made(call, value)
}

fn like(call: &mut Call, number: f64) -> Yield {
    let x = call.input(0)?;
    filled(call, call.shape(x), number, call.dtype(x))
}

pub(super) fn zeros_like(call: &mut Call) -> Yield {
    like(call, 0.0)
}

pub(super) fn ones_like(call: &mut Call) -> Yield {
    like(call, 1.0)
}

/// From `start` to before `stop` by `step`, each number `repeat` times.
pub(super) fn arange(call: &mut Call) -> Yield {
    let (first, step) = (call.float_or("start", 0.0)?, call.float_or("step", 1.0)?);
    let repeat = counts(&[call.int_or("repeat", 1)?], "repeat")?[0];
    let dtype = call.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    if call.flag("infer_range")? {
        refuse!("attribute `infer_range` is not supported");
    }
    // With one number only, it is the end.
    let (start, stop) = match call.float("stop")? {
        Some(stop) => (first, stop),
        None => (0.0, first),
    };
    let count = ((stop - start) / step).ceil();
    if !(0.0..=1e9).contains(&count) {
        refuse!("a range from {start} to {stop} by {step}");
    }
    let elements = (count as usize).saturating_mul(repeat);
    let shape = Shape::from([elements]);
    call.reserve(dtype, &shape)?;
    let range = Tensor::from_fn(shape, |at| start + step * (at / repeat) as f64).cast(dtype);
    Ok(vec![call.constant(range)])
}
