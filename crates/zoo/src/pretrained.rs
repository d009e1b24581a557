//! Trained networks of the data folder: their files and, for image classifiers, the preprocessing and class names.

use std::collections::BTreeMap;

use types::{ChannelOrder, Filter, Preprocess, Shape, Tensor};

use crate::list::{BuildFn, find, fold};
use crate::networks::{bert, efficientnet_lite, squeezenet};
use crate::{Head, Named, Names, Network, NetworkOptions, ZooError, assemble};

/// Tensors by name, as a file has them.
pub type Tensors = BTreeMap<String, Tensor>;

/// A trained network. [`Pretrained::build`] makes a model of the tensors of its file; the caller reads the file.
#[derive(Clone, Copy, Debug)]
pub struct Pretrained {
    /// The name in [`crate::list`].
    pub name: &'static str,
    /// The file of weights, below the data folder.
    pub file: &'static str,
    /// From the file's names and layouts to ours.
    pub adapt: fn(Tensors) -> Result<Tensors, ZooError>,
    /// For image classifiers.
    pub images: Option<ImageInputs>,
    network: BuildFn,
}

/// The preprocessing that an image classifier was trained with.
#[derive(Clone, Copy, Debug)]
pub struct ImageInputs {
    /// The file of class names for [`labels`], below the data folder.
    pub labels: &'static str,
    /// Rows and columns of the input; not always the published ones.
    pub side: usize,
    crop_fraction: f32,
    filter: Filter,
    channel_order: ChannelOrder,
    mean: [f32; 3],
    scale: [f32; 3],
}

/// The trained network of that name, if there is one. Upper case and `-`, `_`, `.` do not matter.
pub fn pretrained(name: &str) -> Option<Pretrained> {
    PRETRAINED.into_iter().find(|pretrained| fold(pretrained.name) == fold(name))
}

const LABELS: &str = "labels/imagenet1k_label_to_names.json";

const PRETRAINED: [Pretrained; 3] = [
    Pretrained {
        name: "all_minilm_l6_v2",
        file: "models/all-minilm-l6-v2/model.safetensors",
        adapt: Ok,
        images: None,
        network: bert::all_minilm_l6_v2,
    },
    Pretrained {
        name: "efficientnet_lite0",
        file: "models/efficientnet-lite0-57934424.pth",
        adapt: Ok,
        images: Some(ImageInputs {
            labels: LABELS,
            side: 224,
            crop_fraction: 0.875,
            filter: Filter::Bicubic,
            channel_order: ChannelOrder::Rgb,
            mean: [127.0; 3],
            scale: [128.0; 3],
        }),
        network: |b, x| efficientnet_lite::build(b, x[0]),
    },
    Pretrained {
        name: "squeezenet1_1",
        file: "models/squeezenet11_imagenet_hwio.pkl",
        adapt: adapt_squeezenet,
        images: Some(ImageInputs {
            labels: LABELS,
            side: 227,
            crop_fraction: 1.0,
            filter: Filter::Bilinear,
            channel_order: ChannelOrder::Bgr,
            mean: [104.006, 116.669, 122.679],
            scale: [1.0; 3],
        }),
        network: |b, x| squeezenet::v1_1_full_pools(b, x[0]),
    },
];

impl ImageInputs {
    /// How a picture becomes the input.
    pub fn preprocess(&self) -> Preprocess {
        Preprocess {
            height: self.side,
            width: self.side,
            crop_fraction: self.crop_fraction,
            filter: self.filter,
            channel_order: self.channel_order,
            mean: self.mean,
            scale: self.scale,
        }
    }
}

impl Pretrained {
    /// The model, from the tensors of its file. A classifier's output is `probabilities`. `shapes` are those of inputs that
    /// may be chosen; a classifier's input is as it was trained.
    ///
    /// # Errors
    /// Tensors that are missing or do not fit; a shape that may not be chosen.
    pub fn build(&self, batch: usize, tensors: Tensors, shapes: BTreeMap<String, Shape>) -> Result<Network, ZooError> {
        let spec = find(self.name).expect("every trained network is on the list");
        let mut options = NetworkOptions { shapes, ..NetworkOptions::default() };
        if let Some(ImageInputs { side, .. }) = self.images {
            if !options.shapes.is_empty() {
                let problem = format!("its images are {side} x {side}, as it was trained");
                return Err(ZooError::Input { network: spec.name, problem });
            }
            let input = Shape::from([batch, 3, side, side]);
            options = NetworkOptions { head: Head::Probabilities, shapes: [("input".to_string(), input)].into() };
        }
        let mut weights = Named::new((self.adapt)(tensors)?);
        let model = assemble(spec, batch, &mut weights, &options, self.network)?;
        Ok(Network { preprocess: self.images.map(|images| images.preprocess()), ..model })
    }
}

/// The names of classes, in order, from a JSON object `{"0": "tench, Tinca tinca", ..}` or a list of names.
///
/// # Errors
/// Another structure, or numbers that leave one out.
pub fn labels(json: &str) -> Result<Vec<String>, ZooError> {
    use serde_json::Value;
    let refused = |problem: String| ZooError::Labels(problem);
    let name = |value: Value| match value {
        Value::String(name) => Ok(name),
        other => Err(refused(format!("`{other}` is not a name"))),
    };
    match serde_json::from_str(json).map_err(|error| refused(error.to_string()))? {
        Value::Array(names) => names.into_iter().map(name).collect(),
        Value::Object(mut names) => {
            let count = names.len();
            (0..count)
                .map(|class| {
                    let missing = || refused(format!("there are {count} names, but none for class {class}"));
                    name(names.remove(&class.to_string()).ok_or_else(missing)?)
                })
                .collect()
        }
        _ => Err(refused("neither a list nor an object with a name for each class".into())),
    }
}

/// Caffe's names, and kernels with rows and columns in front.
fn adapt_squeezenet(tensors: Tensors) -> Result<Tensors, ZooError> {
    let tensors = Names::parse(include_str!("../names/squeezenet1_1.caffe.names"))?.apply(tensors)?;
    Ok(tensors.into_iter().map(|(name, tensor)| (name, channels_first(tensor))).collect())
}

/// From rows, columns, inputs, outputs (HWIO) to outputs, inputs, rows, columns (OIHW). A tensor that is not an `f32` kernel
/// is unchanged, and refused by name when it is used.
fn channels_first(kernel: Tensor) -> Tensor {
    let (&[rows, columns, inputs, outputs], Some(items)) = (&kernel.shape()[..], kernel.as_slice::<f32>()) else {
        return kernel;
    };
    let cells = rows * columns;
    Tensor::from_fn(Shape::from([outputs, inputs, rows, columns]), |at| {
        let (output, input, cell) = (at / cells / inputs, at / cells % inputs, at % cells);
        items[(cell * inputs + input) * outputs + output]
    })
}
