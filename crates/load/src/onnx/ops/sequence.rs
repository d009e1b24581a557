//! Sequences and optionals, resolved while loading: only their tensors reach the graph.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use crate::common::{NodeResult, Operand, axis, counts, refuse};
use crate::onnx::node::{Entry, ImportedNode};

/// Most parts of a split tensor.
const PARTS_MAX: usize = 4096;

/// Checks that all tensors of a sequence have one dtype.
fn sequence(node: &ImportedNode, list: Vec<Operand>) -> NodeResult<Entry> {
    if let Some(pair) = list.windows(2).find(|pair| node.dtype(pair[0]) != node.dtype(pair[1])) {
        refuse!("tensors of a sequence must have one dtype, got {} and {}", node.dtype(pair[0]), node.dtype(pair[1]));
    }
    Ok(vec![Entry::Sequence(list)])
}

pub(super) fn construct(node: &mut ImportedNode) -> NodeResult<Entry> {
    let list = node.all_inputs()?;
    sequence(node, list)
}

pub(super) fn empty(node: &mut ImportedNode) -> NodeResult<Entry> {
    node.dtype_attribute("dtype")?;
    Ok(vec![Entry::Sequence(Vec::new())])
}

/// A constant position among `count`; negative ones count from the end.
fn position(node: &ImportedNode, ix: usize, length: usize, count: usize) -> Result<usize, Refusal> {
    let at = node.constant_number(ix, "position")? as i64;
    let counted = if at < 0 { at.saturating_add(length as i64) } else { at };
    match usize::try_from(counted) {
        Ok(counted) if counted < count => Ok(counted),
        _ => refuse!("position must be within a sequence of {length}, got {at}"),
    }
}

/// Inserts before a position, or at the end.
pub(super) fn insert(node: &mut ImportedNode) -> NodeResult<Entry> {
    let (mut list, x) = (node.sequence(0)?, node.input(1)?);
    let at = match node.entry(2) {
        None => list.len(),
        Some(_) => position(node, 2, list.len(), list.len() + 1)?,
    };
    list.insert(at, x);
    sequence(node, list)
}

pub(super) fn erase(node: &mut ImportedNode) -> NodeResult<Entry> {
    let mut list = node.sequence(0)?;
    let at = match node.entry(1) {
        None if list.is_empty() => refuse!("the sequence must not be empty"),
        None => list.len() - 1,
        Some(_) => position(node, 1, list.len(), list.len())?,
    };
    list.remove(at);
    sequence(node, list)
}

pub(super) fn at(node: &mut ImportedNode) -> NodeResult<Entry> {
    let list = node.sequence(0)?;
    let at = position(node, 1, list.len(), list.len())?;
    Ok(vec![Entry::Operand(list[at])])
}

pub(super) fn length(node: &mut ImportedNode) -> NodeResult<Entry> {
    let length = node.sequence(0)?.len();
    Ok(vec![Entry::Operand(node.constant(Tensor::scalar(length as i64)))])
}

/// Parts of given lengths, or of one length with the last one shorter, or slices, whose axis is removed on request.
pub(super) fn split(node: &mut ImportedNode) -> NodeResult<Entry> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = axis(node.int_or("axis", 0)?, shape.rank())?;
    let keeps_axis = node.int_or("keepdims", 1)? != 0 || node.entry(1).is_some();
    let extent = shape[axis];
    let alike = |length: usize| -> Result<SmallVec<[usize; 4]>, Refusal> {
        if length == 0 || PARTS_MAX < extent.div_ceil(length) {
            refuse!("axis {axis} of {shape} must give at most {PARTS_MAX} parts of {length}");
        }
        Ok((0..extent.div_ceil(length)).map(|part| length.min(extent - part * length)).collect())
    };
    let lengths = match node.entry(1) {
        None => alike(1)?,
        Some(_) => {
            let given = counts(&node.constant_ints(1, "split")?, "split")?;
            if node.shape(node.input(1)?).rank() == 0 { alike(given[0])? } else { given }
        }
    };
    if lengths.iter().fold(0usize, |sum, &length| sum.saturating_add(length)) != extent {
        refuse!("lengths must add up to axis {axis} of {shape}, got {lengths:?}");
    }
    let (mut start, mut list) = (0, Vec::new());
    for length in lengths {
        let part = if length == extent { x } else { node.apply(ops::Slice::range(&shape, axis, start, length), &[x])? };
        let mut kept = node.shape(part);
        if !keeps_axis {
            kept.remove(axis);
        }
        list.push(node.reshape(part, kept)?);
        start += length;
    }
    sequence(node, list)
}

/// Concatenates along an axis, or stacks along a new one.
pub(super) fn concat(node: &mut ImportedNode) -> NodeResult<Entry> {
    let mut list = node.sequence(0)?;
    let Some(&first) = list.first() else { refuse!("the sequence must not be empty") };
    let Some(along) = node.int("axis")? else { refuse!("attribute `axis` is missing") };
    let is_new = node.flag("new_axis")?;
    let shape = node.shape(first);
    let axis = axis(along, shape.rank() + usize::from(is_new))?;
    if is_new {
        if let Some(other) = list.iter().map(|&x| node.shape(x)).find(|other| *other != shape) {
            refuse!("tensors to stack must have equal shapes, got {shape} and {other}");
        }
        let mut slice: Shape = shape;
        slice.insert(axis, 1);
        for x in &mut list {
            *x = node.reshape(*x, slice.clone())?;
        }
    }
    let joined = if list.len() == 1 { list[0] } else { node.apply(ops::Concat { axis }, &list)? };
    Ok(vec![Entry::Operand(joined)])
}

pub(super) fn identity(node: &mut ImportedNode) -> NodeResult<Entry> {
    match node.entry(0) {
        None => refuse!("input 0 is missing"),
        Some(entry) => Ok(vec![entry.clone()]),
    }
}

/// An optional with the operand as its element, or empty.
pub(super) fn optional(node: &mut ImportedNode) -> NodeResult<Entry> {
    // The element type of an empty optional.
    node.ignore(&["type"]);
    Ok(vec![node.entry(0).cloned().unwrap_or(Entry::Nothing)])
}

pub(super) fn optional_get_element(node: &mut ImportedNode) -> NodeResult<Entry> {
    match node.entry(0) {
        None => refuse!("input 0 is missing"),
        Some(Entry::Nothing) => refuse!("the optional must not be empty"),
        Some(entry) => Ok(vec![entry.clone()]),
    }
}

/// A tensor or sequence counts as an optional with an element.
pub(super) fn optional_has_element(node: &mut ImportedNode) -> NodeResult<Entry> {
    let has_element = !matches!(node.entry(0), None | Some(Entry::Nothing));
    Ok(vec![Entry::Operand(node.constant(Tensor::scalar(has_element)))])
}
