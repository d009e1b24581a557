//! [`Pad`]: padding and cropping.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor};

use super::ScatterAdd;
use super::common::{arity, one, pick};
use crate::axes::{Along, AxisChange, AxisMap, Band, Tile, Work, with_channels_last};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// The contents of the padding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadMode {
    /// One value, converted to the tensor's dtype.
    Constant(f64),
    /// The nearest element.
    Edge,
    /// The tensor mirrored at its first and last element.
    Reflect,
    /// The tensor repeated.
    Wrap,
}

/// Adds (or, with negative counts, removes) elements in front of and behind each axis.
///
/// `x: [..]` -> the extents with both counts added, same dtype. Refuses counts that leave less than nothing and padding
/// of an empty axis other than by a constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    /// The contents of the padding.
    pub mode: PadMode,
    /// Elements in front of and behind each axis.
    pub pad: SmallVec<[[isize; 2]; 4]>,
}

impl Pad {
    /// The output's shape; `None` if an axis would have a negative extent.
    fn output_shape(&self, x: &Shape) -> Option<Shape> {
        let extent =
            |(&extent, pad): (&usize, &[isize; 2])| extent.checked_add_signed(pad[0])?.checked_add_signed(pad[1]);
        x.iter().zip(&self.pad).map(extent).collect()
    }

    /// The input index for output index `ix` along an axis of `extent` elements; `None` for the constant.
    pub fn source(&self, axis: usize, extent: usize, ix: usize) -> Option<usize> {
        let at = ix as isize - self.pad[axis][0];
        let last = extent as isize - 1;
        if (0..=last).contains(&at) {
            return Some(at as usize);
        }
        match self.mode {
            PadMode::Constant(_) => None,
            PadMode::Edge => Some(at.clamp(0, last) as usize),
            PadMode::Wrap => Some(at.rem_euclid(extent as isize) as usize),
            PadMode::Reflect if last == 0 => Some(0),
            PadMode::Reflect => {
                let at = at.rem_euclid(2 * last);
                Some(if at > last { 2 * last - at } else { at } as usize)
            }
        }
    }
}

impl Operator for Pad {
    const NAME: &'static str = "pad";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        if self.pad.len() != x.shape.rank() {
            refuse!(
                "padding must have {} entries, one per axis of {}, got {}",
                x.shape.rank(),
                x.shape,
                self.pad.len()
            );
        }
        if let Some(pad) = self.pad.iter().flatten().find(|pad| TensorType::ELEMENTS_MAX < pad.unsigned_abs()) {
            refuse!("padding must be at most 2^40, got {pad}");
        }
        let Some(shape) = self.output_shape(&x.shape) else {
            refuse!("padding must not remove more elements than {} has, got {:?}", x.shape, self.pad)
        };
        let constant = matches!(self.mode, PadMode::Constant(_));
        if !constant && x.shape.elements() == 0 && shape.elements() != 0 {
            refuse!("mode must be constant for an empty tensor, got {:?}", self.mode);
        }
        Ok(one(TensorType { dtype: x.dtype, shape }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        let fill = if let PadMode::Constant(value) = self.mode { value } else { 0.0 };
        let shape = self.output_shape(x.shape()).expect("infer refuses negative extents");
        let strides = x.shape().row_major_strides();
        one(pick(x, &shape, fill, |index| {
            let along = |axis| Some(self.source(axis, x.shape()[axis], index[axis])? * strides[axis]);
            (0..index.len()).map(along).sum()
        }))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(mut dy) = outputs[0] else { return Ok(backward.none()) };
        if let PadMode::Constant(_) = self.mode {
            let pad = self.pad.iter().map(|[front, back]| [-front, -back]).collect();
            return Ok(smallvec![Some(backward.add(Pad { mode: PadMode::Constant(0.0), pad }, &[dy])?)]);
        }
        let x = backward.shape(backward.operand(0));
        for axis in (0..x.rank()).filter(|&axis| self.pad[axis] != [0, 0]) {
            let source = |ix| self.source(axis, x[axis], ix).expect("only a constant has no source") as i64;
            let index = Tensor::vector((0..backward.ty(dy).shape[axis]).map(source).collect());
            let index = backward.constant(index);
            dy = backward.add(ScatterAdd { axis, extent: x[axis] }, &[index, dy])?;
        }
        Ok(smallvec![Some(dy)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let x = &inputs[0].shape;
        let along = |axis: usize| match self.mode {
            _ if self.pad[axis] == [0, 0] => Along::Same(axis),
            PadMode::Wrap => Along::Whole,
            PadMode::Reflect => {
                let source = |ix| self.source(axis, x[axis], ix).map(|at| [ix, at]);
                Along::Band(Band::around(axis, [1, 1], (0..output.shape[axis]).filter_map(source)))
            }
            PadMode::Constant(_) | PadMode::Edge => {
                let shift = -(self.pad[axis][0] as i64);
                Along::Band(Band { axis, rise: 1, run: 1, low: shift, high: shift })
            }
        };
        AxisMap::unary(Work::Movement, output, along)
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let mut op = self.clone();
        match change {
            AxisChange::ChannelsLast => op.pad = with_channels_last(&self.pad).collect(),
            AxisChange::ChannelsBlocked(_) if self.pad[1] == [0, 0] => op.pad.push([0, 0]),
            AxisChange::ChannelsBlocked(_) => return None,
            AxisChange::Tile(tile) if self.pad[tile.axis] == [0, 0] => {}
            // Elements of the cut operand that the tile has no use for are cropped.
            AxisChange::Tile(Tile { axis, start, count, read, .. }) => {
                let front = self.pad[axis][0] + read[0] as isize - start as isize;
                let held = read[1] as isize;
                // A tile of padding behind the last element.
                let front = match self.mode {
                    PadMode::Constant(_) => front.max(-held),
                    PadMode::Edge => front.max(1 - held),
                    PadMode::Reflect | PadMode::Wrap if front < -held => return None,
                    PadMode::Reflect | PadMode::Wrap => front,
                };
                op.pad[axis] = [front, count as isize - held - front];
            }
        }
        Some(op.into())
    }
}
