//! [`Epilogue`]: what happens to each result of a product before it is stored.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::Unary;

use crate::{Isa, math};

/// Add a bias, add a residual, apply functions, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// One more operand: a vector along the output channels.
    pub bias: bool,
    /// One more operand, the last: a tensor of the output's shape. It may be in place.
    pub residual: bool,
    /// Functions applied in sequence.
    pub activation: SmallVec<[Unary; 2]>,
}

impl Epilogue {
    /// The sizes of its operands, in elements.
    pub(crate) fn operands(&self, channels: usize, output: Option<usize>) -> SmallVec<[Option<usize>; 2]> {
        let bias = self.bias.then_some(Some(channels));
        let residual = self.residual.then_some(output);
        bias.into_iter().chain(residual).collect()
    }

    /// Limits that limit nothing.
    pub(crate) const UNLIMITED: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

    /// The functions as limits of a result `x`, `[low, high]`: `high.min(low.max(x))` of vectors. None where they are more
    /// than that.
    pub(crate) fn limits(&self) -> Option<[f32; 2]> {
        match self.activation[..] {
            [] => Some(Epilogue::UNLIMITED),
            [Unary::Relu] => Some([0.0, f32::INFINITY]),
            [Unary::Clip { min, max }] => Some([min, max]),
            _ => None,
        }
    }

    /// Applies the functions.
    pub(crate) fn activate(&self, isa: Isa, items: &mut [f32]) {
        for &function in &self.activation {
            math::apply(isa, function, items);
        }
    }
}
