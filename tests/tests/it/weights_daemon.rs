//! Executables that attach to a daemon: results, reports, refusals and traces.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value as Json;
use share::Client;
use share::server::{Binding, Server, ServerOptions};
use share::wire::Ask;

use crate::executables::{compile, folder, output_of, text};

/// A daemon in this process.
struct Daemon {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(folder: &Path, limit: u64) -> Daemon {
        let socket = folder.join("run/uprd.sock");
        let binding = Binding::new(&socket, false).expect("the folder is fresh");
        let options = ServerOptions::new(limit);
        let run = move || Server::new(binding, options, None).expect("there are descriptors").run().expect("it serves");
        Daemon { socket, thread: Some(std::thread::spawn(run)) }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, true).expect("it listens")
    }

    fn status(&self) -> Json {
        let (text, _) = self.client().text(&Ask::Status).expect("it answers");
        serde_json::from_str(&text).expect("it is JSON")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.client().done(&Ask::Drain, &[], Duration::from_secs(20));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn run(exe: &Path, socket: &Path, variables: &[(&str, &str)], words: &[&str]) -> Output {
    let mut command = Command::new(exe);
    command.args(["run", "--json", "--values", "all"]).args(words).env("UPRD_SOCKET", socket);
    output_of(command.envs(variables.iter().copied()))
}

fn json(output: &Output) -> Json {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

const LAYER: (&str, &str) = ("UPR_SHARING_GRANULARITY", "layer");

#[test]
fn runs_that_attach_have_the_results_of_private_ones_and_report_the_source() {
    let folder = folder("weights-daemon");
    let exe = compile(&folder, &["lenet"]);
    let daemon = Daemon::start(&folder, 1 << 30);
    let private = json(&run(&exe, &daemon.socket, &[], &["--weights-from", "private"]));
    assert_eq!(
        (&private["weights"]["from"], &private["weights"]["reason"]),
        (&"private".into(), &"--weights-from private".into())
    );
    let cases = [
        (&[][..], "disk"),
        (&[], "host"),
        (&[LAYER], "disk"),
        (&[LAYER], "host"),
        (&[LAYER, ("UPR_INITIALIZE_EAGER_ASYNC", "true")], "host"),
    ];
    for (variables, tier) in cases {
        let output = run(&exe, &daemon.socket, variables, &["--weights-from", "uprd"]);
        let shared = json(&output);
        assert_eq!(shared["outputs"], private["outputs"], "{variables:?}");
        assert_eq!(
            (&shared["weights"]["from"], &shared["weights"]["tier"]),
            (&"uprd".into(), &tier.into()),
            "{variables:?}"
        );
        assert!(text(&output.stderr).contains("note: weights from uprd: "), "{}", text(&output.stderr));
    }
    assert_eq!(daemon.status()["leases"], 0, "leases end with their processes");
}

#[test]
fn absent_disabled_and_refusing_daemons_are_reported_or_demanded() {
    let folder = folder("weights-daemon-refusals");
    let exe = compile(&folder, &["lenet"]);
    let nowhere = folder.join("nowhere");
    let absent = json(&run(&exe, &nowhere, &[], &[]));
    assert!(
        absent["weights"]["reason"].as_str().is_some_and(|text| text.starts_with("there is no daemon at `")),
        "{absent}"
    );
    let demanded = run(&exe, &nowhere, &[], &["--weights-from", "uprd"]);
    assert_eq!(demanded.status.code(), Some(2));
    assert!(text(&demanded.stderr).contains("error: --weights-from uprd: there is no daemon at"));
    let disabled = json(&run(&exe, &nowhere, &[("UPR_ENABLED", "FALSE")], &[]));
    assert_eq!(disabled["weights"]["reason"], "UPR_ENABLED is false");
    assert_eq!(run(&exe, &nowhere, &[("UPR_ENABLED", "yes")], &[]).status.code(), Some(2));
    let narrow = run(&exe, &nowhere, &[("UPR_INPUT_WIDTH", "27")], &[]);
    assert!(text(&narrow.stderr).contains("UPR_INPUT_WIDTH is 27, the plan has 28"), "{}", text(&narrow.stderr));
    json(&run(&exe, &nowhere, &[("UPR_INPUT_WIDTH", "28")], &[]));

    let small = Daemon::start(&folder, 1 << 10);
    let refused = run(&exe, &small.socket, &[], &[]);
    assert!(
        text(&refused.stderr).contains("note: weights are private: the daemon refused (EXHAUSTED): the load needs")
    );
    assert_eq!(json(&refused)["outputs"], absent["outputs"]);
    assert_eq!(run(&exe, &small.socket, &[], &["--weights-from", "uprd"]).status.code(), Some(2));

    // The socket of a daemon that was killed.
    let stale = folder.join("stale");
    std::fs::create_dir(&stale).expect("the folder is fresh");
    drop(UnixListener::bind(stale.join("uprd.sock")).expect("the folder is fresh"));
    let gone = run(&exe, &stale.join("uprd.sock"), &[], &[]);
    assert!(text(&gone.stderr).contains("note: weights are private: no daemon answers at"), "{}", text(&gone.stderr));
}

#[test]
fn first_run_is_private_while_the_daemon_fills_and_later_ones_attach() {
    let folder = folder("weights-daemon-fills");
    let exe = compile(&folder, &["lenet"]);
    let daemon = Daemon::start(&folder, 1 << 30);
    let first = run(&exe, &daemon.socket, &[], &[]);
    let weights = &json(&first)["weights"];
    assert_eq!(
        (&weights["from"], &weights["reason"], &weights["filling"]),
        (&"private".into(), &"the daemon is filling, later runs attach".into(), &1.into()),
        "{weights}"
    );
    let note = "note: weights are private: the daemon is filling, later runs attach";
    assert!(text(&first.stderr).contains(note), "{}", text(&first.stderr));
    while daemon.status()["models"]["COMMITTED"] != 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = json(&run(&exe, &daemon.socket, &[], &[]));
    assert_eq!((&second["weights"]["from"], &second["weights"]["tier"]), (&"uprd".into(), &"host".into()));
    assert_eq!(second["outputs"], json(&first)["outputs"]);
    assert_eq!(daemon.status()["loads"], 1);
}

#[test]
fn executables_of_two_batches_share_their_layers() {
    let (one, eight) = (folder("weights-daemon-1"), folder("weights-daemon-8"));
    let daemon = Daemon::start(&one, 1 << 30);
    let first = compile(&one, &["squeezenet1_1"]);
    let second = compile(&eight, &["squeezenet1_1", "--batch", "8"]);
    json(&run(&first, &daemon.socket, &[LAYER], &["--weights-from", "uprd"]));
    json(&run(&second, &daemon.socket, &[LAYER], &["--weights-from", "uprd"]));
    let host = &daemon.status()["tiers"]["host"];
    let figure = |name: &str| host[name].as_f64().expect("a number");
    // Tensors that both batches pack alike; the kernels of some layers depend on the batch.
    assert!(0.1 * figure("tensor_bytes") < figure("saved_bytes"), "{host}");
}

#[test]
fn traces_of_a_client_have_the_names_of_upr() {
    let folder = folder("weights-daemon-trace");
    let exe = compile(&folder, &["lenet"]);
    let daemon = Daemon::start(&folder, 1 << 30);
    let names = |variables: &[(&str, &str)]| {
        let target = folder.join("profile.json");
        let target_text = target.display().to_string();
        let variables =
            [variables, &[("UPR_PROFILE_TARGET", &*target_text), ("UPR_RUN_ID", "r7"), ("UPR_ENABLE_CUDA_FREE", "1")]]
                .concat();
        json(&run(&exe, &daemon.socket, &variables, &[]));
        let trace: Json = serde_json::from_slice(&std::fs::read(&target).expect("it was written")).expect("it is JSON");
        assert_eq!(trace["otherData"]["run_id"], "r7");
        assert_eq!(trace["otherData"]["model_name"], "lenet");
        let events = trace["traceEvents"].as_array().expect("a list").clone();
        events
            .iter()
            .filter(|event| event["ph"] == "B")
            .map(|event| event["name"].as_str().unwrap_or("").to_string())
            .collect::<Vec<_>>()
    };
    json(&run(&exe, &daemon.socket, &[], &["--weights-from", "uprd"]));
    let shared = names(&[]);
    for name in [
        "load_symbol",
        "load_model",
        "open",
        "set_input",
        "convering_to_nd_array",
        "create_predictor",
        "predict",
        "forward",
        "get_output",
        "free",
    ] {
        assert!(shared.iter().any(|own| own == name), "{name} in {shared:?}");
    }
    assert!(names(&[("UPR_ENABLED", "0")]).contains(&"read_params".to_string()));
    let full = run(&exe, &daemon.socket, &[("UPR_PROFILE_TARGET", "/dev/full")], &[]);
    assert_eq!(full.status.code(), Some(2), "a full disk is an error");
}
