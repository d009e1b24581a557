//! The command line, the figures, signals and traces.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::SocketFlags;
use serde_json::Value;
use share::Client;
use share::core::Granularity;

use crate::support::{Daemon, Folder, open, signal, write_image};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn operator_runs_a_daemon_by_its_commands() {
    let folder = Folder::new();
    write_image(&folder.file("net_1.0"), &[(1, 100_000)]);
    let daemon = Daemon::start(&folder, "", &["--budget", "1MiB", "--preload", "net_1.0"]);
    daemon.wait_for("/models/COMMITTED", 1);
    let ok = |arguments: &[&str]| {
        let done = daemon.run(arguments);
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    let refused = |arguments: &[&str]| {
        let done = daemon.run(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
        text(&done.stderr)
    };
    assert!(ok(&["status"]).contains("of 1.00 MiB used"), "{}", ok(&["status"]));
    assert!(ok(&["list"]).contains("net_1.0 (pinned)"));
    assert!(ok(&["attach", "net_1.0"]).contains("from host: 100000 bytes"));
    ok(&["verify", "net_1.0"]);
    assert!(refused(&["evict", "net_1.0"]).contains("BUSY): the model is pinned"));
    ok(&["unpin", "net_1.0"]);
    ok(&["pin", "net_1.0"]);
    ok(&["unpin", "net_1.0"]);
    ok(&["evict", "net_1.0"]);
    assert!(refused(&["pin", "net_1.0"]).contains("NOT_FOUND"));
    ok(&["preload", "net_1.0", "--base", &folder.0.display().to_string(), "--name", "x", "--no-pin"]);
    assert!(ok(&["list"]).contains(" x\n"));
    let config: Value = serde_json::from_str(&ok(&["config", "--budget", "3MiB", "--policy", "LFU"])).expect("JSON");
    assert_eq!((&config["host_limit_bytes"], &config["UPRD_EVICTION_POLICY"]), (&(3 << 20).into(), &"lfu".into()));
    assert!(ok(&["history"]).contains("\"kind\":\"evict\""));
    ok(&["drain"]);
    let after = daemon.run(&["status"]);
    assert_eq!(after.status.code(), Some(2));
    assert!(text(&after.stderr).contains("no daemon answers at"), "{}", text(&after.stderr));
}

#[test]
fn values_that_are_not_understood_are_refused_at_start() {
    let cases = [
        (&["serve", "--policy", "mru"][..], "size-aware, random, got `mru`"),
        (&["serve", "--metrics-tcp", "0.0.0.0:1", "--budget", "1MiB"], "must be a loopback address"),
        (&["serve", "--preload", "nothing"], "there is no file `nothing`"),
        (&["preload", "nothing"], "there is no file `nothing`"),
        (
            &["preload", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
            "must be an executable of `prestow compile`, or one of safetensors",
        ),
    ];
    for (arguments, expected) in cases {
        let folder = Folder::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
        command.arg("--socket").arg(folder.file("run/s")).args(arguments).env("UPR_BASE_DIR", &folder.0);
        let done = command.output().expect("it starts");
        assert_eq!(done.status.code(), Some(2), "{arguments:?}");
        assert!(text(&done.stderr).contains(expected), "{arguments:?}: {}", text(&done.stderr));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
    let done = command.arg("status").env("UPRD_MEMORY_PERCENTAGE", "80").output().expect("it starts");
    assert!(text(&done.stderr).contains("UPRD_MEMORY_PERCENTAGE must be a fraction"), "{}", text(&done.stderr));
}

#[test]
fn figures_are_served_at_a_socket_of_their_own() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 100_000)]);
    let daemon = Daemon::start(&folder, "", &[]);
    open(&mut daemon.client(), &folder.file("m"), Granularity::Model).expect("it loads");
    daemon.wait_for("/leases", 0);
    let get = |path: &str| {
        let mut stream = UnixStream::connect(folder.file("run/metrics.sock")).expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it replies");
        reply
    };
    let metrics = get("/metrics");
    assert!(metrics.contains("\nuprd_opens_total{tier=\"disk\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nuprd_resident_bytes{tier=\"host\"} 100000\n"), "{metrics}");
    assert!(get("/readyz").starts_with("HTTP/1.1 200 OK"));
    assert!(get("/nothing").starts_with("HTTP/1.1 404"));
    // A reader that sends nothing delays other readers of figures, and no lease.
    let _silent = UnixStream::connect(folder.file("run/metrics.sock")).expect("it listens");
    open(&mut daemon.client(), &folder.file("m"), Granularity::Model).expect("leases do not wait");
}

/// Neither a file nor a socket in use gives way to the socket of the figures.
#[test]
fn path_of_the_figures_replaces_stale_sockets_only() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder, "", &[]);
    std::fs::write(folder.file("table"), "weights").expect("the folder is writable");
    let refused = |socket: &str, metrics: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
        command.arg("--socket").arg(folder.file(socket)).args(["serve", "--metrics"]).arg(folder.file(metrics));
        let done = command.stdin(Stdio::null()).output().expect("it starts");
        assert_eq!(done.status.code(), Some(2), "{metrics}");
        text(&done.stderr)
    };
    assert!(refused("run/other.sock", "table").contains("it exists and is not a socket"));
    assert_eq!(std::fs::read(folder.file("table")).expect("it is there"), b"weights");
    assert!(refused("run/other.sock", "run/metrics.sock").contains("another socket is in use there"));
    assert!(refused("run/other.sock", "run/uprd.sock").contains("another socket is in use there"));
    assert!(refused("run/same.sock", "run/same.sock").contains("another socket is in use there"));
    daemon.client();
    UnixStream::connect(folder.file("run/metrics.sock")).expect("the first daemon's figures stay");
    let left: BTreeSet<String> = std::fs::read_dir(folder.file("run"))
        .expect("it was made")
        .map(|entry| entry.expect("it is readable").file_name().to_string_lossy().into_owned())
        .collect();
    let own = ["metrics.sock", "uprd.lock", "uprd.sock"].map(String::from);
    assert_eq!(left, own.into(), "daemons that did not start leave no file");
}

#[test]
fn joined_trace_replaces_no_input() {
    let folder = Folder::new();
    let trace = folder.file("trace.json");
    let content = r#"{"traceEvents": [], "otherData": {"monotonic_start_us": 1}}"#;
    std::fs::write(&trace, content).expect("the folder is writable");
    let join = |output: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
        command.arg("trace").arg(&trace).arg("-o").arg(folder.file(output)).output().expect("it starts")
    };
    let done = join("joined.json");
    assert!(done.status.success(), "{}", text(&done.stderr));
    let done = join("trace.json");
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("it is an input; name another output"), "{}", text(&done.stderr));
    assert_eq!(std::fs::read_to_string(&trace).expect("it is there"), content);
}

#[test]
fn sigterm_drains_notifies_and_writes_the_trace() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 100_000)]);
    let notices = UnixDatagram::bind(folder.file("notify")).expect("the folder is writable");
    let prefix = format!("export UPRD_WRITE_PROFILE=true NOTIFY_SOCKET={};", folder.file("notify").display());
    let mut daemon = Daemon::start(&folder, &prefix, &[]);
    let mut client = daemon.client();
    let lease = open(&mut client, &folder.file("m"), Granularity::Model).expect("it loads");
    let mut notice = [0; 100];
    let length = notices.recv(&mut notice).expect("a notice arrives");
    assert!(text(&notice[..length]).starts_with("READY=1\n"));
    daemon.signal("TERM");
    let length = notices.recv(&mut notice).expect("a notice arrives");
    assert!(text(&notice[..length]).starts_with("STOPPING=1\n"));
    std::thread::sleep(Duration::from_millis(20));
    assert!(daemon.child.try_wait().expect("it is ours").is_none(), "a lease holds the daemon");
    client.close(lease).expect("leases can be closed");
    assert!(daemon.child.wait().expect("it ends").success());
    assert!(!daemon.socket.exists() && !folder.file("run/metrics.sock").exists());

    let trace: Value =
        serde_json::from_slice(&std::fs::read(folder.file("server.json")).expect("it was written")).expect("JSON");
    let names: Vec<&str> =
        trace["traceEvents"].as_array().expect("a list").iter().filter_map(|event| event["name"].as_str()).collect();
    for name in ["open", "close", "load_owned", "to_layers_from_disk", "make_shared"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert_eq!(trace["otherData"]["server"]["eviction_policy"], "lru");
    let merged = folder.file("merged.json");
    let server = folder.file("server.json");
    let done =
        Command::new(env!("CARGO_BIN_EXE_uprd")).arg("trace").arg(&server).arg(&server).arg("-o").arg(&merged).output();
    assert!(done.expect("it starts").status.success());
    let merged: Value = serde_json::from_slice(&std::fs::read(merged).expect("it was written")).expect("JSON");
    assert_eq!(merged["otherDatas"].as_array().map(Vec::len), Some(2));
}

#[test]
fn socket_that_systemd_passes_on_is_served() {
    if Command::new("bash").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: socket_that_systemd_passes_on: needs bash, to pass a descriptor");
        return;
    }
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 1000)]);
    let (path, listener) = (folder.file("s"), share::socket::new(SocketFlags::empty()).expect("it is made"));
    rustix::net::bind(&listener, &share::socket::address(&path).expect("it is short")).expect("the folder is ours");
    rustix::net::listen(&listener, 8).expect("it is bound");
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).expect("it is open");
    let number = listener.as_raw_fd();
    let environment = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=uprd";
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("exec 3<&{number}; {environment}; exec \"$0\" \"$@\""));
    command.arg(env!("CARGO_BIN_EXE_uprd")).args(["serve", "--budget", "1MiB", "--metrics"]);
    let mut child = command.arg(folder.file("metrics")).stdin(Stdio::null()).spawn().expect("it starts");
    drop(listener);
    let mut client = Client::connect(&path, true).expect("systemd's socket waits for the daemon");
    open(&mut client, &folder.file("m"), Granularity::Model).expect("it loads");
    drop(client);
    signal(child.id(), "TERM");
    assert!(child.wait().expect("it ends").success());
    assert!(path.exists(), "the socket's file is systemd's");
}

#[test]
fn second_signal_ends_a_drain_and_a_second_daemon_is_refused() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 1000)]);
    let mut daemon = Daemon::start(&folder, "", &[]);
    let second = daemon.command(&["serve"]).stdin(Stdio::null()).output().expect("it starts");
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("a daemon already serves"), "{}", text(&second.stderr));
    let mut client = daemon.client();
    let _lease = open(&mut client, &folder.file("m"), Granularity::Model).expect("the first one serves on");
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(20));
    daemon.signal("TERM");
    assert!(daemon.child.wait().expect("it ends").success());
}

/// Memory is taken for the rounds that took place, not for those that a flag announces.
#[test]
fn attach_without_a_daemon_is_an_error_for_every_count() {
    for count in [1, 1 << 32, u64::MAX] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
        command.args(["--socket", "/nonexistent/uprd.sock", "attach", "m", "--count", &count.to_string()]);
        let output = command.output().expect("the program starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{count}: {stderr}");
        assert!(stderr.contains("/nonexistent/uprd.sock"), "{stderr}");
    }
}
