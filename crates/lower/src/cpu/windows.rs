//! Row-major kernels for windows: convolutions and pooling, over one or two spatial dimensions.

use cpu::{Pool2dKind, Window};
use ir::Call;
use ir::ops::{Conv, ConvTranspose, Pool, PoolKind};
use types::{DType, Shape};

use super::select::{call, epilogue, suffix};
use crate::NodeView;

/// The rows and columns of spatial numbers; one dimension is one row.
pub(super) fn rows_columns(numbers: &[usize], one: usize) -> Result<[usize; 2], String> {
    match *numbers {
        [columns] => Ok([one, columns]),
        [rows, columns] => Ok([rows, columns]),
        _ => Err(format!("{} spatial dimensions; there are kernels for one and two", numbers.len())),
    }
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

/// Refuses dtypes that row-major window kernels do not support.
fn numbers_only(node: &NodeView) -> Result<(), String> {
    let mut types = (0..node.node.inputs.len()).map(|ix| node.input(ix)).chain([node.output()]);
    match types.find(|ty| ty.dtype != DType::F32) {
        Some(other) => Err(format!("its kernel for row-major values computes with f32, not with {}", other.dtype)),
        None => Ok(()),
    }
}

pub(super) fn conv(node: &NodeView, conv: &Conv) -> Result<Call, String> {
    numbers_only(node)?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let label = label(&window, out, &suffix(&conv.epilogue));
    let (channels, epilogue) = (x[1], epilogue(&conv.epilogue));
    let kernel = cpu::Conv {
        batch: x[0],
        in_channels: channels,
        out_channels: out[1],
        groups: conv.groups,
        window,
        weights: node.weights(),
        epilogue,
        workspace_max: cpu::Conv::WORKSPACE_MAX.min((node.workspace.0 / 4) as usize),
    };
    let packing = kernel.clone();
    let inputs = node.with_weights(move |items| packing.pack(items));
    Ok(call(kernel, label, inputs))
}

pub(super) fn conv_transpose(node: &NodeView, conv: &ConvTranspose) -> Result<Call, String> {
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    // From the output: it is the input of the convolution that this one transposes.
    let window = window(out, x, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let label = label(&window, out, &suffix(&conv.epilogue));
    let kernel = cpu::ConvTranspose {
        batch: x[0],
        in_channels: x[1],
        out_channels: out[1],
        groups: conv.groups,
        window,
        weights: node.weights(),
        epilogue: epilogue(&conv.epilogue),
    };
    let packing = kernel.clone();
    let inputs = node.with_weights(move |items| packing.pack(items));
    Ok(call(kernel, label, inputs))
}

pub(super) fn pool(node: &NodeView, pool: &Pool) -> Result<Call, String> {
    numbers_only(node)?;
    let (x, out) = (&node.input(0).shape, &node.output().shape);
    let window = window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let back: Vec<usize> = pool.pad.iter().map(|pad| pad[1]).collect();
    let (kind, name) = match pool.kind {
        PoolKind::Max => (Pool2dKind::Max, " max"),
        PoolKind::Mean => (Pool2dKind::Mean, " mean"),
        PoolKind::MeanWithPadding => (Pool2dKind::MeanWithPadding { pad_end: rows_columns(&back, 0)? }, " mean"),
    };
    let label = label(&window, out, name);
    Ok(call(cpu::Pool2d { kind, planes: x[0] * x[1], window }, label, node.values()))
}
