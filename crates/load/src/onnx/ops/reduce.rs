//! One element from many along axes.

use ir::Refusal;
use ir::ops::{ArgExtreme, ReduceKind};

use crate::common::{Operand, axes, axis};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

macro_rules! reduce {
    ($($name:ident $kind:ident,)*) => {
        $(pub(super) fn $name(call: &mut Call) -> Yield {
            reduce(call, ReduceKind::$kind)
        })*
    };
}

reduce! {
    l1 L1, l2 L2, log_sum LogSum, log_sum_exp LogSumExp, max Max, mean Mean, min Min, prod Prod, sum Sum,
    sum_square SumSquare,
}

/// Axes are an attribute up to opset 17 (`ReduceSum` 12), an operand from then on. None at all means all of them.
fn reduce(call: &mut Call, kind: ReduceKind) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    let last = if kind == ReduceKind::Sum { 12 } else { 17 };
    let list = call.ints_or_input("axes", 1, last)?.unwrap_or_default();
    let keep = call.int_or("keepdims", 1)? != 0;
    if call.flag("noop_with_empty_axes")? && list.is_empty() {
        return Ok(vec![x]);
    }
    let axes = if list.is_empty() { (0..rank).collect() } else { axes(&list, rank)? };
    Ok(vec![call.reduce(kind, x, axes, keep)?])
}

pub(super) fn arg_max(call: &mut Call) -> Yield {
    arg_extreme(call, true)
}

pub(super) fn arg_min(call: &mut Call) -> Yield {
    arg_extreme(call, false)
}

fn arg_extreme(call: &mut Call, max: bool) -> Yield {
    let x = call.input(0)?;
    let axis = axis(call.int_or("axis", 0)?, call.shape(x).rank())?;
    let keep = call.int_or("keepdims", 1)? != 0;
    let last = call.flag("select_last_index")?;
    let (x, _) = call.widen(&[x])?;
    Ok(vec![call.apply(ArgExtreme { axis, keep, max, last }, &x)?])
}
