//! TF32, `f32` operands rounded to eleven bits for tensor cores: emitted kernels in the shim against the definition, whole
//! executables on the mock driver, and the command line.

use cases::bounds::{Arithmetic, bounds, is_chain};
use cases::forms::{has_activation, is_product, map_constants, round_to_tf32, tensor_to_tf32};
use cases::judge::{Allowed, ELEVEN_BITS, TOLERANCE, Verdict, inputs, small_integers};
use cuda::MathMode;
use ir::ops::MatMul;
use ir::{Graph, evaluate};
use lower::Target;
use lower::cuda::CudaTarget;
use types::{Bytes, DType, Scope, Shape, Tensor};

use crate::cuda::{ADDRESSES, Run, cases, check_resources, run_given, target};
use crate::executables::{folder, program, text};
use crate::gpu::{How, Mocked, expected_trace, network, without_libraries};
use crate::half_precision::assert_near;
use crate::support::{difference, root};

fn rounding() -> CudaTarget {
    target(DType::F32).rounding()
}

/// Products and convolutions of `f32`, one per graph, some with large tiles.
fn products() -> Vec<(String, Graph)> {
    let (all, _) = cases();
    let graphs: Vec<(String, Graph)> = all.into_iter().filter(|(_, graph)| is_product(graph)).collect();
    assert!(20 < graphs.len(), "{}", graphs.len());
    graphs
}

/// Operands that fit eleven bits are not rounded: results match the definition as closely as those of `f32` kernels.
#[test]
fn operands_rounded_to_tf32_are_exact() {
    let test = "tf32::products_of_11_bit_operands_are_exact";
    let graphs: Vec<(String, Graph)> =
        products().into_iter().map(|(name, graph)| (name, map_constants(&graph, tensor_to_tf32))).collect();
    let given = graphs.iter().map(|(_, graph)| inputs(graph, 3).iter().map(tensor_to_tf32).collect()).collect();
    let Some(runs) = run_given(test, "tf32-exact", &graphs, given, &rounding(), &ADDRESSES) else { return };
    let mut wrong = Vec::new();
    for ((name, graph), Run { given, got, .. }) in graphs.iter().zip(&runs) {
        let want = evaluate(graph, given).expect("the graph verifies");
        wrong.extend(
            difference(&got[0], &want[0], TOLERANCE, TOLERANCE).map(|difference| format!("{name}: {difference}")),
        );
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), graphs.len(), wrong.join("\n"));
}

/// Other operands are rounded; the error is at most one step of the sum of the terms' magnitudes.
#[test]
fn rounding_error_is_at_most_one_step() {
    let test = "tf32::rounded_operands_are_off_by_a_step_at_most";
    // An epilogue may amplify a difference.
    let graphs: Vec<(String, Graph)> = products().into_iter().filter(|(_, graph)| !has_activation(graph)).collect();
    let given: Vec<Vec<Tensor>> = graphs.iter().map(|(_, graph)| inputs(graph, 5)).collect();
    let Some(runs) = run_given(test, "tf32-rounded", &graphs, given, &rounding(), &["-O2"]) else { return };
    let mut off = 0;
    for ((name, graph), Run { given, got, .. }) in graphs.iter().zip(&runs) {
        let want = evaluate(graph, given).expect("the graph verifies").swap_remove(0);
        let allowed = Allowed::of_rounded(graph, given, 1.0).expect("the graph verifies");
        let verdict = Verdict::of(&got[0], &want, &allowed).expect("types agree");
        assert_eq!(verdict.first, None, "{name}: {verdict:?}");
        off += usize::from(0.01 < verdict.part);
    }
    assert!(graphs.len() / 2 < off, "operands are rounded: of {off} in {}", graphs.len());
}

/// Elements of [`chains`] as an H100 computed them: a part of the case's name, the output, the index, the value.
const OF_AN_H100: [(&str, usize, [usize; 4], f64); 5] = [
    ("[64, 32, 3, 3] of [2, 32, 16, 16]", 0, [0, 0, 0, 4], -0.1171540766954422),
    ("[40, 48, 1, 1] of [1, 48, 14, 14]", 1, [0, 0, 0, 0], 2.170802354812622),
    ("[32, 3, 7, 7] of [2, 3, 23, 23]", 0, [0, 0, 0, 14], -0.028764089569449425),
    ("[3, 17, 6, 6] by [1, 1]", 0, [0, 0, 0, 0], -0.20236247777938843),
    ("[4, 16, 14, 14] by [3, 3]", 0, [0, 0, 0, 0], 2.6038076877593994),
];

/// Graphs of several products, where rounding is carried from one to the next: within the bound, and the same as on a GPU. On
/// small integers nothing is rounded, so that results are equal.
#[test]
fn rounding_of_several_products_stays_within_its_bound() {
    let test = "tf32::rounding_of_several_products_stays_within_its_bound";
    let graphs: Vec<(String, Graph)> = cases::training::all()
        .into_iter()
        .filter(|case| is_chain(&case.graph))
        .map(|case| (case.name, case.graph))
        .collect();
    assert!(20 < graphs.len(), "{}", graphs.len());
    let both = [graphs.clone(), graphs.clone()].concat();
    let given = graphs.iter().map(|(_, graph)| inputs(graph, 3));
    let integers = graphs.iter().map(|(_, graph)| small_integers(graph, 3));
    let given: Vec<Vec<Tensor>> = given.chain(integers).collect();
    let Some(runs) = run_given(test, "tf32-chains", &both, given, &rounding(), &["-O2"]) else { return };
    let arithmetic = Arithmetic { operands: ELEVEN_BITS, library: false };
    for (ix, ((name, graph), Run { given, got, .. })) in both.iter().zip(&runs).enumerate() {
        let want = evaluate(graph, given).expect("the graph verifies");
        let allowed = match ix < graphs.len() {
            true => bounds(graph, given, arithmetic).expect("it is a chain"),
            false => vec![Allowed::NOTHING; want.len()],
        };
        for ((got, want), allowed) in got.iter().zip(&want).zip(&allowed) {
            let verdict = Verdict::of(got, want, allowed).expect("types agree");
            assert_eq!(verdict.first, None, "{name}: {verdict:?}");
        }
    }
    for (part, output, index, value) in OF_AN_H100 {
        let is_it = |(name, graph): &(String, Graph)| name.contains(part) && output < graph.outputs().len();
        let ix = graphs.iter().position(is_it).unwrap_or_else(|| panic!("{part} is a case"));
        let got = &runs[ix].got[output];
        let at: usize = got.shape().row_major_strides().iter().zip(index).map(|(stride, at)| stride * at).sum();
        // Sums have another order on a GPU.
        assert!((got.to_f64()[at] - value).abs() < 1e-5, "{part}: {} and {value}", got.to_f64()[at]);
    }
}

/// All roundings, by a product with 1.
#[test]
fn rounding_matches_its_definition() {
    let test = "tf32::numbers_are_rounded_as_they_are_defined";
    let numbers = (0..8192).map(|ix| {
        let size = 2f64.powi(ix / 32 - 128);
        // Between two numbers of eleven bits, and next to the midpoint.
        let part = [
            1.0,
            1.0 + ELEVEN_BITS / 2.0,
            1.0 + ELEVEN_BITS * 1.5,
            1.0 + ELEVEN_BITS / 2.0 - 2f64.powi(-23),
            1.0 + ELEVEN_BITS / 2.0 + 2f64.powi(-22),
        ];
        (if ix % 2 == 0 { 1.0 } else { -1.0 }) * size * (part[ix as usize % 5] + f64::from(ix % 7) * ELEVEN_BITS)
    });
    let more = [0.0, -0.0, 1e-40, f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE), 3.0];
    let numbers: Vec<f32> = numbers.chain(more).map(|number| number as f32).collect();
    let mut graph = Graph::new("one");
    let x = graph.add_input("x", DType::F32, Shape::from([numbers.len(), 1]));
    let one = graph.add_weight("one", Tensor::from_fn(Shape::from([1, 1]), |_| 1.0f32));
    let y = graph.add1(MatMul::default().into(), &[x, one], Scope::new("y")).expect("it is accepted");
    graph.set_outputs(vec![("y".into(), y)]);
    let given = vec![vec![Tensor::from_fn(Shape::from([numbers.len(), 1]), |ix| numbers[ix])]];
    let Some(runs) = run_given(test, "tf32-numbers", &[("one".into(), graph)], given, &rounding(), &["-O2"]) else {
        return;
    };
    for (number, got) in numbers.iter().zip(runs[0].got[0].to_f64()) {
        let want = round_to_tf32(f64::from(*number));
        assert!(got == want, "{number:e} becomes {got:e} and not {want:e}");
    }
}

/// NVRTC compiles the same source without spilling.
#[test]
fn kernels_compile_without_spills() {
    let Some(compiler) = crate::cuda::compiler("tf32::kernels_compile_without_spills") else { return };
    check_resources(&compiler, products(), &rounding(), &CudaTarget::ARCHITECTURES);
}

/// Whole executables: emitted kernels, and libraries in TF32 mode.
#[test]
fn networks_match_the_processor_within_tolerance() {
    let test = "tf32::networks_are_near_those_of_a_processor";
    let graphs = [
        ("resnet18", network("resnet18", &[1, 3, 32, 40])),
        ("transformer", crate::transformers::transformer(2)),
        ("random", crate::pass_results::random_graph(3)),
    ];
    for (name, graph) in graphs {
        for libraries in [false, true] {
            let cudnn = libraries.then_some(MathMode::Tf32);
            let cublas = libraries.then_some((MathMode::Tf32, Bytes(4096)));
            let how = How { rounds: true, cudnn, cublas, ..How::default() };
            let case = format!("tf32-{name}{}", if libraries { "-libraries" } else { "" });
            let Some(mocked) = Mocked::new(test, &case, graph.clone(), how) else { return };
            assert_eq!(mocked.plan.target, "cuda:sm_90+tf32");
            let out = mocked.run(&[]);
            assert!(out.status.success(), "{case}: {}", text(&out.stderr));
            assert_eq!(mocked.trace(), expected_trace(&mocked.plan), "{case}");
            let processor = crate::support::compiled(graph.clone()).expect("processors have kernels for it");
            let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
            // As for `f16`, which has as many bits but rounds more values.
            assert_near(&case, &mocked.outputs(), &want, 8.0 * ELEVEN_BITS);
        }
    }
}

#[test]
fn command_line_accepts_tf32_for_gpus() {
    let test = "tf32::the_command_line_takes_it_for_gpus";
    let folder = folder("tf32-compile");
    let compile = |name: &str, words: &[&str]| {
        let mut command = without_libraries(&program("prestow"));
        command.args(["compile", "lenet"]).args(words).arg("--data").arg(root().join("data"));
        let out = command.arg("-o").arg(folder.join(name)).output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let refused = |words: &[&str], expected: &str| {
        let (code, output) = compile("refused", words);
        assert!(code == Some(2) && output.contains(expected), "{words:?}: {output}");
    };
    refused(&["--dtype", "tf32"], "--dtype tf32 needs a GPU");
    refused(&["--dtype", "tf16"], "there are f32, tf32, f16, bf16");
    refused(&["--target", "cuda:sm_90", "--dtype", "tf32", "--exact"], "--dtype tf32 and --exact exclude each other");
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let (code, output) = compile("tf32", &["--target", "cuda:sm_90", "--dtype", "tf32", "--cublas"]);
    assert!(code == Some(0) && output.contains("lenet for cuda:sm_90+tf32"), "{output}");
    let image = runtime::ImageFile::open(&folder.join("tf32")).expect("it is an image");
    let works = image.plans[0].steps.iter().filter_map(|step| cuda::StepCode::from_code(&step.code));
    let products: Vec<MathMode> = works
        .filter_map(|work| if let cuda::StepCode::Cublas(product) = work { Some(product.math) } else { None })
        .collect();
    assert_eq!(products, [MathMode::Tf32; 3], "libraries use TF32 as well");
    assert_eq!(rounding().name(), "cuda:sm_90+tf32");
    let mut what_if = without_libraries(&program("prestow"));
    what_if.args(["what-if", "lenet", "--batch", "1", "--target", "cuda:sm_90", "--dtype", "f32,tf32", "--json"]);
    let report: serde_json::Value =
        serde_json::from_slice(&what_if.output().expect("it is built").stdout).expect("it is JSON");
    let dtypes: Vec<&str> = report["variants"]
        .as_array()
        .expect("there are two")
        .iter()
        .map(|variant| variant["dtype"].as_str().expect("it is text"))
        .collect();
    assert_eq!(dtypes, ["f32", "tf32"]);
}
