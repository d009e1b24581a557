//! Sources of models: networks of the zoo by name, with weights from a seed or a file; ONNX and MXNet models, from
//! files or from memory.
//!
//! [`load()`] takes a [`Request`] with names and paths. [`load_onnx`] and [`load_mxnet`] take bytes and do no I/O
//! themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use files::FileError;
use ir::{Graph, TensorType, Trainable};
use load::onnx::{ExternalData, ModelFile};
use load::{mxnet, onnx};
use types::{Bytes, LoadBudget, LoadLimit, Preprocess, Shape, Tensor};
use zoo::{InitialWeights, Named, Names, Seeded, ZooError};

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
    pub weights: WeightSpec,
    /// A list that maps the tensor names of a weights file to those of the network ([`zoo::Names`]).
    pub names: Option<PathBuf>,
    /// Whether to use trained weights, preprocessing and class names from `data`.
    pub pretrained: bool,
    /// The folder of public data.
    pub data: PathBuf,
    /// The most memory that loading may take, with the files themselves; `None`: half of the memory of the process's limits.
    pub load_limit: Option<Bytes>,
    /// Whether nodes that an ONNX file has in training mode have their inference form. A model to train has both forms.
    pub inference_mode: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            model: String::new(),
            params: None,
            batch: None,
            shapes: BTreeMap::new(),
            fixed: BTreeMap::new(),
            weights: WeightSpec::default(),
            names: None,
            pretrained: false,
            data: "data".into(),
            load_limit: None,
            inference_mode: false,
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
            Field::Weights => self.weights != WeightSpec::default(),
            Field::Names => self.names.is_some(),
            Field::Pretrained => self.pretrained,
            Field::Data => self.data != Request::default().data,
            Field::LoadLimit => self.load_limit.is_some(),
            Field::InferenceMode => self.inference_mode,
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

    /// Whether the model is a network of the zoo.
    pub fn is_of_zoo(&self) -> bool {
        !is_file(&self.model)
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
pub enum WeightSpec {
    /// Pseudorandom weights.
    Seed(u64),
    /// A safetensors, npz, pth, params or pickle file.
    File(PathBuf),
}

impl Default for WeightSpec {
    fn default() -> WeightSpec {
        WeightSpec::Seed(1)
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
    LoadLimit,
    InferenceMode,
}

/// A change of the [`Request`] that avoids an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Set a field to a value such as this one; it is empty for a field that is on or off.
    Set(Field, String),
    /// Leave a field at its default.
    Remove(Field),
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum SourceError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}; `cargo xtask fetch` downloads the public data")]
    PublicData(FileError),
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
    #[error("`{model}`: {error}; the symbol was loaded without a file of arrays")]
    NoParams { model: String, error: Box<mxnet::LoadError> },
    #[error("input `{input}`: the shape {shape} must begin with the batch, {batch}, or with N in its place")]
    Batch { input: String, shape: Shape, batch: usize },
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
            SourceError::PublicData(_) => vec![Remedy::Set(Field::Data, "DIR".into())],
            SourceError::NoParams { error, .. } => {
                let mut remedies = vec![Remedy::Set(Field::Params, "NET-0000.params".into())];
                if let mxnet::LoadError::Unknown(variables) = &**error {
                    // The first one of a symbol is usually its input, the others are its parameters.
                    remedies.extend(variables.first().map(|variable| shape(&variable.name, "1x3x224x224")));
                }
                remedies
            }
            SourceError::Batch { .. } => vec![Remedy::Remove(Field::Batch)],
            _ if self.is_limit() => vec![Remedy::Set(Field::LoadLimit, "BYTES".into())],
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
                onnx::LoadError::TrainingMode(_) => vec![Remedy::Set(Field::InferenceMode, String::new())],
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

impl SourceError {
    /// Whether the limit of memory and work was exceeded.
    fn is_limit(&self) -> bool {
        match self {
            SourceError::Onnx { error, .. } => matches!(**error, onnx::LoadError::Limit { .. }),
            SourceError::Mxnet { error, .. } => matches!(**error, mxnet::LoadError::Limit { .. }),
            SourceError::Weights(error) => matches!(*error.problem, weights::FormatError::Load(_)),
            SourceError::File(error) => error.error.kind() == std::io::ErrorKind::FileTooLarge,
            _ => false,
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

/// A model with the facts that only training uses.
#[derive(Clone, Debug)]
pub struct TrainableModel {
    /// The graph with its losses and dropout.
    pub trainable: Trainable,
    /// The preprocessing of an image input, if the model has one.
    pub preprocess: Option<Preprocess>,
    /// The names of the classes that the first output scores.
    pub labels: Vec<String>,
}

/// The use of a loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Inference,
    Training,
}

/// Loads a model.
///
/// # Errors
/// If a file cannot be read or is invalid, if the zoo has no such network, or if fields of the request do not apply to
/// the model.
pub fn load(request: &Request) -> Result<Model, SourceError> {
    load_noted(request).map(|(model, _)| model)
}

/// As [`load()`], with the names of the batch normalizations that take the statistics of the batch, because the file has them
/// in training mode.
///
/// # Errors
/// As [`load()`].
pub fn load_noted(request: &Request) -> Result<(Model, Vec<String>), SourceError> {
    let TrainableModel { trainable, preprocess, labels } = load_for(request, Purpose::Inference)?;
    Ok((Model { graph: trainable.graph, preprocess, labels }, trainable.batch_statistics))
}

/// Loads a model to train it: with dropout and losses, if its file has any. A network of the zoo without a file of weights
/// begins with [`zoo::InitialWeights`] ones.
///
/// # Errors
/// As [`load()`].
pub fn load_trainable(request: &Request) -> Result<TrainableModel, SourceError> {
    load_for(request, Purpose::Training)
}

fn load_for(request: &Request, purpose: Purpose) -> Result<TrainableModel, SourceError> {
    if !is_file(&request.model) || is_symbol(&request.model) {
        request.refuse(&[Field::Fixed], "constant inputs are supported for ONNX files only")?;
        request.refuse(&[Field::InferenceMode], "networks of the zoo and MXNet symbols are in inference mode")?;
    }
    if purpose == Purpose::Training {
        request.refuse(
            &[Field::InferenceMode],
            "a training step has nodes in training mode, and its evaluation has none",
        )?;
    }
    let request = &with_batch(request)?;
    let limit = request.load_limit.map(LoadLimit::of).unwrap_or_else(default_limit);
    let files = Files { budget: LoadBudget::new(limit) };
    let mut model = match (is_file(&request.model), request.pretrained) {
        (true, _) if is_symbol(&request.model) => from_mxnet(request, &files, purpose)?,
        (true, _) => from_onnx(request, &files, purpose)?,
        (false, true) => from_pretrained(request, &files)?,
        (false, false) => from_zoo(request, &files, purpose)?,
    };
    model.trainable.graph.name = request.name();
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
    let arrays = weights::read_within("params", params, &LoadBudget::new(options.limit))?;
    let graph = mxnet::load(symbol, arrays, options);
    graph.map(Model::from).map_err(|error| SourceError::Mxnet { path: "symbol".into(), error: Box::new(error) })
}

impl From<Trainable> for TrainableModel {
    fn from(trainable: Trainable) -> TrainableModel {
        TrainableModel { trainable, preprocess: None, labels: Vec::new() }
    }
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

/// Half of the memory that this process may take: a loaded model is packed and written afterwards.
fn default_limit() -> LoadLimit {
    files::memory_limit().map_or_else(LoadLimit::default, |most| LoadLimit::of(Bytes(most.0 / 2)))
}

/// The request with the batch in place of each shape's open first extent, which is 0.
fn with_batch(request: &Request) -> Result<Request, SourceError> {
    let mut request = request.clone();
    let Some(batch) = request.batch else { return Ok(request) };
    for (input, shape) in &mut request.shapes {
        match shape.first_mut() {
            Some(first @ 0) => *first = batch,
            Some(&mut first) if first != batch => {
                let (input, shape) = (input.clone(), shape.clone());
                return Err(SourceError::Batch { input, shape, batch });
            }
            _ => {}
        }
    }
    Ok(request)
}

/// Reads files within a budget.
struct Files {
    budget: LoadBudget,
}

impl Files {
    fn read(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let bytes = files::read_regular(path, self.budget.memory_left())?;
        self.budget.take(Bytes(bytes.len() as u64)).expect("no more was read than is left");
        Ok(bytes)
    }

    /// Reads a file of the folder of public data.
    fn read_public(&self, path: &Path) -> Result<Vec<u8>, SourceError> {
        self.read(path).map_err(SourceError::PublicData)
    }

    fn tensors(&self, path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, SourceError> {
        let tensors = weights::read_within(&path.display().to_string(), bytes, &self.budget)?;
        let stored = |(name, tensor): (String, Tensor)| {
            let tensor = tensor.stored_as(&name);
            (name, tensor)
        };
        Ok(tensors.into_iter().map(stored).collect())
    }

    /// The rest of the limit.
    fn limit(&self) -> LoadLimit {
        LoadLimit::of(self.budget.memory_left())
    }
}

fn from_onnx(request: &Request, files: &Files, purpose: Purpose) -> Result<TrainableModel, SourceError> {
    request.refuse(
        &[Field::Names, Field::Params, Field::Pretrained],
        "an ONNX file has its own weights under its own names",
    )?;
    let path = Path::new(&request.model);
    let file = ModelFile::open(path, files.budget.memory_left())?;
    files.budget.take(Bytes(file.outline().len() as u64)).expect("no more was read than is left");
    let (shapes, fixed) = (request.shapes.clone(), request.fixed.clone());
    let weights = match &request.weights {
        WeightSpec::File(weights) => files.tensors(weights, &files.read(weights)?)?,
        seed => {
            let given = if *seed == WeightSpec::default() { Vec::new() } else { vec![Field::Weights] };
            let reason = "an ONNX file has its own weights; give a file of weights to replace them".to_string();
            if !given.is_empty() {
                return Err(SourceError::Conflict { reason, given });
            }
            BTreeMap::new()
        }
    };
    let options = onnx::Options { batch: request.batch, shapes, fixed, weights, limit: files.limit() };
    let purpose = match purpose {
        Purpose::Inference if request.inference_mode => onnx::Purpose::Inference,
        Purpose::Inference => onnx::Purpose::AsWritten,
        Purpose::Training => onnx::Purpose::Training,
    };
    let load = |bytes: &[u8]| onnx::load_for(bytes, Some(&file), &options, purpose);
    let loaded = match load(file.outline()) {
        // Errors tell of the file as it is, and not of its outline.
        Err(_) if !file.is_whole() => load(&files.read(path)?),
        loaded => loaded,
    };
    let failed = |error| SourceError::Onnx { path: request.model.clone(), error: Box::new(error) };
    loaded.map(TrainableModel::from).map_err(failed)
}

fn from_mxnet(request: &Request, files: &Files, purpose: Purpose) -> Result<TrainableModel, SourceError> {
    request.refuse(
        &[Field::Weights, Field::Names, Field::Pretrained],
        "an MXNet symbol has its weights in the file of its arrays; other weights cannot be given",
    )?;
    let symbol = files.read(Path::new(&request.model))?;
    let arrays = match &request.params {
        Some(params) => files.tensors(params, &files.read(params)?)?,
        None => BTreeMap::new(),
    };
    let options = mxnet::Options { batch: request.batch, shapes: request.shapes.clone(), limit: files.limit() };
    let loaded = match purpose {
        Purpose::Inference => mxnet::load(&symbol, arrays, &options).map(Trainable::from),
        Purpose::Training => mxnet::load_trainable(&symbol, arrays, &options),
    };
    loaded.map(TrainableModel::from).map_err(|error| {
        let (model, is_unknown, error) =
            (request.model.clone(), matches!(error, mxnet::LoadError::Unknown(_)), Box::new(error));
        match request.params {
            None if is_unknown => SourceError::NoParams { model, error },
            _ => SourceError::Mxnet { path: model, error },
        }
    })
}

fn from_zoo(request: &Request, files: &Files, purpose: Purpose) -> Result<TrainableModel, SourceError> {
    request.refuse(
        &[Field::Params],
        "a file of arrays is for an MXNet symbol; give a network of the zoo a file of weights",
    )?;
    let options = zoo::NetworkOptions { shapes: request.shapes.clone(), ..zoo::NetworkOptions::default() };
    let batch = batch(request);
    let model = match (&request.weights, purpose) {
        (WeightSpec::Seed(_), _) if request.names.is_some() => return Err(SourceError::NamesWithoutWeights),
        (WeightSpec::Seed(seed), Purpose::Inference) => {
            zoo::build(&request.model, batch, &mut Seeded(*seed), &options)?
        }
        (WeightSpec::Seed(seed), Purpose::Training) => {
            zoo::build(&request.model, batch, &mut InitialWeights::new(&request.model, *seed), &options)?
        }
        (WeightSpec::File(path), _) => {
            let mut named = Named::new(names(request, files)?.apply(files.tensors(path, &files.read(path)?)?)?);
            let model = zoo::build(&request.model, batch, &mut named, &options)?;
            refuse_unused(path, &request.model, &named)?;
            model
        }
    };
    let preprocess = model.preprocess.clone();
    Ok(TrainableModel { trainable: model.into_trainable(), preprocess, labels: Vec::new() })
}

fn from_pretrained(request: &Request, files: &Files) -> Result<TrainableModel, SourceError> {
    let pretrained = zoo::pretrained(&request.model).ok_or_else(|| {
        let names: Vec<&str> = models().iter().filter(|model| model.pretrained).map(|model| model.name).collect();
        SourceError::NotPretrained { model: request.model.clone(), pretrained: names.join(", ") }
    })?;
    if pretrained.images.is_some() {
        request.refuse(&[Field::Shapes], "the input shape of a pretrained classifier cannot be chosen")?;
    }
    let path = request.data.join(pretrained.file);
    let tensors = files.tensors(&path, &files.read_public(&path)?)?;
    let labels = match pretrained.images {
        Some(images) => zoo::labels(&String::from_utf8_lossy(&files.read_public(&request.data.join(images.labels))?))?,
        None => Vec::new(),
    };
    let model = pretrained.build(batch(request), tensors, request.shapes.clone())?;
    let preprocess = model.preprocess.clone();
    Ok(TrainableModel { trainable: model.into_trainable(), preprocess, labels })
}

fn names(request: &Request, files: &Files) -> Result<Names, SourceError> {
    let Some(path) = &request.names else { return Ok(Names::default()) };
    Ok(Names::parse(&String::from_utf8_lossy(&files.read(path)?))?)
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
