//! Shapes, slices, and tensors made from a shape.

use ir::Refusal;
use ir::ops::{Concat, Pad, PadMode, Slice, StopGradient};
use smallvec::SmallVec;
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, Operand, StridedRange, axes, axis, counts, refuse};
use crate::mxnet::node::ImportedNode;

pub(super) fn identity(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["sparseness_target", "penalty", "momentum"]);
    Ok(vec![node.input(0)?])
}

/// The identity, without a gradient.
pub(super) fn stop_gradient(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    Ok(vec![node.apply(StopGradient {}, &[x])?])
}

/// The identity in inference, unless `mode` requests dropout always.
pub(super) fn dropout(node: &mut ImportedNode) -> NodeResult {
    let (rate, axes) = (node.float_or("p", 0.5)?, node.text_or("axes", "()"));
    if node.is_training() && !matches!(axes, "()" | "[]") {
        refuse!("attribute `axes` must be () in training, got `{axes}`");
    }
    match node.text_or("mode", "training") {
        "training" => {
            let x = node.input(0)?;
            Ok(vec![node.dropout(x, rate)?])
        }
        other => refuse!("attribute `mode` must be `training`, got `{other}`: dropout in inference is not supported"),
    }
}

/// `[n, product of the other extents]`
pub(super) fn flattened(node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let Some((&first, rest)) = shape.split_first() else { refuse!("input must have rank >= 1, got {shape}") };
    node.reshape(x, Shape::from([first, rest.iter().product()]))
}

pub(super) fn flatten(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    Ok(vec![flattened(node, x)?])
}

/// Codes: 0 keeps an extent, -1 is inferred, -2 copies all further extents, -3 multiplies the next two, -4 splits one into
/// the next two numbers. With `reverse` they are read from the end.
pub(super) fn reshape(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if node.flag("keep_highest")? || node.ints("target_shape")?.is_some_and(|target| target.iter().any(|&n| n != 0)) {
        refuse!("attribute `target_shape` is not supported; use `shape`");
    }
    let Some(mut codes) = node.ints("shape")?.filter(|codes| !codes.is_empty()) else {
        refuse!("attribute `shape` is missing")
    };
    let reverse = node.flag("reverse")?;
    let mut from = shape.clone();
    if reverse {
        if codes.contains(&-4) {
            refuse!("attribute `shape`: code -4 is not supported with `reverse`");
        }
        codes.reverse();
        from.reverse();
    }
    let mut to = reshaped(&from, &codes)?;
    if reverse {
        to.reverse();
    }
    Ok(vec![node.reshape(x, to)?])
}

fn reshaped(from: &Shape, codes: &[i64]) -> Result<Shape, Refusal> {
    let (mut to, mut next, mut open) = (Shape::scalar(), 0, None);
    let take = |next: &mut usize| match from.get(*next) {
        Some(&extent) => {
            *next += 1;
            Ok(extent)
        }
        None => Err(Refusal(format!("attribute `shape` {codes:?} reads more extents than {from} has"))),
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
                    _ => return Err(Refusal("attribute `shape`: code -4 must be followed by two numbers".into())),
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
            _ => return Err(Refusal(format!("attribute `shape`: codes must be >= -4, got {code}"))),
        }
    }
    if let Some(open) = open {
        let rest = to.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent)).unwrap_or(0);
        match from.elements().checked_rem(rest) {
            Some(0) => to[open] = from.elements() / rest,
            _ => return Err(Refusal(format!("{from} cannot be reshaped to {to} with one inferred extent"))),
        }
    }
    Ok(to)
}

pub(super) fn reshape_like(node: &mut ImportedNode) -> NodeResult {
    let [x, like] = node.inputs()?;
    let shape = node.shape(like);
    Ok(vec![node.reshape(x, shape)?])
}

/// Without `axes`, reverses their order.
pub(super) fn transpose(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let order = match node.ints("axes")?.filter(|axes| !axes.is_empty()) {
        None => (0..rank).rev().collect(),
        Some(list) => list.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<usize>, _>>()?,
    };
    Ok(vec![node.transpose(x, &order)?])
}

pub(super) fn swap_axes(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let (a, b) = (node.axis_or("dim1", 0, rank)?, node.axis_or("dim2", 0, rank)?);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(a, b);
    Ok(vec![node.transpose(x, &order)?])
}

pub(super) fn expand_dims(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let mut shape = node.shape(x);
    let Some(at) = node.int("axis")? else { refuse!("attribute `axis` is missing") };
    shape.insert(axis(at, shape.rank() + 1)?, 1);
    Ok(vec![node.reshape(x, shape)?])
}

/// Without `axis`, removes all extents of 1, but keeps one if there are no others.
pub(super) fn squeeze(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let gone: SmallVec<[usize; 4]> = match node.ints("axis")? {
        Some(list) => axes(&list, shape.rank())?,
        None => (0..shape.rank()).filter(|&at| shape[at] == 1).collect(),
    };
    if let Some(&at) = gone.iter().find(|&&at| shape[at] != 1) {
        refuse!("axis {at} must have extent 1, got shape {shape}");
    }
    let mut left: Shape = (0..shape.rank()).filter(|at| !gone.contains(at)).map(|at| shape[at]).collect();
    if left.rank() == 0 {
        left.push(1);
    }
    Ok(vec![node.reshape(x, left)?])
}

pub(super) fn concat(node: &mut ImportedNode) -> NodeResult {
    let inputs = node.all_inputs()?;
    let at = node.axis_or("dim", 1, node.shape(inputs[0]).rank())?;
    joined(node, &inputs, at)
}

fn joined(node: &mut ImportedNode, inputs: &[Operand], axis: usize) -> NodeResult {
    match inputs {
        [x] => Ok(vec![*x]),
        _ => Ok(vec![node.apply(Concat { axis }, inputs)?]),
    }
}

pub(super) fn stack(node: &mut ImportedNode) -> NodeResult {
    let inputs = node.all_inputs()?;
    let mut shape = node.shape(inputs[0]);
    let at = node.axis_or("axis", 0, shape.rank() + 1)?;
    shape.insert(at, 1);
    let spread = inputs.iter().map(|&input| node.reshape(input, shape.clone())).collect::<Result<Vec<_>, _>>()?;
    joined(node, &spread, at)
}

/// Splits an axis equally; `squeeze_axis` removes it from the results.
pub(super) fn slice_channel(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let (parts, at) = (node.count("num_outputs")?, node.axis_or("axis", 1, shape.rank())?);
    let squeeze = node.flag("squeeze_axis")?;
    if !shape[at].is_multiple_of(parts) {
        refuse!("axis {at} of {shape} must be a multiple of {parts}");
    }
    let length = shape[at] / parts;
    let mut left = shape.clone();
    left[at] = length;
    if squeeze {
        if length != 1 {
            refuse!("`squeeze_axis` requires slices of extent 1, got {length}");
        }
        left.remove(at);
    }
    let mut yielded = Vec::new();
    for part in 0..parts.min(node.n_outputs()) {
        let cut = match parts {
            1 => x,
            _ => node.apply(Slice::range(&shape, at, part * length, length), &[x])?,
        };
        yielded.push(node.reshape(cut, left.clone())?);
    }
    Ok(yielded)
}

pub(super) fn slice(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let list = |name: &str| node.open_ints(name);
    let (begin, end, step) =
        (list("begin")?.unwrap_or_default(), list("end")?.unwrap_or_default(), list("step")?.unwrap_or_default());
    if shape.rank() < begin.len() || begin.len() != end.len() || begin.len() < step.len() {
        refuse!("attributes `begin`, `end` and `step` must have equal lengths within the rank of {shape}");
    }
    let mut slice = Slice::whole(&shape);
    for at in 0..begin.len() {
        let step = step.get(at).copied().flatten().unwrap_or(1);
        StridedRange { begin: begin[at], end: end[at], step }.narrow(&mut slice, at, shape[at])?;
    }
    Ok(vec![node.apply(slice, &[x])?])
}

pub(super) fn slice_axis(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let Some(at) = node.int("axis")? else { refuse!("attribute `axis` is missing") };
    let at = axis(at, shape.rank())?;
    let mut slice = Slice::whole(&shape);
    let span = StridedRange { begin: node.int("begin")?, end: node.int("end")?, step: 1 };
    span.narrow(&mut slice, at, shape[at])?;
    Ok(vec![node.apply(slice, &[x])?])
}

/// The first elements along some or all axes, as many as another tensor has.
pub(super) fn slice_like(node: &mut ImportedNode) -> NodeResult {
    let [x, like] = node.inputs()?;
    let (shape, want) = (node.shape(x), node.shape(like));
    let along = match node.ints("axes")?.filter(|axes| !axes.is_empty()) {
        None => (0..shape.rank()).collect(),
        Some(list) => axes(&list, shape.rank())?,
    };
    let mut slice = Slice::whole(&shape);
    for at in along {
        match want.get(at) {
            Some(&extent) if extent <= shape[at] => slice.count[at] = extent,
            _ => refuse!("{shape} must be at least {want} along the axes"),
        }
    }
    Ok(vec![node.apply(slice, &[x])?])
}

pub(super) fn reverse(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    let Some(list) = node.ints("axis")? else { refuse!("attribute `axis` is missing") };
    for at in axes(&list, node.shape(x).rank())? {
        x = node.reversed(x, at)?;
    }
    Ok(vec![x])
}

pub(super) fn pad(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    let Some(list) = node.ints("pad_width")? else { refuse!("attribute `pad_width` is missing") };
    let width = counts(&list, "pad_width")?;
    if width.len() != 2 * rank {
        refuse!("attribute `pad_width` must have two numbers per axis, got {} for rank {rank}", width.len());
    }
    let value = node.float_or("constant_value", 0.0)?;
    let mode = match node.text_or("mode", "constant") {
        "constant" => PadMode::Constant(value),
        "edge" => PadMode::Edge,
        "reflect" => PadMode::Reflect,
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let pad = width.chunks(2).map(|pair| [pair[0] as isize, pair[1] as isize]).collect();
    Ok(vec![node.apply(Pad { mode, pad }, &[x])?])
}

/// Repeats a tensor along each axis; missing leading numbers and axes are 1.
pub(super) fn tile(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let mut shape = node.shape(x);
    let Some(list) = node.ints("reps")? else { refuse!("attribute `reps` is missing") };
    let mut repeats = counts(&list, "reps")?;
    while shape.rank() < repeats.len() {
        shape.insert(0, 1);
    }
    while repeats.len() < shape.rank() {
        repeats.insert(0, 1);
    }
    let x = node.reshape(x, shape)?;
    Ok(vec![node.tiled(x, &repeats)?])
}

/// Repeats each element along an axis; without one, of the flattened tensor.
pub(super) fn repeat(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    let repeats = node.count("repeats")?;
    let at = match node.int("axis")? {
        Some(at) => axis(at, node.shape(x).rank())?,
        None => {
            let elements = node.shape(x).elements();
            x = node.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let shape = node.shape(x);
    let (mut spread, mut out) = (shape.clone(), shape.clone());
    spread.insert(at + 1, 1);
    out[at] = out[at].saturating_mul(repeats);
    let x = node.reshape(x, spread.clone())?;
    spread[at + 1] = repeats;
    let x = node.expand(x, spread)?;
    Ok(vec![node.reshape(x, out)?])
}

/// 0 keeps an extent.
pub(super) fn broadcast_to(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let Some(list) = node.ints("shape")? else { refuse!("attribute `shape` is missing") };
    let want = counts(&list, "shape")?;
    if want.len() != shape.rank() {
        refuse!("{shape} cannot be broadcast to {want:?}");
    }
    let out: Shape =
        want.iter().zip(&shape[..]).map(|(&want, &extent)| if want == 0 { extent } else { want }).collect();
    Ok(vec![node.expand(x, out)?])
}

pub(super) fn broadcast_axis(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let mut shape = node.shape(x);
    let along = node.ints("axis")?.unwrap_or_default();
    let sizes = counts(&node.ints("size")?.unwrap_or_default(), "size")?;
    if along.len() != sizes.len() {
        refuse!("attributes `axis` and `size` must have equal lengths");
    }
    for (&at, &size) in along.iter().zip(&sizes) {
        let at = axis(at, shape.rank())?;
        if shape[at] != 1 {
            refuse!("axis {at} must have extent 1, got shape {shape}");
        }
        shape[at] = size;
    }
    Ok(vec![node.expand(x, shape)?])
}

pub(super) fn broadcast_like(node: &mut ImportedNode) -> NodeResult {
    let [x, like] = node.inputs()?;
    if node.ints("lhs_axes")?.is_some() || node.ints("rhs_axes")?.is_some() {
        refuse!("attributes `lhs_axes` and `rhs_axes` are not supported");
    }
    let shape = node.shape(like);
    Ok(vec![node.expand(x, shape)?])
}

pub(super) fn depth_to_space(node: &mut ImportedNode) -> NodeResult {
    let (x, block) = (node.input(0)?, node.count("block_size")?);
    Ok(vec![node.depth_to_space(x, block, false)?])
}

pub(super) fn space_to_depth(node: &mut ImportedNode) -> NodeResult {
    let (x, block) = (node.input(0)?, node.count("block_size")?);
    Ok(vec![node.space_to_depth(x, block, false)?])
}

pub(super) fn shape_array(node: &mut ImportedNode) -> NodeResult {
    let shape = node.shape(node.input(0)?);
    let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
    Ok(vec![node.constant(Tensor::vector(extents))])
}

pub(super) fn size_array(node: &mut ImportedNode) -> NodeResult {
    let elements = node.shape(node.input(0)?).elements();
    Ok(vec![node.constant(Tensor::vector(vec![elements as i64]))])
}

/// A tensor filled with one number.
fn filled(node: &mut ImportedNode, shape: Shape, number: f64, dtype: DType) -> NodeResult {
    Ok(vec![node.constant_as(dtype, shape, |_| number)?])
}

/// Shape and dtype from the attributes. MXNet infers extents of 0; here they are 1, which broadcasts.
fn made(node: &mut ImportedNode, number: f64) -> NodeResult {
    let list = node.ints("shape")?.unwrap_or_default();
    let shape: Shape = counts(&list, "shape")?.iter().map(|&extent| extent.max(1)).collect();
    let dtype = node.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    filled(node, shape, number, dtype)
}

pub(super) fn zeros(node: &mut ImportedNode) -> NodeResult {
    made(node, 0.0)
}

pub(super) fn ones(node: &mut ImportedNode) -> NodeResult {
    made(node, 1.0)
}

pub(super) fn full(node: &mut ImportedNode) -> NodeResult {
    let Some(value) = node.float("value")? else { refuse!("attribute `value` is missing") };
    made(node, value)
}

fn like(node: &mut ImportedNode, number: f64) -> NodeResult {
    let x = node.input(0)?;
    filled(node, node.shape(x), number, node.dtype(x))
}

pub(super) fn zeros_like(node: &mut ImportedNode) -> NodeResult {
    like(node, 0.0)
}

pub(super) fn ones_like(node: &mut ImportedNode) -> NodeResult {
    like(node, 1.0)
}

/// From `start` up to `stop` (exclusive) by `step`, each number `repeat` times.
pub(super) fn arange(node: &mut ImportedNode) -> NodeResult {
    let (first, step) = (node.float_or("start", 0.0)?, node.float_or("step", 1.0)?);
    let repeat = counts(&[node.int_or("repeat", 1)?], "repeat")?[0];
    let dtype = node.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    if node.flag("infer_range")? {
        refuse!("attribute `infer_range` is not supported");
    }
    // A single number is the end.
    let (start, stop) = match node.float("stop")? {
        Some(stop) => (first, stop),
        None => (0.0, first),
    };
    let count = ((stop - start) / step).ceil();
    if !(0.0..=1e9).contains(&count) {
        refuse!("a range from {start} to {stop} by {step} is not supported");
    }
    let elements = (count as usize).saturating_mul(repeat);
    Ok(vec![node.constant_as(dtype, [elements], |at| start + step * (at / repeat) as f64)?])
}
