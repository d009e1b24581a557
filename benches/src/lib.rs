//! What the benches share: `cargo xtask bench`.

pub mod onnx;
