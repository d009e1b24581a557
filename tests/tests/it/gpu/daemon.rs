//! Executables whose weights a daemon has in memory of a GPU, on the driver's mock.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ir::Graph;
use serde_json::Value as Json;

use super::{How, Mocked, network};
use crate::executables::{output_of, program, text};

fn lenet() -> Graph {
    network("lenet", &[1, 1, 28, 28])
}

/// A daemon as a process with the driver's mock.
struct Daemon(Child);

impl Daemon {
    fn start(mocked: &Mocked, socket: &Path, arguments: &[&str]) -> Daemon {
        let mut command = uprd(mocked, socket, &["serve", "--budget", "64MiB"]);
        let child = command.args(arguments).stdin(Stdio::null()).spawn().expect("it is built");
        for _ in 0..5000 {
            if share::Client::connect(socket, true).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Daemon(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn uprd(mocked: &Mocked, socket: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program("uprd"));
    command.arg("--socket").arg(socket).args(words).env("LD_LIBRARY_PATH", &mocked.folder);
    command.env("PRESTOW_MOCK_DEVICES", "2");
    command
}

fn run(mocked: &Mocked, socket: &Path, words: &[&str], variables: &[(&str, &str)]) -> Json {
    let mut command = Command::new(&mocked.exe);
    command.args(["run", "--json", "--values", "all"]).args(words).env("UPRD_SOCKET", socket);
    command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_MOCK_DEVICES", "2");
    let done = output_of(command.envs(variables.iter().copied()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("--json prints JSON")
}

#[test]
fn weights_on_a_gpu_are_mapped_to_be_read_and_give_the_same_results() {
    let Some(mocked) = Mocked::new("weights_on_a_gpu", "gpu-daemon", lenet(), How::default()) else { return };
    let socket = mocked.folder.join("run/uprd.sock");
    let daemon = Daemon::start(&mocked, &socket, &["--device", "all", "--device-budget", "32MiB"]);
    let private = run(&mocked, &socket, &["--weights-from", "private"], &[]);
    let trace = mocked.folder.join("trace");
    let trace_text = trace.display().to_string();
    let free = ("UPR_ENABLE_CUDA_FREE", "1");
    let cases = [
        ("model", "0", "disk"),
        ("model", "0", "device"),
        ("model", "1", "host"),
        ("model", "1", "device"),
        ("layer", "0", "disk"),
        ("layer", "0", "device"),
    ];
    for (granularity, device, tier) in cases {
        let variables = [("UPR_SHARING_GRANULARITY", granularity), ("PRESTOW_MOCK_TRACE", &*trace_text), free];
        let shared = run(&mocked, &socket, &["--weights-from", "uprd", "--device", device], &variables);
        assert_eq!(shared["outputs"], private["outputs"], "{granularity} {device} {tier}");
        let weights = &shared["weights"];
        assert_eq!(
            (&weights["memory"], &weights["tier"]),
            (&"device".into(), &tier.into()),
            "{granularity} {device}: {weights}"
        );
        let trace = std::fs::read_to_string(&trace).expect("the mock wrote it");
        assert!(trace.contains("import") && trace.contains("to read"), "{trace}");
        assert!(!trace.contains("leaked"), "{trace}");
    }
    let status = uprd(&mocked, &socket, &["status", "--json"]).output().expect("it is built");
    let status: Json = serde_json::from_slice(&status.stdout).expect("it is JSON");
    let devices = &status["tiers"]["devices"];
    assert_eq!(devices[0]["device"], "GPU-00000000-0000-0000-0000-000000000001", "{devices}");
    assert_eq!((&devices[0]["models"], &devices[1]["models"]), (&2.into(), &1.into()), "{devices}");
    assert_eq!(status["leases"], 0, "leases end with their processes");

    // A daemon that dies takes no memory from those who hold it, and leaves none behind.
    let mut attach = uprd(&mocked, &socket, &["attach", "--hold", "--device", "0"]);
    let mut held = attach.arg(&mocked.exe).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is built");
    let mut line = String::new();
    let out = held.stdout.take().expect("it is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("it prints");
    assert!(line.contains("from device"), "{line}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.id())).expect("it runs");
    let mapped: Vec<&str> = maps.lines().filter(|line| line.contains("mock-device-memory")).collect();
    assert!(!mapped.is_empty() && mapped.iter().all(|line| line.contains(" r--s ")), "{mapped:?}");
    drop(daemon);
    drop(held.stdin.take());
    assert!(held.wait().expect("it ends").success(), "it outlives the daemon");
}

#[test]
fn daemon_without_the_gpu_gives_host_memory_and_says_so() {
    let Some(mocked) = Mocked::new("daemon_without_the_gpu", "gpu-daemon-host", lenet(), How::default()) else {
        return;
    };
    let socket = mocked.folder.join("run/uprd.sock");
    let _daemon = Daemon::start(&mocked, &socket, &["--device", "1"]);
    let private = run(&mocked, &socket, &["--weights-from", "private"], &[]);
    let shared = run(&mocked, &socket, &["--weights-from", "uprd"], &[]);
    assert_eq!(shared["outputs"], private["outputs"]);
    assert_eq!(shared["weights"]["memory"], "host");
    let reason = shared["weights"]["not_on_device"].as_str().expect("it is named");
    assert!(reason.contains("no tier for device GPU-00000000-0000-0000-0000-000000000001"), "{reason}");
}

#[test]
fn gpu_that_is_unknown_or_twice_is_refused_at_start() {
    let Some(mocked) = Mocked::new("gpu_that_is_unknown", "gpu-daemon-unknown", lenet(), How::default()) else {
        return;
    };
    let socket = mocked.folder.join("run/uprd.sock");
    for (words, expected) in [
        (&["--device", "GPU-9"][..], "there is no GPU `GPU-9`; the GPUs are GPU-00000000-"),
        (&["--device", "0", "--device", "GPU-00000000-0000-0000-0000-000000000001"], "twice"),
    ] {
        let done = uprd(&mocked, &socket, &["serve", "--budget", "1MiB"]).args(words).output().expect("it is built");
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains(expected), "{}", text(&done.stderr));
    }
}
