//! DenseNet (Huang et al. 2017). Each layer's features are joined to all that came before.

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

/// `stem`: channels of the first convolution. `growth`: channels that each layer adds. `depths`: layers in each block.
pub(crate) fn build(
    b: &mut Builder,
    x: ValueId,
    stem: usize,
    growth: usize,
    depths: [usize; 4],
) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.conv(x, &names.next(), stem, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm(x, &names.next())?;
    let x = b.relu(x, &names.next())?;
    let mut x = b.max_pool(x, &names.next(), Window::square(3).stride(2).pad(1))?;
    for (block, depth) in depths.into_iter().enumerate() {
        let stage = names.next();
        for layer in 0..depth {
            // Child 0 of a layer is the identity.
            let name = format!("{stage}.{layer}");
            let mut branch = Children::of(format!("{name}.1"));
            let y = norm_relu_conv(b, x, &mut branch, 4 * growth, Window::square(1))?;
            let y = norm_relu_conv(b, y, &mut branch, growth, Window::square(3).centred())?;
            x = b.concat(&[x, y], &format!("{name}.concat"))?;
        }
        if block + 1 < depths.len() {
            let mut transition = Children::of(names.next());
            let out = b.channels(x) / 2;
            x = norm_relu_conv(b, x, &mut transition, out, Window::square(1))?;
            x = b.mean_pool(x, &transition.next(), Window::square(2).stride(2))?;
        }
    }
    let x = b.batch_norm(x, &names.next())?;
    let x = b.relu(x, &names.next())?;
    let x = b.mean_pool(x, &names.next(), Window::square(7).stride(7))?;
    let x = b.flatten(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn norm_relu_conv(
    b: &mut Builder,
    x: ValueId,
    names: &mut Children,
    out: usize,
    window: Window,
) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &names.next())?;
    let x = b.relu(x, &names.next())?;
    b.conv(x, &names.next(), out, window)
}
