//! [`Conv`]: convolution (cross-correlation, as in all deep-learning frameworks) over one to three spatial dimensions.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::common::{Epilogue, Windows, is_zero, product, window_places, zero_fits};
use super::{ConvTranspose, ConvWeightGradient};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Window, Work, vector_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Sums of products of `weight` and the windows of `x`.
///
/// `x: [n, c, ..spatial]`, `weight: [m, c / groups, ..kernel]`, then by the epilogue `scale: [m]`, `bias: [m]` and `residual`
/// of the output's shape -> `[n, m, ..out]`, of `f32`, `f16` or `bf16` each. Or `x` and `weight` of `u8` or `i8`, summed
/// exactly: `i32`, or dequantized by the scale. Refuses: spatial rank 0 or above 3, channels that the groups do not
/// divide, a kernel larger than the padded input. Source: ONNX `Conv`, `ConvInteger`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// Steps of the window, one per spatial axis.
    pub stride: SmallVec<[usize; 2]>,
    /// Distance between taps, one per spatial axis.
    pub dilation: SmallVec<[usize; 2]>,
    /// Zeros in front of and behind each spatial axis.
    pub pad: SmallVec<[[usize; 2]; 2]>,
    /// The number of groups that channels are split into.
    pub groups: usize,
    /// Zero point of an int8 `x`, subtracted from each element. Padding contributes 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zero: i32,
    /// Arithmetic on each result before it is stored.
    #[serde(default)]
    pub epilogue: Epilogue,
}

impl Conv {
    /// A convolution over images with one stride and one padding for all sides.
    pub fn square(stride: usize, pad: usize) -> Conv {
        Conv {
            stride: SmallVec::from_elem(stride, 2),
            dilation: SmallVec::from_elem(1, 2),
            pad: SmallVec::from_elem([pad, pad], 2),
            groups: 1,
            zero: 0,
            epilogue: Epilogue::default(),
        }
    }

    fn output_shape(&self, x: &Shape, weight: &Shape) -> Result<Shape, Refusal> {
        let spatial = self.stride.len();
        if !(1..=3).contains(&spatial) || self.dilation.len() != spatial || self.pad.len() != spatial {
            refuse!("one to three spatial axes must have stride, dilation and padding each, got {spatial} strides");
        }
        if x.rank() != spatial + 2 || weight.rank() != spatial + 2 {
            refuse!("input and weight must have {spatial} spatial axes, got {x} and {weight}");
        }
        let groups = self.groups;
        if groups == 0 || !weight[0].is_multiple_of(groups) || weight[1].checked_mul(groups) != Some(x[1]) {
            refuse!("weight {weight} in {groups} groups must match the channels of input {x}");
        }
        let mut shape = Shape::from([x[0], weight[0]]);
        for axis in 0..spatial {
            let (extent, kernel) = (x[axis + 2], weight[axis + 2]);
            shape.push(window_places(extent, kernel, self.stride[axis], self.dilation[axis], self.pad[axis])?);
        }
        Ok(shape)
    }
}

impl Operator for Conv {
    const NAME: &'static str = "conv";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        if inputs.len() < 2 {
            refuse!("expected an input and a weight, got {} inputs", inputs.len());
        }
        zero_fits(self.zero, inputs)?;
        let shape = self.output_shape(&inputs[0].shape, &inputs[1].shape)?;
        let channels = shape[1];
        self.epilogue.infer(inputs, shape, channels)
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (x, weight) = (inputs[0], inputs[1]);
        let shape = self.output_shape(x.shape(), weight.shape()).expect("infer checked the shapes");
        let (x_items, weight_items) = (x.to_f64(), weight.to_f64());
        let (group_in, group_out) = (weight.shape()[1], (weight.shape()[0] / self.groups).max(1));
        let windows = Windows {
            plane: &x.shape()[2..],
            places: &shape[2..],
            kernel: &weight.shape()[2..],
            stride: &self.stride,
            dilation: &self.dilation,
            pad: &self.pad,
        };
        let [plane, x_plane, kernel] =
            [windows.places, windows.plane, windows.kernel].map(|of| of.iter().product::<usize>());
        let (channels, zero) = (shape[1], f64::from(self.zero));
        let mut out = vec![0.0; shape.elements()];
        windows.for_each_place(|place, taps| {
            for at in 0..shape[0] * channels {
                let (image, channel) = (at / channels, at % channels);
                let first = image * x.shape()[1] + channel / group_out * group_in;
                let mut sum = 0.0;
                for input in 0..group_in {
                    let cells = &x_items[(first + input) * x_plane..][..x_plane];
                    let weights = &weight_items[(channel * group_in + input) * kernel..][..kernel];
                    taps.iter().for_each(|&[tap, cell]| sum += (cells[cell] - zero) * weights[tap]);
                }
                out[at * plane + place] = sum;
            }
        });
        self.epilogue.eval(shape, out, inputs, |at| at / plane % channels)
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        self.epilogue.has_gradient()?;
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let (x, weight) = (backward.operand(0), backward.operand(1));
        let (x_shape, kernel) = (backward.shape(x), backward.shape(weight)[2..].to_vec());
        let (stride, dilation, pad, groups) =
            (self.stride.clone(), self.dilation.clone(), self.pad.clone(), self.groups);
        let mut gradients = backward.none();
        if backward.needs(0) {
            // Cells behind the last window.
            let rest = |axis: usize| {
                let reach = (kernel[axis] - 1) * dilation[axis] + 1;
                (x_shape[axis + 2] + pad[axis][0] + pad[axis][1] - reach) % stride[axis]
            };
            let output_pad = (0..kernel.len()).map(rest).collect();
            let (stride, dilation, pad) = (stride.clone(), dilation.clone(), pad.clone());
            let op = ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue: Epilogue::default() };
            gradients[0] = Some(backward.add(op, &[dy, weight])?);
        }
        if backward.needs(1) {
            let op = ConvWeightGradient { stride, dilation, pad, groups, kernel: kernel.into() };
            gradients[1] = Some(backward.add(op, &[x, dy])?);
        }
        self.epilogue.bias_gradient(backward, dy, 1, &mut gradients)?;
        Ok(gradients)
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let (x, weight) = (&inputs[0].shape, &inputs[1].shape);
        let along = |axis: usize| match axis.checked_sub(2) {
            None if axis == 0 => Along::Same(0),
            // Depthwise: each channel of the result reads one channel.
            None if self.groups == x[1] && self.groups == weight[0] => Along::Same(1),
            None => Along::Whole,
            Some(spatial) => Along::Window(Window {
                axis,
                kernel: weight[axis],
                stride: self.stride[spatial],
                dilation: self.dilation[spatial],
                front: self.pad[spatial][0],
            }),
        };
        let mut operands: SmallVec<[OperandAxes; 4]> = smallvec![(0..rank).map(along).collect(), vector_axes(1, rank)];
        operands.extend(self.epilogue.axes(1, rank));
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let AxisChange::Tile(tile) = change else { return None };
        let mut op = self.clone();
        match tile.axis.checked_sub(2) {
            Some(spatial) => op.pad[spatial] = tile.pad,
            // Weights and epilogues have a channel axis too, which tiles do not cut.
            None if tile.axis != 0 => return None,
            None => {}
        }
        Some(op.into())
    }

    fn reuse(&self, inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // A residual element is read before the result is written.
        if self.epilogue.residual { Reuse::InPlace([inputs.len() - 1].into_iter().collect()) } else { Reuse::Never }
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let taps = inputs[1].shape[1..].iter().copied();
        let elements = outputs[0].shape.elements();
        product(taps.chain([2, elements])).saturating_add(self.epilogue.flops(elements))
    }
}
