//! Formats come in here and end here: files to graphs and weights. Strings and dynamic dimensions do not get any further.
//!
//! - [`onnx`] reads ONNX models to a graph.
//! - [`weights`] reads named tensors: safetensors, NumPy `.npz`, PyTorch `.pth` and plain pickles of arrays.

pub mod onnx;
pub mod weights;
