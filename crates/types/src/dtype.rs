//! [`DType`]: the type of one element of a tensor.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum DType {
    F32,
    F64,
    F16,
    Bf16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype, in the order of declaration.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ];

    /// The size of one element.
    pub fn size(self) -> Bytes {
        Bytes(match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        })
    }

    /// The short name: `f32`, `i64`, `bool`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
        }
    }

    /// Whether this is one of the four floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
    }

    /// Whether this is a 16-bit float.
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16)
    }

    /// Whether this is a signed or unsigned integer; `bool` is not one.
    pub fn is_integer(self) -> bool {
        !self.is_float() && self != DType::Bool
    }

    /// The least and the greatest integer of `u8` and `i8`, to which stored results saturate.
    pub fn byte_limits(self) -> Option<[f32; 2]> {
        match self {
            DType::U8 => Some([0.0, 255.0]),
            DType::I8 => Some([-128.0, 127.0]),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(name: &str) -> Result<DType, String> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| format!("`{name}` is not a dtype"))
    }
}
