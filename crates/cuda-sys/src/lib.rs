//! Tables of NVIDIA's libraries, as bindgen writes them: cuBLASLt, cuDNN's graph API, CUPTI, NVML and NCCL.
//!
//! Nothing here is written by hand but this page: `cargo xtask bindgen` makes the files from the headers in pip's packages,
//! and each says of which versions. Nothing is linked: a table is filled from a library that is found when the program runs.
//! A function that the library lacks is an `Err` in its field, so that whoever needs it can say so; the methods of the same
//! names panic there, and are not used. Enums are numbers with names, because a newer library knows more of them.
//!
//! ```
//! // SAFETY: there is no such library, so that none of its code runs.
//! let table = unsafe { prestow_cuda_sys::cudnn::Cudnn::new("/nowhere/libcudnn.so.9") };
//! assert!(table.is_err());
//! ```
#![allow(unsafe_code, reason = "tables of functions of C libraries")]

/// cuBLASLt: products of matrices.
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, reason = "generated")]
pub mod cublaslt;
/// cuDNN's graph API, and its handles.
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, reason = "generated")]
pub mod cudnn;
/// CUPTI: what a driver was asked for.
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, reason = "generated")]
pub mod cupti;
/// NCCL: operations of several devices together.
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, reason = "generated")]
pub mod nccl;
/// NVML: what devices say of their memory.
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, reason = "generated")]
pub mod nvml;
