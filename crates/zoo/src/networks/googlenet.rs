//! GoogLeNet (Szegedy et al. 2015), as in torchvision at inference: with batch norm, without the auxiliary classifiers,
//! without `transform_input`, and with a 3x3 convolution where the paper has a 5x5 (pytorch/vision issue 906).

use ir::ValueId;

use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-3;

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let halve = Window::square(3).stride(2).ceil();
    let x = conv(b, x, "conv1", 64, Window::square(7).stride(2).pad(3))?;
    let x = b.max_pool(x, "maxpool1", halve)?;
    let x = conv(b, x, "conv2", 64, Window::square(1))?;
    let x = conv(b, x, "conv3", 192, Window::square(3).centred())?;
    let x = b.max_pool(x, "maxpool2", halve)?;
    let x = inception(b, x, "inception3a", 64, [96, 128], [16, 32], 32)?;
    let x = inception(b, x, "inception3b", 128, [128, 192], [32, 96], 64)?;
    let x = b.max_pool(x, "maxpool3", halve)?;
    let x = inception(b, x, "inception4a", 192, [96, 208], [16, 48], 64)?;
    let x = inception(b, x, "inception4b", 160, [112, 224], [24, 64], 64)?;
    let x = inception(b, x, "inception4c", 128, [128, 256], [24, 64], 64)?;
    let x = inception(b, x, "inception4d", 112, [144, 288], [32, 64], 64)?;
    let x = inception(b, x, "inception4e", 256, [160, 320], [32, 128], 128)?;
    let x = b.max_pool(x, "maxpool4", Window::square(2).stride(2).ceil())?;
    let x = inception(b, x, "inception5a", 256, [160, 320], [32, 128], 128)?;
    let x = inception(b, x, "inception5b", 384, [192, 384], [48, 128], 128)?;
    let x = b.global_mean(x, "avgpool")?;
    b.linear(x, "fc", 1000)
}

/// Four branches: 1x1; 1x1 and 3x3; 1x1 and 3x3; pooling and 1x1. The numbers are channels.
fn inception(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    branch1: usize,
    branch2: [usize; 2],
    branch3: [usize; 2],
    branch4: usize,
) -> Result<ValueId, ZooError> {
    let first = conv(b, x, &format!("{name}.branch1"), branch1, Window::square(1))?;
    let second = conv(b, x, &format!("{name}.branch2.0"), branch2[0], Window::square(1))?;
    let second = conv(b, second, &format!("{name}.branch2.1"), branch2[1], Window::square(3).centred())?;
    let third = conv(b, x, &format!("{name}.branch3.0"), branch3[0], Window::square(1))?;
    let third = conv(b, third, &format!("{name}.branch3.1"), branch3[1], Window::square(3).centred())?;
    let fourth = b.max_pool(x, &format!("{name}.branch4.0"), Window::square(3).centred().ceil())?;
    let fourth = conv(b, fourth, &format!("{name}.branch4.1"), branch4, Window::square(1))?;
    b.concat(&[first, second, third, fourth], &format!("{name}.concat"))
}

/// Torchvision's `BasicConv2d`: convolution, batch norm, relu.
pub(super) fn conv(b: &mut Builder, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}.conv"), out, window)?;
    let x = b.batch_norm_with(x, &format!("{name}.bn"), EPSILON)?;
    b.relu(x, &format!("{name}.relu"))
}
