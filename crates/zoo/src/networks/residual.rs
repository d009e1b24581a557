//! The common parts of the residual networks (He et al. 2016) of gluon and of the Deep Learning Benchmarking Suite.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

/// The kind of a residual branch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 to a quarter of the channels, 3x3, 1x1.
    Bottleneck,
}

impl Unit {
    /// Channels and windows of the branch's convolutions, the stride on the first 3x3.
    pub(crate) fn layers(self, out: usize, stride: usize) -> Vec<(usize, Window)> {
        let three = Window::square(3).pad(1);
        match self {
            Unit::Basic => vec![(out, three.stride(stride)), (out, three)],
            Unit::Bottleneck => {
                vec![(out / 4, Window::square(1)), (out / 4, three.stride(stride)), (out, Window::square(1))]
            }
        }
    }
}

/// A block among the others.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) unit: Unit,
    /// Counted from 0, as is its place in the stage.
    pub(crate) stage: usize,
    pub(crate) place: usize,
    /// Channels of its result.
    pub(crate) out: usize,
    pub(crate) stride: usize,
}

/// The blocks of all stages, `depths` of them in each; each stage but the first halves rows and columns.
pub(crate) fn stages(
    b: &mut Builder,
    x: ValueId,
    unit: Unit,
    depths: [usize; 4],
    block: impl Fn(&mut Builder, ValueId, Block) -> Result<ValueId, ZooError>,
) -> Result<ValueId, ZooError> {
    let mut x = x;
    for (stage, depth) in depths.into_iter().enumerate() {
        let out = if unit == Unit::Basic { 64 << stage } else { 256 << stage };
        for place in 0..depth {
            let stride = if place == 0 && stage != 0 { 2 } else { 1 };
            x = block(b, x, Block { unit, stage, place, out, stride })?;
        }
    }
    Ok(x)
}
