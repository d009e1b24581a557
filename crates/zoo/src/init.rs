//! [`Init`]: the purpose of a parameter, and its distribution from a seed, which keeps the scale of activations.

use types::{Random, Shape, Tensor};

/// The purpose of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// The weight of a convolution or linear layer, each of whose results sums `fan_in` products.
    Weight {
        /// The number of products.
        fan_in: usize,
    },
    /// The bias of a convolution or linear layer.
    Bias,
    /// The scale of a batch norm.
    Scale,
    /// The scale of the last batch norm of a residual branch. Small, so that sums do not grow from block to block.
    BranchScale,
    /// The shift of a batch norm.
    Shift,
    /// A scale that is 1 and is not learned.
    One,
    /// The rows of an embedding.
    Table,
    /// The running mean of a batch norm.
    Mean,
    /// The running variance of a batch norm.
    Variance,
}

impl Init {
    /// Draws a tensor.
    ///
    /// Weights have variance `2 / fan_in` (He et al. 2015), which keeps the second moment through convolution and relu.
    /// The ranges of scale and variance keep it through a batch norm: the mean of `scale^2 / variance` is 1.01.
    pub fn draw(self, shape: &Shape, random: &mut Random) -> Tensor {
        let (low, high) = match self {
            Init::Weight { fan_in } => {
                let bound = (6.0 / fan_in.max(1) as f32).sqrt();
                (-bound, bound)
            }
            Init::Scale => (0.7, 1.2),
            Init::BranchScale => (0.15, 0.25),
            Init::One => return Tensor::full(shape.clone(), 1.0f32),
            Init::Table => (-1.0, 1.0),
            Init::Variance => (0.5, 1.5),
            Init::Bias | Init::Shift | Init::Mean => (-0.05, 0.05),
        };
        Tensor::from_fn(shape.clone(), |_| random.uniform(low, high))
    }
}
