//! VGG (Simonyan & Zisserman 2015).

use ir::ValueId;

use super::alexnet;
use crate::{Builder, Window, ZooError};

/// `depths`: convolutions in front of each of the five poolings.
pub(crate) fn build(b: &mut Builder, x: ValueId, depths: [usize; 5]) -> Result<ValueId, ZooError> {
    let mut x = x;
    for (block, (depth, channels)) in (1..).zip(depths.into_iter().zip([64, 128, 256, 512, 512])) {
        for layer in 1..=depth {
            x = b.conv_bias(x, &format!("conv{block}_{layer}"), channels, Window::square(3).centred())?;
            x = b.relu(x, &format!("relu{block}_{layer}"))?;
        }
        x = b.max_pool(x, &format!("pool{block}"), Window::square(2).stride(2))?;
    }
    let x = b.flatten(x, "flatten")?;
    alexnet::classifier(b, x, [4096, 4096])
}
