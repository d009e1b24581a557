//! Analyses that passes, lowering and reports share: computed once for a graph, named, and passed on.
//!
//! - [`alias`] decides which values share bytes, for any order of the nodes or for the order that they have.
//! - [`alignment`] gives the alignment of values' bytes, whichever share them.
//! - [`index`] finds the values that are indices, and their limits.
//! - [`liveness`] gives live ranges, live bytes and slack for the order that the nodes have.

pub mod alias;
pub mod alignment;
pub mod index;
mod live_peak;
pub mod liveness;

use crate::{Graph, ValueId};

/// The bytes of a value in its layout.
pub fn value_size(graph: &Graph, value: ValueId) -> u64 {
    let value = graph.value(value);
    value.layout.size(&value.ty.shape, value.ty.dtype).0
}
