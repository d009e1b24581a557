//! ResNet v1 (He et al. 2016) and v2 (He et al. 2016, "Identity Mappings in Deep Residual Networks").
//!
//! Here the first 1x1 convolution of a v1 bottleneck has the stride, and both of its 1x1 convolutions have a bias.

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-5;

/// What a residual branch is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 to a quarter of the channels, 3x3, 1x1.
    Bottleneck,
}

impl Unit {
    /// Channels behind the blocks of a stage.
    fn channels(self, stage: usize) -> usize {
        match self {
            Unit::Basic => 64 << stage,
            Unit::Bottleneck => 256 << stage,
        }
    }
}

/// `depths`: blocks in each stage.
pub(crate) fn v1(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let mut x = stem(b, x, &mut names)?;
    for (stage, depth) in depths.into_iter().enumerate() {
        let parent = names.next();
        for block in 0..depth {
            let stride = if block == 0 && stage != 0 { 2 } else { 1 };
            x = block_v1(b, x, &format!("{parent}.{block}"), unit, unit.channels(stage), stride)?;
        }
    }
    let x = b.global_mean(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn stem(b: &mut Builder, x: ValueId, names: &mut Children) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &names.next(), 64, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm(x, &names.next())?;
    let x = b.relu(x, &names.next())?;
    b.max_pool(x, &names.next(), Window::square(3).stride(2).pad(1))
}

fn block_v1(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    unit: Unit,
    out: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let mut names = Children::of(format!("{name}.body"));
    let inner = Window::square(3).pad(1);
    let y = match unit {
        Unit::Basic => {
            let y = b.conv(x, &names.next(), out, inner.stride(stride))?;
            let y = norm_relu(b, y, &mut names)?;
            b.conv(y, &names.next(), out, inner)?
        }
        Unit::Bottleneck => {
            let y = b.conv_bias(x, &names.next(), out / 4, Window::square(1).stride(stride))?;
            let y = norm_relu(b, y, &mut names)?;
            let y = b.conv(y, &names.next(), out / 4, inner)?;
            let y = norm_relu(b, y, &mut names)?;
            b.conv_bias(y, &names.next(), out, Window::square(1))?
        }
    };
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

/// `depths`: blocks in each stage. Norm and relu stand in front of the convolutions; the picture itself is normalised,
/// without a scale.
pub(crate) fn v2(b: &mut Builder, x: ValueId, unit: Unit, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.batch_norm_unscaled(x, &names.next(), EPSILON)?;
    let mut x = stem(b, x, &mut names)?;
    for (stage, depth) in depths.into_iter().enumerate() {
        let parent = names.next();
        for block in 0..depth {
            let stride = if block == 0 && stage != 0 { 2 } else { 1 };
            x = block_v2(b, x, &format!("{parent}.{block}"), unit, unit.channels(stage), stride)?;
        }
    }
    let x = norm_relu(b, x, &mut names)?;
    let x = b.global_mean(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn block_v2(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    unit: Unit,
    out: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let first = numbered_norm(b, x, name, 1)?;
    // What the first block of a stage passes on is normalised as well.
    let shortcut = match b.channels(x) == out {
        true => x,
        false => b.conv(first, &format!("{name}.downsample"), out, Window::square(1).stride(stride))?,
    };
    let inner = Window::square(3).pad(1);
    let windows = match unit {
        Unit::Basic => vec![(out, inner.stride(stride)), (out, inner)],
        Unit::Bottleneck => {
            vec![(out / 4, Window::square(1)), (out / 4, inner.stride(stride)), (out, Window::square(1))]
        }
    };
    let mut y = first;
    for (ix, (channels, window)) in windows.into_iter().enumerate() {
        if ix != 0 {
            y = numbered_norm(b, y, name, ix + 1)?;
        }
        y = b.conv(y, &format!("{name}.conv{}", ix + 1), channels, window)?;
    }
    b.add(y, shortcut, &format!("{name}.add"))
}

fn numbered_norm(b: &mut Builder, x: ValueId, name: &str, number: usize) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &format!("{name}.bn{number}"))?;
    b.relu(x, &format!("{name}.relu{number}"))
}
