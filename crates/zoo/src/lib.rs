//! Named networks: each is a small function over a [`Builder`] that yields a graph.
//!
//! - [`list`] says what there is; [`build`] builds one of them with [`Weights`] from a seed, a file or elsewhere.
//! - Parameters are called as in torchvision's `state_dict`, so that its files load by name. Scopes are the same paths
//!   with `/`: the convolution with the weight `layer1.0.conv1.weight` has the scope `layer1/0/conv1`.
//! - [`pretrained`] knows two trained networks of the data folder, with their preprocessing.
//!
//! Adding a network: a file under `networks/`, a row in `list.rs`. Nothing here reads files.
//!
//! ```
//! use prestow_zoo::{Options, Seeded, build};
//!
//! let model = build("lenet", 1, &mut Seeded(1), Options::default()).unwrap();
//! assert_eq!(model.graph.parameters(), 61_706);
//! assert!(build("lenat", 1, &mut Seeded(1), Options::default()).unwrap_err().to_string().contains("lenet"));
//! ```

mod builder;
mod init;
mod list;
mod networks;
mod pretrained;
mod weights;

use ir::{Graph, Refusal};
use types::{ChannelOrder, DType, Filter, Preprocess, Scope, Shape};

pub use builder::{Builder, Window};
pub use init::Init;
pub use list::{Spec, find, list};
pub use pretrained::{Pretrained, Tensors, labels, pretrained};
pub use weights::{Named, Seeded, Weights};

/// A built network.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// One input `input` of shape `[batch, channels, side, side]`; one output, `logits` or `probabilities`.
    ///
    /// Learned parameters are weights and running statistics of batch norms are constants, so that
    /// [`Graph::parameters`] is the published count.
    pub graph: Graph,
    /// How a picture becomes the input; none for inputs that are not RGB.
    pub preprocess: Option<Preprocess>,
}

/// What may differ from the published network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What stands behind the last layer.
    pub head: Head,
    /// Rows and columns of the input, where not the published ones. Networks refuse what they cannot take.
    pub side: Option<usize>,
}

/// What stands behind the last layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Nothing; the output is named `logits`.
    #[default]
    Logits,
    /// Softmax; the output is named `probabilities`.
    Probabilities,
}

/// Builds a network of [`list`]. Upper case and `-`, `_`, `.` in `name` do not matter.
///
/// # Errors
/// A name that is not on the list, weights that are missing or do not fit, an input too small for the network.
pub fn build(name: &str, batch: usize, weights: &mut dyn Weights, options: Options) -> Result<Model, ZooError> {
    let spec = find(name).ok_or_else(|| list::unknown(name))?;
    let mut model = assemble(spec, batch, weights, options, spec.network)?;
    model.preprocess = (spec.input[0] == 3).then(|| imagenet(options.side.unwrap_or(spec.input[1])));
    Ok(model)
}

/// Puts an input in front of a network and a head behind it.
fn assemble(
    spec: &Spec,
    batch: usize,
    weights: &mut dyn Weights,
    options: Options,
    network: list::Network,
) -> Result<Model, ZooError> {
    let [channels, height, width] = spec.input;
    let (height, width) = (options.side.unwrap_or(height), options.side.unwrap_or(width));
    if batch == 0 || height == 0 {
        return Err(ZooError::Input { network: spec.name, problem: "batch and side are at least 1".into() });
    }
    let mut builder = Builder::new(spec.name, weights);
    let input = builder.graph.add_input("input", DType::F32, Shape::from([batch, channels, height, width]));
    let logits = network(&mut builder, input)?;
    let (name, output) = match options.head {
        Head::Logits => ("logits", logits),
        Head::Probabilities => ("probabilities", builder.softmax(logits, "softmax")?),
    };
    let mut graph = builder.graph;
    graph.value_mut(output).name = name.to_string();
    graph.set_outputs(vec![(name.to_string(), output)]);
    Ok(Model { graph, preprocess: None })
}

/// The preprocessing that torchvision's classifiers were trained with.
fn imagenet(side: usize) -> Preprocess {
    Preprocess {
        height: side,
        width: side,
        crop_fraction: 0.875,
        filter: Filter::Bilinear,
        channel_order: ChannelOrder::Rgb,
        mean: [123.675, 116.28, 103.53],
        scale: [58.395, 57.12, 57.375],
    }
}

/// Why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZooError {
    /// The name is not on the list.
    #[error("no network is called `{name}`; {hint}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// Near names, or all.
        hint: String,
    },
    /// A parameter is not among the weights.
    #[error("the weights have no tensor `{name}` of shape {want}")]
    Missing {
        /// The parameter.
        name: String,
        /// Its shape.
        want: Shape,
    },
    /// A parameter has another shape.
    #[error("tensor `{name}` has shape {got}, not {want}")]
    WrongShape {
        /// The parameter.
        name: String,
        /// The shape that the network needs.
        want: Box<Shape>,
        /// The shape that was given.
        got: Box<Shape>,
    },
    /// A parameter is not of floats.
    #[error("tensor `{name}` holds {got}, not floats")]
    WrongDType {
        /// The parameter.
        name: String,
        /// What was given.
        got: DType,
    },
    /// An operator cannot be applied; mostly the input is too small.
    #[error("`{scope}`: {refusal}")]
    Refused {
        /// Where.
        scope: Scope,
        /// Why.
        refusal: Refusal,
    },
    /// The network does not take such an input.
    #[error("{network}: {problem}")]
    Input {
        /// The network.
        network: &'static str,
        /// Why not.
        problem: String,
    },
    /// A file of class names is not understood.
    #[error("class names: {0}")]
    Labels(String),
}
