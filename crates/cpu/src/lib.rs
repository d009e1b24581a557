//! CPU kernels behind one table, and the thread pool that runs them: slices in, slices out.
//!
//! Nothing here knows a graph or a plan. A [`Kernel`] is plain data (a plan carries it); [`Kernel::sizes`] judges its
//! fields and says how many bytes each operand has; [`Kernel::run`] does the work on slices of exactly these sizes.
//! Tensors are row-major, images NCHW, numbers little-endian `f32` unless a kernel says otherwise.
//!
//! Three promises. Nothing allocates while a kernel runs. The result is equal bit for bit for any number of threads:
//! each output element is computed by one task in a fixed order. A kernel that `sizes` accepts neither panics nor
//! touches a byte outside its operands, so a plan need not be trusted.
//!
//! | file | what lives there |
//! | --- | --- |
//! | `kernel` | the table: [`Kernel`], [`Sizes`], [`Misfit`], the checks in front of every run |
//! | `pool` | [`Pool`], the threads |
//! | `operand` | [`Args`], and the one place where bytes become shared elements |
//! | `isa` | which vector instructions are used |
//! | `math`, `epilogue`, `gemm`, `window`, `walk` | what kernels share |
//! | the others | one kernel each |
//!
//! ```
//! use prestow_cpu::{Args, Fill, Kernel, Operand, Pool};
//!
//! let pool = Pool::new(2);
//! let kernel = Kernel::Fill(Fill { elements: 3, element_size: 4, pattern: [7, 0, 0, 0, 0, 0, 0, 0] });
//! let sizes = kernel.sizes()?;
//! assert_eq!(sizes.outputs[0], 12);
//!
//! let mut bytes = [0u32; 3];
//! let inputs: [Operand; 0] = [];
//! let output: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
//! kernel.run(Args { inputs: &inputs, outputs: &mut [output], workspace: &mut [] }, &pool);
//! assert_eq!(bytes, [7, 7, 7]);
//! # Ok::<(), prestow_cpu::Misfit>(())
//! ```
#![allow(unsafe_code, reason = "vector instructions, and tasks that write disjoint parts of one output")]

mod kernel;

mod operand;
mod pool;

mod conv;
mod conv_transpose;
mod depthwise;
mod matmul;

mod lrn;
mod pool2d;
mod reduce;
mod softmax;

mod chain;
mod elementwise;

mod arg_extreme;
mod copy;
mod fill;
mod gather;
mod remap;
mod resize;

mod epilogue;
mod gemm;
mod isa;
mod math;
mod walk;
mod window;

pub use arg_extreme::ArgExtreme;
pub use chain::{Chain, Instr};
pub use conv::Conv;
pub use conv_transpose::ConvTranspose;
pub use copy::Copy;
pub use depthwise::DepthwiseConv;
pub use elementwise::{ElementOp, Elementwise};
pub use epilogue::Epilogue;
pub use fill::Fill;
pub use gather::Gather;
pub use isa::Isa;
pub use kernel::{Kernel, Misfit, Sizes};
pub use lrn::Lrn;
pub use matmul::{MatMul, Right};
pub use operand::{Args, Operand};
pub use pool::Pool;
pub use pool2d::{Pool2d, PoolKind};
pub use reduce::{Reduce, ReduceKind};
pub use remap::Remap;
pub use resize::{Resize, Taps};
pub use softmax::Softmax;
