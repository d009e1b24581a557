//! ONNX models to graphs. Strings, dynamic dimensions, operator versions and shape arithmetic end here.
//!
//! [`load`] reads the file (`proto`, `model`, `tensor`), binds the dynamic dimensions of the inputs (`bind`) and translates
//! node by node (`translate`) through one table of operators (`ops`). Everything that does not depend on run-time inputs is
//! folded by the operators' own definitions (`common`).
//!
//! Supports opsets 1 to 28 of the default domain and some operators of `ai.onnx.ml`, `ai.onnx.preview.training` and
//! `com.microsoft`. The only I/O is that of an [`ExternalData`].
//!
//! A *constant* is a tensor whose elements are available while loading; it becomes a weight or a constant of the graph when a
//! node of the graph reads it. *Sequences* and *optionals* are resolved while loading: only the tensors in them reach the
//! graph.

mod bind;
mod external;
mod learned;
mod model;
mod model_file;
mod node;
mod ops;
mod proto;
mod tensor;
mod translate;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use ir::{Graph, Trainable};
use types::{LoadBudget, LoadLimit, LoadLimitError, Shape, Tensor};

pub use external::{Directory, ExternalData};
pub use model_file::ModelFile;

use crate::{UnsupportedNode, lines, quoted};

/// The caller's choices for the inputs of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The extent of the first dimension of every input.
    pub batch: Option<usize>,
    /// Shapes by input name; they take precedence over `batch`.
    pub shapes: BTreeMap<String, Shape>,
    /// Values by name of inputs with one element, which become constants instead of inputs of the graph. Conditions of `If`
    /// that depend only on them are resolved while loading.
    pub fixed: BTreeMap<String, f64>,
    /// Tensors that replace initializers of the same names, dtypes and shapes, as those that were trained.
    pub weights: BTreeMap<String, Tensor>,
    /// The memory and work that loading may take.
    pub limit: LoadLimit,
}

/// Reads a model to a graph with static shapes. `external` is required if the model keeps tensors in other files. Nodes in
/// training mode are those of [`Purpose::AsWritten`].
///
/// # Errors
/// If the bytes are not a valid model, a dimension stays dynamic, external data cannot be read, or nodes are not supported
/// (all of them are listed).
///
/// ```no_run
/// use std::collections::BTreeMap;
/// use prestow_load::onnx::{self, Options};
///
/// let model = std::fs::read("model.onnx").unwrap();
/// let external = BTreeMap::from([("model.onnx.data".to_string(), std::fs::read("model.onnx.data").unwrap())]);
/// let graph = onnx::load(&model, Some(&external), &Options::default()).unwrap();
/// ```
pub fn load(bytes: &[u8], external: Option<&dyn ExternalData>, options: &Options) -> Result<Graph, LoadError> {
    load_for(bytes, external, options, Purpose::AsWritten).map(|trainable| trainable.graph)
}

/// As [`load`], with dropout; batch normalization in training mode has its inference form, as training expects.
///
/// # Errors
/// As [`load`].
pub fn load_trainable(
    bytes: &[u8],
    external: Option<&dyn ExternalData>,
    options: &Options,
) -> Result<Trainable, LoadError> {
    load_for(bytes, external, options, Purpose::Training)
}

/// The use of a loaded model, which decides the form of nodes in training mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// As the file states: batch normalization takes the statistics of the batch, dropout is refused.
    #[default]
    AsWritten,
    /// Their inference form: batch normalization takes its running statistics, dropout is the identity.
    Inference,
    /// Their form in a training step, which [`Trainable`] describes; so have nodes in inference mode.
    Training,
}

/// As [`load`], for a purpose.
///
/// # Errors
/// As [`load`].
pub fn load_for(
    bytes: &[u8],
    external: Option<&dyn ExternalData>,
    options: &Options,
    purpose: Purpose,
) -> Result<Trainable, LoadError> {
    let budget = Rc::new(LoadBudget::new(options.limit));
    let model = model::Model::read(bytes, &budget)?;
    translate::translate(&model, external, options, purpose, &budget)
}

/// Reads a serialized `TensorProto`, such as the `.pb` files of ONNX's test data.
///
/// # Errors
/// If the bytes are damaged or the element type is not supported.
pub fn tensor(bytes: &[u8]) -> Result<Tensor, LoadError> {
    let budget = LoadBudget::new(LoadLimit::default());
    let proto = model::Tensor::read(proto::Reader::new(bytes, "a tensor", &budget))?;
    tensor::read(&proto, None, &budget).map_err(|problem| problem.of(proto.name))
}

/// Why a model cannot be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum LoadError {
    #[error("not an ONNX model: the file must begin with the version of its format")]
    NotOnnx,
    #[error("the file is truncated in {part}; copy it again")]
    Truncated { part: &'static str },
    #[error("{reason}")]
    Malformed { reason: String },
    #[error("operator set must be 1 to {newest}, got {version}; export the model with an older one")]
    Opset { version: i64, newest: i64 },
    #[error("{}", lines(.0))]
    Unsupported(Vec<UnsupportedNode>),
    /// Nodes in training mode, which [`Purpose::Inference`] accepts.
    #[error("{}", lines(.0))]
    TrainingMode(Vec<UnsupportedNode>),
    #[error("{}", lines(.0))]
    UnboundDimension(Vec<Unbound>),
    #[error(
        "input `{input}`: shape must match {declared} of the model, got {given}; only dynamic dimensions can be chosen"
    )]
    ShapeConflict { input: String, given: Shape, declared: String },
    #[error("input `{input}`: dimension 0 is {extent} in the model, so the batch must be {extent}, got {batch}")]
    BatchConflict { input: String, extent: i64, batch: usize },
    #[error("a {given} is given for `{name}`, which is not an input of the model; its inputs are {}", quoted(.inputs))]
    UnknownInput { given: &'static str, name: String, inputs: Vec<String> },
    #[error("the file of weights has a tensor `{name}`, which is no initializer of the model; is it of another model?")]
    UnknownWeight { name: String },
    #[error("input `{input}` cannot have the constant value {value}: {reason}")]
    Fixed { input: String, value: f64, reason: String },
    #[error("input `{input}`: {reason}")]
    Input { input: String, reason: String },
    #[error("output `{output}`: {reason}")]
    Output { output: String, reason: String },
    #[error("tensor `{tensor}`: {reason}")]
    Tensor { tensor: String, reason: String },
    #[error("external data of tensor `{tensor}`: {reason}")]
    ExternalData { tensor: String, reason: String },
    #[error("{at}: {error}")]
    Limit { at: String, error: LoadLimitError },
}

/// A dimension that is dynamic in the model and that the caller does not choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbound {
    /// The input.
    pub input: String,
    /// The index of the dimension; `None` if the model does not state the rank.
    pub dimension: Option<usize>,
    /// The name of the dimension in the model.
    pub name: Option<String>,
    /// A shape of the input with letters for its dynamic dimensions, `Nx3x224x224`.
    pub example: String,
    /// Whether choosing the batch is enough.
    pub is_batch: bool,
}

impl fmt::Display for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unbound { input, dimension, name, example, is_batch } = self;
        match dimension {
            Some(dimension) => write!(f, "input `{input}`: dimension {dimension}")?,
            None => write!(f, "input `{input}`: the shape")?,
        }
        if let Some(name) = name {
            write!(f, " (`{name}`)")?;
        }
        let choice = if *is_batch { "the batch or a shape" } else { "a shape" };
        write!(f, " is dynamic; choose {choice} such as `{example}`")
    }
}
