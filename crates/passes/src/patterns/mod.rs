//! Patterns: nodes that exporters write for one function, replaced by the operator for it.

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod channel_products;
pub(crate) mod layer_norm;
