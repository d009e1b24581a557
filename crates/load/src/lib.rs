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

use std::fmt;

/// A node that cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// The node's name, or operator and position if the node has no name.
    pub node: String,
    /// The operator, with its domain in front unless that is the default one.
    pub operator: String,
    /// The version of the ONNX operator set; `None` for MXNet, and if the model does not import the domain.
    pub opset: Option<i64>,
    /// Why the node is not supported.
    pub reason: String,
}

impl fmt::Display for UnsupportedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnsupportedNode { node, operator, opset, reason } = self;
        match opset {
            Some(opset) => write!(f, "node `{node}` (operator `{operator}`, opset {opset}): {reason}"),
            None => write!(f, "node `{node}` (operator `{operator}`): {reason}"),
        }
    }
}

/// One item a line, so that an error lists all of them.
fn lines(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Names for a message.
fn quoted(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
