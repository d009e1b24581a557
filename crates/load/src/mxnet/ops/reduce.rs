//! One element from many along axes.

use ir::Refusal;
use ir::ops::{ArgExtreme, ReduceKind};
use smallvec::SmallVec;
use types::{DType, Shape};

use super::Yield;
use crate::common::{Operand, axes, axis, refuse};
use crate::mxnet::call::Call;

/// A result without dimensions gets one.
fn at_least_one(call: &mut Call, y: Operand) -> Yield {
    match call.shape(y).rank() {
        0 => Ok(vec![call.reshape(y, Shape::from([1]))?]),
        _ => Ok(vec![y]),
    }
}

/// The axes of `axis`, or with `exclude` all others. None at all means all of them.
fn along(call: &Call, rank: usize) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let list = call.ints("axis")?.unwrap_or_default();
    let named = axes(&list, rank)?;
    Ok(match (call.flag("exclude")?, named.is_empty()) {
        (true, false) => (0..rank).filter(|at| !named.contains(at)).collect(),
        (_, true) => (0..rank).collect(),
        (false, false) => named,
    })
}

fn reduce(call: &mut Call, kind: ReduceKind) -> Yield {
    let x = call.input(0)?;
    let axes = along(call, call.shape(x).rank())?;
    let y = call.reduce(kind, x, axes, call.flag("keepdims")?)?;
    at_least_one(call, y)
}

macro_rules! kinds {
    ($($name:ident $kind:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            reduce(call, ReduceKind::$kind)
        })*
    };
}

kinds! {
    sum Sum, mean Mean, max Max, min Min, prod Prod,
}

pub(super) fn norm(call: &mut Call) -> Yield {
    call.ignore(&["out_dtype"]);
    let kind = match call.int_or("ord", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        other => refuse!("attribute `ord` is {other}; 1 and 2 are supported"),
    };
    reduce(call, kind)
}

/// Positions are numbers in `f32`; without an axis those of the flat tensor.
fn arg_extreme(call: &mut Call, max: bool) -> Yield {
    let mut x = call.input(0)?;
    let keep = call.flag("keepdims")?;
    let at = match call.int("axis")? {
        Some(at) => axis(at, call.shape(x).rank())?,
        None => {
            let elements = call.shape(x).elements();
            x = call.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let (x, _) = call.widen(&[x])?;
    let best = call.apply(ArgExtreme { axis: at, keep, max, last: false }, &x)?;
    let best = call.cast(best, DType::F32)?;
    at_least_one(call, best)
}

pub(super) fn argmax(call: &mut Call) -> Yield {
    arg_extreme(call, true)
}

pub(super) fn argmin(call: &mut Call) -> Yield {
    arg_extreme(call, false)
}

pub(super) fn argmax_channel(call: &mut Call) -> Yield {
    let x = call.input(0)?;
    let at = axis(1, call.shape(x).rank())?;
    let best = call.apply(ArgExtreme { axis: at, keep: false, max: true, last: false }, &[x])?;
    Ok(vec![call.cast(best, DType::F32)?])
}
