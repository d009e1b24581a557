//! Readers of models: ONNX files and MXNet symbols to graphs. Strings and dynamic dimensions end here.
//!
//! - [`onnx`] reads ONNX models.
//! - [`mxnet`] reads MXNet symbols; `prestow-weights` reads their `.params`.
//!
//! ```
//! use prestow_load::onnx::{self, LoadError};
//!
//! let error = onnx::load(b"not a model", None, &onnx::Options::default()).unwrap_err();
//! assert_eq!(error, LoadError::NotOnnx);
//! ```

mod common;
pub mod mxnet;
pub mod onnx;
