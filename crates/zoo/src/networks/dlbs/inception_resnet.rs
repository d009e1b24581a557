//! Inception-ResNet v2 (Szegedy et al. 2017), with the suite's deviations from the paper: 129 channels and padding of
//! 1x2 and 2x1 in the blocks of 17, and batch norms without scale. Layers are numbered through.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

use super::head;

/// The default epsilon of MXNet's batch norm.
const EPSILON: f32 = 1e-3;

/// Channels and window of a convolution.
type Layer = (usize, Window);

/// A network whose convolutions are numbered through.
struct Net<'a, 'w> {
    b: &'a mut Builder<'w>,
    convs: usize,
    joins: usize,
}

impl Net<'_, '_> {
    /// Convolution and batch norm.
    fn linear(&mut self, x: ValueId, (out, window): Layer) -> Result<ValueId, ZooError> {
        let ix = self.convs;
        self.convs += 1;
        let x = self.b.conv_bias(x, &format!("convolution{ix}"), out, window)?;
        self.b.batch_norm_unscaled(x, &format!("batchnorm{ix}"), EPSILON)
    }

    /// Convolution, batch norm, relu.
    fn conv(&mut self, x: ValueId, layer: Layer) -> Result<ValueId, ZooError> {
        let x = self.linear(x, layer)?;
        self.b.relu(x, &format!("activation{}", self.convs - 1))
    }

    /// Convolutions one behind the other.
    fn tower(&mut self, x: ValueId, layers: &[Layer]) -> Result<ValueId, ZooError> {
        layers.iter().try_fold(x, |x, layer| self.conv(x, *layer))
    }

    fn concat(&mut self, parts: &[ValueId]) -> Result<ValueId, ZooError> {
        self.joins += 1;
        self.b.concat(parts, &format!("concat{}", self.joins - 1))
    }

    /// Parallel towers, concatenated, brought to the input's channels, scaled and added.
    fn residual(&mut self, x: ValueId, towers: &[&[Layer]], scale: f32, relu: bool) -> Result<ValueId, ZooError> {
        let parts = towers.iter().map(|layers| self.tower(x, layers)).collect::<Result<Vec<_>, _>>()?;
        let y = self.concat(&parts)?;
        let y = self.linear(y, (self.b.channels(x), Window::square(1)))?;
        let name = format!("residual{}", self.joins - 1);
        let y = self.b.times(y, scale, &format!("{name}_scale"))?;
        let y = self.b.add(x, y, &format!("{name}_add"))?;
        if relu { self.b.relu(y, &format!("{name}_relu")) } else { Ok(y) }
    }
}

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let (halve, around) = (Window::square(3).stride(2), Window::square(3).pad(1));
    let one = |channels: usize| (channels, Window::square(1));
    let three = |channels: usize| (channels, around);
    let mut net = Net { b, convs: 0, joins: 0 };
    let x = net.tower(x, &[(32, halve), (32, Window::square(3)), three(64)])?;
    let x = net.b.max_pool(x, "pooling0", halve)?;
    let x = net.tower(x, &[one(80), (192, Window::square(3))])?;
    let x = net.b.max_pool(x, "pooling1", halve)?;
    let first = net.tower(x, &[one(96)])?;
    let second = net.tower(x, &[one(48), (64, Window::square(5).pad(2))])?;
    let third = net.tower(x, &[one(64), three(96), three(96)])?;
    let pooled = net.b.mean_pool(x, "pooling2", around)?;
    let fourth = net.tower(pooled, &[one(64)])?;
    let mut x = net.concat(&[first, second, third, fourth])?;
    for _ in 0..10 {
        x = net.residual(x, &[&[one(32)], &[one(32), three(32)], &[one(32), three(48), three(64)]], 0.17, true)?;
    }
    let first = net.tower(x, &[(384, halve)])?;
    let second = net.tower(x, &[one(256), three(256), (384, halve)])?;
    let pooled = net.b.max_pool(x, "pooling3", halve)?;
    x = net.concat(&[first, second, pooled])?;
    let seven = [one(129), (160, Window::cells(1, 7).pads(1, 2)), (192, Window::cells(7, 1).pads(2, 1))];
    for _ in 0..20 {
        x = net.residual(x, &[&[one(192)], &seven], 0.1, true)?;
    }
    let first = net.tower(x, &[one(256), (384, halve)])?;
    let second = net.tower(x, &[one(256), (288, halve)])?;
    let third = net.tower(x, &[one(256), three(288), (320, halve)])?;
    let pooled = net.b.max_pool(x, "pooling4", halve)?;
    x = net.concat(&[first, second, third, pooled])?;
    let pieces = [one(192), (224, Window::cells(1, 3).pads(0, 1)), (256, Window::cells(3, 1).pads(1, 0))];
    for block in 0..10 {
        let scale = if block < 9 { 0.2 } else { 1.0 };
        x = net.residual(x, &[&[one(192)], &pieces], scale, block < 9)?;
    }
    let x = net.conv(x, one(1536))?;
    let x = net.b.global_mean(x, "pooling5")?;
    head(net.b, x, 0, 1000)
}
