//! Generated networks: shapes that no one has chosen kernels, layouts or passes for.
//!
//! [`Family::ALL`] lists the kinds, and [`Family::network`] makes one from a seed: channels off every block size, growths
//! and branches of odd width, concatenations of unequal parts, random graphs. The same seed gives the same network.

mod sequences;
mod vision;
mod volumes;

use ir::ops::{
    BatchNorm, Binary, Concat, Conv, ConvTranspose, Coordinates, Epilogue, Pool, PoolKind, Reshape, Resize, ResizeMode,
    Rounding, Slice, Transpose, Unary,
};
use ir::{Graph, Op, ValueId};
use types::{Random, Scope, Shape, Tensor, pointwise};

use crate::{F, dims};

/// How large generated networks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Seconds for hundreds of networks: images of 12 to 24 pixels a side, few layers.
    Small,
    /// The depths and extents of published networks.
    Full,
    /// About this many nodes, on small images. Of [`Family::SCALABLE`] only; others are as in [`Scale::Full`].
    Nodes(usize),
}

impl Scale {
    /// The number of parts of `size` nodes, if the number of nodes is given.
    fn parts(self, size: usize) -> Option<usize> {
        match self {
            Scale::Nodes(count) => Some(count.div_ceil(size)),
            Scale::Small | Scale::Full => None,
        }
    }

    /// Channel counts: small ones in networks of many nodes, whose weights would fill the memory.
    fn widths(self) -> &'static [usize] {
        if let Scale::Nodes(_) = self { &CHANNELS[..5] } else { &CHANNELS }
    }
}

/// A kind of generated networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Cells of separable convolutions, pools and sums over the two cells before.
    Cells,
    /// 3 x 3 convolutions with an activation, one after the other.
    Chain,
    /// Dense blocks, whose every layer is concatenated with all before it.
    Dense,
    /// Branches of several resolutions that exchange sums.
    Resolutions,
    /// An encoder and a decoder with a concatenation at each resolution.
    UNet,
    /// Sums around pairs of convolutions.
    Residual,
    /// Expansions, depthwise convolutions and projections.
    Bottlenecks,
    /// Parallel branches that are concatenated.
    Branches,
    /// A random graph of convolutions, pools, sums, concatenations and slices.
    Random,
    /// Two hourglasses, with a sum at each extent.
    Hourglass,
    /// Branches of several dilations and the mean of the image.
    Atrous,
    /// Inverted residuals whose channels are scaled by a function of their means.
    Excitation,
    /// Modules of branches with pools and pairs of `1 x n` and `n x 1`.
    Inception,
    /// Units of grouped convolutions whose channels are shuffled.
    Shuffle,
    /// Transposed convolutions from a few numbers to an image.
    Generator,
    /// A feature pyramid with an output for each extent.
    Pyramid,
    /// Two images and a vector.
    Inputs,
    /// Two images by the same weights.
    Towers,
    /// Convolutions of one axis behind gates, with growing dilation.
    Waves,
    /// Attention and perceptrons.
    Encoder,
    /// Recurrent layers and a classifier.
    Recurrent,
    /// Perceptrons along tokens and along channels.
    Mixer,
    /// U-Nets over volumes.
    VolumeUNet,
    /// Windows of any geometry over volumes.
    Volumes,
}

impl Family {
    /// All kinds.
    pub const ALL: [Family; 24] = [
        Family::Cells,
        Family::Chain,
        Family::Dense,
        Family::Resolutions,
        Family::UNet,
        Family::Residual,
        Family::Bottlenecks,
        Family::Branches,
        Family::Random,
        Family::Hourglass,
        Family::Atrous,
        Family::Excitation,
        Family::Inception,
        Family::Shuffle,
        Family::Generator,
        Family::Pyramid,
        Family::Inputs,
        Family::Towers,
        Family::Waves,
        Family::Encoder,
        Family::Recurrent,
        Family::Mixer,
        Family::VolumeUNet,
        Family::Volumes,
    ];

    /// Kinds that can have any number of nodes.
    pub const SCALABLE: [Family; 5] = [Family::Cells, Family::Chain, Family::Dense, Family::Residual, Family::Random];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Family::Cells => "cells",
            Family::Chain => "chain",
            Family::Dense => "dense",
            Family::Resolutions => "resolutions",
            Family::UNet => "u-net",
            Family::Residual => "residual",
            Family::Bottlenecks => "bottlenecks",
            Family::Branches => "branches",
            Family::Random => "random",
            Family::Hourglass => "hourglass",
            Family::Atrous => "atrous",
            Family::Excitation => "excitation",
            Family::Inception => "inception",
            Family::Shuffle => "shuffle",
            Family::Generator => "generator",
            Family::Pyramid => "pyramid",
            Family::Inputs => "inputs",
            Family::Towers => "towers",
            Family::Waves => "waves",
            Family::Encoder => "encoder",
            Family::Recurrent => "recurrent",
            Family::Mixer => "mixer",
            Family::VolumeUNet => "3d-u-net",
            Family::Volumes => "volumes",
        }
    }

    /// A network of this kind; its name has the kind, the seed, and the sizes that the seed has chosen.
    pub fn network(self, seed: u64, scale: Scale) -> Graph {
        let random = Random::for_name(seed, self.name());
        let mut net = Net { graph: Graph::new("generated"), random, weights: 0, nodes: 0 };
        let full = scale != Scale::Small;
        let text = match self {
            Family::Cells => net.cells(scale),
            Family::Chain => net.chain(scale),
            Family::Dense => net.dense(scale),
            Family::Resolutions => net.resolutions(full),
            Family::UNet => net.u_net(full),
            Family::Residual => net.residual(scale),
            Family::Bottlenecks => net.bottlenecks(full),
            Family::Branches => net.branches(full),
            Family::Random => net.random_graph(scale),
            Family::Hourglass => net.hourglass(full),
            Family::Atrous => net.atrous(full),
            Family::Excitation => net.excitation(full),
            Family::Inception => net.inception(full),
            Family::Shuffle => net.shuffle(full),
            Family::Generator => net.generator(full),
            Family::Pyramid => net.pyramid(full),
            Family::Inputs => net.inputs(full),
            Family::Towers => net.towers(full),
            Family::Waves => net.waves(full),
            Family::Encoder => net.encoder(full),
            Family::Recurrent => net.recurrent(full),
            Family::Mixer => net.mixer(full),
            Family::VolumeUNet => net.volume_u_net(full),
            Family::Volumes => net.volumes(full),
        };
        let mut graph = net.graph;
        graph.name = format!("{} {seed}: {text}", self.name());
        graph
    }
}

/// Channel counts around the sizes of vectors and blocks, most of them no multiple of one.
const CHANNELS: [usize; 16] = [3, 4, 5, 8, 9, 12, 15, 16, 17, 20, 24, 31, 33, 40, 48, 72];

/// A network under construction.
struct Net {
    graph: Graph,
    random: Random,
    weights: usize,
    nodes: usize,
}

impl Net {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize]
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.random.below((high - low + 1) as u64) as usize
    }

    fn channels(&self, x: ValueId) -> usize {
        self.graph.ty(x).shape[1]
    }

    fn extent(&self, x: ValueId) -> usize {
        self.graph.ty(x).shape[2]
    }

    fn input(&mut self, channels: usize, extent: usize) -> ValueId {
        self.graph.add_input("x", F, Shape::from([1, channels, extent, extent]))
    }

    fn weight(&mut self, shape: &[usize]) -> ValueId {
        self.weights += 1;
        let mut state = self.random.bits() | 1;
        let scale = 2.0 / shape[1..].iter().product::<usize>().max(1) as f32;
        let tensor = Tensor::from_fn(Shape::from(shape), |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * scale
        });
        self.graph.add_weight(&format!("w{}", self.weights), tensor)
    }

    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        self.nodes += 1;
        let op = op.into();
        let scope = Scope::new(&format!("{}{}", op.name(), self.nodes));
        self.graph.add1(op, inputs, scope).expect("a generated node is valid")
    }

    fn conv(&mut self, x: ValueId, out: usize, kernel: usize, stride: usize) -> ValueId {
        let (weight, bias) = (self.weight(&[out, self.channels(x), kernel, kernel]), self.weight(&[out]));
        let conv = Conv { epilogue: Epilogue::bias(true), ..Conv::square(stride, kernel / 2) };
        self.add(Op::Conv(conv), &[x, weight, bias])
    }

    fn depthwise(&mut self, x: ValueId, kernel: usize, stride: usize) -> ValueId {
        let channels = self.channels(x);
        let weight = self.weight(&[channels, 1, kernel, kernel]);
        self.add(Op::Conv(Conv { groups: channels, ..Conv::square(stride, kernel / 2) }), &[x, weight])
    }

    fn norm(&mut self, x: ValueId) -> ValueId {
        let channels = self.channels(x);
        let mut vector = |low: f32| {
            self.weights += 1;
            let name = format!("n{}", self.weights);
            let tensor = Tensor::from_fn(Shape::from([channels]), |ix| low + ix as f32 / 64.0);
            self.graph.add_weight(&name, tensor)
        };
        let inputs = [x, vector(0.5), vector(-0.1), vector(-0.2), vector(0.7)];
        self.add(BatchNorm { epsilon: 1e-5 }, &inputs)
    }

    fn unary(&mut self, x: ValueId, function: pointwise::Unary) -> ValueId {
        self.add(Unary(function), &[x])
    }

    fn relu(&mut self, x: ValueId) -> ValueId {
        self.unary(x, pointwise::Unary::Relu)
    }

    fn sum(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.add(Binary(pointwise::Binary::Add), &[a, b])
    }

    fn concat(&mut self, parts: &[ValueId]) -> ValueId {
        self.add(Concat { axis: 1 }, parts)
    }

    fn pool(&mut self, x: ValueId, kernel: usize, stride: usize) -> ValueId {
        let kind = self.pick(&[PoolKind::Max, PoolKind::Mean]);
        self.add(Op::Pool(Pool::square(kind, kernel, stride, (kernel - 1) / 2)), &[x])
    }

    fn resize(&mut self, x: ValueId, extent: usize) -> ValueId {
        let shape = Shape::from([1, self.channels(x), extent, extent]);
        let factor = (extent / self.extent(x)) as f32;
        let resize = Resize {
            shape,
            scale: dims(&[1.0, 1.0, factor, factor]),
            mode: ResizeMode::Nearest(Rounding::Floor),
            coordinates: Coordinates::Asymmetric,
            antialias: false,
            range: None,
        };
        self.add(Op::Resize(resize), &[x])
    }

    fn reshape(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        self.add(Reshape { shape: Shape::from(shape) }, &[x])
    }

    fn transpose(&mut self, x: ValueId, order: &[usize]) -> ValueId {
        self.add(Transpose { order: dims(order) }, &[x])
    }

    fn output(&mut self, y: ValueId) {
        self.graph.set_outputs(vec![("y".into(), y)]);
    }

    fn outputs(&mut self, values: &[ValueId]) {
        let named = values.iter().enumerate().map(|(ix, &value)| (format!("y{ix}"), value));
        self.graph.set_outputs(named.collect());
    }

    fn cells(&mut self, scale: Scale) -> String {
        let channels = self.pick(&[8, 12, 17, 22]);
        let (extent, count) = match scale.parts(30) {
            Some(count) => (8, count),
            None if scale == Scale::Full => (32, 8),
            None => (self.between(12, 20), 2),
        };
        let x = self.input(3, extent);
        let stem = self.conv(x, channels, 3, 1);
        let (mut before, mut last) = (stem, stem);
        for _ in 0..count {
            let inputs = [before, last].map(|value| {
                let active = self.relu(value);
                self.conv(active, channels, 1, 1)
            });
            let mut states = inputs.to_vec();
            let mut is_read = vec![false; 2];
            for _ in 0..5 {
                let [a, b] = [(); 2].map(|()| self.between(0, states.len() - 1));
                let [left, right] = [a, b].map(|ix| {
                    is_read[ix] = true;
                    match self.between(0, 3) {
                        0 => states[ix],
                        1 => self.pool(states[ix], 3, 1),
                        kind => {
                            let active = self.relu(states[ix]);
                            let depthwise = self.depthwise(active, 2 * kind - 1, 1);
                            self.conv(depthwise, channels, 1, 1)
                        }
                    }
                });
                states.push(self.sum(left, right));
                is_read.push(false);
            }
            let free: Vec<ValueId> = states.iter().zip(&is_read).filter(|(_, read)| !**read).map(|(&v, _)| v).collect();
            let whole = if free.len() == 1 { free[0] } else { self.concat(&free) };
            (before, last) = (last, whole);
        }
        self.output(last);
        format!("{count} cells of {channels} channels, {extent} pixels")
    }

    fn chain(&mut self, scale: Scale) -> String {
        let channels = self.pick(scale.widths());
        let (extent, depth) = match scale.parts(2) {
            Some(depth) => (8, depth),
            None if scale == Scale::Full => (self.pick(&[32, 56, 112]), 12),
            None => (self.between(12, 24), 4),
        };
        let mut x = self.input(channels, extent);
        for _ in 0..depth {
            x = self.conv(x, channels, 3, 1);
            x = self.relu(x);
        }
        self.output(x);
        format!("{depth} of {channels} channels, {extent} pixels")
    }

    fn dense(&mut self, scale: Scale) -> String {
        let growth = if scale.parts(1).is_some() { 5 } else { self.pick(&[5, 7, 12, 13, 16, 24]) };
        // Blocks of any number keep their extent.
        let (extent, layers, blocks, stride) = match scale.parts(12 * 7 + 2) {
            Some(blocks) => (8, 12, blocks, 1),
            None if scale == Scale::Full => (32, self.pick(&[12, 32]), 3, 2),
            None => (self.between(8, 16), self.between(3, 6), 3, 2),
        };
        let x = self.input(3, extent);
        let mut all = self.conv(x, 2 * growth, 3, 1);
        for block in 0..blocks {
            if 0 < block {
                let half = self.channels(all) / 2;
                all = self.conv(all, half, 1, 1);
                all = self.pool(all, if stride == 1 { 3 } else { 2 }, stride);
            }
            for _ in 0..layers {
                let mut new = all;
                for (out, kernel) in [(4 * growth, 1), (growth, 3)] {
                    new = self.norm(new);
                    new = self.relu(new);
                    new = self.conv(new, out, kernel, 1);
                }
                all = self.concat(&[all, new]);
            }
        }
        let last = self.norm(all);
        self.output(last);
        format!("{blocks} blocks of {layers} layers, growth {growth}, {extent} pixels")
    }

    fn resolutions(&mut self, full: bool) -> String {
        let width = self.pick(&[6, 8, 18, 25]);
        let (extent, branches, rounds) = if full { (64, 4, 3) } else { (16, 3, 1) };
        let x = self.input(3, extent);
        let mut at: Vec<ValueId> = vec![self.conv(x, width, 3, 1)];
        while at.len() < branches {
            let next = self.conv(at[at.len() - 1], width << at.len(), 3, 2);
            at.push(self.relu(next));
            for _ in 0..rounds {
                for value in &mut at {
                    let inner = self.conv(*value, self.graph.ty(*value).shape[1], 3, 1);
                    let inner = self.relu(inner);
                    let inner = self.conv(inner, self.graph.ty(*value).shape[1], 3, 1);
                    let sum = self.sum(*value, inner);
                    *value = self.relu(sum);
                }
                let old = at.clone();
                for (to, value) in at.iter_mut().enumerate() {
                    let mut sum = old[to];
                    for (from, &other) in old.iter().enumerate().filter(|&(from, _)| from != to) {
                        let mut moved = other;
                        match from < to {
                            true => {
                                for step in from..to {
                                    moved = self.conv(moved, width << (step + 1), 3, 2);
                                }
                            }
                            false => {
                                moved = self.conv(moved, width << to, 1, 1);
                                moved = self.resize(moved, extent >> to);
                            }
                        }
                        sum = self.sum(sum, moved);
                    }
                    *value = self.relu(sum);
                }
            }
        }
        let parts: Vec<ValueId> = at.iter().map(|&value| self.resize(value, extent)).collect();
        let whole = self.concat(&parts);
        let y = self.conv(whole, 5, 1, 1);
        self.output(y);
        format!("{branches} branches of width {width}, {rounds} rounds, {extent} pixels")
    }

    fn u_net(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 8, 16, 24]);
        let (extent, depth) = if full { (128, 4) } else { (16, 2) };
        let mut x = self.input(3, extent);
        let mut skips = Vec::new();
        for level in 0..=depth {
            for _ in 0..2 {
                x = self.conv(x, width << level, 3, 1);
                x = self.relu(x);
            }
            if level < depth {
                skips.push(x);
                x = self.pool(x, 2, 2);
            }
        }
        for (level, skip) in skips.into_iter().enumerate().rev() {
            let weight = self.weight(&[width << (level + 1), width << level, 2, 2]);
            let op = ConvTranspose {
                stride: dims(&[2, 2]),
                dilation: dims(&[1, 1]),
                pad: dims(&[[0, 0], [0, 0]]),
                output_pad: dims(&[0, 0]),
                groups: 1,
                epilogue: Epilogue::default(),
            };
            let up = self.add(Op::ConvTranspose(op), &[x, weight]);
            x = self.concat(&[skip, up]);
            for _ in 0..2 {
                x = self.conv(x, width << level, 3, 1);
                x = self.relu(x);
            }
        }
        let y = self.conv(x, 2, 1, 1);
        self.output(y);
        format!("{depth} levels of width {width}, {extent} pixels")
    }

    fn residual(&mut self, scale: Scale) -> String {
        let width = self.pick(scale.widths());
        let (extent, blocks) = match scale.parts(7) {
            Some(blocks) => (8, blocks),
            None if scale == Scale::Full => (56, 8),
            None => (self.between(12, 20), 3),
        };
        let x = self.input(3, extent);
        let mut x = self.conv(x, width, 3, 1);
        for block in 0..blocks {
            let (out, stride) = if block == blocks / 2 { (2 * width - 1, 2) } else { (self.channels(x), 1) };
            let a = self.conv(x, out, 3, stride);
            let a = self.norm(a);
            let a = self.relu(a);
            let a = self.conv(a, out, 3, 1);
            let a = self.norm(a);
            let short = if out == self.channels(x) { x } else { self.conv(x, out, 1, stride) };
            let sum = self.sum(a, short);
            x = self.relu(sum);
        }
        self.output(x);
        format!("{blocks} blocks of width {width}, {extent} pixels")
    }

    fn bottlenecks(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 8, 14, 16, 27]);
        let (extent, blocks) = if full { (112, 6) } else { (self.between(12, 24), 2) };
        let x = self.input(3, extent);
        let mut x = self.conv(x, width, 3, 1);
        for block in 0..blocks {
            let stride = if block % 3 == 2 { 2 } else { 1 };
            let expand = self.pick(&[3, 4, 6]);
            let wide = self.conv(x, expand * width, 1, 1);
            let wide = self.unary(wide, pointwise::Unary::HardSwish);
            let deep = self.depthwise(wide, 3, stride);
            let deep = self.unary(deep, pointwise::Unary::HardSwish);
            let narrow = self.conv(deep, width, 1, 1);
            x = if stride == 1 { self.sum(x, narrow) } else { narrow };
        }
        self.output(x);
        format!("{blocks} blocks of width {width}, {extent} pixels")
    }

    fn branches(&mut self, full: bool) -> String {
        let (extent, modules) = if full { (56, 5) } else { (self.between(10, 16), 2) };
        let x = self.input(3, extent);
        let first = self.pick(&CHANNELS);
        let mut x = self.conv(x, first, 3, 1);
        for _ in 0..modules {
            let mut parts = Vec::new();
            for branch in 0..self.between(2, 4) {
                let out = self.pick(&CHANNELS);
                let mut part = if branch == 0 { self.pool(x, 3, 1) } else { x };
                for layer in 0..branch.max(1) {
                    part = self.conv(part, out, if layer == 0 { 1 } else { 3 }, 1);
                    part = self.relu(part);
                }
                parts.push(part);
            }
            x = self.concat(&parts);
        }
        self.output(x);
        format!("{modules} modules, {extent} pixels")
    }

    fn random_graph(&mut self, scale: Scale) -> String {
        let channels = self.pick(&[4, 8, 11, 16, 20]);
        let (extent, count) = match scale {
            Scale::Nodes(count) => (4, count),
            Scale::Full => (16, 400),
            Scale::Small => (self.between(8, 12), 24),
        };
        let mut values = vec![self.input(channels, extent)];
        let mut is_read = vec![false];
        for _ in 0..count {
            // Mostly of the latest values, so that the graph is deep; some far back.
            let mut at = || {
                let back = if self.random.below(6) == 0 { values.len() } else { values.len().min(8) };
                let ix = values.len() - 1 - self.random.below(back as u64) as usize;
                is_read[ix] = true;
                values[ix]
            };
            let [a, b] = [at(), at()];
            let new = match self.between(0, 7) {
                0 => self.relu(a),
                1 => self.unary(a, pointwise::Unary::Sigmoid),
                2 => self.conv(a, channels, 1, 1),
                3 => self.conv(a, channels, 3, 1),
                4 => self.depthwise(a, 3, 1),
                5 => self.pool(a, 3, 1),
                6 if a != b => {
                    let whole = self.concat(&[a, b]);
                    let start = self.between(0, channels);
                    let slice = Slice::range(&self.graph.ty(whole).shape, 1, start, channels);
                    self.add(Op::Slice(slice), &[whole])
                }
                _ => self.sum(a, b),
            };
            values.push(new);
            is_read.push(false);
        }
        // Each result is read.
        let open: Vec<ValueId> = values.iter().zip(&is_read).filter(|(_, read)| !**read).map(|(&v, _)| v).collect();
        let y = open.into_iter().reduce(|a, b| self.sum(a, b)).expect("there is an input");
        debug_assert_eq!(self.extent(y), extent);
        self.output(y);
        format!("{count} nodes of {channels} channels, {extent} pixels")
    }
}
