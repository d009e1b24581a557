//! The Deep Learning Benchmarking Suite's networks for MXNet (HPE's DLBS, all 22), at inference: dropouts are gone and the
//! output is the softmax. Parameters are called as in its symbols.

pub(crate) mod alexnet;
pub(crate) mod deep_speech2;
pub(crate) mod dense;
pub(crate) mod googlenet;
pub(crate) mod inception;
pub(crate) mod inception_resnet;
pub(crate) mod resnet;
pub(crate) mod vgg;

use ir::ValueId;

use crate::{Builder, ZooError};

/// The epsilon of most batch norms.
const EPSILON: f32 = 2e-5;

/// The classes' probabilities. The layer is unnamed; `ix` unnamed fully connected layers precede it.
fn head(b: &mut Builder, x: ValueId, ix: usize, classes: usize) -> Result<ValueId, ZooError> {
    let x = b.linear(x, &format!("fullyconnected{ix}"), classes)?;
    b.softmax(x, "softmax")
}
