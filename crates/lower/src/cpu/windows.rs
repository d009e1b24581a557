//! Row-major kernels for windows: convolutions and pooling, over one to three spatial dimensions.

use cpu::{Packing, PlainConv, Pool2dKind, Weights, Window};
use ir::ops::{Conv, ConvTranspose, Epilogue, Pool, PoolKind};
use ir::{Call, weight_operand};
use types::{Bytes, DType, Shape, WeightFormat};

use super::CpuTarget;
use super::select::{call, epilogue, packed, suffix};
use crate::NodeView;

/// The rows and columns of spatial numbers; one dimension is one row.
pub(super) fn rows_columns(numbers: &[usize], one: usize) -> Result<[usize; 2], String> {
    match *numbers {
        [columns] => Ok([one, columns]),
        [rows, columns] => Ok([rows, columns]),
        _ => Err(format!("{} spatial dimensions; there are kernels for one and two", numbers.len())),
    }
}

/// Windows over the depth of volumes, and over rows and columns, from the numbers of one to three spatial dimensions.
pub(super) fn windows(
    input: &Shape,
    output: &Shape,
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    pad: &[[usize; 2]],
) -> Result<[Window; 2], String> {
    if kernel.len() != 3 {
        return Ok([Window::ONE, window(input, output, kernel, stride, dilation, pad)?]);
    }
    let of_plane = |shape: &Shape| -> Shape { shape[..2].iter().chain(&shape[3..]).copied().collect() };
    let depth = Window {
        input: [input[2], 1],
        output: [output[2], 1],
        kernel: [kernel[0], 1],
        stride: [stride[0], 1],
        dilation: [dilation[0], 1],
        pad: [pad[0][0], 0],
    };
    let (input, output) = (of_plane(input), of_plane(output));
    Ok([depth, window(&input, &output, &kernel[1..], &stride[1..], &dilation[1..], &pad[1..])?])
}

/// A window from the numbers of one or two spatial dimensions.
pub(super) fn window(
    input: &Shape,
    output: &Shape,
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    pad: &[[usize; 2]],
) -> Result<Window, String> {
    let front: Vec<usize> = pad.iter().map(|pad| pad[0]).collect();
    Ok(Window {
        input: rows_columns(&input[2..], 1)?,
        output: rows_columns(&output[2..], 1)?,
        kernel: rows_columns(kernel, 1)?,
        stride: rows_columns(stride, 1)?,
        dilation: rows_columns(dilation, 1)?,
        pad: rows_columns(&front, 0)?,
    })
}

/// `3x3/2 [1,64,56,56]` for labels.
pub(super) fn label(window: &Window, shape: &Shape, more: &str) -> String {
    let [rows, columns] = window.kernel;
    format!("{rows}x{columns}/{} to {shape}{more}", window.stride[1])
}

/// `3x` in front of the label of a window, if there is a depth.
fn deep(depth: &Window) -> String {
    if *depth == Window::ONE { String::new() } else { format!("{}x", depth.kernel[0]) }
}

/// Refuses dtypes that row-major window kernels do not support.
fn numbers_only(node: &NodeView) -> Result<(), String> {
    let mut types = (0..node.node.inputs.len()).map(|ix| node.input(ix)).chain([node.output()]);
    match types.find(|ty| ty.dtype != DType::F32) {
        Some(other) => Err(format!("its kernel for row-major values computes with f32, not with {}", other.dtype)),
        None => Ok(()),
    }
}

/// The kernel of a row-major convolution or transposed convolution.
#[derive(Clone, Debug)]
pub(super) enum RowMajorConv {
    Conv(cpu::Conv),
    Transpose(cpu::ConvTranspose),
    Unbuffered(cpu::ConvUnbuffered),
    Compact(cpu::CompactConv),
}

impl RowMajorConv {
    pub(super) fn kernel(self) -> cpu::Kernel {
        match self {
            RowMajorConv::Conv(kernel) => kernel.into(),
            RowMajorConv::Transpose(kernel) => kernel.into(),
            RowMajorConv::Unbuffered(kernel) => kernel.into(),
            RowMajorConv::Compact(kernel) => kernel.into(),
        }
    }

    /// By weights in a stored form.
    fn compact(self, weights: WeightFormat, extents: [usize; 4]) -> RowMajorConv {
        let conv = match self {
            RowMajorConv::Conv(conv) => PlainConv::Conv(cpu::Conv { weights: Weights::Dynamic, ..conv }),
            RowMajorConv::Transpose(conv) => {
                PlainConv::Transpose(cpu::ConvTranspose { weights: Weights::Dynamic, ..conv })
            }
            RowMajorConv::Unbuffered(conv) => PlainConv::Unbuffered(conv),
            RowMajorConv::Compact(_) => return self,
        };
        RowMajorConv::Compact(cpu::CompactConv { conv, weights, extents })
    }

    fn workspace(&self) -> Bytes {
        self.clone().kernel().sizes().map_or(Bytes::ZERO, |sizes| Bytes(sizes.workspace))
    }
}

/// The kernels of a convolution, the fastest first: with much workspace, with less, and without.
pub(super) fn conv_kernels(node: &NodeView, conv: &Conv, target: &CpuTarget) -> Result<Vec<RowMajorConv>, String> {
    numbers_only(node)?;
    let sides = [node.input(0), node.output()].map(|ty| &ty.shape);
    let with_buffer = |shape: ConvShape| {
        let ConvShape { batch, in_channels, out_channels, groups, depth: _, window, epilogue } = shape;
        let (weights, workspace_max) = (node.weights(), cpu::Conv::WORKSPACE_MAX.min((node.workspace.0 / 4) as usize));
        let much = cpu::Conv { batch, in_channels, out_channels, groups, window, weights, epilogue, workspace_max };
        vec![RowMajorConv::Conv(much.clone()), RowMajorConv::Conv(cpu::Conv { workspace_max: 0, ..much })]
    };
    let (stride, dilation, pad) = (&conv.stride, &conv.dilation, &conv.pad);
    let windows = windows(sides[0], sides[1], &node.input(1).shape[2..], stride, dilation, pad)?;
    Ok(choices(node, ConvShape::of(sides, conv.groups, windows, &conv.epilogue), false, with_buffer, target))
}

/// The kernels of a transposed convolution, the fastest first.
pub(super) fn conv_transpose_kernels(
    node: &NodeView,
    conv: &ConvTranspose,
    target: &CpuTarget,
) -> Result<Vec<RowMajorConv>, String> {
    let sides = [node.input(0), node.output()].map(|ty| &ty.shape);
    let with_buffer = |shape: ConvShape| {
        let ConvShape { batch, in_channels, out_channels, groups, depth: _, window, epilogue } = shape;
        let weights = node.weights();
        let kernel = cpu::ConvTranspose { batch, in_channels, out_channels, groups, window, weights, epilogue };
        vec![RowMajorConv::Transpose(kernel)]
    };
    // From the output: it is the input of the convolution that this one transposes.
    let (stride, dilation, pad) = (&conv.stride, &conv.dilation, &conv.pad);
    let windows = windows(sides[1], sides[0], &node.input(1).shape[2..], stride, dilation, pad)?;
    Ok(choices(node, ConvShape::of(sides, conv.groups, windows, &conv.epilogue), true, with_buffer, target))
}

/// The parameters that the kernels of a convolution share.
struct ConvShape {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    depth: Window,
    window: Window,
    epilogue: cpu::Epilogue,
}

impl ConvShape {
    /// Of an operand and a result.
    fn of([x, out]: [&Shape; 2], groups: usize, [depth, window]: [Window; 2], after: &Epilogue) -> ConvShape {
        let epilogue = epilogue(after);
        ConvShape { batch: x[0], in_channels: x[1], out_channels: out[1], groups, depth, window, epilogue }
    }
}

/// The kernels with buffers and the one without, the fastest first. Only the latter computes volumes.
fn choices(
    node: &NodeView,
    shape: ConvShape,
    transposed: bool,
    with_buffer: impl Fn(ConvShape) -> Vec<RowMajorConv>,
    target: &CpuTarget,
) -> Vec<RowMajorConv> {
    let ConvShape { batch, in_channels, out_channels, groups, depth, window, ref epilogue } = shape;
    let epilogue = epilogue.clone();
    let unbuffered =
        cpu::ConvUnbuffered { batch, in_channels, out_channels, groups, depth, window, transposed, epilogue };
    let buffered = if depth == Window::ONE { with_buffer(shape) } else { Vec::new() };
    let kernels = buffered.into_iter().chain([RowMajorConv::Unbuffered(unbuffered)]);
    let stored = target.weights.zip(weight_operand(node.graph, node.node));
    let kernels = kernels.map(|kernel| match stored {
        Some((weights, (ix, axis))) => {
            kernel.compact(weights, cpu::CompactConv::extents_of(&node.input(ix).shape, axis))
        }
        None => kernel,
    });
    target.fastest_first(falling(kernels), |kernel| kernel.clone().kernel())
}

/// Those of kernels that need less workspace than all before them.
fn falling(kernels: impl IntoIterator<Item = RowMajorConv>) -> Vec<RowMajorConv> {
    let mut least = None;
    let needs_less = |kernel: &RowMajorConv| {
        let workspace = kernel.workspace();
        let is_less = least.is_none_or(|least| workspace < least);
        if is_less {
            least = Some(workspace);
        }
        is_less
    };
    kernels.into_iter().filter(needs_less).collect()
}

/// The call of one of these kernels.
pub(super) fn conv_call(node: &NodeView, kernel: RowMajorConv, activation: &Epilogue) -> Result<Call, String> {
    let (out, more) = (&node.output().shape, suffix(activation));
    match kernel {
        RowMajorConv::Conv(kernel) => {
            let inputs = node.with_weights(|| Packing::RowMajorConvolution(kernel.clone()));
            let label = label(&kernel.window, out, &more);
            call(kernel, label, inputs)
        }
        RowMajorConv::Transpose(kernel) => {
            let inputs = node.with_weights(|| Packing::TransposedConvolution(kernel.clone()));
            let label = label(&kernel.window, out, &more);
            call(kernel, label, inputs)
        }
        RowMajorConv::Unbuffered(kernel) => {
            let label = deep(&kernel.depth) + &label(&kernel.window, out, &more);
            call(kernel, label, node.values())
        }
        RowMajorConv::Compact(kernel) => {
            let (depth, window) = match &kernel.conv {
                PlainConv::Conv(conv) => (&Window::ONE, &conv.window),
                PlainConv::Transpose(conv) => (&Window::ONE, &conv.window),
                PlainConv::Unbuffered(conv) => (&conv.depth, &conv.window),
            };
            let label = deep(depth) + &label(window, out, &more);
            let mut inputs = node.values();
            inputs[1] = packed(1, Packing::CompactConvolution(kernel.clone()));
            call(kernel, label, inputs)
        }
    }
}

/// The kernel of a pool over row-major values.
pub(super) fn pool_kernel(node: &NodeView, pool: &Pool) -> Result<cpu::Pool2d, String> {
    numbers_only(node)?;
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let window = window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    let kind = match pool.kind {
        PoolKind::Max => Pool2dKind::Max,
        PoolKind::Mean => Pool2dKind::Mean,
        PoolKind::MeanWithPadding => Pool2dKind::MeanWithPadding { pad_end: rows_columns(&back, 0)? },
    };
    Ok(cpu::Pool2d { kind, planes: x[0] * x[1], window })
}

/// The kernel of a pool over volumes.
fn pool_of_volumes(node: &NodeView, pool: &Pool) -> Result<cpu::PoolVolumes, String> {
    numbers_only(node)?;
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let [depth, window] = windows(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let kind = match pool.kind {
        PoolKind::Max => Pool2dKind::Max,
        PoolKind::Mean => Pool2dKind::Mean,
        PoolKind::MeanWithPadding => Pool2dKind::MeanWithPadding { pad_end: [pool.pad[1][1], pool.pad[2][1]] },
    };
    Ok(cpu::PoolVolumes { kind, volumes: x[0] * x[1], depth, depth_pad_end: pool.pad[0][1], window })
}

pub(super) fn pool(node: &NodeView, pool: &Pool) -> Result<Call, String> {
    let name = if pool.kind == PoolKind::Max { " max" } else { " mean" };
    if pool.kernel.len() == 3 {
        let kernel = pool_of_volumes(node, pool)?;
        let label = deep(&kernel.depth) + &label(&kernel.window, &node.output().shape, name);
        return call(kernel, label, node.values());
    }
    let kernel = pool_kernel(node, pool)?;
    let label = label(&kernel.window, &node.output().shape, name);
    call(kernel, label, node.values())
}
