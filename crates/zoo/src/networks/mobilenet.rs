//! MobileNet v2 (Sandler et al. 2018), as in torchvision.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-5;

/// Expansion, output channels, blocks, stride of the first block.
const STAGES: [[usize; 4]; 7] =
    [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]];

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = b.conv(x, "features.0.0", 32, Window::square(3).stride(2).pad(1))?;
    let x = b.batch_norm(x, "features.0.1")?;
    let mut x = b.relu6(x, "features.0.2")?;
    let mut layer = 1;
    for [expansion, out, depth, first_stride] in STAGES {
        for block in 0..depth {
            let stride = if block == 0 { first_stride } else { 1 };
            x = inverted_residual(b, x, &format!("features.{layer}"), expansion, out, stride)?;
            layer += 1;
        }
    }
    let x = b.conv(x, "features.18.0", 1280, Window::square(1))?;
    let x = b.batch_norm(x, "features.18.1")?;
    let x = b.relu6(x, "features.18.2")?;
    let x = b.global_mean(x, "avgpool")?;
    b.linear(x, "classifier.1", 1000)
}

fn inverted_residual(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    expansion: usize,
    out: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let mut y = x;
    // Modules are numbered through; a block that does not expand has one less.
    let mut module = 0;
    if expansion != 1 {
        y = b.conv(y, &format!("{name}.conv.0.0"), expansion * b.channels(x), Window::square(1))?;
        y = b.batch_norm(y, &format!("{name}.conv.0.1"))?;
        y = b.relu6(y, &format!("{name}.conv.0.2"))?;
        module = 1;
    }
    y = b.depthwise(y, &format!("{name}.conv.{module}.0"), Window::square(3).stride(stride).pad(1))?;
    y = b.batch_norm(y, &format!("{name}.conv.{module}.1"))?;
    y = b.relu6(y, &format!("{name}.conv.{module}.2"))?;
    y = b.conv(y, &format!("{name}.conv.{}", module + 1), out, Window::square(1))?;
    let norm = format!("{name}.conv.{}", module + 2);
    if stride != 1 || b.channels(x) != out {
        return b.batch_norm(y, &norm);
    }
    y = b.branch_norm(y, &norm, EPSILON)?;
    b.add(x, y, &format!("{name}.add"))
}
