//! Examples of prestow as a library. Each is one file:
//!
//! | example | shows |
//! | --- | --- |
//! | `compile_onnx.rs` | an ONNX file compiled and run in process |
//! | `embed.rs` | a session as a part of a program: no allocation in a run, and a report of its memory |
//! | `arena_csv.rs` | the memory planner alone, on a table of buffers |
//! | `external_stream.rs` | a compiled model on a `cust` stream and buffers of the caller (package `prestow-cust`) |
//!
//! `cargo run --release -p prestow-examples --example embed` runs one.
