//! Inception v3 (Szegedy et al. 2016) and v4 (Szegedy et al. 2017), each a list of modules of branches.
//!
//! A layer is called by its module, branch and place, `inception_a0_b1_l0_0_conv`; the last number counts convolutions of
//! that name and is always 0 but in the stem.

use ir::ValueId;

use super::{EPSILON, head};
use crate::{Builder, Window, ZooError};

/// One layer of a branch.
#[derive(Clone, Copy)]
enum Layer {
    /// Convolution, batch norm, relu.
    Conv(usize, Window),
    Max(Window),
    Mean(Window),
    /// The same layer of the branch before.
    Share,
}
use Layer::{Conv, Max, Mean, Share};

fn one(channels: usize) -> Layer {
    Conv(channels, Window::square(1))
}

fn three(channels: usize) -> Layer {
    Conv(channels, Window::square(3).centred())
}

/// 3x3 without padding.
fn inner(channels: usize) -> Layer {
    Conv(channels, Window::square(3))
}

fn halving(channels: usize) -> Layer {
    Conv(channels, HALVE)
}

fn wide(channels: usize, cells: usize) -> Layer {
    Conv(channels, Window::cells(1, cells).centred())
}

fn tall(channels: usize, cells: usize) -> Layer {
    Conv(channels, Window::cells(cells, 1).centred())
}

const HALVE: Window = Window::square(3).stride(2);
const AROUND: Window = Window::square(3).pad(1);

/// A network that grows module by module.
struct Modules<'a, 'w> {
    b: &'a mut Builder<'w>,
    x: ValueId,
    /// Modules so far, by kind.
    counts: Vec<(&'static str, usize)>,
}

impl<'a, 'w> Modules<'a, 'w> {
    /// The first three convolutions.
    fn stem(b: &'a mut Builder<'w>, x: ValueId) -> Result<Modules<'a, 'w>, ZooError> {
        let x = conv(b, x, "conv0", 32, HALVE)?;
        let x = conv(b, x, "conv1", 32, Window::square(3))?;
        let x = conv(b, x, "conv2", 64, AROUND)?;
        Ok(Modules { b, x, counts: Vec::new() })
    }

    fn add(&mut self, kind: &'static str, branches: &[&[Layer]]) -> Result<(), ZooError> {
        let count = self.counts.iter().filter(|(other, _)| *other == kind).count();
        self.counts.push((kind, count));
        let name = format!("{kind}{count}");
        let mut results: Vec<Vec<ValueId>> = Vec::new();
        for (branch, layers) in branches.iter().enumerate() {
            let (mut x, mut done) = (self.x, Vec::new());
            for (ix, layer) in layers.iter().enumerate() {
                let pool = format!("{name}_b{branch}_p{ix}");
                x = match *layer {
                    Conv(out, window) => conv(self.b, x, &format!("{name}_b{branch}_l{ix}_0"), out, window)?,
                    Max(window) => self.b.max_pool(x, &pool, window)?,
                    Mean(window) => self.b.mean_pool(x, &pool, window)?,
                    Share => results[branch - 1][ix],
                };
                done.push(x);
            }
            results.push(done);
        }
        let parts: Vec<ValueId> = results.iter().filter_map(|done| done.last().copied()).collect();
        self.x = self.b.concat(&parts, &format!("{name}_concat"))?;
        Ok(())
    }

    /// The mean over rows and columns, and the classes.
    fn finish(self) -> Result<ValueId, ZooError> {
        let x = self.b.mean_pool(self.x, "pool", Window::square(8))?;
        let x = self.b.flatten(x, "flatten")?;
        head(self.b, x, 0, 1000)
    }
}

fn conv(b: &mut Builder, x: ValueId, name: &str, out: usize, window: Window) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}_conv"), out, window)?;
    let x = b.batch_norm_with(x, &format!("{name}_bn"), EPSILON)?;
    b.relu(x, &format!("{name}_relu"))
}

pub(crate) fn v3(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let mut net = Modules::stem(b, x)?;
    net.x = net.b.max_pool(net.x, "pool1", HALVE)?;
    net.x = conv(net.b, net.x, "conv3", 80, Window::square(1))?;
    net.x = conv(net.b, net.x, "conv4", 192, Window::square(3))?;
    net.x = net.b.max_pool(net.x, "pool2", HALVE)?;
    for pooled in [32, 64, 64] {
        let five = Conv(64, Window::square(5).centred());
        let pool = [Mean(AROUND), one(pooled)];
        net.add("inception_a", &[&[one(64)], &[one(48), five], &[one(64), three(96), three(96)], &pool])?;
    }
    net.add("inception_b", &[&[halving(384)], &[one(64), three(96), halving(96)], &[Max(HALVE)]])?;
    for n in [128, 160, 160, 192] {
        let single = [one(n), wide(n, 7), tall(192, 7)];
        let double = [one(n), tall(n, 7), wide(n, 7), tall(n, 7), wide(192, 7)];
        net.add("inception_c", &[&[one(192)], &single, &double, &[Mean(AROUND), one(192)]])?;
    }
    let seven = [one(192), wide(192, 7), tall(192, 7), halving(192)];
    net.add("inception_d", &[&[one(192), halving(320)], &seven, &[Max(HALVE)]])?;
    for pool in [Mean(AROUND), Max(AROUND)] {
        let double = [one(448), three(384), wide(384, 3)];
        let branches: [&[Layer]; 6] = [
            &[one(320)],
            &[one(384), wide(384, 3)],
            &[Share, tall(384, 3)],
            &double,
            &[Share, Share, tall(384, 3)],
            &[pool, one(192)],
        ];
        net.add("inception_e", &branches)?;
    }
    net.finish()
}

pub(crate) fn v4(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let mut net = Modules::stem(b, x)?;
    net.add("incept_v4_sa", &[&[halving(96)], &[Max(HALVE)]])?;
    let seven = [one(64), wide(64, 7), tall(64, 7), inner(96)];
    net.add("incept_v4_sb", &[&[one(64), inner(96)], &seven])?;
    net.add("incept_v4_sc", &[&[halving(192)], &[Max(HALVE)]])?;
    for _ in 0..4 {
        let double = [one(64), three(96), three(96)];
        net.add("incept_v4_a", &[&[one(96)], &[one(64), three(96)], &double, &[Mean(AROUND), one(96)]])?;
    }
    net.add("incept_v4_ra", &[&[halving(384)], &[one(192), three(224), halving(256)], &[Max(HALVE)]])?;
    for _ in 0..7 {
        let single = [one(192), wide(224, 7), tall(256, 7)];
        let double = [one(192), tall(192, 7), wide(224, 7), tall(224, 7), wide(256, 7)];
        net.add("incept_v4_b", &[&[one(384)], &single, &double, &[Mean(AROUND), one(128)]])?;
    }
    let seven = [one(256), wide(256, 7), tall(320, 7), halving(320)];
    net.add("incept_v4_rb", &[&[one(192), halving(192)], &seven, &[Max(HALVE)]])?;
    for _ in 0..3 {
        let branches: [&[Layer]; 6] = [
            &[one(256)],
            &[one(384), wide(256, 3)],
            &[Share, tall(256, 3)],
            &[one(384), tall(448, 3), wide(512, 3), wide(256, 3)],
            &[Share, Share, Share, tall(256, 3)],
            &[Mean(AROUND), one(256)],
        ];
        net.add("incept_v4_c", &branches)?;
    }
    net.finish()
}
