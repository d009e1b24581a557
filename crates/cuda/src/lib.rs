//! CUDA kernels without a graph: how they are launched, and how CUDA C becomes machine code on a machine without a GPU.
//!
//! [`StepCode`] is what a step does, as plans carry it: a [`Launch`] says which function is called and for how many threads, a
//! [`cudnn::CudnnPlan`] what cuDNN decided where there was no GPU, and a [`cublas::Product`] what cuBLASLt is to do.
//! [`nvrtc::Compiler`] finds NVIDIA's runtime compiler where pip or a toolkit put it, gives a [`Cubin`], and tells what its
//! functions take ([`KernelResources`]). [`driver`] has the owners of what a GPU lends, [`Timer`] its clock, [`nvml`] tells who holds its memory,
//! [`cupti`] what is asked of a driver, and [`DeviceDescription`] are what is known of a GPU that is not here.
//!
//! ```
//! use prestow_cuda::{Launch, StepCode};
//!
//! let work = StepCode::Launch(Launch { entry: "relu_0".into(), grid: [4, 1, 1], block: [256, 1, 1], repeat: None });
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
pub use staging::STAGING_CHUNK_BYTES;

/// What a step of a plan for a GPU does, as the bytes that plans carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepCode {
    /// A function of the plan's own code.
    Launch(Launch),
    /// A plan of cuDNN's.
    Cudnn(cudnn::CudnnPlan),
    /// A product of cuBLASLt's.
    Cublas(cublas::Product),
}

impl StepCode {
    /// The bytes that plans carry.
    pub fn code(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("work is plain data")
    }

    /// What such bytes say; none where they are no work.
    pub fn from_code(code: &[u8]) -> Option<StepCode> {
        postcard::from_bytes(code).ok()
    }
}

/// How a function is launched. Its parameters are pointers: to a step's inputs, then to its outputs, then to its workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Its name.
    pub entry: String,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// So many times, one after the other, with the number of the launch, from 0 on, as one more parameter of 64 bits. Once
    /// and without it where there is none.
    pub repeat: Option<u32>,
}
