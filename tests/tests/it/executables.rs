//! Executables end to end: compile, run, measure, JSON output, and classification of photographs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value as Json;
use weights::npy;

use crate::support::{data, difference, root, skip};

/// A program that `cargo xtask test` built next to this test.
pub(crate) fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test has a file");
    let path = own.parent().and_then(Path::parent).expect("tests lie in target/release/deps").join(name);
    assert!(path.exists(), "`{}` is missing; run the tests with `cargo xtask test`", path.display());
    path
}

pub(crate) fn output_of(command: &mut Command) -> Output {
    started(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The output of a command. Linux does not start a file that is open for writing, and a process that another test starts at
/// the same time has all open files until it runs its own program: the start is then repeated.
pub(crate) fn started(command: &mut Command) -> io::Result<Output> {
    loop {
        match command.output() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => sleep(Duration::from_millis(1)),
            output => return output,
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A new folder for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = program("prestow").with_file_name("test-executables").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target folder is writable");
    path
}

pub(crate) fn compile(folder: &Path, words: &[&str]) -> PathBuf {
    let exe = folder.join("model");
    let done =
        output_of(Command::new(program("prestow")).arg("compile").args(words).arg("-o").arg(&exe).current_dir(root()));
    assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    exe
}

pub(crate) fn json(exe: &Path, words: &[&str]) -> Json {
    let done = output_of(Command::new(exe).args(words).arg("--json"));
    assert!(done.status.success(), "{words:?}: {}{}", text(&done.stderr), text(&done.stdout));
    serde_json::from_slice(&done.stdout).expect("--json prints JSON")
}

#[test]
fn executable_commands_keep_their_contract() {
    let folder = folder("contract");
    let exe = compile(&folder, &["lenet", "--batch", "2"]);

    let describe = json(&exe, &["describe"]);
    assert_eq!(describe["model"], "lenet");
    assert_eq!(describe["batch"], 2);
    assert_eq!(describe["inputs"][0]["shape"], serde_json::json!([2, 1, 28, 28]));
    assert_eq!(describe["outputs"][0]["dtype"], "f32");
    for field in ["target", "steps", "parameters", "flops", "format_version"] {
        assert!(!describe[field].is_null(), "{field}");
    }
    assert_eq!(describe["parameters"], 61_706);

    let bench = json(&exe, &["bench", "--warmup", "1", "--iters", "5", "--threads", "1"]);
    assert_eq!((&bench["iters"], &bench["threads"]), (&Json::from(5), &Json::from(1)));
    assert!(bench["latency_ms"]["p99"].is_null(), "five runs have no 99th percentile");
    for field in ["min", "p50", "p90", "mean"] {
        assert!(bench["latency_ms"][field].as_f64().is_some_and(|ms| 0.0 < ms), "{field}");
    }
    assert!(bench["throughput_per_s"].as_f64().is_some_and(|rate| 0.0 < rate));

    let planned = &json(&exe, &["memory"])["planned"];
    assert!(planned["lower_bound_bytes"].as_u64() <= planned["arena_bytes"].as_u64());
    let roles = planned["by_role"].as_object().expect("roles are an object");
    let in_arena: u64 = roles
        .iter()
        .filter(|(role, _)| !["weight", "constant"].contains(&role.as_str()))
        .map(|(_, bytes)| bytes.as_u64().unwrap())
        .sum();
    assert_eq!(Some(in_arena), planned["arena_bytes"].as_u64(), "roles at the peak add up to the arena");

    let actual = json(&exe, &["memory", "--actual"]);
    assert_eq!(actual["verdict"], "equal");
    assert_eq!(actual["actual"]["outside_bytes"], 0);
    assert_eq!(actual["actual"]["heap_allocations_in_run"], 0);
    assert_eq!(actual["actual"]["arena_written_bytes"], actual["actual"]["arena_planned_bytes"]);
    assert!(actual["actual"]["residual"].as_array().is_some_and(|items| !items.is_empty()));

    let out = folder.join("out");
    let done = output_of(Command::new(&exe).args(["run", "--synthetic", "seed:3", "--output-dir"]).arg(&out));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let logits = npy::read(&std::fs::read(out.join("logits.npy")).expect("one file an output")).expect("npy");
    assert_eq!(logits.shape()[..], [2, 10]);

    let summary = output_of(&mut Command::new(&exe));
    let screen = text(&summary.stdout);
    assert!(summary.status.success() && screen.contains("equal") && screen.lines().count() <= 24, "{screen}");
}

#[test]
fn bench_and_profile_take_inputs() {
    let folder = folder("bench-input");
    let exe = compile(&folder, &["lenet"]);
    let file = folder.join("x.npy");
    let tensor = types::Tensor::from_fn(types::Shape::from([1, 1, 28, 28]), |ix| (ix % 7) as f32);
    std::fs::write(&file, npy::write(&tensor)).expect("writable");
    let input = format!("input={}", file.display());
    let bench = json(&exe, &["bench", "--warmup", "1", "--iters", "3", "--input", &input]);
    assert!(bench["latency_ms"]["min"].as_f64().is_some_and(|ms| 0.0 < ms), "{bench}");
    let all = json(&exe, &["profile", "--warmup", "0", "--iters", "2", "--input", &input]);
    let slow = json(&exe, &["profile", "--warmup", "0", "--iters", "2", "--slow"]);
    let steps = |report: &Json| report["steps"].as_array().expect("steps are a list").clone();
    assert!(steps(&slow).len() <= steps(&all).len(), "{slow}");
    for step in steps(&slow) {
        let of = |field: &str| step[field].as_f64().expect("a fraction");
        assert!(of("of_bound") < 0.25 && 0.02 < of("share"), "{step}");
        assert_eq!(of("of_bound"), of("of_peak").max(of("of_bandwidth")));
    }
}

/// A program runs as it was started, whatever becomes of its path.
#[test]
fn executable_without_its_path_uses_its_own_file() {
    let folder = folder("own-file");
    let run = "run --json --synthetic seed:3";
    let outputs = |done: Output| {
        assert!(done.status.success(), "{}", text(&done.stderr));
        let result: Json = serde_json::from_slice(&done.stdout).expect("--json prints JSON");
        result["outputs"].clone()
    };
    let script = |text: &str| output_of(Command::new("bash").args(["-c", text]).current_dir(&folder));
    for change in ["rm model", "echo other > other && mv other model"] {
        compile(&folder, &["lenet"]);
        let want = outputs(script(&format!("exec ./model {run}")));
        assert!(want.as_array().is_some_and(|outputs| !outputs.is_empty()), "{want}");
        // The shell keeps the file open and starts it by the descriptor.
        assert_eq!(
            outputs(script(&format!("exec 9< model && {change} && exec /proc/self/fd/9 {run}"))),
            want,
            "{change}"
        );
    }
}

/// The runner maps its own file and relies on this.
#[test]
fn file_of_a_running_executable_cannot_be_written() {
    let folder = folder("busy");
    let exe = compile(&folder, &["lenet"]);
    let mut child =
        Command::new(&exe).args(["bench", "--iters", "1000000", "--threads", "1"]).spawn().expect("it starts");
    let options = |truncate: bool| std::fs::File::options().write(true).truncate(truncate).open(&exe).map(drop);
    let errors = [options(false), options(true)].map(|opened| opened.map_err(|error| error.kind()));
    child.kill().expect("it runs");
    child.wait().expect("it was started here");
    assert_eq!(errors, [Err(io::ErrorKind::ExecutableFileBusy); 2]);
}

#[test]
fn executables_are_reproducible() {
    let folder = folder("same");
    let first = std::fs::read(compile(&folder, &["lenet"])).expect("readable");
    let second = std::fs::read(compile(&folder, &["lenet"])).expect("readable");
    assert!(first == second, "two compilations differ");
    let other = std::fs::read(compile(&folder, &["lenet", "--weights", "seed:2"])).expect("readable");
    assert!(first != other, "the seed does not matter");
}

#[test]
fn bad_use_is_refused_and_writes_no_files() {
    let folder = folder("bad");
    std::fs::write(folder.join("text.onnx"), "this is no model").expect("writable");
    std::fs::write(folder.join("text.png"), "this is no picture").expect("writable");
    let exe = folder.join("none");
    let refused = |words: &[&str], expected: &str| {
        let done = output_of(Command::new(program("prestow")).args(words).arg("-o").arg(&exe).current_dir(&folder));
        let stderr = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(expected), "{words:?}: {stderr}");
        assert!(!exe.exists(), "{words:?} left a file");
    };
    refused(&["compile", "resnet51"], "resnet51");
    refused(&["compile", "missing.onnx"], "missing.onnx");
    refused(&["compile", "text.onnx"], "not an ONNX model");
    refused(&["compile", "lenet", "--batch", "0"], "--batch");
    refused(&["compile", "lenet", "--shape", "x"], "--shape");
    refused(&["compile", "lenet", "--target", "cuda:sm_70"], "cuda:sm_90");
    refused(&["compile", "lenet", "--target", "cuda:sm_90", "--tune"], "--tune");
    refused(&["compile", "lenet", "--pretrained"], "lenet");
    refused(&["compile", "lenet", "--weights", "missing.safetensors"], "missing.safetensors");
    refused(&["compile", "lenet", "--weights", "text.png"], "text.png");

    let exe = compile(&folder, &["lenet"]);
    let refused = |words: &[&str], expected: &str| {
        let done = output_of(Command::new(&exe).args(words).current_dir(&folder));
        let stderr = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(expected), "{words:?}: {stderr}");
    };
    let wrong = types::Tensor::vector(vec![1.0f32]);
    std::fs::write(folder.join("wrong.npy"), npy::write(&wrong)).expect("writable");
    refused(&["run", "--input", "input=wrong.npy"], "f32[1,1,28,28]");
    refused(&["run", "--input", "other=wrong.npy"], "`input`");
    refused(&["run", "--input", "input=missing.npy"], "missing.npy");
    refused(&["bench", "--input", "input=wrong.npy"], "f32[1,1,28,28]");
    refused(&["profile", "--input", "other=wrong.npy"], "`input`");
    refused(&["run", "--image", "text.png"], "no preprocessing for images");
    refused(&["run", "--top", "0"], "--top");
    refused(&["bench", "--iters", "x"], "--iters");
    refused(&["fly"], "fly");
    refused(&["memory", "--view", "x"], "`x` is not a view");
    refused(&["memory", "--fits", "x"], "--fits");
    refused(&["memory", "--groups", "text.png"], "[layer]");
    refused(&["memory", "--html", "text.png/x"], "text.png/x");
    refused(&["bench", "--html", "x"], "--html");
    refused(&["profile", "--csv", "x"], "--csv");
}

/// Compiles a trained network with more flags and returns its five best classes for an image of the public data.
pub(crate) fn top(test: &str, model: &str, flags: &[&str], file: &str, image: &str) -> Option<Vec<(String, f64)>> {
    let image = data(test, &format!("images/{image}"))?;
    data(test, file)?;
    let folder = folder(&format!("{model}-{}{}", image.file_stem()?.to_str()?, flags.concat()));
    let exe = compile(&folder, &[&[model, "--pretrained"], flags].concat());
    let found = json(&exe, &["run", "--top", "5", "--image", image.to_str()?]);
    let row = |row: &Json| (row["label"].as_str().unwrap_or("").to_string(), row["score"].as_f64().unwrap_or(0.0));
    Some(found["top"].as_array()?.iter().map(row).collect())
}

/// Checks the best classes and their probabilities, to 0.01.
fn expect_top(test: &str, model: &str, file: &str, image: &str, want: &[(&str, f64)]) {
    let Some(got) = top(test, model, &[], file, image) else { return };
    for ((label, score), (want_label, want_score)) in got.iter().zip(want) {
        assert!(label.contains(want_label), "{image}: {got:?}");
        assert!((score - want_score).abs() <= 0.01, "{image}: {got:?}, not {want:?}");
    }
}

pub(crate) const SQUEEZENET: &str = "models/squeezenet11_imagenet_hwio.pkl";
const EFFICIENTNET: &str = "models/efficientnet-lite0-57934424.pth";

#[test]
fn squeezenet_classifies_a_cat() {
    let want = [("tabby", 0.355), ("Egyptian cat", 0.353), ("tiger cat", 0.289)];
    expect_top("executables::squeezenet_knows_a_cat", "squeezenet1.1", SQUEEZENET, "chelsea.png", &want);
}

#[test]
fn squeezenet_classifies_coffee() {
    expect_top(
        "executables::squeezenet_knows_coffee",
        "squeezenet1.1",
        SQUEEZENET,
        "coffee.png",
        &[("espresso", 0.984)],
    );
}

#[test]
fn efficientnet_classifies_a_cat() {
    let want = [("tiger cat", 0.417), ("Egyptian cat", 0.327), ("tabby", 0.173)];
    expect_top("executables::efficientnet_knows_a_cat", "efficientnet_lite0", EFFICIENTNET, "chelsea.png", &want);
}

#[test]
fn efficientnet_classifies_coffee() {
    let test = "executables::efficientnet_knows_coffee";
    expect_top(test, "efficientnet_lite0", EFFICIENTNET, "coffee.png", &[("espresso", 0.951)]);
}

#[test]
fn minilm_embeds_sentences() {
    let test = "executables::minilm_knows_what_sentences_mean";
    if data(test, "models/all-minilm-l6-v2/model.safetensors").is_none() {
        return;
    }
    // Three sentences, padded to 32 tokens, and their embeddings from transformers 4.57 and PyTorch.
    let known = |name: &str| root().join(format!("tests/data/minilm/{name}.npy"));
    let array =
        |path: &Path| npy::read(&std::fs::read(path).expect("it is there")).expect("it is an npy file").to_f64();
    let inputs = [("input_ids", "ids"), ("token_type_ids", "kinds"), ("attention_mask", "mask")];
    let want = array(&known("emb"));
    for (dtype, tolerance) in [("f32", 1e-5), ("bf16", 1e-2), ("f16", 1e-3)] {
        let folder = folder(&format!("minilm-{dtype}"));
        let shapes = inputs.map(|(name, _)| format!("{name}=3x32"));
        let mut words = vec!["all-MiniLM-L6-v2", "--pretrained", "--batch", "3", "--dtype", dtype];
        shapes.iter().for_each(|shape| words.extend(["--shape", shape]));
        let exe = compile(&folder, &words);
        let mut run = Command::new(&exe);
        run.arg("run").arg("--output-dir").arg(&folder);
        for (name, file) in inputs {
            run.arg("--input").arg(format!("{name}={}", known(file).display()));
        }
        let done = output_of(&mut run);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let got = array(&folder.join("sentence_embedding.npy"));
        let furthest = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
        assert!(got.len() == want.len() && furthest <= tolerance, "{dtype}: {furthest}");
        let alike = |a: usize, b: usize| (0..384).map(|at| got[a * 384 + at] * got[b * 384 + at]).sum::<f64>();
        assert!(alike(0, 1) + 0.2 < alike(0, 2), "two are about memory before anything runs, the other is about a cat");
    }
}

#[test]
fn several_batches_share_an_arena_and_the_weights() {
    let folder = folder("batches");
    let one = std::fs::metadata(compile(&folder, &["lenet"])).expect("it was written").len();
    let exe = compile(&folder, &["lenet", "--batch", "1,8,3"]);
    let all = std::fs::metadata(&exe).expect("it was written").len();
    assert!(all < one + 100_000, "the weights are there once: {one} bytes alone, {all} for three batches");

    let describe = json(&exe, &["describe"]);
    assert_eq!(describe["batches"], serde_json::json!([1, 8, 3]));
    let arena = |batch: &str| json(&exe, &["memory", "--batch", batch])["planned"]["arena_bytes"].clone();
    assert_eq!(describe["arena_bytes"], arena("8"));
    assert!(arena("1").as_u64() < arena("3").as_u64() && arena("3").as_u64() < arena("8").as_u64());
    for batch in ["1", "8", "3"] {
        let report = json(&exe, &["memory", "--actual", "--batch", batch]);
        assert_eq!(report["verdict"], "equal", "batch {batch}");
        let shape = &json(&exe, &["run", "--batch", batch])["outputs"][0]["shape"];
        assert_eq!(shape[0].as_u64(), batch.parse().ok());
    }
    let done = output_of(Command::new(&exe).args(["run", "--batch", "2"]));
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("1, 8, 3"), "{}", text(&done.stderr));
}

#[test]
fn weights_are_packed_for_the_batch() {
    let folder = folder("images");
    let size = |batches: &str| {
        std::fs::metadata(compile(&folder, &["squeezenet1_1", "--batch", batches])).expect("it was written").len()
    };
    let (one, eight) = (size("1"), size("8"));
    // Larger Winograd tiles have more weights, which do not pay off for small batches.
    assert!(one + 1_000_000 < eight, "{one} bytes for one picture, {eight} for eight");
    // Compiled for both batches, the executable has those of the smaller one, once.
    assert!(size("8,1") < one + 100_000);
}

#[test]
fn budget_is_kept_or_the_smallest_arena_is_reported() {
    let folder = folder("budget");
    let logits = |exe: &Path, name: &str| {
        let out = folder.join(name);
        let done = output_of(Command::new(exe).args(["run", "--synthetic", "seed:3", "--output-dir"]).arg(&out));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let bytes = std::fs::read(out.join("logits.npy")).expect("one file an output");
        npy::read(&bytes).expect("it is one").to_f64()
    };
    let free = logits(&compile(&folder, &["lenet", "--batch", "16"]), "free");
    let exe = compile(&folder, &["lenet", "--batch", "16", "--budget", "300KiB"]);
    let report = json(&exe, &["memory", "--actual"]);
    assert_eq!(report["verdict"], "equal");
    assert!(report["planned"]["arena_bytes"].as_u64() <= Some(300 << 10), "{}", report["planned"]["arena_bytes"]);
    let limit = &report["planned"]["limit"];
    assert_eq!(limit["bytes"].as_u64(), Some(300 << 10));
    assert!(limit["unlimited_bytes"].as_u64() > Some(300 << 10) && limit["time_ratio"].as_f64() > Some(0.0), "{limit}");
    let differs = logits(&exe, "fitted").iter().zip(&free).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
    assert!(differs < 1e-5, "no more than rounding: {differs}");

    let prestow = |budget: &str| {
        let words = ["compile", "lenet", "--budget", budget, "-o", "none"];
        output_of(Command::new(program("prestow")).args(words).current_dir(&folder))
    };
    for (budget, expected) in
        [("1KiB", "the smallest arena found needs"), ("a lot", "`a lot` is not a number of bytes")]
    {
        let done = prestow(budget);
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains(expected), "{}", text(&done.stderr));
    }
    assert!(!folder.join("none").exists());
}

#[test]
fn tuning_file_replaces_measurements() {
    let folder = folder("tune");
    let cache = folder.join("tuned.tsv");
    let tuned = |name: &str| {
        let exe = folder.join(name);
        let words = [
            "compile",
            "squeezenet1_1",
            "--shape",
            "input=1x3x64x64",
            "--tune=0.5",
            "--tune-threads",
            "1",
            "--json",
            "--tune-cache",
        ];
        let mut command = Command::new(program("prestow"));
        let done = output_of(command.args(words).arg(&cache).arg("-o").arg(&exe).current_dir(root()));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let report: Json = serde_json::from_slice(&done.stdout).expect("--json prints JSON");
        (std::fs::read(&exe).expect("it was written"), report["tuned"].clone(), text(&done.stderr))
    };
    let (first, report, stderr) = tuned("first");
    let layers = report["layers"].as_u64().expect("a number");
    assert!(3 <= layers && report["measured"] == layers, "{report}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("tuning ")).count() as u64, layers);
    let rows = std::fs::read_to_string(&cache).expect("it was written");
    // Layers may share kernels.
    assert!(layers <= rows.lines().filter(|line| !line.starts_with('#')).count() as u64, "{rows}");

    // With the same file: the same bytes, without measuring.
    let (again, report, stderr) = tuned("again");
    assert_eq!((first == again, &report["measured"], &stderr[..]), (true, &Json::from(0), ""));

    // Times in the file decide: one algorithm takes none.
    let outputs: Vec<String> = ["ConvBlocked", "tile: 2", "tile: 6"]
        .map(|algorithm| {
            let line = |line: &str| match line.rsplit_once('\t') {
                Some((kernel, _)) if kernel.contains(algorithm) => format!("{kernel}\t0"),
                _ => line.to_string(),
            };
            std::fs::write(&cache, rows.lines().map(line).collect::<Vec<_>>().join("\n")).expect("writable");
            tuned(algorithm);
            let exe = folder.join(algorithm);
            let profile = json(&exe, &["profile", "--warmup", "0", "--iters", "1"]);
            let steps = profile["steps"].as_array().expect("a list");
            let winograd = steps.iter().filter(|step| step["kernel"] == "winograd").count() as u64;
            // One convolution of 3 x 3 in each of eight modules.
            assert_eq!(winograd, if algorithm == "ConvBlocked" { 0 } else { 8 }, "{algorithm}");
            let out = folder.join(format!("{algorithm}.out"));
            let done = output_of(Command::new(&exe).arg("run").arg("--output-dir").arg(&out));
            assert!(done.status.success(), "{}", text(&done.stderr));
            out.join("logits.npy").display().to_string()
        })
        .into();
    let results = outputs.iter().map(|path| npy::read(&std::fs::read(path).expect("it was written")));
    let results: Vec<_> = results.map(|result| result.expect("it is npy")).collect();
    let largest = results[0].to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
    for result in &results[1..] {
        assert_eq!(difference(result, &results[0], 0.0, 1e-4 * largest), None);
    }
}

#[test]
fn arena_command_places_and_checks_problems() {
    let folder = folder("arena");
    let table = root().join("crates/arena/tests/data/A.1048576.csv");
    let table = table.to_str().expect("the path is UTF-8");
    let placed = folder.join("placed.csv");
    let place = |words: &[&str]| {
        output_of(Command::new(program("prestow")).arg("arena").args(words).arg("--json").current_dir(&folder))
    };

    let done = place(&[table, "--capacity", "1048576", "-o", "placed.csv"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: Json = serde_json::from_slice(&done.stdout).expect("--json prints JSON");
    assert_eq!(report["height_bytes"], 1_048_576);
    assert_eq!(report["state"], "optimal_by_bound");
    // The output is the same problem with all offsets; they are accepted as fixed offsets.
    let placed = placed.to_str().expect("the path is UTF-8");
    let again = place(&[placed, "--budget", "0"]);
    let report: Json = serde_json::from_slice(&again.stdout).expect("--json prints JSON");
    assert_eq!((again.status.code(), &report["height_bytes"]), (Some(0), &Json::from(1_048_576)));

    let done = place(&[table, "--capacity", "1048575"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("\"impossible\""), "{}", text(&done.stdout));
    let done = place(&[table, "--capacity", "1048576", "--budget", "0"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stdout).contains("\"not_found\""), "{}", text(&done.stdout));

    std::fs::write(folder.join("bad.csv"), "id,lower\nx,0\n").expect("writable");
    let clash = "id,lower,upper,size,offset\nleft wing,0,5,10,0\nright wing,2,4,10,5\n";
    std::fs::write(folder.join("clash.csv"), clash).expect("writable");
    let both = "`left wing` and `right wing`";
    for (words, expected) in [(["bad.csv"], "upper"), (["missing.csv"], "missing.csv"), (["clash.csv"], both)] {
        let done = place(&words);
        assert_eq!(done.status.code(), Some(2), "{words:?}");
        assert!(text(&done.stderr).contains(expected), "{words:?} expected {}", text(&done.stderr));
    }
}

#[test]
fn documents_state_the_plan_format() {
    let version = plan::image::FORMAT_VERSION;
    for (file, says) in
        [("README.md", format!("plan format {version}\n")), ("docs/reference/plan-format.md", format!("**{version}**"))]
    {
        let text = std::fs::read_to_string(root().join(file)).expect("it is there");
        assert!(text.contains(&says), "{file} does not state plan format {version}");
    }
}

#[test]
fn command_reference_is_up_to_date() {
    let printed = text(&output_of(Command::new(program("prestow")).arg("reference")).stdout);
    let path = root().join("docs/reference/cli.md");
    if crate::environment("PRESTOW_BLESS").is_some() {
        std::fs::write(&path, &printed).expect("the repository is writable");
    }
    let found = std::fs::read_to_string(&path).expect("it is checked in");
    assert!(found == printed, "docs/reference/cli.md is stale; PRESTOW_BLESS=1 writes it");
}

#[test]
fn help_and_version_are_commands() {
    let prestow = |words: &[&str]| {
        let done = output_of(Command::new(program("prestow")).args(words));
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let help = prestow(&["compile", "--help"]);
    assert!(help.0 == Some(0) && help.1.contains("--budget") && !help.1.contains("--capacity"), "{help:?}");
    assert_eq!(prestow(&["help", "compile"]).1, help.1);
    assert_eq!(prestow(&[]).0, Some(0));
    assert_eq!(prestow(&["version"]), prestow(&["--version"]));
    let unknown = prestow(&["compile", "resnet51"]);
    assert!(
        unknown.0 == Some(2) && unknown.2.contains("`resnet50`") && unknown.2.contains("prestow models"),
        "{unknown:?}"
    );
    assert!(unknown.2.lines().count() == 1 && unknown.2.len() < 200, "{unknown:?}");
    let completions = prestow(&["completions", "bash"]);
    assert!(completions.0 == Some(0) && completions.1.contains("--cublas-workspace"), "{completions:?}");
}

#[test]
fn mxnet_symbol_compiles_to_an_executable() {
    let folder = folder("mxnet");
    let file = |name: &str| format!("tests/data/mxnet/mnist_cnn{name}");
    let exe = compile(
        &folder,
        &[&file("-symbol.json"), "--params", &file("-0000.params"), "--shape", "data=0x1x28x28", "--batch", "4"],
    );
    assert_eq!(json(&exe, &["describe"])["model"], "mnist_cnn");
    let (input, out) = (root().join(file("_input.npy")), folder.join("out"));
    let mut run = Command::new(&exe);
    let done = output_of(run.arg("run").arg(format!("--input=data={}", input.display())).arg("--output-dir").arg(&out));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let read = |path: PathBuf| npy::read(&std::fs::read(path).expect("it is there")).expect("an npy file");
    let outputs: Vec<PathBuf> =
        std::fs::read_dir(&out).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    let [output] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(difference(&read(output.clone()), &read(root().join(file("_output.npy"))), 1e-4, 1e-5), None);

    // Without weights, and with a flag of other models.
    for (words, want) in [
        (vec![file("-symbol.json")], "--params NET-0000.params"),
        (vec!["lenet".into(), "--params".into(), file("-0000.params")], "remove --params"),
    ] {
        let done = output_of(Command::new(program("prestow")).arg("compile").args(words).current_dir(root()));
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains(want), "{}", text(&done.stderr));
    }
}

/// A function that is not inlined into one of an instruction set is compiled without it. It then calls each vector instruction
/// as a function of the standard library, which takes many times as long.
#[test]
fn no_vector_instruction_is_behind_a_call() {
    if cfg!(any(debug_assertions, not(target_arch = "x86_64"))) {
        skip("no_vector_instruction_is_behind_a_call", "it needs an optimized build for x86-64");
        return;
    }
    let bytes = std::fs::read(program("prestow-runner")).expect("it was built");
    let names = bytes.split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let names: Vec<&str> = names.filter(|name| name.contains("core_arch")).collect();
    // How the instruction set is detected.
    assert!(names.iter().any(|name| name.contains("xgetbv")), "the symbols of the program are missing");
    let called: Vec<&&str> = names.iter().filter(|name| name.contains("_mm")).collect();
    assert!(called.is_empty(), "{called:#?}");
}
