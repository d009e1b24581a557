//! Named networks: each is a small function over a [`Builder`] that yields a graph.
//!
//! - [`list`] has all networks; [`build`] builds one with [`ParameterSource`] from a seed, a file or another source.
//! - There are torchvision's networks, all of gluon's `model_zoo.vision` (`gluon/resnet50_v1`), those of the Deep Learning
//!   Benchmarking Suite (`dlbs/resnet50`) and four that read words or patches.
//! - Parameters are called as where a network comes from (torchvision's `state_dict`, gluon's `save_parameters`, MXNet's
//!   symbols), so that its files load by name. Scopes are the same paths with `/`: the convolution with the weight
//!   `layer1.0.conv1.weight` has the scope `layer1/0/conv1`.
//! - [`Names`] is for files that call their tensors otherwise: a list of patterns.
//! - [`pretrained`] has the trained networks of the data folder, with their preprocessing.
//!
//! Adding a network: a file under `networks/`, a row in `list.rs`. Nothing here reads files.
//!
//! ```
//! use prestow_zoo::{NetworkOptions, Seeded, build};
//!
//! let model = build("lenet", 1, &mut Seeded(1), &NetworkOptions::default()).unwrap();
//! assert_eq!(model.graph.parameters(), 61_706);
//! assert!(build("lenat", 1, &mut Seeded(1), &NetworkOptions::default()).unwrap_err().to_string().contains("lenet"));
//! ```

mod builder;
mod init;
mod list;
mod names;
mod networks;
mod pretrained;
mod weights;

use std::collections::{BTreeMap, BTreeSet};

use ir::{Graph, Moving, Op, Refusal, Trainable, ValueId};
use types::{ChannelOrder, DType, Filter, Preprocess, Scope, Shape};

pub use builder::{Builder, Window};
pub use init::Init;
pub use list::{Input, Spec, find, is_in_collection, list};
pub use names::Names;
pub use pretrained::{ImageInputs, Pretrained, Tensors, labels, pretrained};
pub use weights::{InitialWeights, Named, ParameterSource, Seeded};

/// A built network.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The inputs and the output of its [`Spec`].
    ///
    /// Learned parameters are weights and running statistics of batch norms are constants, so that
    /// [`Graph::parameters`] is the published count.
    pub graph: Graph,
    /// The preprocessing of an image; `None` if the input is not an image or the preprocessing is unspecified.
    pub preprocess: Option<Preprocess>,
    /// Matrices that are the transposes of the parameters of their names.
    pub transposed: BTreeSet<ValueId>,
    /// How running statistics move in training, as where the network comes from.
    pub moving: Moving,
}

impl Network {
    /// The network with the facts that training uses. The networks of this list have no dropout.
    pub fn into_trainable(self) -> Trainable {
        let norms = self.graph.nodes().values().filter(|node| matches!(node.op, Op::BatchNorm(_)));
        let moving = norms.map(|node| (node.outputs[0], self.moving)).collect();
        Trainable { moving, transposed: self.transposed, ..Trainable::from(self.graph) }
    }
}

/// NetworkOptions that differ from the published network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The function after the last layer.
    pub head: Head,
    /// Shapes of inputs by name, batch included, if not the published ones. Networks refuse shapes that they cannot
    /// take.
    pub shapes: BTreeMap<String, Shape>,
}

/// The function after the last layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// As in the published network.
    #[default]
    Published,
    /// Softmax, also behind a network that yields logits; the output is named `probabilities`.
    Probabilities,
}

/// Builds a network of [`list`]. Upper case and `-`, `_`, `.` in `name` do not matter.
///
/// # Errors
/// A name that is not on the list, weights that are missing or do not fit, a shape that the network does not take.
pub fn build(
    name: &str,
    batch: usize,
    weights: &mut dyn ParameterSource,
    options: &NetworkOptions,
) -> Result<Network, ZooError> {
    let spec = find(name).ok_or_else(|| list::unknown(name))?;
    let mut model = assemble(spec, batch, weights, options, spec.network)?;
    if spec.imagenet {
        let input = &model.graph.ty(model.graph.inputs()[0]).shape;
        model.preprocess = Some(imagenet(input[2], input[3]));
    }
    Ok(model)
}

/// Puts inputs in front of a network and a head behind it.
fn assemble(
    spec: &Spec,
    batch: usize,
    weights: &mut dyn ParameterSource,
    options: &NetworkOptions,
    network: list::BuildFn,
) -> Result<Network, ZooError> {
    let mut builder = Builder::new(spec.name, spec.dialect, weights);
    if let Some(other) = options.shapes.keys().find(|name| spec.inputs.iter().all(|input| input.name != **name)) {
        let names: Vec<String> = spec.inputs.iter().map(|input| format!("`{}`", input.name)).collect();
        return builder.refused(format!("there is no input `{other}`, but {}", names.join(", ")));
    }
    let mut inputs: Vec<ValueId> = Vec::with_capacity(spec.inputs.len());
    for input in spec.inputs {
        let shape = input.with_batch(batch, options.shapes.get(input.name));
        let shape = shape.map_err(|problem| ZooError::Input { network: spec.name, problem })?;
        inputs.push(builder.graph.add_input(input.name, input.dtype, shape));
    }
    let result = network(&mut builder, &inputs)?;
    let (name, output) = match options.head {
        Head::Probabilities if spec.output == "logits" => ("probabilities", builder.softmax(result, "softmax")?),
        Head::Probabilities if spec.output != "probabilities" => {
            return builder.refused(format!("it yields `{}`, not scores of classes", spec.output));
        }
        _ => (spec.output, result),
    };
    let mut outputs = vec![(name, output)];
    outputs.append(&mut builder.also);
    let (mut graph, transposed) = (builder.graph, builder.transposed);
    outputs.iter().for_each(|&(name, value)| graph.value_mut(value).name = name.to_string());
    graph.set_outputs(outputs.into_iter().map(|(name, value)| (name.to_string(), value)).collect());
    let moving = Moving { unbiased: spec.dialect == builder::Dialect::Torch, ..Moving::default() };
    Ok(Network { graph, preprocess: None, transposed, moving })
}

impl Input {
    /// The whole shape, if `asked` is valid for the network.
    fn with_batch(&self, batch: usize, asked: Option<&Shape>) -> Result<Shape, String> {
        let published = Shape::from_iter([&[batch], self.shape].concat());
        let shape = asked.cloned().unwrap_or_else(|| published.clone());
        let fits = shape.rank() == published.rank()
            && shape[0] == batch
            && self.shape.iter().zip(&shape[1..]).zip(self.open).all(|((have, want), open)| *open || have == want);
        if fits && !shape.contains(&0) {
            return Ok(shape);
        }
        let free = self.shape.iter().zip(self.open).map(|(extent, open)| match open {
            true => "any".to_string(),
            false => extent.to_string(),
        });
        let free: Vec<String> = free.collect();
        Err(format!(
            "the input `{}` has the shape [batch, {}], not {shape} with a batch of {batch}",
            self.name,
            free.join(", ")
        ))
    }
}

/// The preprocessing that the classifiers of torchvision and gluon were trained with.
fn imagenet(height: usize, width: usize) -> Preprocess {
    Preprocess {
        height,
        width,
        crop_fraction: 0.875,
        filter: Filter::Bilinear,
        channel_order: ChannelOrder::Rgb,
        mean: [123.675, 116.28, 103.53],
        scale: [58.395, 57.12, 57.375],
    }
}

/// The reason for which a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZooError {
    /// The name is not on the list.
    #[error("no network is called `{name}`{hint}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Similar names, if there are any.
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
    #[error("tensor `{name}` must have shape {want}, got {got}")]
    WrongShape {
        /// The parameter.
        name: String,
        /// The shape that the network needs.
        want: Box<Shape>,
        /// The shape that was given.
        got: Box<Shape>,
    },
    /// A parameter has no float dtype.
    #[error("tensor `{name}` must have a float dtype, got {got}")]
    WrongDType {
        /// The parameter.
        name: String,
        /// The dtype given.
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
    /// A list of names is not understood, or does not fit the tensors.
    #[error("names: {0}")]
    Names(String),
    /// A file of class names is not understood.
    #[error("class names: {0}")]
    Labels(String),
}

impl ZooError {
    /// Whether the name is not on the list.
    pub fn is_unknown_name(&self) -> bool {
        matches!(self, ZooError::Unknown { .. })
    }
}
