//! [`FloatType`] and [`MathMode`]: storage and arithmetic of library calls.

use serde::{Deserialize, Serialize};

/// The data type of operands. Accumulators are `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "their names say it")]
pub enum FloatType {
    F32,
    F16,
    Bf16,
}

impl FloatType {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::Bf16 => 2,
        }
    }
}

/// The permitted arithmetic for `f32` operands. Products of half-precision operands are always exact in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MathMode {
    /// `f32` products and sums, by any algorithm.
    Strict,
    /// `f32` products and sums of the definition: neither Winograd's algorithm nor FFT.
    Exact,
    /// Tensor cores may round operands to eleven bits (TF32).
    Tf32,
}

impl MathMode {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            MathMode::Strict => "strict",
            MathMode::Exact => "exact",
            MathMode::Tf32 => "tf32",
        }
    }
}
