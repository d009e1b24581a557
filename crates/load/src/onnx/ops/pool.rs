//! Pooling.

use ir::ops::{Pool, PoolKind, ReduceKind};
use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::pointwise::{Binary, Unary};
use types::{DType, Shape};

use super::window::Window;
use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

fn pool(node: &ImportedNode, kind: PoolKind) -> Result<Pool, Refusal> {
    let x = node.shape(node.input(0)?);
    if x.rank() < 3 {
        refuse!("input must have spatial axes, got {x}");
    }
    let window = Window::read(node, None)?;
    let pad = window.pads(&x[2..])?;
    let ceil = node.flag("ceil_mode")?;
    Ok(Pool { kind, kernel: window.kernel, stride: window.stride, dilation: window.dilation, pad, ceil })
}

pub(super) fn max(node: &mut ImportedNode) -> NodeResult {
    let row_major = node.int_or("storage_order", 0)? == 0;
    let pool = pool(node, PoolKind::Max)?;
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    let is_byte = matches!(dtype, DType::I8 | DType::U8);
    // f32 represents int8 exactly, but the maximum of a window of padding only has no int8 value.
    if is_byte && (0..pool.kernel.len()).any(|axis| pool.pad[axis].iter().any(|&pad| pool.kernel[axis] <= pad)) {
        refuse!("padding must be smaller than the window for {dtype}");
    }
    let x = match dtype {
        DType::F16 | DType::Bf16 | DType::I8 | DType::U8 => node.cast(x, DType::F32)?,
        _ => x,
    };
    let largest = node.apply(pool.clone(), &[x])?;
    let mut yielded = vec![node.cast(largest, dtype)?];
    if node.has_output(1) {
        let out = node.shape(largest);
        yielded.push(places(node, x, &pool, &out, row_major)?);
    }
    Ok(yielded)
}

/// Position in the flattened tensor of the first largest cell of each window; planes in row-major or column-major order.
///
/// All cells of each window are gathered next to each other.
fn places(node: &mut ImportedNode, x: Operand, pool: &Pool, out: &Shape, row_major: bool) -> Result<Operand, Refusal> {
    let shape = node.shape(x);
    let (planes, extents, windows) = (&shape[..2], &shape[2..], &out[2..]);
    let [cells, taps, count] = [extents, &pool.kernel[..], windows].map(|extents| extents.iter().product::<usize>());
    let mut near = Vec::new();
    for axis in 0..extents.len() {
        node.reserve(DType::I64, &Shape::from([windows[axis], pool.kernel[axis]]))?;
        near.push(cells_of_windows(pool, axis, extents[axis], windows[axis])?);
    }
    // The flat index of the cell that a tap of a window reads, in row-major or column-major order.
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
    let index = node.constant_of([taps, count], |at| numbered(at, true))?;
    let numbers = node.constant_of([taps * count], |at| numbered(at, row_major))?;
    let flat = node.reshape(x, Shape::from([planes[0], planes[1], cells]))?;
    let side_by_side = node.apply(ops::Gather { axis: 2 }, &[flat, index])?;
    let best = node.apply(ops::ArgExtreme { axis: 2, keep: false, max: true, last: false }, &[side_by_side])?;
    // Row `best` of the table, in the column of the window.
    let width = node.number(count as f64, DType::I64);
    let rows = node.binary(Binary::Mul, best, width)?;
    let columns = node.positions(count, 2, 3)?;
    let at = node.binary(Binary::Add, rows, columns)?;
    let cell = node.rows(numbers, at)?;
    let starts = node.constant_of([planes[0], planes[1], 1], |plane| (plane * cells) as i64)?;
    let place = node.binary(Binary::Add, cell, starts)?;
    node.reshape(place, out.clone())
}

/// The cells along an axis that the taps of each window read. A tap in the padding reads the nearest cell of the window:
/// the window contains that cell already, so its first maximum does not change.
fn cells_of_windows(pool: &Pool, axis: usize, extent: usize, windows: usize) -> Result<Vec<usize>, Refusal> {
    let (kernel, stride, dilation) = (pool.kernel[axis], pool.stride[axis], pool.dilation[axis]);
    let mut cells = Vec::new();
    for window in 0..windows {
        let reach = |tap: usize| (window * stride).saturating_add(tap.saturating_mul(dilation));
        let read = |tap: usize| reach(tap).checked_sub(pool.pad[axis][0]).filter(|&cell| cell < extent);
        let inside: Vec<usize> = (0..kernel).filter_map(read).collect();
        let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else {
            refuse!("windows must not be inside the padding");
        };
        let is_before = |tap: usize| reach(tap) < pool.pad[axis][0];
        cells.extend((0..kernel).map(|tap| read(tap).unwrap_or(if is_before(tap) { first } else { last })));
    }
    Ok(cells)
}

/// An average pool.
pub(super) fn average_of(node: &mut ImportedNode) -> Result<Pool, Refusal> {
    let kind = if node.flag("count_include_pad")? { PoolKind::MeanWithPadding } else { PoolKind::Mean };
    pool(node, kind)
}

pub(super) fn average(node: &mut ImportedNode) -> NodeResult {
    let pool = average_of(node)?;
    let x = node.input(0)?;
    Ok(vec![node.apply_f32(pool, &[x])?])
}

/// The p-norm of each window: the root of the mean of powers times the number of cells.
pub(super) fn lp(node: &mut ImportedNode) -> NodeResult {
    let p = if node.opset() < 2 { node.float_or("p", 2.0)? } else { node.int_or("p", 2)? as f32 };
    let pool = pool(node, PoolKind::MeanWithPadding)?;
    if pool.ceil {
        refuse!("attribute `ceil_mode` is not supported");
    }
    let cells: usize = pool.kernel.iter().product();
    let x = node.input(0)?;
    let x = node.unary(Unary::Abs, x)?;
    let p_operand = node.number(f64::from(p), DType::F32);
    let powers = node.binary(Binary::Pow, x, p_operand)?;
    let mean = node.apply(pool, &[powers])?;
    let cells = node.number(cells as f64, DType::F32);
    let sum = node.binary(Binary::Mul, mean, cells)?;
    let root = node.number(1.0 / f64::from(p), DType::F32);
    Ok(vec![node.binary(Binary::Pow, sum, root)?])
}

fn global(node: &mut ImportedNode, kind: ReduceKind) -> NodeResult {
    let x = node.input(0)?;
    let rank = node.shape(x).rank();
    if rank < 2 {
        refuse!("input must have a channel axis, got {}", node.shape(x));
    }
    let axes: SmallVec<[usize; 4]> = (2..rank).collect();
    Ok(vec![node.reduce(kind, x, axes, true)?])
}

pub(super) fn global_average(node: &mut ImportedNode) -> NodeResult {
    global(node, ReduceKind::Mean)
}

pub(super) fn global_max(node: &mut ImportedNode) -> NodeResult {
    global(node, ReduceKind::Max)
}

pub(super) fn global_lp(node: &mut ImportedNode) -> NodeResult {
    match node.int_or("p", 2)? {
        1 => global(node, ReduceKind::L1),
        2 => global(node, ReduceKind::L2),
        p => refuse!("attribute `p` must be 1 or 2, got {p}"),
    }
}
