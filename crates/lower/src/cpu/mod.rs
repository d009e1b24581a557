//! The CPU target: kernels of `crates/cpu` and their parameters.
//!
//! - `target` answers queries for candidates; `select` has one arm for each operator.
//! - `blocked` has the kernels for blocked layouts, `windows` those for row-major ones.
//! - `costs` lists the candidates of a node in a layout with their times: those that `tuned` has measured, otherwise those that
//!   `times` models.
//! - `bottleneck` fuses convolutions, `half_precision` and `pointwise` are named by their kernels.
//! - `training` has gradients and updates.

mod blocked;
mod bottleneck;
mod channel_moves;
mod costs;
mod half_precision;
mod pointwise;
mod select;
mod target;
mod times;
mod training;
mod tuned;
mod windows;

pub use target::CpuTarget;
pub use times::{Times, Workload};
pub use tuned::{Layer, Tuned, layers};
