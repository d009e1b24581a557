//! CUDA kernels without a graph: how they are launched, and how CUDA C becomes machine code on a machine without a GPU.
//!
//! [`Work`] is what a step does, as plans carry it: a [`Launch`] says which function is called and for how many threads, a
//! [`cudnn::Planned`] what cuDNN decided where there was no GPU, and a [`cublas::Product`] what cuBLASLt is to do.
//! [`nvrtc::Compiler`] finds NVIDIA's runtime compiler where pip or a toolkit put it, gives a [`Cubin`], and tells what its
//! functions take ([`Resources`]). [`driver`] has the owners of what a GPU lends, [`Timer`] its clock, [`nvml`] tells who holds its memory,
//! [`cupti`] what is asked of a driver, and [`Facts`] are what is known of a GPU that is not here.
//!
//! ```
//! use prestow_cuda::{Launch, Work};
//!
//! let work = Work::Launch(Launch { entry: "relu_0".into(), grid: [4, 1, 1], block: [256, 1, 1], turns: None });
//! assert_eq!(Work::from_code(&work.code()), Some(work));
//! ```
#![allow(unsafe_code, reason = "libraries are found when the program runs")]

mod cubin;
pub mod cublas;
pub mod cudnn;
pub mod cupti;
pub mod driver;
mod event;
mod facts;
mod library;
mod number;
pub mod nvml;
pub mod nvrtc;
mod other;
mod staging;

use serde::{Deserialize, Serialize};

pub use cubin::{Cubin, Resources};
pub use event::Timer;
pub use facts::{Facts, FactsError, Measured, Properties, Source};
pub use library::{NotFound, Places};
pub use number::{Math, Number};
pub use other::{Kept, OtherMemory, OtherStream};
pub use staging::HALF;

/// What a step of a plan for a GPU does, as the bytes that plans carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A function of the plan's own code.
    Launch(Launch),
    /// A plan of cuDNN's.
    Cudnn(cudnn::Planned),
    /// A product of cuBLASLt's.
    Cublas(cublas::Product),
}

impl Work {
    /// The bytes that plans carry.
    pub fn code(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("work is plain data")
    }

    /// What such bytes say; none where they are no work.
    pub fn from_code(code: &[u8]) -> Option<Work> {
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
    pub turns: Option<u32>,
}
