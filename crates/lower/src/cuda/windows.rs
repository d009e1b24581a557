//! Nodes that slide a window over one or two spatial dimensions.

use ir::ops::{Conv, ConvTranspose, Pool, PoolKind};
use types::{Layout, Shape};

use super::tensor::Tiles;
use super::text::finish;
use super::{Emitted, GRID_MAX, Template, View, blocks, call};
use crate::Call;

/// Groups with fewer output channels are computed output by output.
const CHANNELS_MIN: usize = 8;

/// Rows and columns of spatial numbers; one dimension is one row.
pub(super) fn two(numbers: &[usize], one: usize) -> Result<[usize; 2], String> {
    match *numbers {
        [columns] => Ok([one, columns]),
        [rows, columns] => Ok([rows, columns]),
        _ => Err(format!("{} spatial dimensions; there are kernels for one and two", numbers.len())),
    }
}

/// `Window<..>` in C.
fn window(
    x: &Shape,
    out: &Shape,
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    pad: &[[usize; 2]],
) -> Result<String, String> {
    let front: Vec<usize> = pad.iter().map(|pad| pad[0]).collect();
    let numbers =
        [two(&x[2..], 1)?, two(&out[2..], 1)?, two(kernel, 1)?, two(stride, 1)?, two(dilation, 1)?, two(&front, 0)?];
    Ok(format!("Window<{}>", numbers.concat().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
}

pub(super) fn label(kernel: &[usize], out: &Shape) -> String {
    let kernel = kernel.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    format!("{kernel} to {out}")
}

pub(super) fn conv(node: &View, conv: &Conv) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (ins, outs, groups) = (weight[1], weight[0] / conv.groups, conv.groups);
    let operands: Vec<usize> = (0..node.inputs()).collect();
    let pixels: usize = out[2..].iter().product();
    let count = out[0] * groups;
    let tiles = Tiles::new(node, count, outs, pixels);
    let grid = tiles.grid(count, outs, pixels);
    let product = CHANNELS_MIN <= outs && grid[1].max(grid[2]) <= GRID_MAX;
    let (kind, grid, function) = match (product, tiles.cores) {
        (true, None) => ("conv", grid, format!("convolve<{window}, {ins}, {outs}, {groups}>")),
        (true, Some(of)) => {
            let terms = ins * weight[2..].iter().product::<usize>();
            let plain = weight[2..].iter().all(|&taps| taps == 1) && conv.stride.iter().all(|&step| step == 1);
            // Where outputs see one pixel each, in their order, pixels lie behind each other.
            let plain = plain && x[2..] == out[2..] && conv.pad.iter().all(|pad| pad[0] == 0);
            let (left, right) =
                (Tiles::together(node, 1, [terms]), Tiles::together(node, 0, [if plain { pixels } else { 1 }]));
            let numbers = format!("{}, {ins}, {outs}, {groups}, {left}, {right}", tiles.of_warp());
            ("conv", grid, format!("convolve_by_cores<{of}, {window}, {numbers}>"))
        }
        (false, _) => {
            ("conv_each", blocks(out.elements()), format!("convolve_each<{window}, {}, {ins}, {outs}, {groups}>", x[0]))
        }
    };
    let body = format!("{}    {function}(a0, a1, y, finish);\n", finish(&conv.epilogue));
    let mut needs = vec![Template::Pointwise, Template::Product, Template::Window, Template::Convolution];
    needs.extend(product.then(|| tiles.template()));
    let emitted = Emitted { kind: kind.into(), parameters: node.parameters(&operands), body, grid, turns: None, needs };
    let residual = conv.epilogue.residual.then_some(node.inputs() - 1);
    Ok(vec![call(emitted, label(&weight[2..], out), &operands, residual.as_slice())])
}

pub(super) fn conv_transpose(node: &View, conv: &ConvTranspose) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (ins, outs, groups) = (x[1] / conv.groups, weight[1], conv.groups);
    let operands: Vec<usize> = (0..node.inputs()).collect();
    let function = format!("convolve_transposed<{window}, {}, {ins}, {outs}, {groups}>", x[0]);
    let body = format!("{}    {function}(a0, a1, y, finish);\n", finish(&conv.epilogue));
    let (kind, grid) = ("conv_transpose".to_string(), blocks(out.elements()));
    let needs = vec![Template::Pointwise, Template::Product, Template::Window, Template::Convolution];
    let emitted = Emitted { kind, parameters: node.parameters(&operands), body, grid, turns: None, needs };
    Ok(vec![call(emitted, label(&weight[2..], out), &operands, &[])])
}

pub(super) fn pool(node: &View, pool: &Pool) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let window = window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    let [rows, columns] = two(&back, 0)?;
    // Planes of one channel, or of all that are neighbours.
    let (planes, lanes) = match node.layout {
        Layout::ChannelsLast => (x[0], x[1]),
        _ => (x[0] * x[1], 1),
    };
    let function = match pool.kind {
        PoolKind::Max => format!("pool_max<{window}, {planes}, {lanes}>"),
        PoolKind::Mean => format!("pool_mean<{window}, {planes}, {lanes}, false, 0, 0>"),
        PoolKind::MeanWithPadding => format!("pool_mean<{window}, {planes}, {lanes}, true, {rows}, {columns}>"),
    };
    let emitted = Emitted {
        kind: "pool".into(),
        parameters: node.parameters(&[0]),
        body: format!("    {function}(a0, y);\n"),
        grid: blocks(out.elements()),
        turns: None,
        needs: vec![Template::Window, Template::Pool],
    };
    Ok(vec![call(emitted, label(&pool.kernel, out), &[0], &[])])
}
