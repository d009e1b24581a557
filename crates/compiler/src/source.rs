//! Sources of models: networks of the zoo by name, with weights from a seed or a file; ONNX and MXNet models, from
//! files or from memory.
//!
//! [`load()`] takes a [`Request`] with names and paths. [`load_onnx`] and [`load_mxnet`] take bytes and do no I/O
//! themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ir::{Graph, TensorType};
use load::onnx::{Directory, ExternalData};
use load::{mxnet, onnx};
use types::{Shape, Tensor};
use zoo::{Named, Names, Seeded, ZooError};

use crate::Model;

/// A model to load.
#[derive(Clone, Debug)]
pub struct Request {
    /// The name of a network of the zoo, or the path of an ONNX file or of MXNet's `NET-symbol.json`.
    pub model: String,
    /// The arrays of an MXNet symbol, `NET-0000.params`.
    pub params: Option<PathBuf>,
    /// The first extent of the inputs if it is dynamic.
    pub batch: Option<usize>,
    /// Shapes of inputs by name.
    pub shapes: BTreeMap<String, Shape>,
    /// Values of inputs of an ONNX file that become constants.
    pub fixed: BTreeMap<String, f64>,
    /// The weights of a network of the zoo.
    pub weights: Weights,
    /// A list that maps the tensor names of a weights file to those of the network ([`zoo::Names`]).
    pub names: Option<PathBuf>,
    /// Whether to use trained weights, preprocessing and class names from `data`.
    pub pretrained: bool,
    /// The folder of public data.
    pub data: PathBuf,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            model: String::new(),
            params: None,
            batch: None,
            shapes: BTreeMap::new(),
            fixed: BTreeMap::new(),
            weights: Weights::default(),
            names: None,
            pretrained: false,
            data: "data".into(),
        }
    }
}

impl Request {
    /// The fields in `fields` that differ from their defaults.
    fn given(&self, fields: &[Field]) -> Vec<Field> {
        let is_given = |field: &Field| match field {
            Field::Batch => self.batch.is_some(),
            Field::Shapes => !self.shapes.is_empty(),
            Field::Fixed => !self.fixed.is_empty(),
            Field::Params => self.params.is_some(),
            Field::Weights => self.weights != Weights::default(),
            Field::Names => self.names.is_some(),
            Field::Pretrained => self.pretrained,
            Field::Data => self.data != Request::default().data,
        };
        fields.iter().copied().filter(is_given).collect()
    }

    /// Returns an error with this reason if a field in `fields` is set.
    fn refuse(&self, fields: &[Field], reason: &str) -> Result<(), SourceError> {
        match self.given(fields) {
            given if given.is_empty() => Ok(()),
            given => Err(SourceError::Conflict { reason: reason.into(), given }),
        }
    }

    /// The model's name without folder and extension, which is also the name of its executable.
    pub fn name(&self) -> String {
        if let Some(spec) = zoo::find(&self.model) {
            return spec.name.replace('/', "-");
        }
        if zoo::is_in_collection(&self.model) {
            return self.model.replace('/', "-");
        }
        let path = Path::new(&self.model);
        let name = if is_file(&self.model) { path.file_stem() } else { path.file_name() };
        let name = name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        if is_symbol(&self.model) { name.trim_end_matches("-symbol").to_string() } else { name }
    }
}

/// A source of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Pseudorandom weights.
    Seed(u64),
    /// A safetensors, npz, pth, params or pickle file.
    File(PathBuf),
}

impl Default for Weights {
    fn default() -> Weights {
        Weights::Seed(1)
    }
}

/// A field of [`Request`], for error messages of programs that have their own names for the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of `Request` are documented")]
pub enum Field {
    Batch,
    Shapes,
    Fixed,
    Params,
    Weights,
    Names,
    Pretrained,
    Data,
}

/// A change of the [`Request`] that avoids an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Set a field to a value such as this one.
    Set(Field, String),
    /// Leave a field at its default.
    Remove(Field),
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum SourceError {
    #[error("cannot read `{path}`: {error}")]
    Io { path: String, error: std::io::Error },
    #[error("cannot read `{path}`: {error}; `cargo xtask fetch` downloads the public data")]
    PublicData { path: String, error: std::io::Error },
    #[error("`{path}`: {error}")]
    Onnx { path: String, error: Box<onnx::LoadError> },
    #[error("`{path}`: {error}")]
    Mxnet { path: String, error: Box<mxnet::LoadError> },
    #[error(transparent)]
    Weights(#[from] weights::WeightsError),
    #[error("{0}")]
    Zoo(Box<ZooError>),
    #[error("`{path}` has tensors that `{network}` does not use: {names}; is it the file of another network?")]
    Unused { path: String, network: String, names: String },
    #[error("`{model}` is an MXNet symbol, which requires the file of its arrays")]
    NoParams { model: String },
    #[error("a list of tensor names requires a file of weights")]
    NamesWithoutWeights,
    #[error("no trained weights for `{model}`; there are some for {pretrained}")]
    NotPretrained { model: String, pretrained: String },
    #[error("{reason}")]
    Conflict { reason: String, given: Vec<Field> },
}

impl SourceError {
    /// Changes of the request that avoid the error: alternatives to set, or fields to remove together.
    pub fn remedies(&self) -> Vec<Remedy> {
        let shape = |input: &str, example: &str| Remedy::Set(Field::Shapes, format!("{input}={example}"));
        match self {
            SourceError::PublicData { .. } => vec![Remedy::Set(Field::Data, "DIR".into())],
            SourceError::NoParams { .. } => vec![Remedy::Set(Field::Params, "NET-0000.params".into())],
            SourceError::NamesWithoutWeights => vec![Remedy::Set(Field::Weights, "FILE".into())],
            SourceError::Conflict { given, .. } => given.iter().copied().map(Remedy::Remove).collect(),
            SourceError::Onnx { error, .. } => match &**error {
                onnx::LoadError::UnboundDimension(unbound) => {
                    let mut remedies: Vec<Remedy> = Vec::new();
                    for unbound in unbound {
                        let remedy = shape(&unbound.input, &unbound.example);
                        if !remedies.contains(&remedy) {
                            remedies.push(remedy);
                        }
                    }
                    if unbound.iter().all(|unbound| unbound.is_batch) {
                        remedies.push(Remedy::Set(Field::Batch, "N".into()));
                    }
                    remedies
                }
                _ => Vec::new(),
            },
            SourceError::Mxnet { error, .. } => match &**error {
                mxnet::LoadError::Unknown(variables) => {
                    variables.iter().map(|variable| shape(&variable.name, "1x3x224x224")).collect()
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

impl From<ZooError> for SourceError {
    fn from(error: ZooError) -> SourceError {
        SourceError::Zoo(Box::new(error))
    }
}

/// A network of the zoo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: &'static str,
    /// Its usual name.
    pub title: &'static str,
    /// Learned parameters.
    pub parameters: u64,
    /// Arithmetic operations of a run at batch 1; a multiply-add counts as two.
    pub flops: u64,
    /// Inputs by name, with their types at batch 1.
    pub inputs: Vec<(&'static str, TensorType)>,
    /// Whether trained weights are among the public data.
    pub pretrained: bool,
}

/// The networks of the zoo.
pub fn models() -> Vec<Listed> {
    let input = |input: &zoo::Input| {
        (input.name, TensorType { dtype: input.dtype, shape: [&[1], input.shape].concat().into_iter().collect() })
    };
    let row = |spec: &zoo::Spec| Listed {
        name: spec.name,
        title: spec.title,
        parameters: spec.parameters,
        flops: spec.flops,
        inputs: spec.inputs.iter().map(input).collect(),
        pretrained: zoo::pretrained(spec.name).is_some(),
    };
    zoo::list().iter().map(row).collect()
}

/// Loads a model.
///
/// # Errors
/// If a file cannot be read or is invalid, if the zoo has no such network, or if fields of the request do not apply to
/// the model.
pub fn load(request: &Request) -> Result<Model, SourceError> {
    if !is_file(&request.model) || is_symbol(&request.model) {
        request.refuse(&[Field::Fixed], "constant inputs are supported for ONNX files only")?;
    }
    let mut model = match (is_file(&request.model), request.pretrained) {
        (true, _) if is_symbol(&request.model) => from_mxnet(request)?,
        (true, _) => from_onnx(request)?,
        (false, true) => from_pretrained(request)?,
        (false, false) => from_zoo(request)?,
    };
    model.graph.name = request.name();
    Ok(model)
}

/// Loads an ONNX model from memory. `external` is required if the model keeps tensors in other files.
///
/// # Errors
/// As [`onnx::load`].
pub fn load_onnx(
    bytes: &[u8],
    external: Option<&dyn ExternalData>,
    options: &onnx::Options,
) -> Result<Model, onnx::LoadError> {
    onnx::load(bytes, external, options).map(Model::from)
}

/// Loads an MXNet symbol and its arrays from memory: the bytes of `NET-symbol.json` and `NET-0000.params`. Errors name
/// the two files `symbol` and `params`.
///
/// # Errors
/// As [`mxnet::load`] and [`weights::read`].
pub fn load_mxnet(symbol: &[u8], params: &[u8], options: &mxnet::Options) -> Result<Model, SourceError> {
    let arrays = weights::read("params", params)?;
    let graph = mxnet::load(symbol, arrays, options);
    graph.map(Model::from).map_err(|error| SourceError::Mxnet { path: "symbol".into(), error: Box::new(error) })
}

impl From<Graph> for Model {
    fn from(graph: Graph) -> Model {
        Model { graph, preprocess: None, labels: Vec::new() }
    }
}

fn is_file(model: &str) -> bool {
    model.ends_with(".onnx") || is_symbol(model) || model.contains(['/', '\\']) && !zoo::is_in_collection(model)
}

fn is_symbol(model: &str) -> bool {
    model.ends_with(".json")
}

fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    fs::read(path).map_err(|error| SourceError::Io { path: path.display().to_string(), error })
}

/// Reads a file of the folder of public data.
fn read_public(path: &Path) -> Result<Vec<u8>, SourceError> {
    fs::read(path).map_err(|error| SourceError::PublicData { path: path.display().to_string(), error })
}

fn from_onnx(request: &Request) -> Result<Model, SourceError> {
    request.refuse(
        &[Field::Weights, Field::Names, Field::Params, Field::Pretrained],
        "an ONNX file has its own weights; other weights cannot be given",
    )?;
    let path = Path::new(&request.model);
    let bytes = read(path)?;
    let options = onnx::Options { batch: request.batch, shapes: request.shapes.clone(), fixed: request.fixed.clone() };
    let directory = path.parent().map(Directory);
    let external = directory.as_ref().map(|directory| directory as &dyn ExternalData);
    load_onnx(&bytes, external, &options)
        .map_err(|error| SourceError::Onnx { path: request.model.clone(), error: Box::new(error) })
}

fn from_mxnet(request: &Request) -> Result<Model, SourceError> {
    request.refuse(
        &[Field::Weights, Field::Names, Field::Pretrained],
        "an MXNet symbol has its weights in the file of its arrays; other weights cannot be given",
    )?;
    let Some(params) = &request.params else { return Err(SourceError::NoParams { model: request.model.clone() }) };
    let symbol = read(Path::new(&request.model))?;
    let arrays = tensors(params, &read(params)?)?;
    let options = mxnet::Options { batch: request.batch, shapes: request.shapes.clone() };
    let graph = mxnet::load(&symbol, arrays, &options);
    graph.map(Model::from).map_err(|error| SourceError::Mxnet { path: request.model.clone(), error: Box::new(error) })
}

fn from_zoo(request: &Request) -> Result<Model, SourceError> {
    request.refuse(
        &[Field::Params],
        "a file of arrays is for an MXNet symbol; give a network of the zoo a file of weights",
    )?;
    let options = zoo::Options { shapes: request.shapes.clone(), ..zoo::Options::default() };
    let batch = batch(request);
    let model = match &request.weights {
        Weights::Seed(_) if request.names.is_some() => return Err(SourceError::NamesWithoutWeights),
        Weights::Seed(seed) => zoo::build(&request.model, batch, &mut Seeded(*seed), &options)?,
        Weights::File(path) => {
            let mut named = Named::new(names(request)?.apply(tensors(path, &read(path)?)?)?);
            let model = zoo::build(&request.model, batch, &mut named, &options)?;
            refuse_unused(path, &request.model, &named)?;
            model
        }
    };
    Ok(Model { graph: model.graph, preprocess: model.preprocess, labels: Vec::new() })
}

fn from_pretrained(request: &Request) -> Result<Model, SourceError> {
    let pretrained = zoo::pretrained(&request.model).ok_or_else(|| {
        let names: Vec<&str> = models().iter().filter(|model| model.pretrained).map(|model| model.name).collect();
        SourceError::NotPretrained { model: request.model.clone(), pretrained: names.join(", ") }
    })?;
    if pretrained.images.is_some() {
        request.refuse(&[Field::Shapes], "the input shape of a pretrained classifier cannot be chosen")?;
    }
    let path = request.data.join(pretrained.file);
    let tensors = tensors(&path, &read_public(&path)?)?;
    let labels = match pretrained.images {
        Some(images) => zoo::labels(&String::from_utf8_lossy(&read_public(&request.data.join(images.labels))?))?,
        None => Vec::new(),
    };
    let model = pretrained.build(batch(request), tensors, request.shapes.clone())?;
    Ok(Model { graph: model.graph, preprocess: model.preprocess, labels })
}

fn tensors(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, SourceError> {
    Ok(weights::read(&path.display().to_string(), bytes)?)
}

fn names(request: &Request) -> Result<Names, SourceError> {
    let Some(path) = &request.names else { return Ok(Names::default()) };
    Ok(Names::parse(&String::from_utf8_lossy(&read(path)?))?)
}

/// The batch of the request, else the first extent of a requested shape.
fn batch(request: &Request) -> usize {
    let shaped = request.shapes.values().find_map(|shape| shape.first().copied());
    request.batch.or(shaped).unwrap_or(1)
}

fn refuse_unused(path: &Path, network: &str, named: &Named) -> Result<(), SourceError> {
    let names: Vec<&str> = named.unused().collect();
    if names.is_empty() {
        return Ok(());
    }
    let more = if 5 < names.len() { format!(" and {} more", names.len() - 5) } else { String::new() };
    let names = names.iter().take(5).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ") + &more;
    Err(SourceError::Unused { path: path.display().to_string(), network: network.into(), names })
}
