//! `ScatterND`, `ScatterElements` and `MaxUnpool`, in three ways:
//!
//! - *A box of indices*, which exporters write for assignments to slices, becomes [`Insert`].
//! - *Constant indices*: each element of the result is gathered from the data or from an update. The source of each element is
//!   computed while loading. Several updates of one position are applied in layers with at most one update per position.
//! - *Run-time indices* become [`Scatter`] on flat positions.

use std::collections::BTreeMap;

use ir::Refusal;
use ir::ops::{self, Insert, Scatter};
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, strides};

use super::window::Window;
use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Combines an element and its update; `None` replaces the element.
fn reduction(node: &ImportedNode) -> Result<Option<Binary>, Refusal> {
    Ok(match node.text_or("reduction", "none") {
        "none" => None,
        "add" => Some(Binary::Add),
        "mul" => Some(Binary::Mul),
        "max" => Some(Binary::Max),
        "min" => Some(Binary::Min),
        other => refuse!("attribute `reduction`: `{other}` is not supported"),
    })
}

/// An index; negative ones count from the end.
fn wrap_negative(index: i64, extent: usize) -> Result<usize, Refusal> {
    let counted = if index < 0 { index.saturating_add(extent as i64) } else { index };
    match usize::try_from(counted) {
        Ok(counted) if counted < extent => Ok(counted),
        _ => refuse!("indices must be within an axis of {extent}, got {index}"),
    }
}

/// `data[.., index[i], ..] = updates[i]`, indexed along one axis.
pub(super) fn elements(node: &mut ImportedNode) -> NodeResult {
    let (data, updates) = (node.input(0)?, node.input(2)?);
    let (shape, places) = (node.shape(data), node.shape(node.input(1)?));
    let axis = axis(node.int_or("axis", 0)?, shape.rank())?;
    if node.shape(updates) != places || places.rank() != shape.rank() {
        refuse!(
            "updates and indices must have equal shapes of the rank of {shape}, got {} and {places}",
            node.shape(updates)
        );
    }
    let reduction = reduction(node)?;
    if node.constant_value(node.input(1)?).is_none() {
        if (0..shape.rank()).any(|at| at != axis && shape[at] < places[at]) {
            refuse!("indices of shape {places} do not fit {shape}");
        }
        let flat = node.flat_elements(node.input(1)?, &shape, axis)?;
        return scattered(node, data, (flat, places), updates, 1, reduction);
    }
    let index = node.constant_ints(1, "indices")?;
    let (from_strides, to_strides) = (strides(&places), strides(&shape));
    let mut writes = Vec::new();
    for (update, &index) in index.iter().enumerate() {
        let mut to = 0;
        for at in 0..shape.rank() {
            let place = update / from_strides[at] % places[at];
            let place = if at == axis { wrap_negative(index, shape[axis])? } else { place };
            if shape[at] <= place {
                refuse!("indices of shape {places} do not fit {shape}");
            }
            to += place * to_strides[at];
        }
        writes.push((to, update));
    }
    written(node, data, updates, 1, &writes, reduction)
}

/// `TensorScatter` of opset 24: for each batch element, a run along an axis is replaced by the updates, from a position on
/// that may depend on the run. With mode `circular` it goes on at the start.
pub(super) fn runs(node: &mut ImportedNode) -> NodeResult {
    let (data, updates) = (node.input(0)?, node.input(1)?);
    let (shape, places) = (node.shape(data), node.shape(updates));
    let axis = axis(node.int_or("axis", -2)?, shape.rank())?;
    let is_circular = match node.text_or("mode", "linear") {
        "linear" => false,
        "circular" => true,
        other => refuse!("attribute `mode` must be `linear` or `circular`, got `{other}`"),
    };
    let fits = |at: usize| places[at] == shape[at] || (at == axis && places[at] <= shape[at]);
    if axis == 0 || places.rank() != shape.rank() || !(0..shape.rank()).all(fits) {
        refuse!("updates of shape {places} must fit {shape} and be along another axis than the batch");
    }
    let Some(starts) = node.optional(2) else {
        return Ok(vec![inserted(node, data, updates, &vec![0; shape.rank()])?]);
    };
    if node.shape(starts).elements() != shape[0] {
        refuse!("there must be a position for each of {} batch elements, got {}", shape[0], node.shape(starts));
    }
    Ok(vec![written_runs(node, data, updates, axis, starts, is_circular)?])
}

/// For each batch element, the data with a run along `axis` replaced by the updates, from the position in `starts` on; a
/// circular one goes on at the start. The axes but `axis` are those of the data.
pub(super) fn written_runs(
    node: &mut ImportedNode,
    data: Operand,
    updates: Operand,
    axis: usize,
    starts: Operand,
    is_circular: bool,
) -> Result<Operand, Refusal> {
    let (shape, places) = (node.shape(data), node.shape(updates));
    // Slices behind the axis are written as a whole.
    let cells = shape[axis + 1..].iter().product();
    let outer = Shape::from(&places[..=axis]);
    let along = |extents: [usize; 2]| -> Shape {
        let extent = |at: usize| match at {
            0 => extents[0],
            at if at == axis => extents[1],
            _ => 1,
        };
        (0..=axis).map(extent).collect()
    };
    let starts = node.cast(starts, DType::I64)?;
    let starts = node.reshape(starts, along([shape[0], 1]))?;
    let steps = node.constant_of(along([1, places[axis]]), |at| at as i64)?;
    let mut index = node.binary(Binary::Add, starts, steps)?;
    if is_circular {
        let extent = node.number(shape[axis] as f64, DType::I64);
        let is_behind = node.compare(Compare::GreaterOrEqual, index, extent)?;
        let wrapped = node.binary(Binary::Sub, index, extent)?;
        index = node.select(is_behind, wrapped, index)?;
    }
    let index = node.expand(index, outer.clone())?;
    let flat = node.flat_elements(index, &Shape::from(&shape[..=axis]), axis)?;
    Ok(scattered(node, data, (flat, outer), updates, cells, None)?.swap_remove(0))
}

/// Indices are vectors along the last axis; they select slices of the remaining axes.
pub(super) fn nd(node: &mut ImportedNode) -> NodeResult {
    let (data, updates) = (node.input(0)?, node.input(2)?);
    let (shape, places) = (node.shape(data), node.shape(node.input(1)?));
    let Some((&named, outer)) = places.split_last() else { refuse!("indices must have rank >= 1") };
    if shape.rank() < named {
        refuse!("indices must have at most as many numbers as {shape} has axes, got {named}");
    }
    let inner = &shape[named..];
    let want: Shape = outer.iter().chain(inner).copied().collect();
    if node.shape(updates) != want {
        refuse!("updates must have shape {want}, got {}", node.shape(updates));
    }
    let reduction = reduction(node)?;
    let slice = inner.iter().product::<usize>();
    if let (None, Some(begin)) = (reduction, first_of_box(node, &shape)?) {
        let updates_shape = begin.iter().zip(outer).map(|(_, &count)| count).chain(inner.iter().copied()).collect();
        let updates = node.reshape(updates, updates_shape)?;
        return Ok(vec![inserted(node, data, updates, &begin)?]);
    }
    if node.constant_value(node.input(1)?).is_none() {
        let indices = node.index_vectors(node.input(1)?, &shape[..named])?;
        let flat = node.flat_index(&indices, &shape[..named])?;
        return scattered(node, data, (flat, outer.into()), updates, slice, reduction);
    }
    let index = node.constant_ints(1, "indices")?;
    let to_strides = strides(&shape);
    let mut writes = Vec::new();
    for row in 0..outer.iter().product::<usize>() {
        let mut to = 0;
        for at in 0..named {
            to += wrap_negative(index[row * named + at], shape[at])? * to_strides[at];
        }
        writes.push((to / slice.max(1), row));
    }
    written(node, data, updates, slice, &writes, reduction)
}

/// Writes cells to the positions where a max pool found them, zeros elsewhere. A larger requested shape is zero-padded.
pub(super) fn max_unpool(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let window = Window::read(node, None)?;
    if shape.rank() != window.kernel.len() + 2 || node.shape(node.input(1)?) != shape {
        refuse!("indices {} and {shape} do not fit a window {:?}", node.shape(node.input(1)?), window.kernel);
    }
    let pads = window.pads(&shape[2..])?;
    let mut out: Shape = shape[..2].into();
    for axis in 0..window.kernel.len() {
        let covered = shape[axis + 2].saturating_sub(1).saturating_mul(window.stride[axis]);
        let Some(extent) = covered.saturating_add(window.kernel[axis]).checked_sub(pads[axis][0] + pads[axis][1])
        else {
            refuse!("padding must be smaller than the window, got {pads:?}");
        };
        out.push(extent);
    }
    let zeros = node.constant_as(dtype, out.clone(), |_| 0.0f32)?;
    let y = match node.constant_value(node.input(1)?) {
        None => scattered(node, zeros, (node.input(1)?, shape.clone()), x, 1, None)?,
        Some(_) => {
            let size = out.elements();
            let place = |(update, &to): (usize, &i64)| {
                let within = usize::try_from(to).ok().filter(|&to| to < size);
                within.map(|to| (to, update)).ok_or_else(|| Refusal(format!("indices must be within {out}, got {to}")))
            };
            let index = node.constant_ints(1, "I")?;
            let writes = index.iter().enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
            written(node, zeros, x, 1, &writes, None)?
        }
    };
    let wanted = match node.optional(2) {
        None => out.clone(),
        Some(_) => counts(&node.constant_ints(2, "output_shape")?, "output_shape")?.into_iter().collect(),
    };
    if wanted.rank() != out.rank() || wanted.iter().zip(out.iter()).any(|(wanted, extent)| wanted < extent) {
        refuse!("`output_shape` must be at least {out}, got {wanted}");
    }
    if wanted == out {
        return Ok(y);
    }
    let pad = wanted.iter().zip(out.iter()).map(|(&wanted, &extent)| [0, (wanted - extent) as isize]).collect();
    Ok(vec![node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &y)?])
}

/// Applies updates at flat positions that depend on a run-time input and broadcast to `places`, of slices of `cells` elements.
fn scattered(
    node: &mut ImportedNode,
    data: Operand,
    (positions, places): (Operand, Shape),
    updates: Operand,
    cells: usize,
    function: Option<Binary>,
) -> NodeResult {
    let shape = node.shape(data);
    let count = node.shape(updates).elements() / cells.max(1);
    if shape.elements() == 0 || count == 0 {
        return Ok(vec![data]);
    }
    let positions = node.expand(positions, places)?;
    let positions = node.reshape(positions, Shape::from([count]))?;
    let updates = node.reshape(updates, Shape::from([count, cells]))?;
    let flat = node.reshape(data, Shape::from([shape.elements() / cells, cells]))?;
    let y = node.apply(Scatter { function }, &[flat, positions, updates])?;
    Ok(vec![node.reshape(y, shape)?])
}

/// The first index along each indexed axis if the indices are all of a box, in its order: `begin[k] + i` at position `i` of
/// axis `k`. Exporters write an assignment to a slice like this, with indices computed from ranges or stored as a constant.
fn first_of_box(node: &mut ImportedNode, shape: &Shape) -> Result<Option<Vec<usize>>, Refusal> {
    let index = node.input(1)?;
    let places = node.shape(index);
    let Some((&named, outer)) = places.split_last() else { return Ok(None) };
    if named != outer.len() || places.contains(&0) {
        return Ok(None);
    }
    let mut begin = Vec::new();
    for axis in 0..named {
        let Some(column) = node.column(index, axis)? else { return Ok(None) };
        let Ok(found) = column.to_i64().iter().map(|&ix| wrap_negative(ix, shape[axis])).collect::<Result<Vec<_>, _>>()
        else {
            return Ok(None);
        };
        let (from, along) = (strides(column.shape()), column.shape());
        // A column may be broadcast: it has an extent of 1 along other axes.
        let is_range = along[axis] == outer[axis]
            && found.iter().enumerate().all(|(at, &ix)| ix == found[0] + at / from[axis] % along[axis]);
        if !is_range {
            return Ok(None);
        }
        begin.push(found[0]);
    }
    Ok(Some(begin))
}

/// Replaces a box of the data that begins at these indices of the leading axes.
fn inserted(node: &mut ImportedNode, data: Operand, updates: Operand, begin: &[usize]) -> Result<Operand, Refusal> {
    let (whole, part) = (node.shape(data), node.shape(updates));
    let mut own = (0..whole.rank()).filter(|&axis| part[axis] != whole[axis]);
    let Some(axis) = own.next() else { return Ok(updates) };
    let start = begin[axis];
    let mut slab = updates;
    if own.next().is_some() {
        let old = node.apply(ops::Slice::range(&whole, axis, start, part[axis]), &[data])?;
        slab = inserted(node, old, updates, begin)?;
    }
    node.apply(Insert { axis, start }, &[data, slab])
}

/// Applies pairs of a position and an update, both numbers of slices of `cells` elements.
fn written(
    node: &mut ImportedNode,
    data: Operand,
    updates: Operand,
    cells: usize,
    writes: &[(usize, usize)],
    reduction: Option<Binary>,
) -> NodeResult {
    let shape = node.shape(data);
    let size = shape.elements() / cells.max(1);
    // Updates by position; without a reduction the last one wins.
    let mut by_place: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(to, update) in writes {
        let updates = by_place.entry(to).or_default();
        if reduction.is_none() {
            updates.clear();
        }
        updates.push(update);
    }
    let layers = by_place.values().map(Vec::len).max().unwrap_or(0);
    if layers == 0 || cells == 0 {
        return Ok(vec![data]);
    }
    if 256 < layers {
        refuse!("{layers} updates of one position are not supported");
    }
    let updates = node.reshape(updates, Shape::from([node.shape(updates).elements() / cells, cells]))?;
    let mut flat = node.reshape(data, Shape::from([size, cells]))?;
    for layer in 0..layers {
        // Data, then updates, as one table; positions without an update in this layer keep their element.
        let table = node.apply(ops::Concat { axis: 0 }, &[flat, updates])?;
        let from = node.constant_of([size], |to| {
            let update = by_place.get(&to).and_then(|updates| updates.get(layer));
            update.map_or(to, |update| size + update) as i64
        })?;
        let next = node.rows(table, from)?;
        flat = match reduction {
            None => next,
            Some(function) => {
                let touched =
                    node.constant_of([size, 1], |to| by_place.get(&to).is_some_and(|updates| layer < updates.len()))?;
                let combined = node.binary(function, flat, next)?;
                node.select(touched, combined, flat)?
            }
        };
    }
    Ok(vec![node.reshape(flat, shape)?])
}
