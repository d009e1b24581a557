//! Where models come from: the zoo by name, with weights from a seed or a file, or a file of ONNX or MXNet.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ir::TensorType;
use types::{Shape, Tensor};
use zoo::{Named, Names, Seeded, ZooError};

use crate::Model;

/// What to load.
#[derive(Clone, Debug)]
pub struct Request {
    /// The name of a network of the zoo, or the path of an ONNX file or of MXNet's `NET-symbol.json`.
    pub model: String,
    /// The arrays of an MXNet symbol, `NET-0000.params`.
    pub params: Option<PathBuf>,
    /// The first extent of the inputs, where it is open.
    pub batch: Option<usize>,
    /// Shapes of inputs by name.
    pub shapes: BTreeMap<String, Shape>,
    /// Inputs of an ONNX file that are numbers known already.
    pub fixed: BTreeMap<String, f64>,
    /// Where a network of the zoo gets its weights.
    pub weights: Weights,
    /// A list of names for a file of weights that calls its tensors otherwise ([`zoo::Names`]).
    pub names: Option<PathBuf>,
    /// Whether trained weights, preprocessing and class names come from `data`.
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
    /// Whether there are flags about weights that files have themselves.
    fn has_weights(&self) -> bool {
        self.weights != Weights::default() || self.names.is_some()
    }

    /// The model's name without folder and extension: what its executable is called.
    pub fn name(&self) -> String {
        if zoo::is_in_collection(&self.model) {
            return self.model.replace('/', "-");
        }
        let path = Path::new(&self.model);
        let name = if is_file(&self.model) { path.file_stem() } else { path.file_name() };
        let name = name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        if is_symbol(&self.model) { name.trim_end_matches("-symbol").to_string() } else { name }
    }
}

/// Where weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Made up.
    Seed(u64),
    /// A safetensors, npz, pth, params or pickle file.
    File(PathBuf),
}

impl Default for Weights {
    fn default() -> Weights {
        Weights::Seed(1)
    }
}

/// Why there is no model. All of it is about what the caller gave.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SourceError {
    #[error("cannot read `{path}`: {error}{hint}")]
    Io { path: String, error: std::io::Error, hint: &'static str },
    #[error("`{path}`: {error}")]
    Onnx { path: String, error: Box<load::onnx::LoadError> },
    #[error("`{path}`: {error}")]
    Mxnet { path: String, error: Box<load::mxnet::LoadError> },
    #[error(transparent)]
    Weights(#[from] weights::WeightsError),
    #[error("{0}")]
    Zoo(Box<ZooError>),
    #[error("`{path}` has tensors that `{network}` does not use: {names}; is it another network's file?")]
    Unused { path: String, network: String, names: String },
    #[error("{0}")]
    Use(String),
}

impl From<ZooError> for SourceError {
    fn from(error: ZooError) -> SourceError {
        SourceError::Zoo(Box::new(error))
    }
}

/// A row of the list of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: &'static str,
    /// What people call it.
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

/// The networks that have a name.
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
/// A file or name that is not there or not right, or flags that do not go with the model.
pub fn load(request: &Request) -> Result<Model, SourceError> {
    if !request.fixed.is_empty() && (!is_file(&request.model) || is_symbol(&request.model)) {
        return Err(SourceError::Use("--fix goes with an ONNX file".into()));
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

fn is_file(model: &str) -> bool {
    model.ends_with(".onnx") || is_symbol(model) || model.contains(['/', '\\']) && !zoo::is_in_collection(model)
}

fn is_symbol(model: &str) -> bool {
    model.ends_with(".json")
}

fn read(path: &Path, hint: &'static str) -> Result<Vec<u8>, SourceError> {
    fs::read(path).map_err(|error| SourceError::Io { path: path.display().to_string(), error, hint })
}

fn from_onnx(request: &Request) -> Result<Model, SourceError> {
    if request.pretrained || request.has_weights() || request.params.is_some() {
        let what = "an ONNX file has its own weights; leave out --weights, --names, --params and --pretrained";
        return Err(SourceError::Use(what.into()));
    }
    let path = Path::new(&request.model);
    let bytes = read(path, "")?;
    let options =
        load::onnx::Options { batch: request.batch, shapes: request.shapes.clone(), fixed: request.fixed.clone() };
    let graph = load::onnx::load(&bytes, path.parent(), &options)
        .map_err(|error| SourceError::Onnx { path: request.model.clone(), error: Box::new(error) })?;
    Ok(Model { graph, preprocess: None, labels: Vec::new() })
}

fn from_mxnet(request: &Request) -> Result<Model, SourceError> {
    if request.pretrained || request.has_weights() {
        let what = "an MXNet symbol has its weights from --params FILE; leave out --weights, --names and --pretrained";
        return Err(SourceError::Use(what.into()));
    }
    let Some(params) = &request.params else {
        let what = format!("`{}` has no weights; name the file that has them: --params NET-0000.params", request.model);
        return Err(SourceError::Use(what));
    };
    let symbol = read(Path::new(&request.model), "")?;
    let arrays = tensors(params, "")?;
    let options = load::mxnet::Options { batch: request.batch, shapes: request.shapes.clone() };
    let graph = load::mxnet::load(&symbol, arrays, &options)
        .map_err(|error| SourceError::Mxnet { path: request.model.clone(), error: Box::new(error) })?;
    Ok(Model { graph, preprocess: None, labels: Vec::new() })
}

fn from_zoo(request: &Request) -> Result<Model, SourceError> {
    if request.params.is_some() {
        let what = "--params goes with an MXNet symbol; a network of the zoo has its weights from --weights FILE";
        return Err(SourceError::Use(what.into()));
    }
    let options = zoo::Options { shapes: request.shapes.clone(), ..zoo::Options::default() };
    let batch = batch(request);
    let model = match &request.weights {
        Weights::Seed(_) if request.names.is_some() => {
            return Err(SourceError::Use(
                "--names says what a file calls its tensors; name the file: --weights FILE".into(),
            ));
        }
        Weights::Seed(seed) => zoo::build(&request.model, batch, &mut Seeded(*seed), &options)?,
        Weights::File(path) => {
            let mut named = Named::new(names(request)?.apply(tensors(path, "")?)?);
            let model = zoo::build(&request.model, batch, &mut named, &options)?;
            refuse_unused(path, &request.model, &named)?;
            model
        }
    };
    Ok(Model { graph: model.graph, preprocess: model.preprocess, labels: Vec::new() })
}

fn from_pretrained(request: &Request) -> Result<Model, SourceError> {
    const HINT: &str = "; `cargo xtask fetch` brings it, --data DIR says where it is";
    let known: Vec<&str> = models().iter().filter(|model| model.pretrained).map(|model| model.name).collect();
    let pretrained = zoo::pretrained(&request.model).ok_or_else(|| {
        SourceError::Use(format!(
            "there are no trained weights for `{}`; there are for {}",
            request.model,
            known.join(", ")
        ))
    })?;
    if !request.shapes.is_empty() && pretrained.pictures.is_some() {
        return Err(SourceError::Use("a trained classifier has its own input; leave out --shape".into()));
    }
    let tensors = tensors(&request.data.join(pretrained.file), HINT)?;
    let labels = match pretrained.pictures {
        Some(pictures) => zoo::labels(&String::from_utf8_lossy(&read(&request.data.join(pictures.labels), HINT)?))?,
        None => Vec::new(),
    };
    let model = pretrained.build(batch(request), tensors, request.shapes.clone())?;
    Ok(Model { graph: model.graph, preprocess: model.preprocess, labels })
}

fn tensors(path: &Path, hint: &'static str) -> Result<BTreeMap<String, Tensor>, SourceError> {
    Ok(weights::read(&path.display().to_string(), &read(path, hint)?)?)
}

fn names(request: &Request) -> Result<Names, SourceError> {
    let Some(path) = &request.names else { return Ok(Names::default()) };
    Ok(Names::parse(&String::from_utf8_lossy(&read(path, "")?))?)
}

/// The batch, also where `--shape` states it.
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
