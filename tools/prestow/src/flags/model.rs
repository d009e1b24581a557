//! [`ModelFlags`]: the model, its shapes, constants and weights.

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use compiler::source::{Request, WeightSpec};
use types::{Bytes, Shape, WeightFormat};

use super::repeated;

/// The largest batch.
pub(crate) const BATCH_MAX: u64 = 65_536;

/// The model that a command loads.
#[derive(Args)]
pub(crate) struct ModelFlags {
    /// A network of the zoo (`prestow models` lists them), a file NET.onnx, or NET-symbol.json of MXNet.
    #[arg(value_name = "MODEL|FILE", help_heading = None::<&str>)]
    model: Option<String>,
    /// First extent of the inputs (default 1). Plans of several batches share one arena and the weights.
    #[arg(long = "batch", value_name = "N[,N...]", value_delimiter = ',')]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=BATCH_MAX))]
    batches: Vec<usize>,
    /// Shape of an input, as `data=1x3x224x224`, or `data=Nx3x224x224` with --batch; repeat for several inputs.
    #[arg(long = "shape", value_name = "NAME=DIMS", value_parser = parse_shape)]
    shapes: Vec<(String, GivenShape)>,
    /// Constant value of an ONNX input; repeat for several inputs.
    #[arg(long = "fix", value_name = "NAME=NUMBER", value_parser = parse_fixed)]
    fixed: Vec<(String, f64)>,
    /// Weights of a network of the zoo: a safetensors, npz, pth, params or pickle file, or random ones (default seed:1).
    /// Repeat with bf16 or int8 to store the weights of convolutions, products and embeddings of an executable in fewer
    /// bits; kernels compute with f32.
    #[arg(long, value_name = "FILE|seed:N|bf16|int8", value_parser = parse_weights)]
    weights: Vec<WeightFlag>,
    /// Names of the tensors in the file of weights, one `THEIRS.* OURS.*` per line.
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
    /// Arrays of an MXNet symbol, NET-0000.params.
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Weights, preprocessing and class names that `cargo xtask fetch` downloads.
    #[arg(long)]
    pretrained: bool,
    /// Folder of fetched data.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// The most memory that loading may take, as 8GiB (default: half of this machine's). A model beyond it is refused.
    #[arg(long, value_name = "BYTES")]
    load_limit: Option<Bytes>,
    /// Give nodes that an ONNX file has in training mode their inference form: batch normalization takes its running
    /// statistics, dropout is the identity.
    #[arg(long)]
    inference_mode: bool,
}

/// A value of `--weights`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WeightFlag {
    Source(WeightSpec),
    Stored(WeightFormat),
}

/// A shape whose first extent may be the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GivenShape {
    Fixed(Shape),
    /// The first extent is 0 until the batch takes its place.
    Batched(Shape),
}

impl GivenShape {
    fn shape(&self) -> Shape {
        match self {
            GivenShape::Fixed(shape) | GivenShape::Batched(shape) => shape.clone(),
        }
    }
}

impl ModelFlags {
    /// The batches. Empty: the batch of the model.
    ///
    /// # Errors
    /// A batch that is given twice.
    pub(crate) fn batches(&self) -> Result<&[usize], String> {
        match repeated(&self.batches) {
            Some(batch) => Err(format!("each --batch must be given once, got {batch} twice")),
            None => Ok(&self.batches),
        }
    }

    /// The stored form of weights, if it is not `f32`.
    ///
    /// # Errors
    /// Two forms.
    pub(crate) fn weight_format(&self) -> Result<Option<WeightFormat>, String> {
        let mut formats = self.weights.iter().filter_map(|flag| match flag {
            WeightFlag::Stored(format) => Some(*format),
            WeightFlag::Source(_) => None,
        });
        let first = formats.next();
        match formats.next() {
            Some(_) => Err("--weights takes one of bf16 and int8; leave out the other".into()),
            None => Ok(first),
        }
    }

    /// The request to load the model, without a batch, for a command that does not store weights.
    ///
    /// # Errors
    /// As [`ModelFlags::request`], or a stored form of weights.
    pub(crate) fn request_in_f32(&self) -> Result<Request, String> {
        match self.weight_format()? {
            Some(format) => {
                let name = format.name();
                Err(format!(
                    "--weights {name} needs `prestow compile`, which stores weights; leave it out, or name a file ./{name}"
                ))
            }
            None => self.request(),
        }
    }

    /// The request to load the model, without a batch.
    ///
    /// # Errors
    /// An input with two shapes or two constant values, or two sources of weights.
    pub(crate) fn request(&self) -> Result<Request, String> {
        let mut sources = self.weights.iter().filter_map(|flag| match flag {
            WeightFlag::Source(source) => Some(source.clone()),
            WeightFlag::Stored(_) => None,
        });
        let weights = sources.next();
        if sources.next().is_some() {
            return Err("--weights takes one FILE or seed:N; leave out the others".into());
        }
        if weights.is_some() && self.pretrained {
            return Err("--weights FILE|seed:N and --pretrained exclude each other; leave out one of them".into());
        }
        if let Some(name) = repeated(self.shapes.iter().map(|(name, _)| name)) {
            return Err(format!("--shape must be given once for an input, got it twice for `{name}`"));
        }
        if let Some(name) = repeated(self.fixed.iter().map(|(name, _)| name)) {
            return Err(format!("--fix must be given once for an input, got it twice for `{name}`"));
        }
        let batched = self.shapes.iter().find(|(_, shape)| matches!(shape, GivenShape::Batched(_)));
        if let Some((name, _)) = batched.filter(|_| self.batches.is_empty()) {
            return Err(format!("the shape of `{name}` begins with N; add --batch N"));
        }
        Ok(Request {
            model: self.model.clone().ok_or("a model is required; `prestow models` lists the networks of the zoo")?,
            params: self.params.clone(),
            batch: None,
            shapes: self.shapes.iter().map(|(name, shape)| (name.clone(), shape.shape())).collect(),
            fixed: self.fixed.iter().cloned().collect(),
            weights: weights.unwrap_or_default(),
            names: self.names.clone(),
            pretrained: self.pretrained,
            data: self.data.clone(),
            load_limit: self.load_limit,
            inference_mode: self.inference_mode,
        })
    }
}

fn parse_shape(given: &str) -> Result<(String, GivenShape), String> {
    let error = || "expected NAME=DIMS, as data=1x3x224x224 or data=Nx3x224x224".to_string();
    let (name, extents) = given.rsplit_once('=').ok_or_else(error)?;
    let (rest, is_batched) = match extents.strip_prefix('N') {
        Some(rest) if rest.is_empty() || rest.starts_with('x') => (format!("0{rest}"), true),
        Some(_) => return Err(error()),
        None => (extents.to_string(), false),
    };
    let shape = rest.split('x').map(|extent| extent.parse().map_err(|_| error())).collect::<Result<Shape, String>>()?;
    Ok((name.to_string(), if is_batched { GivenShape::Batched(shape) } else { GivenShape::Fixed(shape) }))
}

fn parse_fixed(given: &str) -> Result<(String, f64), String> {
    let error = || "expected NAME=NUMBER, as seed=1".to_string();
    let (name, value) = given.rsplit_once('=').ok_or_else(error)?;
    Ok((name.to_string(), value.parse().map_err(|_| error())?))
}

fn parse_weights(given: &str) -> Result<WeightFlag, String> {
    if let Some(format) = WeightFormat::ALL.into_iter().find(|format| format.name() == given) {
        return Ok(WeightFlag::Stored(format));
    }
    let source = match given.strip_prefix("seed:") {
        Some(seed) => seed.parse().map(WeightSpec::Seed).map_err(|_| "expected FILE or seed:N, as seed:1".into()),
        None => Ok(WeightSpec::File(given.into())),
    };
    source.map(WeightFlag::Source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_need_a_name_and_extents() {
        assert_eq!(parse_shape("x=1x3"), Ok(("x".into(), GivenShape::Fixed(Shape::from([1, 3])))));
        assert_eq!(parse_shape("a=b=2"), Ok(("a=b".into(), GivenShape::Fixed(Shape::from([2])))));
        assert_eq!(parse_shape("x=Nx3"), Ok(("x".into(), GivenShape::Batched(Shape::from([0, 3])))));
        for wrong in ["1x3", "x=", "x=1x", "x=-1", "x=3xN", "x=N3"] {
            assert!(parse_shape(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weights_are_a_seed_or_a_file() {
        assert_eq!(parse_weights("seed:7"), Ok(WeightFlag::Source(WeightSpec::Seed(7))));
        assert_eq!(parse_weights("a.npz"), Ok(WeightFlag::Source(WeightSpec::File("a.npz".into()))));
        assert_eq!(parse_weights("int8"), Ok(WeightFlag::Stored(WeightFormat::Int8)));
        assert_eq!(parse_weights("./int8"), Ok(WeightFlag::Source(WeightSpec::File("./int8".into()))));
        assert!(parse_weights("seed:x").is_err());
    }
}
