//! Inception v3 (Szegedy et al. 2016), without the auxiliary classifier.

use ir::ValueId;

use super::Children;
use crate::{Builder, Window, ZooError};

/// A convolution of a branch: channels and window.
type Layer = (usize, Window);

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let mut names = Children::of("features");
    let halve = Window::square(3).stride(2);
    let x = conv(b, x, &names.next(), (32, halve))?;
    let x = conv(b, x, &names.next(), (32, Window::square(3)))?;
    let x = conv(b, x, &names.next(), (64, Window::square(3).centred()))?;
    let x = b.max_pool(x, &names.next(), halve)?;
    let x = conv(b, x, &names.next(), (80, Window::square(1)))?;
    let x = conv(b, x, &names.next(), (192, Window::square(3)))?;
    let mut x = b.max_pool(x, &names.next(), halve)?;
    for pooled in [32, 64, 64] {
        x = block_a(b, x, &names.next(), pooled)?;
    }
    x = block_b(b, x, &names.next())?;
    for inner in [128, 160, 160, 192] {
        x = block_c(b, x, &names.next(), inner)?;
    }
    x = block_d(b, x, &names.next())?;
    for _ in 0..2 {
        x = block_e(b, x, &names.next())?;
    }
    let x = b.mean_pool(x, &names.next(), Window::square(8).stride(8))?;
    let x = b.flatten(x, "flatten")?;
    b.linear(x, "output", 1000)
}

/// Convolution, batch norm, relu.
fn conv(b: &mut Builder, x: ValueId, name: &str, (out, window): Layer) -> Result<ValueId, ZooError> {
    let x = b.conv(x, &format!("{name}.0"), out, window)?;
    let x = b.batch_norm_with(x, &format!("{name}.1"), 1e-3)?;
    b.relu(x, &format!("{name}.2"))
}

/// Convolutions one behind the other.
fn branch(b: &mut Builder, x: ValueId, names: Children, layers: &[Layer]) -> Result<ValueId, ZooError> {
    let (mut x, mut names) = (x, names);
    for layer in layers {
        x = conv(b, x, &names.next(), *layer)?;
    }
    Ok(x)
}

/// A mean over 3x3 and a 1x1 convolution.
fn pooled_branch(b: &mut Builder, x: ValueId, name: &str, out: usize) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let x = b.mean_pool(x, &names.next(), Window::square(3).centred())?;
    branch(b, x, names, &[(out, Window::square(1))])
}

fn one(channels: usize) -> Layer {
    (channels, Window::square(1))
}

fn three(channels: usize) -> Layer {
    (channels, Window::square(3).centred())
}

fn halving(channels: usize) -> Layer {
    (channels, Window::square(3).stride(2))
}

fn wide(channels: usize, cells: usize) -> Layer {
    (channels, Window::cells(1, cells).centred())
}

fn tall(channels: usize, cells: usize) -> Layer {
    (channels, Window::cells(cells, 1).centred())
}

/// Parallel branches of convolutions; the caller gives those that only pool.
fn branches(b: &mut Builder, x: ValueId, names: &mut Children, all: &[&[Layer]]) -> Result<Vec<ValueId>, ZooError> {
    all.iter().map(|layers| branch(b, x, Children::of(names.next()), layers)).collect()
}

fn block_a(b: &mut Builder, x: ValueId, name: &str, pooled: usize) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let five = (64, Window::square(5).centred());
    let all: [&[Layer]; 3] = [&[one(64)], &[one(48), five], &[one(64), three(96), three(96)]];
    let mut parts = branches(b, x, &mut names, &all)?;
    parts.push(pooled_branch(b, x, &names.next(), pooled)?);
    b.concat(&parts, &format!("{name}.concat"))
}

fn block_b(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let mut parts = branches(b, x, &mut names, &[&[halving(384)], &[one(64), three(96), halving(96)]])?;
    parts.push(b.max_pool(x, &names.next(), Window::square(3).stride(2))?);
    b.concat(&parts, &format!("{name}.concat"))
}

/// `inner`: channels between the two pieces of a 7x7 convolution.
fn block_c(b: &mut Builder, x: ValueId, name: &str, inner: usize) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let single = [one(inner), wide(inner, 7), tall(192, 7)];
    let double = [one(inner), tall(inner, 7), wide(inner, 7), tall(inner, 7), wide(192, 7)];
    let mut parts = branches(b, x, &mut names, &[&[one(192)], &single, &double])?;
    parts.push(pooled_branch(b, x, &names.next(), 192)?);
    b.concat(&parts, &format!("{name}.concat"))
}

fn block_d(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let seven = [one(192), wide(192, 7), tall(192, 7), halving(192)];
    let mut parts = branches(b, x, &mut names, &[&[one(192), halving(320)], &seven])?;
    parts.push(b.max_pool(x, &names.next(), Window::square(3).stride(2))?);
    b.concat(&parts, &format!("{name}.concat"))
}

fn block_e(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let mut names = Children::of(name);
    let mut parts = branches(b, x, &mut names, &[&[one(320)]])?;
    for layers in [&[one(384)][..], &[one(448), three(384)]] {
        let parent = names.next();
        let x = branch(b, x, Children::of(format!("{parent}.0")), layers)?;
        let mut halves = Children::of(format!("{parent}.1"));
        let pair = branches(b, x, &mut halves, &[&[wide(384, 3)], &[tall(384, 3)]])?;
        parts.push(b.concat(&pair, &format!("{parent}.concat"))?);
    }
    parts.push(pooled_branch(b, x, &names.next(), 192)?);
    b.concat(&parts, &format!("{name}.concat"))
}
