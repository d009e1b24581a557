//! Nodes that slide a window over one to three spatial dimensions.

use std::ops::Range;

use ir::Call;
use ir::ops::{Conv, ConvTranspose, Pool, PoolKind};
use types::{Bytes, Layout, Shape};

use super::c_source::finish;
use super::emit::{Emitted, GRID_MAX, KernelKind, Template, blocks, call};
use super::tiling::Tiles;
use crate::NodeView;

/// Groups with fewer output channels are computed output by output.
pub(super) const CHANNELS_MIN: usize = 8;

/// Rows and columns of spatial numbers; one dimension is one row.
pub(super) fn two(numbers: &[usize], one: usize) -> Result<[usize; 2], String> {
    match *numbers {
        [columns] => Ok([one, columns]),
        [rows, columns] => Ok([rows, columns]),
        _ => Err(format!("{} spatial dimensions; there are kernels for one and two", numbers.len())),
    }
}

/// `Window<..>` in C, or `DeepWindow<..>` for three dimensions.
pub(super) fn window(
    x: &Shape,
    out: &Shape,
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    pad: &[[usize; 2]],
) -> Result<String, String> {
    let (spatial, front): (usize, Vec<usize>) = (kernel.len(), pad.iter().map(|pad| pad[0]).collect());
    if 3 < spatial {
        return Err(format!("{spatial} spatial dimensions; there are kernels for one to three"));
    }
    // One dimension is one row; the first of three is one column.
    let numbers = |axes: Range<usize>| -> Vec<usize> {
        let fields = [(&x[2..], 1), (&out[2..], 1), (kernel, 1), (stride, 1), (dilation, 1), (&front[..], 0)];
        let two = |(own, one): (&[usize], usize)| match (&own[axes.clone()], spatial) {
            (&[columns], 1) => [one, columns],
            (&[planes], _) => [planes, one],
            (own, _) => [own[0], own[1]],
        };
        fields.into_iter().flat_map(two).collect()
    };
    let text = |axes: Range<usize>| format!("Window<{}>", comma_separated(&numbers(axes)));
    Ok(match spatial {
        3 => format!("DeepWindow<{}, {}>", text(0..1), text(1..3)),
        _ => text(0..spatial),
    })
}

/// Numbers as C arguments.
pub(super) fn comma_separated(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The padding at the end of each dimension of a pool's window, as C arguments.
pub(super) fn behind(pool: &Pool) -> String {
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    comma_separated(&if back.len() == 1 { vec![0, back[0]] } else { back })
}

pub(super) fn label(kernel: &[usize], out: &Shape) -> String {
    let kernel = kernel.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    format!("{kernel} to {out}")
}

pub(super) fn conv(node: &NodeView, conv: &Conv, tf32: bool) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (ins, outs, groups) = (weight[1], weight[0] / conv.groups, conv.groups);
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let pixels: usize = out[2..].iter().product();
    let count = out[0] * groups;
    let terms = ins * weight[2..].iter().product::<usize>();
    let tiles = Tiles::new(node, [count, outs, pixels], terms, tf32);
    let (grid, parts) = (tiles.grid(), tiles.parts);
    let product = CHANNELS_MIN <= outs && grid[1].max(grid[2]) <= GRID_MAX;
    let (kind, grid, function) = match (product, tiles.cores) {
        (true, None) => (KernelKind::Conv, grid, format!("convolve<{window}, {ins}, {outs}, {groups}, {parts}>")),
        (true, Some(of)) => {
            let plain = weight[2..].iter().all(|&taps| taps == 1) && conv.stride.iter().all(|&step| step == 1);
            // For 1 x 1 windows in order, pixels are contiguous.
            let plain = plain && x[2..] == out[2..] && conv.pad.iter().all(|pad| pad[0] == 0);
            let (left, right) =
                (Tiles::together(node, 1, [terms]), Tiles::together(node, 0, [if plain { pixels } else { 1 }]));
            let numbers = format!("{}, {ins}, {outs}, {groups}, {parts}, {left}, {right}", tiles.of_warp());
            (KernelKind::Conv, grid, format!("convolve_by_cores<{of}, {window}, {numbers}>"))
        }
        (false, _) => (
            KernelKind::ConvEach,
            blocks(out.elements()),
            format!("convolve_each<{window}, {}, {ins}, {outs}, {groups}>", x[0]),
        ),
    };
    let more = if product { tiles.arguments() } else { "" };
    let body = format!("{}    {function}(a0, a1, y, finish{more});\n", finish(&conv.epilogue));
    let mut needs = vec![Template::Pointwise, Template::Product, Template::Window, Template::Convolution];
    needs.extend(product.then(|| tiles.template()));
    let (mut parameters, mut iterations, mut workspace) = (node.parameters(&operands), None, Bytes::ZERO);
    if product {
        (parameters, iterations, workspace) = (tiles.parameters(parameters), tiles.iterations(), tiles.workspace());
    }
    let emitted = Emitted { kind, parameters, body, grid, iterations, needs };
    let residual = conv.epilogue.residual.then_some(node.operand_count() - 1);
    let own = call(emitted, label(&weight[2..], out), &operands, residual.as_slice());
    Ok(vec![Call { workspace, ..own }])
}

pub(super) fn conv_transpose(node: &NodeView, conv: &ConvTranspose) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (ins, outs, groups) = (x[1] / conv.groups, weight[1], conv.groups);
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let function = format!("convolve_transposed<{window}, {}, {ins}, {outs}, {groups}>", x[0]);
    let body = format!("{}    {function}(a0, a1, y, finish);\n", finish(&conv.epilogue));
    let (kind, grid) = (KernelKind::ConvTranspose, blocks(out.elements()));
    let needs = vec![Template::Pointwise, Template::Product, Template::Window, Template::Convolution];
    let emitted = Emitted { kind, parameters: node.parameters(&operands), body, grid, iterations: None, needs };
    Ok(vec![call(emitted, label(&weight[2..], out), &operands, &[])])
}

pub(super) fn pool(node: &NodeView, pool: &Pool) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let window = window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    // Planes of one channel, or of all that are neighbours.
    let (planes, lanes) = match node.layout {
        Layout::ChannelsLast => (x[0], x[1]),
        _ => (x[0] * x[1], 1),
    };
    let function = match pool.kind {
        PoolKind::Max => format!("pool_max<{window}, {planes}, {lanes}>"),
        kind => {
            let padded = kind == PoolKind::MeanWithPadding;
            let behind = if padded { behind(pool) } else { comma_separated(&vec![0; pool.kernel.len().max(2)]) };
            format!("pool_mean<{window}, {planes}, {lanes}, {padded}, {behind}>")
        }
    };
    let emitted = Emitted {
        kind: KernelKind::Pool,
        parameters: node.parameters(&[0]),
        body: format!("    {function}(a0, y);\n"),
        grid: blocks(out.elements()),
        iterations: None,
        needs: vec![Template::Window, Template::Pool],
    };
    Ok(vec![call(emitted, label(&pool.kernel, out), &[0], &[])])
}
