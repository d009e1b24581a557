//! The common parts of transformers (Vaswani et al. 2017).

use ir::ValueId;
use types::{Tensor, TensorFunction};

use crate::builder::transposed;
use crate::{Builder, ZooError};

/// Queries, keys and values of one attention, `[batch, tokens, width]` each.
pub(crate) struct Heads {
    pub(crate) q: ValueId,
    pub(crate) k: ValueId,
    pub(crate) v: ValueId,
    pub(crate) heads: usize,
}

impl Heads {
    /// `softmax(q k^T / sqrt(width of a head) + mask) v`, heads concatenated: `[batch, tokens, width]`.
    pub(crate) fn attend(&self, b: &mut Builder, mask: Option<ValueId>, name: &str) -> Result<ValueId, ZooError> {
        let shape = b.shape(self.q).clone();
        let (batch, tokens, width) = (shape[0], shape[1], shape[2]);
        let [q, k, v] = [(self.q, "q"), (self.k, "k"), (self.v, "v")].map(|(x, part)| {
            let x = b.reshape(x, [batch, tokens, self.heads, width / self.heads], &format!("{name}.{part}.heads"))?;
            let order: &[usize] = if part == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
            b.transpose(x, order, &format!("{name}.{part}.transpose"))
        });
        let scores = b.matmul(q?, k?, &format!("{name}.scores"))?;
        let scale = ((width / self.heads) as f32).sqrt().recip();
        let mut scores = b.times(scores, scale, &format!("{name}.scale"))?;
        if let Some(mask) = mask {
            scores = b.add(scores, mask, &format!("{name}.mask"))?;
        }
        let weights = b.softmax(scores, &format!("{name}.softmax"))?;
        let x = b.matmul(weights, v?, &format!("{name}.context"))?;
        let x = b.transpose(x, &[0, 2, 1, 3], &format!("{name}.transpose"))?;
        b.reshape(x, [batch, tokens, width], &format!("{name}.join"))
    }
}

/// Added to scores that are masked out: dominates every `f32` score, and the sum of two is finite.
pub(crate) const NEVER: f32 = -1e30;

/// Queries, keys and values of `x`, whose weights are the thirds of one matrix's rows, `[3 width, width]`, and of one
/// bias. They are products of their own, so that each is where attention reads it.
pub(crate) fn projections(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<[ValueId; 3], ZooError> {
    let width = bias.elements() / 3;
    let mut one = |part: usize, letter: &str| {
        let name = format!("{name}.{letter}");
        let rows = |tensor: &Tensor| {
            let third = TensorFunction::Rows { first: part * width, count: width };
            Tensor::derived(third, &[tensor]).expect("`ParameterSource::take` gives f32 of the shape")
        };
        let weight = b.graph.add_weight(&format!("{name}.weight"), transposed(&rows(weight)));
        let bias = b.graph.add_weight(&format!("{name}.bias"), rows(bias));
        b.linear_with(x, weight, bias, &name)
    };
    Ok([one(0, "q")?, one(1, "k")?, one(2, "v")?])
}
