//! MobileNet (Howard et al. 2017) and MobileNet v2 (Sandler et al. 2018) at four widths, given in quarters.

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

/// Output channels at full width and stride of each pair of a depthwise and a 1x1 convolution.
const PAIRS: [[usize; 2]; 13] = [
    [64, 1],
    [128, 2],
    [128, 1],
    [256, 2],
    [256, 1],
    [512, 2],
    [512, 1],
    [512, 1],
    [512, 1],
    [512, 1],
    [512, 1],
    [1024, 2],
    [1024, 1],
];

pub(crate) fn v1(b: &mut Builder, x: ValueId, quarters: usize) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.conv(x, &names.next(), 32 * quarters / 4, Window::square(3).stride(2).pad(1))?;
    let mut x = norm_relu(b, x, &mut names)?;
    for [out, stride] in PAIRS {
        x = b.depthwise(x, &names.next(), Window::square(3).stride(stride).pad(1))?;
        x = norm_relu(b, x, &mut names)?;
        x = b.conv(x, &names.next(), out * quarters / 4, Window::square(1))?;
        x = norm_relu(b, x, &mut names)?;
    }
    let x = b.global_mean(x, &names.next())?;
    b.linear(x, "output", 1000)
}

fn norm_relu(b: &mut Builder, x: ValueId, names: &mut Children) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &names.next())?;
    b.relu(x, &names.next())
}

/// Expansion, output channels at full width, stride.
const BOTTLENECKS: [[usize; 3]; 17] = [
    [1, 16, 1],
    [6, 24, 2],
    [6, 24, 1],
    [6, 32, 2],
    [6, 32, 1],
    [6, 32, 1],
    [6, 64, 2],
    [6, 64, 1],
    [6, 64, 1],
    [6, 64, 1],
    [6, 96, 1],
    [6, 96, 1],
    [6, 96, 1],
    [6, 160, 2],
    [6, 160, 1],
    [6, 160, 1],
    [6, 320, 1],
];

pub(crate) fn v2(b: &mut Builder, x: ValueId, quarters: usize) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let x = b.conv(x, &names.next(), 32 * quarters / 4, Window::square(3).stride(2).pad(1))?;
    let mut x = norm_relu6(b, x, &mut names)?;
    for [expansion, out, stride] in BOTTLENECKS {
        x = bottleneck(b, x, &names.next(), expansion, out * quarters / 4, stride)?;
    }
    let x = b.conv(x, &names.next(), 1280, Window::square(1))?;
    let x = norm_relu6(b, x, &mut names)?;
    let [rows, columns] = b.extent(x);
    let x = b.mean_pool(x, &names.next(), Window::cells(rows, columns))?;
    let x = b.conv(x, "output.0", 1000, Window::square(1))?;
    b.flatten(x, "output.1")
}

/// Also the first one, which expands nothing, begins with a 1x1 convolution.
fn bottleneck(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    expansion: usize,
    out: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let mut names = Children::of(format!("{name}.out"));
    let channels = b.channels(x);
    let y = b.conv(x, &names.next(), expansion * channels, Window::square(1))?;
    let y = norm_relu6(b, y, &mut names)?;
    let y = b.depthwise(y, &names.next(), Window::square(3).stride(stride).pad(1))?;
    let y = norm_relu6(b, y, &mut names)?;
    let y = b.conv(y, &names.next(), out, Window::square(1))?;
    if stride != 1 || channels != out {
        return b.batch_norm(y, &names.next());
    }
    let y = b.branch_norm(y, &names.next(), 1e-5)?;
    b.add(y, x, &format!("{name}.add"))
}

fn norm_relu6(b: &mut Builder, x: ValueId, names: &mut Children) -> Result<ValueId, ZooError> {
    let x = b.batch_norm(x, &names.next())?;
    b.relu6(x, &names.next())
}
