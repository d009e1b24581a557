//! Products by cuBLASLt: planned without any library of NVIDIA's, and run by cuBLASLt's mock on the driver's mock.

use cases::judge::step;
use cuda::{MathMode, StepCode};
use cuda_mock::Library;
use ir::Graph;
use ir::ops::{Epilogue, MatMul};
use lower::cuda::{CUBLAS_PRODUCT, KernelOrigin};
use plan::{Place, Plan};
use types::pointwise::Unary;
use types::{Bytes, DType, Scope, Shape, Tensor};

use crate::executables::{folder, program, text};
use crate::gpu::{How, Mocked, NO_COMPILER, build_mock, expected_trace, network, system_has_wheels, without_libraries};
use crate::half_precision::{HALVES, assert_near};
use crate::support::{difference, root, skip};

/// Workspace of each product.
const WORKSPACE: Bytes = Bytes(4096);

fn with_cublas(dtype: DType) -> How {
    How { cublas: Some((MathMode::Strict, WORKSPACE)), dtype, origin: KernelOrigin::Library, ..How::default() }
}

/// Scopes of the steps that cuBLASLt runs.
fn by_cublas(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| step.kernel == CUBLAS_PRODUCT);
    steps.map(|step| step.scope.to_string()).collect()
}

/// Products of all kinds: with each epilogue of cuBLASLt, with functions that it lacks, as a batch with one stride,
/// with one operand for the whole batch, and with operands that have no common stride.
fn products() -> Graph {
    let mut graph = Graph::new("products");
    let known = |graph: &mut Graph, shape: &[usize]| {
        let seed = graph.values().len();
        let item = |ix: usize| ((ix * 37 + seed * 11) % 19) as f32 * 0.05 - 0.45;
        graph.add_weight(&format!("known{seed}"), Tensor::from_fn(Shape::from(shape), item))
    };
    let product = |bias, residual, activation: &[Unary]| MatMul {
        epilogue: Epilogue { bias, residual, activation: activation.iter().copied().collect(), ..Epilogue::default() },
        ..MatMul::default()
    };
    let add = |graph: &mut Graph, name: &str, product: MatMul, operands: &[ir::ValueId]| {
        graph.add1(product.into(), operands, Scope::new(name)).expect("it is accepted")
    };
    let x = graph.add_input("x", DType::F32, Shape::from([3, 5, 7]));
    let weight = known(&mut graph, &[7, 6]);
    let plain = add(&mut graph, "plain", product(false, false, &[]), &[x, weight]);
    let (weight, bias) = (known(&mut graph, &[6, 6]), known(&mut graph, &[6]));
    let relu = add(&mut graph, "relu", product(true, false, &[Unary::Relu]), &[plain, weight, bias]);
    let weight = known(&mut graph, &[6, 6]);
    let sum = add(&mut graph, "sum", product(true, true, &[Unary::GeluTanh]), &[relu, weight, bias, plain]);
    // Functions that cuBLASLt lacks run in an emitted kernel; a residual may be in place all the same.
    let weight = known(&mut graph, &[6, 6]);
    let erf = add(&mut graph, "erf", product(true, true, &[Unary::Gelu]), &[sum, weight, bias, relu]);
    let chain = [Unary::Relu, Unary::Affine { scale: 0.5, shift: 0.25 }, Unary::Tanh];
    let weight = known(&mut graph, &[6, 8]);
    let chain = add(&mut graph, "chain", product(false, false, &chain), &[erf, weight]);
    // A batch of three products with two dynamic operands.
    let y = graph.add_input("y", DType::F32, Shape::from([3, 8, 4]));
    let many = add(&mut graph, "many", product(false, false, &[]), &[chain, y]);
    let left = known(&mut graph, &[2, 5]);
    let one = add(&mut graph, "one", product(false, false, &[]), &[left, many]);
    let pairs = graph.add_input("pairs", DType::F32, Shape::from([2, 1, 4, 3]));
    let apart = add(&mut graph, "apart", product(false, false, &[]), &[one, pairs]);
    graph.set_outputs(vec![("out".into(), apart)]);
    graph
}

/// A perceptron of three layers; the result of the first layer is an output, too.
fn perceptron() -> Graph {
    let mut graph = Graph::new("perceptron");
    let mut x = graph.add_input("x", DType::F32, Shape::from([9, 33]));
    let mut outputs = Vec::new();
    for (ix, (from, to, function)) in
        [(33, 65, Unary::Relu), (65, 48, Unary::GeluTanh), (48, 10, Unary::Sigmoid)].into_iter().enumerate()
    {
        let item =
            |shape: [usize; 2]| Tensor::from_fn(Shape::from(shape), |at| ((at * 29 + ix) % 31) as f32 * 0.01 - 0.15);
        let weight = graph.add_weight(&format!("weight{ix}"), item([from, to]));
        let bias = graph.add_weight(&format!("bias{ix}"), Tensor::from_fn(Shape::from([to]), |at| at as f32 * 0.01));
        let epilogue = Epilogue { bias: true, activation: [function].into_iter().collect(), ..Epilogue::default() };
        let product = MatMul { epilogue, ..MatMul::default() };
        x = graph.add1(product.into(), &[x, weight, bias], Scope::new(&format!("layer{ix}"))).expect("it is accepted");
        outputs.push((format!("y{ix}"), x));
    }
    graph.set_outputs(vec![outputs.remove(0), outputs.remove(1)]);
    graph
}

/// cuBLASLt gets the alignment of each operand but not of a bias, so it takes a product only if the bias is a constant,
/// which is aligned.
#[test]
fn dynamic_bias_excludes_cublaslt() {
    let mut graph = Graph::new("bias");
    let x = graph.add_input("x", DType::F32, Shape::from([5, 7]));
    let weight = graph.add_weight("weight", Tensor::from_fn(Shape::from([7, 6]), |ix| ix as f32 * 0.01));
    let bias = |graph: &mut Graph, name: &str, known: bool| match known {
        true => graph.add_weight(name, Tensor::from_fn(Shape::from([6]), |ix| ix as f32)),
        false => graph.add_input(name, DType::F32, Shape::from([6])),
    };
    let biases = [bias(&mut graph, "known", true), bias(&mut graph, "given", false)];
    let target = crate::cuda::target(DType::F32).with_cublas(MathMode::Strict, Some(Bytes(4096)));
    let mut outputs = Vec::new();
    for (ix, bias) in biases.into_iter().enumerate() {
        let product = MatMul { epilogue: Epilogue { bias: true, ..Epilogue::default() }, ..MatMul::default() };
        let y = graph.add1(product.into(), &[x, weight, bias], Scope::new(&format!("product{ix}")));
        outputs.push((format!("y{ix}"), y.expect("it is accepted")));
    }
    graph.set_outputs(outputs);
    let nodes: Vec<ir::NodeId> = graph.nodes().iter().map(|(id, _)| id).collect();
    let refused: Vec<Option<String>> = nodes.iter().map(|&id| target.refused_by_cublas(&graph, id)).collect();
    assert_eq!(refused[0], None);
    assert!(refused[1].as_ref().is_some_and(|why| why.contains("its bias comes with the run")), "{refused:?}");
}

#[test]
fn cublaslt_runs_the_planned_products() {
    let test = "gpu::cublas::cublaslt_runs_the_planned_products";
    let Some(mocked) = Mocked::new(test, "gpu-cublas", products(), with_cublas(DType::F32)) else { return };
    let plan = &mocked.plan;
    assert_eq!(by_cublas(plan), ["plain", "relu", "sum", "erf", "chain", "many", "one"]);
    let kernels = |scope: &str| -> Vec<&str> {
        let steps = plan.steps.iter().filter(|step| step.scope.to_string() == scope);
        steps.map(|step| &step.kernel[..]).collect()
    };
    assert_eq!(kernels("erf"), [CUBLAS_PRODUCT, "cuda_pointwise"]);
    assert_eq!(kernels("chain"), [CUBLAS_PRODUCT, "cuda_pointwise"]);
    assert_eq!(kernels("apart"), ["cuda_product"], "two factors for three each");
    for step in plan.steps.iter().filter(|step| step.kernel == CUBLAS_PRODUCT) {
        let workspace = step.workspace.expect("it has one");
        let Place::Buffer(ix) = workspace.place else { panic!("a workspace is no constant") };
        assert_eq!(plan.buffers[ix.0 as usize].tag.to_string(), format!("{}:workspace", step.scope));
        assert_eq!(workspace.size, WORKSPACE);
        let Some(StepCode::Cublas(product)) = StepCode::from_code(&step.code) else { panic!("{}", step.scope) };
        assert_eq!(Bytes(product.workspace), WORKSPACE);
    }
    // Each operation of a node is counted once.
    assert_eq!(plan.steps.iter().map(|step| step.flops).sum::<u64>(), plan.flops);
    let (sum, erf) = (plan.steps.iter().find(|step| step.scope.to_string() == "sum"), kernels("sum"));
    let sum = sum.expect("it is there");
    assert_eq!((sum.inputs[3].place == sum.outputs[0].place, erf.len()), (true, 1), "the residual dies there");

    let out = mocked.run(&[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(mocked.trace(), expected_trace(plan));
    let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
    assert_eq!(difference(&mocked.outputs()[0], &want[0], 1e-4, 1e-4), None);

    // Every byte is audited, including workspaces that no step fills.
    let command = |words: &[&str]| {
        let out = without_libraries(&mocked.exe).args(words).env("LD_LIBRARY_PATH", &mocked.folder).output();
        let out = out.expect("it is there");
        assert!(out.status.success(), "{words:?}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let report: serde_json::Value = serde_json::from_str(&command(&["memory", "--actual", "--json"])).expect("JSON");
    assert_eq!(report["verdict"], "equal", "{report}");
    let items = report["actual"]["device"].as_array().expect("there is a device");
    let of_library = |item: &&serde_json::Value| item["what"].as_str().is_some_and(|what| what.contains("cuBLASLt"));
    let library = items.iter().find(of_library).expect("it is told");
    // The planned workspace, and the part that the chosen algorithms use.
    let uses = "device: cuBLASLt; its algorithms use up to 131 of the 4096 bytes of workspace in the arena";
    assert_eq!(library["what"], uses);
    assert_eq!(library["bytes"], 1 << 16);
    assert!(command(&["profile", "--warmup", "0", "--iters", "1"]).contains(CUBLAS_PRODUCT));
    assert!(command(&["describe"]).contains("needs        cuBLAS 13 (libcublasLt.so.13)"));
}

#[test]
fn cublaslt_failures_are_reported_without_leaks() {
    let test = "gpu::cublas::cublaslt_failures_are_reported_without_leaks";
    let Some(mocked) = Mocked::new(test, "gpu-cublas-faults", perceptron(), with_cublas(DType::F32)) else { return };
    let fails = |variables: &[(&str, &str)], says: &[&str]| {
        let out = mocked.run(variables);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{variables:?}: {said}");
        assert!(says.iter().all(|says| said.contains(says)) && !said.contains("panicked"), "{variables:?}: {said}");
        assert!(!mocked.trace().contains("leaked"), "{variables:?}: {}", mocked.trace());
    };
    for (call, times) in [
        ("cublasLtCreate", 1),
        ("cublasLtMatmulDescCreate", 3),
        ("cublasLtMatmulDescSetAttribute", 6),
        ("cublasLtMatrixLayoutCreate", 9),
        ("cublasLtMatmulPreferenceCreate", 3),
        ("cublasLtMatmulPreferenceSetAttribute", 15),
        ("cublasLtMatmulAlgoGetHeuristic", 3),
        // Each product runs once before the capture and once in it.
        ("cublasLtMatmul", 6),
    ] {
        for at in 1..=times {
            fails(&[("PRESTOW_MOCK_FAIL", &format!("{call}:{at}:14"))], &["cuBLASLt", "CUBLAS_STATUS_MOCK"]);
        }
        let out = mocked.run(&[("PRESTOW_MOCK_FAIL", &format!("{call}:{}:14", times + 1))]);
        assert!(out.status.success(), "{call} is called no more than {times} times: {}", text(&out.stderr));
    }
    // The error names the product, its layer and the remedy.
    for (call, at, says) in [
        ("cublasLtMatmulDescCreate", 2, &["at describing [9, 65] x [65, 48] of F32", "`layer1`", "without cuBLASLt"]),
        (
            "cublasLtMatmulAlgoGetHeuristic",
            3,
            &["an algorithm for [9, 48] x [48, 10] of F32", "`layer2`", "with another workspace"],
        ),
        ("cublasLtMatmul", 1, &["a step of cuBLASLt's", "`layer0`", "step 0"]),
    ] {
        fails(&[("PRESTOW_MOCK_FAIL", &format!("{call}:{at}:14"))], says);
    }
    // No algorithm fits.
    let says = [
        "step 0 (`layer0`)",
        "no algorithm on Mock GPU for [9, 33] x [33, 65] of F32",
        "4096 bytes",
        "with a larger workspace",
    ];
    fails(&[("PRESTOW_MOCK_CUBLAS_ALGORITHMS", "none")], &says);
    fails(&[("PRESTOW_MOCK_FAIL", "cublasLtMatmulAlgoGetHeuristic:1:15")], &[&says[..], &["NOT_SUPPORTED"]].concat());
    let version = |version| [("PRESTOW_MOCK_CUBLAS_VERSION", version)];
    fails(&version("120405"), &["cuBLASLt must be version 13, got the older 12.4.5", "without cuBLASLt"]);
    fails(&version("140000"), &["cuBLASLt must be version 13, got the newer 14.0.0"]);
    // A library without one of the functions, and no library.
    let library = mocked.folder.join("libcublasLt.so.13");
    let bytes = std::fs::read(&library).expect("it was built");
    let named = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    assert!(named(b"\0cublasLtMatmulAlgoGetHeuristic\0"));
    let other = replaced(&bytes, b"\0cublasLtMatmulAlgoGetHeuristic\0", b"\0cublasLtMatmulAlgoGetHeuristik\0");
    std::fs::write(&library, other).expect("the folder is ours");
    fails(&[], &["must have the function `cublasLtMatmulAlgoGetHeuristic`", "install cuBLAS 13"]);
    std::fs::remove_file(&library).expect("it was built");
    if !system_has_wheels(test) {
        fails(&[], &["cannot find libcublasLt.so", "PRESTOW_CUDA_LIBS", "fetch --cublas"]);
    }
    // In another folder, named by the environment.
    let elsewhere = folder("gpu-cublas-elsewhere");
    std::fs::write(elsewhere.join("libcublasLt.so.13"), bytes).expect("the folder is ours");
    let elsewhere = elsewhere.to_str().expect("it is text");
    assert!(mocked.run(&[("PRESTOW_CUDA_LIBS", elsewhere)]).status.success());
}

/// Replaces each `from` by `to`, which has the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut new = bytes.to_vec();
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            new[at..at + to.len()].copy_from_slice(to);
        }
    }
    new
}

/// Whole networks with products by cuBLASLt, in each precision, compared with the processor.
#[test]
fn networks_with_cublaslt_match_the_processor() {
    let test = "gpu::cublas::networks_with_cublaslt_match_the_processor";
    let graphs = [
        ("perceptron", perceptron(), 3),
        ("products", products(), 7),
        // Attention is an emitted kernel; the projections of queries, keys, values and outputs and two layers are
        // products.
        ("transformer", crate::transformers::transformer(2), 6),
        ("lenet", network("lenet", &[2, 1, 28, 28]), 2),
    ];
    for (name, graph, least) in graphs {
        for dtype in [DType::F32, HALVES[0], HALVES[1]] {
            let case = format!("gpu-cublas-{name}-{dtype}");
            let Some(mocked) = Mocked::new(test, &case, graph.clone(), with_cublas(dtype)) else { return };
            let (plan, name) = (&mocked.plan, format!("{name}, {dtype}"));
            assert!(least <= by_cublas(plan).len(), "{name}: {:?}", by_cublas(plan));
            let out = mocked.run(&[]);
            assert!(out.status.success(), "{name}: {}", text(&out.stderr));
            assert_eq!(mocked.trace(), expected_trace(plan), "{name}");
            let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
            let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
            let parts = if dtype.is_half() { 8.0 * step(dtype) } else { 1e-4 };
            assert_near(&name, &mocked.outputs(), &want, parts);
        }
    }
}

/// Operands are rounded to eleven bits with TF32 only.
#[test]
fn cublaslt_rounds_operands_with_tf32_only() {
    let test = "gpu::cublas::cublaslt_rounds_operands_with_tf32_only";
    let apart = |math: MathMode, name: &str| {
        let how = How { cublas: Some((math, WORKSPACE)), ..How::default() };
        let mocked = Mocked::new(test, name, perceptron(), how)?;
        let out = mocked.run(&[]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
        let (got, want) = (mocked.outputs()[0].to_f64(), want[0].to_f64());
        Some(got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max))
    };
    let Some(strict) = apart(MathMode::Strict, "gpu-cublas-strict") else { return };
    let exact = apart(MathMode::Exact, "gpu-cublas-exact").expect("it was built");
    let rounded = apart(MathMode::Tf32, "gpu-cublas-tf32").expect("it was built");
    assert!(strict < 1e-6 && exact < 1e-6, "{strict} {exact}");
    assert!(1e-5 < rounded && rounded < 2e-3, "{rounded}");
}

/// The library itself has every function of the table, if it is fetched.
#[test]
fn function_table_matches_the_library() {
    let versions = std::fs::read_dir(root().join("data/cuda/lib")).into_iter().flatten().flatten();
    let packages = versions.map(|entry| entry.path().join("site-packages")).collect();
    match cuda::cublas::CublasLtLibrary::find(&cuda::LibraryPaths { packages, ..Default::default() }) {
        Ok(library) => assert_eq!(library.version(), "13.1.0"),
        Err(cuda::cublas::CublasError::NotFound(error)) => {
            skip("gpu::cublas::function_table_matches_the_library", &error.to_string());
        }
        Err(error) => panic!("{error}"),
    }
}

/// The command line. No library of cuBLAS is present at compile time.
#[test]
fn command_line_selects_cublaslt() {
    let test = "gpu::cublas::command_line_selects_cublaslt";
    let folder = folder("gpu-cublas-compile");
    let compile = |name: &str, model: &str, words: &[&str]| {
        let mut command = without_libraries(&program("prestow"));
        command.args(["compile", model]).args(words).arg("--data").arg(root().join("data"));
        let out = command.arg("-o").arg(folder.join(name)).output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let refused = |words: &[&str], says: &str| {
        let (code, said) = compile("refused", "lenet", words);
        assert!(code == Some(2) && said.contains(says), "{words:?}: {said}");
    };
    let gpu = ["--target", "cuda:sm_90"];
    refused(&["--cublas"], "--cublas needs a GPU: --target cuda:sm_80");
    refused(&[&gpu[..], &["--cublas=fast"]].concat(), "'fast'");
    refused(&[&gpu[..], &["--cublas-workspace", "1MiB"]].concat(), "--cublas");
    refused(&[&gpu[..], &["--cublas", "--cublas-workspace", "much"]].concat(), "--cublas-workspace");
    refused(&[&gpu[..], &["--cublas=tf32", "--exact"]].concat(), "exclude each other");
    refused(&[&gpu[..], &["--cublas=tf32", "--dtype", "bf16"]].concat(), "rounds operands of f32");
    refused(&[&gpu[..], &["--verbose"]].concat(), "--cublas");
    let what_if = |words: &[&str]| {
        let mut command = without_libraries(&program("prestow"));
        command.args(["what-if", "lenet", "--batch", "1", "--json"]).args(words);
        let out = command.output().expect("it is built");
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
        report["variants"][0]["arena_bytes"].as_u64().expect("it is a number")
    };
    // The workspace is part of the arena. Its size is that of the option, or NVIDIA's recommendation.
    let words = |words: &[&'static str]| [&gpu[..], words].concat();
    let (less, more) = (what_if(&words(&["--cublas", "--cublas-workspace", "1MiB"])), what_if(&words(&["--cublas"])));
    assert!((1 << 20..2 << 20).contains(&less) && (32 << 20..33 << 20).contains(&more), "{less} {more}");
    let before = what_if(&["--target", "cuda:sm_80", "--cublas"]);
    assert!((4 << 20..5 << 20).contains(&before), "{before}");
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let (code, said) = compile("all", "lenet", &words(&["--cublas"]));
    assert!(
        code == Some(0) && said.contains("cuBLASLt does 3 of 3 products at batch 1; the executable needs it"),
        "{said}"
    );
    let (_, _) = compile("again", "lenet", &words(&["--cublas"]));
    let file = |name: &str| std::fs::read(folder.join(name)).expect("it is written");
    assert!(file("all") == file("again"), "the same input gives the same executable");
    let (code, said) = compile("json", "lenet", &words(&["--cublas", "--json", "--batch", "1,2"]));
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let plans = report["cublas"]["plans"].as_array().expect("it is told");
    assert_eq!((code, plans.len(), plans[1]["done"].as_u64()), (Some(0), 2, Some(3)));

    // Products without cuBLASLt are named with the reason.
    let file = folder.join("apart.onnx");
    std::fs::write(&file, export::onnx(&products()).expect("it can be written")).expect("the folder is ours");
    let (code, said) = compile("apart", file.to_str().expect("text"), &words(&["--cublas", "--verbose"]));
    assert!(code == Some(0) && said.contains("cuBLASLt does 7 of 8 products"), "{said}");
    assert!(said.contains("apart: its factors do not lie at one distance"), "{said}");

    // On a GPU, compared with the processor.
    if !build_mock(Library::Cublaslt, &folder) {
        return skip(test, NO_COMPILER);
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let how = How { code: None, ..with_cublas(DType::F32) };
    let mocked = Mocked::new(test, "gpu-cublas-check", graph, how).expect("there is a compiler");
    let report = mocked.folder.join("report.json");
    let check = |words: &[&str]| {
        let mut command = without_libraries(&program("prestow-gpu-check"));
        command.args(["lenet", "--batch", "2", "--iters", "2", "--dtype", "f32"]).args(words).arg("-o").arg(&report);
        command.args(["--peers", "none", "--data"]).arg(root().join("data"));
        command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_CUDA_LIBS", &mocked.folder);
        let out = command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace")).output().expect("it is built");
        let said = text(&out.stdout) + &text(&out.stderr);
        assert!(out.status.success() && said.contains("products by cuBLASLt"), "{words:?}: {said}");
        assert!(mocked.trace().contains("\ncublaslt "), "{}", mocked.trace());
        let bytes = std::fs::read(&report).expect("it is written");
        (said, serde_json::from_slice::<serde_json::Value>(&bytes).expect("it is JSON"))
    };
    // Every byte is audited, also with the workspace that NVIDIA recommends.
    let (said, report) = check(&["--cublas"]);
    assert!(said.ends_with("  equal\n"), "{said}");
    let row = &report["networks"][0];
    assert!((32 << 20..33 << 20).contains(&row["arena_bytes"].as_u64().expect("a number")), "{row}");
    assert_eq!((&row["verdict"], &row["audited"]), (&"equal".into(), &true.into()), "{row}");
    assert_eq!(report["cublas"], serde_json::json!({ "version": "13.1.0", "math": "strict" }));
    // The tolerance of TF32 allows for rounded operands.
    let (said, report) = check(&["--cublas=tf32"]);
    assert!(said.contains("products by cuBLASLt 13.1.0 (tf32)"), "{said}");
    assert_eq!(report["cublas"]["math"], "tf32");
    assert_eq!(report["networks"][0]["tolerance"], 1.0 / 128.0);
    // A run without an audit is reported as such.
    let (said, report) = check(&["--cublas", "--cublas-workspace", "260MiB"]);
    assert!(said.contains("  right, memory not audited: the arena has 260"), "{said}");
    let row = &report["networks"][0];
    assert_eq!((&row["verdict"], &row["audited"]), (&"right".into(), &false.into()), "{row}");
    assert!(row["not_audited"].as_str().is_some_and(|why| why.contains("no more than 256")), "{row}");
}
