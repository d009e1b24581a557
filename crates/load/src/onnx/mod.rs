//! ONNX models to graphs. Strings, dynamic dimensions, operator versions and shape arithmetic end here.
//!
//! [`load`] reads the file (`proto`, `model`, `tensor`), binds what the inputs leave open (`bind`) and translates
//! node by node (`translate`) through one flat table of operators (`ops`). Whatever is known without the inputs is
//! computed on the way by the operators' own definitions (`build`).
//!
//! Accepts opsets 1 to 22 of the default domain, and some operators of two others. The only I/O is reading external data beside the model.
//!
//! A *known* is a tensor whose elements are known while loading; it becomes a weight or a constant of the graph when
//! something that stays in the graph reads it. *Sequences* and *optionals* are taken apart on the way: which tensors they
//! hold is known, and only those reach the graph.

mod bind;
mod model;
mod node;
mod ops;
mod proto;
mod tensor;
mod translate;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ir::Graph;
use types::{Shape, Tensor};

use crate::{UnsupportedNode, lines, quoted};

/// What the caller decides about a model's open dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The extent of the first dimension of every input: `--batch 8`.
    pub batch: Option<usize>,
    /// Whole shapes by input: `--shape x=1x3x224x224`. They win over `batch`.
    pub shapes: BTreeMap<String, Shape>,
    /// Inputs of one element that are known already, and so are none of the graph: `--fix sr=16000`. What depends on them
    /// alone is computed while loading, the conditions of `If` among it.
    pub fixed: BTreeMap<String, f64>,
}

/// Reads a model to a graph with static shapes. `directory` is where its external data lies.
///
/// # Errors
/// A file that is not a model or is damaged, dimensions that nothing binds, and all nodes that have no translation.
pub fn load(bytes: &[u8], directory: Option<&Path>, options: &Options) -> Result<Graph, LoadError> {
    let model = model::Model::read(bytes)?;
    translate::translate(&model, directory, options)
}

/// Reads a serialized `TensorProto`, such as the `.pb` files of ONNX's test data.
///
/// # Errors
/// A damaged file and element types that have no counterpart.
pub fn tensor(bytes: &[u8]) -> Result<Tensor, LoadError> {
    let proto = model::Tensor::read(bytes)?;
    tensor::read(&proto, None).map_err(|problem| problem.of(proto.name))
}

/// Why a model cannot be loaded. All of it is about the file or about what the caller said of its inputs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LoadError {
    #[error("not an ONNX model: the file does not begin with a version of the format")]
    NotOnnx,
    #[error("the file ends in the middle of {what}; it was probably not copied as a whole")]
    Truncated { what: &'static str },
    #[error("{what}")]
    Malformed { what: String },
    #[error("operator set {version} is not supported, 1 to {newest} are; export the model with an older one")]
    Opset { version: i64, newest: i64 },
    #[error("{}", lines(.0))]
    Unsupported(Vec<UnsupportedNode>),
    #[error("{}", lines(.0))]
    UnboundDimension(Vec<Unbound>),
    #[error("`--shape {input}=` gives {given}, but the model has {declared}; only open dimensions can be chosen")]
    ShapeConflict { input: String, given: Shape, declared: String },
    #[error("`--batch {batch}`: the first dimension of input `{input}` is {extent} in the model and cannot be changed")]
    BatchConflict { input: String, extent: i64, batch: usize },
    #[error("`--{flag} {name}=`: the model has no such input; its inputs are {}", quoted(.inputs))]
    UnknownInput { flag: &'static str, name: String, inputs: Vec<String> },
    #[error("`--fix {input}={value}`: {reason}")]
    NotFixed { input: String, value: f64, reason: String },
    #[error("input `{input}`: {reason}")]
    Input { input: String, reason: String },
    #[error("output `{output}`: {reason}")]
    Output { output: String, reason: String },
    #[error("tensor `{tensor}`: {reason}")]
    Tensor { tensor: String, reason: String },
    #[error("external data of tensor `{tensor}`: {reason}")]
    ExternalData { tensor: String, reason: String },
}

/// A dimension that neither the model nor the caller binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbound {
    /// The input.
    pub input: String,
    /// Which of its dimensions; none where the model does not tell how many there are.
    pub dimension: Option<usize>,
    /// The dimension's name in the model.
    pub name: Option<String>,
    /// How the caller can bind it.
    pub hint: String,
}

impl fmt::Display for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unbound { input, dimension, name, hint } = self;
        match (dimension, name) {
            (Some(dimension), Some(name)) => {
                write!(f, "input `{input}`: dimension {dimension} (`{name}`) is open; {hint}")
            }
            (Some(dimension), None) => write!(f, "input `{input}`: dimension {dimension} is open; {hint}"),
            (None, _) => write!(f, "input `{input}`: the shape is open; {hint}"),
        }
    }
}
