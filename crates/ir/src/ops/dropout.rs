//! [`Dropout`]: zeros at random places.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use types::{DType, Philox, Tensor};

use super::common::{arity, f32_only, from_f64, one};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work, same_axes};
use crate::op::{Op, Operator, Refusal, Reuse, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// Replaces elements by 0 with probability `rate`, and multiplies the others by `1 / (1 - rate)`.
///
/// `x: [..]` of `f32`, `key: [2]` of `i64`, a seed and the number of the step -> the type of `x`. The element at row-major
/// position `i` is dropped if number `i % 4` of block `i / 4` of [`Philox`] is below [`Philox::threshold`]. So the gradient
/// is the same operator with the same key, and no mask is stored. Refuses: a rate outside `[0, 1)`, 2^34 elements or more.
/// Source: Srivastava et al. 2014, inverted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability of a zero.
    pub rate: f32,
    /// The stream of random numbers; each dropout of a model has its own.
    pub stream: u32,
}

impl Operator for Dropout {
    const NAME: &'static str = "dropout";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 2)?;
        f32_only(&inputs[..1])?;
        let key = TensorType::new(DType::I64, [2]);
        if *inputs[1] != key {
            refuse!("the key must be {key}, a seed and a step, got {}", inputs[1]);
        }
        if !(0.0..1.0).contains(&self.rate) {
            refuse!("rate must be in [0, 1), got {}", self.rate);
        }
        if 1 << 34 <= inputs[0].shape.elements() as u64 {
            refuse!("the operand must have less than 2^34 elements, got shape {}", inputs[0].shape);
        }
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let (x, key) = (inputs[0], inputs[1].to_i64());
        let philox = Philox { seed: key[0] as u64, step: key[1] as u64, stream: self.stream };
        let (threshold, scale) = (Philox::threshold(self.rate), f64::from(1.0 / (1.0 - self.rate)));
        let mut items = x.to_f64();
        for (block, items) in items.chunks_mut(Philox::BLOCK).enumerate() {
            for (item, bits) in items.iter_mut().zip(philox.block(block as u32)) {
                *item = if bits < threshold { 0.0 } else { *item * scale };
            }
        }
        one(from_f64(x.shape().clone(), x.dtype(), items))
    }

    fn gradient(&self, backward: &mut Backward, outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        let Some(dy) = outputs[0] else { return Ok(backward.none()) };
        // The same elements are dropped: the mask is computed again from the key.
        let dx = backward.add(self.clone(), &[dy, backward.operand(1)])?;
        Ok(smallvec![Some(dx), None])
    }

    fn axes(&self, _inputs: &[&TensorType], output: &TensorType) -> AxisMap {
        // Not elementwise: which elements are dropped depends on their position.
        let rank = output.shape.rank();
        let key: OperandAxes = std::iter::repeat_n(Along::Broadcast, rank).collect();
        AxisMap { work: Work::Arithmetic, operands: [same_axes(rank), key].into_iter().collect() }
    }

    fn with_axes(&self, _change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        None
    }

    fn reuse(&self, _inputs: &[&TensorType], _output: &TensorType) -> Reuse {
        Reuse::InPlace(smallvec![0])
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        inputs[0].shape.elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use types::Shape;

    use super::*;

    #[test]
    fn dropout_keeps_the_mean_and_repeats_with_its_key() {
        let op = Dropout { rate: 0.25, stream: 5 };
        let x = Tensor::full(Shape::from([4097]), 3.0f32);
        let run = |seed: i64, step: i64, op: &Dropout| op.eval(&[&x, &Tensor::vector(vec![seed, step])])[0].to_f64();
        let y = run(1, 2, &op);
        assert!(y.iter().all(|&item| item == 0.0 || item == 4.0));
        assert!((y.iter().sum::<f64>() / 4097.0 - 3.0).abs() < 0.1);
        assert_eq!(y, run(1, 2, &op));
        for other in [run(2, 2, &op), run(1, 3, &op), run(1, 2, &Dropout { stream: 6, ..op })] {
            assert_ne!(y, other);
        }
    }
}
