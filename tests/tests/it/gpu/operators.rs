//! `prestow-gpu-check --operators` on the driver's mock. NVRTC's mock compiles the kernels for the processor. Right,
//! wrong, refused and failed cases each get their verdict.

use std::path::PathBuf;

use cuda_mock::Library;
use lower::cuda::Source;
use serde_json::Value as Json;

use crate::executables::{folder, program, text};
use crate::gpu::{NO_COMPILER, build_cudnn, build_driver, build_mock, without_libraries};
use crate::support::skip;

/// Creates a folder with mocks of the driver and NVRTC. Returns `None` after reporting that `test` is skipped.
pub(super) fn tools(test: &str, name: &str) -> Option<PathBuf> {
    let folder = folder(name);
    let kernels = folder.join("kernels.inc");
    std::fs::write(&kernels, Source::default().for_shim()).expect("the folder is ours");
    let is_built = build_driver(&folder, &kernels) && build_mock(Library::Nvrtc, &folder);
    if !is_built {
        skip(test, NO_COMPILER);
    }
    is_built.then_some(folder)
}

/// Output and report of `prestow-gpu-check`.
struct Said {
    code: Option<i32>,
    text: String,
    report: Json,
}

impl Said {
    /// The verdicts of a case, in the order of dtypes.
    fn verdicts(&self, case: &str) -> Vec<&str> {
        let rows = self.report["operators"].as_array().expect("there are rows").iter();
        rows.filter(|row| row["case"] == case).filter_map(|row| row["verdict"].as_str()).collect()
    }

    fn row(&self, case: &str) -> &Json {
        let mut rows = self.report["operators"].as_array().expect("there are rows").iter();
        rows.find(|row| row["case"] == case).unwrap_or_else(|| panic!("{case}: {}", self.text))
    }
}

fn check(tools: &std::path::Path, words: &[&str], variables: &[(&str, &str)]) -> Said {
    let file = tools.join("report.json");
    if !words.contains(&"--resume") {
        let _ = std::fs::remove_file(&file);
    }
    let mut command = without_libraries(&program("prestow-gpu-check"));
    command.args(words).args(["--peers", "none"]);
    if !words.contains(&"--dtype") {
        command.args(["--dtype", "f32"]);
    }
    command.arg("--data").arg(tools.join("nothing")).arg("-o").arg(&file);
    // NVRTC's mock calls the C++ compiler.
    command.env("PATH", crate::environment("PATH").unwrap_or_default());
    command.env("LD_LIBRARY_PATH", tools).env("PRESTOW_CUDA_LIBS", tools);
    command.env("PRESTOW_MOCK_NVRTC_SHIM", cuda_mock::headers()).envs(variables.iter().copied());
    let out = command.output().expect("it is built");
    let report = std::fs::read(&file).map_or(Json::Null, |bytes| serde_json::from_slice(&bytes).expect("it is JSON"));
    let text = text(&out.stdout) + &text(&out.stderr);
    assert!(!text.contains("panicked"), "{text}");
    Said { code: out.status.code(), text, report }
}

/// A case of each sort: products (on tensor cores in half precision), a row, a function, an unsupported operator.
const SOME: [&str; 10] = [
    "--only",
    "tiled matmul 65x17x63",
    "--only",
    "softmax of rows [3, 257]",
    "--only",
    "hard_swish",
    "--only",
    "maximum of bytes",
    "--only",
    "linear 12",
];

#[test]
fn operator_cases_have_verdicts_in_every_precision() {
    let test = "gpu::operators::operator_cases_have_verdicts_in_every_precision";
    let Some(tools) = tools(test, "gpu-operators") else { return };
    let said = check(&tools, &[&SOME[..], &["--dtype", "f32,tf32,f16,bf16"]].concat(), &[]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert_eq!(said.verdicts("tiled matmul 65x17x63"), ["equal"; 4]);
    assert_eq!(said.verdicts("tiled matmul 65x17x63, 11-bit operands"), ["equal"]);
    assert_eq!(said.verdicts("tiled matmul 65x17x63, all f16"), ["equal"]);
    // An activation may amplify the rounding error, so TF32 runs this case with operands of eleven bits only.
    assert_eq!((said.verdicts("linear 12").len(), said.verdicts("linear 12, 11-bit operands")), (3, vec!["equal"]));
    assert_eq!(said.verdicts("hard_swish"), ["equal"; 2]);
    assert_eq!(said.verdicts("hard_swish, all bf16"), ["equal"]);
    assert_eq!(said.verdicts("maximum of bytes"), ["refused"; 4]);
    assert!(said.row("maximum of bytes")["reason"].as_str().is_some_and(|reason| reason.contains("u8")));
    assert!(said.text.contains("refused: f32 tf32 f16 bf16, maximum of bytes: for `pool`"), "{}", said.text);
    // The error of a product of rounded operands is not zero.
    let rows = said.report["operators"].as_array().expect("there are rows");
    let rounded = rows.iter().find(|row| row["dtype"] == "tf32" && row["case"] == "tiled matmul 65x17x63");
    assert!(rounded.is_some_and(|row| row["of_tolerance"].as_f64().is_some_and(|part| 0.01 < part && part <= 1.0)));
    let sums = said.report["operators_summary"].as_array().expect("there are sums");
    let dtypes: Vec<&str> = sums.iter().filter_map(|sum| sum["dtype"].as_str()).collect();
    assert_eq!(dtypes, ["f32", "tf32", "f16", "bf16"]);
    for sum in sums {
        let count = |key: &str| sum[key].as_u64().expect("it is counted");
        let own = rows.iter().filter(|row| row["dtype"] == sum["dtype"]).count() as u64;
        assert_eq!(count("cases"), own, "{sum}");
        assert_eq!((count("equal") + count("refused"), count("refused")), (own, 1), "{sum}");
        assert_eq!(["right", "wrong", "other_memory", "failed"].map(count), [0; 4], "{sum}");
    }
    assert_eq!(said.report["networks"], serde_json::json!([]));
}

#[test]
fn a_stopped_check_is_resumed_and_repeats_no_row() {
    let test = "gpu::operators::a_stopped_check_is_resumed_and_repeats_no_row";
    let Some(tools) = tools(test, "gpu-operators-resumed") else { return };
    let words = ["--only", "hard_swish", "--dtype", "f32,bf16"];
    let stopped = check(&tools, &[&words[..], &["--minutes", "0.000001"]].concat(), &[]);
    assert!(stopped.text.contains("stopped by --minutes"), "{}", stopped.text);
    assert!(stopped.report["remaining"].as_u64().is_some_and(|count| 0 < count), "{}", stopped.report);
    assert_eq!(stopped.verdicts("hard_swish"), [""; 0]);
    let resume = [&words[..], &["--resume"]].concat();
    let resumed = check(&tools, &resume, &[]);
    assert_eq!((resumed.code, resumed.verdicts("hard_swish")), (Some(0), vec!["equal"]), "{}", resumed.text);
    assert_eq!(resumed.verdicts("hard_swish, all bf16"), ["equal"]);
    assert_eq!(resumed.report["remaining"].as_u64().unwrap_or(0), 0);
    // Nothing remains, so nothing is launched.
    let again = check(&tools, &resume, &[("PRESTOW_MOCK_FAIL", "cuModuleLoadData:1:999")]);
    assert_eq!((again.code, again.report["operators"].clone()), (Some(0), resumed.report["operators"].clone()));
}

#[test]
fn operator_cases_run_with_libraries() {
    let test = "gpu::operators::operator_cases_run_with_libraries";
    let Some(tools) = tools(test, "gpu-operators-libraries") else { return };
    assert!(build_cudnn(&tools), "the driver was built");
    let words = ["--only", "tiled matmul 65x17x63", "--only", "tiled conv [1, 16, 16, 16]", "--dtype", "f32,tf32,f16"];
    let said = check(&tools, &[&words[..], &["--cudnn", "--cublas", "--cublas-workspace", "64KiB"]].concat(), &[]);
    assert!(said.code == Some(0) && said.text.contains("cuDNN 9.19.0"), "{}", said.text);
    assert_eq!(said.verdicts("tiled matmul 65x17x63"), ["equal"; 3]);
    let rows = said.report["operators"].as_array().expect("there are rows");
    // For row-major half-precision operands, a convolution by cuDNN is not worth its relayouts.
    for (case, kernel, count) in [("tiled matmul", "cublaslt_product", 4), ("tiled conv", "cudnn_conv", 3)] {
        let own = rows.iter().filter(|row| row["case"].as_str().is_some_and(|name| name.starts_with(case)));
        let is_in = |row: &&Json| row["kernels"].as_array().is_some_and(|all| all.contains(&kernel.into()));
        assert_eq!(own.filter(is_in).count(), count, "{rows:#?}");
    }
}

/// Constants and run-time inputs have the layout that cuDNN's engines read.
#[test]
fn operands_have_the_layout_of_the_library() {
    let test = "gpu::operators::operands_have_the_layout_of_the_library";
    let Some(tools) = tools(test, "gpu-operators-operands") else { return };
    assert!(build_cudnn(&tools), "the driver was built");
    let words = ["--only", "known residual of 72", "--only", "conv 3:", "--dtype", "f16", "--cudnn"];
    let said = check(&tools, &words, &[]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    let turned = said.row("tiled conv with a known residual of 72 channels, all f16");
    assert_eq!(turned["kernels"], serde_json::json!(["cuda_move", "cudnn_conv", "cuda_move"]), "it lies by channels");
    let rows = said.report["operators"].as_array().expect("there are rows");
    let with_run = rows.iter().filter(|row| row["case"].as_str().is_some_and(|name| name.starts_with("conv 3:")));
    let kernels: Vec<&Json> = with_run.map(|row| &row["kernels"][0]).collect();
    assert_eq!(kernels, ["cuda_pointwise", "cudnn_conv"]);
}

#[test]
fn wrong_results_and_writes_are_located() {
    let test = "gpu::operators::wrong_results_and_writes_are_located";
    let Some(tools) = tools(test, "gpu-operators-wrong") else { return };
    let softmax = "softmax of rows [3, 257] true";
    let changed = |change: &str| check(&tools, &SOME, &[("PRESTOW_MOCK_NVRTC_REPLACE", change)]);
    let others = |said: &Said| {
        assert_eq!(said.code, Some(1), "{}", said.text);
        assert_eq!(said.verdicts("tiled matmul 65x17x63"), ["equal"]);
        assert_eq!(said.verdicts("maximum of bytes"), ["refused"]);
    };

    // A changed sum.
    let said = changed("shifted - log(sum)=>shifted - log(sum) - (at == 5 ? 1.0f : 0.0f)");
    others(&said);
    assert_eq!(said.verdicts(softmax), ["WRONG"]);
    let row = said.row(softmax);
    assert_eq!((&row["index"], &row["output"], row["wrong_elements"].as_u64()), (&[0, 5].into(), &"y".into(), Some(3)));
    let number = |key: &str| row[key].as_str().and_then(|text| text.parse::<f64>().ok()).expect("it is a number");
    assert!((number("want") - number("got") - 1.0).abs() < 1e-4, "{row}");
    assert!(said.text.contains(&format!("WRONG: f32, {softmax}: y[0, 5] is ")), "{}", said.text);
    assert!(said.text.contains("3 of 771 elements differ"), "{}", said.text);

    // A write past the last element.
    let said = changed("if (105 <= i) return;=>if (105 <= i) { if (i < 110) y[i] = 1.0f; return; }");
    others(&said);
    assert_eq!((said.verdicts("hard_swish"), said.verdicts(softmax)), (vec!["OTHER MEMORY"], vec!["equal"]));
    assert!(said.text.contains("OTHER MEMORY: f32, hard_swish: 420 of 420 planned bytes"), "{}", said.text);

    // A compile error belongs to its own case, not to the cases compiled with it.
    let said = changed("softmax<257=>softmix<257");
    others(&said);
    assert_eq!((said.verdicts("hard_swish"), said.verdicts(softmax)), (vec!["equal"], vec!["FAILED"]));
    assert!(said.row(softmax)["reason"].as_str().is_some_and(|reason| reason.contains("softmix")), "{}", said.text);
}

#[test]
fn failures_are_reported_per_case() {
    let test = "gpu::operators::failures_are_reported_per_case";
    let Some(tools) = tools(test, "gpu-operators-failed") else { return };
    let verdicts = |said: &Said| -> Vec<String> {
        let rows = said.report["operators"].as_array().expect("there are rows").iter();
        rows.filter_map(|row| row["verdict"].as_str()).map(str::to_string).collect()
    };
    // A single failure: later cases run.
    let said = check(&tools, &SOME, &[("PRESTOW_MOCK_FAIL", "cuGraphLaunch:2:999")]);
    assert!(said.code == Some(1) && said.text.contains("the GPU failed at launching a CUDA graph"), "{}", said.text);
    let failed = verdicts(&said).iter().filter(|verdict| *verdict == "FAILED").count();
    assert_eq!((failed, verdicts(&said).len()), (1, 5), "{}", said.text);
    // A lost GPU: later cases do not run, and the report names the case that lost it.
    let said = check(&tools, &SOME, &[("PRESTOW_MOCK_FAIL", "cuGraphLaunch:2:719")]);
    assert!(said.code == Some(1) && said.text.contains("the GPU was lost at"), "{}", said.text);
    assert_eq!(verdicts(&said), ["FAILED", "refused", "FAILED", "FAILED", "FAILED"], "{}", said.text);
    assert_eq!(said.text.matches("not run: the GPU does not answer since `hard_swish`").count(), 3, "{}", said.text);
}

#[test]
fn only_option_selects_cases() {
    let test = "gpu::operators::only_option_selects_cases";
    let Some(tools) = tools(test, "gpu-operators-asked") else { return };
    let count = |said: &Said, key: &str| said.report[key].as_array().map_or(0, Vec::len);
    let counts = |words: &[&str]| {
        let said = check(&tools, words, &[]);
        assert_eq!(said.code, Some(0), "{words:?}: {}", said.text);
        (count(&said, "operators"), count(&said, "networks"))
    };
    assert_eq!(counts(&["--only", "hard_swish"]), (1, 0));
    for (words, says) in [
        (&["--only", "nonesuch"][..], "--only nonesuch: no operator case has that in its name"),
        (&["--only", "conv", "--dtype", "f64"], "f32, tf32, f16, bf16"),
        (&["--operators=conv"], "--operators"),
    ] {
        let said = check(&tools, words, &[]);
        assert!(said.code == Some(2) && said.text.contains(says), "{words:?}: {}", said.text);
    }
}
