//! CUDA C templates of the emitted kernels, as constants.
//!
//! `prestow-lower` writes one function a node and puts the templates in front that it calls. Nothing here is compiled: NVRTC
//! compiles the templates for a GPU, and a C++ compiler compiles them for a processor behind the shim in `cuda/mock`.

/// Types, indices and conversions that every template needs.
pub const BASE: &str = include_str!("../templates/base.cu");
/// Pointwise functions by name.
pub const POINTWISE: &str = include_str!("../templates/pointwise.cu");
/// Matrix products in shared memory, in `f32`.
pub const PRODUCT: &str = include_str!("../templates/product.cu");
/// Matrix products and convolutions by tensor cores (`mma.sync`).
pub const TENSOR: &str = include_str!("../templates/tensor.cu");
/// Attention by tensor cores.
pub const ATTENTION: &str = include_str!("../templates/attention.cu");
/// The geometry of convolution and pooling windows.
pub const WINDOW: &str = include_str!("../templates/window.cu");
/// Convolutions in `f32`, and the gradients of their weights.
pub const CONVOLUTION: &str = include_str!("../templates/convolution.cu");
/// Convolutions of channels-last values: by tensor cores, and by channel.
pub const CHANNELS_LAST: &str = include_str!("../templates/channels_last.cu");
/// Pooling and its gradients.
pub const POOL: &str = include_str!("../templates/pool.cu");
/// Reductions along rows: softmax, normalization, attention.
pub const ROWS: &str = include_str!("../templates/rows.cu");
/// One step of recurrent cells.
pub const RECURRENT: &str = include_str!("../templates/recurrent.cu");
/// Steps of recurrent cells on tensor cores.
pub const RECURRENT_CORES: &str = include_str!("../templates/recurrent_cores.cu");
/// Gradients of recurrent layers, phase by phase.
pub const RECURRENT_GRADIENT: &str = include_str!("../templates/recurrent_gradient.cu");
/// Operators of training steps: normalization, dropout, losses, sums by index, updates.
pub const TRAINING: &str = include_str!("../templates/training.cu");
/// Connectionist temporal classification and its gradient.
pub const CTC: &str = include_str!("../templates/ctc.cu");
/// Probes of a GPU's peak arithmetic and bandwidth.
pub const PEAK: &str = include_str!("../templates/peak.cu");
