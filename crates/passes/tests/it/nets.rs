//! Builders of tasks as networks have them, for inference and for training. Sizes follow from channels and extents; what
//! is computed does not matter.

use types::{Bytes, EntityId};

use crate::passes::order::{BlockId, TaskId, Tasks};

/// A forward value: channels, and the extent of both sides.
pub(crate) type Value = usize;

enum Layer {
    /// With the bytes of its weights.
    Conv(u64),
    /// In place forward; its result is enough for its gradient.
    Relu,
    /// Operand and gradient are enough.
    Pool,
    Add,
    Concat,
}

struct Applied {
    layer: Layer,
    inputs: Vec<Value>,
    output: Value,
}

/// A network, layer by layer.
#[derive(Default)]
pub(crate) struct Net {
    shapes: Vec<(u64, u64)>,
    layers: Vec<Applied>,
    /// Whether the gradients of weights are among the blocks; else they lie elsewhere, as weights do.
    pub(crate) keeps_gradients: bool,
}

impl Net {
    pub(crate) fn new(channels: u64, side: u64) -> (Net, Value) {
        let net = Net { shapes: vec![(channels, side)], ..Net::default() };
        (net, 0)
    }

    fn push(&mut self, layer: Layer, inputs: &[Value], channels: u64, side: u64) -> Value {
        self.shapes.push((channels, side));
        let output = self.shapes.len() - 1;
        self.layers.push(Applied { layer, inputs: inputs.to_vec(), output });
        output
    }

    pub(crate) fn conv(&mut self, x: Value, channels: u64, kernel: u64, stride: u64) -> Value {
        let (old, side) = self.shapes[x];
        self.push(Layer::Conv(old * channels * kernel * kernel * 4), &[x], channels, side / stride)
    }

    fn depthwise(&mut self, x: Value, kernel: u64, stride: u64) -> Value {
        let (channels, side) = self.shapes[x];
        self.push(Layer::Conv(channels * kernel * kernel * 4), &[x], channels, side / stride)
    }

    pub(crate) fn relu(&mut self, x: Value) -> Value {
        let (channels, side) = self.shapes[x];
        self.push(Layer::Relu, &[x], channels, side)
    }

    pub(crate) fn pool(&mut self, x: Value, stride: u64) -> Value {
        let (channels, side) = self.shapes[x];
        self.push(Layer::Pool, &[x], channels, side / stride)
    }

    pub(crate) fn add(&mut self, parts: &[Value]) -> Value {
        let (channels, side) = self.shapes[parts[0]];
        self.push(Layer::Add, parts, channels, side)
    }

    pub(crate) fn concat(&mut self, parts: &[Value]) -> Value {
        let channels = parts.iter().map(|&part| self.shapes[part].0).sum();
        let side = self.shapes[parts[0]].1;
        self.push(Layer::Concat, parts, channels, side)
    }

    /// Twice: relu, depthwise, pointwise.
    fn separable(&mut self, x: Value, channels: u64, kernel: u64, stride: u64) -> Value {
        let mut x = x;
        for stride in [stride, 1] {
            x = self.relu(x);
            x = self.depthwise(x, kernel, stride);
            x = self.conv(x, channels, 1, 1);
        }
        x
    }

    fn bytes(&self, value: Value) -> Bytes {
        let (channels, side) = self.shapes[value];
        Bytes(channels * side * side * 4)
    }

    /// The tasks of a run forward.
    pub(crate) fn inference(&self) -> Tasks {
        let mut tasks = Tasks::new();
        let blocks = self.forward(&mut tasks);
        tasks.keep(blocks[blocks.len() - 1]);
        tasks
    }

    fn forward(&self, tasks: &mut Tasks) -> Vec<BlockId> {
        let mut blocks = vec![tasks.add_given(self.bytes(0))];
        for applied in &self.layers {
            let reads: Vec<BlockId> = applied.inputs.iter().map(|&input| blocks[input]).collect();
            let task = tasks.add(&reads, &[self.bytes(applied.output)]);
            if matches!(applied.layer, Layer::Relu | Layer::Add) {
                reads.iter().for_each(|&read| tasks.allow_in_place(task, &[read]));
            }
            blocks.push(tasks.tasks()[task].makes[0]);
        }
        blocks
    }

    /// The tasks of a step of training: forward, then the gradients.
    pub(crate) fn training(&self) -> Tasks {
        let mut tasks = Tasks::new();
        let blocks = self.forward(&mut tasks);
        let mut gradients: Vec<Option<BlockId>> = vec![None; blocks.len()];
        let last = blocks.len() - 1;
        gradients[last] = Some(tasks.add1(&[blocks[last]], self.bytes(last)));
        for applied in self.layers.iter().rev() {
            let Some(gradient) = gradients[applied.output] else { continue };
            let input = applied.inputs[0];
            match applied.layer {
                Layer::Conv(kernel) => {
                    let kept = if self.keeps_gradients { kernel } else { 0 };
                    let own = tasks.add1(&[blocks[input], gradient], Bytes(kept));
                    tasks.keep(own);
                    self.pass_on(&mut tasks, &mut gradients, input, &[gradient], false);
                }
                Layer::Relu => {
                    self.pass_on(&mut tasks, &mut gradients, input, &[gradient, blocks[applied.output]], true);
                }
                Layer::Pool => {
                    let reads = [gradient, blocks[input], blocks[applied.output]];
                    self.pass_on(&mut tasks, &mut gradients, input, &reads, false);
                }
                Layer::Add => {
                    for &input in &applied.inputs {
                        self.pass_on(&mut tasks, &mut gradients, input, &[gradient], true);
                    }
                }
                Layer::Concat => {
                    for &input in &applied.inputs {
                        self.pass_on(&mut tasks, &mut gradients, input, &[gradient], false);
                    }
                }
            }
        }
        tasks
    }

    /// Adds a task for the gradient of a value, and one that adds it to what is there already.
    fn pass_on(
        &self,
        tasks: &mut Tasks,
        gradients: &mut [Option<BlockId>],
        value: Value,
        reads: &[BlockId],
        in_place: bool,
    ) {
        if value == 0 {
            return;
        }
        let task = tasks.add(reads, &[self.bytes(value)]);
        if in_place {
            tasks.allow_in_place(task, &reads[..1]);
        }
        let own = tasks.tasks()[task].makes[0];
        gradients[value] = Some(match gradients[value] {
            None => own,
            Some(other) => {
                let sum = tasks.add(&[other, own], &[self.bytes(value)]);
                tasks.allow_in_place(sum, &[other]);
                tasks.allow_in_place(sum, &[own]);
                tasks.tasks()[sum].makes[0]
            }
        });
    }
}

/// A random graph: each task reads up to three of the last `window` blocks, and half of them work in place. What nobody
/// reads is joined at the end.
pub(crate) fn random_dag(count: usize, window: usize, seed: u64) -> Tasks {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut tasks = Tasks::new();
    let mut blocks = vec![tasks.add_given(Bytes(4096))];
    for _ in 0..count {
        let first = blocks.len() - window.min(blocks.len());
        let mut reads: Vec<BlockId> = (0..1 + random.below(3))
            .map(|_| blocks[first + random.below((blocks.len() - first) as u64) as usize])
            .collect();
        reads.sort_unstable();
        reads.dedup();
        let is_elementwise = random.below(2) == 0;
        let bytes = if is_elementwise { tasks.blocks()[reads[0]].bytes } else { Bytes(256 << random.below(7)) };
        let task = tasks.add(&reads, &[bytes]);
        if is_elementwise {
            tasks.allow_in_place(task, &reads[..1]);
        }
        blocks.push(tasks.tasks()[task].makes[0]);
    }
    let mut open: Vec<BlockId> =
        tasks.blocks().iter().filter(|(_, block)| block.readers.is_empty()).map(|(id, _)| id).collect();
    while 1 < open.len() {
        open = open.chunks(2).map(|pair| tasks.add1(pair, Bytes(1024))).collect();
    }
    tasks.keep(open[0]);
    tasks
}

/// The least peak of orders by a list scheduler: the ready task with the least growth runs next, with noise that grows
/// from restart to restart.
pub(crate) fn list_scheduled(tasks: &Tasks, restarts: u64) -> Bytes {
    let mut random = Random(7);
    let orders = (0..restarts).map(|restart| list_order(tasks, restart * 500, &mut random));
    orders
        .map(|order| tasks.peak(&order).expect("each task runs after its operands"))
        .min()
        .expect("there are restarts")
}

fn list_order(tasks: &Tasks, noise: u64, random: &mut Random) -> Vec<TaskId> {
    let is_made = |block: &BlockId| !tasks.blocks()[*block].makers.is_empty();
    let mut missing: Vec<usize> =
        tasks.tasks().values().map(|task| task.reads.iter().filter(|block| is_made(block)).count()).collect();
    let mut readers: Vec<usize> = tasks.blocks().values().map(|block| block.readers.len()).collect();
    let mut ready: Vec<TaskId> = tasks.tasks().keys().filter(|task| missing[task.index()] == 0).collect();
    let mut order = Vec::new();
    while !ready.is_empty() {
        let growth = |task: &TaskId, noise: i64| {
            let task = &tasks.tasks()[*task];
            let made: u64 = task.makes.iter().map(|&block| tasks.blocks()[block].bytes.0).sum();
            let dying = task.reads.iter().filter(|block| readers[block.index()] == 1 && !tasks.blocks()[**block].kept);
            made as i64 - dying.map(|&block| tasks.blocks()[block].bytes.0 as i64).sum::<i64>() + noise
        };
        let noises: Vec<i64> = ready.iter().map(|_| random.below(noise + 1) as i64 - noise as i64 / 2).collect();
        let next = (0..ready.len()).min_by_key(|&ix| growth(&ready[ix], noises[ix])).expect("tasks are ready");
        let task = ready.swap_remove(next);
        order.push(task);
        tasks.tasks()[task].reads.iter().for_each(|block| readers[block.index()] -= 1);
        for &block in &tasks.tasks()[task].makes {
            for &reader in &tasks.blocks()[block].readers {
                missing[reader.index()] -= 1;
                if missing[reader.index()] == 0 {
                    ready.push(reader);
                }
            }
        }
    }
    order
}

/// Stages of random wiring: Watts-Strogatz graphs over 32 points, 4 neighbours, rewired with 3/4 probability.
pub(crate) fn randwire(stages: u64, seed: u64) -> Net {
    let mut random = Random(seed * 2 + 1);
    let (mut net, x) = Net::new(3, 64);
    let mut x = net.conv(x, 16, 3, 2);
    let mut channels = 32;
    for _ in 0..stages {
        x = randwire_stage(&mut net, x, channels, &mut random);
        channels *= 2;
    }
    net
}

fn randwire_stage(net: &mut Net, x: Value, channels: u64, random: &mut Random) -> Value {
    const POINTS: usize = 32;
    let mut edges: Vec<(usize, usize)> = Vec::new();
    for near in 1..=2 {
        for from in 0..POINTS {
            let mut to = (from + near) % POINTS;
            if random.below(4) < 3 {
                let joined = |edges: &[(usize, usize)], a: usize, b: usize| {
                    edges.iter().any(|&edge| edge == (a.min(b), a.max(b)))
                };
                let other = loop {
                    let other = random.below(POINTS as u64) as usize;
                    if other != from && !joined(&edges, from, other) {
                        break other;
                    }
                };
                to = other;
            }
            edges.push((from.min(to), from.max(to)));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    let mut points: Vec<Value> = Vec::new();
    for point in 0..POINTS {
        let inputs: Vec<Value> = edges.iter().filter(|edge| edge.1 == point).map(|edge| points[edge.0]).collect();
        let (input, stride) = match inputs[..] {
            [] => (x, 2),
            [one] => (one, 1),
            _ => (net.add(&inputs), 1),
        };
        let value = net.relu(input);
        let value = net.depthwise(value, 3, stride);
        points.push(net.conv(value, channels, 1, 1));
    }
    let ends: Vec<Value> =
        (0..POINTS).filter(|&point| edges.iter().all(|edge| edge.0 != point)).map(|point| points[point]).collect();
    if ends.len() == 1 { ends[0] } else { net.add(&ends) }
}

/// Cells as in NASNet-A; of six, the third and the fifth halve the extent.
pub(crate) fn nasnet(cells: u64) -> Net {
    let (mut net, x) = Net::new(3, 64);
    let stem = net.conv(x, 32, 3, 2);
    let (mut before, mut last) = (stem, stem);
    let mut channels = 32;
    for cell in 0..cells {
        let reduces = cell == 2 || cell == 4;
        if reduces {
            channels *= 2;
        }
        let next = nasnet_cell(&mut net, before, last, channels, reduces);
        (before, last) = (last, next);
    }
    net.relu(last);
    net
}

fn nasnet_cell(net: &mut Net, before: Value, last: Value, channels: u64, reduces: bool) -> Value {
    let fit = net.shapes[before].1 / net.shapes[last].1;
    let p = net.relu(before);
    let p = net.conv(p, channels, 1, fit);
    let h = net.relu(last);
    let h = net.conv(h, channels, 1, 1);
    if reduces {
        let a = (net.separable(p, channels, 7, 2), net.separable(h, channels, 5, 2));
        let a = net.add(&[a.0, a.1]);
        let b = (net.pool(h, 2), net.separable(p, channels, 7, 2));
        let b = net.add(&[b.0, b.1]);
        let c = (net.pool(h, 2), net.separable(p, channels, 5, 2));
        let c = net.add(&[c.0, c.1]);
        let d = (net.pool(h, 2), net.separable(a, channels, 3, 1));
        let d = net.add(&[d.0, d.1]);
        let e = net.pool(a, 1);
        let e = net.add(&[e, b]);
        return net.concat(&[b, c, d, e]);
    }
    let a = net.separable(h, channels, 3, 1);
    let a = net.add(&[a, h]);
    let b = (net.separable(p, channels, 3, 1), net.separable(h, channels, 5, 1));
    let b = net.add(&[b.0, b.1]);
    let c = net.pool(h, 1);
    let c = net.add(&[c, p]);
    let d = (net.pool(p, 1), net.pool(p, 1));
    let d = net.add(&[d.0, d.1]);
    let e = (net.separable(p, channels, 5, 1), net.separable(p, channels, 3, 1));
    let e = net.add(&[e.0, e.1]);
    net.concat(&[p, a, b, c, d, e])
}

/// Bottleneck blocks in four stages.
pub(crate) fn resnet(stages: [usize; 4]) -> Net {
    let (mut net, x) = Net::new(3, 224);
    let x = net.conv(x, 64, 7, 2);
    let x = net.relu(x);
    let mut x = net.pool(x, 2);
    for (stage, blocks) in stages.into_iter().enumerate() {
        let channels = 64 << stage;
        for block in 0..blocks {
            let stride = if block == 0 && 0 < stage { 2 } else { 1 };
            let y = net.conv(x, channels, 1, stride);
            let y = net.relu(y);
            let y = net.conv(y, channels, 3, 1);
            let y = net.relu(y);
            let y = net.conv(y, channels * 4, 1, 1);
            let shortcut = if block == 0 { net.conv(x, channels * 4, 1, stride) } else { x };
            let sum = net.add(&[y, shortcut]);
            x = net.relu(sum);
        }
    }
    net.pool(x, 7);
    net
}

/// Blocks of four branches, as in Inception.
pub(crate) fn inception(blocks: u64) -> Net {
    let (mut net, x) = Net::new(3, 56);
    let mut x = net.conv(x, 192, 3, 2);
    for block in 0..blocks {
        let wide = 64 + 16 * (block % 4);
        let a = net.conv(x, wide, 1, 1);
        let b = net.conv(x, wide + 32, 1, 1);
        let b = net.conv(b, wide * 2, 3, 1);
        let c = net.conv(x, 16, 1, 1);
        let c = net.conv(c, 32, 5, 1);
        let c = net.conv(c, 32, 5, 1);
        let d = net.pool(x, 1);
        let d = net.conv(d, 32, 1, 1);
        x = net.concat(&[a, b, c, d]);
        if block % 4 == 3 {
            x = net.pool(x, 2);
        }
    }
    net.pool(x, 1);
    net
}

/// A generator whose numbers are the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}
