//! CPU kernels: slices in, slices out. No graph, no plan, no model is known here.
//!
//! A [`Kernel`] is a function with its parameters. [`Kernel::sizes`] says exactly how many bytes each operand has, or
//! refuses parameters that contradict each other; [`Kernel::run`] on operands of these sizes never fails, never allocates,
//! and gives the same bits for any number of threads of a [`Pool`]: each element is computed by one task in one order.
//!
//! A new kernel is a file and a row of the table in `kernel.rs`.
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

#[cfg(target_arch = "x86_64")]
mod amx;
mod isa;
mod kernel;
mod pool;

mod blocked;
mod epilogue;
mod gemm;
mod math;
mod panels;
mod relay;
mod shared;
mod stored;
mod tile;
mod vector;
mod window;

mod arg_extreme;
mod attention;
mod bottleneck;
mod burst;
mod chain;
mod conv;
mod conv_blocked;
mod conv_transpose;
mod copy;
mod depthwise;
mod depthwise_blocked;
mod elementwise;
mod fill;
mod gather;
mod layer_norm;
mod lrn;
mod matmul;
mod pool2d;
mod pool_blocked;
mod recurrent;
mod reduce;
mod remap;
mod reorder;
mod resize;
mod softmax;
mod winograd;

pub use arg_extreme::ArgExtreme;
pub use attention::{Attention, HeadStrides, MaskStrides};
pub use bottleneck::{Front, InvertedBottleneck};
pub use burst::burst;
pub use chain::{Chain, Instruction};
pub use conv::Conv;
pub use conv_blocked::ConvBlocked;
pub use conv_transpose::ConvTranspose;
pub use copy::Copy;
pub use depthwise::DepthwiseConv;
pub use depthwise_blocked::DepthwiseBlocked;
pub use elementwise::{Elementwise, ElementwiseFn};
pub use epilogue::Epilogue;
pub use fill::Fill;
pub use gather::Gather;
pub use isa::{Isa, Level};
pub use kernel::{Args, Kernel, KernelFn, Misfit, Operand, Sizes};
pub use layer_norm::LayerNorm;
pub use lrn::Lrn;
pub use matmul::{MatMul, MatMulB};
pub use panels::Weights;
pub use pool::Pool;
pub use pool_blocked::PoolBlocked;
pub use pool2d::{Pool2d, Pool2dKind};
pub use recurrent::Recurrent;
pub use reduce::{Reduce, ReduceFn};
pub use remap::Remap;
pub use reorder::Reorder;
pub use resize::{AxisTaps, Resize};
pub use softmax::Softmax;
pub use stored::Stored;
pub use window::Window;
pub use winograd::Winograd;
