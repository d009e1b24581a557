//! Memory reports end to end: all formats of an executable, comparison of plans, what-if batches, old profiles.

use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;

use crate::executables::{compile, folder, json, output_of, program, text};

/// Exit code and output of `prestow` in a folder.
fn prestow(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let done = output_of(Command::new(program("prestow")).args(words).current_dir(folder));
    (done.status.code(), text(&done.stdout) + &text(&done.stderr))
}

#[test]
fn executable_writes_every_format() {
    let folder = folder("report-forms");
    let exe = compile(&folder, &["squeezenet1.1"]);
    let forms = [
        ("--html", "r.html"),
        ("--svg", "svg"),
        ("--csv", "r.csv"),
        ("--two-column", "r2.csv"),
        ("--snapshot", "r.pickle"),
        ("--snapshot", "r.json"),
        ("--trace", "r.trace"),
        ("--collapsed", "r.collapsed"),
        ("--pprof", "r.pb.gz"),
        ("--tbd", "r_ANALYSIS"),
        ("--placement", "placement.csv"),
    ];
    let words = forms.iter().flat_map(|(flag, file)| [(*flag).to_string(), folder.join(file).display().to_string()]);
    let done = output_of(Command::new(&exe).args(["memory", "--fits", "1GiB"]).args(words));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("fits         yes"), "{}", text(&done.stdout));
    for file in forms.map(|(_, file)| if file == "svg" { "svg/map.svg" } else { file }) {
        let length = std::fs::metadata(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).len();
        assert!(0 < length, "{file} is empty");
    }
    let report = json(&exe, &["memory"]);
    let total =
        report["planned"]["arena_bytes"].as_u64().unwrap() + report["planned"]["weights_bytes"].as_u64().unwrap();
    let collapsed = std::fs::read_to_string(folder.join("r.collapsed")).expect("it was written");
    let sum: u64 = collapsed.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, total);

    let no = output_of(Command::new(&exe).args(["memory", "--fits", "1MiB", "--json"]));
    assert_eq!(no.status.code(), Some(1));
    let answer: Json = serde_json::from_slice(&no.stdout).expect("--json prints JSON");
    assert_eq!((&answer["fit"]["fits"], answer["fit"]["need_bytes"].as_u64()), (&Json::from(false), Some(total)));
}

#[test]
fn report_lists_buffers_and_refused_sharing() {
    let exe = compile(&folder("report-values"), &["densenet121"]);
    let report = json(&exe, &["memory", "--actual"]);
    let planned = &report["planned"];
    let buffers = planned["buffers"].as_array().expect("a list");
    assert!(
        buffers.iter().all(|buffer| buffer["role"] == "workspace" || !buffer["values"].as_array().unwrap().is_empty())
    );
    let values = || buffers.iter().flat_map(|buffer| buffer["values"].as_array().unwrap());
    for sharing in ["own", "part"] {
        assert!(values().any(|value| value["sharing"] == sharing), "dense blocks have `{sharing}` values");
    }
    assert!(values().all(|value| !value["shape"].as_array().unwrap().is_empty()));
    assert!(buffers.iter().all(|buffer| buffer["actual"]["verdict"] == "equal"));
    assert!(planned["alive_at_peak"].as_array().unwrap().iter().all(|row| row["why"]["text"].is_string()));
    let written = report["actual"]["live_written_bytes"].as_array().unwrap();
    let steps = planned["steps"].as_array().unwrap();
    assert_eq!(written.len(), steps.len());
    assert!(written.iter().zip(steps).all(|(written, step)| written.as_u64() <= step["live_bytes"].as_u64()));
}

#[test]
fn plans_are_compared() {
    let folder = folder("report-diff");
    let a = compile(&folder, &["lenet", "--batch", "2,4"]);
    let b = folder.join("b");
    std::fs::rename(&a, &b).expect("writable");
    let a = compile(&folder, &["lenet", "--batch", "2"]);
    let report = folder.join("a.json");
    std::fs::write(&report, output_of(Command::new(&a).args(["memory", "--json"])).stdout).expect("writable");

    let (code, output) = prestow(&folder, &["diff", "model", "a.json"]);
    assert_eq!(code, Some(0), "a report equals that of its executable: {output}");
    let (code, output) = prestow(&folder, &["diff", "b", "b", "--batch", "4"]);
    assert!(code == Some(0) && output.contains("do not differ"), "{output}");
    let (code, output) = prestow(&folder, &["diff", "a.json", "b", "--json"]);
    assert_eq!(code, Some(0), "the first batch of several is planned as if it were alone: {output}");
    compile(&folder, &["lenet", "--batch", "4"]);
    let (code, output) = prestow(&folder, &["diff", "a.json", "model", "--html", "d.html", "--json"]);
    assert_eq!(code, Some(1), "{output}");
    let (code, output) = prestow(&folder, &["diff", "a.json"]);
    assert!(code == Some(2) && output.contains("<B>"), "{output}");
    let (code, output) = prestow(&folder, &["diff", "missing", "a.json"]);
    assert!(code == Some(2) && output.contains("`missing`"), "{output}");
}

#[test]
fn what_if_finds_the_largest_batch_that_fits() {
    let folder = folder("report-what-if");
    let words = ["what-if", "lenet", "--batch", "1,8", "--fits", "400KiB", "--json"];
    let (code, output) = prestow(&folder, &words);
    let answer: Json = serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}"));
    let largest = answer["largest"][0]["batch"].as_u64().expect("some fit");
    assert!(code == Some(1) && answer["largest"][0]["is_largest"] == true && (1..8).contains(&largest), "{output}");
    for variant in answer["variants"].as_array().unwrap() {
        assert_eq!(variant["fits"].as_bool().unwrap(), variant["batch"].as_u64().unwrap() <= largest);
    }
    // Each row equals the result of compiling.
    let exe = compile(&folder, &["lenet", "--batch", "8"]);
    let arena = &json(&exe, &["memory"])["planned"]["arena_bytes"];
    let variants = answer["variants"].as_array().unwrap();
    assert_eq!(&variants.iter().find(|row| row["batch"] == 8).unwrap()["arena_bytes"], arena);

    // Per dtype: half precision fits larger batches.
    let words = ["what-if", "lenet", "--batch", "1,8", "--dtype", "f32,bf16", "--fits", "400KiB", "--json"];
    let (code, output) = prestow(&folder, &words);
    let both: Json = serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}"));
    assert!(code == Some(1) && both["largest"][0] == answer["largest"][0], "{output}");
    assert!(largest < both["largest"][1]["batch"].as_u64().expect("some fit"), "{output}");

    let files = ["--html", "w.html", "--csv", "w.csv", "--svg", "w.svg"];
    let (code, output) = prestow(&folder, &[&["what-if", "lenet", "--batch", "2,1"], &files[..]].concat());
    assert_eq!(code, Some(0), "{output}");
    assert!(files.iter().filter(|file| file.starts_with('w')).all(|file| folder.join(file).exists()));
    let refused = [
        (&["what-if", "lenet", "--batch", "1", "--dtype", "f32,i8"][..], "`i8` is not supported"),
        (&["what-if", "lenet", "--batch", "1", "--dtype", "f16,f16"], "twice"),
        (&["what-if", "lenet"], "--batch"),
        (&["what-if", "lenet", "--batch", "1", "-o", "x"], "-o"),
        (&["what-if", "resnet51", "--batch", "1"], "resnet51"),
    ];
    for (words, expected) in refused {
        let (code, output) = prestow(&folder, words);
        assert!(code == Some(2) && output.contains(expected), "{words:?}: {output}");
    }
}

#[test]
fn old_profiles_are_read() {
    let folder = folder("report-import");
    let log = "[mem] Allocate 4096 bytes GPU memory (in_arg:w).\nnoise\n[mem] Allocate 8192 bytes GPU memory (att).\n";
    std::fs::write(folder.join("log"), log).expect("writable");
    std::fs::write(folder.join("old.csv"), "in_arg:w,1.5\ndata_entry:x_oedge0,2\n").expect("writable");
    std::fs::write(folder.join("g.toml"), "[layer]\nW = [\"in_arg\"]\n").expect("writable");
    let (code, output) = prestow(&folder, &["profile", "analysis", "log", "old.csv"]);
    assert!(code == Some(0) && output.contains("Attention Layer") && output.contains("Weights"), "{output}");
    let (code, output) =
        prestow(&folder, &["profile", "entries", "old.csv", "--groups", "g.toml", "--expected", "4MiB"]);
    assert!(code == Some(0) && output.contains("Untrackable") && output.contains("Others = 2.00 MiB"), "{output}");
    let (code, output) = prestow(&folder, &["profile", "import", "log", "--html", "log.html", "--csv", "log.csv"]);
    assert!(code == Some(0) && folder.join("log.html").exists(), "{output}");
    let (code, output) = prestow(&folder, &["profile", "import", "log.csv", "--fits", "12KiB"]);
    assert!(code == Some(0) && output.contains("yes: needs 12288 bytes, limit 12288 bytes"), "{output}");
    std::fs::write(folder.join("none"), "nothing of the kind").expect("writable");
    let (code, output) = prestow(&folder, &["profile", "import", "none"]);
    assert!(code == Some(2) && output.contains("`none`") && output.contains("MXNet"), "{output}");
}

#[test]
fn time_and_memory_are_one_trace() {
    let folder = folder("report-trace");
    let exe = compile(&folder, &["lenet"]);
    let trace = folder.join("t.json");
    let words = ["profile", "--warmup", "1", "--iters", "3", "--top", "2", "--trace", trace.to_str().expect("UTF-8")];
    let done = output_of(Command::new(&exe).args(words));
    let output = text(&done.stdout);
    assert!(done.status.success() && output.contains("faster steps") && output.contains("GB/s"), "{output}");
    let trace: Json = serde_json::from_slice(&std::fs::read(trace).expect("it was written")).expect("JSON");
    let events = trace["traceEvents"].as_array().unwrap();
    let steps: Vec<&Json> = events.iter().filter(|event| event["cat"] == "step").collect();
    let describe = json(&exe, &["describe"]);
    assert_eq!(Some(steps.len() as u64), describe["steps"].as_u64());
    assert!(steps.windows(2).all(|pair| pair[0]["ts"].as_f64() < pair[1]["ts"].as_f64()), "steps follow each other");
    assert!(events.iter().any(|event| event["ph"] == "C") && events.iter().any(|event| event["pid"] == 3));
}

/// A result that is a constant needs no step; every view still has something to show.
#[test]
fn views_of_a_plan_without_steps_are_shown() {
    use onnx_suite::model::{Dim, Model, info, node};
    use types::{DType, Shape, Tensor};

    let folder = folder("report-no-steps");
    let x = info("x", DType::F32, &[Dim::Is(1), Dim::Is(3)]);
    let model = Model::new(17, vec![x], vec![node("Identity", &["w"], &["y"], &[])], "y");
    let model = model.with("w", &Tensor::full(Shape::from([3, 5]), 0.25f32));
    std::fs::write(folder.join("m.onnx"), model.write()).expect("writable");
    assert_eq!(prestow(&folder, &["compile", "m.onnx", "-o", "exe"]).0, Some(0));
    let words = ["memory", "--actual", "--view", "all", "--html", "r.html", "--svg", "svg", "--trace", "r.json"];
    let done = output_of(Command::new(folder.join("exe")).args(words).current_dir(&folder));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("live bytes   over 1 steps"), "{}", text(&done.stdout));
}
