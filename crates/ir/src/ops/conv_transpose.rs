//! [`ConvTranspose`]: transposed convolution (deconvolution).

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::common::{Epilogue, Windows, product, window_fits};
use super::{Conv, ConvWeightGradient};
use crate::axes::{Along, AxisChange, AxisMap, Band, OperandAxes, Tile, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Adds each element of `x` times `weight` to a window of the output.
///
/// `x: [n, c, ..spatial]`, `weight: [c, m / groups, ..kernel]`, then `bias: [m]` by the epilogue -> `[n, m, ..out]` with
/// `out = (in - 1) stride + (kernel - 1) dilation + 1 + output_pad - pad`. All `f32`. Refuses a residual. Source: ONNX
/// `ConvTranspose`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// Distance in the output between neighboring inputs.
    pub stride: SmallVec<[usize; 2]>,
    /// Distance between taps.
    pub dilation: SmallVec<[usize; 2]>,
    /// Cells removed in front of and behind each spatial axis.
    pub pad: SmallVec<[[usize; 2]; 2]>,
    /// Cells added behind each spatial axis.
    pub output_pad: SmallVec<[usize; 2]>,
    /// The number of groups that channels are split into.
    pub groups: usize,
    /// Arithmetic on each result before it is stored.
    #[serde(default)]
    pub epilogue: Epilogue,
}

impl ConvTranspose {
    fn output_shape(&self, x: &Shape, weight: &Shape) -> Result<Shape, Refusal> {
        let spatial = self.stride.len();
        let lengths = [self.dilation.len(), self.pad.len(), self.output_pad.len()];
        if !(1..=3).contains(&spatial) || lengths.iter().any(|&length| length != spatial) {
            refuse!("one to three spatial axes must have stride, dilation and padding each, got {spatial} strides");
        }
        if x.rank() != spatial + 2 || weight.rank() != spatial + 2 {
            refuse!("input and weight must have {spatial} spatial axes, got {x} and {weight}");
        }
        if self.groups == 0 || weight[0] != x[1] || !x[1].is_multiple_of(self.groups) {
            refuse!("weight {weight} in {} groups must match the channels of input {x}", self.groups);
        }
        let mut shape = Shape::from([x[0], weight[1].saturating_mul(self.groups)]);
        for axis in 0..spatial {
            let (extent, kernel) = (x[axis + 2], weight[axis + 2]);
            let (stride, dilation, [front, back]) = (self.stride[axis], self.dilation[axis], self.pad[axis]);
            window_fits(kernel, stride, dilation, [front, back])?;
            if extent == 0 {
                refuse!("input must not be empty along spatial axis {axis}, got {x}");
            }
            let full = (extent - 1)
                .checked_mul(stride)
                .zip((kernel - 1).checked_mul(dilation))
                .and_then(|(a, b)| a.checked_add(b)?.checked_add(1)?.checked_add(self.output_pad[axis]));
            let kept = full.zip(front.checked_add(back)).and_then(|(full, pad)| full.checked_sub(pad));
            match kept {
                Some(kept) => shape.push(kept),
                None => refuse!("padding must leave elements of spatial axis {axis}, got {front} and {back}"),
            }
        }
        Ok(shape)
    }
}

impl ConvTranspose {
    /// The inputs whose windows reach an output index along an axis; the nearest one in front if there is none.
    fn band(&self, axis: usize, kernel: usize) -> Band {
        let spatial = axis - 2;
        let [stride, dilation, front] =
            [self.stride[spatial], self.dilation[spatial], self.pad[spatial][0]].map(|count| count as i64);
        let reach = (kernel as i64 - 1) * dilation;
        Band { axis, rise: 1, run: stride, low: front + (stride - 1 - reach).min(0), high: front }
    }
}

impl Operator for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        if inputs.len() < 2 {
            refuse!("expected an input and a weight, got {} inputs", inputs.len());
        }
        if self.epilogue.residual {
            refuse!("a transposed convolution must not have a residual; add it in a node of its own");
        }
        let shape = self.output_shape(&inputs[0].shape, &inputs[1].shape)?;
        let channels = shape[1];
        self.epilogue.infer(inputs, shape, channels)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (x, weight) = (inputs[0], inputs[1]);
        let shape = self.output_shape(x.shape(), weight.shape()).expect("infer checked the shapes");
        let (x_items, weight_items) = (x.to_f64(), weight.to_f64());
        let (group_in, group_out) = (x.shape()[1] / self.groups, weight.shape()[1]);
        let windows = Windows {
            plane: &shape[2..],
            places: &x.shape()[2..],
            kernel: &weight.shape()[2..],
            stride: &self.stride,
            dilation: &self.dilation,
            pad: &self.pad,
        };
        let [plane, x_plane, kernel] =
            [windows.plane, windows.places, windows.kernel].map(|of| of.iter().product::<usize>());
        let (x_channels, channels) = (x.shape()[1], shape[1]);
        let mut out = vec![0.0; shape.elements()];
        windows.for_each_place(|place, taps| {
            for at in 0..shape[0] * x_channels {
                let (image, channel) = (at / x_channels, at % x_channels);
                let first = image * channels + channel / group_in.max(1) * group_out;
                let item = x_items[at * x_plane + place];
                for output in 0..group_out {
                    let sums = &mut out[(first + output) * plane..][..plane];
                    let weights = &weight_items[(channel * group_out + output) * kernel..][..kernel];
                    taps.iter().for_each(|&[tap, cell]| sums[cell] += item * weights[tap]);
                }
            }
        });
        self.epilogue.eval(shape, out, inputs, |at| at / plane % channels)
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        self.epilogue.has_gradient()?;
        let Some(mut dy) = outputs[0] else { return Ok(backward.none()) };
        let (x, weight) = (backward.operand(0), backward.operand(1));
        let kernel = backward.shape(weight)[2..].to_vec();
        let mut gradients = backward.none();
        self.epilogue.bias_gradient(backward, dy, 1, &mut gradients)?;
        let (stride, dilation, groups) = (self.stride.clone(), self.dilation.clone(), self.groups);
        // Output padding first cancels the padding behind. Further cells have no products.
        let mut pad = self.pad.clone();
        for (axis, pad) in pad.iter_mut().enumerate() {
            let back = self.output_pad[axis].min(pad[1]);
            pad[1] -= back;
            let count = backward.ty(dy).shape[axis + 2] - (self.output_pad[axis] - back);
            dy = backward.slice(dy, axis + 2, 0, count)?;
        }
        if backward.needs(0) {
            let (stride, dilation, pad) = (stride.clone(), dilation.clone(), pad.clone());
            let op = Conv { stride, dilation, pad, groups, zero: 0, epilogue: Epilogue::default() };
            gradients[0] = Some(backward.add(op, &[dy, weight])?);
        }
        if backward.needs(1) {
            let op = ConvWeightGradient { stride, dilation, pad, groups, kernel: kernel.into() };
            gradients[1] = Some(backward.add(op, &[dy, x])?);
        }
        Ok(gradients)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let x = (0..rank).map(|axis| match axis {
            0 => Along::Same(0),
            1 => Along::Whole,
            _ => Along::Band(self.band(axis, inputs[1].shape[axis])),
        });
        let weight = (0..rank).map(|axis| match axis {
            0 => Along::Broadcast,
            1 if self.groups == 1 => Along::Same(1),
            _ => Along::Whole,
        });
        let mut operands: SmallVec<[OperandAxes; 4]> = smallvec![x.collect(), weight.collect()];
        operands.extend(self.epilogue.axes(1, rank));
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let AxisChange::Tile(Tile { axis, start, count, read, .. }) = change else { return None };
        let mut op = self.clone();
        match axis {
            0 => {}
            // Weights and epilogues have a channel axis too, which tiles do not cut.
            1 => return None,
            _ => {
                let spatial = axis - 2;
                let (stride, dilation) = (self.stride[spatial], self.dilation[spatial]);
                let front = (start + self.pad[spatial][0]).checked_sub(read[0] * stride)?;
                let full = (read[1] - 1) * stride + (inputs[1].shape[axis] - 1) * dilation + 1;
                op.pad[spatial] = [front, full.saturating_sub(front + count)];
                op.output_pad[spatial] = (front + count).saturating_sub(full);
            }
        }
        Some(op.into())
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let taps = inputs[1].shape[1..].iter().copied();
        let products = product(taps.chain([2, inputs[0].shape.elements()]));
        products.saturating_add(self.epilogue.flops(outputs[0].shape.elements()))
    }
}
