//! [`Attention`]: scaled dot-product attention.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{HeadOrder, Shape, Tensor, broadcast};

use super::common::{arity, broadcast_strides, f32_or_half, for_each_index, from_f64, one, position, product};
use crate::axes::{Along, AxisChange, AxisMap, OperandAxes, Work};
use crate::op::{Op, Operator, Refusal, TensorType, refuse};
use crate::{Backward, Gradients, ValueId};

/// `softmax(q k' * scale + mask) v` for each batch and head, the softmax over the keys.
///
/// `q: [batch, heads, queries, width]`, `k: [batch, heads, keys, width]`, `v: [batch, heads, keys, value_width]`, each in
/// its own order, then, if present, a `mask` that broadcasts to `[batch, heads, queries, keys]` -> `[batch,
/// heads, queries, value_width]` in the order of `result`, all `f32`. Made by `match_attention`. Refuses: other ranks than 4,
/// extents that differ, a mask that does not broadcast. Source: Vaswani et al. 2017.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// The factor of the scores.
    pub scale: f32,
    /// The order of queries, keys and values.
    pub order: [HeadOrder; 3],
    /// The order of the result.
    pub result: HeadOrder,
    /// Whether a mask is added to the scores.
    pub mask: bool,
}

/// The extents of an attention.
struct Extents {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
}

impl Attention {
    fn extents(&self, shapes: [&Shape; 3]) -> Result<Extents, Refusal> {
        let mut sorted = [[0; 4]; 3];
        for ((sorted, shape), order) in sorted.iter_mut().zip(shapes).zip(self.order) {
            let Ok(extents) = <[usize; 4]>::try_from(&shape[..]) else {
                refuse!("queries, keys and values must have rank 4, got {shape}");
            };
            *sorted = order.sorted(extents);
        }
        let [[batch, heads, queries, width], k, [.., keys, value_width]] = sorted;
        if k != [batch, heads, keys, width] || sorted[2][..2] != [batch, heads] {
            refuse!(
                "batch, heads, keys and width must agree, got queries {}, keys {} and values {}",
                shapes[0],
                shapes[1],
                shapes[2]
            );
        }
        Ok(Extents { batch, heads, queries, keys, width, value_width })
    }
}

impl Extents {
    fn scores(&self) -> Shape {
        Shape::from([self.batch, self.heads, self.queries, self.keys])
    }
}

impl Operator for Attention {
    const NAME: &'static str = "attention";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 3 + usize::from(self.mask))?;
        f32_or_half(inputs)?;
        let extents = self.extents([0, 1, 2].map(|ix| &inputs[ix].shape))?;
        let scores = extents.scores();
        if let Some(mask) = inputs.get(3)
            && broadcast(&mask.shape, &scores).ok().as_ref() != Some(&scores)
        {
            refuse!("mask must broadcast to scores of shape {scores}, got {}", mask.shape);
        }
        let shape = self.result.sorted([extents.batch, extents.heads, extents.queries, extents.value_width]);
        Ok(one(TensorType::new(inputs[0].dtype, shape)))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let extents = self.extents([0, 1, 2].map(|ix| inputs[ix].shape())).expect("infer refuses");
        let Extents { batch, heads, queries, keys, width, value_width } = extents;
        // Strides of batch, head, token and element.
        let strides = [0, 1, 2].map(|ix| {
            let own = inputs[ix].shape().row_major_strides();
            self.order[ix].sorted([own[0], own[1], own[2], own[3]])
        });
        let [q, k, v] = [0, 1, 2].map(|ix| inputs[ix].to_f64());
        let mask = inputs.get(3).map(|mask| (mask.to_f64(), broadcast_strides(mask.shape(), &extents.scores())));
        let shape = Shape::from(self.result.sorted([batch, heads, queries, value_width]));
        let own = shape.row_major_strides();
        let out_strides = self.result.sorted([own[0], own[1], own[2], own[3]]);
        let mut out = vec![0.0; shape.elements()];
        for_each_index(&[batch, heads, queries], |index| {
            let [b, h, query] = [index[0], index[1], index[2]];
            let score = |key: usize| {
                let product =
                    |i: usize| q[position(&[b, h, query, i], &strides[0])] * k[position(&[b, h, key, i], &strides[1])];
                let sum = (0..width).map(product).sum::<f64>() * f64::from(self.scale);
                sum + mask.as_ref().map_or(0.0, |(mask, strides)| mask[position(&[b, h, query, key], strides)])
            };
            let mut weights: Vec<f64> = (0..keys).map(score).collect();
            let top = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            weights.iter_mut().for_each(|weight| *weight = (*weight - top).exp());
            let sum: f64 = weights.iter().sum();
            for i in 0..value_width {
                let term = |key: usize| weights[key] / sum * v[position(&[b, h, key, i], &strides[2])];
                out[position(&[b, h, query, i], &out_strides)] = (0..keys).map(term).sum();
            }
        });
        one(from_f64(shape, inputs[0].dtype(), out))
    }

    fn gradient(&self, backward: &mut Backward, _outputs: &[Option<ValueId>]) -> Result<Gradients, Refusal> {
        backward.refuse_fused()
    }

    fn axes(&self, inputs: &[&TensorType], _output: &TensorType) -> AxisMap {
        // By logical axis (batch, head, token, element): the position in a tensor of some order, and back.
        let positions = |order: HeadOrder| order.sorted([0, 1, 2, 3]);
        let logical = positions(self.result);
        let operand = |ix: usize| {
            let own = positions(self.order[ix]);
            let along = |axis: usize| match (ix, logical[axis]) {
                // A query's result depends on all keys and values of its head, an element of it on one column of values.
                (0, 3) | (1, 2 | 3) | (2, 2) => Along::Broadcast,
                (_, axis) => Along::Same(own[axis]),
            };
            (0..4).map(along).collect::<OperandAxes>()
        };
        let mut operands: SmallVec<[OperandAxes; 4]> = (0..3).map(operand).collect();
        if let Some(mask) = inputs.get(3) {
            let missing = 4 - mask.shape.rank();
            let along = |axis: usize| match logical[axis].checked_sub(missing) {
                Some(own) if logical[axis] != 3 && mask.shape[own] != 1 => Along::Same(own),
                _ => Along::Broadcast,
            };
            operands.push((0..4).map(along).collect());
        }
        AxisMap { work: Work::Arithmetic, operands }
    }

    fn with_axes(&self, change: AxisChange, _inputs: &[&TensorType], _output: &TensorType) -> Option<Op> {
        let AxisChange::Tile(tile) = change else { return None };
        // An element of the result is a sum over tokens for one element of values: those are not cut.
        (self.result.sorted([0, 1, 2, 3])[tile.axis] != 3).then(|| self.clone().into())
    }

    fn flops(&self, inputs: &[&TensorType], _outputs: &[&TensorType]) -> u64 {
        let extents = self.extents([0, 1, 2].map(|ix| &inputs[ix].shape)).expect("infer refuses");
        // Two products, and scale, mask, maximum, exponential and sum of the scores.
        let each = 2 * extents.width + 2 * extents.value_width + 5;
        product([extents.scores().elements(), each])
    }
}

#[cfg(test)]
mod tests {
    use types::DType;

    use super::*;
    use HeadOrder::{HeadsFirst, TokensFirst};

    #[test]
    fn query_selects_the_value_of_its_key() {
        // Two heads of two keys: the first query matches the second key, the second query matches both.
        let q = Tensor::new(Shape::from([1, 2, 2, 1]), vec![9.0f32, 9.0, 0.0, 0.0]).unwrap();
        let k = Tensor::new(Shape::from([1, 2, 2, 1]), vec![-9.0f32, 9.0, -9.0, 9.0]).unwrap();
        let v = Tensor::new(Shape::from([1, 2, 2, 1]), vec![1.0f32, 3.0, 10.0, 30.0]).unwrap();
        let op =
            Attention { scale: 2.0, order: [TokensFirst, HeadsFirst, HeadsFirst], result: HeadsFirst, mask: false };
        let types = [&q, &k, &v].map(TensorType::of);
        assert_eq!(op.infer(&types.each_ref()).unwrap()[0].shape, Shape::from([1, 2, 2, 1]));
        assert_eq!(op.eval(&[&q, &k, &v])[0].to_f64(), [3.0, 2.0, 30.0, 20.0]);
        let op = Attention { result: TokensFirst, ..op };
        assert_eq!(op.eval(&[&q, &k, &v])[0].to_f64(), [3.0, 30.0, 2.0, 20.0]);
        // A masked key has weight 0.
        let mask = Tensor::new(Shape::from([2]), vec![0.0, f32::NEG_INFINITY]).unwrap();
        let op = Attention { mask: true, ..op };
        assert_eq!(op.eval(&[&q, &k, &v, &mask])[0].to_f64(), [1.0, 10.0, 1.0, 10.0]);
    }

    #[test]
    fn operands_with_other_extents_are_refused() {
        let ty = |shape: &[usize]| TensorType::new(DType::F32, Shape::from(shape));
        let plain = Attention { scale: 1.0, order: [HeadsFirst; 3], result: HeadsFirst, mask: false };
        let q = ty(&[2, 3, 5, 8]);
        for (k, v) in
            [(&[2, 3, 7, 4][..], &[2, 3, 7, 6][..]), (&[2, 3, 7, 8], &[2, 3, 6, 6]), (&[2, 7, 8], &[2, 3, 7, 6])]
        {
            assert!(plain.infer(&[&q, &ty(k), &ty(v)]).is_err());
        }
        let (k, v) = (ty(&[2, 3, 7, 8]), ty(&[2, 3, 7, 6]));
        let masked = Attention { mask: true, ..plain };
        assert!(masked.infer(&[&q, &k, &v, &ty(&[5, 8])]).is_err());
        assert!(masked.infer(&[&q, &k, &v, &ty(&[4, 1, 1, 7])]).is_err());
        assert_eq!(masked.infer(&[&q, &k, &v, &ty(&[2, 1, 1, 7])]).unwrap()[0], ty(&[2, 3, 5, 6]));
    }
}
