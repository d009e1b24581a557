//! Convolutions that cuDNN does, where it was asked for.
//!
//! Its fused engines have a bias, a residual and zero behind a convolution; what else becomes of results is a kernel of ours
//! behind it, in place.

use ::cuda::FloatType;
use ::cuda::cudnn::{Convolution, EngineChoice, Planner, TensorLayout};
use ir::ops::Conv;
use types::pointwise::Unary;
use types::{Bytes, Layout, Shape};

use super::layout::turned;
use super::pointwise::go_on;
use super::products::number as stored;
use super::windows::{label, two};
use super::{CUDNN_CONV, Chosen, View};
use crate::{Call, CallInput, Pack};

/// The most workspace that an engine may want: what cuDNN's fast ones want of the networks' layers, and not gigabytes.
pub const WORKSPACE_MAX: Bytes = Bytes(256 << 20);

/// The calls of a convolution whose values have a layout, or why cuDNN does not do it.
pub(super) fn conv(
    node: &View,
    conv: &Conv,
    planner: &Planner,
    scratch: Bytes,
    layout: Layout,
) -> Result<Vec<Call>, String> {
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
    };
    let mut inputs: Vec<CallInput> = (0..node.inputs()).map(CallInput::Value).collect();
    if layout == Layout::ChannelsLast {
        if !node.is_known(1) {
            return Err("its weights, which come with the run, lie otherwise".into());
        }
        inputs[1] = CallInput::Packed { input: 1, pack: Pack::new(|weight| turned(weight, weight.shape())) };
    }
    let last = node.inputs() - 1;
    if layout == Layout::ChannelsLast && residual && node.is_known(last) {
        // What is known is not turned around by a relayout.
        inputs[last] = CallInput::Packed { input: last, pack: Pack::new(|all| turned(all, all.shape())) };
    }
    if bias && number != FloatType::F32 && node.is_known(2) {
        // Its engines take a bias as they take the rest. One that comes with the run is stored so.
        let stored = node.output().dtype;
        inputs[2] = CallInput::Packed { input: 2, pack: Pack::new(move |bias| bias.cast(stored).to_le_bytes()) };
    }
    let fastest = planner.convolution(&problem, EngineChoice::Fastest, scratch.min(WORKSPACE_MAX).0);
    let planned = match layout {
        // There is nothing else for it: the least that it can do with.
        Layout::ChannelsLast if scratch < WORKSPACE_MAX => {
            fastest.or_else(|_| planner.convolution(&problem, EngineChoice::Smallest, WORKSPACE_MAX.0))?
        }
        _ => fastest?,
    };
    let own = Call {
        kernel: CUDNN_CONV,
        label: format!("{}, engine {}", label(&weight[2..], out), planned.engine),
        workspace: Bytes(planned.workspace),
        code: postcard::to_stdvec(&Chosen::Cudnn(planned)).expect("plans are plain data"),
        inputs,
        // cuDNN does not say that a result may lie where an operand does.
        in_place: Default::default(),
        part: None,
    };
    Ok(match behind {
        [] => vec![own],
        behind => vec![own, go_on(node, behind)],
    })
}

/// How all operands are stored, but for a bias that is known.
fn number(node: &View) -> Result<FloatType, String> {
    let dtype = node.output().dtype;
    let number = stored(dtype)?;
    let is_bias = |ix: usize| ix == 2 && node.input(ix).shape.rank() == 1;
    match (0..node.inputs()).find(|&ix| node.input(ix).dtype != dtype && !(is_bias(ix) && node.is_known(ix))) {
        Some(ix) => Err(format!("its operands are {} and {dtype}", node.input(ix).dtype)),
        None => Ok(number),
    }
}

/// Extents with two spatial ones; one dimension is one row.
fn four(shape: &Shape) -> Result<[usize; 4], String> {
    let [rows, columns] = two(&shape[2..], 1)?;
    Ok([shape[0], shape[1], rows, columns])
}
