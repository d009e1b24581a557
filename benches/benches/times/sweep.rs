//! Kernels of random shapes, as layers: the kernels that can do the same work.

use cpu::{Kernel, StorageType};
use ir::ops::{Conv, ConvTranspose, ConvWeightGradient, Epilogue, Pool, PoolGradient, PoolKind, PoolWithPositions};
use ir::{Graph, Op};
use lower::cpu::{CpuTarget, Layer, layers};
use types::pointwise::Binary;
use types::{DType, Random, Scope, Shape, Tensor};

/// A geometry of windows over images.
#[derive(Clone, Copy)]
struct Images {
    batch: usize,
    extents: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    pad: [usize; 2],
}

impl Images {
    fn random(random: &mut Random) -> Images {
        let mut one_of = |choices: &[usize]| choices[random.below(choices.len() as u64) as usize];
        let batch = one_of(&[1, 1, 1, 1, 2, 8]);
        if one_of(&[0, 1, 2, 3, 4, 5, 6, 7]) == 0 {
            // Patches of a vision transformer or between the stages of a network.
            let (patch, count) = (one_of(&[2, 2, 4, 8, 14, 16, 32]), one_of(&[7, 8, 12, 14, 16, 28, 56]));
            return Images { batch, extents: [patch * count; 2], kernel: [patch; 2], stride: patch, pad: [0, 0] };
        }
        if one_of(&[0, 1, 2, 3, 4, 5, 6, 7]) == 0 {
            // Points of a cloud, steps of a sequence.
            let (kernel, count) = (one_of(&[1, 1, 1, 3]), one_of(&[256, 500, 1000, 1024, 1500, 2048, 4000, 4096]));
            return Images { batch: 1, extents: [1, count], kernel: [1, kernel], stride: 1, pad: [0, kernel / 2] };
        }
        let kernel = match one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8]) {
            0..=2 => [1, 1],
            3..=5 => [3, 3],
            6 => [5, 5],
            7 => [7, 7],
            _ => [1, one_of(&[3, 8, 31, 128])],
        };
        let stride = one_of(&[1, 1, 1, 1, 1, 1, 2, 2, 4]);
        let side = one_of(&[5, 7, 8, 10, 12, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112, 128, 160]);
        let extents = if kernel[0] == 1 && 1 < kernel[1] { [1, side * 16] } else { [side, side] };
        let pad = if one_of(&[0, 1, 1, 1]) == 1 { kernel.map(|extent| extent / 2) } else { [0, 0] };
        let fits = (0..2).all(|axis| kernel[axis] <= extents[axis] + 2 * pad[axis]);
        Images { batch, extents, kernel, stride, pad: if fits { pad } else { kernel.map(|extent| extent / 2) } }
    }

    /// The extents of the result of a window.
    fn outputs(&self) -> [usize; 2] {
        let output = |axis: usize| (self.extents[axis] + 2 * self.pad[axis] - self.kernel[axis]) / self.stride + 1;
        [output(0), output(1)]
    }

    fn area(&self) -> usize {
        self.outputs()[0] * self.outputs()[1]
    }

    fn shape(&self, channels: usize) -> Shape {
        Shape::from([self.batch, channels, self.extents[0], self.extents[1]])
    }

    fn result(&self, channels: usize) -> Shape {
        Shape::from([self.batch, channels, self.outputs()[0], self.outputs()[1]])
    }

    fn pads(&self) -> Vec<[usize; 2]> {
        self.pad.iter().map(|&pad| [pad; 2]).collect()
    }
}

/// The layers of a node of random weights or run-time operands.
fn node(op: impl Into<Op>, inputs: &[Shape], weight: Option<&Shape>, target: &CpuTarget) -> Vec<Layer> {
    let inputs: Vec<(DType, Shape)> = inputs.iter().map(|shape| (DType::F32, shape.clone())).collect();
    node_of(op.into(), &inputs, weight, target)
}

/// The same with inputs of other types.
fn node_of(op: Op, inputs: &[(DType, Shape)], weight: Option<&Shape>, target: &CpuTarget) -> Vec<Layer> {
    let mut graph = Graph::new("sweep");
    let mut ids: Vec<_> = Vec::new();
    for (ix, (dtype, shape)) in inputs.iter().enumerate() {
        ids.push(graph.add_input(&format!("x{ix}"), *dtype, shape.clone()));
    }
    if let Some(shape) = weight {
        ids.push(graph.add_weight("w", Tensor::from_fn(shape.clone(), |_| 0.5f32)));
    }
    match graph.add(op, &ids, Scope::new("node")) {
        Ok(results) => {
            let name = |(ix, value)| (format!("y{ix}"), value);
            graph.set_outputs(results.into_iter().enumerate().map(name).collect());
            layers(&graph, target)
        }
        Err(refusal) => panic!("a case of the sweep: {refusal}"),
    }
}

/// Layers of about `count` random nodes.
pub(crate) fn random_layers(seed: u64, count: usize, target: &CpuTarget) -> Vec<Layer> {
    let mut random = Random::new(seed);
    let channels = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 72, 96, 128, 160, 192, 256, 320, 512, 768, 1024];
    let mut found = Vec::new();
    while found.len() < count {
        let images = Images::random(&mut random);
        let mut one_of = |choices: &[usize]| choices[random.below(choices.len() as u64) as usize];
        let (mut ins, mut outs) = (one_of(&channels), one_of(&channels));
        let groups = match one_of(&[0, 1, 2, 3, 4, 5, 6]) {
            0 => {
                outs = ins;
                ins
            }
            1 => {
                let groups = one_of(&[2, 4, 8, 16, 32]);
                (ins, outs) = (ins.div_ceil(groups) * groups, outs.div_ceil(groups) * groups);
                groups
            }
            2 => {
                // A few channels in each.
                let (members, more) = (one_of(&[1, 2, 4, 8]), one_of(&[1, 1, 2, 4]));
                let groups = ins.div_ceil(members);
                (ins, outs) = (groups * members, groups * members * more);
                groups
            }
            _ => 1,
        };
        let products = images.batch * ins / groups * outs * images.area() * images.kernel[0] * images.kernel[1];
        let bytes = 4 * images.batch * (ins + outs) * images.extents[0] * images.extents[1];
        // A tenth of a millisecond to tens of them.
        if !(300_000..1_000_000_000).contains(&products) || 40_000_000 < bytes {
            continue;
        }
        let (stride, dilation) = ([images.stride; 2].into_iter().collect(), [1; 2].into_iter().collect());
        let pad = images.pads().into_iter().collect();
        let weight = Shape::from([outs, ins / groups, images.kernel[0], images.kernel[1]]);
        let conv = Conv { stride, dilation, pad, groups, zero: 0, epilogue: Epilogue::default() };
        found.extend(match one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) {
            0..=4 => node(conv, &[images.shape(ins)], Some(&weight), target),
            5 => node(conv, &[images.shape(ins), weight], None, target),
            6 => {
                let op = ConvTranspose {
                    stride: conv.stride,
                    dilation: conv.dilation,
                    pad: conv.pad,
                    output_pad: (0..2).map(|axis| rest(&images, axis)).collect(),
                    groups,
                    epilogue: Epilogue::default(),
                };
                match one_of(&[0, 1]) {
                    0 => node(op, &[images.result(outs)], Some(&weight), target),
                    _ => node(op, &[images.result(outs), weight], None, target),
                }
            }
            7 => {
                let op = ConvWeightGradient {
                    stride: conv.stride,
                    dilation: conv.dilation,
                    pad: conv.pad,
                    groups,
                    kernel: images.kernel.into_iter().collect(),
                };
                node(op, &[images.shape(ins), images.result(outs)], None, target)
            }
            _ => {
                let kind = [PoolKind::Max, PoolKind::Mean][one_of(&[0, 1])];
                let pool = Pool {
                    kind,
                    kernel: images.kernel.into_iter().collect(),
                    stride: conv.stride,
                    dilation: conv.dilation,
                    pad: conv.pad,
                    ceil: false,
                };
                let cells = images.kernel.iter().product::<usize>();
                let has_positions = kind == PoolKind::Max && cells <= PoolWithPositions::CELLS_MAX;
                match one_of(&[0, 0, 1]) {
                    0 => node(pool, &[images.shape(ins)], None, target),
                    _ => {
                        let operand = (kind == PoolKind::Max).then(|| images.shape(ins));
                        let extents = images.extents.into_iter().collect();
                        let inputs: Vec<Shape> = [images.result(ins)].into_iter().chain(operand).collect();
                        let search = PoolGradient { pool: pool.clone(), extents, positions: false };
                        let mut layers = node(search.clone(), &inputs, None, target);
                        if has_positions {
                            layers.extend(node(PoolWithPositions { pool }, &[images.shape(ins)], None, target));
                            let inputs = [DType::F32, DType::U8].map(|dtype| (dtype, images.result(ins)));
                            let placed = PoolGradient { positions: true, ..search };
                            layers.extend(node_of(placed.into(), &inputs, None, target));
                        }
                        layers
                    }
                }
            }
        });
        if one_of(&[0, 1, 2, 3, 4]) == 0 {
            found.extend(conversions(&images, ins));
        }
    }
    found
}

/// The cells behind the last window of an axis.
fn rest(images: &Images, axis: usize) -> usize {
    (images.extents[axis] + 2 * images.pad[axis] - images.kernel[axis]) % images.stride
}

/// Conversions of a value between layouts, and a function of its elements. They are timed, not chosen from.
fn conversions(images: &Images, channels: usize) -> Vec<Layer> {
    let plane = images.extents[0] * images.extents[1];
    let reorder = |to_blocked: bool| -> Kernel {
        cpu::Reorder { batch: images.batch, channels, plane, to_blocked, stored: StorageType::F32 }.into()
    };
    let sum: Kernel = cpu::Elementwise {
        function: cpu::ElementwiseFn::Binary(Binary::Add),
        dtype: DType::F32,
        shape: vec![images.batch * channels * plane],
        strides: vec![vec![1]; 2],
    }
    .into();
    [reorder(true), reorder(false), sum].map(|kernel| Layer { candidates: vec![kernel] }).into()
}
