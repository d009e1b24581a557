//! The modelled times of an emitted kernel and of a library's, for the choice between them.
//!
//! A kernel takes the longer of its arithmetic at a rate and of its bytes at the bandwidth of device memory, and a launch. Its
//! rate falls with the part of the multiprocessors that have no tile. All figures are those of an H100 (`docs/measurements/gpu.md`);
//! only their relations matter, and a choice that depends on them can be measured instead (`--tune`).

use cuda_driver::MathMode;
use ir::{Call, Op};
use types::{DType, Layout};

use super::reduction::Factors;
use super::tiling::{MULTIPROCESSORS, TensorCores, cores, is_copied};
use super::windows::CHANNELS_MIN;
use crate::NodeView;

/// Bytes of device memory in a nanosecond, as a copy reaches them.
const BYTES: f64 = 2970.0;
/// Nanoseconds between the ends of two launches.
const LAUNCH: f64 = 1500.0;
/// The side of the tiles that are counted.
const SIDE: usize = 64;
/// Tiles from which groups of warps multiply large ones.
const LARGE_FROM: usize = 4 * 96;

// Operations in a nanosecond with all multiprocessors at work. With few tiles, latency is the limit of both: resnet50 at batch 1
// takes 0.331 ms by emitted kernels and 0.322 by libraries.
/// Half precision, with copied lines: dense layers of bert_base with many tiles and with few, and those of cuBLASLt.
const HALF: Rates = Rates { emitted: [390e3, 300e3], library: [560e3, 300e3] };
/// The same of `f32` rounded for tensor cores, at half the rate of half precision.
const TF32: Rates = Rates { emitted: [170e3, 150e3], library: [280e3, 150e3] };
/// `f32` without tensor cores.
const FLOATS: Rates = Rates { emitted: [20e3, 20e3], library: [40e3, 20e3] };
/// A kernel that gathers the operands of tensor cores one by one: ten times the instructions of one that copies lines.
const GATHERED: f64 = 45e3;
/// A kernel that computes each result of row-major values alone.
const EACH: f64 = 5e3;
/// The part of the bandwidth that a depthwise kernel of channels-last values reaches: with it, the kernels of mobilenet_v2 take
/// 0.94 ms at batch 64, where 1.07 were measured. A library's are taken to be no faster; they were not measured.
const DEPTHWISE: f64 = 0.5;
/// Nanoseconds of a function with exponentials in an epilogue, for each result: dense layers of bert_base with GELU take 12 us
/// longer for 25 million.
const FUNCTION: f64 = 0.47e-3;

/// The rates of kernels with many tiles, then with few.
struct Rates {
    emitted: [f64; 2],
    library: [f64; 2],
}

/// The work of a node: a convolution or a product.
struct Work {
    flops: f64,
    /// Of operands and results.
    bytes: f64,
    /// Of the results.
    result: f64,
    elements: f64,
    /// Tiles of [`SIDE`] x [`SIDE`] results.
    tiles: usize,
}

impl Work {
    fn of(node: &NodeView) -> Work {
        let size = |dtype: DType, elements: usize| (dtype.size().0 as usize * elements) as f64;
        let out = node.output();
        let inputs = (0..node.operand_count()).map(|ix| size(node.input(ix).dtype, node.input(ix).shape.elements()));
        let result = size(out.dtype, out.shape.elements());
        let [count, rows, columns] = if let Op::Conv(conv) = node.op() {
            let weight = &node.input(1).shape;
            [conv.groups, weight[0] / conv.groups, out.shape.elements() / out.shape[1].max(1)]
        } else {
            let factors = Factors::of(node);
            [factors.count(), factors.m, factors.n]
        };
        Work {
            flops: node.graph.node_flops(node.node) as f64,
            bytes: inputs.sum::<f64>() + result,
            result,
            elements: out.shape.elements() as f64,
            tiles: count * rows.div_ceil(SIDE) * columns.div_ceil(SIDE),
        }
    }

    /// Nanoseconds at a rate and a part of the bandwidth.
    fn at(&self, rate: f64, part: f64) -> f64 {
        let busy = (self.tiles.max(1) as f64 / MULTIPROCESSORS as f64).min(1.0);
        (self.flops / (rate * busy)).max(self.bytes / (BYTES * part)) + LAUNCH
    }

    /// Which of two rates.
    fn few(&self) -> usize {
        usize::from(self.tiles < LARGE_FROM)
    }
}

/// The time of emitted kernels for a node, in picoseconds.
pub(super) fn emitted(node: &NodeView, target: TensorCores) -> u64 {
    let work = Work::of(node);
    let is_last = node.layout == Layout::ChannelsLast;
    let rates = match cores(node, target) {
        Some("tf32") => Some(TF32),
        Some(_) => Some(HALF),
        None => None,
    };
    let (copied, functions) = if let Op::Conv(conv) = node.op() {
        // Tensor cores multiply channels-last values of few output channels too, but not those of groups.
        if node.input(1).shape[0] / conv.groups < CHANNELS_MIN && (!is_last || conv.groups != 1) {
            let (rate, part) = if is_last { (FLOATS.emitted[0], DEPTHWISE) } else { (EACH, 1.0) };
            return picoseconds(work.at(rate, part));
        }
        (is_last, &conv.epilogue.activation[..])
    } else if let Op::MatMul(product) = node.op() {
        let (dtype, factors) = (node.input(0).dtype, Factors::of(node));
        let right = if node.is_constant(1) || product.transposed { factors.k } else { factors.n };
        (is_copied(dtype, factors.k) && is_copied(dtype, right), &product.epilogue.activation[..])
    } else {
        (false, &[][..])
    };
    let rate = match rates {
        Some(rates) if copied => rates.emitted[work.few()],
        Some(_) => GATHERED,
        None => FLOATS.emitted[work.few()],
    };
    let functions = functions.iter().filter(|function| !function.is_simple()).count() as f64;
    picoseconds(work.at(rate, 1.0) + functions * FUNCTION * work.elements)
}

/// The time of a library's calls for a node, in picoseconds: its own, which computes `f32` with some arithmetic, and emitted
/// ones behind it.
pub(super) fn library(node: &NodeView, calls: &[Call], math: MathMode) -> u64 {
    let work = Work::of(node);
    let is_few = |groups: usize| groups != 1 && node.input(1).shape[0] / groups < CHANNELS_MIN;
    let is_few = matches!(node.op(), Op::Conv(conv) if is_few(conv.groups));
    let rate = match node.input(0).dtype {
        _ if is_few => FLOATS.emitted[0],
        DType::F32 if math == MathMode::Tf32 => TF32.library[work.few()],
        DType::F32 => FLOATS.library[work.few()],
        _ => HALF.library[work.few()],
    };
    // An engine for another layout writes and reads its operands in the workspace. That of a product has parts of sums.
    let converted = if matches!(node.op(), Op::Conv(_)) { calls[0].workspace.0 as f64 } else { 0.0 };
    let behind = (calls.len() - 1) as f64 * (2.0 * work.result / BYTES + LAUNCH);
    let part = if is_few { DEPTHWISE } else { 1.0 };
    picoseconds(work.at(rate, part) + 2.0 * converted / BYTES + behind)
}

fn picoseconds(nanoseconds: f64) -> u64 {
    (nanoseconds * 1e3).round() as u64
}
