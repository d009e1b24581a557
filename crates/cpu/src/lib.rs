//! CPU kernels: slices in, slices out. This crate has no graph, plan or model.
//!
//! A [`Kernel`] is a function with its parameters. [`Kernel::sizes`] gives the exact number of bytes of each operand, or
//! refuses parameters that contradict each other; [`Kernel::run`] on operands of these sizes never fails, never
//! allocates, and gives the same bits for any number of threads of a [`Pool`]: each element is computed by one task in
//! one order.
//!
//! A new kernel is a file and a row in `table.rs`.
//!
//! A folder imports from folders below it in this table and from no other (`cargo xtask tidy` checks it):
//!
//! | folder | contents |
//! | --- | --- |
//! | `ops` | products, attention, recurrence, reductions, pooling, element-wise chains |
//! | `conv` | convolutions: direct, depthwise, Winograd, inverted bottlenecks, transposed |
//! | `gemm` | the microkernel, its dispatch by instruction set, the epilogue |
//! | `movement` | copies, permutations, fills, gathers, resizing, the blocked layout |
//! | `kernel` | the contract of a kernel and the sizes of its operands |
//! | `threads` | the thread pool, phases with barriers, slices that several threads write |
//! | `simd` | instruction sets, vectors of sixteen lanes, functions on them, storage types |
//!
//! ```
//! use prestow_cpu::{Args, Fill, Kernel, Pool};
//!
//! let kernel = Kernel::Fill(Fill { elements: 3, element_size: 4, pattern: [0, 0, 128, 63, 0, 0, 0, 0] });
//! let mut out = vec![0u8; kernel.sizes().unwrap().outputs[0] as usize];
//! kernel.run(Args { inputs: &[], outputs: &mut [&mut out], workspace: &mut [] }, &Pool::new(1));
//! assert_eq!(out, 1.0f32.to_le_bytes().repeat(3));
//! ```
#![allow(unsafe_code, reason = "vector instructions, and threads that write disjoint parts of one slice")]

mod conv;
mod gemm;
mod kernel;
mod movement;
mod ops;
mod packing;
mod peak_probe;
mod simd;
mod table;
mod threads;

pub use conv::ConvUnbuffered;
pub use conv::inverted_bottleneck::{Front, InvertedBottleneck};
pub use conv::row_major::Conv;
pub use conv::transpose::ConvTranspose;
pub use conv::winograd::Winograd;
pub use conv::{
    BlockTerms, CompactConv, ConvAlgorithm, ConvBlocked, ConvDataGradient, ConvWeightGradient, DepthwiseBlocked,
    DepthwiseDataGradient, DepthwiseWeightGradient, DynamicConv, ImageLayout, PackedConv, PlainConv,
    WeightGradientRows, WeightOrder, Window, groups_of_blocks,
};
pub use gemm::{Epilogue, Weights};
pub use kernel::{Args, InvalidKernel, KernelFn, Operand, SizeMismatch, Sizes, WORKSPACE_ALIGNMENT};
pub use movement::copy::Copy;
pub use movement::fill::Fill;
pub use movement::gather::{Gather, GatherTable};
pub use movement::insert::Insert;
pub use movement::remap::Remap;
pub use movement::reorder::Reorder;
pub use movement::resize::{AxisTaps, Resize};
pub use movement::scatter_add::ScatterAdd;
pub use movement::swap_axes::SwapAxes;
pub use ops::arg_extreme::ArgExtreme;
pub use ops::attention::{Attention, HeadStrides, MaskStrides};
pub use ops::batch_norm::{BatchNormGradient, BatchNormTraining, ChannelSum, Planes};
pub use ops::chain::{Chain, Instruction};
pub use ops::cross_entropy::{LabeledRows, SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient};
pub use ops::ctc::{Ctc, CtcGradient, LabeledSequences};
pub use ops::cumulative_sum::CumulativeSum;
pub use ops::dropout::Dropout;
pub use ops::elementwise::{Elementwise, ElementwiseFn};
pub use ops::layer_norm::LayerNorm;
pub use ops::lrn::Lrn;
pub use ops::matmul::{MatMul, MatMulB};
pub use ops::pool_gradient::PoolGradient;
pub use ops::pool_with_positions::PoolWithPositions;
pub use ops::pooling_blocked::PoolBlocked;
pub use ops::pooling_volumes::PoolVolumes;
pub use ops::recurrent::Recurrent;
pub use ops::recurrent_gradient::RecurrentGradient;
pub use ops::reduce::{Reduce, ReduceFn};
pub use ops::scatter::Scatter;
pub use ops::softmax::Softmax;
pub use ops::top_k::TopK;
pub use ops::update::{Update, UpdateByFactors};
pub use ops::{Pool2d, Pool2dKind};
pub use packing::Packing;
pub use peak_probe::peak_flops_probe;
pub use simd::{Isa, Level, StorageType};
pub use table::{Kernel, KernelKind};
pub use threads::{Pool, THREADS_MAX};

// Compiled for AddressSanitizer, the kernels take minutes. All tests are then one program, so that they are compiled once.
#[cfg(all(test, one_test_program))]
extern crate self as prestow_cpu;
#[cfg(all(test, one_test_program))]
#[path = "../tests/it/main.rs"]
mod it;
