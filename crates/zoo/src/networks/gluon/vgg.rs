//! VGG (Simonyan & Zisserman 2015).

use ir::ValueId;

use super::{Children, alexnet};
use crate::{Builder, Window, ZooError};

/// `norm`: whether a batch norm follows each convolution. `depths`: convolutions before each pooling.
pub(crate) fn build(b: &mut Builder, x: ValueId, norm: bool, depths: [usize; 5]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let mut x = x;
    for (depth, channels) in depths.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..depth {
            x = b.conv_bias(x, &names.next(), channels, Window::square(3).centred())?;
            if norm {
                x = b.batch_norm(x, &names.next())?;
            }
            x = b.relu(x, &names.next())?;
        }
        x = b.max_pool(x, &names.next(), Window::square(2).stride(2))?;
    }
    let x = b.flatten(x, "flatten")?;
    alexnet::classifier(b, x, names)
}
