//! An executable opens its own file, its inputs and outputs, and the system's files that start it; SECURITY.md promises that.

use std::process::{Command, Stdio};

use types::{Shape, Tensor};
use weights::npy;

use crate::executables::{compile, folder, output_of, text};
use crate::support::skip;

/// Folders and files of the system that the loader, the C library and the threads read.
const SYSTEM: [&str; 10] = [
    "/etc/ld.so.",
    "/lib/",
    "/lib64/",
    "/usr/lib/",
    "/usr/lib64/",
    "/proc/self/",
    "/proc/sys/vm/",
    // The place of the weights daemon's socket: looked up, and connected to only if it exists.
    "/run/uprd/",
    "/sys/fs/cgroup/",
    "/sys/devices/system/cpu/",
];

/// The paths in the system calls of a line of strace, as `openat(AT_FDCWD, "path", ..)`. Those of `execve` end with the
/// program; the arguments follow. A relative path is a path as well: nothing is looked up where the program is started.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let count = if line.contains("execve(") { 1 } else { usize::MAX };
    line.split('"').skip(1).step_by(2).take(count).filter(|path| !path.is_empty())
}

#[test]
fn executable_opens_its_own_file_and_what_it_is_given() {
    let is_here = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_here {
        skip("executable_opens_its_own_file_and_what_it_is_given", "strace is missing");
        return;
    }
    let folder = folder("sandbox");
    let exe = compile(&folder, &["lenet"]);
    let (input, out, log) = (folder.join("digit.npy"), folder.join("out"), folder.join("calls.txt"));
    std::fs::write(&input, npy::write(&Tensor::full(Shape::from([1, 1, 28, 28]), 0.5f32))).expect("writable");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-s", "4096", "-e", "trace=%file,%network,%process", "-o"]).arg(&log).arg(&exe);
    traced.arg("run").arg("--input").arg(format!("input={}", input.display())).arg("--output-dir").arg(&out);
    let own = traced.env_remove("LD_LIBRARY_PATH").env_remove("UPRD_SOCKET").env_remove("XDG_RUNTIME_DIR");
    let done = output_of(own);
    if text(&done.stderr).contains("PTRACE") {
        skip("executable_opens_its_own_file_and_what_it_is_given", "this system does not permit ptrace");
        return;
    }
    assert!(done.status.success(), "{}", text(&done.stderr));

    let calls = std::fs::read_to_string(&log).expect("strace wrote its log");
    let folder = folder.display().to_string();
    let is_allowed = |path: &str| path.starts_with(&folder) || SYSTEM.iter().any(|allowed| path.starts_with(allowed));
    let mut opened_input = false;
    for line in calls.lines() {
        opened_input |= line.contains("digit.npy");
        for forbidden in ["socket(", "connect(", "bind(", "fork("] {
            assert!(!line.contains(forbidden), "a connection or a process: {line}");
        }
        // The first process alone is started by strace.
        assert!(!line.contains("execve(") || line.contains(&folder), "another program: {line}");
        // Where a given path leads: the folders above it may be links.
        let is_above = |path: &str| line.contains("readlink") && folder.starts_with(path);
        let strangers: Vec<&str> = paths(line).filter(|path| !is_allowed(path) && !is_above(path)).collect();
        assert!(strangers.is_empty(), "neither given nor of the system: {line}");
    }
    assert!(opened_input, "the trace has the files that are opened:\n{calls}");
}
