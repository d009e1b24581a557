//! Executables for a GPU on a driver without one: `cuda/mock.cpp` has the driver's calls, the shim's kernels, and faults.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use compiler::{Model, Program, compile, write_executable};
use cuda::Launch;
use ir::Graph;
use lower::cuda::{CudaTarget, assemble};
use plan::{Module, Operand, Place, Plan};
use types::{Bytes, Tensor, npy};

use crate::executables::{folder, program, text};
use crate::support::{difference, inputs, root, skip};

/// An executable for a GPU, and the folder with its driver.
struct Mocked {
    exe: PathBuf,
    folder: PathBuf,
    plan: Plan,
    inputs: Vec<Tensor>,
    graph: Graph,
}

impl Mocked {
    /// Compiles a graph and builds a driver that has its kernels, or none after saying that `test` is skipped.
    fn new(test: &str, name: &str, graph: Graph, code: Option<Vec<u8>>) -> Option<Mocked> {
        let folder = folder(name);
        let target = CudaTarget::named("cuda:sm_90").expect("it is an architecture");
        let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
        let mut compiled = compile(model, &target, None, |_, _| {}).expect("it has kernels");
        let source = assemble([&mut compiled.plan]);
        compiled.plan.modules.extend(code.map(|code| Module { arch: "sm_90".into(), code }));
        let kernels = folder.join("kernels.inc");
        std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
        let mut build = Command::new("c++");
        // Nothing but the calls of a driver is seen from outside: other libraries have names of their own.
        let own = ["-fvisibility=hidden", "-fno-gnu-unique", "-static-libstdc++", "-static-libgcc"];
        build
            .args(["-std=c++17", "-O2", "-shared", "-fPIC"])
            .args(own)
            .arg(format!("-DKERNELS=\"{}\"", kernels.display()));
        build.arg(root().join("cuda/mock.cpp")).arg("-o").arg(folder.join("libcuda.so.1"));
        let Ok(out) = build.output() else {
            skip(test, "`c++` is not installed");
            return None;
        };
        assert!(out.status.success(), "{}", text(&out.stderr).chars().take(4000).collect::<String>());
        let (exe, plan) = (folder.join("model"), compiled.plan.clone());
        let runner = std::fs::read(program("prestow-runner")).expect("it is built");
        write_executable(&exe, &runner, &Program::join(vec![compiled])).expect("the folder is ours");
        let inputs = inputs(&graph, 3);
        for (port, tensor) in plan.inputs.iter().zip(&inputs) {
            std::fs::write(folder.join(format!("in-{}.npy", port.name)), npy::write(tensor))
                .expect("the folder is ours");
        }
        Some(Mocked { exe, folder, plan, inputs, graph })
    }

    fn run(&self, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(&self.exe);
        command.arg("run").arg("--output-dir").arg(&self.folder);
        for port in &self.plan.inputs {
            let file = self.folder.join(format!("in-{}.npy", port.name));
            command.arg("--input").arg(format!("{}={}", port.name, file.display()));
        }
        command.env("LD_LIBRARY_PATH", &self.folder).env("PRESTOW_MOCK_TRACE", self.folder.join("trace"));
        command.envs(variables.iter().copied()).output().expect("it is there")
    }

    fn trace(&self) -> String {
        std::fs::read_to_string(self.folder.join("trace")).expect("the driver writes it")
    }

    fn outputs(&self) -> Vec<Tensor> {
        let file = |name: &str| std::fs::read(self.folder.join(format!("{name}.npy"))).expect("results are written");
        self.plan.outputs.iter().map(|port| npy::read(&file(&port.name)).expect("it is an npy file")).collect()
    }
}

/// What the driver is asked for, by the plan alone.
fn expected_trace(plan: &Plan) -> String {
    let constants_at = plan.arena.size.align_up(Bytes(256));
    let place = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).expect("it lies in the arena").start,
        Place::Constant(ix) => (constants_at + plan.constants[ix.0 as usize].offset + operand.offset).0,
    };
    let mut lines = vec![
        format!("alloc {}", (constants_at + plan.constants_size).0),
        format!("write {} at {}", plan.constants_size.0, constants_at.0),
        format!("record of {}", plan.steps.len()),
    ];
    let launch = |step: &plan::Step| {
        let Launch { entry, grid: [x, y, z], block } = Launch::from_code(&step.code).expect("it was assembled");
        let places: Vec<String> =
            step.inputs.iter().chain(&step.outputs).map(|operand| place(operand).to_string()).collect();
        format!("{entry} {x} {y} {z} of {} {}", block[0], places.join(" "))
    };
    let run = || ["launch".to_string()].into_iter().chain(plan.steps.iter().map(launch));
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

fn network(name: &str, shape: &[usize]) -> Graph {
    let shapes = [("input".to_string(), types::Shape::from(shape))].into_iter().collect();
    let request = compiler::source::Request { model: name.into(), shapes, ..Default::default() };
    compiler::source::load(&request).unwrap_or_else(|error| panic!("{name}: {error}")).graph
}

#[test]
fn a_run_asks_the_driver_for_what_was_planned() {
    let test = "gpu::a_run_asks_the_driver_for_what_was_planned";
    let graphs = [
        ("squeezenet", network("squeezenet1.1", &[1, 3, 64, 64])),
        ("transformer", crate::transformers::transformer(2)),
        ("random", crate::passes_keep::random_graph(3)),
    ];
    for (name, graph) in graphs {
        let Some(mocked) = Mocked::new(test, &format!("gpu-{name}"), graph, Some(b"code".to_vec())) else { return };
        let out = mocked.run(&[]);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr));
        assert!(text(&out.stdout).contains("Mock GPU (sm_90)"), "{name}: {}", text(&out.stdout));
        assert_eq!(mocked.trace(), expected_trace(&mocked.plan), "{name}");
        let processor = crate::support::compiled(mocked.graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(&mocked.inputs).expect("the inputs fit");
        for (got, want) in mocked.outputs().iter().zip(&want) {
            let largest = want.to_f64().into_iter().fold(1e-3f64, |largest, item| largest.max(item.abs()));
            assert_eq!(difference(got, want, 0.0, 1e-3 * largest), None, "{name}");
        }
    }
}

/// Every command of an executable, and the audit of a GPU's arena byte by byte.
#[test]
fn what_a_gpu_used_is_what_was_planned() {
    let test = "gpu::what_a_gpu_used_is_what_was_planned";
    let graph = network("squeezenet1.1", &[1, 3, 32, 32]);
    let Some(mocked) = Mocked::new(test, "gpu-memory", graph, Some(b"code".to_vec())) else { return };
    let said = |words: &[&str]| {
        let out = Command::new(&mocked.exe).args(words).env("LD_LIBRARY_PATH", &mocked.folder).output();
        let out = out.expect("it is there");
        assert!(out.status.success(), "{words:?}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let report: serde_json::Value = serde_json::from_str(&said(&["memory", "--actual", "--json"])).expect("it is JSON");
    let (actual, planned) = (&report["actual"], &mocked.plan);
    assert_eq!(report["verdict"], "equal");
    assert_eq!(actual["arena_written_bytes"], actual["arena_planned_bytes"]);
    // The block is what was planned, and nothing else takes the device's memory.
    let block = planned.arena.size.align_up(Bytes(256)) + planned.constants_size;
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
}

#[test]
fn whatever_a_driver_refuses_is_told_and_given_back() {
    let test = "gpu::whatever_a_driver_refuses_is_told_and_given_back";
    let graph = crate::passes_keep::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-faults", graph, Some(b"code".to_vec())) else { return };
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
        "cuMemcpyHtoD_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuStreamBeginCapture_v2",
        "cuLaunchKernel",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuStreamSynchronize",
        "cuMemcpyDtoH_v2",
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
    check("full", &[("PRESTOW_MOCK_MEMORY", "1000")], "do not fit into Mock GPU: 1000 of 1000 are free");
    check("refused", &[("PRESTOW_MOCK_FAIL", "cuMemAlloc_v2:1:2")], "do not fit into Mock GPU");
    check("code", &[("PRESTOW_MOCK_FAIL", "cuModuleLoadData:1:209")], "--target cuda:sm_90");
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
    let Some(mocked) = Mocked::new(test, "gpu-check", graph, None) else { return };
    let report = mocked.folder.join("report.json");
    let check = |more: &[&str], fail: &str| {
        let mut command = Command::new(program("prestow"));
        command.args(["gpu-check", "lenet", "--batch", "2", "--iters", "2"]).args(more).arg("--data");
        command.arg(root().join("data")).arg("-o").arg(&report).env("LD_LIBRARY_PATH", &mocked.folder);
        let out = command.env("PRESTOW_MOCK_FAIL", fail).output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    // What there are no kernels for does not count.
    let (code, said) = check(&["dlbs/deep_speech2"], "");
    assert!(code == Some(0) && said.contains("Mock GPU (sm_90)") && said.contains("equal"), "{said}");
    assert!(said.contains("dlbs/deep_speech2") && said.contains("refused"), "{said}");
    let bytes = std::fs::read(&report).expect("it is written");
    let report: serde_json::Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let row = &report["networks"][0];
    assert_eq!((row["verdict"].as_str(), row["batch"].as_u64()), (Some("equal"), Some(2)));
    assert!(row["difference"].as_f64().is_some_and(|difference| difference < 1e-4), "{row}");
    assert!(row["gpu_ms"].as_f64().is_some_and(|ms| 0.0 < ms), "{row}");
    // Kernels that the driver does not have are a failure.
    let (code, said) = check(&["dlbs/acoustic_model"], "");
    assert!(code == Some(1) && said.contains("dlbs/acoustic_model") && said.contains("FAILED"), "{said}");
    let (code, said) = check(&[], "cuInit:1:999");
    assert!(code == Some(2) && said.contains("the GPU failed at"), "{said}");
}

#[test]
fn without_a_driver_that_is_said() {
    let test = "gpu::without_a_driver_that_is_said";
    let graph = crate::passes_keep::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-none", graph, None) else { return };
    let said = |path: &Path, words: &[&str]| {
        let out = Command::new(&mocked.exe).args(words).env("LD_LIBRARY_PATH", path).output().expect("it is there");
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
    let out = Command::new(&mocked.exe).arg("memory").output().expect("it is there");
    assert!(out.status.success() && text(&out.stdout).contains("arena"), "{}", text(&out.stderr));
}

/// A driver's facts are a file that compiling takes, where there is no driver.
#[test]
fn facts_are_recorded_and_compiled_for() {
    let test = "gpu::facts_are_recorded_and_compiled_for";
    let graph = crate::passes_keep::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-facts", graph, None) else { return };
    let (file, data) = (mocked.folder.join("mock.json"), root().join("data"));
    let prestow = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(program("prestow"));
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
    let facts = cuda::Facts::parse(&recorded).expect("it is whole");
    let device = &facts.device;
    assert_eq!((facts.source, device.multi_processor_count), (cuda::Source::Recorded, 132));
    assert_eq!((device.total_global_mem, device.max_grid_size), (200_000_000, [2_147_483_647, 65_535, 65_535]));
    assert_eq!(facts.measured, Some(cuda::Measured { context_bytes: 0, cudnn_bytes: None }));
    assert_eq!(facts.libraries["driver"], "13.0");
    let (code, said) = prestow(&["target", "record"], &[driver[0], ("PRESTOW_MOCK_FAIL", "cuDeviceTotalMem_v2:1:999")]);
    assert!(code == Some(2) && said.contains("the GPU failed at being asked for its memory"), "{said}");
    let (code, said) = prestow(&["target", "forget"], &[]);
    assert!(code == Some(2) && said.contains("target record"), "{said}");

    // Facts that are not there, or not whole.
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
    assert!(said.contains("4.00 MiB  context") && said.contains("as measured when the facts were recorded"), "{said}");
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
