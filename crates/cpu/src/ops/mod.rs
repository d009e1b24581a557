//! Kernels of operators other than convolutions: products, attention, recurrence, reductions, pooling, elementwise
//! chains.

pub(crate) mod arg_extreme;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod chain;
pub(crate) mod column_folds;
pub(crate) mod cross_entropy;
pub(crate) mod ctc;
pub(crate) mod cumulative_sum;
pub(crate) mod dropout;
pub(crate) mod elementwise;
pub(crate) mod layer_norm;
pub(crate) mod lrn;
pub(crate) mod matmul;
pub(crate) mod pool_gradient;
pub(crate) mod pool_with_positions;
pub(crate) mod pooling;
pub(crate) mod pooling_blocked;
pub(crate) mod pooling_volumes;
pub(crate) mod recurrent;
pub(crate) mod recurrent_gradient;
pub(crate) mod reduce;
pub(crate) mod scatter;
pub(crate) mod softmax;
pub(crate) mod top_k;
pub(crate) mod update;

pub use self::pooling::{Pool2d, Pool2dKind};
