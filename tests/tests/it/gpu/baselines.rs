//! Baselines of `prestow-gpu-check`, on the driver's mock.

use std::process::Command;

use weights::npy;

use crate::executables::{program, text};
use crate::gpu::{How, Mocked, without_libraries};
use crate::support::{root, skip};

/// Baselines are compared with prestow if they are installed, agree on the results and answer in time.
#[test]
fn baselines_are_measured_or_refused() {
    let test = "gpu::baselines::baselines_are_measured_or_refused";
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let Some(mocked) = Mocked::new(test, "gpu-check-peers", graph, How { code: None, ..How::default() }) else {
        return;
    };
    let (report, script) = (mocked.folder.join("report.json"), mocked.folder.join("python"));
    let check = |more: &[&str]| {
        let mut command = without_libraries(&program("prestow-gpu-check"));
        command.args(["lenet", "--batch", "2", "--iters", "2", "--dtype", "f32"]).args(more);
        command.arg("--data").arg(root().join("data")).arg("-o").arg(&report).env("LD_LIBRARY_PATH", &mocked.folder);
        // The stand-in scripts call programs in PATH.
        command.env("PATH", crate::environment("PATH").unwrap_or_default());
        let out = command.output().expect("it is built");
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    // A shell script in place of Python: it prints fixed times and saves the results that the test gives it.
    let stand_in = |save: &str, more: &str| {
        let text = format!(
            "#!/bin/sh\ncase \"$2\" in\n--list) echo '{{\"torch-eager\": {{\"version\": \"7.1\"}}, \"torch-compile\": \
             {{\"version\": \"7.1\"}}, \"onnxruntime\": {{\"missing\": \"no module\"}}}}'; exit;;\nesac\n{more}\n\
             echo '{{\"load_ms\": 1.0, \"how\": \"as it is\"}}'\nwhile read command word; do case $command in\n\
             run) echo 50000 50000;;\nqueue) echo 40000;;\nsave) {save}; echo saved;;\nesac; done\n"
        );
        std::fs::write(&script, text).expect("the folder is ours");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).expect("it is ours");
    };
    let python = script.to_str().expect("it is text");
    let peers = || -> Vec<serde_json::Value> {
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).expect("it is written")).expect("it is JSON");
        assert_eq!(report["baselines"]["onnxruntime"]["missing"], "no module");
        report["networks"][0]["baselines"].as_array().expect("a list").clone()
    };
    // The results are copies of the inputs, not logits.
    stand_in("cp \"$word/in-0.npy\" \"$word/0.npy\"", "");
    let (code, said, _) = check(&["--python", python]);
    assert!(
        code == Some(0) && said.contains("baseline torch-eager 7.1") && said.contains("no baseline onnxruntime"),
        "{said}"
    );
    assert!(said.contains("torch-eager    is not compared: its result 0 is"), "{said}");
    assert!(peers().iter().all(|peer| peer["refused"].is_string()) && !said.contains("relative to"), "{said}");
    // The right results, by the definition on the same inputs.
    let want = mocked.folder.join("want.npy");
    let keep = format!("cp \"$word\"/in-0.npy \"{}\"; rm -f \"$word/0.npy\"", want.display());
    stand_in(&keep, "");
    let (_, said, _) = check(&["--python", python]);
    assert!(said.contains("is not compared: its result 0: "), "{said}");
    let input = npy::read(&std::fs::read(&want).expect("it was kept")).expect("it is an npy file");
    let results = ir::evaluate(&mocked.graph, &[input]).expect("it verifies");
    std::fs::write(&want, npy::write(&results[0])).expect("the folder is ours");
    stand_in(&format!("cp \"{}\" \"$word/0.npy\"", want.display()), "");
    let (code, said, _) = check(&["--python", python]);
    assert!(
        code == Some(0) && said.contains("torch-compile  50000.0000 ms a run, 40000.0000 ms back to back"),
        "{said}"
    );
    let rows = peers();
    assert_eq!(rows.iter().map(|peer| &peer["name"]).collect::<Vec<_>>(), ["torch-eager", "torch-compile"]);
    for peer in &rows {
        let number = |key: &str| peer[key].as_f64().unwrap_or_else(|| panic!("{key}: {peer}"));
        assert!((number("latency_ratio") - number("our_latency_ms") / 50000.0).abs() < 1e-12, "{peer}");
        assert!((number("throughput_ratio") - 40000.0 / number("our_back_to_back_ms")).abs() < 1e-6, "{peer}");
        assert!(number("difference") < 1e-4, "{peer}");
    }
    // Both modes of PyTorch ran, so the table of relative throughput is printed.
    assert!(said.contains("throughput relative to the faster mode of PyTorch"), "{said}");
    // One baseline refuses a network, one never answers, one exits.
    stand_in(
        "",
        "case $2 in torch-eager) echo '{\"refused\": \"Refused: no such thing\"}'; exit;; *) exec sleep 600;; esac",
    );
    let (code, said, _) = check(&["--python", python, "--peer-seconds", "1"]);
    assert!(code == Some(0) && said.contains("is not compared: Refused: no such thing"), "{said}");
    assert!(said.contains("is not compared: no answer within 1 s (--baseline-seconds)"), "{said}");
    stand_in("exit", "");
    let (code, said, _) = check(&["--python", python, "--peers", "torch-eager"]);
    assert!(code == Some(0) && said.contains("is not compared: it has ended"), "{said}");
    assert!(!said.contains("torch-compile"), "{said}");
    // A Python named on the command line must run, and an unknown baseline is an error.
    let (code, _, said) = check(&["--python", "/nowhere/python"]);
    assert!(code == Some(2) && said.contains("--python /nowhere/python: it does not run"), "{said}");
    let (code, _, said) = check(&["--peers", "tensorflow"]);
    assert!(
        code == Some(2) && said.contains("`tensorflow` is not one of torch-eager, torch-compile, onnxruntime"),
        "{said}"
    );
    // The script itself, if Python is installed. It sees no GPU here.
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(test, "`python3` is not installed");
    }
    let (code, said, _) = check(&["--python", "python3"]);
    assert!(code == Some(0) && said.contains("no baseline torch-eager: "), "{said}");
    assert!(!said.contains("it has ended") && !said.contains("answers"), "{said}");
}
