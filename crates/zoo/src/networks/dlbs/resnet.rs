//! ResNet (He et al. 2016) with the stride on the 3x3 convolution, and a projection in the first unit of every stage.

use ir::ValueId;

use super::{EPSILON, head};
use crate::{Builder, Window, ZooError};

/// What a residual branch is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 to a quarter of the channels, 3x3, 1x1.
    Bottleneck,
}

/// `depths`: units in each stage.
pub(crate) fn build(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let x = b.conv(x, "conv0", 64, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm_with(x, "bn0", EPSILON)?;
    let x = b.relu(x, "relu0")?;
    let mut x = b.max_pool(x, "pooling0", Window::square(3).stride(2).pad(1))?;
    for (stage, depth) in depths.into_iter().enumerate() {
        let out = if unit == Unit::Basic { 64 << stage } else { 256 << stage };
        for ix in 0..depth {
            let stride = if ix == 0 && stage != 0 { 2 } else { 1 };
            x = residual(b, x, &format!("stage{}_unit{}", stage + 1, ix + 1), unit, out, stride, ix == 0)?;
        }
    }
    let x = b.global_mean(x, "pool1")?;
    head(b, x, 0, 1000)
}

fn residual(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    unit: Unit,
    out: usize,
    stride: usize,
    project: bool,
) -> Result<ValueId, ZooError> {
    let shortcut = match project {
        false => x,
        true => {
            let x = b.conv(x, &format!("{name}_sc_conv"), out, Window::square(1).stride(stride))?;
            b.batch_norm_with(x, &format!("{name}_sc_bn"), EPSILON)?
        }
    };
    let inner = Window::square(3).pad(1);
    let layers = match unit {
        Unit::Basic => vec![(out, inner.stride(stride)), (out, inner)],
        Unit::Bottleneck => {
            vec![(out / 4, Window::square(1)), (out / 4, inner.stride(stride)), (out, Window::square(1))]
        }
    };
    let (last, mut y) = (layers.len(), x);
    for (number, (channels, window)) in (1..).zip(layers) {
        y = b.conv(y, &format!("{name}_conv{number}"), channels, window)?;
        if number < last {
            y = b.batch_norm_with(y, &format!("{name}_bn{number}"), EPSILON)?;
            y = b.relu(y, &format!("{name}_relu{number}"))?;
        }
    }
    y = b.branch_norm(y, &format!("{name}_bn{last}"), EPSILON)?;
    let y = b.add(shortcut, y, &format!("{name}_add"))?;
    b.relu(y, &format!("{name}_relu"))
}
