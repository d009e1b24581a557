//! ResNet (He et al. 2016), as in torchvision: version 1.5, where the 3x3 convolution of a bottleneck has the stride.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-5;

/// The branch of a block: from `x` to `width` channels (times an expansion) at a stride, up to the last batch norm.
pub(crate) type Branch = fn(&mut Builder, ValueId, &str, usize, usize) -> Result<ValueId, ZooError>;

/// `depths`: blocks in each of the four layers.
pub(crate) fn build(b: &mut Builder, x: ValueId, branch: Branch, depths: [usize; 4]) -> Result<ValueId, ZooError> {
    let x = b.conv(x, "conv1", 64, Window::square(7).stride(2).pad(3))?;
    let x = b.batch_norm(x, "bn1")?;
    let x = b.relu(x, "relu")?;
    let mut x = b.max_pool(x, "maxpool", Window::square(3).stride(2).pad(1))?;
    for (layer, depth) in depths.into_iter().enumerate() {
        for block in 0..depth {
            let stride = if block == 0 && 0 < layer { 2 } else { 1 };
            x = residual(b, x, &format!("layer{}.{block}", layer + 1), branch, 64 << layer, stride)?;
        }
    }
    let x = b.global_mean(x, "avgpool")?;
    b.linear(x, "fc", 1000)
}

fn residual(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    branch: Branch,
    width: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let y = branch(b, x, name, width, stride)?;
    let shortcut = match b.shape(x) == b.shape(y) {
        true => x,
        false => {
            let out = b.channels(y);
            let x = b.conv(x, &format!("{name}.downsample.0"), out, Window::square(1).stride(stride))?;
            b.batch_norm(x, &format!("{name}.downsample.1"))?
        }
    };
    let y = b.add(y, shortcut, &format!("{name}.add"))?;
    b.relu(y, &format!("{name}.relu"))
}

/// Two 3x3 convolutions.
pub(crate) fn basic(b: &mut Builder, x: ValueId, name: &str, width: usize, stride: usize) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}.conv1"), width, Window::square(3).stride(stride).pad(1))?;
    let x = b.batch_norm(x, &format!("{name}.bn1"))?;
    let x = b.relu(x, &format!("{name}.relu1"))?;
    let x = b.conv(x, &format!("{name}.conv2"), width, Window::square(3).pad(1))?;
    b.branch_norm(x, &format!("{name}.bn2"), EPSILON)
}

/// 1x1 to `width`, 3x3, 1x1 to four times `width`.
pub(crate) fn bottleneck(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    width: usize,
    stride: usize,
) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}.conv1"), width, Window::square(1))?;
    let x = b.batch_norm(x, &format!("{name}.bn1"))?;
    let x = b.relu(x, &format!("{name}.relu1"))?;
    let x = b.conv(x, &format!("{name}.conv2"), width, Window::square(3).stride(stride).pad(1))?;
    let x = b.batch_norm(x, &format!("{name}.bn2"))?;
    let x = b.relu(x, &format!("{name}.relu2"))?;
    let x = b.conv(x, &format!("{name}.conv3"), 4 * width, Window::square(1))?;
    b.branch_norm(x, &format!("{name}.bn3"), EPSILON)
}
