//! ResNet (He et al. 2016) with the stride on the 3x3 convolution, and a projection in the first unit of every stage.

use ir::ValueId;

use super::{EPSILON, head};
use crate::networks::residual::{Block, Unit, stages};
use crate::{Builder, Window, ZooError};

/// `depths`: units in each stage.
pub(crate) fn build(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let x = b.conv(x, "conv0", 64, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm_with(x, "bn0", EPSILON)?;
    let x = b.relu(x, "relu0")?;
    let x = b.max_pool(x, "pooling0", Window::square(3).stride(2).pad(1))?;
    let x = stages(b, x, unit, depths, residual)?;
    let x = b.global_mean(x, "pool1")?;
    head(b, x, 0, 1000)
}

fn residual(b: &mut Builder, x: ValueId, block: Block) -> Result<ValueId, ZooError> {
    let Block { unit, stage, place, out, stride } = block;
    let name = format!("stage{}_unit{}", stage + 1, place + 1);
    let shortcut = match place {
        0 => {
            let x = b.conv(x, &format!("{name}_sc_conv"), out, Window::square(1).stride(stride))?;
            b.batch_norm_with(x, &format!("{name}_sc_bn"), EPSILON)?
        }
        _ => x,
    };
    let layers = unit.layers(out, stride);
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
