//! ResNet v1 (He et al. 2016) and v2 (He et al. 2016, "Identity Mappings in Deep Residual Networks").
//!
//! Here the first 1x1 convolution of a v1 bottleneck has the stride, and both of its 1x1 convolutions have a bias.

use ir::ValueId;

use super::Children;
use crate::networks::residual::{Block, Unit, stages};
use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-5;

/// `depths`: blocks in each stage.
pub(crate) fn v1(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = stem(b, x, &mut names)?;
    let parents = depths.map(|_| names.next());
    let x = stages(b, x, unit, depths, |b, x, block| {
        block_v1(b, x, &format!("{}.{}", parents[block.stage], block.place), block)
    })?;
    let x = b.global_mean(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn stem(b: &mut Builder, x: ValueId, names: &mut Children) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &names.next(), 64, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm(x, &names.next())?;
    let x = b.relu(x, &names.next())?;
    b.max_pool(x, &names.next(), Window::square(3).stride(2).pad(1))
}

fn block_v1(b: &mut Builder, x: ValueId, name: &str, block: Block) -> Result<ValueId, ZooError> {
    let Block { unit, out, stride, .. } = block;
    let layers = match unit {
        Unit::Basic => unit.layers(out, stride),
        Unit::Bottleneck => {
            let (one, three) = (Window::square(1), Window::square(3).pad(1));
            vec![(out / 4, one.stride(stride)), (out / 4, three), (out, one)]
        }
    };
    let mut names = Children::of(format!("{name}.body"));
    let mut y = x;
    for (ix, (channels, window)) in layers.into_iter().enumerate() {
        if ix != 0 {
            y = norm_relu(b, y, &mut names)?;
        }
        y = match unit == Unit::Bottleneck && ix != 1 {
            true => b.conv_bias(y, &names.next(), channels, window)?,
            false => b.conv(y, &names.next(), channels, window)?,
        };
    }
    let y = b.branch_norm(y, &names.next(), EPSILON)?;
    let shortcut = match b.channels(x) == out {
        true => x,
        false => {
            let x = b.conv(x, &format!("{name}.downsample.0"), out, Window::square(1).stride(stride))?;
            b.batch_norm(x, &format!("{name}.downsample.1"))?
        }
    };
    let y = b.add(shortcut, y, &format!("{name}.add"))?;
    b.relu(y, &format!("{name}.relu"))
}

fn norm_relu(b: &mut Builder, x: ValueId, names: &mut Children) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &names.next())?;
    b.relu(x, &names.next())
}

/// `depths`: blocks in each stage. Norm and relu precede the convolutions; the image itself is normalized,
/// without a scale.
pub(crate) fn v2(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.batch_norm_unscaled(x, &names.next(), EPSILON)?;
    let x = stem(b, x, &mut names)?;
    let parents = depths.map(|_| names.next());
    let x = stages(b, x, unit, depths, |b, x, block| {
        block_v2(b, x, &format!("{}.{}", parents[block.stage], block.place), block)
    })?;
    let x = norm_relu(b, x, &mut names)?;
    let x = b.global_mean(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn block_v2(b: &mut Builder, x: ValueId, name: &str, block: Block) -> Result<ValueId, ZooError> {
    let Block { unit, out, stride, .. } = block;
    let first = numbered_norm(b, x, name, 1)?;
    // The shortcut of the first block of a stage is normalized as well.
    let shortcut = match b.channels(x) == out {
        true => x,
        false => b.conv(first, &format!("{name}.downsample"), out, Window::square(1).stride(stride))?,
    };
    let mut y = first;
    for (number, (channels, window)) in (1..).zip(unit.layers(out, stride)) {
        if number != 1 {
            y = numbered_norm(b, y, name, number)?;
        }
        y = b.conv(y, &format!("{name}.conv{number}"), channels, window)?;
    }
    b.add(y, shortcut, &format!("{name}.add"))
}

fn numbered_norm(b: &mut Builder, x: ValueId, name: &str, number: usize) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &format!("{name}.bn{number}"))?;
    b.relu(x, &format!("{name}.relu{number}"))
}
