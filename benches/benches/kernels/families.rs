//! Graphs of one node that sweep over the shapes of an operator. Each takes about a millisecond at a tenth of the peak.

use ir::ops::*;
use ir::{Graph, Op};
use types::pointwise::{Binary as B, Compare as C, Unary as U};
use types::{DType, Random, Scope, Shape, Tensor};

/// Cases of one kind.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) cases: fn() -> Vec<Case>,
}

/// A name and a graph.
type Case = (String, Graph);

impl Family {
    pub(crate) const ALL: &[Family] = &[
        Family { name: "conv", cases: convolutions },
        Family { name: "conv1d", cases: long_kernels },
        Family { name: "grouped", cases: grouped },
        Family { name: "depthwise", cases: depthwise },
        Family { name: "transposed", cases: transposed },
        Family { name: "pool", cases: pools },
        Family { name: "matmul", cases: products },
        Family { name: "pointwise", cases: pointwise },
        Family { name: "reduce", cases: reductions },
        Family { name: "softmax", cases: softmaxes },
        Family { name: "move", cases: moves },
        Family { name: "resize", cases: resizes },
    ];
}

/// A graph of one op on inputs, and on constants of `f32` behind them.
fn one(name: String, op: impl Into<Op>, inputs: &[(DType, &[usize])], constants: &[&[usize]]) -> Case {
    let mut graph = Graph::new(&name);
    let mut ids = Vec::new();
    for (ix, &(dtype, shape)) in inputs.iter().enumerate() {
        ids.push(graph.add_input(&format!("x{ix}"), dtype, shape.into()));
    }
    for (ix, &shape) in constants.iter().enumerate() {
        let mut random = Random::for_name(5, &format!("{name}/{ix}"));
        let tensor = Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0));
        ids.push(graph.add_weight(&format!("w{ix}"), tensor));
    }
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    (name, graph)
}

fn conv(x: [usize; 4], outs: usize, groups: usize, kernel: [usize; 2], stride: [usize; 2], dilation: usize) -> Case {
    let pad = kernel.iter().map(|extent| [(extent - 1) * dilation / 2; 2]).collect();
    let (stride, dilation) = (stride.into_iter().collect(), [dilation; 2].into_iter().collect());
    let weight = [outs, x[1] / groups, kernel[0], kernel[1]];
    let name = format!("{kernel:?} by {stride:?} dilation {dilation:?} of {x:?} to {outs} in {groups} groups");
    let op = Conv { stride, dilation, pad, groups, zero: 0, epilogue: Epilogue::default() };
    one(name, op, &[(DType::F32, &x)], &[&weight])
}

fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    let channels = [
        (1, 1),
        (1, 8),
        (2, 4),
        (3, 16),
        (3, 32),
        (4, 24),
        (8, 8),
        (12, 12),
        (12, 24),
        (24, 24),
        (24, 96),
        (40, 40),
        (64, 64),
    ];
    for (ins, outs) in channels {
        let side = if ins < 8 { 112 } else { 56 };
        for (kernel, stride, dilation) in [(1, 1, 1), (1, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1), (7, 2, 1)]
        {
            cases.push(conv([1, ins, side, side], outs, 1, [kernel; 2], [stride; 2], dilation));
        }
        cases.push(conv([1, ins, 2 * side + 1, 29], outs, 1, [5, 1], [1; 2], 1));
        cases.push(conv([1, ins, 24, 7 * side], outs, 1, [3; 2], [1; 2], 1));
    }
    for side in [5, 7, 10, 14, 20] {
        for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
            cases.push(conv([1, 128, side, side], 128, 1, [kernel; 2], [stride; 2], 1));
        }
    }
    cases
}

fn long_kernels() -> Vec<Case> {
    let mut cases = Vec::new();
    for taps in [3, 8, 16, 64, 256] {
        for (ins, outs) in [(1, 1), (1, 8), (8, 1), (8, 8), (1, 32), (16, 64), (64, 16)] {
            for stride in [1, 4] {
                let width = (4_000_000 / (taps * ins * outs)).clamp(600, 50_000);
                cases.push(conv([1, ins, 1, width], outs, 1, [1, taps], [1, stride], 1));
            }
        }
        cases.push(conv([1, 16, 1, 16_000], 16, 16, [1, taps], [1, 1], 1));
    }
    cases
}

fn grouped() -> Vec<Case> {
    let mut cases = Vec::new();
    for (groups, channels) in [(32, 1), (32, 2), (16, 3), (16, 4), (6, 8), (14, 8), (4, 12), (4, 16), (4, 24), (2, 40)]
    {
        for (kernel, stride) in [(3, 1), (3, 2), (1, 1), (5, 1)] {
            let all = groups * channels;
            cases.push(conv([1, all, 28, 28], all, groups, [kernel; 2], [stride; 2], 1));
        }
        cases.push(conv([1, groups * channels, 14, 14], groups * channels * 2, groups, [3; 2], [1; 2], 1));
    }
    cases
}

fn depthwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for channels in [3, 12, 24, 64, 100] {
        for (kernel, stride, dilation) in [(3, 1, 1), (3, 2, 1), (5, 1, 1), (7, 1, 1), (9, 2, 1), (3, 1, 2)] {
            cases.push(conv([1, channels, 56, 56], channels, channels, [kernel; 2], [stride; 2], dilation));
        }
    }
    cases
}

fn transposed() -> Vec<Case> {
    let mut cases = Vec::new();
    for (ins, outs) in [(1, 1), (4, 3), (16, 8), (24, 12), (64, 64)] {
        for (kernel, stride, pad) in [(2, 2, 0), (3, 1, 1), (4, 2, 1), (5, 3, 1)] {
            let op = ConvTranspose {
                stride: [stride; 2].into_iter().collect(),
                dilation: [1; 2].into_iter().collect(),
                pad: [[pad; 2]; 2].into_iter().collect(),
                output_pad: [0; 2].into_iter().collect(),
                groups: 1,
                epilogue: Epilogue::default(),
            };
            let name = format!("{kernel} by {stride} of {ins} to {outs}");
            cases.push(one(name, op, &[(DType::F32, &[1, ins, 40, 40])], &[&[ins, outs, kernel, kernel]]));
        }
    }
    cases
}

fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
        for (kernel, stride, pad) in [(2, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 7, 0)] {
            for channels in [3, 24, 64] {
                let op = Pool::square(kind, kernel, stride, pad);
                cases.push(one(
                    format!("{kind:?} {kernel} by {stride} of {channels}"),
                    op,
                    &[(DType::F32, &[1, channels, 112, 112])],
                    &[],
                ));
            }
        }
        let all = Pool::square(kind, 28, 1, 0);
        cases.push(one(format!("{kind:?} of whole images"), all, &[(DType::F32, &[1, 300, 28, 28])], &[]));
    }
    cases
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        (1, 768, 3072),
        (1, 1000, 37),
        (2, 512, 512),
        (7, 333, 129),
        (49, 64, 49),
        (64, 3, 1000),
        (100, 100, 100),
        (128, 17, 640),
        (196, 96, 384),
        (197, 768, 768),
        (500, 500, 1),
        (777, 31, 9),
        (1000, 8, 8),
        (3136, 96, 384),
        (3136, 384, 96),
        (4096, 2, 2),
        (10_000, 4, 32),
    ];
    for (m, k, n) in shapes {
        cases.push(one(format!("{m}x{k}x{n} constant"), MatMul::default(), &[(DType::F32, &[m, k])], &[&[k, n]]));
        cases.push(one(
            format!("{m}x{k}x{n}"),
            MatMul::default(),
            &[(DType::F32, &[m, k]), (DType::F32, &[k, n])],
            &[],
        ));
    }
    for (batch, m, k, n) in [(12, 49, 32, 49), (12, 128, 64, 128), (300, 7, 7, 7), (64, 49, 49, 32), (1000, 3, 3, 3)] {
        let types: [(DType, &[usize]); 2] = [(DType::F32, &[batch, m, k]), (DType::F32, &[batch, k, n])];
        cases.push(one(format!("{batch} of {m}x{k}x{n}"), MatMul::default(), &types, &[]));
    }
    cases
}

fn pointwise() -> Vec<Case> {
    let mut cases = Vec::new();
    let shape: &[usize] = &[64, 56, 57];
    for dtype in DType::ALL {
        for to in [DType::F32, DType::I64, DType::U8, DType::Bool, DType::I32] {
            if to != dtype {
                cases.push(one(format!("{dtype} to {to}"), Cast { to }, &[(dtype, shape)], &[]));
            }
        }
        let two = [(dtype, shape), (dtype, &[56, 1][..])];
        for function in [C::Equal, C::Less] {
            cases.push(one(format!("{} of {dtype}", function.name()), Compare(function), &two, &[]));
        }
        let three = [(DType::Bool, shape), (dtype, shape), (dtype, &[57][..])];
        cases.push(one(format!("select of {dtype}"), Select {}, &three, &[]));
        if dtype == DType::Bool {
            for function in [B::And, B::Or, B::Xor] {
                cases.push(one(format!("{} of {dtype}", function.name()), Binary(function), &two, &[]));
            }
            cases.push(one(format!("not of {dtype}"), Unary(U::Not), &[(dtype, shape)], &[]));
            continue;
        }
        for function in [B::Add, B::Mul, B::Max] {
            cases.push(one(format!("{} of {dtype}", function.name()), Binary(function), &two, &[]));
        }
        for function in [U::Neg, U::Abs, U::Relu] {
            cases.push(one(format!("{} of {dtype}", function.name()), Unary(function), &[(dtype, shape)], &[]));
        }
    }
    for function in [U::Exp, U::Sigmoid, U::Tanh, U::Gelu, U::HardSwish, U::Silu, U::Erf, U::Floor, U::IsNan] {
        cases.push(one(format!("{} of f32", function.name()), Unary(function), &[(DType::F32, shape)], &[]));
    }
    // A one-hot row for each of 800 bytes.
    let bytes: [(DType, &[usize]); 2] = [(DType::I64, &[800, 1]), (DType::I64, &[257])];
    cases.push(one("one-hot of 257".into(), Compare(C::Equal), &bytes, &[]));
    cases
}

fn reductions() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::L2] {
        for (shape, axes) in [
            (&[64, 56, 56][..], &[0][..]),
            (&[64, 56, 56], &[1]),
            (&[64, 56, 56], &[2]),
            (&[64, 56, 56], &[0, 2]),
            (&[64, 56, 56], &[1, 2]),
            (&[200_000], &[0]),
            (&[50_000, 4], &[1]),
            (&[4, 50_000], &[0]),
            (&[50_000, 4], &[0]),
            (&[196, 768], &[1]),
        ] {
            // Roots are of floats.
            let dtypes = if kind == ReduceKind::L2 { &[DType::F32][..] } else { &[DType::F32, DType::I64] };
            for &dtype in dtypes {
                let op = Reduce { kind, axes: axes.iter().copied().collect(), keep: false };
                cases.push(one(format!("{kind:?} over {axes:?} of {dtype}{shape:?}"), op, &[(dtype, shape)], &[]));
            }
        }
    }
    cases
}

fn softmaxes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (shape, axis) in
        [([20_000, 2], 1), ([20_000, 10], 1), ([4000, 49], 1), ([1000, 197], 1), ([10, 30_000], 1), ([21, 10_000], 0)]
    {
        for log in [false, true] {
            cases.push(one(
                format!("softmax {axis} of {shape:?}, log {log}"),
                Softmax { axis, log },
                &[(DType::F32, &shape)],
                &[],
            ));
        }
        let op = ArgExtreme { axis, keep: false, max: true, last: false };
        cases.push(one(format!("arg max {axis} of {shape:?}"), op, &[(DType::F32, &shape)], &[]));
        let norm = [shape[0], shape[1]];
        let op = LayerNorm { axis: 1, epsilon: 1e-5, scale: true, shift: true };
        cases.push(one(format!("layer norm of {norm:?}"), op, &[(DType::F32, &norm)], &[&[norm[1]], &[norm[1]]]));
    }
    cases
}

fn moves() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::I64, DType::U8] {
        for order in [&[0, 2, 1][..], &[1, 0, 2], &[2, 1, 0], &[2, 0, 1], &[1, 2, 0]] {
            let op = Transpose { order: order.iter().copied().collect() };
            cases.push(one(format!("transpose {order:?} of {dtype}"), op, &[(dtype, &[60, 61, 62])], &[]));
        }
        for (table, index, axis) in [
            (&[1000, 256][..], &[800][..], 0),
            (&[100_000], &[100_000], 0),
            (&[64, 1000], &[1500], 1),
            (&[500, 500, 1], &[500], 1),
        ] {
            let types = [(dtype, table), (DType::I64, index)];
            cases.push(one(format!("gather {axis} of {dtype}{table:?}"), Gather { axis }, &types, &[]));
        }
        let parts: [(DType, &[usize]); 2] = [(dtype, &[500, 200]), (dtype, &[500, 3])];
        cases.push(one(format!("concat of {dtype}"), Concat { axis: 1 }, &parts, &[]));
        let step = Slice {
            start: [0, 1].into_iter().collect(),
            step: [1, 2].into_iter().collect(),
            count: Shape::from([500, 200]),
        };
        cases.push(one(format!("every second of {dtype}"), step, &[(dtype, &[500, 402])], &[]));
        for mode in [PadMode::Constant(0.0), PadMode::Reflect] {
            let op = Pad { mode, pad: [[0, 0], [1, 2], [3, 3]].into_iter().collect() };
            cases.push(one(format!("pad {mode:?} of {dtype}"), op, &[(dtype, &[20, 100, 101])], &[]));
        }
        let op = Expand { shape: Shape::from([500, 4, 100]) };
        cases.push(one(format!("expand of {dtype}"), op, &[(dtype, &[500, 1, 100])], &[]));
    }
    cases
}

fn resizes() -> Vec<Case> {
    let mut cases = Vec::new();
    let modes = [
        ResizeMode::Nearest(Rounding::Floor),
        ResizeMode::Linear,
        ResizeMode::Cubic { a: -0.75, exclude_outside: false },
    ];
    for mode in modes {
        for (from, to) in [(28, 56), (40, 55), (112, 56)] {
            for channels in [3, 24, 64] {
                let scale = to as f32 / from as f32;
                let op = Resize {
                    shape: Shape::from([1, channels, to, to]),
                    scale: [1.0, 1.0, scale, scale].into_iter().collect(),
                    mode,
                    coordinates: Coordinates::HalfPixel,
                    antialias: false,
                    range: None,
                };
                let name = format!("{mode:?} of {channels} from {from} to {to}");
                cases.push(one(name, op, &[(DType::F32, &[1, channels, from, from])], &[]));
            }
        }
    }
    cases
}
