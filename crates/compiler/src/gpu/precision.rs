//! [`Precision`]: `--dtype` on command lines.

use std::fmt;
use std::str::FromStr;

use lower::cuda::CudaTarget;
use serde::{Deserialize, Serialize};
use types::DType;

/// Storage between kernels, and the operands of products and convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// `f32` throughout.
    F32,
    /// `f32` in memory; tensor cores round operands to TF32.
    Tf32,
    /// IEEE half precision in memory.
    F16,
    /// bfloat16 in memory.
    Bf16,
}

impl Precision {
    /// Every precision of a GPU.
    pub const ALL: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16];

    /// The dtype in memory.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::F16 => DType::F16,
            Precision::Bf16 => DType::Bf16,
        }
    }

    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// A target with this precision.
    pub fn configure(self, target: CudaTarget) -> CudaTarget {
        let target = target.storing(self.dtype());
        if self == Precision::Tf32 { target.rounding() } else { target }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of an unsupported precision name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not supported; there are f32, tf32, f16, bf16")]
pub struct ParsePrecisionError(String);

impl FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(name: &str) -> Result<Precision, ParsePrecisionError> {
        let found = Precision::ALL.into_iter().find(|precision| precision.name() == name.trim());
        found.ok_or_else(|| ParsePrecisionError(name.into()))
    }
}
