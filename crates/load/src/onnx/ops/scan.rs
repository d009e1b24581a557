//! Sums from the first element on.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::Binary;

use crate::common::{Operand, axis};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// `x` moved by some places along an axis, zeros in front.
fn moved(call: &mut Call, x: Operand, axis: usize, places: usize) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], shape.rank());
    pad[axis] = [places as isize, 0];
    let padded = call.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[x])?;
    let wide = call.shape(padded);
    call.apply(ops::Slice::range(&wide, axis, 0, shape[axis]), &[padded])
}

/// By doubling: sums of 2 neighbours, then of 4, up to all.
pub(super) fn cum_sum(call: &mut Call) -> Yield {
    let mut x = call.input(0)?;
    let at = axis(call.known_number(1, "axis")? as i64, call.shape(x).rank())?;
    let (exclusive, reverse) = (call.flag("exclusive")?, call.flag("reverse")?);
    if reverse {
        x = call.turned(x, at)?;
    }
    let extent = call.shape(x)[at];
    if exclusive && 0 < extent {
        x = moved(call, x, at, 1)?;
    }
    let mut places = 1;
    while places < extent {
        let before = moved(call, x, at, places)?;
        x = call.binary(Binary::Add, x, before)?;
        places *= 2;
    }
    Ok(vec![if reverse { call.turned(x, at)? } else { x }])
}
