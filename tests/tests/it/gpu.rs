//! Executables for a GPU on the driver's mock (`cuda/mock/cpp/driver.cpp`), which runs the shim's kernels and injects faults.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::rc::Rc;

use cases::judge::{inputs, step};
use compiler::{Model, Program, compile, write_executable};
use cuda::cudnn::Planner;
use cuda::{DeviceDescription, Launch, LibraryPaths, MathMode, STAGING_CHUNK_BYTES, StepCode};
use cuda_mock::{BuildError, Compiler, Library};
use ir::Graph;
use ir::ops::Recurrent;
use lower::cuda::assemble;
use plan::{DeviceCode, Operand, Place, Plan};
use types::recurrent::{Cell, Direction, Reset};
use types::{Bytes, DType, Tensor};
use weights::npy;

use crate::executables::{folder, program, text};
use crate::gpu_cudnn::{by_cudnn, convolutions};
use crate::half_precision::assert_near;
use crate::support::{root, skip};

/// The facts of a GPU.
pub(crate) const H200: &str = include_str!("../../../targets/cuda-sm_90-h200.json");

/// An executable for a GPU, and the folder with its driver.
pub(crate) struct Mocked {
    pub(crate) exe: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) graph: Graph,
}

/// How it is compiled, and what stands for its machine code.
pub(crate) struct How {
    pub(crate) code: Option<Vec<u8>>,
    /// With the mock of cuDNN.
    pub(crate) cudnn: Option<MathMode>,
    /// With cuBLASLt, and so much workspace for each product.
    pub(crate) cublas: Option<(MathMode, Bytes)>,
    pub(crate) dtype: DType,
    /// Emitted kernels round operands for tensor cores.
    pub(crate) rounds: bool,
    /// Part of the arena without a budget that is all there may be, in percent.
    pub(crate) budget: Option<u64>,
}

impl Default for How {
    fn default() -> How {
        How { code: Some(b"code".to_vec()), cudnn: None, cublas: None, dtype: DType::F32, rounds: false, budget: None }
    }
}

impl Mocked {
    /// Compiles a graph and builds a driver that has its kernels, or none after saying that `test` is skipped.
    pub(crate) fn new(test: &str, name: &str, graph: Graph, how: How) -> Option<Mocked> {
        let (folder, How { code, cudnn, cublas, dtype, rounds, budget }) = (folder(name), how);
        let mut target = crate::cuda::target(dtype);
        if rounds {
            target = target.rounding();
        }
        if let Some(math) = cudnn {
            if !build_cudnn(&folder) {
                skip(test, NO_COMPILER);
                return None;
            }
            let places = LibraryPaths { folders: vec![folder.clone()], ..LibraryPaths::default() };
            let facts = DeviceDescription::parse(H200).expect("it is whole");
            let planner = Planner::new(&places, &facts.device, math).expect("it takes the facts");
            target = target.with_cudnn(Rc::new(planner));
        }
        if let Some((math, workspace)) = cublas {
            if !build_mock(Library::Cublaslt, &folder) {
                skip(test, NO_COMPILER);
                return None;
            }
            target = target.with_cublas(math, Some(workspace));
        }
        let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
        let mut compiled = compile(model.clone(), &target, None, |_, _| {}).expect("it has kernels");
        if let Some(percent) = budget {
            let budget = Bytes(compiled.plan.arena.size().0 * percent / 100);
            compiled =
                compile(model, &target, Some(budget), |_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(compiled.plan.arena.size() <= budget && compiled.fit.is_some(), "{name}");
        }
        let source = assemble([&mut compiled.plan]);
        compiled.plan.modules.extend(code.map(|code| DeviceCode { arch: "sm_90".into(), code }));
        let kernels = folder.join("kernels.inc");
        std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
        if !build_driver(&folder, &kernels) {
            skip(test, NO_COMPILER);
            return None;
        }
        let (exe, plan) = (folder.join("model"), compiled.plan.clone());
        let runner = std::fs::read(program("prestow-runner")).expect("it is built");
        write_executable(&exe, &runner, &Program::join(vec![compiled])).expect("the folder is ours");
        closed(&exe);
        let inputs = inputs(&graph, 3);
        for (port, tensor) in plan.inputs.iter().zip(&inputs) {
            std::fs::write(folder.join(format!("in-{}.npy", port.name)), npy::write(tensor))
                .expect("the folder is ours");
        }
        Some(Mocked { exe, folder, plan, inputs, graph })
    }

    /// Builds driver and libraries again, under sanitizers; the sanitizer that a process has to load before them.
    fn sanitized(&self) -> Option<String> {
        let compiler = Compiler::find().expect("it built them before");
        let kernels = self.folder.join("kernels.inc");
        for library in [Library::Driver, Library::Cudnn, Library::Cublaslt] {
            // This process may have loaded the old file, so it is not overwritten.
            if std::fs::remove_file(self.folder.join(library.file_name())).is_err() {
                continue;
            }
            let path = compiler.mock(library, &self.folder, Some(&kernels), &crate::cuda::SANITIZERS);
            path.unwrap_or_else(|error| panic!("{error}"));
        }
        Some(compiler.library_path("libasan.so")?.display().to_string())
    }

    pub(crate) fn run(&self, variables: &[(&str, &str)]) -> Output {
        let mut command = without_libraries(&self.exe);
        command.arg("run").arg("--output-dir").arg(&self.folder);
        for port in &self.plan.inputs {
            let file = self.folder.join(format!("in-{}.npy", port.name));
            command.arg("--input").arg(format!("{}={}", port.name, file.display()));
        }
        command.env("LD_LIBRARY_PATH", &self.folder).env("PRESTOW_MOCK_TRACE", self.folder.join("trace"));
        command.envs(variables.iter().copied()).output().expect("it is there")
    }

    pub(crate) fn trace(&self) -> String {
        std::fs::read_to_string(self.folder.join("trace")).expect("the driver writes it")
    }

    pub(crate) fn outputs(&self) -> Vec<Tensor> {
        let file = |name: &str| std::fs::read(self.folder.join(format!("{name}.npy"))).expect("results are written");
        self.plan.outputs.iter().map(|port| npy::read(&file(&port.name)).expect("it is an npy file")).collect()
    }
}

/// Waits until an executable that was just written can be run: a child that another test began meanwhile has the file open to
/// write until it is a program of its own.
pub(crate) fn closed(exe: &Path) {
    let is_busy = || {
        let error = without_libraries(exe).arg("describe").output().err();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
    };
    (0..1000).take_while(|_| is_busy()).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(5)));
}

/// A program that sees no library of NVIDIA's by the environment of whoever runs the tests.
pub(crate) fn without_libraries(program: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in ["PRESTOW_CUDA_LIBS", "CUDA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(variable);
    }
    command.env("PYTHONUSERBASE", "/nowhere").env("PATH", "/nowhere");
    command
}

/// Whether the system's Python has libraries of NVIDIA's, after saying that what `test` does without any is skipped.
pub(crate) fn system_has_wheels(test: &str) -> bool {
    let found = LibraryPaths::of(|_| None).site.iter().any(|root| root.join("nvidia").is_dir());
    if found {
        skip(test, "the system's Python has libraries of NVIDIA's");
    }
    found
}

/// Reason for skipping a test that builds C++.
pub(crate) const NO_COMPILER: &str = "no C++ compiler is installed";

/// Calls the C++ compiler. Returns false if there is none, and panics if it rejects the source.
pub(crate) fn build(with: impl FnOnce(&Compiler) -> Result<(), BuildError>) -> bool {
    match Compiler::find().and_then(|compiler| with(&compiler)) {
        Ok(()) => true,
        Err(BuildError::NoCompiler) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Builds the mock of a library. Returns false if there is no compiler.
pub(crate) fn build_mock(library: Library, folder: &Path) -> bool {
    build(|compiler| compiler.mock(library, folder, None, &[]).map(drop))
}

/// Builds the driver's mock with kernels. Returns false if there is no compiler.
pub(crate) fn build_driver(folder: &Path, kernels: &Path) -> bool {
    build(|compiler| compiler.mock(Library::Driver, folder, Some(kernels), &[]).map(drop))
}

/// Builds a library without functions. Returns false if there is no compiler.
pub(crate) fn build_empty(library: &Path) -> bool {
    build(|compiler| compiler.shared(Path::new("/dev/null"), library, &[]))
}

/// Builds the mock of cuDNN, and of cuBLASLt, which cuDNN loads. Returns false if there is no compiler.
pub(crate) fn build_cudnn(folder: &Path) -> bool {
    build_mock(Library::Cudnn, folder) && build_mock(Library::Cublaslt, folder)
}

/// Planned with cuDNN.
pub(crate) fn with_cudnn(code: Option<Vec<u8>>) -> How {
    How { code, cudnn: Some(MathMode::Strict), ..How::default() }
}

/// Constants go through two halves of pinned memory in turn, which is given back before anything else is done.
fn staged(size: u64, at: u64) -> Vec<String> {
    let half = STAGING_CHUNK_BYTES as u64;
    let copy = |part: u64| {
        let start = part * half;
        format!("stage {} from {} at {}", half.min(size - start), part % 2 * half, at + start)
    };
    if size == 0 {
        return Vec::new();
    }
    let copies = (0..size.div_ceil(half)).map(copy);
    [format!("pin {}", size.min(2 * half))].into_iter().chain(copies).chain(["unpin".to_string()]).collect()
}

/// What the driver is asked for, by the plan alone.
pub(crate) fn expected_trace(plan: &Plan) -> String {
    let constants_at = plan.arena.size().align_up(Bytes(256));
    let place = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).expect("it lies in the arena").start,
        Place::Constant(ix) => (constants_at + plan.constants[ix.0 as usize].offset + operand.offset).0,
    };
    let works: Vec<StepCode> =
        plan.steps.iter().map(|step| StepCode::from_code(&step.code).expect("it is whole")).collect();
    let lines_of = |(step, work): (&plan::Step, &StepCode)| -> Vec<String> {
        let operands = step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
        let places: Vec<String> = operands.map(|operand| place(operand).to_string()).collect();
        match work {
            StepCode::Launch(Launch { entry, grid: [x, y, z], block, repeat }) => {
                let line = format!("{entry} {x} {y} {z} of {} {}", block[0], places.join(" "));
                match repeat {
                    Some(repeat) => (0..*repeat).map(|turn| format!("{line} turn {turn}")).collect(),
                    None => vec![line],
                }
            }
            StepCode::Cudnn(_) => vec![format!("cudnn {}", places.join(" "))],
            StepCode::Cublas(_) => vec![format!("cublaslt {}", places.join(" "))],
        }
    };
    let mut lines = vec![format!("alloc {}", (constants_at + plan.constants_size).0)];
    lines.extend(staged(plan.constants_size.0, constants_at.0));
    // A handle's own memory.
    let has = |is: fn(&StepCode) -> bool| works.iter().any(is);
    lines.extend(has(|work| matches!(work, StepCode::Cudnn(_))).then(|| format!("alloc {}", 1 << 20)));
    lines.extend(has(|work| matches!(work, StepCode::Cublas(_))).then(|| format!("alloc {}", 1 << 16)));
    // Each work of a library once before there is a record.
    let libraries = plan.steps.iter().zip(&works).filter(|(_, work)| !matches!(work, StepCode::Launch(_)));
    lines.extend(libraries.flat_map(lines_of));
    let steps = || plan.steps.iter().zip(&works).flat_map(lines_of);
    lines.push(format!("record of {}", steps().count()));
    let run = || ["launch".to_string()].into_iter().chain(steps());
    // Once when it is opened, then on the inputs.
    lines.extend(run());
    for port in &plan.inputs {
        lines.push(format!("write {} at {}", port.operand.size.0, place(&port.operand)));
    }
    lines.extend(run());
    for port in &plan.outputs {
        lines.push(format!("read {} at {}", port.operand.size.0, place(&port.operand)));
    }
    lines.join("\n") + "\n"
}

pub(crate) fn network(name: &str, shape: &[usize]) -> Graph {
    let shapes = [("input".to_string(), types::Shape::from(shape))].into_iter().collect();
    let request = compiler::source::Request { model: name.into(), shapes, ..Default::default() };
    compiler::source::load(&request).unwrap_or_else(|error| panic!("{name}: {error}")).graph
}

/// An LSTM both ways whose states are results, and a GRU from the end that needs a workspace.
fn recurrent() -> Graph {
    let mut graph = Graph::new("recurrent");
    let known = |graph: &mut Graph, name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(types::Shape::from(shape), |ix| ((ix * 29) % 23) as f32 * 0.02 - 0.2))
    };
    let input =
        |graph: &mut Graph, name: &str, shape: &[usize]| graph.add_input(name, DType::F32, types::Shape::from(shape));
    let x = input(&mut graph, "x", &[5, 2, 2 * 4 * 11]);
    let [h, c] = ["h", "c"].map(|name| input(&mut graph, name, &[2, 2, 11]));
    let gates = input(&mut graph, "gates", &[3, 2, 3 * 9]);
    let start = input(&mut graph, "start", &[1, 2, 9]);
    let (lstm_weight, gru_weight) = (known(&mut graph, "lstm", &[2, 44, 11]), known(&mut graph, "gru", &[1, 27, 9]));
    let lstm = Recurrent { cell: Cell::LSTM, direction: Direction::Bidirectional };
    let lstm = graph.add(lstm.into(), &[x, lstm_weight, h, c], types::Scope::new("lstm")).expect("it is accepted");
    let gru = Recurrent { cell: Cell::gru(Reset::BeforeProduct), direction: Direction::Reverse };
    let gru = graph.add(gru.into(), &[gates, gru_weight, start], types::Scope::new("gru")).expect("it is accepted");
    let outputs = lstm.into_iter().chain(gru).enumerate().map(|(ix, value)| (format!("y{ix}"), value));
    graph.set_outputs(outputs.collect());
    graph
}

#[test]
fn a_run_asks_the_driver_for_what_was_planned() {
    let test = "gpu::a_run_asks_the_driver_for_what_was_planned";
    let graphs = [
        ("squeezenet", network("squeezenet1.1", &[1, 3, 64, 64]), DType::F32),
        ("squeezenet-f16", network("squeezenet1.1", &[1, 3, 64, 64]), DType::F16),
        ("squeezenet-bf16", network("squeezenet1.1", &[1, 3, 64, 64]), DType::Bf16),
        ("transformer", crate::transformers::transformer(2), DType::F32),
        ("transformer-f16", crate::transformers::transformer(2), DType::F16),
        ("random", crate::pass_results::random_graph(3), DType::F32),
        ("recurrent", recurrent(), DType::F32),
        ("recurrent-bf16", recurrent(), DType::Bf16),
    ];
    for (name, graph, dtype) in graphs {
        let how = How { dtype, ..How::default() };
        let Some(mocked) = Mocked::new(test, &format!("gpu-{name}"), graph, how) else { return };
        let out = mocked.run(&[]);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr));
        assert!(text(&out.stdout).contains("Mock GPU (sm_90)"), "{name}: {}", text(&out.stdout));
        assert_eq!(mocked.trace(), expected_trace(&mocked.plan), "{name}");
        if name.starts_with("recurrent") {
            let lines = mocked.trace().lines().filter(|line| line.contains(" turn ")).count();
            assert_eq!(lines, 2 * (5 + 2 * 3), "a step, or two halves of one, each time: {}", mocked.trace());
            let mut audit = without_libraries(&mocked.exe);
            audit.args(["memory", "--actual", "--json"]).env("LD_LIBRARY_PATH", &mocked.folder);
            let report: serde_json::Value =
                serde_json::from_slice(&audit.output().expect("it is there").stdout).expect("it is JSON");
            assert_eq!(report["verdict"], "equal", "{report}");
        }
        let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
        let parts = if dtype.is_half() { 8.0 * step(dtype) } else { 1e-3 };
        assert_near(name, &mocked.outputs(), &want, parts);
    }
}

/// The driver, the libraries and the kernels in them, under sanitizers.
#[test]
fn a_run_on_mocks_is_clean_under_sanitizers() {
    let test = "gpu::a_run_on_mocks_is_clean_under_sanitizers";
    let cublas = Some((MathMode::Strict, Bytes(4096)));
    let cases = [
        ("random", crate::pass_results::random_graph(3), How::default()),
        ("recurrent", recurrent(), How { dtype: DType::F16, ..How::default() }),
        ("convolutions", convolutions(), with_cudnn(Some(b"code".to_vec()))),
        ("transformer", crate::transformers::transformer(1), How { cublas, dtype: DType::Bf16, ..How::default() }),
    ];
    for (name, graph, how) in cases {
        let Some(mocked) = Mocked::new(test, &format!("gpu-sanitized-{name}"), graph, how) else { return };
        let Some(sanitizer) = mocked.sanitized() else { return skip(test, "`c++` has no AddressSanitizer") };
        // What is loaded for good is not given back.
        let out = mocked.run(&[("LD_PRELOAD", &sanitizer), ("ASAN_OPTIONS", "detect_leaks=0")]);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr).chars().take(4000).collect::<String>());
        assert_eq!(mocked.trace(), expected_trace(&mocked.plan), "{name}");
        let failed = mocked.run(&[
            ("LD_PRELOAD", &sanitizer),
            ("ASAN_OPTIONS", "detect_leaks=0"),
            ("PRESTOW_MOCK_FAIL", "cuGraphLaunch:2:719"),
        ]);
        let said = text(&failed.stderr);
        assert!(failed.status.code() == Some(2) && said.contains("the GPU was lost"), "{name}: {said}");
    }
}

/// Less memory for more time: stretches in stripes, and libraries with less workspace, of halves as well.
#[test]
fn a_budget_is_kept_on_a_gpu() {
    let test = "gpu::a_budget_is_kept_on_a_gpu";
    let resnet = || network("resnet18", &[1, 3, 32, 32]);
    let cublas = Some((MathMode::Strict, Bytes(1 << 16)));
    let cases = [
        ("stripes", resnet(), 70, How::default()),
        ("cudnn", resnet(), 70, with_cudnn(Some(b"code".to_vec()))),
        ("cublas", crate::transformers::transformer(2), 60, How { cublas, ..How::default() }),
        ("cublas-f16", crate::transformers::transformer(2), 60, How { cublas, dtype: DType::F16, ..How::default() }),
    ];
    for (name, graph, percent, how) in cases {
        let (rough, libraries) = (how.dtype.is_half(), how.cublas.is_some());
        let how = How { budget: Some(percent), ..how };
        let Some(mocked) = Mocked::new(test, &format!("gpu-budget-{name}"), graph, how) else { return };
        let out = mocked.run(&[]);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr));
        assert_eq!(mocked.trace(), expected_trace(&mocked.plan), "{name}");
        let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
        assert_near(name, &mocked.outputs(), &want, if rough { 8.0 / 1024.0 } else { 1e-3 });
        let mut audit = without_libraries(&mocked.exe);
        audit.args(["memory", "--actual", "--json"]).env("LD_LIBRARY_PATH", &mocked.folder);
        let report: serde_json::Value =
            serde_json::from_slice(&audit.output().expect("it is there").stdout).expect("it is JSON");
        assert_eq!(report["verdict"], "equal", "{name}: {report}");
        let is_cut = mocked.plan.steps.iter().any(|step| step.scope.to_string().contains("stripe"));
        assert_eq!(is_cut, !libraries, "{name}: stripes, or workspace alone");
    }
}

/// Every command of an executable, and the audit of a GPU's arena byte by byte.
#[test]
fn what_a_gpu_used_is_what_was_planned() {
    let test = "gpu::what_a_gpu_used_is_what_was_planned";
    let graph = network("squeezenet1.1", &[1, 3, 32, 32]);
    let Some(mocked) = Mocked::new(test, "gpu-memory", graph, How::default()) else { return };
    let said = |words: &[&str]| {
        let out = without_libraries(&mocked.exe).args(words).env("LD_LIBRARY_PATH", &mocked.folder).output();
        let out = out.expect("it is there");
        assert!(out.status.success(), "{words:?}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let report: serde_json::Value = serde_json::from_str(&said(&["memory", "--actual", "--json"])).expect("it is JSON");
    let (actual, planned) = (&report["actual"], &mocked.plan);
    assert_eq!(report["verdict"], "equal");
    assert_eq!(actual["arena_written_bytes"], actual["arena_planned_bytes"]);
    // The block is what was planned, and nothing else takes the device's memory.
    let block = planned.arena.size().align_up(Bytes(256)) + planned.constants_size;
    let item = |what: &str| {
        let items = actual["device"].as_array().expect("there is a device");
        items.iter().find(|item| item["what"] == format!("device: {what}")).expect("it is told")["bytes"].clone()
    };
    assert_eq!(item("arena and constants"), block.0);
    assert_eq!((item("code and records"), item("runs")), (0.into(), 0.into()));
    assert!(said(&[]).contains("Mock GPU (sm_90)"));
    assert!(said(&["memory", "--actual"]).contains("device: arena and constants"));
    assert!(said(&["bench", "--warmup", "1", "--iters", "2"]).contains("latency"));
    assert!(said(&["profile", "--warmup", "0", "--iters", "1"]).contains("cuda_conv"));
    // The driver's clock goes on with what it runs: a device's time is that of all steps, and of nothing else.
    let bench = ["bench", "--warmup", "0", "--iters", "3"];
    let report: serde_json::Value =
        serde_json::from_str(&said(&[&bench[..], &["--json"]].concat())).expect("it is JSON");
    let launches: u32 = planned.steps.iter().map(|step| crate::cuda::launch(&step.code).repeat.unwrap_or(1)).sum();
    let steps = f64::from(launches) * 0.25;
    assert_eq!(["min", "p50", "p90", "mean"].map(|field| report["device_ms"][field].as_f64()), [Some(steps); 4]);
    assert!(report["latency_ms"]["p50"].as_f64().is_some_and(|ms| 0.0 < ms), "{report}");
    let line = format!("device ms    min {steps:.3}  p50 {steps:.3}");
    assert!(said(&bench).contains(&line), "{}", said(&bench));
}

#[test]
fn whatever_a_driver_refuses_is_told_and_given_back() {
    let test = "gpu::whatever_a_driver_refuses_is_told_and_given_back";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-faults", graph, How::default()) else { return };
    let calls = [
        "cuDriverGetVersion",
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuEventCreate",
        "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",
        "cuEventRecord",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuStreamBeginCapture_v2",
        "cuLaunchKernel",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuStreamSynchronize",
        "cuMemcpyDtoHAsync_v2",
    ];
    let check = |what: &str, variables: &[(&str, &str)], says: &str| {
        for port in &mocked.plan.outputs {
            let _ = std::fs::remove_file(mocked.folder.join(format!("{}.npy", port.name)));
        }
        let out = mocked.run(variables);
        let said = text(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(says) && !said.contains("panicked"), "{what}: {said}");
        let trace = mocked.trace();
        assert!(!trace.contains("leaked"), "{what}: {trace}");
        let written = mocked.plan.outputs.iter().any(|port| mocked.folder.join(format!("{}.npy", port.name)).exists());
        assert!(!written, "{what}: results are there");
    };
    for call in calls {
        // A kernel that is not there is named; everything else is what the GPU failed at.
        let says = if call == "cuModuleGetFunction" { "has no kernel" } else { "the GPU failed at" };
        check(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:1:999"))], says);
    }
    // In the middle of the work.
    for call in ["cuCtxSetCurrent", "cuLaunchKernel", "cuStreamSynchronize"] {
        check(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:3:999"))], "the GPU failed at");
    }
    check("old", &[("PRESTOW_MOCK_VERSION", "12040")], "for CUDA 12.4");
    check(
        "full",
        &[("PRESTOW_MOCK_MEMORY", "1000")],
        "do not fit into Mock GPU: 1000 of 1000 are free (who holds the rest",
    );
    check("refused", &[("PRESTOW_MOCK_FAIL", "cuMemAlloc_v2:1:2")], "Mock GPU does not give");
    check("code", &[("PRESTOW_MOCK_FAIL", "cuModuleLoadData:1:209")], "--target cuda:sm_90");
}

/// More constants than both halves of what is pinned: what may fail there, and a system that pins nothing.
#[test]
fn constants_go_through_pinned_memory() {
    let test = "gpu::constants_go_through_pinned_memory";
    let graph = network("squeezenet1.1", &[1, 3, 32, 32]);
    let Some(mocked) = Mocked::new(test, "gpu-staged", graph, How::default()) else { return };
    let (size, parts) =
        (mocked.plan.constants_size.0, mocked.plan.constants_size.0.div_ceil(STAGING_CHUNK_BYTES as u64));
    assert!(4 < parts, "each half is filled again: {size}");
    let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
    let right = |what: &str, variables: &[(&str, &str)]| {
        let out = mocked.run(variables);
        assert!(out.status.success(), "{what}: {}", text(&out.stderr));
        assert_near(what, &mocked.outputs(), &want, 1e-3);
        mocked.trace()
    };
    assert_eq!(right("staged", &[]), expected_trace(&mocked.plan));
    // Who fills a half again without waiting for what is behind it is seen: bytes change under the GPU, and others arrive.
    let out = mocked.run(&[("PRESTOW_MOCK_EARLY", "1")]);
    let changes = mocked.trace().matches("changed while it is read").count() as u64;
    assert!(out.status.success() && changes == parts - 2, "{changes} of {parts}: {}", text(&out.stderr));
    let near = |got: &Tensor, want: &Tensor| crate::support::difference(got, want, 1e-3, 1e-3).is_none();
    assert!(!mocked.outputs().iter().zip(&want).all(|(got, want)| near(got, want)), "the wrong weights do no harm");
    // 2: no memory, 304: the system refuses, 800: not permitted, 801: not supported. Then bytes go as they are.
    for code in [2, 304, 800, 801] {
        let trace = right("plain", &[("PRESTOW_MOCK_FAIL", &format!("cuMemHostAlloc:1:{code}"))]);
        let at = mocked.plan.arena.size().align_up(Bytes(256));
        assert!(trace.contains(&format!("\nwrite {size} at {at}\n", at = at.0)) && !trace.contains("stage"), "{trace}");
        assert!(!trace.contains("leaked"), "{trace}");
    }
    // In the middle, with copies on their way.
    for (call, code, says) in [
        ("cuMemHostAlloc:1", 999, "the GPU failed at pinning memory of the host"),
        ("cuEventCreate:2", 999, "the GPU failed at making an event"),
        ("cuMemcpyHtoDAsync_v2:3", 999, "the GPU failed at taking bytes"),
        ("cuEventRecord:3", 999, "the GPU failed at recording an event"),
        ("cuEventSynchronize:1", 999, "the GPU failed at waiting for an event"),
        ("cuEventSynchronize:2", 719, "the GPU was lost at waiting for an event"),
    ] {
        let out = mocked.run(&[("PRESTOW_MOCK_FAIL", &format!("{call}:{code}"))]);
        let (said, trace) = (text(&out.stderr), mocked.trace());
        assert!(out.status.code() == Some(2) && said.contains(says), "{call}: {said}");
        assert!(!trace.contains("leaked") && !trace.contains("while it is read"), "{call}: {trace}");
    }
}

/// `prestow gpu-check` on a driver without a GPU.
#[test]
fn networks_are_checked_by_one_command() {
    let test = "gpu::networks_are_checked_by_one_command";
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let Some(mocked) = Mocked::new(test, "gpu-check", graph, How { code: None, ..How::default() }) else { return };
    let report = mocked.folder.join("report.json");
    let check = |more: &[&str], fail: &str| {
        let mut command = without_libraries(&program("prestow-gpu-check"));
        command.args(["lenet", "--batch", "2", "--iters", "2"]).args(more).args(["--peers", "none"]);
        if !more.contains(&"--dtype") {
            command.args(["--dtype", "f32"]);
        }
        command.arg("--data");
        command.arg(root().join("data")).arg("-o").arg(&report).env("LD_LIBRARY_PATH", &mocked.folder);
        let out = command.env("PRESTOW_MOCK_FAIL", fail).output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    // What there are no kernels for does not count.
    let (code, said) = check(&["nonesuch"], "");
    assert!(code == Some(0) && said.contains("Mock GPU (sm_90)") && said.contains("equal"), "{said}");
    assert!(said.contains("nonesuch") && said.contains("refused"), "{said}");
    let bytes = std::fs::read(&report).expect("it is written");
    let report: serde_json::Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let row = &report["networks"][0];
    assert_eq!((row["verdict"].as_str(), row["batch"].as_u64()), (Some("equal"), Some(2)));
    assert_eq!((row["dtype"].as_str(), &report["dtypes"]), (Some("f32"), &serde_json::json!(["f32"])));
    let items = row["device_memory"].as_array().expect("a list");
    let seen = items.iter().find(|item| item["what"] == "device: arena and constants").expect("it is told");
    assert_eq!(row["block_bytes"], seen["bytes"], "{row}");
    assert!(row["device_ms"]["p50"].as_f64().is_some_and(|ms| 0.0 < ms), "{row}");
    assert!(row["difference"].as_f64().is_some_and(|difference| difference < 1e-4), "{row}");
    assert!(row["gpu_ms"].as_f64().is_some_and(|ms| 0.0 < ms), "{row}");
    // Several numbers in one run have a row each. Of halves the driver has no kernels here.
    let (code, said) = check(&["--dtype", "f32,bf16"], "");
    let row = |dtype: &str| {
        let line = said.lines().find(|line| line.starts_with("lenet") && line.split_whitespace().nth(2) == Some(dtype));
        line.unwrap_or_else(|| panic!("{said}"))
    };
    assert!(code == Some(1) && row("f32").ends_with("equal") && row("bf16").contains("FAILED"), "{said}");
    // Kernels that the driver does not have are a failure.
    let (code, said) = check(&["dlbs/acoustic_model"], "");
    assert!(code == Some(1) && said.contains("dlbs/acoustic_model") && said.contains("FAILED"), "{said}");
    let (code, said) = check(&[], "cuInit:1:999");
    assert!(code == Some(2) && said.contains("the GPU failed at"), "{said}");
}

/// The same with convolutions of cuDNN's, planned by the facts of the GPU that is there.
#[test]
fn networks_are_checked_with_cudnn() {
    let test = "gpu::networks_are_checked_with_cudnn";
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let Some(mocked) = Mocked::new(test, "gpu-check-cudnn", graph, with_cudnn(None)) else { return };
    let mut command = without_libraries(&program("prestow-gpu-check"));
    command
        .args(["lenet", "--batch", "2", "--iters", "2", "--cudnn", "--dtype", "f32", "--peers", "none", "--data"])
        .arg(root().join("data"));
    command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_CUDA_LIBS", &mocked.folder);
    let out = command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace")).output().expect("it is built");
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success() && said.contains("cuDNN 9.19.0") && said.contains("equal"), "{said}");
    assert!(!by_cudnn(&mocked.plan).is_empty() && mocked.trace().contains("\ncudnn "), "{}", mocked.trace());
}

#[test]
fn without_a_driver_that_is_said() {
    let test = "gpu::without_a_driver_that_is_said";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-none", graph, How { code: None, ..How::default() }) else { return };
    let said = |path: &Path, words: &[&str]| {
        let out =
            without_libraries(&mocked.exe).args(words).env("LD_LIBRARY_PATH", path).output().expect("it is there");
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let nowhere = mocked.folder.join("nowhere");
    if Path::new("/dev/nvidiactl").exists() {
        skip(test, "this machine has a driver");
        return;
    }
    assert!(said(&nowhere, &["run"]).contains("libcuda.so.1"));
    assert!(said(&mocked.folder, &["run", "--device", "7"]).contains("there is no GPU 7; the driver has 1"));
    assert!(said(&mocked.folder, &["run"]).contains("no code for a GPU"));
    // What needs no device works without one.
    let out = without_libraries(&mocked.exe).arg("memory").output().expect("it is there");
    assert!(out.status.success() && text(&out.stdout).contains("arena"), "{}", text(&out.stderr));
}

/// A driver's facts are a file that compiling takes, where there is no driver.
#[test]
fn facts_are_recorded_and_compiled_for() {
    let test = "gpu::facts_are_recorded_and_compiled_for";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-facts", graph, with_cudnn(None)) else { return };
    let file = mocked.folder.join("mock.json");
    let prestow = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = without_libraries(&program("prestow"));
        // Where there is a driver, there is the cuDNN that works on it, and no other.
        let data = if variables.is_empty() { root().join("data") } else { mocked.folder.join("data") };
        let out = command.args(words).arg("--data").arg(&data).envs(variables.iter().copied()).output();
        let out = out.expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let library = mocked.folder.to_str().expect("it is text");
    let driver = [("LD_LIBRARY_PATH", library), ("PRESTOW_MOCK_MEMORY", "200000000")];
    let path = file.to_str().expect("it is text");
    let (code, said) = prestow(&["target", "record", "-o", path], &driver);
    assert!(code == Some(0) && said.contains("Mock GPU (sm_90), recorded from the device"), "{said}");
    let recorded = std::fs::read_to_string(&file).expect("it is written");
    assert_eq!(prestow(&["target", "record"], &driver), (Some(0), recorded.clone()));
    let facts = DeviceDescription::parse(&recorded).expect("it is whole");
    let device = &facts.device;
    assert_eq!((facts.source, device.multi_processor_count), (cuda::DescriptionSource::Recorded, 132));
    assert_eq!((device.total_global_mem, device.max_grid_size), (200_000_000, [2_147_483_647, 65_535, 65_535]));
    let taken = cuda::MeasuredMemory { context_bytes: 0, cudnn_bytes: Some(1 << 20), cublas_bytes: Some(1 << 16) };
    assert_eq!(facts.measured, Some(taken));
    let versions = ["driver", "cudnn", "cublaslt"].map(|library| &facts.libraries[library][..]);
    assert_eq!(versions, ["13.0", "9.19.0", "13.1.0"]);
    // A library that does not work is said, and the others' facts are written.
    for (call, name, left) in [("cudnnCreate", "cuDNN", "cublaslt"), ("cublasLtCreate", "cuBLASLt", "cudnn")] {
        let other = mocked.folder.join("other.json");
        let words = ["target", "record", "-o", other.to_str().expect("it is text")];
        let (code, said) = prestow(&words, &[driver[0], ("PRESTOW_MOCK_FAIL", &format!("{call}:1:14"))]);
        let note = format!("note: no facts of {name}: {name} failed at its start");
        assert!(code == Some(0) && said.contains(&note), "{call}: {said}");
        let facts =
            DeviceDescription::parse(&std::fs::read_to_string(&other).expect("it is written")).expect("it is whole");
        let libraries: Vec<&str> = facts.libraries.keys().map(|name| &name[..]).collect();
        let known = libraries.iter().filter(|name| ["cudnn", "cublaslt"].contains(*name));
        assert_eq!(known.collect::<Vec<_>>(), [&left], "{call}");
    }
    let (code, said) = prestow(&["target", "record"], &[driver[0], ("PRESTOW_MOCK_FAIL", "cuDeviceTotalMem_v2:1:999")]);
    assert!(code == Some(2) && said.contains("the GPU failed at being asked for its memory"), "{said}");
    let (code, said) = prestow(&["target", "forget"], &[]);
    assert!(code == Some(2) && said.contains("'forget'"), "{said}");

    // DeviceDescription that are not there, or not whole.
    let out = mocked.folder.join("lenet");
    let compile = |target: &str, more: &[&str]| {
        let words = ["compile", "lenet", "--target", target, "-o", out.to_str().expect("it is text")];
        prestow(&[&words, more].concat(), &[])
    };
    let (code, said) = compile("nowhere.json", &[]);
    assert!(code == Some(2) && said.contains("nowhere.json") && said.contains("target record"), "{said}");
    let broken = mocked.folder.join("broken.json");
    std::fs::write(&broken, recorded.replace("maxCtasPerSM", "maxBlocks")).expect("the folder is ours");
    let (code, said) = compile(broken.to_str().expect("it is text"), &[]);
    assert!(code == Some(2) && said.contains("broken.json") && said.contains("`maxCtasPerSM`"), "{said}");
    std::fs::write(&broken, recorded.replace("sm_90", "sm_70").replace(": 900", ": 700")).expect("the folder is ours");
    let (code, said) = compile(broken.to_str().expect("it is text"), &[]);
    assert!(code == Some(2) && said.contains("no kernels for sm_70") && said.contains("cuda:sm_90"), "{said}");

    // Whole ones.
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let measured = recorded.replace("\"context_bytes\": 0", "\"context_bytes\": 4194304");
    std::fs::write(&file, measured).expect("the folder is ours");
    let (code, said) = compile(path, &[]);
    assert!(code == Some(0) && said.contains("lenet for cuda:sm_90") && said.contains("on Mock GPU: "), "{said}");
    assert!(said.contains("4.00 MiB  context") && said.contains("as measured for the description"), "{said}");
    assert!(!said.contains("cuDNN"), "{said}");
    let (code, said) = compile(path, &["--cudnn"]);
    assert!(code == Some(0) || said.contains("cannot load libcu"), "{said}");
    assert!(code != Some(0) || said.contains("1.00 MiB  cuDNN: outside the plan"), "{said}");
    let own = root().join("targets/cuda-sm_90-h200.json");
    let (code, said) = compile(own.to_str().expect("it is text"), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let planned = report["arena_bytes"].as_u64().map(|arena| Bytes(arena).align_up(Bytes(256)).0);
    assert_eq!(
        report["device"]["planned_bytes"].as_u64(),
        planned.zip(report["weights_bytes"].as_u64()).map(|(a, b)| a + b)
    );
    assert_eq!((code, report["device"]["source"].as_str()), (Some(0), Some("from the data sheet, not recorded")));
    // A plan that the device has no room for.
    let (code, said) = compile(path, &["--batch", "16384"]);
    assert!(code == Some(2) && said.contains("Mock GPU has 190.73 MiB") && said.contains("smaller --batch"), "{said}");
}
