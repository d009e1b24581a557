//! Half precision (`f16`, `bf16`) between kernels: random graphs and a transformer against the evaluated rounded graph,
//! networks and photographs against `f32`.

use cases::judge::{inputs, step};
use compiler::{Compiled, Goal, Model, compile};
use ir::{Graph, evaluate};
use lower::cpu::CpuTarget;
use types::{DType, Tensor};

use crate::executables::{SQUEEZENET, folder, output_of, text};
use crate::support::{difference, open};
use crate::{executables, pass_results, transformers};

pub(crate) const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// The graph after conversion to half precision, and its plan.
fn compiled(graph: Graph, dtype: DType) -> (Graph, Compiled) {
    let (mut rounded, target) = (graph.clone(), CpuTarget { dtype, ..CpuTarget::new() });
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    let compiled = compile(model, &target, Goal::default(), |pass, graph| {
        if pass == "convert_to_half" {
            rounded = graph.clone();
        }
    });
    (rounded, compiled.expect("it compiles"))
}

/// The results, which must be bit-identical on 1, 2 and 3 threads and pass the audit.
fn run(name: &str, compiled: &Compiled, inputs: &[Tensor]) -> Vec<Tensor> {
    let results = [1, 2, 3].map(|threads| open(compiled, threads).run_tensors(inputs).expect("the inputs fit"));
    let [one, two, three] =
        results.each_ref().map(|results| results.iter().map(Tensor::to_le_bytes).collect::<Vec<_>>());
    assert!(one == two && one == three, "{name}: other bits on other numbers of threads");
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let audit = runtime::audit::audit(&mut open(compiled, 2), &bytes).expect("the host sees its arena");
    assert!(audit.is_equal(), "{name}: {audit:?}");
    let [_, two, _] = results;
    two
}

/// The largest difference, relative to the largest result.
pub(crate) fn assert_near(name: &str, got: &[Tensor], want: &[Tensor], parts: f64) {
    for (got, want) in got.iter().zip(want) {
        let largest = want.to_f64().into_iter().filter(|item| item.is_finite()).fold(1e-3f64, |a, b| a.max(b.abs()));
        assert_eq!(difference(got, want, 0.0, parts * largest), None, "{name}");
    }
}

#[test]
fn random_graphs_match_their_rounded_definition() {
    let mut stored = 0;
    for seed in 0..40 {
        for dtype in HALVES {
            let graph = pass_results::random_graph(seed);
            let (name, inputs) = (format!("{dtype}, seed {seed}"), inputs(&graph, seed));
            let plain = evaluate(&graph, &inputs).expect("the graph verifies");
            let (rounded, compiled) = compiled(graph, dtype);
            let halves = rounded.nodes().values().filter(|node| rounded.ty(node.outputs[0]).dtype == dtype).count();
            stored += usize::from(0 < halves);
            let want = evaluate(&rounded, &inputs).expect("the graph verifies");
            let got = run(&name, &compiled, &inputs);
            // A sum that rounds to the other neighbor changes all values computed from it.
            assert_near(&name, &got, &want, 4.0 * step(dtype));
            assert_near(&name, &got, &plain, 8.0 * step(dtype));
        }
    }
    assert!(16 <= stored, "some graphs have something that is stored: {stored}");
}

#[test]
fn transformer_matches_its_rounded_definition() {
    for dtype in HALVES {
        let graph = transformers::transformer(3);
        let inputs = inputs(&graph, 4);
        let plain = evaluate(&graph, &inputs).expect("the graph verifies");
        let (rounded, compiled) = compiled(graph, dtype);
        let stored = rounded.nodes().values().filter(|node| rounded.ty(node.outputs[0]).dtype == dtype);
        assert!(8 < stored.count(), "products, sums and norms lie as halves");
        let got = run(dtype.name(), &compiled, &inputs);
        assert_near(dtype.name(), &got, &evaluate(&rounded, &inputs).expect("the graph verifies"), 4.0 * step(dtype));
        assert_near(dtype.name(), &got, &plain, 4.0 * step(dtype));
    }
}

/// The first output of an executable on synthetic input, and its arena size.
fn result(folder: &std::path::Path, words: &[&str]) -> (Tensor, u64) {
    let exe = executables::compile(folder, words);
    let out =
        output_of(std::process::Command::new(&exe).args(["run", "--synthetic", "seed:3", "--output-dir"]).arg(folder));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let arena = executables::json(&exe, &["memory"])["planned"]["arena_bytes"].as_u64().expect("it is planned");
    let file = std::fs::read_dir(folder)
        .expect("it is there")
        .flatten()
        .find(|file| file.path().extension().is_some_and(|end| end == "npy"));
    let bytes = std::fs::read(file.expect("results are written").path()).expect("it can be read");
    (weights::npy::read(&bytes).expect("it is an npy file"), arena)
}

#[test]
fn networks_need_half_the_memory_with_similar_results() {
    for (model, shape, most) in [
        ("squeezenet1.1", "input=1x3x64x64", 0.75),
        ("mobilenet_v2", "input=1x3x64x64", 0.75),
        ("resnet18", "input=1x3x64x64", 0.75),
        ("densenet121", "input=1x3x64x64", 0.75),
    ] {
        let folder = folder(&format!("halves-{model}"));
        let (want, plain) = result(&folder, &[model, "--shape", shape]);
        for dtype in HALVES {
            let (got, arena) = result(&folder, &[model, "--shape", shape, "--dtype", dtype.name()]);
            assert_near(&format!("{model} {dtype}"), &[got], std::slice::from_ref(&want), 8.0 * step(dtype));
            assert!((arena as f64) < most * plain as f64, "{model} {dtype}: {arena} bytes beside {plain}");
        }
    }
}

#[test]
fn half_precision_classifies_a_cat() {
    let probabilities = |dtype: &str| {
        let flags = ["--dtype", dtype];
        executables::top("halves::a_cat_is_a_cat_in_halves", "squeezenet1.1", &flags, SQUEEZENET, "chelsea.png")
    };
    let Some(want) = probabilities("f32") else { return };
    for (dtype, most) in [("f16", 0.005), ("bf16", 0.04)] {
        let got = probabilities(dtype).expect("the files are there");
        for (name, want) in &want {
            let got = got.iter().find(|(other, _)| other == name).map_or(0.0, |(_, score)| *score);
            assert!((got - want).abs() < most, "{dtype}: {name} {got} for {want}");
        }
    }
}

#[test]
fn unsupported_half_precision_requests_are_refused() {
    let folder = folder("halves-refused");
    for (words, expected) in [
        (&["compile", "lenet", "--dtype", "i8"][..], "f32, f16, bf16"),
        (&["compile", "lenet", "--dtype", "f32,f16"], "what-if"),
        (&["compile", "lenet", "--target", "cuda:sm_90", "--dtype", "f16", "--tune"], "--tune"),
        (&["compile", "lenet", "--dtype", "f16", "--budget", "1MiB"], "--budget"),
        (&["compile", "lenet", "--dtype", "bf16", "--tune"], "--tune"),
        (&["export", "lenet", "--dtype", "bf16", "-o", "x.onnx"], "--dtype"),
    ] {
        let out =
            output_of(std::process::Command::new(executables::program("prestow")).args(words).current_dir(&folder));
        assert!(
            out.status.code() == Some(2) && text(&out.stderr).contains(expected),
            "{words:?}: {}",
            text(&out.stderr)
        );
    }
}
