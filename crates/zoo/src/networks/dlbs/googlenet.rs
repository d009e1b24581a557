//! GoogLeNet (Szegedy et al. 2015) with biases and local response normalisation, without the auxiliary classifiers.

use ir::ValueId;

use super::alexnet::LRN;
use super::head;
use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let halve = Window::square(3).stride(2);
    let x = conv(b, x, "conv1/7x7_s2", 64, Window::square(7).stride(2).pad(3))?;
    let x = b.max_pool(x, "pool1/3x3_s2", halve)?;
    let x = b.node(LRN, &[x], "pool1/norm1")?;
    let x = conv(b, x, "conv2/3x3_reduce", 64, Window::square(1))?;
    let x = conv(b, x, "conv2/3x3", 192, Window::square(3).centred())?;
    let x = b.node(LRN, &[x], "conv2/norm2")?;
    let x = b.max_pool(x, "pool2/3x3_s2", halve)?;
    let x = inception(b, x, "inception_3a", 64, [96, 128], [16, 32], 32)?;
    let x = inception(b, x, "inception_3b", 128, [128, 192], [32, 96], 64)?;
    let x = b.max_pool(x, "pool3/3x3_s2", halve)?;
    let x = inception(b, x, "inception_4a", 192, [96, 208], [16, 48], 64)?;
    let x = inception(b, x, "inception_4b", 160, [112, 224], [24, 64], 64)?;
    let x = inception(b, x, "inception_4c", 128, [128, 256], [24, 64], 64)?;
    let x = inception(b, x, "inception_4d", 112, [144, 288], [32, 64], 64)?;
    let x = inception(b, x, "inception_4e", 256, [160, 320], [32, 128], 128)?;
    let x = b.max_pool(x, "pool4/3x3_s2", halve.pad(1))?;
    let x = inception(b, x, "inception_5a", 256, [160, 320], [32, 128], 128)?;
    let x = inception(b, x, "inception_5b", 384, [192, 384], [48, 128], 128)?;
    let x = b.mean_pool(x, "pool5/7x7_s1", Window::square(7))?;
    let x = b.flatten(x, "flatten0")?;
    head(b, x, 0, 1000)
}

/// Four branches: 1x1; 1x1 and 3x3; 1x1 and 5x5; pooling and 1x1. The numbers are channels.
fn inception(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    one: usize,
    three: [usize; 2],
    five: [usize; 2],
    pooled: usize,
) -> Result<ValueId, ZooError> {
    let first = conv(b, x, &format!("{name}_1x1"), one, Window::square(1))?;
    let second = conv(b, x, &format!("{name}_3x3_reduce"), three[0], Window::square(1))?;
    let second = conv(b, second, &format!("{name}_3x3"), three[1], Window::square(3).centred())?;
    let third = conv(b, x, &format!("{name}_5x5_reduce"), five[0], Window::square(1))?;
    let third = conv(b, third, &format!("{name}_5x5"), five[1], Window::square(5).centred())?;
    let fourth = b.max_pool(x, &format!("max_pool_{name}_pool"), Window::square(3).centred())?;
    let fourth = conv(b, fourth, &format!("{name}_proj"), pooled, Window::square(1))?;
    b.concat(&[first, second, third, fourth], &format!("ch_concat_{name}_chconcat"))
}

fn conv(b: &mut Builder, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, &format!("conv_{name}"), out, window)?;
    b.relu(x, &format!("relu_{name}"))
}
