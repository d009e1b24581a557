//! End-to-end tests: operators through compiler and runtime against their definitions, networks against recorded results of
//! other runtimes, executables and their commands, damaged files, and GPUs by mocks.

mod aarch64;
mod benchmarks;
mod conformance;
mod cuda;
mod damaged_images;
mod dlbs;
mod executables;
mod experiments;
mod faults;
mod generated;
mod gpu;
mod half_precision;
mod hostile;
mod mxnet;
mod onnxruntime;
mod operators;
mod optimizers;
mod pass_results;
mod quantized;
mod reference;
mod report;
mod resident;
mod sandbox;
mod separate_weights;
mod sources;
mod state;
mod stored_weights;
mod stripes;
mod support;
mod tf32;
mod tied_weights;
mod training;
mod training_options;
mod training_step;
mod transformers;
mod weight_source;
mod weights_daemon;

/// An environment variable.
#[expect(clippy::disallowed_methods, reason = "switches of the test run")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
