//! Fusion: several nodes become one step.

pub(crate) mod conv_chains;
pub(crate) mod epilogues;
pub(crate) mod pointwise;
pub(crate) mod transposes;
pub(crate) mod updates;
