//! The CPU target: kernels of `crates/cpu` and their parameters.
//!
//! - `target` answers queries for candidates; `select` has one arm for each operator.
//! - `blocked` has the kernels for blocked layouts and the cost model of layouts; `windows` those for row-major ones.
//! - `bottleneck` fuses convolutions, `half_precision` and `pointwise` are named by their kernels.
//! - `training` has gradients and updates.
//! - `tuned` lists convolutions with several algorithms, for measurements.

mod blocked;
mod bottleneck;
mod half_precision;
mod pointwise;
mod select;
mod target;
mod training;
mod tuned;
mod windows;

pub use target::CpuTarget;
pub use tuned::{Algorithm, Layer, Tuned, layers};
