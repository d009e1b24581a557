//! Windows reduced to one element each.

use ir::Refusal;
use ir::ops::{Pool, PoolKind, ReduceKind};
use smallvec::SmallVec;
use types::DType;
use types::pointwise::{Binary, Unary};

use super::window::Window;
use crate::build::{Operand, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

fn pool(call: &Call, kind: PoolKind) -> Result<Pool, Refusal> {
    let x = call.shape(call.input(0)?);
    if x.rank() < 3 {
        refuse!("input {x} has no spatial dimensions");
    }
    let window = Window::read(call, None)?;
    let pad = window.pads(&x[2..])?;
    let ceil = call.flag("ceil_mode")?;
    Ok(Pool { kind, kernel: window.kernel, stride: window.stride, dilation: window.dilation, pad, ceil })
}

pub(super) fn max(call: &mut Call) -> Yield {
    // The order in which indices are counted; there are none.
    call.ignore(&["storage_order"]);
    let pool = pool(call, PoolKind::Max)?;
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    if !matches!(dtype, DType::I8 | DType::U8) {
        return Ok(vec![call.apply_f32(pool, &[x])?]);
    }
    // Bytes go through f32 without loss, but a window in the padding only has no byte to stand for it.
    if (0..pool.kernel.len()).any(|axis| pool.pad[axis].iter().any(|&pad| pool.kernel[axis] <= pad)) {
        refuse!("the padding is as wide as the window, which has no meaning for {dtype}");
    }
    let x = call.cast(x, DType::F32)?;
    let y = call.apply(pool, &[x])?;
    Ok(vec![call.cast(y, dtype)?])
}

pub(super) fn average(call: &mut Call) -> Yield {
    let kind = if call.flag("count_include_pad")? { PoolKind::MeanWithPadding } else { PoolKind::Mean };
    let pool = pool(call, kind)?;
    let x = call.input(0)?;
    Ok(vec![call.apply_f32(pool, &[x])?])
}

/// The p-norm of each window: the root of the mean of powers, times the window's cells.
pub(super) fn lp(call: &mut Call) -> Yield {
    let p = if call.opset() < 2 { call.float_or("p", 2.0)? } else { call.int_or("p", 2)? as f32 };
    let pool = pool(call, PoolKind::MeanWithPadding)?;
    if pool.ceil {
        refuse!("attribute `ceil_mode` is not supported");
    }
    let cells: usize = pool.kernel.iter().product();
    let x = call.input(0)?;
    let x = call.unary(Unary::Abs, x)?;
    let p_operand = call.number(f64::from(p), DType::F32);
    let powers = call.binary(Binary::Pow, x, p_operand)?;
    let mean = call.apply(pool, &[powers])?;
    let cells = call.number(cells as f64, DType::F32);
    let sum = call.binary(Binary::Mul, mean, cells)?;
    let root = call.number(1.0 / f64::from(p), DType::F32);
    Ok(vec![call.binary(Binary::Pow, sum, root)?])
}

fn global(call: &mut Call, kind: ReduceKind) -> Yield {
    let x = call.input(0)?;
    let rank = call.shape(x).rank();
    if rank < 2 {
        refuse!("input {} has no channels", call.shape(x));
    }
    let axes: SmallVec<[usize; 4]> = (2..rank).collect();
    Ok(vec![call.reduce(kind, x, axes, true)?])
}

pub(super) fn global_average(call: &mut Call) -> Yield {
    global(call, ReduceKind::Mean)
}

pub(super) fn global_max(call: &mut Call) -> Yield {
    global(call, ReduceKind::Max)
}

pub(super) fn global_lp(call: &mut Call) -> Yield {
    match call.int_or("p", 2)? {
        1 => global(call, ReduceKind::L1),
        2 => global(call, ReduceKind::L2),
        p => refuse!("attribute `p` is {p}; 1 and 2 are supported"),
    }
}
