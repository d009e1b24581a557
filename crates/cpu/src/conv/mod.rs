//! Convolution kernels and the geometry of windows.

mod compact;
pub(crate) mod depthwise;
pub(crate) mod depthwise_gradient;
pub(crate) mod direct;
pub(crate) mod dynamic;
pub(crate) mod geometry;
pub(crate) mod inverted_bottleneck;
pub(crate) mod row_major;
pub(crate) mod transpose;
pub(crate) mod unbuffered;
pub(crate) mod weight_gradient;
pub(crate) mod winograd;

pub use self::compact::{CompactConv, PlainConv};
pub use self::depthwise::DepthwiseBlocked;
pub use self::depthwise_gradient::{DepthwiseDataGradient, DepthwiseWeightGradient};
pub use self::direct::{BlockTerms, ConvAlgorithm, ConvBlocked, ImageLayout};
pub use self::dynamic::{ConvDataGradient, DynamicConv, PackedConv, WeightOrder, groups_of_blocks};
pub use self::geometry::Window;
pub(crate) use self::geometry::check_groups;
pub use self::unbuffered::ConvUnbuffered;
pub use self::weight_gradient::{ConvWeightGradient, WeightGradientRows};
