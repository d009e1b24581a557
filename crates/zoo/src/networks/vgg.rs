//! VGG (Simonyan & Zisserman 2015), as in torchvision.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

/// The layers after each convolution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norm {
    None,
    Batch,
}

/// `depths`: convolutions in front of each of the five poolings.
pub(crate) fn build(b: &mut Builder, x: ValueId, norm: Norm, depths: [usize; 5]) -> Result<ValueId, ZooError> {
    let mut x = x;
    // Layers are numbered through, those without parameters as well.
    let mut layer = 0..;
    let mut next = || format!("features.{}", layer.next().expect("the count has no end"));
    for (depth, channels) in depths.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..depth {
            x = b.conv_bias(x, &next(), channels, Window::square(3).centred())?;
            if norm == Norm::Batch {
                x = b.batch_norm(x, &next())?;
            }
            x = b.relu(x, &next())?;
        }
        x = b.max_pool(x, &next(), Window::square(2).stride(2))?;
    }
    let x = b.adaptive_mean_pool(x, "avgpool", 7)?;
    let x = b.flatten(x, "flatten")?;
    let x = b.linear(x, "classifier.0", 4096)?;
    let x = b.relu(x, "classifier.1")?;
    let x = b.linear(x, "classifier.3", 4096)?;
    let x = b.relu(x, "classifier.4")?;
    b.linear(x, "classifier.6", 1000)
}
