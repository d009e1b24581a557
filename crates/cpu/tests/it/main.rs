//! Kernels as others see them, bytes in, bytes out. Under random parameters: what `sizes` accepts, `run` computes without
//! a panic and writes wholly. And against their definitions.

mod attention;
mod blocked;
mod bytes;
mod common;
mod fuzz;
mod guarded;
mod matmul;
mod recurrent;
mod rows;
mod winograd;
