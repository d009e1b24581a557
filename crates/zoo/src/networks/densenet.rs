//! DenseNet (Huang et al. 2017), as in torchvision.
//!
//! Each layer's features are joined to all that came before. Torchvision joins the list anew in front of each layer;
//! here the joined tensor grows by one part at a time, which is the same channels in the same order.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

/// Channels that each layer adds.
const GROWTH: usize = 32;
/// Channels between the two convolutions of a layer.
const NECK: usize = 4 * GROWTH;

/// `depths`: layers in each of the four blocks.
pub(crate) fn build(b: &mut Builder, x: ValueId, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let x = b.conv(x, "features.conv0", 2 * GROWTH, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm(x, "features.norm0")?;
    let x = b.relu(x, "features.relu0")?;
    let mut x = b.max_pool(x, "features.pool0", Window::square(3).stride(2).pad(1))?;
    for (depth, block) in depths.into_iter().zip(1..) {
        for layer in 1..=depth {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            let new = dense_layer(b, x, &name)?;
            x = b.concat(&[x, new], &format!("{name}.concat"))?;
        }
        if block < depths.len() {
            x = transition(b, x, &format!("features.transition{block}"))?;
        }
    }
    let x = b.batch_norm(x, "features.norm5")?;
    let x = b.relu(x, "relu")?;
    let x = b.global_mean(x, "avgpool")?;
    b.linear(x, "classifier", 1000)
}

fn dense_layer(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &format!("{name}.norm1"))?;
    let x = b.relu(x, &format!("{name}.relu1"))?;
    let x = b.conv(x, &format!("{name}.conv1"), NECK, Window::square(1))?;
    let x = b.batch_norm(x, &format!("{name}.norm2"))?;
    let x = b.relu(x, &format!("{name}.relu2"))?;
    b.conv(x, &format!("{name}.conv2"), GROWTH, Window::square(3).centred())
}

/// Halves channels, rows and columns.
fn transition(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let out = b.channels(x) / 2;
    let x = b.batch_norm(x, &format!("{name}.norm"))?;
    let x = b.relu(x, &format!("{name}.relu"))?;
    let x = b.conv(x, &format!("{name}.conv"), out, Window::square(1))?;
    b.mean_pool(x, &format!("{name}.pool"), Window::square(2).stride(2))
}
