//! EfficientNet-Lite0 (Tan & Le 2019, without squeeze-and-excitation and with relu6), as in the Python package
//! `efficientnet-lite-pytorch` 0.1.0: TensorFlow's padding "same", batch norm with epsilon 1e-3.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

const EPSILON: f32 = 1e-3;

/// Blocks, kernel, stride of the first block, expansion, output channels.
const STAGES: [[usize; 5]; 7] = [
    [1, 3, 1, 1, 16],
    [2, 3, 2, 6, 24],
    [2, 5, 2, 6, 40],
    [3, 3, 2, 6, 80],
    [3, 5, 1, 6, 112],
    [4, 5, 2, 6, 192],
    [1, 3, 1, 6, 320],
];

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let stem = Window::square(3).stride(2).same(b.extent(x));
    let x = b.conv(x, "_conv_stem", 32, stem)?;
    let x = b.batch_norm_with(x, "_bn0", EPSILON)?;
    let mut x = b.relu6(x, "_relu0")?;
    let mut ix = 0;
    for [depth, kernel, first_stride, expansion, out] in STAGES {
        for block in 0..depth {
            let window = Window::square(kernel).stride(if block == 0 { first_stride } else { 1 });
            x = inverted_residual(b, x, &format!("_blocks.{ix}"), window, expansion, out)?;
            ix += 1;
        }
    }
    let x = b.conv(x, "_conv_head", 1280, Window::square(1))?;
    let x = b.batch_norm_with(x, "_bn1", EPSILON)?;
    let x = b.relu6(x, "_relu1")?;
    let x = b.global_mean(x, "_avg_pooling")?;
    b.linear(x, "_fc", 1000)
}

fn inverted_residual(
    b: &mut Builder,
    x: ValueId,
    name: &str,
    window: Window,
    expansion: usize,
    out: usize,
) -> Result<ValueId, ZooError> {
    let mut y = x;
    if expansion != 1 {
        y = b.conv(y, &format!("{name}._expand_conv"), expansion * b.channels(x), Window::square(1))?;
        y = b.batch_norm_with(y, &format!("{name}._bn0"), EPSILON)?;
        y = b.relu6(y, &format!("{name}._relu0"))?;
    }
    y = b.depthwise(y, &format!("{name}._depthwise_conv"), window.same(b.extent(y)))?;
    y = b.batch_norm_with(y, &format!("{name}._bn1"), EPSILON)?;
    y = b.relu6(y, &format!("{name}._relu1"))?;
    y = b.conv(y, &format!("{name}._project_conv"), out, Window::square(1))?;
    let norm = format!("{name}._bn2");
    if b.shape(x) != b.shape(y) {
        return b.batch_norm_with(y, &norm, EPSILON);
    }
    y = b.branch_norm(y, &norm, EPSILON)?;
    b.add(y, x, &format!("{name}.add"))
}
