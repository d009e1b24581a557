//! Runs of executables on the driver's mock: its calls, memory, budgets and failures.

use super::*;

/// A bidirectional LSTM whose states are outputs, and a reverse GRU that needs a workspace.
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
fn driver_calls_match_the_plan() {
    let test = "gpu::runs::driver_calls_match_the_plan";
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
            // Tensor cores read a rounded copy of the initial states, which a launch of its own makes.
            let first = 2 * usize::from(dtype.is_half());
            let launches = 2 * (first + 5 + 2 * 3);
            assert_eq!(lines, launches, "a step, or two halves of one, each time: {}", mocked.trace());
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

/// The mocks of the driver and the libraries, with their kernels, under sanitizers.
#[test]
fn mocked_runs_are_clean_under_sanitizers() {
    let test = "gpu::runs::mocked_runs_are_clean_under_sanitizers";
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
        // Some libraries stay loaded, so leak detection is off.
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

/// A budget trades time for memory: regions run in stripes, and libraries get less workspace, also in half precision.
#[test]
fn budget_limits_the_arena_on_a_gpu() {
    let test = "gpu::runs::budget_limits_the_arena_on_a_gpu";
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

/// Every command of an executable, and the byte-by-byte audit of a GPU's arena.
#[test]
fn audit_on_a_gpu_matches_the_plan() {
    let test = "gpu::runs::audit_on_a_gpu_matches_the_plan";
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
    // The block has the planned size, and nothing else takes device memory.
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
    // The mock's clock advances with each launch, so the device time is that of all steps and nothing else.
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

/// A run starts from the initial state. The audit runs several times, each from the initial state.
#[test]
fn state_on_a_gpu_starts_at_its_initial_value() {
    let test = "gpu::runs::state_on_a_gpu_starts_at_its_initial_value";
    let graph = crate::state::graph(crate::state::ACCUMULATE);
    let Some(mocked) = Mocked::new(test, "gpu-state", graph, How::default()) else { return };
    let out = mocked.run(&[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut states = ir::initial_states(&mocked.graph);
    let want = ir::evaluate_run(&mocked.graph, &mocked.inputs, &mut states).expect("the inputs fit");
    assert_eq!(mocked.outputs(), want);
    let mut audit = without_libraries(&mocked.exe);
    audit.args(["memory", "--actual", "--json"]).env("LD_LIBRARY_PATH", &mocked.folder);
    let report: serde_json::Value =
        serde_json::from_slice(&audit.output().expect("it is there").stdout).expect("it is JSON");
    assert_eq!(report["verdict"], "equal", "{report}");
}

#[test]
fn driver_failures_are_reported_without_leaks() {
    let test = "gpu::runs::driver_failures_are_reported_without_leaks";
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
        // A missing kernel is named; for all other calls the message is a GPU failure.
        let says = match call {
            "cuInit" => "cannot initialize the driver",
            "cuModuleGetFunction" => "the code must have the kernel",
            _ => "the GPU failed at",
        };
        check(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:1:999"))], says);
    }
    // In the middle of the run.
    for call in ["cuCtxSetCurrent", "cuLaunchKernel", "cuStreamSynchronize"] {
        check(call, &[("PRESTOW_MOCK_FAIL", &format!("{call}:3:999"))], "the GPU failed at");
    }
    check("old", &[("PRESTOW_MOCK_VERSION", "12040")], "must support CUDA 13.0 or later, got 12.4");
    check("full", &[("PRESTOW_MOCK_MEMORY", "1000")], "free bytes, got 1000 of 1000 (other processes are unknown");
    check("refused", &[("PRESTOW_MOCK_FAIL", "cuMemAlloc_v2:1:2")], "Mock GPU refused an allocation of");
    check("code", &[("PRESTOW_MOCK_FAIL", "cuModuleLoadData:1:209")], "compile for `cuda:sm_90`");
}

/// More constants than two chunks of pinned memory: failures of the upload, and a system that cannot pin memory.
#[test]
fn constants_are_uploaded_through_pinned_memory() {
    let test = "gpu::runs::constants_are_uploaded_through_pinned_memory";
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
    // The mock detects that a chunk is filled before its copy is complete: its bytes change, and wrong weights arrive.
    let out = mocked.run(&[("PRESTOW_MOCK_EARLY", "1")]);
    let changes = mocked.trace().matches("changed while it is read").count() as u64;
    assert!(out.status.success() && changes == parts - 2, "{changes} of {parts}: {}", text(&out.stderr));
    let near = |got: &Tensor, want: &Tensor| crate::support::difference(got, want, 1e-3, 1e-3).is_none();
    assert!(!mocked.outputs().iter().zip(&want).all(|(got, want)| near(got, want)), "the wrong weights do no harm");
    // 2: out of memory; 304: error of the operating system; 800: not permitted; 801: not supported. Then the bytes are
    // copied without staging.
    for code in [2, 304, 800, 801] {
        let trace = right("plain", &[("PRESTOW_MOCK_FAIL", &format!("cuMemHostAlloc:1:{code}"))]);
        let at = mocked.plan.arena.size().align_up(Bytes(256));
        assert!(trace.contains(&format!("\nwrite {size} at {at}\n", at = at.0)) && !trace.contains("stage"), "{trace}");
        assert!(!trace.contains("leaked"), "{trace}");
    }
    // In the middle, with copies in flight.
    for (call, code, says) in [
        ("cuMemHostAlloc:1", 999, "the GPU failed at pinning memory of the host"),
        ("cuEventCreate:2", 999, "the GPU failed at making an event"),
        ("cuMemcpyHtoDAsync_v2:3", 999, "the GPU failed at copying to the device"),
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

#[test]
fn missing_driver_is_reported() {
    let test = "gpu::runs::missing_driver_is_reported";
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
    assert!(
        said(&mocked.folder, &["run", "--device", "7"]).contains("the number of the GPU must be less than 1, got 7")
    );
    assert!(said(&mocked.folder, &["run"]).contains("no code for a GPU"));
    // Commands that need no device work without a driver.
    let out = without_libraries(&mocked.exe).arg("memory").output().expect("it is there");
    assert!(out.status.success() && text(&out.stdout).contains("arena"), "{}", text(&out.stderr));
}
