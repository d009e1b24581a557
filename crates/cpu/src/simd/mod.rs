//! SIMD: instruction sets, vectors of 16 lanes, functions on them, and storage types.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx_unit;
pub(crate) mod dot_method;
pub(crate) mod isa;
pub(crate) mod math;
pub(crate) mod storage;
pub(crate) mod vector;

pub use self::isa::{Isa, Level};
pub use self::storage::StorageType;
