//! [`Epilogue`]: arithmetic on each result of a product before it is stored.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::pointwise::{QuantizedSum, Unary};

use crate::kernel::InvalidKernel;
use crate::simd::vector::Vector;
use crate::simd::{Isa, StorageType, math};

/// Multiply by a scale, add a bias, add a residual, apply functions, in this order. With a quantized sum, the residual is
/// added last, to the rounded result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// One more operand, for int8 sums only: a vector along the output channels.
    pub scale: bool,
    /// One more operand: a vector along the output channels.
    pub bias: bool,
    /// One more operand, the last: a tensor of the output's shape. It may be in place.
    pub residual: bool,
    /// How a residual of bytes is added to the bytes of the result, for int8 sums only.
    pub quantized_sum: Option<QuantizedSum>,
    /// Functions applied in sequence.
    pub activation: SmallVec<[Unary; 2]>,
}

impl Epilogue {
    /// Refuses a scale and a quantized sum, which are for int8 sums only.
    pub(crate) fn check_unscaled(&self) -> Result<(), InvalidKernel> {
        if self.scale || self.quantized_sum.is_some() {
            return Err(InvalidKernel("a scale and a quantized sum require u8 operands"));
        }
        Ok(())
    }

    /// Refuses a residual of int8 sums.
    pub(crate) fn check_no_int8_residual(&self, operands: StorageType) -> Result<(), InvalidKernel> {
        if self.quantized_sum.is_some() || (operands.is_byte() && self.residual) {
            return Err(InvalidKernel("int8 operands must have no residual"));
        }
        Ok(())
    }

    /// Index of the bias among the operands, if present.
    pub(crate) fn bias_at(&self) -> usize {
        2 + usize::from(self.scale)
    }

    /// Index of the residual among the operands, if present.
    pub(crate) fn residual_at(&self) -> usize {
        self.bias_at() + usize::from(self.bias)
    }

    /// The sizes of its operands, in elements.
    pub(crate) fn operands(&self, channels: usize, output: Option<usize>) -> SmallVec<[Option<usize>; 3]> {
        let vectors = [self.scale, self.bias].into_iter().filter(|&is_there| is_there).map(|_| Some(channels));
        vectors.chain(self.residual.then_some(output)).collect()
    }

    /// Sizes of its operands in bytes, given the bytes of the output. Scale and bias are always `f32`.
    pub(crate) fn operand_bytes(&self, channels: Option<usize>, output: Option<usize>) -> SmallVec<[Option<usize>; 3]> {
        let vector = channels.and_then(|channels| channels.checked_mul(4));
        let vectors = [self.scale, self.bias].into_iter().filter(|&is_there| is_there).map(|_| vector);
        vectors.chain(self.residual.then_some(output)).collect()
    }

    /// Bounds that every number satisfies.
    pub(crate) const UNLIMITED: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

    /// The functions as bounds `[low, high]`, neither NaN, for `x.at_least(low).at_most(high)`. `None` if a clamp does
    /// not express them.
    pub(crate) fn limits(&self) -> Option<[f32; 2]> {
        match self.activation[..] {
            [] => Some(Epilogue::UNLIMITED),
            [Unary::Relu] => Some([0.0, f32::INFINITY]),
            [Unary::Clip { min, max }] => Some(limits(min, max)),
            _ => None,
        }
    }

    /// The leading clamp as bounds, if there is one, and the functions after it.
    pub(crate) fn limits_and_functions(&self) -> (Option<[f32; 2]>, &[Unary]) {
        match *self.activation {
            [Unary::Relu, ref rest @ ..] => (Some([0.0, f32::INFINITY]), rest),
            [Unary::Clip { min, max }, ref rest @ ..] => (Some(limits(min, max)), rest),
            ref functions => (None, functions),
        }
    }

    /// Applies the functions.
    pub(crate) fn activate(&self, isa: Isa, items: &mut [f32]) {
        for &function in &self.activation {
            math::apply(isa, function, items);
        }
    }
}

/// Bounds without NaN: a NaN bound is none.
fn limits(low: f32, high: f32) -> [f32; 2] {
    let [least, most] = Epilogue::UNLIMITED;
    [if low.is_nan() { least } else { low }, if high.is_nan() { most } else { high }]
}

/// Bounds that also are those of a storage type of bytes.
pub(crate) fn limits_of_bytes([low, high]: [f32; 2], stored: StorageType) -> [f32; 2] {
    let [least, most] = if stored == StorageType::I8 { [-128.0, 127.0] } else { [0.0, 255.0] };
    [low.clamp(least, most), high.clamp(least, most)]
}

/// The sum of two vectors of quantized values before it is limited and rounded.
#[inline(always)]
pub(crate) fn quantized_sum<V: Vector>(sum: &QuantizedSum, own: V, residual: V) -> V {
    own.mul_add(V::splat(sum.own), residual.mul_add(V::splat(sum.residual), V::splat(sum.shift)))
}
