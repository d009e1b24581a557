//! Device memory by process, from NVML's mock next to the driver's mock.

use std::process::Command;

use bench_suite::experiment::Journal;
use cuda_mock::Library;
use serde_json::Value as Json;
use types::Bytes;

use crate::executables::{folder, program, text};
use crate::gpu::{How, Mocked, NO_COMPILER, build_empty, build_mock, without_libraries};
use crate::support::skip;

/// Bytes of the mock's context, and bytes that the mock's driver reserves.
const CONTEXT: u64 = 300 << 20;
const RESERVED: u64 = 5 << 20;

/// An executable with NVML's mock next to its driver. Returns `None` after reporting that `test` is skipped.
fn mocked(test: &str, name: &str) -> Option<Mocked> {
    let mocked = Mocked::new(test, name, crate::pass_results::random_graph(5), How::default())?;
    if !build_mock(Library::Nvml, &mocked.folder) {
        skip(test, NO_COMPILER);
        return None;
    }
    Some(mocked)
}

/// Returns the output of `memory --actual` after a check of the driver's trace.
fn said(mocked: &Mocked, words: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = without_libraries(&mocked.exe);
    command.args(["memory", "--actual"]).args(words).env("LD_LIBRARY_PATH", &mocked.folder);
    command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace")).envs(variables.iter().copied());
    let out = command.output().expect("it is there");
    // Figures that NVML lacks do not make plan and actual differ.
    assert!(out.status.success(), "{variables:?}: {}{}", text(&out.stdout), text(&out.stderr));
    assert!(!mocked.trace().contains("leaked"), "{variables:?}: {}", mocked.trace());
    text(&out.stdout)
}

fn actual(mocked: &Mocked, variables: &[(&str, &str)]) -> Json {
    let report: Json = serde_json::from_str(&said(mocked, &["--json"], variables)).expect("it is JSON");
    assert_eq!(report["verdict"], "equal", "{report}");
    report["actual"].clone()
}

fn bytes(actual: &Json, what: &str) -> Option<u64> {
    let rows = actual["device_processes"].as_array()?;
    rows.iter().find(|row| row["what"].as_str().is_some_and(|text| text.starts_with(what)))?["bytes"].as_u64()
}

/// The figures that NVML does not report. The row of CUPTI, which is missing too, is left out.
fn untold(actual: &Json) -> Vec<String> {
    let rows = actual["device_unavailable"].as_array().cloned().unwrap_or_default();
    let rows = rows.iter().map(|row| format!("{}: {}", row["what"], row["why"]));
    rows.filter(|row| !row.contains("allocations in a run")).collect()
}

#[test]
fn memory_by_process_is_reported() {
    let test = "gpu::nvml::memory_by_process_is_reported";
    let Some(mocked) = mocked(test, "gpu-nvml") else { return };
    let block = (mocked.plan.arena.size().align_up(Bytes(256)) + mocked.plan.constants_size).0;
    let own = actual(&mocked, &[]);
    assert_eq!(bytes(&own, "memory of this process"), Some(block + CONTEXT));
    assert_eq!(bytes(&own, "context, libraries and code of this process"), Some(CONTEXT));
    assert_eq!(bytes(&own, "in use by all processes"), Some(block + CONTEXT));
    assert_eq!(bytes(&own, "kept by driver 580.65.06"), Some(RESERVED));
    assert_eq!(untold(&own), [""; 0]);
    // Other processes, one of them with a hidden size.
    let others = actual(&mocked, &[("PRESTOW_MOCK_NVML", "4711:1000,self:500000000,12:2345,13:-1")]);
    assert_eq!(bytes(&others, "memory of this process"), Some(500_000_000));
    assert_eq!(bytes(&others, "memory of 2 other processes"), Some(3345));
    assert_eq!(untold(&others), ["\"memory of 1 other process\": \"the platform does not let NVML report it\""]);
    // More processes than fit into the first list.
    let many: Vec<String> = (1..=300).map(|pid| format!("{}:10", pid + 5_000_000)).collect();
    let many = actual(&mocked, &[("PRESTOW_MOCK_NVML", &many.join(","))]);
    assert_eq!(bytes(&many, "memory of 300 other processes"), Some(3000));
    let words = said(&mocked, &["--view", "actual"], &[]);
    assert!(words.contains("on the device, as its management counts processes:"), "{words}");
    assert!(words.contains("memory of this process (NVML,"), "{words}");
}

#[test]
fn hidden_figures_are_reported_with_the_reason() {
    let test = "gpu::nvml::hidden_figures_are_reported_with_the_reason";
    let Some(mocked) = mocked(test, "gpu-nvml-hidden") else { return };
    let hidden = |variables: &[(&str, &str)], why: &str| {
        let actual = actual(&mocked, variables);
        let untold = untold(&actual);
        assert!(untold[0].contains("memory of this process") && untold[0].contains(why), "{untold:?}");
        assert_eq!(bytes(&actual, "memory of this process"), None, "{variables:?}");
        let words = said(&mocked, &["--view", "actual"], variables);
        assert!(words.contains("unavailable  memory of this process"), "{words}");
    };
    hidden(&[("PRESTOW_MOCK_NVML", "")], "a container or a virtual machine hides them");
    hidden(&[("PRESTOW_MOCK_NVML", "1:77")], "lists 1 process but not this one");
    hidden(&[("PRESTOW_MOCK_NVML", "self:-1")], "the platform does not report it");
    for (call, what) in [
        ("nvmlInit_v2", "initialization"),
        ("nvmlDeviceGetHandleByPciBusId_v2", "finding the GPU"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "listing processes"),
    ] {
        let why = format!("NVML failed at {what}: Insufficient Permissions");
        hidden(&[("PRESTOW_MOCK_FAIL", &format!("{call}:1:4"))], &why);
    }
    // A function that fails hides no figure of another function.
    let block = (mocked.plan.arena.size().align_up(Bytes(256)) + mocked.plan.constants_size).0;
    let (own, used) = ("memory of this process", "in use by all processes");
    for (call, what, rows, left) in [
        ("nvmlDeviceGetMemoryInfo_v2", "telling the GPU's memory", &[used][..], &[own][..]),
        (
            "nvmlSystemGetDriverVersion",
            "telling the driver",
            &["the driver's version"],
            &[own, used, "kept by the driver"],
        ),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "listing processes", &[own, "memory of other processes"], &[used]),
    ] {
        let actual = actual(&mocked, &[("PRESTOW_MOCK_FAIL", &format!("{call}:1:4"))]);
        let (untold, why) = (untold(&actual), format!("NVML failed at {what}: Insufficient Permissions"));
        assert_eq!(untold.len(), rows.len(), "{call}: {untold:?}");
        for (row, untold) in rows.iter().zip(&untold) {
            assert!(untold.contains(row) && untold.contains(&why), "{call}: {untold}");
        }
        for what in left {
            assert!(
                bytes(&actual, what).is_some_and(|bytes| *what != own || bytes == block + CONTEXT),
                "{call}: {what}"
            );
        }
    }
    hidden(&[("PRESTOW_MOCK_FAIL", "cuDeviceGetPCIBusId:1:999")], "the GPU failed at reading its bus address");
    std::fs::remove_file(mocked.folder.join("libnvidia-ml.so.1")).expect("it was built");
    if build_empty(&mocked.folder.join("libnvidia-ml.so.1")) {
        hidden(&[], "must have the function `nvmlInit_v2`");
    }
    std::fs::remove_file(mocked.folder.join("libnvidia-ml.so.1")).expect("it was built");
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return skip(test, "this machine has a driver");
    }
    hidden(&[], "libnvidia-ml.so.1 of the driver was not found");
}

/// A plan that does not fit is refused before any allocation, with the required bytes, the free bytes and the processes
/// that hold the rest.
#[test]
fn out_of_memory_names_other_processes() {
    let test = "gpu::nvml::out_of_memory_names_other_processes";
    let Some(mocked) = mocked(test, "gpu-nvml-full") else { return };
    let block = (mocked.plan.arena.size().align_up(Bytes(256)) + mocked.plan.constants_size).0;
    let full = |variables: &[(&str, &str)], says: &str| {
        let out = mocked.run(&[&[("PRESTOW_MOCK_MEMORY", "1000")], variables].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        let needed = format!("Mock GPU must have {block} free bytes, got 1000 of 1000 (");
        assert!(said.contains(&needed) && said.contains(says) && !said.contains("panicked"), "{said}");
        assert!(!mocked.trace().contains("alloc") && !mocked.trace().contains("leaked"), "{}", mocked.trace());
    };
    let held = [("PRESTOW_MOCK_NVML", "12:200,4711:700,13:-1")];
    full(&held, "process 4711 uses 700, process 12 uses 200); stop other processes, or use a smaller batch");
    // This process is not among the processes to stop.
    full(&[("PRESTOW_MOCK_NVML", "self:300,4711:700")], "got 1000 of 1000 (process 4711 uses 700);");
    full(&[("PRESTOW_MOCK_NVML", "")], "NVML lists no other process for the 0 bytes in use");
    full(
        &[("PRESTOW_MOCK_FAIL", "nvmlDeviceGetComputeRunningProcesses_v3:1:4")],
        "other processes are unknown: NVML failed at listing processes",
    );
    full(&[("PRESTOW_MOCK_FAIL", "nvmlInit_v2:1:4")], "other processes are unknown: NVML failed at initialization");
}

/// The monitor of an experiment, without a driver.
#[test]
fn experiments_monitor_gpus() {
    let test = "gpu::nvml::experiments_monitor_gpus";
    let folder = folder("gpu-monitor");
    if !build_mock(Library::Nvml, &folder) {
        return skip(test, NO_COMPILER);
    }
    let file = folder.join("grid.toml");
    let grid = "[parameters]\n\"exp.command\" = \"sleep 0.6; echo __results.time__=1\"\n\"monitor.frequency\" = 20\n";
    std::fs::write(&file, grid).expect("it is writable");
    let run = |name: &str, variables: &[(&str, &str)]| {
        let output = folder.join(name);
        let mut command = Command::new(program("prestow"));
        command.args(["experiment", "run"]).arg(&file).arg("-o").arg(&output);
        let out = command.env("PRESTOW_CUDA_LIBS", &folder).envs(variables.iter().copied()).output().expect("it runs");
        assert!(out.status.success(), "{}", text(&out.stderr));
        let results = Journal::read(&output.join("results.jsonl")).expect("it is there");
        (results[0].values.clone(), text(&out.stderr))
    };
    let (values, said) = run("mocked", &[]);
    assert!(!said.contains("GPUs are not monitored"), "{said}");
    let series = |key: &str| values[&format!("results.use.{key}")].as_array().cloned().unwrap_or_default();
    let (percents, watts) = (series("gpu_percent"), series("gpu_watts"));
    assert!(2 <= percents.len() && percents.len() == series("seconds").len(), "{percents:?}");
    assert_eq!((&percents[1], &watts[1]), (&serde_json::json!([20.0]), &serde_json::json!([120.0])));
    assert_eq!(series("gpu_bytes")[0], serde_json::json!([CONTEXT]));
    assert_eq!(series("gpu_names"), ["Mock GPU"]);
    // A figure that fails hides no other one.
    let (values, _) = run("hidden", &[("PRESTOW_MOCK_FAIL", "nvmlDeviceGetPowerUsage:1:4")]);
    assert_eq!(values["results.use.gpu_watts"][0], serde_json::json!([null]));
    assert!(values["results.use.gpu_percent"][0][0].is_number());
    for (name, variable, why) in [
        (
            "failing",
            ("PRESTOW_MOCK_FAIL", "nvmlInit_v2:1:4"),
            "NVML failed at initialization: Insufficient Permissions",
        ),
        ("none", ("PRESTOW_MOCK_NVML_GPUS", "0"), "NVML failed at finding a GPU: the machine has none"),
    ] {
        let (values, said) = run(name, &[variable]);
        assert!(said.contains(&format!("note: GPUs are not monitored: {why}")), "{said}");
        // Only the first initialization fails; the monitor's is the second.
        if name == "none" {
            assert_eq!(values["results.use.gpu_status"], why);
        }
    }
}
