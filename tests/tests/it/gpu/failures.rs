//! Each driver call that a run makes fails once, on the driver's mock.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use types::Tensor;

use crate::executables::text;
use crate::gpu::{How, Mocked, without_libraries};
use crate::support::difference;

/// The driver calls of a command: names and counts.
fn calls(mocked: &Mocked, words: &[&str]) -> Vec<(String, usize)> {
    let file = mocked.folder.join("calls");
    let out = command(mocked, words).env("PRESTOW_MOCK_CALLS", &file).output().expect("it is there");
    assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    let said = std::fs::read_to_string(&file).expect("the driver writes it");
    let row = |line: &str| {
        let (name, count) = line.split_once(' ').expect("a name and a number");
        (name.to_string(), count.parse().expect("it is a number"))
    };
    said.lines().map(row).collect()
}

fn command(mocked: &Mocked, words: &[&str]) -> std::process::Command {
    let mut command = without_libraries(&mocked.exe);
    command.args(words).env("LD_LIBRARY_PATH", &mocked.folder);
    command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace"));
    command
}

fn remove(mocked: &Mocked) {
    for port in &mocked.plan.outputs {
        let _ = std::fs::remove_file(mocked.folder.join(format!("{}.npy", port.name)));
    }
}

fn is_written(mocked: &Mocked) -> bool {
    mocked.plan.outputs.iter().any(|port| mocked.folder.join(format!("{}.npy", port.name)).exists())
}

/// Each call of a run fails once. Either the failure is reported, nothing leaks and no result is written; or the run is
/// complete, and only the release of resources failed.
#[test]
fn every_failing_call_of_a_run_is_reported() {
    let test = "gpu::failures::every_failing_call_of_a_run_is_reported";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-each-fault", graph, How::default()) else { return };
    let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
    let folder = mocked.folder.to_str().expect("it is text");
    let inputs: Vec<String> =
        mocked.plan.inputs.iter().map(|port| format!("{}={folder}/in-{}.npy", port.name, port.name)).collect();
    let mut words = vec!["run", "--output-dir", folder];
    inputs.iter().for_each(|input| words.extend(["--input", input]));
    let (mut told, mut done) = (0, 0);
    for (name, count) in calls(&mocked, &words) {
        for at in 1..=count {
            remove(&mocked);
            let fault = format!("{name}:{at}:999");
            let out = command(&mocked, &words).env("PRESTOW_MOCK_FAIL", &fault).output().expect("it is there");
            let (said, trace) = (text(&out.stderr), mocked.trace());
            assert!(!said.contains("panicked"), "{fault}: {said}");
            if out.status.success() {
                // Without its context, a release continues and leaves the rest to the context's end.
                assert_eq!(name, "cuCtxSetCurrent", "{fault} is not noticed: {said}");
                let got: Vec<Tensor> = mocked.outputs();
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(difference(got, want, 1e-4, 1e-4), None, "{fault}");
                }
                done += 1;
                continue;
            }
            assert_eq!(out.status.code(), Some(2), "{fault}: {said}");
            let says = match &*name {
                "cuInit" => "cannot initialize the driver",
                "cuModuleGetFunction" => "the code must have the kernel",
                _ => "the GPU failed at",
            };
            assert!(said.contains(says), "{fault}: {said}");
            assert!(!trace.contains("leaked"), "{fault}: {trace}");
            assert!(!is_written(&mocked), "{fault}: results are there");
            told += 1;
        }
    }
    assert!(40 < told && done < 20, "{told} are told, {done} came too late");
}

/// The same while memory is compared with the plan: a measurement that failed is never a verdict of equality.
#[test]
fn every_failing_call_of_a_measurement_is_reported() {
    let test = "gpu::failures::every_failing_call_of_a_measurement_is_reported";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-each-measured", graph, How::default()) else { return };
    let words = ["memory", "--actual", "--json"];
    let mut told = 0;
    for (name, count) in calls(&mocked, &words) {
        // Some functions are called often: fail the first calls, the last ones, and some between.
        let step = (count / 12).max(1);
        for at in (1..=count).filter(|at| *at <= 6 || count < at + 6 || at.is_multiple_of(step)) {
            let fault = format!("{name}:{at}:999");
            let out = command(&mocked, &words).env("PRESTOW_MOCK_FAIL", &fault).output().expect("it is there");
            let said = text(&out.stderr);
            assert!(!said.contains("panicked"), "{fault}: {said}");
            match out.status.code() {
                Some(0) => {
                    // Without the bus id the report lists NVML's figures as missing; a release continues without its
                    // context.
                    let optional = ["cuCtxSetCurrent", "cuDeviceGetPCIBusId"];
                    assert!(optional.contains(&name.as_str()), "{fault} is not noticed");
                }
                code => {
                    assert_eq!(code, Some(2), "{fault}: {said}{}", text(&out.stdout));
                    told += 1;
                }
            }
        }
    }
    assert!(40 < told, "{told} are told");
}

/// The same while runs are timed with the device's events.
#[test]
fn every_failing_call_of_a_bench_is_reported() {
    let test = "gpu::failures::every_failing_call_of_a_bench_is_reported";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-each-timed", graph, How::default()) else { return };
    let words = ["bench", "--warmup", "0", "--iters", "2", "--json"];
    let (calls, mut told) = (calls(&mocked, &words), 0);
    for name in ["cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime_v2"] {
        let count = calls.iter().find(|call| call.0 == name).map_or(0, |call| call.1);
        assert!(1 < count, "{name} is called {count} times");
        for at in 1..=count {
            let fault = format!("{name}:{at}:999");
            let out = command(&mocked, &words).env("PRESTOW_MOCK_FAIL", &fault).output().expect("it is there");
            let (said, trace) = (text(&out.stderr), mocked.trace());
            assert!(out.status.code() == Some(2) && said.contains("the GPU failed at"), "{fault}: {said}");
            assert!(out.stdout.is_empty() && !trace.contains("leaked"), "{fault}: {trace}");
            told += 1;
        }
    }
    assert!(8 < told, "{told} are told");
    let out = command(&mocked, &words).env("PRESTOW_MOCK_FAIL", "cuEventElapsedTime_v2:2:719").output();
    let said = text(&out.expect("it is there").stderr);
    assert!(said.contains("the GPU was lost at reading a time"), "{said}");
}

/// Error codes of the driver have messages with advice.
#[test]
fn busy_and_lost_gpus_have_their_own_errors() {
    let test = "gpu::failures::busy_and_lost_gpus_have_their_own_errors";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-lost", graph, How::default()) else { return };
    let fails = |fault: &str, says: &[&str]| {
        remove(&mocked);
        let out = mocked.run(&[("PRESTOW_MOCK_FAIL", fault)]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{fault}: {said}");
        assert!(says.iter().all(|says| said.contains(says)) && !said.contains("panicked"), "{fault}: {said}");
        assert!(!mocked.trace().contains("leaked"), "{fault}: {}", mocked.trace());
        assert!(!is_written(&mocked), "{fault}: results are there");
    };
    // Codes are those of `CUresult`. 46: another process has the device.
    fails(
        "cuDevicePrimaryCtxRetain:1:46",
        &["the GPU is unavailable at", "making a context", "stop that process", "another GPU"],
    );
    // Failures of MPS: no connection, server not ready, broken connection, too many clients.
    for (call, code) in [("cuInit", 805), ("cuInit", 807), ("cuDevicePrimaryCtxRetain", 806), ("cuInit", 808)] {
        fails(&format!("{call}:1:{code}"), &["MPS refused this process", "nvidia-cuda-mps-control"]);
    }
    // A stub library, a missing GPU or a mismatched driver fails at the first call.
    fails("cuDriverGetVersion:1:34", &["got a toolkit's stub", "`stubs` from LD_LIBRARY_PATH"]);
    fails("cuInit:1:100", &["the driver found none", "nvidia-smi -L", "--gpus all", "CUDA_VISIBLE_DEVICES"]);
    fails("cuInit:1:803", &["kernel module must have the same version", "restart the machine"]);
    fails("cuInit:1:804", &["compatibility package", "from LD_LIBRARY_PATH", "driver 580"]);
    for code in [304, 999] {
        fails(&format!("cuInit:1:{code}"), &["cannot initialize the driver", "nvidia-smi", "/dev/nvidia-uvm"]);
    }
    // Code for another architecture, and code that the driver cannot read.
    fails("cuModuleLoadData:1:209", &["another architecture than sm_90 of Mock GPU", "compile for `cuda:sm_90`"]);
    for code in [200, 222, 300] {
        let says = ["the driver for CUDA 13.0 rejected the code", "compile the model", "a newer driver"];
        fails(&format!("cuModuleLoadData:1:{code}"), &says);
    }
    for call in ["cuInit", "cuDevicePrimaryCtxRetain"] {
        fails(
            &format!("{call}:1:802"),
            &["the GPU is not ready", "wait until the system is initialized", "fabric manager"],
        );
    }
    // The driver's own allocations may not fit either.
    for (call, what) in [
        ("cuDevicePrimaryCtxRetain", "making a context"),
        ("cuModuleLoadData", "loading code"),
        ("cuGraphInstantiateWithFlags", "instantiating a CUDA graph"),
    ] {
        fails(
            &format!("{call}:1:2"),
            &["out of memory at", what, "out of memory; stop other processes", "another GPU"],
        );
    }
    // Errors that a wait reports: uncorrectable memory, a bad address, a watchdog, a failed kernel, a device that fell
    // off its bus.
    for code in [214, 700, 702, 719, 911] {
        for at in [1, 3] {
            let fault = format!("cuStreamSynchronize:{at}:{code}");
            fails(&fault, &["the GPU was lost at running kernels", "discard the results", "Xid"]);
        }
    }
    fails("cuGraphLaunch:2:719", &["the GPU was lost at launching a CUDA graph"]);
}

/// A failed call invalidates the capture, so its end yields no CUDA graph. The error names the call that failed.
#[test]
fn call_that_invalidates_a_capture_is_named() {
    let test = "gpu::failures::call_that_invalidates_a_capture_is_named";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-spoilt", graph, How::default()) else { return };
    let fails = |fault: &str, says: &str| {
        let out = mocked.run(&[("PRESTOW_MOCK_FAIL", fault)]);
        let (said, trace) = (text(&out.stderr), mocked.trace());
        assert!(out.status.code() == Some(2) && said.contains(says) && !said.contains("panicked"), "{fault}: {said}");
        assert!(!trace.contains("leaked"), "{fault}: {trace}");
    };
    // Kernels are launched first during the capture. 900: not permitted during a capture.
    for at in [1, mocked.plan.steps.len()] {
        fails(&format!("cuLaunchKernel:{at}:900"), "the GPU failed at launching a kernel");
    }
    fails("cuStreamEndCapture:1:901", "the GPU failed at ending a capture");
}

/// A lost device answers all later calls with an error. Each command ends soon with that error, wherever the loss
/// occurs.
#[test]
fn lost_gpu_ends_the_run_at_once() {
    let test = "gpu::failures::lost_gpu_ends_the_run_at_once";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-gone", graph, How::default()) else { return };
    let mut ended = 0;
    for words in [
        &["bench", "--warmup", "1", "--iters", "300"][..],
        &["memory", "--actual"],
        &["profile", "--warmup", "1", "--iters", "30"],
    ] {
        let counts = calls(&mocked, words);
        for (name, code) in [
            ("cuStreamSynchronize", 719),
            ("cuMemcpyHtoDAsync_v2", 700),
            ("cuMemcpyDtoHAsync_v2", 214),
            ("cuGraphLaunch", 719),
            ("cuLaunchKernel", 715),
            ("cuEventSynchronize", 911),
        ] {
            // In the middle of the command; not every command makes calls of each kind.
            let Some((_, count)) = counts.iter().find(|call| call.0 == name) else { continue };
            let fault = format!("{name}:{}:{code}", count.div_ceil(2));
            let mut command = command(&mocked, words);
            command.env("PRESTOW_MOCK_FAIL", &fault).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("it is there");
            // Wait for at least a minute; a command takes a fraction of a second.
            let mut looks = (0..12_000).map(|_| {
                std::thread::sleep(Duration::from_millis(5));
                child.try_wait().expect("it is ours")
            });
            let Some(status) = looks.find_map(|status| status) else {
                child.kill().expect("it is ours");
                panic!("{words:?}, {fault}: it goes on");
            };
            let (mut said, trace) = (String::new(), mocked.trace());
            child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
            assert!(trace.contains(" fails with "), "{words:?}, {fault}: {trace}");
            assert_eq!(status.code(), Some(2), "{words:?}, {fault}: {said}");
            assert!(said.contains("the GPU was lost at") && said.contains("Xid"), "{words:?}, {fault}: {said}");
            assert!(!trace.contains("leaked"), "{words:?}, {fault}: {trace}");
            ended += 1;
        }
    }
    assert!(14 <= ended, "{ended} were ended");
}
