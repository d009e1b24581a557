//! AlexNet, the single-tower form (Krizhevsky 2014, "One weird trick"), as in torchvision.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let pool = Window::square(3).stride(2);
    let x = b.conv_bias(x, "features.0", 64, Window::square(11).stride(4).pad(2))?;
    let x = b.relu(x, "features.1")?;
    let x = b.max_pool(x, "features.2", pool)?;
    let x = b.conv_bias(x, "features.3", 192, Window::square(5).centred())?;
    let x = b.relu(x, "features.4")?;
    let x = b.max_pool(x, "features.5", pool)?;
    let x = b.conv_bias(x, "features.6", 384, Window::square(3).centred())?;
    let x = b.relu(x, "features.7")?;
    let x = b.conv_bias(x, "features.8", 256, Window::square(3).centred())?;
    let x = b.relu(x, "features.9")?;
    let x = b.conv_bias(x, "features.10", 256, Window::square(3).centred())?;
    let x = b.relu(x, "features.11")?;
    let x = b.max_pool(x, "features.12", pool)?;
    let x = b.adaptive_mean_pool(x, "avgpool", 6)?;
    let x = b.flatten(x, "flatten")?;
    // The dropouts between these are the identity at inference.
    let x = b.linear(x, "classifier.1", 4096)?;
    let x = b.relu(x, "classifier.2")?;
    let x = b.linear(x, "classifier.4", 4096)?;
    let x = b.relu(x, "classifier.5")?;
    b.linear(x, "classifier.6", 1000)
}
