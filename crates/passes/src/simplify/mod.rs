//! Rewrites that make a graph smaller or more regular, whatever the target.

pub(crate) mod canonicalize;
pub(crate) mod conv3d_to_conv2d;
pub(crate) mod conv_transpose_to_conv;
pub(crate) mod cse;
pub(crate) mod dce;
pub(crate) mod decompose_batch_norm;
pub(crate) mod fold_batch_norm;
pub(crate) mod fold_constants;
