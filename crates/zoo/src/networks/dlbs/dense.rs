//! Networks of fully connected layers alone: DeepMNIST, SensorNet, AcousticModel.

use ir::ValueId;

use super::head;
use crate::{Builder, ZooError};

/// `widths`: results of the layers in front of the classes.
pub(crate) fn build(b: &mut Builder, x: ValueId, widths: &[usize], classes: usize) -> Result<ValueId, ZooError> {
    let mut x = x;
    for (ix, &width) in widths.iter().enumerate() {
        x = b.linear(x, &format!("fullyconnected{ix}"), width)?;
        x = b.relu(x, &format!("activation{ix}"))?;
    }
    head(b, x, widths.len(), classes)
}
