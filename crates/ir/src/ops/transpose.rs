//! [`Transpose`]: a permutation of axes.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{Shape, Tensor, TensorFunction};

use super::common::{arity, one};
use crate::axes::{Along, AxisChange, AxisMap, Work};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Axis `i` of the result is axis `order[i]` of `x`.
///
/// `x: [..]` -> the extents in that order, same dtype. Refuses an order that is not a permutation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// The permutation.
    pub order: SmallVec<[usize; 6]>,
}

impl Transpose {
    /// Whether `[n, .., c]` becomes `[n, c, ..]`.
    pub fn brings_channels_to_front(&self) -> bool {
        let rank = self.order.len();
        2 < rank && self.order.iter().copied().eq([0, rank - 1].into_iter().chain(1..rank - 1))
    }

    /// Whether `[n, c, ..]` becomes `[n, .., c]`.
    pub fn brings_channels_to_back(&self) -> bool {
        let rank = self.order.len();
        2 < rank && self.order.iter().copied().eq([0].into_iter().chain(2..rank).chain([1]))
    }

    fn output_shape(&self, x: &Shape) -> Shape {
        self.order.iter().map(|&axis| x[axis]).collect()
    }
}

impl Operator for Transpose {
    const NAME: &'static str = "transpose";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        let x = inputs[0];
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.shape.rank()) {
            refuse!("`order` must be a permutation of the axes of {}, got {:?}", x.shape, self.order);
        }
        Ok(one(TensorType { dtype: x.dtype, shape: self.output_shape(&x.shape) }))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let permutation = TensorFunction::Transpose(self.order.clone());
        one(Tensor::derived(permutation, inputs).expect("infer checked the permutation"))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        let mut inverse: SmallVec<[usize; 6]> = SmallVec::from_elem(0, self.order.len());
        self.order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
        Ok(smallvec![Some(backward.transpose(dy, &inverse)?)])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        AxisMap::unary(Work::Movement, output, |axis| Along::Same(self.order[axis]))
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        matches!(change, AxisChange::Tile(_)).then(|| self.clone().into())
    }

    fn reuse(&self, inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        // Moving axes of extent 1 moves no element.
        let long = self.order.iter().filter(|&&axis| inputs[0].shape[axis] != 1);
        if long.is_sorted() {
            return Reuse::Alias { offset: 0 };
        }
        // Each index of an axis that stays in front has a block of its own: a kernel may buffer it.
        let stays = self.order[0] == 0 && 1 < inputs[0].shape[0];
        if stays { Reuse::InPlace(smallvec![0]) } else { Reuse::Never }
    }
}
