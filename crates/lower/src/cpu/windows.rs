//! Row-major kernels for windows: convolutions and pooling, over one or two spatial dimensions.

use cpu::{Pool2dKind, Window};
use ir::Call;
use ir::ops::{Conv, ConvTranspose, Epilogue, Pool, PoolKind};
use types::{Bytes, DType, Shape};

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

/// The kernel of a row-major convolution or transposed convolution.
#[derive(Clone, Debug)]
pub(super) enum RowMajorConv {
    Conv(cpu::Conv),
    Transpose(cpu::ConvTranspose),
    Unbuffered(cpu::ConvUnbuffered),
}

impl RowMajorConv {
    pub(super) fn workspace(&self) -> Bytes {
        let kernel: cpu::Kernel = match self.clone() {
            RowMajorConv::Conv(kernel) => kernel.into(),
            RowMajorConv::Transpose(kernel) => kernel.into(),
            RowMajorConv::Unbuffered(kernel) => kernel.into(),
        };
        kernel.sizes().map_or(Bytes::ZERO, |sizes| Bytes(sizes.workspace))
    }
}

/// The kernels of a convolution, the fastest first: with the workspace that is fastest, with less, and without.
pub(super) fn conv_kernels(node: &NodeView, conv: &Conv) -> Result<Vec<RowMajorConv>, String> {
    numbers_only(node)?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, out, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (batch, in_channels, out_channels, groups) = (x[0], x[1], out[1], conv.groups);
    let epilogue = epilogue(&conv.epilogue);
    let fastest = cpu::Conv {
        batch,
        in_channels,
        out_channels,
        groups,
        window,
        weights: node.weights(),
        epilogue: epilogue.clone(),
        workspace_max: cpu::Conv::WORKSPACE_MAX.min((node.workspace.0 / 4) as usize),
    };
    let less = cpu::Conv { workspace_max: 0, ..fastest.clone() };
    let unbuffered =
        cpu::ConvUnbuffered { batch, in_channels, out_channels, groups, window, transposed: false, epilogue };
    Ok(falling([RowMajorConv::Conv(fastest), RowMajorConv::Conv(less), RowMajorConv::Unbuffered(unbuffered)]))
}

/// The kernels of a transposed convolution, the fastest first.
pub(super) fn conv_transpose_kernels(node: &NodeView, conv: &ConvTranspose) -> Result<Vec<RowMajorConv>, String> {
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    // From the output: it is the input of the convolution that this one transposes.
    let window = window(out, x, &weight[2..], &conv.stride, &conv.dilation, &conv.pad)?;
    let (batch, in_channels, out_channels, groups) = (x[0], x[1], out[1], conv.groups);
    let epilogue = epilogue(&conv.epilogue);
    let fastest = cpu::ConvTranspose {
        batch,
        in_channels,
        out_channels,
        groups,
        window,
        weights: node.weights(),
        epilogue: epilogue.clone(),
    };
    let unbuffered =
        cpu::ConvUnbuffered { batch, in_channels, out_channels, groups, window, transposed: true, epilogue };
    Ok(falling([RowMajorConv::Transpose(fastest), RowMajorConv::Unbuffered(unbuffered)]))
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
pub(super) fn conv_call(node: &NodeView, kernel: RowMajorConv, activation: &Epilogue) -> Call {
    let (out, more) = (&node.output().shape, suffix(activation));
    match kernel {
        RowMajorConv::Conv(kernel) => {
            let (packing, label) = (kernel.clone(), label(&kernel.window, out, &more));
            call(kernel, label, node.with_weights(move |items| packing.pack(items)))
        }
        RowMajorConv::Transpose(kernel) => {
            let (packing, label) = (kernel.clone(), label(&kernel.window, out, &more));
            call(kernel, label, node.with_weights(move |items| packing.pack(items)))
        }
        RowMajorConv::Unbuffered(kernel) => {
            let label = label(&kernel.window, out, &more);
            call(kernel, label, node.values())
        }
    }
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
