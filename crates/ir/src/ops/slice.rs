//! [`Slice`]: a strided part of a tensor.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Layout, Shape, Tensor, TensorFunction};

use super::common::{arity, one, pick};
use super::{Pad, PadMode};
use crate::axes::{Along, AxisChange, AxisMap, Band, Work, with_channels_last};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Elements `start + i * step` for `i` below `count`, along every axis. A negative step reverses.
///
/// `x: [..]` -> the counts, same dtype. Refuses a part that leaves the tensor and a step of 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// First index along each axis.
    pub start: SmallVec<[usize; 4]>,
    /// Distance along each axis.
    pub step: SmallVec<[isize; 4]>,
    /// Elements along each axis.
    pub count: Shape,
}

impl Slice {
    /// A slice of all elements.
    pub fn whole(shape: &Shape) -> Slice {
        let rank = shape.rank();
        Slice { start: SmallVec::from_elem(0, rank), step: SmallVec::from_elem(1, rank), count: shape.clone() }
    }

    /// A range along one axis, and all elements along the others.
    pub fn range(shape: &Shape, axis: usize, start: usize, count: usize) -> Slice {
        let mut slice = Slice::whole(shape);
        slice.start[axis] = start;
        slice.count[axis] = count;
        slice
    }
}

impl Operator for Slice {
    const NAME: &'static str = "slice";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        let rank = x.shape.rank();
        if [self.start.len(), self.step.len(), self.count.rank()] != [rank; 3] {
            refuse!(
                "start, step and count must have {rank} entries, one per axis, got {}, {} and {}",
                self.start.len(),
                self.step.len(),
                self.count.rank()
            );
        }
        for axis in 0..rank {
            let (start, step, count) = (self.start[axis], self.step[axis], self.count[axis]);
            let last =
                count.checked_sub(1).map(|steps| (start as i128) + (step as i128) * (steps as i128)).unwrap_or(0);
            let inside = |ix: i128| (0..x.shape[axis] as i128).contains(&ix);
            if step == 0 || x.shape[axis] < start || (count > 0 && !(inside(start as i128) && inside(last))) {
                refuse!(
                    "a slice must stay inside the tensor with a step other than 0, got {count} elements from {start} by {step} \
                     along axis {axis} of {}",
                    x.shape
                );
            }
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.count.clone() }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        // Rows that are cut from weights keep their derivation.
        let shape = inputs[0].shape();
        let is_whole = |axis: usize| self.start[axis] == 0 && self.step[axis] == 1 && self.count[axis] == shape[axis];
        if !shape.is_empty()
            && self.step[0] == 1
            && (1..shape.rank()).all(is_whole)
            && let Ok(rows) =
                Tensor::derived(TensorFunction::Rows { first: self.start[0], count: self.count[0] }, inputs)
        {
            return one(rows);
        }
        let strides = inputs[0].shape().row_major_strides();
        one(pick(inputs[0], &self.count, 0.0, |index| {
            let along = |axis: usize| (self.start[axis] as isize + index[axis] as isize * self.step[axis]) as usize;
            Some((0..index.len()).map(|axis| along(axis) * strides[axis]).sum())
        }))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(mut dy) = outputs[0] else { return Ok(backward.none()) };
        let x = backward.shape(backward.operand(0));
        let mut pad: SmallVec<[[isize; 2]; 4]> = SmallVec::new();
        for axis in 0..x.rank() {
            let (count, extent) = (self.count[axis], x[axis] as isize);
            if count == 0 {
                pad.push([0, extent]);
                continue;
            }
            let step = if count == 1 { 1 } else { self.step[axis] };
            let first = self.start[axis] as isize + (count - 1) as isize * step.min(0);
            if step < 0 {
                let mut reversed = Slice::whole(&backward.shape(dy));
                (reversed.start[axis], reversed.step[axis]) = (count - 1, -1);
                dy = backward.add(reversed, &[dy])?;
            }
            let step = step.unsigned_abs();
            if 1 < step {
                // Zeros behind each element.
                let mut apart = backward.shape(dy);
                apart.insert(axis + 1, 1);
                let mut zeros: SmallVec<[[isize; 2]; 4]> = SmallVec::from_elem([0, 0], apart.rank());
                zeros[axis + 1][1] = step as isize - 1;
                let mut together = backward.shape(dy);
                together[axis] = count * step;
                dy = backward.reshape(dy, apart)?;
                dy = backward.add(Pad { mode: PadMode::Constant(0.0), pad: zeros }, &[dy])?;
                dy = backward.reshape(dy, together)?;
            }
            pad.push([first, extent - first - (count * step) as isize]);
        }
        if pad.iter().any(|pad| *pad != [0, 0]) {
            dy = backward.add(Pad { mode: PadMode::Constant(0.0), pad }, &[dy])?;
        }
        Ok(smallvec![Some(dy)])
    }

    fn axes(&self, inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        let x = &inputs[0].shape;
        AxisMap::unary(Work::Movement, output, |axis| {
            let (start, step) = (self.start[axis], self.step[axis]);
            match usize::try_from(step) {
                Ok(1) if start == 0 && self.count[axis] == x[axis] => Along::Same(axis),
                Ok(step) => {
                    Along::Band(Band { axis, rise: step as i64, run: 1, low: start as i64, high: start as i64 })
                }
                Err(_) => Along::Whole,
            }
        })
    }

    fn with_axes(&self, change: AxisChange, inputs: &[&TensorType], output: &TensorType) -> Option<Op> {
        let mut op = self.clone();
        match change {
            AxisChange::ChannelsLast => {
                op.start = with_channels_last(&self.start).collect();
                op.count = with_channels_last(&self.count).collect();
                op.step = with_channels_last(&self.step).collect();
            }
            AxisChange::ChannelsBlocked(block) => {
                let whole = usize::from(block);
                let (start, count, channels) = (self.start[1], self.count[1], inputs[0].shape[1]);
                let to_end = start + count == channels;
                let in_blocks = start.is_multiple_of(whole) && (to_end || count.is_multiple_of(whole));
                if !in_blocks || (self.step[1] != 1 && count != channels) || self.step[1] < 1 {
                    return None;
                }
                op.count = Layout::ChannelsBlocked(block).physical(&self.count);
                op.start[1] = start / whole;
                op.step[1] = 1;
                op.start.push(0);
                op.step.push(1);
            }
            AxisChange::Tile(tile) => {
                let axis = tile.axis;
                op.count[axis] = tile.count;
                if let Along::Band(_) = self.axes(inputs, output).operands[0][axis] {
                    op.start[axis] = self.start[axis] + tile.start * self.step[axis].unsigned_abs() - tile.read[0];
                }
            }
        }
        Some(op.into())
    }

    fn reuse(&self, inputs: &[&TensorType], output: &TensorType) -> Reuse {
        let x = &inputs[0].shape;
        // Contiguous: extents of 1, then one range with step 1, then everything.
        let partial = (0..x.rank()).rev().find(|&axis| output.shape[axis] != x[axis]);
        let split = partial.unwrap_or(0);
        let walks = (0..x.rank()).any(|axis| self.step[axis] != 1 && output.shape[axis] > 1);
        if walks || output.shape[..split].iter().any(|&extent| extent != 1) || output.shape.elements() == 0 {
            return Reuse::Never;
        }
        let offset = self.start.iter().zip(x.row_major_strides()).map(|(start, stride)| start * stride).sum();
        Reuse::Alias { offset }
    }
}
