//! The CUDA target: each node becomes kernels in CUDA C, with all extents known to the compiler, or a library call.
//!
//! The package `cuda-kernels` has the templates that kernels share. Here, each node becomes one `extern "C"` function that
//! calls a template with its extents. [`assemble`] joins the functions of plans into one source, equal texts once, and
//! writes into each step a [`StepCode`](cuda_driver::StepCode): a function with its launch, a cuDNN engine, or a cuBLASLt product.
//! At that time the operands have addresses, so it is known how many of their bytes one instruction can copy.
//!
//! A function's parameters are pointers to the step's inputs, then to its outputs and its workspace, in this order, and the
//! number of the launch if a step has several.
//!
//! - `target` answers queries for candidates; `select` has one arm for each operator; `layout` models the cost of layouts.
//! - `cudnn_conv` and `cublas_matmul` are the libraries' calls; `times` models how long these and emitted kernels take.
//! - `emit` has kernels without names, `c_source` their expressions, `tiling` the tiles of products and split-K.
//! - `movement`, `pointwise`, `recurrent`, `reduction`, `windows` emit the kernels; `peaks` those that measure a GPU.
//! - `recurrent_gradient`, `training`, `update`, `window_gradients` emit those of training steps.

mod assemble;
mod c_source;
mod cublas_matmul;
mod cudnn_conv;
mod emit;
mod layout;
mod movement;
mod peaks;
mod pointwise;
mod recurrent;
mod recurrent_gradient;
mod reduction;
mod select;
mod target;
mod tiling;
mod times;
mod training;
mod update;
mod window_gradients;
mod windows;

pub use assemble::{Entry, Source, assemble, kernel_digest, library_layer, library_work};
pub use cudnn_conv::WORKSPACE_MAX;
pub use emit::THREADS;
pub use peaks::{COPY, COPY_BLOCK_BYTES, PEAK_KERNELS, PeakKernel, peak_kernels};
pub use select::is_library_taken;
pub use target::{Cublas, CudaTarget, KernelOrigin};

/// What a step's kernel is called where it is a convolution of cuDNN's.
pub const CUDNN_CONV: &str = "cudnn_conv";

/// What a step's kernel is called where it is a product of cuBLASLt's.
pub const CUBLAS_PRODUCT: &str = "cublaslt_product";

/// What steps' kernels are called where a convolution is emitted.
pub const EMITTED_CONVS: [&str; 2] = ["cuda_conv", "cuda_conv_each"];

/// What steps' kernels are called where a product is emitted.
pub const EMITTED_PRODUCTS: [&str; 1] = ["cuda_product"];
