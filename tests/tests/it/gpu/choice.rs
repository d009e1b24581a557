//! The choice between a library's kernel and an emitted one, by modelled times and by measured ones, on the mocks.

use std::collections::BTreeMap;

use cases::judge::step;
use cuda::cudnn::Planner;
use cuda::{DeviceDescription, LibraryPaths, MathMode};
use ir::Graph;
use ir::ops::{Concat, Conv, Epilogue, MatMul, Slice};
use lower::cuda::{CUBLAS_PRODUCT, CUDNN_CONV, CudaTarget, library_layer};
use plan::Plan;
use types::pointwise::Unary;
use types::{Bytes, DType, Layout, Scope, Shape, Tensor};

use super::*;
use crate::half_precision::{HALVES, assert_near};
use crate::support::difference;

/// Kernels of a plan, by number of steps.
fn kernels(plan: &Plan) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    plan.steps.iter().for_each(|step| *counts.entry(&step.kernel[..]).or_default() += 1);
    counts
}

/// Steps of a plan that a library computes.
fn by_libraries(plan: &Plan) -> usize {
    plan.steps.iter().filter(|step| [CUDNN_CONV, CUBLAS_PRODUCT].contains(&&step.kernel[..])).count()
}

/// A target with cuDNN's and cuBLASLt's mock, planned for an H200. `None` after reporting that `test` is skipped.
fn with_libraries(test: &str, name: &str, dtype: DType) -> Option<CudaTarget> {
    let folder = folder(name);
    if !build_cudnn(&folder) {
        skip(test, NO_COMPILER);
        return None;
    }
    let places = LibraryPaths { folders: vec![folder], ..LibraryPaths::default() };
    let facts = DeviceDescription::parse(H200).expect("it is whole");
    let planner = Planner::new(&places, &facts.device, MathMode::Strict).expect("it takes the facts");
    Some(crate::cuda::target(dtype).with_cudnn(Rc::new(planner)).with_cublas(MathMode::Strict, None))
}

fn planned(graph: &Graph, target: &CudaTarget) -> Plan {
    let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
    compile(model, target, compiler::Goal::default(), |_, _| {}).expect("it has kernels").plan
}

/// Residual blocks of an expansion, a depthwise convolution and a projection, as in mobilenet_v2, with an activation.
fn bottlenecks(batch: usize, activation: Unary) -> Graph {
    const CHANNELS: usize = 24;
    const HIDDEN: usize = 144;
    let mut graph = Graph::new("bottlenecks");
    let mut x = graph.add_input("x", DType::F32, Shape::from([batch, CHANNELS, 56, 56]));
    for block in 0..8 {
        let mut y = x;
        for (part, conv, shape) in [
            ("expansion", Conv::square(1, 0), [HIDDEN, CHANNELS, 1, 1]),
            ("depthwise", Conv { groups: HIDDEN, ..Conv::square(1, 1) }, [HIDDEN, 1, 3, 3]),
            ("projection", Conv::square(1, 0), [CHANNELS, HIDDEN, 1, 1]),
        ] {
            let name = format!("{block}.{part}");
            let item = |ix: usize| ((ix * 37) % 19) as f32 * 0.02 - 0.18;
            let weight = graph.add_weight(&name, Tensor::from_fn(Shape::from(shape), item));
            let bias = graph.add_weight(&format!("{name}.bias"), Tensor::from_fn(Shape::from([shape[0]]), item));
            let conv = Conv { epilogue: Epilogue { bias: true, ..Epilogue::default() }, ..conv };
            y = graph.add1(conv.into(), &[y, weight, bias], Scope::new(&name)).expect("it is accepted");
            if part != "projection" {
                let op = ir::Op::from(ir::ops::Unary(activation));
                y = graph.add1(op, &[y], Scope::new(&format!("{name}.activation"))).expect("it is accepted");
            }
        }
        let sum = ir::ops::Binary(types::pointwise::Binary::Add);
        x = graph.add1(sum.into(), &[x, y], Scope::new(&format!("{block}.sum"))).expect("it is accepted");
    }
    graph.set_outputs(vec![("y".into(), x)]);
    graph
}

/// Activations that cuDNN has no epilogue for stay in an emitted kernel's.
#[test]
fn networks_with_other_activations_keep_their_fusion() {
    let test = "gpu::choice::networks_with_other_activations_keep_their_fusion";
    for activation in [Unary::Clip { min: 0.0, max: 6.0 }, Unary::HardSwish, Unary::Silu] {
        for (dtype, batch) in [(DType::F32, 1), (DType::F16, 1), (DType::F16, 64)] {
            let case = format!("{activation:?}, {dtype}, batch {batch}");
            let Some(target) = with_libraries(test, "gpu-choice-fusion", dtype) else { return };
            let graph = bottlenecks(batch, activation);
            let (emitted, both) = (planned(&graph, &crate::cuda::target(dtype)), planned(&graph, &target));
            let library = planned(&graph, &target.clone().taking(KernelOrigin::Library));
            assert_eq!(both.steps.len(), emitted.steps.len(), "{case}: {:?}", kernels(&both));
            assert!(both.steps.len() + 10 < library.steps.len(), "{case}: {:?}", kernels(&library));
            // Layers without an activation are the library's as before.
            assert!(0 < by_libraries(&both), "{case}: {:?}", kernels(&both));
            assert!(both.arena.size() <= library.arena.size(), "{case}");
            let described = report::Description::new(&both).text();
            // Depthwise convolutions, whose activations cuDNN does not fuse.
            let depthwise = "cuda_conv_each for ";
            assert!(
                described.contains("choice ") && described.contains(depthwise) && described.contains("modelled"),
                "{described}"
            );
            // A choice for each layer that both can compute, and the faster one is taken.
            assert!(by_libraries(&both) <= both.choices.len(), "{case}");
            for choice in &both.choices {
                let [taken, other] = choice.times;
                assert!(taken as f64 * 0.97 <= other as f64 && !choice.measured, "{case}: {choice:?}");
            }
        }
    }
}

/// Networks whose activations cuDNN fuses are computed by it.
#[test]
fn fused_layers_are_the_library_s() {
    let test = "gpu::choice::fused_layers_are_the_library_s";
    for (dtype, batch) in [(DType::F32, 1), (DType::F16, 1), (DType::F16, 64)] {
        let Some(target) = with_libraries(test, "gpu-choice-fused", dtype) else { return };
        let plan = planned(&network("resnet18", &[batch, 3, 224, 224]), &target);
        // The first convolution of half precision reads padded pixels, which cuDNN does not.
        assert!(20 <= kernels(&plan)[CUDNN_CONV] + usize::from(dtype.is_half()), "{dtype}: {:?}", kernels(&plan));
    }
}

/// A product with a bias and an activation, whose result a small product reads.
fn dense(rows: usize, terms: usize, columns: usize, activation: Unary) -> Graph {
    let mut graph = Graph::new("dense");
    let x = graph.add_input("x", DType::F32, Shape::from([rows, terms]));
    let item = |ix: usize| ((ix * 37) % 19) as f32 * 0.02 - 0.18;
    let weight = graph.add_weight("weight", Tensor::from_fn(Shape::from([terms, columns]), item));
    let bias = graph.add_weight("bias", Tensor::from_fn(Shape::from([columns]), item));
    let epilogue = Epilogue { bias: true, activation: [activation].into_iter().collect(), ..Epilogue::default() };
    let product = MatMul { epilogue, ..MatMul::default() };
    let dense = graph.add1(product.into(), &[x, weight, bias], Scope::new("dense")).expect("it is accepted");
    let weight = graph.add_weight("last", Tensor::from_fn(Shape::from([columns, 8]), item));
    let y = graph.add1(MatMul::default().into(), &[dense, weight], Scope::new("last")).expect("it is accepted");
    graph.set_outputs(vec![("y".into(), y)]);
    graph
}

/// cuBLASLt has the tanh form of GELU only. The form with the error function is computed in an emitted epilogue, or behind a
/// product that is so large that cuBLASLt's is faster all the same.
#[test]
fn both_forms_of_gelu_keep_their_meaning() {
    let test = "gpu::choice::both_forms_of_gelu_keep_their_meaning";
    let Some(target) = with_libraries(test, "gpu-choice-gelu", DType::F16) else { return };
    let steps = |rows, activation| -> Vec<String> {
        let plan = planned(&dense(rows, 768, 3072, activation), &target);
        let steps = plan.steps.iter().filter(|step| step.scope.to_string() == "dense");
        steps.map(|step| step.kernel.to_string()).collect()
    };
    assert_eq!(steps(128, Unary::GeluTanh), [CUBLAS_PRODUCT]);
    assert_eq!(steps(8192, Unary::GeluTanh), [CUBLAS_PRODUCT]);
    assert_eq!(steps(128, Unary::Gelu), ["cuda_product"]);
    assert_eq!(steps(8192, Unary::Gelu), [CUBLAS_PRODUCT, "cuda_pointwise"]);
    // Each way has the same meaning.
    for dtype in [DType::F32, HALVES[0], HALVES[1]] {
        for origin in [KernelOrigin::Library, KernelOrigin::Emitted] {
            for activation in [Unary::Gelu, Unary::GeluTanh] {
                let name = format!("gelu-{}-{dtype}-{origin:?}", activation.name()).to_lowercase();
                let cublas = Some((MathMode::Strict, Bytes(4096)));
                let how = How { cublas, dtype, origin, ..How::default() };
                let graph = dense(9, 24, 40, activation);
                let Some(mocked) = Mocked::new(test, &name, graph, how) else { return };
                let count = if origin == KernelOrigin::Library { 2 } else { 0 };
                assert_eq!(by_libraries(&mocked.plan), count, "{name}");
                let out = mocked.run(&[]);
                assert!(out.status.success(), "{name}: {}", text(&out.stderr));
                let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
                match dtype {
                    // The forms differ by up to 4.7e-4.
                    DType::F32 => assert_eq!(difference(&mocked.outputs()[0], &want[0], 1e-5, 1e-5), None, "{name}"),
                    _ => assert_near(&name, &mocked.outputs(), &want, 4.0 * step(dtype)),
                }
            }
        }
    }
}

/// Measured times replace modelled ones, by layer.
#[test]
fn measured_times_replace_modelled_ones() {
    let test = "gpu::choice::measured_times_replace_modelled_ones";
    let Some(target) = with_libraries(test, "gpu-choice-measured", DType::F32) else { return };
    let graph = network("resnet18", &[1, 3, 64, 64]);
    let modelled = planned(&graph, &target);
    let layers: Vec<String> = modelled.steps.iter().filter_map(|step| library_layer(&step.code)).collect();
    assert!(10 < layers.len() && layers.iter().any(|layer| layer.starts_with("Convolution {")), "{layers:?}");
    // The library is said to be slower in each: none of its kernels is left.
    let slow = layers.iter().map(|layer| (layer.clone(), [2_000_000, 1_000_000])).collect();
    let slow = planned(&graph, &target.clone().with_measured(slow));
    assert_eq!(by_libraries(&slow), 0, "{:?}", kernels(&slow));
    assert!(slow.choices.iter().all(|choice| choice.measured && choice.times == [1_000_000, 2_000_000]));
    // And in one: only that layer changes.
    let one = [(layers[3].clone(), [2_000_000, 1_000_000])].into_iter().collect();
    let one = planned(&graph, &target.with_measured(one));
    let same = layers.iter().filter(|layer| **layer == layers[3]).count();
    assert_eq!(by_libraries(&one), by_libraries(&modelled) - same, "{:?}", kernels(&one));
}

/// Convolutions of values that may begin anywhere in a buffer: of slices of a batch, and of operands that are written into
/// their place in a concatenation.
fn shifted(channels: usize) -> Graph {
    let mut graph = Graph::new("shifted");
    let shape = Shape::from([3, channels, 5, 5]);
    let x = graph.add_input("x", DType::F32, shape.clone());
    let item = |ix: usize| ((ix * 37) % 19) as f32 * 0.03 - 0.25;
    let weight = |graph: &mut Graph, name: &str| {
        graph.add_weight(name, Tensor::from_fn(Shape::from([channels, channels, 3, 3]), item))
    };
    let weights = ["first", "second", "third"].map(|name| weight(&mut graph, name));
    let add = |graph: &mut Graph, name: &str, op: ir::Op, inputs: &[ir::ValueId]| {
        graph.add1(op, inputs, Scope::new(name)).expect("it is accepted")
    };
    let conv = || ir::Op::from(Conv::square(1, 1));
    let x = add(&mut graph, "first", conv(), &[x, weights[0]]);
    let rows = add(&mut graph, "rows", Slice::range(&shape, 0, 1, 2).into(), &[x]);
    let second = add(&mut graph, "second", conv(), &[rows, weights[1]]);
    let third = add(&mut graph, "third", conv(), &[x, weights[2]]);
    let y = add(&mut graph, "both", Concat { axis: 0 }.into(), &[third, second]);
    graph.set_outputs(vec![("y".into(), y)]);
    graph
}

/// Operands are declared with the alignment that they have in each plan. The mock refuses operands that are not aligned as
/// declared.
#[test]
fn operands_of_cudnn_are_aligned_as_declared() {
    let test = "gpu::choice::operands_of_cudnn_are_aligned_as_declared";
    // 4 x 25 pixels of four bytes are a multiple of 16 bytes, 3 x 25 are not.
    for (dtype, channels, least) in [
        (DType::F32, 4, 16),
        (DType::F32, 3, 4),
        // A convolution on channels-last values: the only one of the three, which are small.
        (HALVES[0], 8, 16),
        (HALVES[1], 5, 16),
    ] {
        let name = format!("gpu-choice-aligned-{dtype}-{channels}");
        let how = How { cudnn: Some(MathMode::Strict), dtype, origin: KernelOrigin::Library, ..How::default() };
        let Some(mocked) = Mocked::new(test, &name, shifted(channels), how) else { return };
        let alignments: Vec<u64> = (mocked.plan.steps.iter())
            .filter_map(|step| match StepCode::from_code(&step.code) {
                Some(StepCode::Cudnn(planned)) => Some(planned.alignment),
                _ => None,
            })
            .collect();
        let count = if dtype.is_half() { 1 } else { 3 };
        assert_eq!((alignments.len(), alignments.iter().min()), (count, Some(&least)), "{name}: {alignments:?}");
        let out = mocked.run(&[]);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr));
        let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
        let bound = if dtype.is_half() { 8.0 * step(dtype) } else { 1e-4 };
        assert_near(&name, &mocked.outputs(), &want, bound);
    }
}

/// Engines on channels-last values copy 16 bytes at once: cuDNN gets no operands that may begin elsewhere.
#[test]
fn misaligned_operands_of_channels_last_engines_are_refused() {
    let test = "gpu::choice::misaligned_operands_of_channels_last_engines_are_refused";
    let Some(target) = with_libraries(test, "gpu-choice-misaligned", DType::F32) else { return };
    let refusals = |channels: usize| -> Vec<(String, Option<String>)> {
        let mut graph = shifted(channels);
        let computed: Vec<ir::ValueId> =
            graph.values().iter().filter(|(_, value)| value.tensor().is_none()).map(|(id, _)| id).collect();
        computed.into_iter().for_each(|value| graph.value_mut(value).layout = Layout::ChannelsLast);
        let convs = graph.nodes().iter().filter(|(_, node)| matches!(node.op, ir::Op::Conv(_)));
        convs.map(|(id, node)| (node.scope.to_string(), target.refused_by_cudnn(&graph, id))).collect()
    };
    // An image has 400 bytes, and then 300.
    assert!(refusals(4).iter().all(|(_, refusal)| refusal.is_none()), "{:?}", refusals(4));
    let reason = "its operands must begin at multiples of 16 bytes, and may at 4";
    let want = [("first", None), ("second", Some(reason)), ("third", None)];
    assert_eq!(refusals(3), want.map(|(scope, refusal)| (scope.to_string(), refusal.map(str::to_string))));
}
