//! Windows reduced to one element each.

use ir::ops::{Pool, PoolKind, ReduceKind};
use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{DType, Shape, Tensor};

use super::window::Window;
use crate::common::{Operand, refuse};
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
    let row_major = call.int_or("storage_order", 0)? == 0;
    let pool = pool(call, PoolKind::Max)?;
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let is_byte = matches!(dtype, DType::I8 | DType::U8);
    // Bytes go through f32 without loss, but a window in the padding only has no byte to stand for it.
    if is_byte && (0..pool.kernel.len()).any(|axis| pool.pad[axis].iter().any(|&pad| pool.kernel[axis] <= pad)) {
        refuse!("the padding is as wide as the window, which has no meaning for {dtype}");
    }
    let x = match dtype {
        DType::F16 | DType::Bf16 | DType::I8 | DType::U8 => call.cast(x, DType::F32)?,
        _ => x,
    };
    let largest = call.apply(pool.clone(), &[x])?;
    let mut yielded = vec![call.cast(largest, dtype)?];
    if call.wants(1) {
        let out = call.shape(largest);
        yielded.push(places(call, x, &pool, &out, row_major)?);
    }
    Ok(yielded)
}

/// Where the largest cell of each window stands in the flat tensor, the first of equal ones; planes by rows or by columns.
///
/// All cells of each window are gathered side by side.
fn places(call: &mut Call, x: Operand, pool: &Pool, out: &Shape, row_major: bool) -> Result<Operand, Refusal> {
    let shape = call.shape(x);
    let (planes, extents, windows) = (&shape[..2], &shape[2..], &out[2..]);
    let [cells, taps, count] = [extents, &pool.kernel[..], windows].map(|extents| extents.iter().product::<usize>());
    let table = Shape::from([taps, count]);
    call.reserve(DType::I64, &table)?;
    call.reserve(DType::I64, &table)?;
    let mut near = Vec::new();
    for axis in 0..extents.len() {
        near.push(cells_of_windows(pool, axis, extents[axis], windows[axis])?);
    }
    // The cell that a tap of a window reads, as a number: row by row, or column by column.
    let numbered = |at: usize, row_major: bool| {
        let (mut tap, mut window, mut sum, mut stride) = (at / count, at % count, 0, 1);
        let mut cell: SmallVec<[usize; 3]> = SmallVec::new();
        for axis in (0..extents.len()).rev() {
            cell.insert(0, near[axis][tap % pool.kernel[axis] + window % windows[axis] * pool.kernel[axis]]);
            tap /= pool.kernel[axis];
            window /= windows[axis];
        }
        for ix in 0..extents.len() {
            let axis = if row_major { extents.len() - 1 - ix } else { ix };
            sum += cell[axis] * stride;
            stride *= extents[axis];
        }
        sum as i64
    };
    let index = call.constant(Tensor::from_fn(table.clone(), |at| numbered(at, true)));
    let numbers = call.constant(Tensor::from_fn(Shape::from([taps * count]), |at| numbered(at, row_major)));
    let flat = call.reshape(x, Shape::from([planes[0], planes[1], cells]))?;
    let side_by_side = call.apply(ops::Gather { axis: 2 }, &[flat, index])?;
    let best = call.apply(ops::ArgExtreme { axis: 2, keep: false, max: true, last: false }, &[side_by_side])?;
    // Row `best` of the table, in the window's column.
    let width = call.number(count as f64, DType::I64);
    let rows = call.binary(Binary::Mul, best, width)?;
    let columns = call.positions(count, 2, 3)?;
    let at = call.binary(Binary::Add, rows, columns)?;
    let cell = call.rows(numbers, at)?;
    let plane = Shape::from([planes[0], planes[1], 1]);
    call.reserve(DType::I64, &plane)?;
    let starts = call.constant(Tensor::from_fn(plane, |plane| (plane * cells) as i64));
    let place = call.binary(Binary::Add, cell, starts)?;
    call.reshape(place, out.clone())
}

/// For each window along an axis the cells that its taps read. A tap in the padding reads the cell of the window that is
/// next to it, which changes nothing: that cell stands there already, and stays the first of its kind.
fn cells_of_windows(pool: &Pool, axis: usize, extent: usize, windows: usize) -> Result<Vec<usize>, Refusal> {
    let (kernel, stride, dilation) = (pool.kernel[axis], pool.stride[axis], pool.dilation[axis]);
    let mut cells = Vec::new();
    for window in 0..windows {
        let reach = |tap: usize| (window * stride).saturating_add(tap.saturating_mul(dilation));
        let read = |tap: usize| reach(tap).checked_sub(pool.pad[axis][0]).filter(|&cell| cell < extent);
        let inside: Vec<usize> = (0..kernel).filter_map(read).collect();
        let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else {
            refuse!("a window lies in the padding as a whole, where nothing has a place");
        };
        let is_before = |tap: usize| reach(tap) < pool.pad[axis][0];
        cells.extend((0..kernel).map(|tap| read(tap).unwrap_or(if is_before(tap) { first } else { last })));
    }
    Ok(cells)
}

/// The attributes of an average.
pub(super) fn average_of(call: &mut Call) -> Result<Pool, Refusal> {
    let kind = if call.flag("count_include_pad")? { PoolKind::MeanWithPadding } else { PoolKind::Mean };
    pool(call, kind)
}

pub(super) fn average(call: &mut Call) -> Yield {
    let pool = average_of(call)?;
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
