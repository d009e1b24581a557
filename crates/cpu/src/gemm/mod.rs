//! Matrix products on registers.
//!
//! Imports go in one direction: `finish` -> `dispatch` -> `microkernel`, `bytes_avx2` and `amx` -> `tile` -> `prefetch` and `saturation` -> `operands`.
//! Everything below `finish` accumulates sums; `finish` converts and stores them.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bytes_avx2;
pub(crate) mod dispatch;
pub(crate) mod epilogue;
pub(crate) mod finish;
mod microkernel;
pub(crate) mod operands;
pub(crate) mod prefetch;
pub(crate) mod saturation;
pub(crate) mod tile;
pub(crate) mod weights;

pub use self::epilogue::Epilogue;
pub use self::weights::Weights;

#[cfg(test)]
mod tests;
