//! Everything together: operators through the compiler and the runtime against their definitions, networks against
//! onnxruntime's recorded results, executables against the commands' contract, damaged files against clear refusals.

mod bands;
mod damage;
mod executables;
mod operators;
mod passes_keep;
mod reference;
mod report;
mod support;
mod transformers;
#[path = "../../../crates/load/tests/it/wire.rs"]
#[allow(dead_code, reason = "the loader's own tests use the rest")]
mod wire;
