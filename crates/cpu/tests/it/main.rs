//! Kernels through their public interface, bytes in, bytes out. Under random parameters: if `sizes` accepts them, `run`
//! must not panic and must write every byte. And against their definitions.

mod attention;
mod blocked;
mod bytes;
mod common;
mod compact;
mod counting;
mod fuzz;
mod guarded;
mod matmul;
mod movement;
mod pooling;
mod recurrent;
mod rows;
mod training;
mod volumes;
mod winograd;
