//! Reductions.

use ir::Refusal;
use ir::ops::{ArgExtreme, ReduceKind};
use smallvec::SmallVec;
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, axes, axis, refuse};
use crate::mxnet::node::ImportedNode;

/// A result of rank 0 becomes rank 1.
fn at_least_one(node: &mut ImportedNode, y: Operand) -> NodeResult {
    match node.shape(y).rank() {
        0 => Ok(vec![node.reshape(y, Shape::from([1]))?]),
        _ => Ok(vec![y]),
    }
}

/// The axes of `axis`, or with `exclude` all others. If absent, all axes.
fn along(node: &ImportedNode, rank: usize) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let list = node.ints("axis")?.unwrap_or_default();
    let named = axes(&list, rank)?;
    Ok(match (node.flag("exclude")?, named.is_empty()) {
        (true, false) => (0..rank).filter(|at| !named.contains(at)).collect(),
        (_, true) => (0..rank).collect(),
        (false, false) => named,
    })
}

fn reduce(node: &mut ImportedNode, kind: ReduceKind) -> NodeResult {
    let x = node.input(0)?;
    let axes = along(node, node.shape(x).rank())?;
    let y = node.reduce(kind, x, axes, node.flag("keepdims")?)?;
    at_least_one(node, y)
}

macro_rules! kinds {
    ($($name:ident $kind:ident,)*) => {
        $(pub(super) fn $name(node: &mut ImportedNode) -> NodeResult {
            reduce(node, ReduceKind::$kind)
        })*
    };
}

kinds! {
    sum Sum, mean Mean, max Max, min Min, prod Prod,
}

pub(super) fn norm(node: &mut ImportedNode) -> NodeResult {
    node.ignore(&["out_dtype"]);
    let kind = match node.int_or("ord", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        other => refuse!("attribute `ord` must be 1 or 2, got {other}"),
    };
    reduce(node, kind)
}

/// Positions are `f32`; without an axis those in the flattened tensor.
fn arg_extreme(node: &mut ImportedNode, max: bool) -> NodeResult {
    let mut x = node.input(0)?;
    let keep = node.flag("keepdims")?;
    let at = match node.int("axis")? {
        Some(at) => axis(at, node.shape(x).rank())?,
        None => {
            let elements = node.shape(x).elements();
            x = node.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let (x, _) = node.widen(&[x])?;
    let best = node.apply(ArgExtreme { axis: at, keep, max, last: false }, &x)?;
    let best = node.cast(best, DType::F32)?;
    at_least_one(node, best)
}

pub(super) fn argmax(node: &mut ImportedNode) -> NodeResult {
    arg_extreme(node, true)
}

pub(super) fn argmin(node: &mut ImportedNode) -> NodeResult {
    arg_extreme(node, false)
}

pub(super) fn argmax_channel(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let at = axis(1, node.shape(x).rank())?;
    let best = node.apply(ArgExtreme { axis: at, keep: false, max: true, last: false }, &[x])?;
    Ok(vec![node.cast(best, DType::F32)?])
}
