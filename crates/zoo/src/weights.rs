//! [`ParameterSource`]: where a network's parameters come from.

use std::collections::BTreeMap;

use types::{DType, Random, Shape, Tensor};

use crate::{Init, ZooError, find};

/// A source of parameters.
pub trait ParameterSource {
    /// The `f32` tensor of the parameter `name`. Builders ask once for each; linear weights are `[out, in]`.
    fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError>;
}

/// Parameters from a seed: the elements of a tensor depend on the seed, its name and its shape only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeded(pub u64);

impl ParameterSource for Seeded {
    fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError> {
        Ok(init.draw(shape, &mut Random::for_name(self.0, name)))
    }
}

/// Parameters to begin a training with, from a seed.
///
/// Weights are uniform with variance `2 magnitude / 3 / (inputs + outputs)`, tables uniform in ±0.03; scales and running
/// variances are 1, biases, shifts and running means 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitialWeights {
    seed: u64,
    magnitude: f32,
}

impl InitialWeights {
    /// The magnitude of Glorot and Bengio (2010).
    pub(crate) const GLOROT: f32 = 3.0;

    /// Those of a network: with the published magnitude of MXNet's `Xavier`, else with Glorot's.
    pub fn new(network: &str, seed: u64) -> InitialWeights {
        InitialWeights { seed, magnitude: find(network).map_or(InitialWeights::GLOROT, |spec| spec.magnitude) }
    }
}

impl ParameterSource for InitialWeights {
    fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError> {
        let uniform = |bound: f32| {
            let mut random = Random::for_name(self.seed, name);
            Tensor::from_fn(shape.clone(), |_| random.uniform(-bound, bound))
        };
        Ok(match init {
            Init::Weight { fan_in } => {
                // Cells of a kernel count on both sides.
                let cells: usize = shape.iter().skip(2).product();
                let fan_out = shape[0] * cells;
                uniform((2.0 * self.magnitude / (fan_in + fan_out).max(1) as f32).sqrt())
            }
            Init::Table => uniform(0.03),
            Init::Scale | Init::BranchScale | Init::One | Init::Variance => Tensor::full(shape.clone(), 1.0f32),
            Init::Bias | Init::Shift | Init::Mean => Tensor::full(shape.clone(), 0.0f32),
        })
    }
}

/// Parameters from a file, by name. Other floats than `f32` are converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Named(BTreeMap<String, Tensor>);

impl Named {
    /// Parameters by name.
    pub fn new(tensors: BTreeMap<String, Tensor>) -> Named {
        Named(tensors)
    }

    /// Tensors not used yet; after [`crate::build`], those that the network does not have.
    ///
    /// Torch's counters `num_batches_tracked` are left out, which matter to training only, and the `position_ids` of older
    /// files of transformers: they count from 0 on.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        const NOTHING: [&str; 2] = ["num_batches_tracked", "position_ids"];
        self.0.keys().map(String::as_str).filter(|name| !NOTHING.iter().any(|nothing| name.ends_with(nothing)))
    }
}

impl ParameterSource for Named {
    fn take(&mut self, name: &str, shape: &Shape, _init: Init) -> Result<Tensor, ZooError> {
        let Some(tensor) = self.0.remove(name) else {
            return Err(ZooError::Missing { name: name.to_string(), want: shape.clone() });
        };
        if tensor.shape() != shape {
            let (want, got) = (shape.clone().into(), tensor.shape().clone().into());
            return Err(ZooError::WrongShape { name: name.to_string(), want, got });
        }
        match tensor.dtype() {
            DType::F32 => Ok(tensor),
            dtype if dtype.is_float() => Ok(tensor.cast(DType::F32)),
            got => Err(ZooError::WrongDType { name: name.to_string(), got }),
        }
    }
}
