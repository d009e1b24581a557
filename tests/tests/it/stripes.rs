//! Stripes: the same results in less memory. A split graph is equal bit by bit; its kernels may differ from those of the
//! whole graph and round in another order.

use cases::judge::inputs;
use cases::networks::{Family, Scale};
use ir::ops::*;
use ir::{Graph, Op, ValueId, evaluate, verify};
use passes::stripes::{StripedRegion, compute_again, split};
use types::{Bytes, DType, Random, Scope, Shape, Tensor, pointwise};

use crate::support::{compiled, compiled_within, open};

/// A random network of convolutions, pools, sums, concatenations and pointwise functions, all local along rows.
fn local_graph(seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut graph = Graph::new(&format!("local {seed}"));
    let (batch, rows) = (1 + random.below(3) as usize, 9 + random.below(20) as usize);
    let mut x = graph.add_input("x", DType::F32, Shape::from([batch, 4, rows, 7]));
    for ix in 0..5 + random.below(5) {
        let channels = graph.ty(x).shape[1];
        let scope = Scope::new(&format!("block/{ix}"));
        let window = |random: &mut Random| {
            let (kernel, stride) = (1 + random.below(4) as usize, 1 + random.below(2) as usize);
            let [front, back] = [random.below(kernel as u64) as usize, random.below(kernel as u64) as usize];
            (kernel, stride, [front, back])
        };
        let mut weight = |graph: &mut Graph, shape: &[usize]| {
            graph.add_weight(&format!("{ix}.w"), Tensor::from_fn(Shape::from(shape), |_| random.uniform(-0.5, 0.5)))
        };
        let shape = graph.ty(x).shape.clone();
        x = match Random::for_name(seed, &format!("kind {ix}")).below(12) {
            kind @ 0..=2 => {
                let depthwise = kind == 2;
                let w = weight(&mut graph, &[channels, if depthwise { 1 } else { channels }, 3, 3]);
                let dilation = 1 + random.below(2) as usize;
                let op = Conv {
                    dilation: [dilation, 1].into_iter().collect(),
                    stride: [1 + random.below(2) as usize, 1].into_iter().collect(),
                    pad: [[dilation, random.below(3) as usize], [1, 1]].into_iter().collect(),
                    groups: if depthwise { channels } else { 1 },
                    zero: 0,
                    ..Conv::square(1, 1)
                };
                graph.add1(op.into(), &[x, w], scope).expect("the window fits")
            }
            3 => {
                // A residual around a convolution: the sum needs fewer rows of `x` than the convolution.
                let w = weight(&mut graph, &[channels, channels, 3, 3]);
                let y = graph.add1(Conv::square(1, 1).into(), &[x, w], scope.child("conv")).expect("it fits");
                graph.add1(Binary(pointwise::Binary::Add).into(), &[x, y], scope).expect("same shapes")
            }
            4 => {
                let (kernel, stride, pad) = window(&mut random);
                let kind = [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding][random.below(3) as usize];
                let op = Pool {
                    kernel: [kernel, 1].into_iter().collect(),
                    stride: [stride, 1].into_iter().collect(),
                    pad: [pad, [0, 0]].into_iter().collect(),
                    ceil: random.below(2) == 1,
                    ..Pool::square(kind, 1, 1, 0)
                };
                graph.add1(op.into(), &[x], scope).expect("the window fits")
            }
            5 => {
                let y = graph.add1(Unary(pointwise::Unary::Sigmoid).into(), &[x], scope.child("gate")).expect("unary");
                graph.add1(Concat { axis: 1 }.into(), &[y, x], scope).expect("same rows")
            }
            7 => {
                let modes = [PadMode::Constant(0.5), PadMode::Edge, PadMode::Reflect, PadMode::Wrap];
                let mode = modes[random.below(4) as usize];
                let [front, back] = [random.below(4) as isize - 1, random.below(4) as isize - 1];
                let pad = [[0, 0], [0, 0], [front, back], [1, 0]].into_iter().collect();
                graph.add1(Pad { mode, pad }.into(), &[x], scope).expect("rows remain")
            }
            8 => {
                let rows = 1 + shape[2] * (1 + random.below(4) as usize) / 2;
                let modes = [
                    ResizeMode::Nearest(Rounding::Floor),
                    ResizeMode::Nearest(Rounding::HalfDown),
                    ResizeMode::Linear,
                    ResizeMode::Cubic { a: -0.75, exclude_outside: true },
                ];
                let coordinates = [
                    Coordinates::HalfPixel,
                    Coordinates::Asymmetric,
                    Coordinates::AlignCorners,
                    Coordinates::Region([[0.0, 1.0], [0.0, 1.0], [-0.1, 0.8], [0.0, 1.0]].into_iter().collect()),
                ];
                let mode = modes[random.below(4) as usize];
                let op = Resize {
                    shape: Shape::from([batch, channels, rows, shape[3]]),
                    scale: [1.0, 1.0, rows as f32 / shape[2] as f32, 1.0].into_iter().collect(),
                    mode,
                    coordinates: coordinates[random.below(4) as usize].clone(),
                    antialias: mode == ResizeMode::Linear && random.below(2) == 1,
                    range: None,
                };
                graph.add1(op.into(), &[x], scope).expect("there are elements")
            }
            9 => {
                let mut own = Random::for_name(seed, &format!("transposed {ix}"));
                let kernel = 1 + own.below(4) as usize;
                let (stride, dilation) = (1 + own.below(3) as usize, 1 + own.below(2) as usize);
                let w = weight(&mut graph, &[channels, 3, kernel, 1]);
                let op = ConvTranspose {
                    stride: [stride, 1].into_iter().collect(),
                    dilation: [dilation, 1].into_iter().collect(),
                    pad: [[own.below(2) as usize, own.below(2) as usize], [0, 0]].into_iter().collect(),
                    output_pad: [own.below(3) as usize, 0].into_iter().collect(),
                    groups: 1,
                    epilogue: Epilogue::default(),
                };
                graph.add1(op.into(), &[x, w], scope).expect("rows remain")
            }
            10 => {
                let mut slice = Slice::whole(&shape);
                let step = 1 + random.below(2) as usize;
                slice.start[2] = random.below(3) as usize;
                (slice.step[2], slice.count[2]) = (step as isize, (shape[2] - slice.start[2]).div_ceil(step));
                graph.add1(slice.into(), &[x], scope).expect("rows remain")
            }
            11 => {
                // Two resolutions of one value, both in the region.
                let half = graph.add1(Pool::square(PoolKind::Max, 2, 2, 1).into(), &[x], scope.child("half"));
                let half = half.expect("the window fits");
                let op = Resize {
                    shape: shape.clone(),
                    scale: [1.0, 1.0, 2.0, 2.0].into_iter().collect(),
                    mode: ResizeMode::Nearest(Rounding::Floor),
                    coordinates: Coordinates::Asymmetric,
                    antialias: false,
                    range: None,
                };
                let up = graph.add1(op.into(), &[half], scope.child("up")).expect("there are elements");
                graph.add1(Concat { axis: 1 }.into(), &[x, up], scope).expect("same rows")
            }
            _ => {
                let s = weight(&mut graph, &[channels, 1, 1]);
                graph.add1(Binary(pointwise::Binary::Mul).into(), &[x, s], scope).expect("it broadcasts")
            }
        };
        let shape = &graph.ty(x).shape;
        if shape[2] < 4 || 1 << 14 < shape.elements() {
            break;
        }
    }
    graph.set_outputs(vec![("y".into(), x)]);
    graph
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(Tensor::to_le_bytes).collect()
}

#[test]
fn split_graph_is_bit_identical() {
    let mut regions = 0;
    for seed in 0..40 {
        let graph = local_graph(seed);
        let inputs = inputs(&graph, seed);
        let want = evaluate(&graph, &inputs).expect("it verifies");
        let shape = &graph.ty(graph.outputs()[0].value).shape;
        for axis in [0, 2] {
            for stripes in [2, 3, shape[axis]] {
                let whole = StripedRegion { nodes: 0..graph.nodes().len(), axis, stripes };
                let Some(striped) = split(&graph, &[whole]) else { continue };
                regions += 1;
                verify(&striped).expect("a split graph is a graph");
                let got = evaluate(&striped, &inputs).expect("it verifies");
                assert_eq!(bits(&got), bits(&want), "seed {seed}, {stripes} stripes along {axis}");
            }
        }
    }
    assert!(100 < regions, "only {regions} graphs could be split");
}

/// Regions of any nodes, with several entries and exits, and values that pass them by.
#[test]
fn split_regions_of_generated_networks_are_bit_identical() {
    let (mut split_count, mut exits_of_several) = (0, 0);
    for family in Family::ALL {
        for seed in 0..2 {
            let graph = family.network(seed, Scale::Small);
            let inputs = inputs(&graph, seed);
            let want = evaluate(&graph, &inputs).expect("it verifies");
            let mut random = Random::for_name(seed, family.name());
            let again = compute_again(&graph, 1);
            for graph in [&graph].into_iter().chain(&again) {
                let count = graph.nodes().len();
                for _ in 0..12 {
                    let start = random.below(count as u64 - 1) as usize;
                    let end = (start + 2 + random.below(12) as usize).min(count);
                    let stripes = 2 + random.below(4) as usize;
                    let Some(striped) = split(graph, &[StripedRegion { nodes: start..end, axis: 2, stripes }]) else {
                        continue;
                    };
                    split_count += 1;
                    let inserted = striped.nodes().values().filter(|node| matches!(node.op, Op::Insert(_))).count();
                    exits_of_several += usize::from(stripes <= inserted);
                    verify(&striped).expect("a split graph is a graph");
                    let got = evaluate(&striped, &inputs).expect("it verifies");
                    assert_eq!(bits(&got), bits(&want), "{}: {stripes} stripes of {start}..{end}", graph.name);
                }
            }
        }
    }
    assert!(
        100 < split_count && 20 < exits_of_several,
        "only {split_count} regions, {exits_of_several} of several exits"
    );
}

#[test]
fn values_computed_again_are_bit_identical() {
    let mut found = 0;
    for family in Family::ALL {
        let graph = family.network(5, Scale::Small);
        let inputs = inputs(&graph, 5);
        let want = bits(&evaluate(&graph, &inputs).expect("it verifies"));
        for again in compute_again(&graph, 1) {
            found += 1;
            verify(&again).expect("a graph with copies is a graph");
            assert!(graph.nodes().len() < again.nodes().len());
            assert_eq!(bits(&evaluate(&again, &inputs).expect("it verifies")), want, "{}", graph.name);
        }
    }
    assert!(8 < found, "only {found} graphs");
}

/// The largest difference of elements, in parts of the largest element.
fn distance(got: &[Tensor], want: &[Tensor]) -> f64 {
    let of_tensor = |(got, want): (&Tensor, &Tensor)| {
        let (got, want) = (got.to_f64(), want.to_f64());
        assert_eq!(got.len(), want.len());
        let largest = want.iter().fold(1.0f64, |largest, item| largest.max(item.abs()));
        got.iter().zip(&want).map(|(got, want)| (got - want).abs() / largest).fold(0.0, f64::max)
    };
    got.iter().zip(want).map(of_tensor).fold(0.0, f64::max)
}

#[test]
fn budget_is_kept_and_changes_rounding_only() {
    let mut fits = 0;
    for seed in 0..40 {
        let graph = local_graph(seed);
        let inputs = inputs(&graph, seed);
        let free = compiled(graph.clone()).expect("there are kernels");
        let want = open(&free, 2).run_tensors(&inputs).expect("inputs fit");
        for percent in [90, 70, 50, 30] {
            let budget = Bytes(free.plan.arena.size().0 * percent / 100);
            match compiled_within(graph.clone(), budget) {
                Ok(compiled) => {
                    fits += 1;
                    assert!(compiled.plan.arena.size() <= budget, "seed {seed}");
                    let got = open(&compiled, 2).run_tensors(&inputs).expect("inputs fit");
                    let distance = distance(&got, &want);
                    assert!(distance <= 1e-5, "seed {seed} within {percent} %: {distance:e}");
                }
                Err(compiler::CompileError::Budget { budget: stated, smallest }) => {
                    assert_eq!(stated, budget);
                    assert!(budget < smallest && smallest <= free.plan.arena.size());
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
    assert!(40 < fits, "only {fits} budgets were met");
}

/// The plan within a budget has the results of the evaluator, or the smallest arena found is reported.
#[test]
fn generated_networks_within_a_budget_agree_with_the_evaluator() {
    let mut fits = 0;
    for family in Family::ALL {
        let graph = family.network(1, Scale::Small);
        let inputs = inputs(&graph, 1);
        let want = evaluate(&graph, &inputs).expect("it verifies");
        let arena = compiled(graph.clone()).expect("there are kernels").plan.arena.size();
        for percent in [70, 45] {
            let budget = Bytes(arena.0 * percent / 100);
            match compiled_within(graph.clone(), budget) {
                Ok(compiled) => {
                    fits += 1;
                    assert!(compiled.plan.arena.size() <= budget, "{}", graph.name);
                    let got = open(&compiled, 2).run_tensors(&inputs).expect("inputs fit");
                    let distance = distance(&got, &want);
                    assert!(distance <= 1e-5, "{} within {percent} %: {distance:e}", graph.name);
                }
                Err(compiler::CompileError::Budget { smallest, .. }) => {
                    assert!(budget < smallest && smallest <= arena, "{}: {smallest} of {arena}", graph.name);
                }
                Err(other) => panic!("{}: {other}", graph.name),
            }
        }
    }
    assert!(6 < fits, "only {fits} budgets were met");
}

/// The work of the search is bounded, whatever the graph: an impossible budget is refused with the smallest arena found.
#[test]
fn search_for_an_impossible_budget_ends() {
    let mut smaller = 0;
    for family in Family::SCALABLE {
        let graph = family.network(1, Scale::Nodes(200));
        let arena = compiled(graph.clone()).expect("there are kernels").plan.arena.size();
        let Err(compiler::CompileError::Budget { smallest, .. }) = compiled_within(graph.clone(), Bytes(1)) else {
            panic!("{}: no plan fits a byte", graph.name);
        };
        assert!(smallest <= arena, "{}: {smallest} of {arena}", graph.name);
        smaller += usize::from(smallest < arena);
    }
    assert!(3 < smaller, "only {smaller} arenas became smaller");
}

/// Nodes that are not local, or that cross the region's border.
#[test]
fn invalid_regions_are_refused() {
    let mut graph = Graph::new("no region");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 2, 8, 8]));
    let relu = |graph: &mut Graph, x: ValueId, name: &str| {
        graph.add1(Unary(pointwise::Unary::Relu).into(), &[x], Scope::new(name)).expect("unary")
    };
    let a = relu(&mut graph, x, "a");
    let b = graph.add1(Op::from(Transpose { order: [0, 1, 3, 2].into_iter().collect() }), &[a], Scope::new("b"));
    let b = b.expect("a permutation");
    let c = relu(&mut graph, b, "c");
    let d = graph.add1(Binary(pointwise::Binary::Add).into(), &[c, a], Scope::new("d")).expect("same shapes");
    graph.set_outputs(vec![("y".into(), d)]);
    let whole = |nodes, stripes| StripedRegion { nodes, axis: 2, stripes };
    assert_eq!(split(&graph, &[whole(0..4, 2)]), None, "a transpose moves rows");
    assert!(split(&graph, &[whole(2..4, 2)]).is_some(), "two entries");
    assert_eq!(split(&graph, &[whole(0..1, 9)]), None, "there are 8 rows");
    assert_eq!(split(&graph, &[whole(0..1, 1)]), None, "one stripe is no stripe");
    assert_eq!(split(&graph, &[StripedRegion { nodes: 0..1, axis: 4, stripes: 2 }]), None, "there is no axis 4");
    assert!(split(&graph, &[whole(0..1, 8)]).is_some());
}
