//! NVIDIA's driver and libraries behind safe owners: compiling CUDA C without a GPU, loading and launching kernels, cuDNN,
//! cuBLASLt, NVML and CUPTI. Knows no graph.
//!
//! [`StepCode`] is the encoding of a step in a plan: a kernel [`Launch`], a [`cudnn::CudnnPlan`], or a [`cublas::Product`].
//! [`nvrtc::Compiler`] makes a [`Cubin`] from CUDA C. [`driver`] owns contexts, memory, modules and CUDA graphs; [`Timer`] measures.
//! [`nvml`] reports memory by process, [`cupti`] records allocations. A [`DeviceDescription`] replaces a GPU at compile time.
//!
//! ```
//! use prestow_cuda::{Launch, StepCode};
//!
//! let (grid, block) = ([4, 1, 1], [256, 1, 1]);
//! let launch = Launch { entry: "relu_0".into(), grid, block, shared: 0, repeat: None, waits: false };
//! let work = StepCode::Launch(launch);
//! assert_eq!(StepCode::from_code(&work.code()), Some(work));
//! ```
#![allow(unsafe_code, reason = "libraries are found when the program runs")]

mod arithmetic;
mod cubin;
pub mod cublas;
pub mod cudnn;
pub mod cupti;
mod device_description;
pub mod driver;
mod event;
mod external;
mod library;
pub mod nvml;
pub mod nvrtc;
mod shared_memory;
mod staging;

use serde::{Deserialize, Serialize};

pub use arithmetic::{FloatType, MathMode};
pub use cubin::{Cubin, KernelResources};
pub use device_description::{
    DescriptionError, DescriptionSource, DeviceDescription, DeviceProperties, MeasuredMemory,
};
pub use event::Timer;
pub use external::{ContextGuard, ExternalBuffer, ExternalStream};
pub use library::{LibraryNotFound, LibraryPaths};
pub use shared_memory::FillChunk;
pub use staging::STAGING_CHUNK_BYTES;

/// The code of a step in a plan for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepCode {
    /// An emitted kernel.
    Launch(Launch),
    /// A cuDNN plan.
    Cudnn(cudnn::CudnnPlan),
    /// A cuBLASLt product.
    Cublas(cublas::Product),
}

impl StepCode {
    /// Encodes it for a plan.
    pub fn code(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("work is plain data")
    }

    /// Decodes it. `None` if the bytes are invalid.
    pub fn from_code(code: &[u8]) -> Option<StepCode> {
        postcard::from_bytes(code).ok()
    }
}

/// The launch of a kernel. Its parameters are pointers to the step's inputs, outputs and workspace, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The function's name.
    pub entry: String,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads per block along each axis.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// Number of launches in sequence. The index of the launch is then an additional 64-bit parameter. `None`: one launch
    /// without that parameter.
    pub repeat: Option<u32>,
    /// Whether the launch may start before the previous one ends (programmatic dependent launch). The function must wait with
    /// `griddepcontrol.wait`. Ignored before `sm_90`.
    pub waits: bool,
}
