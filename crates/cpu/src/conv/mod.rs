//! Convolution kernels and the geometry of windows.

pub(crate) mod depthwise;
pub(crate) mod direct;
pub(crate) mod geometry;
pub(crate) mod inverted_bottleneck;
pub(crate) mod row_major;
pub(crate) mod transpose;
pub(crate) mod winograd;

pub use self::depthwise::DepthwiseBlocked;
pub use self::direct::{ConvAlgorithm, ConvBlocked, ImageLayout};
pub use self::geometry::Window;
