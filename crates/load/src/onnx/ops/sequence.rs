//! Sequences and optionals: what they hold is known while loading, and only their tensors reach the graph.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use crate::common::{Operand, axis, counts, refuse};
use crate::onnx::call::{Call, Entry};

type Yield = Result<Vec<Entry>, Refusal>;

/// A tensor is cut into so many parts at most.
const PARTS_MAX: usize = 4096;

/// Tensors of a sequence have one dtype.
fn sequence(call: &Call, list: Vec<Operand>) -> Yield {
    if let Some(pair) = list.windows(2).find(|pair| call.dtype(pair[0]) != call.dtype(pair[1])) {
        refuse!("a sequence does not hold both {} and {}", call.dtype(pair[0]), call.dtype(pair[1]));
    }
    Ok(vec![Entry::Sequence(list)])
}

pub(super) fn construct(call: &mut Call) -> Yield {
    let list = call.all_inputs()?;
    sequence(call, list)
}

pub(super) fn empty(call: &mut Call) -> Yield {
    call.dtype_attribute("dtype")?;
    Ok(vec![Entry::Sequence(Vec::new())])
}

/// A known position among `count`; negative ones count from the end.
fn position(call: &Call, ix: usize, length: usize, count: usize) -> Result<usize, Refusal> {
    let at = call.known_number(ix, "position")? as i64;
    let counted = if at < 0 { at.saturating_add(length as i64) } else { at };
    match usize::try_from(counted) {
        Ok(counted) if counted < count => Ok(counted),
        _ => refuse!("position {at} does not exist in a sequence of {length}"),
    }
}

/// In front of a position, or behind all others.
pub(super) fn insert(call: &mut Call) -> Yield {
    let (mut list, x) = (call.sequence(0)?, call.input(1)?);
    let at = match call.entry(2) {
        None => list.len(),
        Some(_) => position(call, 2, list.len(), list.len() + 1)?,
    };
    list.insert(at, x);
    sequence(call, list)
}

pub(super) fn erase(call: &mut Call) -> Yield {
    let mut list = call.sequence(0)?;
    let at = match call.entry(1) {
        None if list.is_empty() => refuse!("there is nothing to erase in a sequence of 0"),
        None => list.len() - 1,
        Some(_) => position(call, 1, list.len(), list.len())?,
    };
    list.remove(at);
    sequence(call, list)
}

pub(super) fn at(call: &mut Call) -> Yield {
    let list = call.sequence(0)?;
    let at = position(call, 1, list.len(), list.len())?;
    Ok(vec![Entry::Operand(list[at])])
}

pub(super) fn length(call: &mut Call) -> Yield {
    let length = call.sequence(0)?.len();
    Ok(vec![Entry::Operand(call.constant(Tensor::scalar(length as i64)))])
}

/// Parts of the lengths that are given; of one length, the last one shorter; or slices, whose axis goes on demand.
pub(super) fn split(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let shape = call.shape(x);
    let axis = axis(call.int_or("axis", 0)?, shape.rank())?;
    let keeps_axis = call.int_or("keepdims", 1)? != 0 || call.entry(1).is_some();
    let extent = shape[axis];
    let alike = |length: usize| -> Result<SmallVec<[usize; 4]>, Refusal> {
        if length == 0 || PARTS_MAX < extent.div_ceil(length) {
            refuse!("axis {axis} of {shape} does not fall into at most {PARTS_MAX} parts of {length}");
        }
        Ok((0..extent.div_ceil(length)).map(|part| length.min(extent - part * length)).collect())
    };
    let lengths = match call.entry(1) {
        None => alike(1)?,
        Some(_) => {
            let given = counts(&call.known_ints(1, "split")?, "split")?;
            if call.shape(call.input(1)?).rank() == 0 { alike(given[0])? } else { given }
        }
    };
    if lengths.iter().fold(0usize, |sum, &length| sum.saturating_add(length)) != extent {
        refuse!("parts of {lengths:?} do not make up axis {axis} of {shape}");
    }
    let (mut start, mut list) = (0, Vec::new());
    for length in lengths {
        let part = if length == extent { x } else { call.apply(ops::Slice::range(&shape, axis, start, length), &[x])? };
        let mut kept = call.shape(part);
        if !keeps_axis {
            kept.remove(axis);
        }
        list.push(call.reshape(part, kept)?);
        start += length;
    }
    sequence(call, list)
}

/// Joined along an axis that all of them have, or along a new one.
pub(super) fn concat(call: &mut Call) -> Yield {
    let mut list = call.sequence(0)?;
    let Some(&first) = list.first() else { refuse!("there is nothing to join in a sequence of 0") };
    let Some(along) = call.int("axis")? else { refuse!("attribute `axis` is missing") };
    let is_new = call.flag("new_axis")?;
    let shape = call.shape(first);
    let axis = axis(along, shape.rank() + usize::from(is_new))?;
    if is_new {
        if let Some(other) = list.iter().map(|&x| call.shape(x)).find(|other| *other != shape) {
            refuse!("{shape} and {other} do not join along a new axis");
        }
        let mut slice: Shape = shape;
        slice.insert(axis, 1);
        for x in &mut list {
            *x = call.reshape(*x, slice.clone())?;
        }
    }
    let joined = if list.len() == 1 { list[0] } else { call.apply(ops::Concat { axis }, &list)? };
    Ok(vec![Entry::Operand(joined)])
}

pub(super) fn identity(call: &mut Call) -> Yield {
    match call.entry(0) {
        None => refuse!("input 0 is missing"),
        Some(entry) => Ok(vec![entry.clone()]),
    }
}

/// Its element, or nothing.
pub(super) fn optional(call: &mut Call) -> Yield {
    // The type of what is not there.
    call.ignore(&["type"]);
    Ok(vec![call.entry(0).cloned().unwrap_or(Entry::Nothing)])
}

pub(super) fn optional_get_element(call: &mut Call) -> Yield {
    match call.entry(0) {
        None => refuse!("input 0 is missing"),
        Some(Entry::Nothing) => refuse!("the optional holds nothing"),
        Some(entry) => Ok(vec![entry.clone()]),
    }
}

/// Whatever is known to be there has its element.
pub(super) fn optional_has_element(call: &mut Call) -> Yield {
    let has_element = !matches!(call.entry(0), None | Some(Entry::Nothing));
    Ok(vec![Entry::Operand(call.constant(Tensor::scalar(has_element)))])
}
