//! [`ConvWeightGradient`]: the gradient of a convolution for its weight.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Shape, Tensor};

use super::common::{Windows, arity, f32_or_half, from_f64, one, window_places};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// For each tap, the sum over images and positions of products of `x` under the tap and `dy`.
///
/// `x: [n, c, ..spatial]`, `dy: [n, m, ..out]`, the type of `conv(x, weight)` -> `[m, c / groups, ..kernel]`. Also the weight
/// gradient of a transposed convolution, with the operands exchanged. All `f32`, `f16` or `bf16`. Refuses: a `dy` whose
/// extents are not those of the convolution, channels that the groups do not divide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvWeightGradient {
    /// Steps of the convolution's window.
    pub stride: SmallVec<[usize; 2]>,
    /// Distance between taps.
    pub dilation: SmallVec<[usize; 2]>,
    /// Zeros in front of and behind each spatial axis of `x`.
    pub pad: SmallVec<[[usize; 2]; 2]>,
    /// The number of groups that channels are split into.
    pub groups: usize,
    /// Spatial extents of the weight.
    pub kernel: SmallVec<[usize; 2]>,
}

impl ConvWeightGradient {
    fn output_shape(&self, x: &Shape, dy: &Shape) -> Result<Shape, Refusal> {
        let spatial = self.stride.len();
        let lengths = [self.dilation.len(), self.pad.len(), self.kernel.len()];
        if !(1..=3).contains(&spatial) || lengths.iter().any(|&length| length != spatial) {
            refuse!("one to three spatial axes must have stride, dilation, padding and kernel, got {spatial} strides");
        }
        if x.rank() != spatial + 2 || dy.rank() != spatial + 2 || x[0] != dy[0] {
            refuse!("input and gradient must have one batch and {spatial} spatial axes, got {x} and {dy}");
        }
        let groups = self.groups;
        if groups == 0 || !x[1].is_multiple_of(groups) || !dy[1].is_multiple_of(groups) {
            refuse!("channels of {x} and {dy} must be divisible by the groups, got {groups}");
        }
        for axis in 0..spatial {
            let (extent, kernel) = (x[axis + 2], self.kernel[axis]);
            let want = window_places(extent, kernel, self.stride[axis], self.dilation[axis], self.pad[axis])?;
            if dy[axis + 2] != want {
                refuse!("the gradient must have {want} places along spatial axis {axis}, got {dy}");
            }
        }
        Ok([dy[1], x[1] / groups].into_iter().chain(self.kernel.iter().copied()).collect())
    }
}

impl Operator for ConvWeightGradient {
    const NAME: &'static str = "conv_weight_gradient";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        f32_or_half(inputs)?;
        let shape = self.output_shape(&inputs[0].shape, &inputs[1].shape)?;
        Ok(one(TensorType { dtype: inputs[0].dtype, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (x, dy) = (inputs[0], inputs[1]);
        let shape = self.output_shape(x.shape(), dy.shape()).expect("infer checked the shapes");
        let (x_items, dy_items) = (x.to_f64(), dy.to_f64());
        let group_out = (shape[0] / self.groups).max(1);
        let windows = Windows {
            plane: &x.shape()[2..],
            places: &dy.shape()[2..],
            kernel: &self.kernel,
            stride: &self.stride,
            dilation: &self.dilation,
            pad: &self.pad,
        };
        let [dy_plane, x_plane, kernel] =
            [windows.places, windows.plane, windows.kernel].map(|of| of.iter().product::<usize>());
        let mut out = vec![0.0; shape.elements()];
        windows.for_each_tap(|tap, places| {
            for at in 0..shape[0] * shape[1] {
                let (channel, input) = (at / shape[1], at % shape[1]);
                let x_channel = channel / group_out * shape[1] + input;
                let mut sum = 0.0;
                for image in 0..dy.shape()[0] {
                    let cells = &x_items[(image * x.shape()[1] + x_channel) * x_plane..][..x_plane];
                    let gradients = &dy_items[(image * shape[0] + channel) * dy_plane..][..dy_plane];
                    places.iter().for_each(|&[place, cell]| sum += cells[cell] * gradients[place]);
                }
                out[at * kernel + tap] = sum;
            }
        });
        one(from_f64(shape, x.dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_second()
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let rank = output.shape.rank();
        let x = (0..rank).map(|axis| if axis == 1 && self.groups == 1 { Along::Same(1) } else { Along::Whole });
        let dy = (0..rank).map(|axis| match axis {
            0 => Along::Same(1),
            1 => Along::Broadcast,
            // With one place, all taps read the same gradient.
            _ if inputs[1].shape[2..].iter().all(|&extent| extent == 1) => Along::Broadcast,
            _ => Along::Whole,
        });
        let operands: [OperandAxes; 2] = [x.collect(), dy.collect()];
        AxisMap { work: Work::Arithmetic, operands: operands.into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> u64 {
        let taps: usize = outputs[0].shape[1..].iter().product();
        2 * (taps * inputs[1].shape.elements()) as u64
    }
}

#[cfg(test)]
mod tests {
    use types::DType;

    use super::*;

    #[test]
    fn gradients_of_other_extents_are_refused() {
        let op = ConvWeightGradient {
            stride: SmallVec::from_elem(2, 1),
            dilation: SmallVec::from_elem(1, 1),
            pad: SmallVec::from_elem([1, 0], 1),
            groups: 2,
            kernel: SmallVec::from_elem(3, 1),
        };
        let infer = |x: [usize; 3], dy: [usize; 3]| {
            op.infer(&[&TensorType::new(DType::F32, x), &TensorType::new(DType::F32, dy)]).map(|out| out[0].to_string())
        };
        assert_eq!(infer([5, 4, 8], [5, 6, 4]), Ok("f32[6,2,3]".into()));
        for (x, dy) in [([5, 4, 8], [5, 6, 5]), ([5, 4, 8], [4, 6, 4]), ([5, 3, 8], [5, 6, 4]), ([5, 4, 1], [5, 6, 1])]
        {
            assert!(infer(x, dy).is_err(), "{x:?} and {dy:?}");
        }
    }
}
