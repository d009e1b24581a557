//! Convolutions, transposed convolutions, and windows over three dimensions.

use ir::ops::*;
use ir::{Graph, Op};
use types::{DType, Random, Scope, Shape, Tensor, pointwise};

use crate::{Case, F, case, dims, with_weights};

/// Convolutions of random shapes with every kind of epilogue, transposed convolutions, and windows over three
/// dimensions.
pub fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut random = Random::new(11);
    for ix in 0..120 {
        let pick = |random: &mut Random, of: &[usize]| of[random.below(of.len() as u64) as usize];
        let spatial = pick(&mut random, &[1, 2, 2, 2]);
        let groups = pick(&mut random, &[1, 1, 1, 2, 3]);
        let depthwise = random.below(4) == 0;
        let (cin, cout) = match depthwise {
            true => {
                let channels = pick(&mut random, &[1, 2, 3, 5, 16]);
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
        // Dynamic weights are packed at run time.
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
    // Groups of few channels: some fill a block together, others only all at once.
    for (groups, ins, outs) in
        [(8, 2, 2), (16, 4, 4), (6, 8, 8), (4, 8, 16), (4, 12, 12), (2, 24, 24), (3, 5, 6), (3, 32, 32)]
    {
        for stride in [1, 2] {
            let op = Conv { groups, ..Conv::square(stride, 1) };
            let name = format!("{groups} groups of {ins} to {outs} by {stride}");
            cases.push(with_weights(&name, op, &[2, groups * ins, 9, 13], &[&[groups * outs, ins, 3, 3]]));
        }
    }
    // Depthwise convolutions of so few channels that other convolutions of them read row-major images.
    for channels in 2..=4 {
        for (side, stride) in [(3, 1), (5, 1), (5, 2)] {
            let op = Conv { groups: channels, ..Conv::square(stride, side / 2) };
            let name = format!("depthwise {side}x{side} of {channels} by {stride}");
            cases.push(with_weights(&name, op, &[1, channels, 56, 56], &[&[channels, 1, side, side]]));
        }
    }
    // Several blocks of the inner dimension and of columns.
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
    cases.extend(tiled());
    cases.extend(tiled_transposed());
    cases
}

/// Convolutions and pools with windows over three dimensions.
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
        // Padding is limited so that each window overlaps the image.
        let pad = pad.iter().zip(&kernel).map(|(pad, kernel)| pad.map(|pad| pad.min(kernel / 2))).collect();
        let pool = Pool { kind, kernel: dims(&kernel), stride, dilation, pad, ceil: ix % 4 == 0 };
        cases.push(case(&format!("pool {name} {pool:?}"), pool, &[(F, &x)]));
    }
    cases
}

/// Convolutions whose pixels, channels and terms are slightly below or above one tile or stage, or span several.
fn tiled() -> Vec<Case> {
    // Input, weight; strides, dilations, padding of all sides; groups.
    type Row = ([usize; 4], [usize; 4], [usize; 2], [usize; 2], usize, usize);
    let rows: [Row; 17] = [
        ([1, 33, 5, 13], [65, 33, 1, 1], [1, 1], [1, 1], 0, 1),
        ([3, 24, 9, 7], [40, 24, 1, 1], [2, 2], [1, 1], 0, 1),
        ([1, 1, 9, 9], [5, 1, 1, 1], [1, 1], [1, 1], 0, 1),
        ([1, 129, 8, 8], [64, 129, 1, 1], [1, 1], [1, 1], 0, 1),
        ([3, 17, 11, 13], [70, 17, 3, 3], [1, 1], [1, 1], 1, 1),
        ([1, 7, 19, 23], [9, 7, 3, 3], [2, 2], [2, 2], 2, 1),
        ([1, 3, 37, 35], [66, 3, 7, 7], [2, 2], [1, 1], 3, 1),
        ([2, 6, 9, 17], [10, 6, 1, 5], [1, 2], [1, 2], 2, 1),
        ([2, 6, 17, 9], [10, 6, 5, 1], [3, 1], [2, 1], 1, 1),
        ([1, 20, 3, 3], [130, 20, 3, 3], [1, 1], [1, 1], 0, 1),
        ([1, 2, 3, 301], [3, 2, 3, 3], [1, 1], [1, 1], 1, 1),
        ([1, 16, 16, 16], [64, 16, 3, 3], [1, 1], [1, 1], 1, 1),
        ([2, 48, 7, 9], [60, 16, 3, 3], [1, 1], [1, 1], 1, 3),
        ([1, 32, 9, 9], [64, 4, 3, 3], [2, 1], [1, 1], 1, 8),
        ([3, 35, 13, 11], [35, 1, 3, 3], [2, 2], [2, 2], 2, 35),
        ([1, 33, 9, 7], [66, 1, 5, 5], [1, 1], [1, 1], 2, 33),
        ([3, 64, 17, 19], [64, 1, 3, 3], [1, 1], [1, 1], 1, 64),
    ];
    let mut cases = Vec::new();
    for (ix, (x, weight, stride, dilation, pad, groups)) in rows.into_iter().enumerate() {
        let epilogue = Epilogue::bias(ix % 2 == 0);
        let (stride, dilation, pad) = (dims(&stride), dims(&dilation), dims(&[[pad; 2]; 2]));
        let conv = Conv { stride, dilation, pad, groups, zero: 0, epilogue };
        let name = format!("tiled conv {x:?} by {weight:?}, groups {groups}");
        let bias = [weight[0]];
        let weights = [&weight[..], &bias];
        cases.push(with_weights(&name, conv.clone(), &x, &weights[..1 + usize::from(conv.epilogue.bias)]));
    }
    let epilogue =
        Epilogue { bias: true, residual: true, activation: dims(&[pointwise::Unary::Relu]), ..Epilogue::default() };
    let conv = Conv { epilogue, ..Conv::square(1, 1) };
    for channels in [64, 72] {
        let name = format!("tiled conv with a known residual of {channels} channels");
        let weights = [&[channels, 16, 3, 3][..], &[channels], &[1, channels, 16, 16]];
        cases.push(with_weights(&name, conv.clone(), &[1, 16, 16, 16], &weights));
    }
    cases
}

/// Transposed convolutions around tile and stage sizes.
fn tiled_transposed() -> Vec<Case> {
    let rows = [
        ([3, 9, 7, 5], [9, 17, 3, 3], 2, 1, 1, 1, 1),
        ([1, 20, 9, 9], [20, 70, 2, 2], 2, 1, 0, 0, 1),
        ([1, 6, 17, 15], [6, 1, 4, 4], 2, 1, 1, 0, 6),
        ([2, 5, 6, 7], [5, 4, 3, 3], 1, 2, 2, 0, 1),
        ([1, 66, 3, 3], [66, 5, 5, 5], 3, 1, 2, 2, 1),
    ];
    let mut cases = Vec::new();
    for (x, weight, stride, dilation, pad, output_pad, groups) in rows {
        let op = ConvTranspose {
            stride: dims(&[stride; 2]),
            dilation: dims(&[dilation; 2]),
            pad: dims(&[[pad; 2]; 2]),
            output_pad: dims(&[output_pad; 2]),
            groups,
            epilogue: Epilogue::default(),
        };
        let name = format!("tiled conv_transpose {x:?} by {weight:?}, stride {stride}");
        cases.push(with_weights(&name, op, &x, &[&weight]));
    }
    cases
}
