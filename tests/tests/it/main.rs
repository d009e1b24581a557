//! End-to-end tests: operators through compiler and runtime against their definitions, networks against recorded results of
//! other runtimes, executables and their commands, damaged files, and GPUs by mocks.

mod aarch64;
mod conformance;
mod cuda;
mod damaged_images;
mod executables;
mod gpu;
mod half_precision;
mod mxnet;
mod onnxruntime;
mod operators;
mod pass_results;
mod quantized;
mod reference;
mod report;
mod sources;
mod state;
mod stripes;
mod support;
mod tf32;
mod transformers;
mod weight_source;

/// An environment variable.
#[expect(clippy::disallowed_methods, reason = "switches of the test run")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
