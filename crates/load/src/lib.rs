//! Formats come in here and end here: files to graphs and weights. Strings and dynamic dimensions do not get any further.
//!
//! - [`onnx`] reads ONNX models to a graph.
//! - [`mxnet`] reads MXNet's symbols to a graph.
//! - [`weights`] reads named tensors: safetensors, NumPy `.npz`, PyTorch `.pth`, MXNet's `.params` and plain pickles of arrays.
//!
//! ```
//! use prestow_load::onnx::{self, LoadError};
//! use prestow_load::weights;
//! use types::{Shape, Tensor, npy};
//!
//! let error = onnx::load(b"not a model", None, &onnx::Options::default()).unwrap_err();
//! assert_eq!(error, LoadError::NotOnnx);
//!
//! // One array of NumPy's is a file with one tensor, named after the file.
//! let bias = Tensor::new(Shape::from([2]), vec![0.5f32, -0.5]).unwrap();
//! let tensors = weights::read("bias.npy", &npy::write(&bias)).unwrap();
//! assert_eq!(tensors["bias"], bias);
//! ```

mod build;
pub mod mxnet;
pub mod onnx;
pub mod weights;
