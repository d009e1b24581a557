//! Cumulative sums.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::Binary;

use crate::common::{NodeResult, Operand, axis};
use crate::onnx::node::ImportedNode;

/// `x` shifted along an axis, with zeros in front.
fn moved(node: &mut ImportedNode, x: Operand, axis: usize, places: usize) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], shape.rank());
    pad[axis] = [places as isize, 0];
    let padded = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[x])?;
    let wide = node.shape(padded);
    node.apply(ops::Slice::range(&wide, axis, 0, shape[axis]), &[padded])
}

/// By doubling: sums of 2 neighbors, then of 4, up to all.
pub(super) fn cum_sum(node: &mut ImportedNode) -> NodeResult {
    let mut x = node.input(0)?;
    let at = axis(node.constant_number(1, "axis")? as i64, node.shape(x).rank())?;
    let (exclusive, reverse) = (node.flag("exclusive")?, node.flag("reverse")?);
    if reverse {
        x = node.reversed(x, at)?;
    }
    let extent = node.shape(x)[at];
    if exclusive && 0 < extent {
        x = moved(node, x, at, 1)?;
    }
    let mut places = 1;
    while places < extent {
        let before = moved(node, x, at, places)?;
        x = node.binary(Binary::Add, x, before)?;
        places *= 2;
    }
    Ok(vec![if reverse { node.reversed(x, at)? } else { x }])
}
