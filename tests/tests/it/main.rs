//! Everything together: operators through the compiler and the runtime against their definitions, networks against
//! onnxruntime's recorded results, executables against the commands' contract, damaged files against clear refusals.

mod aarch64;
mod conformance;
mod cuda;
mod damage;
mod executables;
mod gpu;
mod gpu_ceilings;
mod gpu_cublas;
mod gpu_cudnn;
mod gpu_cupti;
mod gpu_faults;
mod gpu_nvml;
mod gpu_operators;
mod gpu_peers;
mod gpu_shared;
mod gpu_tools;
mod gpu_tune;
mod halves;
mod mxnet;
mod onnxruntime;
mod operators;
mod passes_keep;
mod quantized;
mod reference;
mod report;
mod state;
mod stripes;
mod support;
mod tf32;
mod transformers;

/// A variable of the environment. Tests are the edge where it is read.
#[expect(clippy::disallowed_methods, reason = "switches of the test run")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
