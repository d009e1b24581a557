//! Kernels under random parameters: what `sizes` accepts, `run` computes without a panic and writes wholly.

mod fuzz;
mod winograd;
