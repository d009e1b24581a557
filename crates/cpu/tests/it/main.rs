//! Kernels under random parameters: what `sizes` accepts, `run` computes without a panic and writes wholly; those on
//! blocked channels and recurrent networks against their definitions.

mod blocked;
mod fuzz;
mod guarded;
mod recurrent;
mod winograd;
