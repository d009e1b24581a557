//! Nodes that slide a window over one to three spatial dimensions.

use std::ops::Range;

use ir::ops::{Conv, ConvTranspose, Pool, PoolKind};
use ir::{Call, CallInput, Pack};
use types::{Bytes, DType, Layout, Shape};

use super::c_source::{finish, finish_eight};
use super::emit::{Block, ELEMENTS_MAX, Emitted, GRID_MAX, KernelKind, Template, blocks, call};
use super::layout::{Rearranged, TapRow};
use super::tiling::{EIGHT, Lines, TensorCores, Tiles, cores, eights, is_aligned, is_copied, pieces};
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

pub(super) fn conv(node: &NodeView, conv: &Conv, target: TensorCores) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (ins, outs, groups) = (weight[1], weight[0] / conv.groups, conv.groups);
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let pixels: usize = out[2..].iter().product();
    let count = out[0] * groups;
    let terms = ins * weight[2..].iter().product::<usize>();
    let tiles = Tiles::new(node, [count, outs, pixels], terms, target, Lines::Gathered);
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
            let numbers = format!("{}, {ins}, {outs}, {groups}, {parts}, {left}, {right}", tiles.shape());
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
    let block = if product { tiles.block() } else { Block::USUAL };
    if product {
        (parameters, iterations, workspace) = (tiles.parameters(parameters), tiles.iterations(), tiles.workspace());
    }
    let emitted = Emitted { kind, parameters, body, grid, block, iterations, needs };
    let residual = conv.epilogue.residual.then_some(node.operand_count() - 1);
    let own = call(emitted, label(&weight[2..], out), &operands, residual.as_slice());
    Ok(vec![Call { workspace, ..own }])
}

/// A convolution of channels-last values.
///
/// # Errors
/// The reason that it is computed with row-major values.
pub(super) fn conv_channels_last(node: &NodeView, conv: &Conv, target: TensorCores) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    if 2 < conv.stride.len() {
        return Err("windows of three dimensions".into());
    }
    if !node.is_constant(1) {
        return Err("its weights are not constants".into());
    }
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let residual = conv.epilogue.residual.then_some(node.operand_count() - 1);
    let (images, ins, outs, pixels) = (out[0], weight[1], out[1], out[2..].iter().product::<usize>());
    let taps: usize = weight[2..].iter().product();
    let epilogue = finish(&conv.epilogue) + &finish_eight(&conv.epilogue);
    if depthwise(x, weight, conv.groups) {
        let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
        let columns = out[out.rank() - 1];
        let run = RUN.min(columns);
        let aligned = eights(node);
        let function =
            format!("convolve_by_channel<{window}, {images}, {outs}, {run}, {} && {aligned}>", is_aligned(0));
        let rows = if out.rank() == 4 { out[2] } else { 1 };
        let emitted = Emitted {
            kind: KernelKind::ConvEach,
            parameters: node.parameters(&operands),
            body: format!("{epilogue}    {function}(a0, a1, y, finish, finish_eight);\n"),
            grid: blocks(images * rows * columns.div_ceil(run) * (outs / EIGHT)),
            block: Block::USUAL,
            iterations: None,
            needs: vec![
                Template::Pointwise,
                Template::Product,
                Template::Tensor,
                Template::Window,
                Template::ChannelsLast,
            ],
        };
        let own = call(emitted, label(&weight[2..], out), &operands, residual.as_slice());
        return Ok(vec![packed(own, Rearranged::Transposed(taps))]);
    }
    if conv.groups != 1 {
        return Err("groups of several channels".into());
    }
    let Some(of) = cores(node, target) else { return Err("tensor cores do not multiply its operands".into()) };
    let dtype = node.input(0).dtype;
    let stored = stored_channels(dtype, ins);
    if stored.is_none() || TAPS_MAX < weight[2] + weight.get(3).copied().unwrap_or(1) {
        return Err(format!("{ins} channels are not copied in whole pieces"));
    }
    let channels = stored.expect("it was looked at");
    let Read { x, kernel, stride, pad, ins, row } = Read::of(x, weight, conv, channels);
    let window = window(&x, out, &kernel, &stride, &conv.dilation, &pad)?;
    let taps: usize = kernel.iter().product();
    if ELEMENTS_MAX < x[0] * x[2..].iter().product::<usize>() * ins {
        return Err("its padded operand has more than 2^31 elements".into());
    }
    let terms = pieces(dtype, ins * taps);
    let tiles = Tiles::new(node, [1, images * pixels, outs], terms, target, Lines::OfTerms);
    let grid = tiles.grid();
    if GRID_MAX < grid[1] {
        return Err("more rows than a grid has".into());
    }
    let plain = taps == 1 && stride.iter().all(|&step| step == 1) && x[2..] == out[2..];
    let plain = plain && pad.iter().all(|pad| pad[0] == 0);
    let (shape, parts, wide) = (tiles.shape(), tiles.parts, tiles.wide(node));
    let bytes = Tiles::together(node, 0, [ins]);
    let loaders = format!("Windows<{of}, {shape}, {window}, {images}, {ins}, {outs}, {terms}, {bytes}, {plain}>");
    let (rows, block) = (images * pixels, tiles.block());
    let shared = block.shared.0;
    let product = format!("store_product<{of}, {shape}, {rows}, {outs}, {terms}, {parts}, {shared}, {wide}>");
    let more = if parts == 1 { ", nullptr, 0" } else { tiles.arguments() };
    let emitted = Emitted {
        kind: KernelKind::Conv,
        parameters: tiles.parameters(node.parameters(&operands)),
        body: match out.elements() {
            0 => String::new(),
            _ => format!("{epilogue}    {product}({loaders}{{a0, a1}}, y, 0, finish, finish_eight{more});\n"),
        },
        grid,
        block: tiles.block(),
        iterations: tiles.iterations(),
        needs: vec![Template::Pointwise, Template::Product, Template::Tensor, Template::Window, Template::ChannelsLast],
    };
    let packer = Rearranged::LinesOfTerms { shape: weight.clone(), inputs: channels, row, terms };
    let own = packed(call(emitted, label(&weight[2..], out), &operands, residual.as_slice()), packer);
    Ok(vec![Call { workspace: tiles.workspace(), ..own }])
}

/// How a convolution of channels-last values reads its operand.
struct Read {
    /// The operand's shape.
    x: Shape,
    /// The window.
    kernel: Vec<usize>,
    stride: Vec<usize>,
    pad: Vec<[usize; 2]>,
    /// The channels of a pixel.
    ins: usize,
    /// The taps of a row.
    row: TapRow,
}

impl Read {
    /// Two neighboring pixels of four channels are read as one of eight where windows begin at every second pixel: they are copied at
    /// once.
    fn of(x: &Shape, weight: &Shape, conv: &Conv, channels: usize) -> Read {
        let last = weight.rank() - 3;
        let (kernel, stride, pad) = (weight[2..].to_vec(), conv.stride.to_vec(), conv.pad.to_vec());
        let taps = kernel[last];
        let in_pairs = channels == FOUR
            && stride[last].is_multiple_of(2)
            && conv.dilation[last] == 1
            && x[x.rank() - 1].is_multiple_of(2)
            && 1 < taps;
        let mut read =
            Read { x: x.clone(), kernel, stride, pad, ins: channels, row: TapRow { first: 0, taps, padded: taps } };
        if in_pairs {
            let first = read.pad[last][0] % 2;
            let pairs = (first + taps).div_ceil(2);
            read.x[x.rank() - 1] /= 2;
            read.kernel[last] = pairs;
            read.stride[last] /= 2;
            read.pad[last][0] = (read.pad[last][0] + first) / 2;
            read.ins = 2 * channels;
            read.row = TapRow { first, taps, padded: 2 * pairs };
        }
        read
    }
}

/// The channels that those of pixels with fewer are padded to.
const FOUR: usize = 4;

/// The most rows and columns of taps of a channels-last convolution, which has a bit for each: see `TapSet` in
/// `cuda/templates/window.cu`.
const TAPS_MAX: usize = 63;
/// Neighboring pixels of a row that a thread of a depthwise convolution computes.
const RUN: usize = 4;

/// Whether a convolution is depthwise, with channels that are read eight at once.
fn depthwise(x: &Shape, weight: &Shape, groups: usize) -> bool {
    groups == x[1] && weight[0] == groups && groups.is_multiple_of(EIGHT)
}

/// The channels that pixels are stored with: whole pieces of a copy, or four. `None` if the kernel takes neither.
fn stored_channels(dtype: DType, channels: usize) -> Option<usize> {
    match channels {
        _ if is_copied(dtype, channels) => Some(channels),
        1..=FOUR => Some(FOUR),
        _ => None,
    }
}

/// Whether a convolution of channels-last values reads pixels whose channels are padded to four.
pub(super) fn reads_four_channels(node: &NodeView, conv: &Conv) -> bool {
    let channels = node.input(1).shape[1];
    conv.groups == 1 && channels < FOUR && stored_channels(node.input(0).dtype, channels) == Some(FOUR)
}

/// The call with its weights packed.
fn packed(mut call: Call, packer: Rearranged) -> Call {
    call.inputs[1] = CallInput::Packed { input: 1, pack: Pack::new(packer) };
    call
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
    let emitted = Emitted {
        kind,
        parameters: node.parameters(&operands),
        body,
        grid,
        block: Block::USUAL,
        iterations: None,
        needs,
    };
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
    let stored = node.input(0).dtype == node.output().dtype;
    let eight = stored && lanes.is_multiple_of(EIGHT);
    let aligned = format!("{} && {}", is_aligned(0), is_aligned(1));
    let function = match pool.kind {
        PoolKind::Max => format!("pool_max<{window}, {planes}, {lanes}, {eight}, {aligned}>"),
        kind => {
            let padded = kind == PoolKind::MeanWithPadding;
            let behind = if padded { behind(pool) } else { comma_separated(&vec![0; pool.kernel.len().max(2)]) };
            format!("pool_mean<{window}, {planes}, {lanes}, {eight}, {aligned}, {padded}, {behind}>")
        }
    };
    let emitted = Emitted {
        kind: KernelKind::Pool,
        parameters: node.parameters(&[0]),
        body: format!("    {function}(a0, y);\n"),
        grid: blocks(out.elements() / if eight { EIGHT } else { 1 }),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Window, Template::Pool],
    };
    Ok(vec![call(emitted, label(&pool.kernel, out), &[0], &[])])
}
