//! Every operator through the whole compiler and the runtime, against its definition: the same cases for every executor.
//!
//! Each case runs on 1, 2 and 3 threads, which must agree bit by bit, and under observation: what is written is what was
//! planned, nothing is allocated, nothing outside is touched.

use ir::ops::*;
use ir::{Graph, Op, ValueId, evaluate};
use runtime::{audit, heap};
use smallvec_like::dims;
use types::{DType, HeadOrder, Random, Scope, Shape, Tensor, pointwise, recurrent};

use crate::support::{compiled, difference, inputs, open};

/// A case of one op on bytes, a weight of bytes with a sign, and vectors of numbers.
fn of_bytes(name: &str, op: impl Into<Op>, x: &[usize], weight: &[usize], vectors: &[usize]) -> Case {
    let mut graph = Graph::new(name);
    let mut random = Random::for_name(6, name);
    let mut ids = vec![graph.add_input("x", DType::U8, x.into())];
    let bytes = Tensor::from_fn(Shape::from(weight), |_| (random.bits() as u8).cast_signed());
    ids.push(graph.add_weight("weight", bytes));
    for (ix, &extent) in vectors.iter().enumerate() {
        let tensor = Tensor::from_fn(Shape::from([extent]), |_| random.uniform(0.5e-4, 1e-4));
        ids.push(graph.add_weight(&format!("v{ix}"), tensor));
    }
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}

fn byte_cases() -> Vec<Case> {
    let scaled = |bias: bool| Epilogue { scale: true, bias, ..Epilogue::default() };
    let mut cases = Vec::new();
    for (zero, k) in [(0, 4), (128, 64), (7, 300)] {
        let product = |epilogue: Epilogue| MatMul { zero, epilogue };
        cases.push(of_bytes(&format!("sums {zero} {k}"), product(Epilogue::default()), &[9, k], &[k, 21], &[]));
        cases.push(of_bytes(&format!("scaled {zero} {k}"), product(scaled(true)), &[9, k], &[k, 21], &[21, 21]));
        let to_bytes = Epilogue { result: Some(DType::U8), ..scaled(false) };
        cases.push(of_bytes(&format!("to bytes {zero} {k}"), product(to_bytes), &[2, 9, k], &[k, 33], &[33]));
        for stride in [1, 2] {
            let conv = Conv { zero, epilogue: scaled(true), ..Conv::square(stride, 1) };
            let name = format!("pictures {zero} {k} {stride}");
            cases.push(of_bytes(&name, conv, &[2, 20, 9, 11], &[40, 20, 3, 3], &[40, 40]));
            let each = Conv { zero, groups: 20, epilogue: scaled(false), ..Conv::square(stride, 1) };
            cases.push(of_bytes(&format!("each {name}"), each, &[2, 20, 9, 11], &[20, 1, 3, 3], &[20]));
        }
    }
    use pointwise::{Binary as B, Unary as U};
    let affine = |x: usize, scale: f32, shift: f32| ChainStep::Unary(U::Affine { scale, shift }, x);
    for to in [None, Some(DType::U8), Some(DType::I8)] {
        let steps = vec![affine(0, 0.2531, -7.0013), affine(1, 3.3017, 1.0), ChainStep::Binary(B::Add, 2, 3)];
        let chain = Chain { steps, result: to };
        for (a, b) in [(DType::U8, DType::I8), (F, DType::U8), (DType::I8, F)] {
            let name = format!("chain of {a} and {b} to {to:?}");
            cases.push(case(&name, chain.clone(), &[(a, &[2, 20, 3, 5]), (b, &[20, 1, 1])]));
        }
    }
    let pool = Pool::square(PoolKind::Max, 3, 2, 1);
    cases.push(case("maximum of bytes", pool, &[(DType::U8, &[2, 20, 9, 9])]));
    cases
}

/// Small lists for attributes, without naming the list type.
mod smallvec_like {
    pub(super) fn dims<T: Copy, L: FromIterator<T>>(items: &[T]) -> L {
        items.iter().copied().collect()
    }
}

/// Relative and absolute difference allowed: sums of some hundred products of numbers below 1, in f32 against f64.
const RELATIVE: f64 = 2e-5;
const ABSOLUTE: f64 = 2e-5;

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) graph: Graph,
}

/// A case of one op on inputs of the given types.
fn case(name: &str, op: impl Into<Op>, types: &[(DType, &[usize])]) -> Case {
    let mut graph = Graph::new(name);
    let ids: Vec<ValueId> = types
        .iter()
        .enumerate()
        .map(|(ix, (dtype, shape))| graph.add_input(&format!("x{ix}"), *dtype, (*shape).into()))
        .collect();
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}

/// A case of one op whose operands after the first are weights.
fn with_weights(name: &str, op: impl Into<Op>, x: &[usize], weights: &[&[usize]]) -> Case {
    let mut graph = Graph::new(name);
    let mut ids = vec![graph.add_input("x", DType::F32, x.into())];
    for (ix, shape) in weights.iter().enumerate() {
        let mut random = Random::for_name(5, &format!("{name}/{ix}"));
        let tensor = Tensor::from_fn(Shape::from(*shape), |_| random.uniform(-1.0, 1.0));
        ids.push(graph.add_weight(&format!("w{ix}"), tensor));
    }
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}

const F: DType = DType::F32;

fn pointwise_cases() -> Vec<Case> {
    use pointwise::{Binary as B, Compare as C, Unary as U};
    let unary = [
        U::Abs,
        U::Affine { scale: 1.7, shift: -0.3 },
        U::Atan,
        U::Ceil,
        U::Celu { alpha: 0.7 },
        U::Clip { min: -0.3, max: 0.4 },
        U::Cos,
        U::Elu { alpha: 1.2 },
        U::Erf,
        U::Exp,
        U::Floor,
        U::Gelu,
        U::GeluTanh,
        U::HardSigmoid { alpha: 0.2, beta: 0.5 },
        U::HardSwish,
        U::LeakyRelu { alpha: 0.1 },
        U::Mish,
        U::Neg,
        U::Relu,
        U::Round,
        U::Selu { alpha: 1.67, gamma: 1.05 },
        U::Sigmoid,
        U::Sign,
        U::Silu,
        U::Shrink { bias: 0.1, lambda: 0.2 },
        U::Sin,
        U::Softplus,
        U::Softsign,
        U::Tan,
        U::Tanh,
        U::ThresholdedRelu { alpha: 0.2 },
        U::IsNan,
        U::IsInf { negative: true, positive: true },
    ];
    let mut cases: Vec<Case> = unary.iter().map(|&f| case(f.name(), Unary(f), &[(F, &[3, 7, 5])])).collect();
    for f in [B::Add, B::Sub, B::Mul, B::Div, B::Max, B::Min, B::PRelu, B::Pow, B::Mod, B::Rem] {
        for (a, b) in [(&[2, 3, 4][..], &[2, 3, 4][..]), (&[2, 3, 4], &[4]), (&[3, 1], &[2, 1, 5]), (&[], &[3])] {
            cases.push(case(&format!("{} {a:?} {b:?}", f.name()), Binary(f), &[(F, a), (F, b)]));
        }
        cases.push(case(&format!("{} i64", f.name()), Binary(f), &[(DType::I64, &[2, 5]), (DType::I64, &[5])]));
    }
    for f in [B::And, B::Or, B::Xor] {
        cases.push(case(f.name(), Binary(f), &[(DType::Bool, &[4, 3]), (DType::Bool, &[3])]));
    }
    for f in [C::Equal, C::Greater, C::GreaterOrEqual, C::Less, C::LessOrEqual] {
        for dtype in [F, DType::I32, DType::U8] {
            cases.push(case(&format!("{} {dtype}", f.name()), Compare(f), &[(dtype, &[4, 3]), (dtype, &[4, 1])]));
        }
    }
    cases.push(case("select", Select {}, &[(DType::Bool, &[2, 1]), (F, &[3]), (F, &[2, 3])]));
    for to in DType::ALL {
        cases.push(case(&format!("cast to {to}"), Cast { to }, &[(F, &[5])]));
        cases.push(case(&format!("cast from {to}"), Cast { to: F }, &[(to, &[5])]));
    }
    let steps = vec![
        ChainStep::Constant(0.5),
        ChainStep::Binary(B::Mul, 0, 2),
        ChainStep::Binary(B::Add, 3, 1),
        ChainStep::Unary(U::Tanh, 4),
    ];
    for (a, b) in [(&[2, 3, 70][..], &[3, 1][..]), (&[2, 3, 70], &[70]), (&[600], &[600]), (&[1, 1], &[2, 300])] {
        cases.push(case(
            &format!("chain {a:?} {b:?}"),
            Chain { steps: steps.clone(), result: None },
            &[(F, a), (F, b)],
        ));
    }
    cases
}

/// Convolutions over a grid of shapes, with every kind of epilogue.
fn conv_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut random = Random::new(11);
    for ix in 0..120 {
        let pick = |random: &mut Random, of: &[usize]| of[random.below(of.len() as u64) as usize];
        let spatial = pick(&mut random, &[1, 2, 2, 2]);
        let groups = pick(&mut random, &[1, 1, 1, 2, 3]);
        let depthwise = random.below(4) == 0;
        let (cin, cout) = match depthwise {
            true => {
                let channels = pick(&mut random, &[1, 5, 16]);
                (channels, channels * pick(&mut random, &[1, 1, 2]))
            }
            false => (groups * pick(&mut random, &[1, 3, 17, 40]), groups * pick(&mut random, &[1, 5, 12, 25])),
        };
        let groups = if depthwise { cin } else { groups };
        let batch = pick(&mut random, &[1, 1, 2, 3]);
        let numbers =
            |random: &mut Random, of: &[usize]| (0..spatial).map(|_| pick(random, of)).collect::<Vec<usize>>();
        let kernel = numbers(&mut random, &[1, 1, 2, 3, 5]);
        let (stride, dilation) = (numbers(&mut random, &[1, 1, 2, 3]), numbers(&mut random, &[1, 1, 2]));
        let pad: Vec<[usize; 2]> =
            (0..spatial).map(|_| [pick(&mut random, &[0, 1, 2]), pick(&mut random, &[0, 1, 3])]).collect();
        let extent: Vec<usize> =
            (0..spatial).map(|axis| (kernel[axis] - 1) * dilation[axis] + pick(&mut random, &[1, 2, 7, 13])).collect();
        let (bias, residual) = (random.below(2) == 0, random.below(3) == 0);
        // Weights that come with the run are packed by the run.
        let weights_come = ix % 4 == 3;
        let activation = match random.below(4) {
            0 => vec![pointwise::Unary::Relu],
            1 => vec![pointwise::Unary::Sigmoid, pointwise::Unary::Clip { min: 0.2, max: 0.9 }],
            2 => vec![pointwise::Unary::HardSwish, pointwise::Unary::Affine { scale: 0.7, shift: 0.2 }],
            _ => Vec::new(),
        };
        let op = Conv {
            stride: dims(&stride),
            dilation: dims(&dilation),
            pad: dims(&pad),
            groups,
            zero: 0,
            epilogue: Epilogue { bias, residual, activation: dims(&activation), ..Epilogue::default() },
        };
        let name = format!("conv {ix}: {op:?} in {cin} out {cout} kernel {kernel:?} extent {extent:?} batch {batch}");
        let x: Vec<usize> = [batch, cin].into_iter().chain(extent).collect();
        let weight: Vec<usize> = [cout, cin / groups].into_iter().chain(kernel).collect();
        let bare = Conv { epilogue: Epilogue::default(), ..op.clone() };
        let types = [ir::TensorType::new(F, &x[..]), ir::TensorType::new(F, &weight[..])];
        let out = Op::Conv(bare).infer(&[&types[0], &types[1]]).expect("the extents fit the kernel")[0].shape.clone();
        let mut graph = Graph::new(&name);
        let mut ids = vec![graph.add_input("x", F, Shape::from(&x[..]))];
        let mut add_weight = |graph: &mut Graph, name: &str, shape: Shape| match weights_come {
            true => graph.add_input(name, F, shape),
            false => graph.add_weight(name, Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0))),
        };
        ids.push(add_weight(&mut graph, "w", Shape::from(&weight[..])));
        if bias {
            ids.push(add_weight(&mut graph, "b", Shape::from([cout])));
        }
        if residual {
            ids.push(graph.add_input("r", F, out));
        }
        let y = graph.add1(Op::Conv(op), &ids, Scope::new("conv")).expect("the case is well made");
        graph.set_outputs(vec![("y".into(), y)]);
        cases.push(Case { name, graph });
    }
    // Several blocks of terms and of columns.
    cases.push(with_weights("deep conv", Conv::square(1, 1), &[1, 130, 9, 9], &[&[14, 130, 3, 3]]));
    cases.push(with_weights("wide conv", Conv::square(1, 0), &[2, 300, 31, 37], &[&[3, 300, 1, 1]]));
    for (stride, output_pad, groups) in [(1, 0, 1), (2, 1, 1), (2, 0, 2), (3, 0, 1)] {
        let op = ConvTranspose {
            stride: dims(&[stride, stride]),
            dilation: dims(&[1, 1]),
            pad: dims(&[[1, 0], [0, 1]]),
            output_pad: dims(&[output_pad, 0]),
            groups,
            epilogue: Epilogue {
                bias: true,
                residual: false,
                activation: dims(&[pointwise::Unary::Relu]),
                ..Epilogue::default()
            },
        };
        let name = format!("conv_transpose stride {stride} groups {groups}");
        cases.push(with_weights(&name, op.clone(), &[2, 4, 5, 7], &[&[4, 3, 3, 2], &[3 * groups]]));
        let types = [(F, &[2, 4, 5, 7][..]), (F, &[4, 3, 3, 2]), (F, &[3 * groups])];
        cases.push(case(&format!("{name}, weights with the run"), op, &types));
    }
    cases.extend(deep_cases());
    for rank in 2..5 {
        let x = &[2, 3, 5, 4][..rank];
        let types = [(F, x), (F, &[3]), (F, &[3]), (F, &[3]), (F, &[3])];
        cases.push(case(&format!("statistics with the run, rank {rank}"), BatchNorm { epsilon: 1.5 }, &types));
    }
    cases
}

/// Windows over three dimensions.
fn deep_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut random = Random::new(23);
    let mut pick = |of: &[usize]| of[random.below(of.len() as u64) as usize];
    for ix in 0..24 {
        let mut numbers = |of: &[usize]| (0..3).map(|_| pick(of)).collect::<Vec<usize>>();
        let (kernel, stride, dilation) = (numbers(&[1, 2, 3]), numbers(&[1, 2]), numbers(&[1, 1, 2]));
        let pad: Vec<[usize; 2]> = numbers(&[0, 1]).into_iter().zip(numbers(&[0, 0, 1])).map(Into::into).collect();
        let reach: Vec<usize> = (0..3).map(|axis| (kernel[axis] - 1) * dilation[axis] + 1).collect();
        let extents: Vec<usize> = reach.iter().map(|reach| reach + pick(&[0, 1, 3])).collect();
        let groups = pick(&[1, 1, 2]);
        let (cin, cout) = (groups * pick(&[1, 3]), groups * pick(&[2, 5]));
        let x = [&[pick(&[1, 2]), cin], &extents[..]].concat();
        let epilogue = Epilogue::bias(ix % 3 != 0);
        let (stride, dilation, pad) = (dims(&stride), dims(&dilation), dims(&pad));
        let name = format!("deep {ix}: {x:?} kernel {kernel:?} groups {groups}");
        let bias = [cout];
        let ends =
            |weight: &[usize]| if epilogue.bias { vec![weight.to_vec(), bias.to_vec()] } else { vec![weight.to_vec()] };
        let mut add = |name: &str, op: Op, weight: &[usize]| {
            let shapes = ends(weight);
            let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
            match ix % 2 {
                0 => cases.push(with_weights(name, op, &x, &shapes)),
                _ => {
                    let types: Vec<(DType, &[usize])> =
                        [&x[..]].into_iter().chain(shapes).map(|shape| (F, shape)).collect();
                    cases.push(case(name, op, &types));
                }
            }
        };
        let conv = Conv { stride, dilation, pad, groups, zero: 0, epilogue: epilogue.clone() };
        add(&format!("conv {name} {conv:?}"), conv.clone().into(), &[&[cout, cin / groups], &kernel[..]].concat());
        let Conv { stride, dilation, pad, .. } = conv;
        let transposed = ConvTranspose {
            output_pad: stride.iter().map(|stride| stride - 1).collect(),
            stride: stride.clone(),
            dilation: dilation.clone(),
            pad: pad.iter().zip(&reach).map(|(pad, reach)| pad.map(|pad| pad.min(reach - 1))).collect(),
            groups,
            epilogue: epilogue.clone(),
        };
        let weight = [&[cin, cout / groups], &kernel[..]].concat();
        add(&format!("transposed {name} {transposed:?}"), transposed.into(), &weight);
        let kind = [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding][ix % 3];
        // A window lies on the picture somewhere.
        let pad = pad.iter().zip(&kernel).map(|(pad, kernel)| pad.map(|pad| pad.min(kernel / 2))).collect();
        let pool = Pool { kind, kernel: dims(&kernel), stride, dilation, pad, ceil: ix % 4 == 0 };
        cases.push(case(&format!("pool {name} {pool:?}"), pool, &[(F, &x)]));
    }
    cases
}

fn window_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
        for (kernel, stride, pad, ceil) in
            [(2, 2, 0, false), (3, 2, 1, false), (3, 2, 0, true), (3, 1, 1, true), (5, 3, 2, true)]
        {
            let op = Pool { ceil, ..Pool::square(kind, kernel, stride, pad) };
            cases.push(case(&format!("{op:?}"), op, &[(F, &[2, 3, 10, 13])]));
        }
        cases.push(case(&format!("global {kind:?}"), Pool::square(kind, 7, 1, 0), &[(F, &[1, 5, 7, 7])]));
    }
    for kind in [
        ReduceKind::Sum,
        ReduceKind::Mean,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::Prod,
        ReduceKind::SumSquare,
        ReduceKind::L1,
        ReduceKind::L2,
        ReduceKind::LogSumExp,
    ] {
        for axes in [&[0][..], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            cases.push(case(
                &format!("{kind:?} {axes:?}"),
                Reduce { kind, axes: dims(axes), keep: true },
                &[(F, &[3, 4, 5])],
            ));
        }
    }
    cases.push(case(
        "sum i64",
        Reduce { kind: ReduceKind::Sum, axes: dims(&[1]), keep: false },
        &[(DType::I64, &[3, 4])],
    ));
    for axis in 0..3 {
        cases.push(case(&format!("softmax {axis}"), Softmax { axis, log: false }, &[(F, &[3, 4, 50])]));
        cases.push(case(&format!("log softmax {axis}"), Softmax { axis, log: true }, &[(F, &[3, 4, 50])]));
        for (max, last) in [(true, false), (false, true)] {
            cases.push(case(
                &format!("arg {axis} {max}"),
                ArgExtreme { axis, keep: true, max, last },
                &[(F, &[3, 4, 5])],
            ));
        }
    }
    for size in [1, 2, 3, 5] {
        cases.push(case(
            &format!("lrn {size}"),
            Lrn { size, alpha: 0.1, beta: 0.75, bias: 1.0 },
            &[(F, &[2, 7, 3, 3])],
        ));
    }
    cases.push(case("lrn beta", Lrn { size: 3, alpha: 0.1, beta: 0.6, bias: 2.0 }, &[(F, &[1, 5, 2, 3])]));
    cases
}

fn moving_cases() -> Vec<Case> {
    let mut cases = vec![
        case("reshape", Reshape { shape: Shape::from([6, 4]) }, &[(F, &[2, 3, 4])]),
        case("expand", Expand { shape: Shape::from([2, 3, 4]) }, &[(F, &[3, 1])]),
        case("concat 0", Concat { axis: 0 }, &[(F, &[2, 3]), (F, &[1, 3]), (F, &[2, 3])]),
        case("concat 1", Concat { axis: 1 }, &[(F, &[2, 3]), (F, &[2, 1])]),
        case("concat i64", Concat { axis: 0 }, &[(DType::I64, &[2]), (DType::I64, &[3])]),
        case("gather 0", Gather { axis: 0 }, &[(F, &[3, 4]), (DType::I64, &[2, 2])]),
        case("gather 1", Gather { axis: 1 }, &[(F, &[2, 3, 2]), (DType::I32, &[4])]),
    ];
    for order in [&[0, 1, 2][..], &[2, 1, 0], &[1, 0, 2], &[0, 2, 1], &[2, 0, 1]] {
        for dtype in [F, DType::U8, DType::I64] {
            cases.push(case(
                &format!("transpose {order:?} {dtype}"),
                Transpose { order: dims(order) },
                &[(dtype, &[3, 4, 5])],
            ));
        }
    }
    for (start, step, count) in
        [([0, 1], [1, 1], [3, 2]), ([2, 4], [-1, -2], [3, 3]), ([1, 0], [1, 1], [1, 5]), ([0, 0], [2, 2], [2, 3])]
    {
        let op = Slice { start: dims(&start), step: dims(&step), count: Shape::from(count) };
        cases.push(case(&format!("{op:?}"), op, &[(F, &[3, 5])]));
    }
    for mode in [PadMode::Constant(1.5), PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        for pad in [[[0, 0], [1, 2]], [[2, 1], [0, 3]], [[-1, 0], [1, -2]]] {
            cases.push(case(&format!("pad {mode:?} {pad:?}"), Pad { mode, pad: dims(&pad) }, &[(F, &[3, 4])]));
        }
    }
    for coordinates in
        [Coordinates::HalfPixel, Coordinates::Asymmetric, Coordinates::AlignCorners, Coordinates::PytorchHalfPixel]
    {
        for mode in [
            ResizeMode::Nearest(Rounding::Floor),
            ResizeMode::Linear,
            ResizeMode::Cubic { a: -0.75, exclude_outside: false },
        ] {
            let name = format!("resize {mode:?} {coordinates:?}");
            let op = Resize {
                shape: Shape::from([1, 2, 7, 6]),
                scale: dims(&[1.0, 1.0, 1.75, 2.0]),
                mode,
                coordinates: coordinates.clone(),
                antialias: false,
            };
            cases.push(case(&name, op, &[(F, &[1, 2, 4, 3])]));
        }
    }
    for mode in [ResizeMode::Linear, ResizeMode::Cubic { a: -0.5, exclude_outside: true }] {
        let smooth = Resize {
            shape: Shape::from([1, 2, 3, 4]),
            scale: dims(&[1.0, 1.0, 0.33, 0.5]),
            mode,
            coordinates: Coordinates::HalfPixel,
            antialias: true,
        };
        cases.push(case(&format!("resize {mode:?} antialias"), smooth, &[(F, &[1, 2, 10, 8])]));
        let parts = [[0.0, 1.0], [0.0, 1.0], [0.4, 1.2], [0.0, 1.0]].into_iter().collect();
        let region = Resize {
            shape: Shape::from([1, 2, 3, 3]),
            scale: dims(&[1.0, 1.0, 0.75, 1.0]),
            mode,
            coordinates: Coordinates::Region(parts),
            antialias: false,
        };
        cases.push(case(&format!("resize {mode:?} region"), region, &[(F, &[1, 2, 4, 3])]));
    }
    cases
}

fn product_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = MatMul::default();
    for (a, b) in [
        (&[1, 5][..], &[5, 70][..]),
        (&[13, 40], &[40, 33]),
        (&[2, 3, 4], &[4, 5]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[3, 4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[1, 0], &[0, 3]),
        (&[0, 2], &[2, 3]),
    ] {
        cases.push(case(&format!("matmul {a:?} {b:?}"), plain.clone(), &[(F, a), (F, b)]));
    }
    for m in [1, 12, 25] {
        let epilogue = Epilogue {
            bias: true,
            residual: false,
            activation: dims(&[pointwise::Unary::Relu]),
            ..Epilogue::default()
        };
        cases.push(with_weights(
            &format!("linear {m}"),
            MatMul { epilogue, ..MatMul::default() },
            &[m, 100],
            &[&[100, 65], &[65]],
        ));
    }
    cases.push(with_weights("one matrix of three dimensions", plain, &[2, 7, 33], &[&[1, 33, 50]]));
    cases
}

fn transformer_cases() -> Vec<Case> {
    use HeadOrder::{HeadsFirst, TokensFirst};
    let mut cases = Vec::new();
    for (shape, axis) in
        [(&[3, 7][..], 1), (&[2, 5, 384], 2), (&[2, 3, 4, 5], 2), (&[1, 1], 1), (&[2, 0], 1), (&[0, 3], 1)]
    {
        for (scale, shift) in [(false, false), (true, false), (true, true)] {
            let norm = LayerNorm { axis, epsilon: 1e-5, scale, shift };
            let rows = vec![&shape[axis..]; usize::from(scale) + usize::from(shift)];
            cases.push(with_weights(&format!("layer norm {shape:?} {scale} {shift}"), norm, shape, &rows));
        }
    }
    // Queries, keys and values of two batches and three heads.
    let plain = Attention { scale: 0.25, order: [HeadsFirst; 3], result: HeadsFirst, mask: false };
    let mixed = Attention { order: [TokensFirst, HeadsFirst, TokensFirst], result: TokensFirst, ..plain.clone() };
    let (q, k, v) = (&[2, 3, 17, 20][..], &[2, 3, 150, 20][..], &[2, 3, 150, 33][..]);
    let (q_mixed, v_mixed) = (&[2, 17, 3, 20][..], &[2, 150, 3, 33][..]);
    cases.push(case("attention", plain.clone(), &[(F, q), (F, k), (F, v)]));
    cases.push(case("attention of tokens first", mixed.clone(), &[(F, q_mixed), (F, k), (F, v_mixed)]));
    for mask in [&[2, 1, 1, 150][..], &[17, 150], &[150], &[2, 3, 17, 150], &[3, 17, 1], &[1], &[]] {
        let masked = Attention { mask: true, ..mixed.clone() };
        let types = [(F, q_mixed), (F, k), (F, v_mixed), (F, mask)];
        cases.push(case(&format!("attention with a mask {mask:?}"), masked, &types));
    }
    let masked = Attention { mask: true, ..plain };
    let nothing = [(F, &[2, 3, 4, 5][..]), (F, &[2, 3, 0, 5]), (F, &[2, 3, 0, 6]), (F, &[4, 1])];
    cases.push(case("attention to nothing", masked.clone(), &nothing));
    let nobody = [(F, &[2, 3, 0, 5][..]), (F, &[2, 3, 4, 5]), (F, &[2, 3, 4, 6]), (F, &[4])];
    cases.push(case("attention of nobody", masked, &nobody));
    cases
}

/// Recurrent networks, with weights that are known and that are not; all their outputs are results of the graph.
fn recurrent_cases() -> Vec<Case> {
    use pointwise::Unary as U;
    use recurrent::{Cell, Reset, Sweep};
    let cells = [
        Cell::LSTM,
        Cell::Lstm { activation: [U::HardSigmoid { alpha: 0.2, beta: 0.5 }, U::Tanh, U::Softsign], peepholes: true },
        Cell::gru(Reset::BeforeProduct),
        Cell::gru(Reset::AfterProduct),
        Cell::Rnn { activation: U::Relu },
        Cell::Rnn { activation: U::Tanh },
    ];
    let mut random = Random::new(23);
    let mut shapes = vec![[0, 2, 3], [5, 1, 128], [2, 17, 40]];
    shapes
        .extend((0..6).map(|_| [1 + random.below(8), 1 + random.below(5), 1 + random.below(130)].map(|n| n as usize)));
    let mut cases = Vec::new();
    for (ix, [seq, batch, units]) in shapes.into_iter().enumerate() {
        for (number, cell) in cells.iter().enumerate() {
            let sweep = [Sweep::Forward, Sweep::Reverse, Sweep::Both][(ix + number) % 3];
            let (d, columns) = (sweep.directions(), cell.gates() * units);
            let op = Recurrent { cell: cell.clone(), sweep };
            let name = format!("{op:?} {seq} x {batch} x {units}");
            let mut graph = Graph::new(&name);
            let mut ids = vec![graph.add_input("gates", F, Shape::from([seq, batch, d * columns]))];
            let is_known = (ix + number) % 2 == 0;
            let bound = (1.0 / units as f32).sqrt();
            ids.push(match is_known {
                true => graph.add_weight(
                    "r",
                    Tensor::from_fn(Shape::from([d, columns, units]), |_| random.uniform(-bound, bound)),
                ),
                // Weights as large as their inputs would make chaos of the steps: rounding would grow with every one.
                false => {
                    let r = graph.add_input("r", F, Shape::from([d, columns, units]));
                    let bound = graph.add_constant("bound", Tensor::scalar(bound));
                    let scaled = graph.add1(Binary(pointwise::Binary::Mul).into(), &[r, bound], Scope::new("scaled"));
                    scaled.expect("the case is well made")
                }
            });
            ids.push(graph.add_input("h", F, Shape::from([d, batch, units])));
            if cell.has_memory() {
                ids.push(graph.add_input("c", F, Shape::from([d, batch, units])));
            }
            if 0 < cell.extras() {
                let extra = Tensor::from_fn(Shape::from([d, cell.extras() * units]), |_| random.uniform(-1.0, 1.0));
                ids.push(graph.add_weight("extra", extra));
            }
            let outputs = graph.add(op.into(), &ids, Scope::new("node")).expect("the case is well made");
            let named = outputs.iter().enumerate().map(|(ix, &output)| (format!("y{ix}"), output));
            graph.set_outputs(named.collect());
            cases.push(Case { name, graph });
        }
    }
    cases
}

/// Every case.
pub(crate) fn all_cases() -> Vec<Case> {
    let mut cases = pointwise_cases();
    cases.extend(byte_cases());
    cases.extend(conv_cases());
    cases.extend(deep_cases());
    cases.extend(window_cases());
    cases.extend(moving_cases());
    cases.extend(product_cases());
    cases.extend(transformer_cases());
    cases.extend(recurrent_cases());
    cases
}

fn check(case: &Case) {
    let name = &case.name;
    let graph = &case.graph;
    let inputs = inputs(graph, 3);
    let want = evaluate(graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let compiled = compiled(graph.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let mut first = None;
    for threads in [1, 2, 3] {
        let mut session = open(&compiled, threads);
        let got = session.run_tensors(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (got, want) in got.iter().zip(&want) {
            if let Some(difference) = difference(got, want, RELATIVE, ABSOLUTE) {
                panic!("{name}, {threads} threads: {difference}");
            }
        }
        let bits: Vec<Vec<u8>> = got.iter().map(Tensor::to_le_bytes).collect();
        assert_eq!(*first.get_or_insert(bits.clone()), bits, "{name}: {threads} threads give other bits");
        let audit = audit::audit(&mut session, &bytes).expect("the host sees its arena");
        assert!(audit.is_equal(), "{name}: {audit:?}");
    }
}

fn check_all(cases: &[Case]) {
    assert!(!cases.is_empty());
    cases.iter().for_each(check);
}

#[test]
fn pointwise_functions_keep_to_their_definitions() {
    check_all(&pointwise_cases());
}

#[test]
fn bytes_are_what_they_stand_for() {
    check_all(&byte_cases());
}

#[test]
fn convolutions_keep_to_their_definition() {
    check_all(&conv_cases());
}

#[test]
fn windows_and_reductions_keep_to_their_definitions() {
    check_all(&window_cases());
}

#[test]
fn moves_keep_to_their_definitions() {
    check_all(&moving_cases());
}

#[test]
fn products_keep_to_their_definition() {
    check_all(&product_cases());
}

#[test]
fn recurrent_networks_keep_to_their_definition() {
    check_all(&recurrent_cases());
}

#[test]
fn transformers_keep_to_their_definitions() {
    check_all(&transformer_cases());
}

/// The counter is of the whole process, and other tests allocate; so a run is counted until one was alone.
#[test]
fn a_run_allocates_nothing() {
    assert!(heap::is_counting());
    let case = with_weights("conv", Conv::square(1, 1), &[1, 8, 20, 20], &[&[16, 8, 3, 3]]);
    let compiled = compiled(case.graph.clone()).expect("it compiles");
    let mut session = open(&compiled, 2);
    let bytes: Vec<Vec<u8>> = inputs(&case.graph, 1).iter().map(Tensor::to_le_bytes).collect();
    let alone = (0..10_000).any(|_| {
        let before = heap::allocations();
        session.write_input(0, &bytes[0]).expect("processors do not fail");
        session.run().expect("processors do not fail");
        before == heap::allocations()
    });
    assert!(alone, "10000 runs, each with an allocation by somebody");
}
