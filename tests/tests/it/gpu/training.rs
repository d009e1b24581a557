//! Training on the driver's mock, with kernels that NVRTC's mock compiles for the processor: `compile --train` for a GPU,
//! compared with the same step for the processor, and the row of `prestow-gpu-check`.

use std::path::Path;
use std::process::{Command, Output};

use super::operators::tools;
use super::*;
use crate::executables::output_of;
use crate::support::difference;

/// A command that finds the mocks, and the C++ compiler that NVRTC's mock starts.
fn with_mocks(program: &Path, mocks: &Path) -> Command {
    let mut command = without_libraries(program);
    command.env("PATH", crate::environment("PATH").unwrap_or_default());
    command.env("LD_LIBRARY_PATH", mocks).env("PRESTOW_CUDA_LIBS", mocks);
    command.env("PRESTOW_MOCK_NVRTC_SHIM", cuda_mock::headers());
    command
}

/// Runs a command that must succeed.
fn succeeds(command: &mut Command) -> Output {
    let done = output_of(command);
    assert!(done.status.success(), "{command:?}: {}{}", text(&done.stdout), text(&done.stderr));
    done
}

/// The states of the newest checkpoint of a folder.
fn states(folder: &Path) -> std::collections::BTreeMap<String, Tensor> {
    let found = train::checkpoint::load(folder).expect("readable");
    found.expect("a checkpoint").1.states
}

#[test]
fn mnist_trains_on_the_mock_as_on_the_processor() {
    let test = "gpu::training::mnist_trains_on_the_mock_as_on_the_processor";
    let Some(mocks) = tools(test, "gpu-training") else { return };
    let at = |name: &str| mocks.join(name);
    let compile = |name: &str, target: &[&str]| {
        let mut command = with_mocks(&program("prestow"), &mocks);
        command.args(["compile", "mnist_cnn", "--train", "--batch", "2", "--optimizer", "adam:lr=1e-3"]).args(target);
        succeeds(command.arg("-o").arg(at(name)));
        closed(&at(name));
    };
    compile("gpu", &["--target", "cuda:sm_90"]);
    compile("rounding", &["--target", "cuda:sm_90", "--dtype", "tf32"]);
    compile("processor", &[]);
    let train = |name: &str, folder: &str, words: &[&str]| {
        let mut command = with_mocks(&at(name), &mocks);
        command.args(["train", "--data", "synthetic:7,records=6"]).args(words);
        succeeds(command.arg("--checkpoint").arg(at(folder)).arg("--json"))
    };
    let outcome = |done: &Output| -> serde_json::Value { serde_json::from_slice(&done.stdout).expect("JSON") };
    // An epoch has three steps.
    let gpu = outcome(&train("gpu", "whole", &["--steps", "3"]));
    let processor = outcome(&train("processor", "reference", &["--steps", "3"]));
    let loss = |outcome: &serde_json::Value| outcome["training"]["loss"].as_f64().expect("a loss");
    let (got, want) = (loss(&gpu), loss(&processor));
    assert!((got - want).abs() <= 1e-4 * want.abs(), "loss {got}, not {want}");
    let (got, want) = (states(&at("whole")), states(&at("reference")));
    assert!(got.keys().eq(want.keys()) && 8 < got.len(), "{:?}", got.keys());
    for (name, want) in &want {
        assert_eq!(difference(&got[name], want, 1e-4, 1e-4), None, "state `{name}`");
    }

    // A run that stops and continues ends with the same bits.
    train("gpu", "parts", &["--steps", "2"]);
    train("gpu", "parts", &["--steps", "3", "--resume", &at("parts").display().to_string()]);
    assert!(states(&at("parts")) == got, "a resumed run has other states");

    // Eleven bits of each operand: another loss, but not by much.
    let rounded = loss(&outcome(&train("rounding", "rounded", &["--steps", "3"])));
    let exact = loss(&gpu);
    assert!(rounded != exact && (rounded - exact).abs() <= 1e-2 * exact, "loss {rounded}, and {exact} in f32");
}

#[test]
fn gpu_check_has_a_row_for_training() {
    let test = "gpu::training::gpu_check_has_a_row_for_training";
    let Some(mocks) = tools(test, "gpu-check-training") else { return };
    let report = mocks.join("report.json");
    let mut command = with_mocks(&program("prestow-gpu-check"), &mocks);
    command.args(["lenet", "--train", "--batch", "1", "--iters", "1", "--dtype", "f32", "--peers", "none", "--data"]);
    // Without probes of peaks, which would run for minutes on a processor.
    command.env("PRESTOW_MOCK_NVRTC_REPLACE", "peak_=>probe_");
    let done = succeeds(command.arg(mocks.join("nothing")).arg("-o").arg(&report));
    let said = text(&done.stdout);
    let line = said.lines().find(|line| line.starts_with("lenet") && line.ends_with("equal"));
    assert!(line.is_some() && said.contains("steps/s"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).expect("written")).expect("JSON");
    let row = &report["training"][0];
    assert_eq!((row["network"].as_str(), row["verdict"].as_str()), (Some("lenet"), Some("equal")), "{row}");
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
    assert!(number("difference") < 1e-4 && 0.0 < number("steps_per_s"), "{row}");
    assert!(number("states_bytes") < number("arena_bytes") && number("arena_bytes") <= number("block_bytes"), "{row}");
    assert_eq!(row["losses"].as_array().map(Vec::len), Some(3), "{row}");
}
