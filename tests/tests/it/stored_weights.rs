//! `--weights bf16|int8`: executables by stored weights against the evaluated graph with the numbers that these stand for.

use std::path::Path;
use std::process::Command;

use cases::judge::inputs;
use cases::networks::{Family, Scale};
use compiler::{Compiled, Goal, Model, compile};
use ir::{Graph, evaluate};
use lower::cpu::CpuTarget;
use types::{Bytes, DType, Random, Shape, Tensor, WeightFormat};

use crate::executables::{self, folder, output_of, text};
use crate::half_precision::assert_near;
use crate::support::open;
use crate::{pass_results, tied_weights, transformers};

/// Relative to the largest result: sums of products of the same numbers in another order.
const ROUNDING: f64 = 1e-5;

/// The graph with rounded weights, and its plan by the weights as they are stored.
fn compiled(graph: Graph, format: WeightFormat, goal: Goal) -> (Graph, Compiled) {
    let (mut rounded, target) = (graph.clone(), CpuTarget { weights: Some(format), exact: true, ..CpuTarget::new() });
    let name = graph.name.clone();
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    let compiled = compile(model, &target, goal, |pass, graph| {
        if pass == "store_weights" {
            rounded = graph.clone();
        }
    });
    (rounded, compiled.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The bytes of constants in a form.
fn stored(compiled: &Compiled, format: WeightFormat) -> u64 {
    let constants = compiled.plan.constants.iter().filter(|constant| constant.dtype == format.dtype());
    constants.map(|constant| constant.size.0).sum()
}

/// The results, which must be bit-identical on 1 and 3 threads and pass the audit.
fn run(name: &str, compiled: &Compiled, inputs: &[Tensor]) -> Vec<Tensor> {
    let [one, three] = [1, 3].map(|threads| open(compiled, threads).run_tensors(inputs).expect("the inputs fit"));
    let bytes = |results: &[Tensor]| results.iter().map(Tensor::to_le_bytes).collect::<Vec<_>>();
    assert!(bytes(&one) == bytes(&three), "{name}: other bits on other numbers of threads");
    let inputs: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let audit = runtime::audit::audit(&mut open(compiled, 2), &inputs).expect("the host sees its arena");
    assert!(audit.is_equal(), "{name}: {audit:?}");
    one
}

/// Compares an executable with its definition; returns the bytes of constants in the stored form.
fn check(graph: Graph, format: WeightFormat, seed: u64) -> u64 {
    let name = format!("{} as {}, seed {seed}", graph.name, format.name());
    let inputs = inputs(&graph, seed);
    let (rounded, compiled) = compiled(graph, format, Goal::default());
    let want = evaluate(&rounded, &inputs).expect("the graph verifies");
    assert_near(&name, &run(&name, &compiled, &inputs), &want, ROUNDING);
    stored(&compiled, format)
}

#[test]
fn random_graphs_match_their_rounded_definition() {
    for format in WeightFormat::ALL {
        let with_weights = (0..40).filter(|&seed| 0 < check(pass_results::random_graph(seed), format, seed)).count();
        assert!(10 <= with_weights, "{}: {with_weights} graphs have weights", format.name());
    }
}

#[test]
fn generated_networks_match_their_rounded_definition() {
    for format in WeightFormat::ALL {
        for family in Family::ALL {
            assert!(0 < check(family.network(1, Scale::Small), format, 5));
        }
    }
}

#[test]
fn transformer_matches_its_rounded_definition() {
    for format in WeightFormat::ALL {
        assert!(0 < check(transformers::transformer(3), format, 4));
    }
}

#[test]
fn tied_table_and_projection_are_one_stored_constant() {
    for format in WeightFormat::ALL {
        for (words, width) in [(5, 3), (33, 9), (65, 4), (100, 33)] {
            let graph = tied_weights::language_model(words, width, true);
            let (rounded, compiled) = compiled(graph, format, Goal::default());
            let matrices: Vec<_> =
                compiled.plan.constants.iter().filter(|constant| constant.shape.rank() == 2).collect();
            assert_eq!(matrices.len(), 1, "{words} words of {width}");
            assert_eq!(matrices[0].dtype, format.dtype());
            let ids = Tensor::from_fn(Shape::from([1, tied_weights::TOKENS]), |at| (at * 5 % words) as i64);
            let want = evaluate(&rounded, std::slice::from_ref(&ids)).expect("the input fits");
            assert_near("tied", &run("tied", &compiled, &[ids]), &want, ROUNDING);
        }
    }
}

/// Networks whose evaluation takes too long, against kernels of `f32` by the same numbers.
#[test]
fn networks_of_the_zoo_match_kernels_of_f32() {
    for (network, shape) in [
        ("squeezenet1.1", Some([1, 3, 64, 64])),
        ("mobilenet_v2", Some([1, 3, 64, 64])),
        ("resnet18", Some([1, 3, 64, 64])),
        ("lenet", None),
    ] {
        let shapes = shape.iter().map(|shape| ("input".to_string(), Shape::from(*shape))).collect();
        let options = zoo::NetworkOptions { shapes, ..Default::default() };
        let graph = zoo::build(network, 1, &mut zoo::Seeded(3), &options).expect("the zoo has it").graph;
        let inputs = inputs(&graph, 9);
        let plain = executable(graph.clone(), None);
        for format in WeightFormat::ALL {
            let (rounded, compiled) = compiled(graph.clone(), format, Goal::default());
            let want = open(&executable(rounded, None), 2).run_tensors(&inputs).expect("the inputs fit");
            assert_near(network, &run(network, &compiled, &inputs), &want, ROUNDING);
            let [all, before] = [&compiled, &plain].map(|compiled| compiled.plan.constants_size.0);
            // Vectors and depthwise weights stay as they are; packed bytes are padded.
            let most = if format == WeightFormat::Bf16 { 0.6 } else { 0.4 };
            assert!((all as f64) < most * before as f64, "{network} {}: {all} bytes beside {before}", format.name());
        }
    }
}

fn executable(graph: Graph, weights: Option<WeightFormat>) -> Compiled {
    let target = CpuTarget { weights, exact: true, ..CpuTarget::new() };
    compile(Model { graph, preprocess: None, labels: Vec::new() }, &target, Goal::default(), |_, _| {})
        .expect("it compiles")
}

#[test]
fn arena_budget_works_with_stored_weights() {
    for format in WeightFormat::ALL {
        let graph = Family::ALL[0].network(2, Scale::Small);
        let (_, whole) = compiled(graph.clone(), format, Goal::default());
        let budget = Bytes(whole.plan.arena.size().0 * 9 / 10);
        let (rounded, compiled) = compiled(graph.clone(), format, Goal::within(budget));
        assert!(compiled.plan.arena.size() <= budget);
        let inputs = inputs(&graph, 3);
        let want = evaluate(&rounded, &inputs).expect("the graph verifies");
        assert_near("budget", &run("budget", &compiled, &inputs), &want, ROUNDING);
    }
}

fn prestow(folder: &Path, words: &[&str]) -> std::process::Output {
    output_of(Command::new(executables::program("prestow")).args(words).current_dir(folder))
}

#[test]
fn unsupported_requests_are_refused() {
    let folder = folder("stored-weights-refused");
    for (words, expected) in [
        (&["compile", "lenet", "--weights", "int8", "--weights", "bf16"][..], "one of bf16 and int8"),
        (&["compile", "lenet", "--weights", "seed:1", "--weights", "seed:2"], "one FILE or seed:N"),
        (&["compile", "lenet", "--weights", "int8", "--dtype", "bf16"], "--dtype f32"),
        (&["compile", "lenet", "--weights", "int8", "--train"], "--train"),
        (&["compile", "lenet", "--weights", "bf16", "--target", "cuda:sm_90"], "needs a processor"),
        (&["what-if", "lenet", "--weights", "bf16"], "prestow compile"),
        (&["export", "lenet", "--weights", "bf16", "-o", "x.onnx"], "prestow compile"),
    ] {
        let out = prestow(&folder, words);
        let error = text(&out.stderr);
        assert!(out.status.code() == Some(2) && error.contains(expected), "{words:?}: {error}");
    }
}

#[test]
fn compiling_states_errors_of_weights() {
    let folder = folder("stored-weights-errors");
    let exe = executables::compile(&folder, &["lenet", "--weights", "seed:3", "--weights", "int8"]);
    let memory = executables::json(&exe, &["memory"]).to_string();
    assert!(memory.contains("\"i8\""), "{memory}");
    let out = prestow(&folder, &["compile", "lenet", "--weights", "int8", "-o", "a"]);
    let said = text(&out.stdout);
    assert!(said.contains("weights as int8") && said.contains("conv") && said.contains("mat_mul"), "{said}");
    let out = prestow(&folder, &["compile", "lenet", "--weights", "bf16", "-o", "a", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    let stored = &report["stored_weights"];
    let layers = stored["layers"].as_array().expect("there are layers");
    assert!(2 < layers.len() && stored["format"] == "bf16", "{stored}");
    for layer in layers {
        let [largest, mean] = ["largest", "mean"].map(|name| layer[name].as_f64().expect("it is a number"));
        assert!(0.0 < largest && largest < 1.0 / 256.0 && 0.0 < mean && mean < 1.0 / 256.0, "{layer}");
    }
}

#[test]
fn infinite_weights_have_no_int8_form() {
    let mut graph = Graph::new("infinite");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 8]));
    let mut random = Random::new(1);
    let items =
        Tensor::from_fn(Shape::from([8, 5]), |at| if at == 7 { f32::INFINITY } else { random.uniform(-1.0, 1.0) });
    let weight = graph.add_weight("w", items);
    let y =
        graph.add1(ir::ops::MatMul::default().into(), &[x, weight], types::Scope::new("y")).expect("it is accepted");
    graph.set_outputs(vec![("y".into(), y)]);
    let (rounded, _) = compiled(graph.clone(), WeightFormat::Bf16, Goal::default());
    let errors = passes::weight_errors(&graph, &rounded);
    assert!(errors.len() == 1 && !errors[0].is_finite, "{errors:?}");
}
