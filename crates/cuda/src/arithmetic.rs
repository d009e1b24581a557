//! [`FloatType`] and [`MathMode`]: how the operands of what a library does are stored, and how its sums may be computed.

use serde::{Deserialize, Serialize};

/// How the numbers of operands are stored. Sums are of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "their names say it")]
pub enum FloatType {
    F32,
    F16,
    Bf16,
}

impl FloatType {
    /// The bytes of one.
    pub fn size(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::Bf16 => 2,
        }
    }
}

/// How sums of products of `f32` may be computed. Products of halves are exact in an `f32`, wherever they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MathMode {
    /// As sums of products of `f32`, by whatever algorithm.
    Strict,
    /// As sums in their definition's own terms: neither Winograd's algorithm nor spectra, nor other detours.
    Exact,
    /// Operands may be rounded to eleven bits on the way into a tensor core (TF32).
    Tf32,
}

impl MathMode {
    /// What it is called, for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            MathMode::Strict => "strict",
            MathMode::Exact => "exact",
            MathMode::Tf32 => "tf32",
        }
    }
}
