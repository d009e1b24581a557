//! Executables for aarch64 in an emulator: same results as those for this machine, within the planned memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use types::Tensor;
use weights::npy;

use crate::environment;
use crate::executables::{compile, folder, output_of, text};
use crate::support::skip;

/// The emulator for aarch64, and the runner of its executables.
struct Emulator {
    words: Vec<String>,
    runner: String,
}

impl Emulator {
    /// The ones that `cargo xtask test --aarch64` passes; `None` after recording that `test` is skipped.
    fn named(test: &str) -> Option<Emulator> {
        let named = (environment("PRESTOW_AARCH64_EMULATOR"), environment("PRESTOW_AARCH64_RUNNER"));
        let (Some(emulator), Some(runner)) = named else {
            skip(test, "an emulator of aarch64 is required; run `cargo xtask test --aarch64`");
            return None;
        };
        Some(Emulator { words: emulator.split_whitespace().map(String::from).collect(), runner })
    }

    /// The standard output of an executable.
    fn run(&self, exe: &Path, words: &[&str]) -> String {
        let done = output_of(Command::new(&self.words[0]).args(&self.words[1..]).arg(exe).args(words));
        assert!(done.status.success(), "{words:?}: {}{}", text(&done.stderr), text(&done.stdout));
        text(&done.stdout)
    }
}

#[test]
fn aarch64_networks_match_this_machine() {
    let Some(emulator) = Emulator::named("aarch64_networks_match_this_machine") else { return };
    // Half precision rounds after each step, and int8 may be off by one, about 1/100 of the largest result.
    let f32s = |want: f64, _: f64| 1e-4 + 1e-3 * want.abs();
    let halves = |_: f64, largest: f64| 0.02 * largest;
    let bytes = |_: f64, largest: f64| 0.02 * largest;
    check(&emulator, "squeezenet", &["squeezenet1_1"], f32s);
    check(&emulator, "bf16", &["gluon/mobilenet0.25", "--dtype", "bf16"], halves);
    check(&emulator, "f16", &["gluon/mobilenet0.25", "--dtype", "f16"], halves);
    check(&emulator, "bytes", &["tests/data/onnxruntime/quantized_u8.onnx"], bytes);
}

fn check(emulator: &Emulator, name: &str, model: &[&str], near: impl Fn(f64, f64) -> f64) {
    let folder = folder(&format!("aarch64-{name}"));
    let (here, there) = (folder.join("here"), folder.join("there"));
    for folder in [&here, &there] {
        std::fs::create_dir_all(folder).expect("the target folder is writable");
    }
    let exe_here = compile(&here, model);
    let words = [model, &["--target", "cpu:aarch64", "--runner", &emulator.runner]].concat();
    let exe_there = compile(&there, &words);

    let output = emulator.run(&exe_there, &["--threads", "2"]);
    assert!(output.contains("cpu (neon), 2 threads") && output.contains("equal"), "{name}: {output}");
    let memory: serde_json::Value =
        serde_json::from_str(&emulator.run(&exe_there, &["memory", "--actual", "--json"])).expect("it is JSON");
    assert_eq!(
        (&memory["verdict"], &memory["planned"]["arena_bytes"]),
        (&"equal".into(), &memory["actual"]["arena_planned_bytes"])
    );
    assert_eq!(memory["actual"]["arena_written_bytes"], memory["actual"]["arena_planned_bytes"], "{name}");
    assert_eq!(
        (&memory["actual"]["outside_bytes"], &memory["actual"]["heap_allocations_in_run"]),
        (&0.into(), &0.into())
    );

    let run = ["run", "--synthetic", "seed:3", "--output-dir"];
    let out = |folder: &Path| folder.join("out").to_str().expect("folders of tests have plain names").to_string();
    emulator.run(&exe_there, &[&run[..], &[&out(&there)]].concat());
    let done = output_of(Command::new(&exe_here).args(run).arg(out(&here)));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let (want, got) = (outputs(&here.join("out")), outputs(&there.join("out")));
    assert_eq!((want.len(), got.len()), (1, 1), "{name}: an output each");
    let (want, got) = (want[0].to_f64(), got[0].to_f64());
    assert_eq!(want.len(), got.len(), "{name}");
    let largest = want.iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
    assert!(0.0 < largest, "{name}: there is something to compare");
    for (at, (&want, got)) in want.iter().zip(got).enumerate() {
        assert!(
            (got - want).abs() <= near(want, largest),
            "{name}: element {at} is {got}, not {want}; largest {largest}"
        );
    }
}

/// The tensors of a folder, sorted by name.
fn outputs(folder: &Path) -> Vec<Tensor> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    files.sort();
    files.iter().map(|file| npy::read(&std::fs::read(file).expect("it is there")).expect("an npy file")).collect()
}
