//! Channels-last values ([`Layout::ChannelsLast`]), which convolutions on tensor cores work on, emitted ones and cuDNN's
//! engines.
//!
//! Elementwise nodes and copies work in their physical form; pools support both layouts. Some convolutions are emitted for
//! row-major values only: groups of several channels, and channels that are not copied in whole pieces.

use ir::{Graph, Node, Op, Packer, Reuse, TensorType, ValueId, Work};
use types::{Bytes, DType, Layout, Shape, Tensor};

use super::emit::around;

// The cost model, in moved bytes. Only relations matter; all costs are proportional to the batch, so that plans for
// several batches choose alike and share their packed weights.
/// Operations of an emitted convolution of row-major values in the time of a byte, and of channels-last ones.
const FLOPS_OF_A_BYTE: u64 = 8;
const CHANNELS_LAST_FLOPS_OF_A_BYTE: u64 = 64;
/// Bytes that are moved in the launch time of a step, about a microsecond.
const STEP: u64 = 4 << 20;

/// The layout of pixels with fewer channels than a tensor-core kernel copies at once: padded to four with zeros.
pub(super) const FOUR_CHANNELS: Layout = Layout::ChannelsBlocked(4);

/// Whether a node with a result whose channels are neighbours reads this operand so.
pub(super) fn reads_last(graph: &Graph, node: &Node, input: usize) -> bool {
    let (x, out) = (graph.value(node.inputs[input]), graph.ty(node.outputs[0]));
    if x.tensor().is_some() {
        return false;
    }
    if let Op::Conv(conv) = &node.op {
        return input == 0 || (conv.epilogue.residual && input + 1 == node.inputs.len());
    }
    // The axes of thousands of operands are not listed for each of them.
    if matches!(node.op, Op::Concat(_)) {
        return true;
    }
    let varies = x.ty.shape.rank() == out.shape.rank() && x.ty.shape.get(1) == out.shape.get(1);
    varies || graph.node_axes(node).work != Work::Elementwise
}

/// A layout of a node's values that its kernels do not support.
pub(super) fn unsupported_layout(graph: &Graph, node: &Node) -> Option<Layout> {
    let layout = |value: ValueId| graph.value(value).layout;
    let own = layout(node.outputs[0]);
    let is_last = own == Layout::ChannelsLast;
    if matches!(node.op, Op::Relayout(_)) {
        // Only the pixels of a network's input have their channels padded.
        let [from, to] = [layout(node.inputs[0]), own].map(|layout| layout == FOUR_CHANNELS);
        let few = graph.ty(node.outputs[0]).shape.get(1).is_some_and(|&channels| channels <= 4);
        return (from || (to && !few)).then_some(own);
    }
    let known = matches!(node.op, Op::Conv(_) | Op::Pool(_)) || graph.channels_last_op(node).is_some();
    if node.outputs.iter().any(|&output| layout(output) != own) || !(own == Layout::RowMajor || (is_last && known)) {
        return Some(own);
    }
    let wanted = |ix: usize| match is_last && reads_last(graph, node, ix) {
        true => Layout::ChannelsLast,
        false => Layout::RowMajor,
    };
    let is_few = |ix: usize, own: Layout| is_last && ix == 0 && own == FOUR_CHANNELS && matches!(node.op, Op::Conv(_));
    let mut inputs = node.inputs.iter().enumerate().map(|(ix, &input)| (ix, layout(input)));
    inputs.find(|&(ix, own)| own != wanted(ix) && !is_few(ix, own)).map(|(_, own)| own)
}

/// Who computes a convolution with a result in some layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConvKernel {
    /// An engine of cuDNN, which converts operands in a workspace of this size.
    Cudnn(u64),
    Emitted,
}

/// The part of a node's cost that depends on the layout. `conv` is for convolutions. `None` without a kernel for the layout.
pub(super) fn time(graph: &Graph, node: &Node, layout: Layout, conv: Option<ConvKernel>) -> Option<u64> {
    let batch = graph.ty(node.outputs[0]).shape.first().map_or(1, |&extent| extent as u64);
    // The cost of an engine's workspace: each byte is written and read. If the smallest operand has room in it, the engine converts
    // operands there, with this number of kernels.
    let operand = |&input: &ValueId| Layout::RowMajor.size(&graph.ty(input).shape, graph.ty(input).dtype).0;
    let smallest = node.inputs.iter().take(2).chain(&node.outputs).map(operand).min().unwrap_or(0);
    let conversions = |workspace: u64, kernels: u64| {
        let launches = if smallest <= workspace { kernels * STEP * batch } else { 0 };
        2 * workspace + launches
    };
    let [is_conv, is_pool, is_concat] =
        [matches!(node.op, Op::Conv(_)), matches!(node.op, Op::Pool(_)), matches!(node.op, Op::Concat(_))];
    match layout {
        Layout::ChannelsBlocked(_) => None,
        Layout::RowMajor | Layout::ChannelsLast if is_concat => copied(graph, node, layout),
        Layout::RowMajor if is_conv => Some(match conv? {
            ConvKernel::Cudnn(bytes) => conversions(bytes, 2),
            ConvKernel::Emitted => graph.node_flops(node) / FLOPS_OF_A_BYTE,
        }),
        Layout::RowMajor => Some(0),
        Layout::ChannelsLast if is_conv => Some(match conv? {
            ConvKernel::Cudnn(bytes) => conversions(bytes, 1),
            ConvKernel::Emitted => graph.node_flops(node) / CHANNELS_LAST_FLOPS_OF_A_BYTE,
        }),
        Layout::ChannelsLast if is_pool => (graph.ty(node.inputs[0]).shape.rank() < 5).then_some(0),
        Layout::ChannelsLast => graph.channels_last_op(node).map(|_| 0),
    }
}

/// The cost of a concatenation: nothing if its operands are written in place.
fn copied(graph: &Graph, node: &Node, layout: Layout) -> Option<u64> {
    let op = match layout {
        Layout::ChannelsLast => graph.channels_last_op(node)?,
        _ => node.op.clone(),
    };
    let ty = |value: ValueId| {
        let ty = graph.ty(value);
        TensorType { dtype: ty.dtype, shape: layout.physical(&ty.shape) }
    };
    let (parts, whole): (Vec<TensorType>, _) =
        (node.inputs.iter().map(|&part| ty(part)).collect(), ty(node.outputs[0]));
    match op.reuse(&parts.iter().collect::<Vec<_>>(), &whole) {
        Reuse::ConcatSlices(_) => Some(0),
        _ => {
            let steps = STEP * (parts.len() * whole.shape[0]) as u64;
            Some(steps + 2 * Layout::RowMajor.size(&whole.shape, whole.dtype).0)
        }
    }
}

/// The cost of converting a value.
pub(super) fn relayout_time(graph: &Graph, value: ValueId) -> u64 {
    let ty = graph.ty(value);
    let one_place = ty.shape.iter().skip(2).all(|&extent| extent == 1);
    match one_place || ty.shape[1] == 1 {
        true => 0,
        false => STEP * ty.shape[0] as u64 + 2 * Layout::RowMajor.size(&ty.shape, ty.dtype).0,
    }
}

/// A constant in the form that a kernel of a GPU reads.
pub(super) enum Rearranged {
    /// With its second axis innermost. The shape has its extents, aligned with those of a result on the right.
    ChannelsInnermost(Shape),
    /// A matrix with a number of columns, transposed.
    Transposed(usize),
    /// Weights `[outputs, inputs, ..taps]` of a shape as a line for each output: the inputs of each tap, padded with zeros to
    /// a number of inputs, then zeros up to a number of terms.
    LinesOfTerms { shape: Shape, inputs: usize, row: TapRow, terms: usize },
    /// Converted, with zeros behind each line of `columns` elements up to a number of them.
    PaddedLines { columns: usize, padded: usize, dtype: DType },
    /// Converted.
    Cast(DType),
}

/// A kernel's row of taps in a line of terms: zeros, the taps, then zeros.
#[derive(Clone, Copy)]
pub(super) struct TapRow {
    pub(super) first: usize,
    pub(super) taps: usize,
    pub(super) padded: usize,
}

impl Packer for Rearranged {
    fn size(&self, tensor: &Tensor) -> Bytes {
        match self {
            Rearranged::ChannelsInnermost(_) | Rearranged::Transposed(_) => tensor.size(),
            Rearranged::LinesOfTerms { shape, terms, .. } => tensor.dtype().size() * (shape[0] * terms) as u64,
            Rearranged::PaddedLines { columns, padded, dtype } => {
                dtype.size() * (tensor.elements() / columns * padded) as u64
            }
            Rearranged::Cast(dtype) => dtype.size() * tensor.elements() as u64,
        }
    }

    fn pack(&self, tensor: &Tensor, _part: usize) -> Vec<u8> {
        match self {
            Rearranged::ChannelsInnermost(shape) => channels_innermost(tensor, shape),
            Rearranged::Transposed(columns) => transposed(tensor, *columns),
            Rearranged::LinesOfTerms { shape, inputs, row, terms } => {
                lines_of_terms(tensor, shape, *inputs, *row, *terms)
            }
            Rearranged::PaddedLines { columns, padded, dtype } => {
                let (tensor, size) = (tensor.cast(*dtype), dtype.size().0 as usize);
                let lines = tensor.to_le_bytes();
                let line = |line: &[u8]| [line, &vec![0; (padded - columns) * size]].concat();
                lines.chunks_exact(columns * size).flat_map(line).collect()
            }
            Rearranged::Cast(dtype) => tensor.cast(*dtype).to_le_bytes(),
        }
    }
}

fn transposed(tensor: &Tensor, columns: usize) -> Vec<u8> {
    let size = tensor.dtype().size().0 as usize;
    let (bytes, rows) = (tensor.to_le_bytes(), tensor.elements() / columns.max(1));
    let mut transposed = vec![0; bytes.len()];
    for (ix, item) in bytes.chunks_exact(size).enumerate() {
        transposed[(ix % columns * rows + ix / columns) * size..][..size].copy_from_slice(item);
    }
    transposed
}

fn lines_of_terms(tensor: &Tensor, shape: &Shape, padded: usize, row: TapRow, terms: usize) -> Vec<u8> {
    let size = tensor.dtype().size().0 as usize;
    let (bytes, [outputs, inputs, taps]) = (tensor.to_le_bytes(), around(shape, 1));
    let mut lines = vec![0; outputs * terms * size];
    for (ix, item) in bytes.chunks_exact(size).enumerate() {
        let (output, input, tap) = (ix / taps / inputs, ix / taps % inputs, ix % taps);
        let tap = tap / row.taps * row.padded + row.first + tap % row.taps;
        lines[(output * terms + tap * padded + input) * size..][..size].copy_from_slice(item);
    }
    lines
}

fn channels_innermost(tensor: &Tensor, shape: &Shape) -> Vec<u8> {
    let size = tensor.dtype().size().0 as usize;
    let (bytes, [outer, channels, inner]) = (tensor.to_le_bytes(), around(shape, 1));
    let mut channels_innermost = Vec::with_capacity(bytes.len());
    for image in 0..outer {
        for cell in 0..inner {
            for channel in 0..channels {
                let from = ((image * channels + channel) * inner + cell) * size;
                channels_innermost.extend_from_slice(&bytes[from..from + size]);
            }
        }
    }
    channels_innermost
}
