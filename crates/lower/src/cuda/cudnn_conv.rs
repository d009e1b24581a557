//! Convolutions by cuDNN, if it is enabled.
//!
//! Its fused engines support a bias, a residual and ReLU as epilogue. Other activations are an emitted kernel behind
//! it, in place.

use cuda_driver::FloatType;
use cuda_driver::cudnn::{Convolution, EngineChoice, Planner, TensorLayout};
use ir::analysis::alignment::least_alignment;
use ir::ops::Conv;
use ir::{Call, CallInput, Pack};
use types::pointwise::Unary;
use types::{Bytes, Layout, Shape};

use super::CUDNN_CONV;
use super::cublas_matmul::number as stored;
use super::emit::{Chosen, Draft};
use super::layout::Rearranged;
use super::pointwise::go_on;
use super::select::LibraryCalls;
use super::windows::{label, two};
use crate::NodeView;

/// The most workspace of an engine: enough for the fast engines of the networks' layers, and not gigabytes.
pub const WORKSPACE_MAX: Bytes = Bytes(256 << 20);

/// The alignment in bytes that engines on channels-last values require.
pub(super) const ENGINE_ALIGNMENT: u64 = 16;

/// The calls of a convolution whose values have a layout.
///
/// # Errors
/// The reason that cuDNN does not support it.
pub(super) fn calls(node: &NodeView, conv: &Conv, planner: &Planner, layout: Layout) -> Result<LibraryCalls, String> {
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let (bias, residual) = (conv.epilogue.bias, conv.epilogue.residual);
    if residual && !bias {
        return Err("cuDNN's fused engines with a residual have a bias".into());
    }
    let (relu, behind) = match &conv.epilogue.activation[..] {
        [Unary::Relu, behind @ ..] if bias => (true, behind),
        behind => (false, behind),
    };
    let side = |end: usize| conv.pad.iter().map(|pad| pad[end]).collect::<Vec<usize>>();
    let number = number(node)?;
    let problem = Convolution {
        number,
        order: if layout == Layout::ChannelsLast { TensorLayout::ChannelsLast } else { TensorLayout::Listed },
        x: four(x)?,
        weight: four(weight)?,
        out: four(out)?,
        stride: two(&conv.stride, 1)?,
        dilation: two(&conv.dilation, 1)?,
        front: two(&side(0), 0)?,
        back: two(&side(1), 0)?,
        bias,
        residual,
        relu,
        alignment: alignment(node),
    };
    let mut inputs: Vec<CallInput> = (0..node.operand_count()).map(CallInput::Value).collect();
    if layout == Layout::ChannelsLast {
        if !node.is_constant(1) {
            return Err("its weights, which come with the run, lie otherwise".into());
        }
        inputs[1] = rearranged(node, 1);
    }
    let last = node.operand_count() - 1;
    if layout == Layout::ChannelsLast && residual && node.is_constant(last) {
        // Relayouts do not convert constants.
        inputs[last] = rearranged(node, last);
    }
    if bias && number != FloatType::F32 && node.is_constant(2) {
        // Engines require the dtype of the other operands for a bias. A dynamic one has it already.
        let stored = node.output().dtype;
        inputs[2] = CallInput::Packed { input: 2, pack: Pack::new(Rearranged::Cast(stored)) };
    }
    let fastest = planner.convolution(&problem, EngineChoice::Fastest, node.workspace.min(WORKSPACE_MAX).0);
    let planned = match layout {
        // There may be no other kernel for this layout: take the engine with the least workspace.
        Layout::ChannelsLast if node.workspace < WORKSPACE_MAX => {
            fastest.or_else(|_| planner.convolution(&problem, EngineChoice::Smallest, WORKSPACE_MAX.0))?
        }
        _ => fastest?,
    };
    let own = Call {
        kernel: CUDNN_CONV,
        label: format!("{}, engine {}", label(&weight[2..], out), planned.engine),
        workspace: Bytes(planned.workspace),
        code: Draft::code_of(Chosen::Cudnn(planned)),
        inputs,
        // cuDNN does not specify that a result may overwrite an operand.
        in_place: Default::default(),
        slice: None,
    };
    let calls = match behind {
        [] => vec![own],
        behind => vec![own, go_on(node, behind)],
    };
    Ok(LibraryCalls::new(calls, planner.math(), format!("{problem:?}")))
}

/// The reason that an engine on channels-last values cannot read a node's operands in whole vectors, if there is one.
pub(super) fn misaligned(node: &NodeView) -> Option<String> {
    let alignment = alignment(node);
    let is_short = node.layout == Layout::ChannelsLast && alignment < ENGINE_ALIGNMENT;
    is_short
        .then(|| format!("its operands must begin at multiples of {ENGINE_ALIGNMENT} bytes, and may at {alignment}"))
}

/// The bytes that the addresses of a node's operands and result are multiples of in every plan, up to the largest vector of a
/// load. Engines on channels-last values copy whole vectors.
fn alignment(node: &NodeView) -> u64 {
    let values = node.node.inputs.iter().chain(&node.node.outputs).copied();
    least_alignment(node.graph, values, ENGINE_ALIGNMENT)
}

/// A constant operand with its channels innermost.
fn rearranged(node: &NodeView, input: usize) -> CallInput {
    let shape = node.input(input).shape.clone();
    CallInput::Packed { input, pack: Pack::new(Rearranged::ChannelsInnermost(shape)) }
}

/// The dtype of all operands, except for a constant bias.
fn number(node: &NodeView) -> Result<FloatType, String> {
    let dtype = node.output().dtype;
    let number = stored(dtype)?;
    let is_bias = |ix: usize| ix == 2 && node.input(ix).shape.rank() == 1;
    match (0..node.operand_count()).find(|&ix| node.input(ix).dtype != dtype && !(is_bias(ix) && node.is_constant(ix)))
    {
        Some(ix) => Err(format!("its operands are {} and {dtype}", node.input(ix).dtype)),
        None => Ok(number),
    }
}

/// Extents with two spatial ones; one dimension is one row.
fn four(shape: &Shape) -> Result<[usize; 4], String> {
    let [rows, columns] = two(&shape[2..], 1)?;
    Ok([shape[0], shape[1], rows, columns])
}
