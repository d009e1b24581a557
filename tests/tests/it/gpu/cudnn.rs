//! Convolutions by cuDNN: planned without a GPU, by cuDNN's mock and by cuDNN itself, and run on the driver's mock.

use std::path::Path;

use cases::judge::step;
use cuda::MathMode;
use ir::Graph;
use ir::ops::{Binary, Concat, Conv, Epilogue, Pad, PadMode, Pool, PoolKind, Reduce, ReduceKind, Slice};
use lower::cuda::{CUDNN_CONV, KernelOrigin};
use plan::{Place, Plan};
use types::pointwise::{Binary as Function, Unary};
use types::{Bytes, DType, Shape, Tensor};

use crate::executables::{folder, program, text};
use crate::gpu::{
    H200, How, Mocked, NO_COMPILER, build_cudnn, expected_trace, network, system_has_wheels, without_libraries,
};
use crate::half_precision::{HALVES, assert_near};
use crate::support::{difference, root, skip};

/// Convolutions with each epilogue of cuDNN, and with some that it lacks.
pub(crate) fn convolutions() -> Graph {
    let mut graph = Graph::new("convolutions");
    let mut names = 0;
    let mut known = |graph: &mut Graph, shape: &[usize]| {
        names += 1;
        let item = |ix: usize| ((ix * 37 + names * 11) % 19) as f32 * 0.03 - 0.25;
        graph.add_weight(&format!("known{names}"), Tensor::from_fn(Shape::from(shape), item))
    };
    let x = graph.add_input("x", DType::F32, Shape::from([2, 6, 9, 10]));
    let epilogue = |bias, residual, activation: Option<Unary>| Epilogue {
        bias,
        residual,
        activation: activation.into_iter().collect(),
        ..Epilogue::default()
    };
    let (relu, tanh, none) = (Some(Unary::Relu), Some(Unary::Tanh), None);
    let mut add = |graph: &mut Graph, name: &str, conv: Conv, weight: &[usize], from: &[ir::ValueId]| {
        let mut operands = vec![from[0], known(graph, weight)];
        if conv.epilogue.bias {
            operands.push(known(graph, &weight[..1]));
        }
        operands.extend(&from[1..]);
        graph.add1(conv.into(), &operands, types::Scope::new(name)).expect("it is accepted")
    };
    let plain = add(
        &mut graph,
        "plain",
        Conv { epilogue: epilogue(false, false, none), ..Conv::square(1, 1) },
        &[8, 6, 3, 3],
        &[x],
    );
    let bias = add(
        &mut graph,
        "bias",
        Conv { epilogue: epilogue(true, false, none), ..Conv::square(1, 0) },
        &[8, 8, 1, 1],
        &[plain],
    );
    let sum = add(
        &mut graph,
        "sum",
        Conv { epilogue: epilogue(true, true, relu), ..Conv::square(1, 1) },
        &[8, 8, 3, 3],
        &[bias, plain],
    );
    let grouped = Conv {
        groups: 4,
        epilogue: epilogue(true, false, relu),
        pad: [[0, 1], [2, 0]].into_iter().collect(),
        ..Conv::square(2, 0)
    };
    let grouped = add(&mut graph, "grouped", grouped, &[12, 2, 3, 3], &[sum]);
    let dilation = [1, 2].into_iter().collect();
    let wide = Conv { dilation, epilogue: epilogue(true, false, none), ..Conv::square(1, 1) };
    let wide = add(&mut graph, "wide", wide, &[4, 12, 2, 2], &[grouped]);
    // Functions without a fused engine, and ReLU without a bias, run in an emitted kernel after the convolution.
    let other = add(
        &mut graph,
        "other",
        Conv { epilogue: epilogue(true, false, tanh), ..Conv::square(1, 0) },
        &[4, 4, 1, 1],
        &[wide],
    );
    let last = add(
        &mut graph,
        "last",
        Conv { epilogue: epilogue(false, false, relu), ..Conv::square(1, 0) },
        &[4, 4, 1, 1],
        &[other],
    );
    // A residual without a bias has no engine.
    let y = add(
        &mut graph,
        "alone",
        Conv { epilogue: epilogue(false, true, none), ..Conv::square(1, 0) },
        &[4, 4, 1, 1],
        &[last, other],
    );
    graph.set_outputs(vec![("y".into(), y)]);
    graph
}

/// Scopes of the steps that cuDNN runs.
pub(crate) fn by_cudnn(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| step.kernel == CUDNN_CONV);
    steps.map(|step| step.scope.to_string()).collect()
}

/// Convolutions planned by cuDNN's mock without a GPU, and run by it on the driver's mock.
#[test]
fn cudnn_runs_the_planned_convolutions() {
    let test = "gpu::cudnn::cudnn_runs_the_planned_convolutions";
    let how = |math| How { cudnn: Some(math), origin: KernelOrigin::Library, ..How::default() };
    let Some(mocked) = Mocked::new(test, "gpu-cudnn", convolutions(), how(MathMode::Strict)) else { return };
    assert_eq!(by_cudnn(&mocked.plan), ["plain", "bias", "sum", "grouped", "wide", "other", "last"]);
    let behind = |scope: &str| {
        let steps = mocked.plan.steps.iter().filter(|step| step.scope.to_string() == scope);
        steps.map(|step| step.label.split(' ').next().unwrap_or_default().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        (behind("other"), behind("last")),
        (vec!["1x1".into(), "tanh".into()], vec!["1x1".into(), "relu".into()])
    );
    for step in mocked.plan.steps.iter().filter(|step| step.kernel == CUDNN_CONV) {
        // Engines with tensor cores, run-time compilation or a tebibyte of workspace are excluded.
        assert!(step.label.ends_with("engine 4"), "{}", step.label);
        let workspace = step.workspace.expect("it wants one");
        let Place::Buffer(ix) = workspace.place else { panic!("a workspace is no constant") };
        assert_eq!(mocked.plan.buffers[ix.0 as usize].tag.to_string(), format!("{}:workspace", step.scope));
        assert_eq!(workspace.size, Bytes(131));
    }
    let out = mocked.run(&[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(mocked.trace(), expected_trace(&mocked.plan));
    let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
    assert_eq!(difference(&mocked.outputs()[0], &want[0], 1e-4, 1e-4), None);
    // Planning is deterministic, and tensor cores take another engine.
    let again = Mocked::new(test, "gpu-cudnn-again", convolutions(), how(MathMode::Strict)).expect("it was built");
    assert!(again.plan == mocked.plan);
    let tf32 = Mocked::new(test, "gpu-cudnn-tf32", convolutions(), how(MathMode::Tf32)).expect("it was built");
    let first = tf32.plan.steps.iter().find(|step| step.kernel == CUDNN_CONV).expect("there is one");
    assert!(first.label.ends_with("engine 1"), "{}", first.label);

    // Every byte is audited, including workspaces that no step fills.
    let command = |words: &[&str]| {
        let out = without_libraries(&mocked.exe).args(words).env("LD_LIBRARY_PATH", &mocked.folder).output();
        let out = out.expect("it is there");
        assert!(out.status.success(), "{words:?}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let report: serde_json::Value = serde_json::from_str(&command(&["memory", "--actual", "--json"])).expect("JSON");
    assert_eq!(report["verdict"], "equal");
    let items = report["actual"]["device"].as_array().expect("there is a device");
    let library = items.iter().find(|item| item["what"] == "device: cuDNN").expect("it is told");
    assert_eq!(library["bytes"], 1 << 20);
    assert!(command(&["profile", "--warmup", "0", "--iters", "1"]).contains("cudnn_conv"));
    let described = command(&["describe"]);
    assert!(described.contains("needs        cuDNN 9.19.0 (libcudnn.so.9, and"), "{described}");
    assert!(described.contains("beside a driver for CUDA 13.0\n"), "{described}");

    // Failures are reported, and nothing leaks.
    let fails = |what: &str, variables: &[(&str, &str)], says: &[&str]| {
        let out = mocked.run(variables);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{what}: {said}");
        assert!(says.iter().all(|says| said.contains(says)) && !said.contains("panicked"), "{what}: {said}");
        assert!(!mocked.trace().contains("leaked"), "{what}: {}", mocked.trace());
    };
    for call in ["cudnnCreate", "cudnnSetStream", "cudnnBackendCreateDescriptor", "cudnnBackendFinalize"] {
        fails(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:1:2000"))], &["cuDNN", "told to fail"]);
    }
    for (call, at) in [("cudnnBackendSetAttribute", 3), ("cudnnBackendGetAttribute", 2), ("cudnnBackendExecute", 2)] {
        fails(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:{at}:2000"))], &["cuDNN", "told to fail"]);
    }
    // In the middle of a capture.
    fails("record", &[("PRESTOW_MOCK_FAIL", "cudnnBackendExecute:10:2000")], &["cuDNN"]);
    let other = [("PRESTOW_MOCK_CUDNN_VERSION", "92000")];
    fails("other", &other, &["cuDNN 9.20.0 rejected a plan of cuDNN 9.19.0", "VERSION_MISMATCH", "or without it"]);
    // A plan is specific to a driver, too.
    let later = [("PRESTOW_MOCK_VERSION", "13010")];
    let says = ["rejected a plan for another GPU or driver: `driverVer` is 13010 and was 13000", "target probe"];
    fails("driver", &later, &says);
    fails("old", &[("PRESTOW_MOCK_CUDNN_VERSION", "90800")], &["cuDNN must be 9.11 or later", "got 9.8.0"]);
    std::fs::remove_file(mocked.folder.join("libcublasLt.so.13")).expect("it was built");
    let alone = !system_has_wheels(test);
    if alone {
        fails("alone", &[], &["cannot find libcublasLt.so", "PRESTOW_CUDA_LIBS", "fetch --cudnn"]);
    }
    std::fs::remove_file(mocked.folder.join("libcudnn.so.9")).expect("it was built");
    if alone {
        fails("none", &[], &["cannot find libcudnn.so.9", "PRESTOW_CUDA_LIBS", "fetch --cudnn"]);
    }
    // In another folder, named by the environment.
    let elsewhere = again.folder.to_str().expect("it is text");
    assert!(mocked.run(&[("PRESTOW_CUDA_LIBS", elsewhere)]).status.success());
}

/// Operators between convolutions: pools, concatenations, slices, padding, and arithmetic by channel.
fn between_convolutions() -> Graph {
    let mut graph = Graph::new("between");
    let known = |graph: &mut Graph, name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(Shape::from(shape), |ix| ((ix * 37) % 19) as f32 * 0.03 - 0.25))
    };
    let x = graph.add_input("x", DType::F32, Shape::from([2, 6, 9, 10]));
    let weights = [("first", &[8, 6, 3, 3][..]), ("second", &[8, 8, 3, 3]), ("last", &[4, 13, 1, 1])];
    let [first, second, last] = weights.map(|(name, shape)| known(&mut graph, name, shape));
    let [bias, factor, rows] = [("bias", &[8][..]), ("factor", &[16, 1, 1]), ("rows", &[1, 16, 5, 1])]
        .map(|(name, shape)| known(&mut graph, name, shape));
    let mut add = |name: &str, op: ir::Op, inputs: &[ir::ValueId]| {
        graph.add1(op, inputs, types::Scope::new(name)).expect("it is accepted")
    };
    let epilogue = Epilogue { bias: true, activation: [Unary::Relu].into_iter().collect(), ..Epilogue::default() };
    let conv = |epilogue: &Epilogue, pad| Conv { epilogue: epilogue.clone(), ..Conv::square(1, pad) };
    let pool = |kind| Pool {
        kind,
        kernel: [3, 3].into_iter().collect(),
        stride: [2, 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        pad: [[1, 1]; 2].into_iter().collect(),
        ceil: false,
    };
    let a = add("a", conv(&epilogue, 1).into(), &[x, first, bias]);
    let b = add("b", conv(&epilogue, 1).into(), &[a, second, bias]);
    let largest = add("largest", pool(PoolKind::Max).into(), &[a]);
    let mean = add("mean", pool(PoolKind::MeanWithPadding).into(), &[b]);
    let both = add("both", Concat { axis: 1 }.into(), &[largest, mean]);
    let scaled = add("scaled", Binary(Function::Mul).into(), &[both, factor]);
    let moved = add("moved", Binary(Function::Add).into(), &[scaled, rows]);
    let pad = [[0, 0], [0, 0], [1, 2], [-1, 1]].into_iter().collect();
    let padded = add("padded", Pad { mode: PadMode::Constant(0.5), pad }.into(), &[moved]);
    let cut = add("cut", Slice::range(&Shape::from([2, 16, 8, 5]), 1, 3, 13).into(), &[padded]);
    let axes = [2, 3].into_iter().collect();
    let one = add("one", Reduce { kind: ReduceKind::Mean, axes, keep: true }.into(), &[cut]);
    let gated = add("gated", Binary(Function::Mul).into(), &[cut, one]);
    let y = add("y", conv(&Epilogue::default(), 0).into(), &[gated, last]);
    let y = add("tail", ir::ops::Unary(Unary::Tanh).into(), &[y]);
    graph.set_outputs(vec![("y".into(), y)]);
    graph
}

/// Convolutions on tensor cores are channels-last, and the operators between them keep that layout.
#[test]
fn half_precision_is_channels_last_for_cudnn() {
    let test = "gpu::cudnn::half_precision_is_channels_last_for_cudnn";
    let halves = HALVES.map(|dtype| (dtype, MathMode::Strict, step(dtype)));
    for (dtype, math, step) in halves.into_iter().chain([(DType::F32, MathMode::Tf32, 1.0 / 1024.0)]) {
        let mut graphs = vec![("convolutions", convolutions(), 4), ("between", between_convolutions(), 2)];
        graphs.extend(dtype.is_half().then(|| ("resnet18", network("resnet18", &[2, 3, 40, 48]), 19)));
        for (name, graph, least) in graphs {
            let how = How { cudnn: Some(math), dtype, origin: KernelOrigin::Library, ..How::default() };
            let Some(mocked) = Mocked::new(test, &format!("gpu-cudnn-{name}-{dtype}"), graph, how) else { return };
            let (plan, name) = (&mocked.plan, format!("{name}, {dtype}, {}", math.name()));
            assert!(least <= by_cudnn(plan).len(), "{name}: {:?}", by_cudnn(plan));
            let labels = || plan.steps.iter().filter(|step| step.kernel == CUDNN_CONV).map(|step| &step.label);
            assert!(labels().all(|label| label.ends_with("engine 1")), "{name}: tensor cores multiply halves exactly");
            for step in plan.steps.iter().filter(|step| step.kernel == CUDNN_CONV) {
                let workspace = step.workspace.expect("it wants one");
                assert_eq!(workspace.size, Bytes(131), "{name}: {} is turned around", step.scope);
            }
            let turned = plan.steps.iter().filter(|step| step.scope.to_string().contains("relayout")).count();
            assert!((1..=3).contains(&turned), "{name}: the input, and what the last convolution reads: {turned}");
            let out = mocked.run(&[]);
            assert!(out.status.success(), "{name}: {}", text(&out.stderr));
            assert_eq!(mocked.trace(), expected_trace(plan), "{name}");
            let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
            let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
            assert_near(&name, &mocked.outputs(), &want, 8.0 * step);
            if !name.starts_with("between") {
                continue;
            }
            let mut audit = without_libraries(&mocked.exe);
            audit.args(["memory", "--actual", "--json"]).env("LD_LIBRARY_PATH", &mocked.folder);
            let report: serde_json::Value =
                serde_json::from_slice(&audit.output().expect("it is there").stdout).expect("it is JSON");
            assert_eq!(report["verdict"], "equal", "{name}: {report}");
        }
    }
}

/// The command line, and cuDNN itself if it is installed.
#[test]
fn command_line_selects_cudnn() {
    let test = "gpu::cudnn::command_line_selects_cudnn";
    let folder = folder("gpu-cudnn-compile");
    let facts = root().join("targets/cuda-sm_90-h200.json");
    let facts = facts.to_str().expect("it is text");
    let compile = |name: &str, model: &str, words: &[&str], libraries: &Path| {
        let mut command = without_libraries(&program("prestow"));
        command.args(["compile", model]).args(words).arg("--data").arg(root().join("data"));
        command.arg("-o").arg(folder.join(name)).env("PRESTOW_CUDA_LIBS", libraries);
        let out = command.output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let refused = |words: &[&str], says: &str| {
        let (code, said) = compile("refused", "lenet", words, &folder);
        assert!(code == Some(2) && said.contains(says), "{words:?}: {said}");
    };
    refused(&["--cudnn"], "--target FILE.json");
    refused(&["--target", "cuda:sm_90", "--cudnn"], "target probe");
    refused(&["--target", facts, "--cudnn=fast"], "'fast'");
    refused(&["--target", facts, "--verbose"], "--cudnn");
    refused(&["--target", facts, "--cudnn=tf32", "--exact"], "exclude each other");
    refused(&["--target", facts, "--cudnn=tf32", "--dtype", "f16"], "rounds operands of f32");
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    if !build_cudnn(&folder) {
        return skip(test, NO_COMPILER);
    }
    let planned = ["--target", facts, "--cudnn"];
    let (code, said) = compile("all", "resnet18", &planned, &folder);
    assert!(code == Some(0) && said.contains("cuDNN 9.19.0 does 20 of 20 convolutions at batch 1"), "{said}");
    let (code, said) = compile("clipped", "mobilenet_v2", &planned, &folder);
    assert!(code == Some(0) && said.contains("cuDNN 9.19.0 does 52 of 52 convolutions"), "{said}");
    let file = folder.join("some.onnx");
    std::fs::write(&file, export::onnx(&convolutions()).expect("it can be written")).expect("the folder is ours");
    let some = file.to_str().expect("it is text");
    let (code, said) = compile("some", some, &[&planned[..], &["--verbose"]].concat(), &folder);
    assert!(code == Some(0) && said.contains("cuDNN 9.19.0 does 7 of 8 convolutions"), "{said}");
    assert!(said.contains("alone~0: cuDNN's fused engines with a residual have a bias"), "{said}");
    let (code, said) = compile("json", "lenet", &[&planned[..], &["--json", "--batch", "1,2"]].concat(), &folder);
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let cudnn = &report["cudnn"];
    assert_eq!(
        (code, cudnn["version"].as_str(), cudnn["plans"][1]["batch"].as_u64()),
        (Some(0), Some("9.19.0"), Some(2))
    );
    // Additional properties of a device description are passed on to cuDNN.
    let partial = folder.join("partial.json");
    std::fs::write(&partial, H200.replace("\"deviceName\"", "\"maxFrobs\": 1,\n    \"deviceName\""))
        .expect("it is ours");
    let (code, said) = compile("more", "lenet", &["--target", partial.to_str().expect("text"), "--cudnn"], &folder);
    assert_eq!(code, Some(0), "what else is known is handed on: {said}");

    // Under a budget, cuDNN has the spare workspace, and the fastest engine that fits into it.
    let large = |words: &[&str]| {
        let mut command = without_libraries(&program("prestow"));
        command.args(["compile", "resnet18", "--json", "-o"]).arg(folder.join("large")).args(planned).args(words);
        command.env("PRESTOW_CUDA_LIBS", &folder).env("PRESTOW_MOCK_CUDNN_ENGINES", "large");
        let out = command.arg("--data").arg(root().join("data")).output().expect("it is built");
        assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
        let image = runtime::ImageFile::open(&folder.join("large")).expect("it is an image");
        let by = |engine: &str| image.plans[0].steps.iter().filter(|step| step.label.ends_with(engine)).count();
        let refused = report["cudnn"]["plans"][0]["refused"].as_array().map_or(0, Vec::len);
        (report["arena_bytes"].as_u64().expect("it is a number"), by("engine 5"), by("engine 4"), refused)
    };
    let (arena, fast, slow, refused) = large(&[]);
    assert_eq!((fast, slow, refused), (20, 0, 0));
    let (less, fast, slow, refused) = large(&["--budget", &(arena - 1).to_string()]);
    assert!(less < arena && 0 < fast && 0 < slow && fast + slow == 20 && refused == 0, "{less} {fast} {slow}");

    // cuDNN itself.
    let nowhere = folder.join("nowhere");
    let (code, said) = compile("one", "resnet18", &planned, &nowhere);
    if said.contains("cannot find libcu") {
        assert_eq!(code, Some(2));
        return skip(test, "`cargo xtask fetch --cudnn` was not run here");
    }
    assert!(
        code == Some(0) && said.contains("does 20 of 20 convolutions at batch 1; the executable needs it"),
        "{said}"
    );
    let (code, _) = compile("two", "resnet18", &planned, &nowhere);
    assert_eq!(code, Some(0));
    let file = |name: &str| std::fs::read(folder.join(name)).expect("it is written");
    assert!(file("one") == file("two"), "the same input gives the same executable");
    // cuDNN has half-precision engines for all convolutions.
    for dtype in HALVES {
        let words = [&planned[..], &["--dtype", dtype.name(), "--json"]].concat();
        let (code, said) = compile("half", "resnet18", &words, &nowhere);
        let report: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        let share = &report["cudnn"]["plans"][0];
        assert_eq!(
            (code, share["done"].as_u64(), share["refused"].as_array().map(Vec::len)),
            (Some(0), Some(20), Some(0))
        );
    }
    let (code, said) = compile("tf32", "resnet18", &["--target", facts, "--cudnn=tf32"], &nowhere);
    assert!(code == Some(0) && file("tf32") != file("one"), "{said}");
}
