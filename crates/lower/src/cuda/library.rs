//! Convolutions that cuDNN does, where it was asked for.

use ::cuda::cudnn::{Convolution, Planner};
use ir::ops::Conv;
use types::pointwise::Unary;
use types::{Bytes, Shape};

use super::windows::{label, two};
use super::{CUDNN_CONV, Chosen, View};
use crate::{Call, CallInput};

/// The most workspace that an engine may want: what cuDNN's fast ones want of the networks' layers, and not gigabytes.
const WORKSPACE_MAX: Bytes = Bytes(256 << 20);

/// The call of a convolution, or why cuDNN does not do it.
pub(super) fn conv(node: &View, conv: &Conv, planner: &Planner, scratch: Bytes) -> Result<Call, String> {
    node.all_f32()?;
    let (x, weight, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let relu = match conv.epilogue.activation[..] {
        [] => false,
        [Unary::Relu] => true,
        _ => return Err("its activation is not one of cuDNN's fused engines".into()),
    };
    let (bias, residual) = (conv.epilogue.bias, conv.epilogue.residual);
    if (residual || relu) && !bias {
        return Err("cuDNN's fused engines have a bias".into());
    }
    let side = |end: usize| conv.pad.iter().map(|pad| pad[end]).collect::<Vec<usize>>();
    let problem = Convolution {
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
    let planned = planner.convolution(&problem, scratch.min(WORKSPACE_MAX).0)?;
    Ok(Call {
        kernel: CUDNN_CONV,
        label: format!("{}, engine {}", label(&weight[2..], out), planned.engine),
        workspace: Bytes(planned.workspace),
        code: postcard::to_stdvec(&Chosen::Cudnn(planned)).expect("plans are plain data"),
        inputs: (0..node.inputs()).map(CallInput::Value).collect(),
        // cuDNN does not say that a result may lie where an operand does.
        in_place: Default::default(),
        part: None,
    })
}

/// Extents with two spatial ones; one dimension is one row.
fn four(shape: &Shape) -> Result<[usize; 4], String> {
    let [rows, columns] = two(&shape[2..], 1)?;
    Ok([shape[0], shape[1], rows, columns])
}
