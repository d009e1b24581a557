//! The ONNX backend test suite, for any executor: each test is loaded, executed and compared with its recorded results, or
//! refused with a reason. [`model`] writes small ONNX models.
//!
//! Many of these tests pass shapes, axes or scales as run-time inputs that an exporter would have made constant. A test
//! that is refused is therefore repeated with all inputs but the first constant, then with all inputs constant.

pub mod model;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ir::Graph;
use load::onnx::{self, Options};
use types::{DType, Tensor};

use model::{fix_inputs_to, input_names};

/// Tests that are skipped, by prefix of their names: random results, gradients, strings, images.
const SKIPPED: &[&str] =
    &["test_bernoulli", "test_gradient", "test_image_decoder", "test_regex_full_match", "test_string_", "test_strnorm"];

/// Tests whose recorded results are wrong; ONNX Runtime differs from them too.
const DIFFERS: &[&str] = &[
    // Recorded with an epsilon of 0.01, which the model does not have. ONNX Runtime does not have the operator.
    "test_adam_multiple",
    // The recorded mean also counts cells of the last window that are outside the padding.
    "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
    // Recorded results beyond i8 wrap around; the specification saturates.
    "test_qlinearmatmul_2D_int8_float16",
    "test_qlinearmatmul_2D_int8_float32",
    "test_qlinearmatmul_3D_int8_float16",
    "test_qlinearmatmul_3D_int8_float32",
    // Recorded with the output extent before rounding down, `2.4 - 1` instead of `2 - 1`.
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
];

enum Outcome {
    Passed { fixed: &'static str },
    Refused(String),
    Failed(String),
}

#[derive(Default)]
struct Count {
    unchanged: usize,
    some_constant: usize,
    all_constant: usize,
    refused: usize,
    failed: usize,
    differs: usize,
    skipped: usize,
}

/// Executes a graph on its inputs.
pub type Execute<'a> = &'a dyn Fn(Graph, &[Tensor]) -> Result<Vec<Tensor>, Failure>;

/// Why an executor has no results.
pub enum Failure {
    /// The graph is not supported; found before anything ran.
    Unsupported(String),
    /// A defect.
    Defect(String),
}

/// The snapshot of counts and refusals, one for all executors.
fn snapshot() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("refusals.txt")
}

/// Runs the suite in folder `root` and compares the refusals with the snapshot, or writes that if `bless`.
///
/// # Panics
/// If a test fails, or if the set of refused tests or a reason changes.
pub fn check_suite(root: &Path, bless: bool, execute: Execute) {
    let (mut refusals, mut failures, mut table) = (String::new(), String::new(), String::new());
    for set in ["node", "simple", "pytorch-converted", "pytorch-operator"] {
        let mut count = Count::default();
        for folder in sorted(&root.join(set)) {
            let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
            if SKIPPED.iter().any(|skipped| name.starts_with(skipped)) {
                count.skipped += 1;
                continue;
            }
            let outcome = check(&folder, execute);
            if DIFFERS.contains(&name.as_str()) {
                assert!(
                    matches!(outcome, Outcome::Failed(_)),
                    "{name} agrees with the recorded results: remove it from `DIFFERS`"
                );
                count.differs += 1;
                continue;
            }
            match outcome {
                Outcome::Passed { fixed: "none" } => count.unchanged += 1,
                Outcome::Passed { fixed: "some" } => count.some_constant += 1,
                Outcome::Passed { .. } => count.all_constant += 1,
                Outcome::Refused(reason) => {
                    count.refused += 1;
                    writeln!(refusals, "{set}/{name}: {}", reason.replace('\n', " | ")).expect("a string takes all");
                }
                Outcome::Failed(reason) => {
                    count.failed += 1;
                    writeln!(failures, "{set}/{name}: {reason}").expect("a string takes all");
                }
            }
        }
        let Count { unchanged, some_constant, all_constant, refused, failed, differs, skipped } = count;
        let passed = unchanged + some_constant + all_constant;
        writeln!(
            table,
            "# {set}: {passed} passed ({unchanged} unchanged, {some_constant} with all inputs but the first constant, \
             {all_constant} with all constant), {refused} refused, {failed} failed, {differs} recorded wrong, {skipped} skipped"
        )
        .expect("a string takes all");
    }
    eprint!("{table}");
    assert!(failures.is_empty(), "failed:\n{failures}");
    let text = format!("{table}{refusals}");
    if bless {
        std::fs::write(snapshot(), &text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(snapshot()).unwrap_or_default();
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), text.lines().collect());
    let gone: Vec<&&str> = expected.iter().filter(|line| !found.contains(line)).collect();
    let new: Vec<&&str> = found.iter().filter(|line| !expected.contains(line)).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "tests/onnx/refusals.txt differs (PRESTOW_BLESS=1 writes it)\ngone: {gone:#?}\nnew: {new:#?}"
    );
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("readable").path()).collect();
    entries.sort();
    entries
}

fn check(folder: &Path, execute: Execute) -> Outcome {
    let model = std::fs::read(folder.join("model.onnx")).expect("each test has a model");
    let mut passed = None;
    for set in sorted(folder).into_iter().filter(|path| path.is_dir()) {
        match check_set(&model, &set, execute) {
            Outcome::Passed { fixed } => passed = Some(fixed),
            other => return other,
        }
    }
    passed.map_or_else(|| Outcome::Failed("there is no data".to_string()), |fixed| Outcome::Passed { fixed })
}

fn check_set(model: &[u8], set: &Path, execute: Execute) -> Outcome {
    let files = |name: &str| -> Vec<Vec<u8>> {
        let paths = (0..).map(|ix| set.join(format!("{name}_{ix}.pb"))).take_while(|path| path.exists());
        paths.map(|path| std::fs::read(path).expect("readable")).collect()
    };
    let read = |name: &str| -> Result<Vec<Tensor>, String> {
        files(name).iter().map(|file| onnx::tensor(file).map_err(|error| error.to_string())).collect()
    };
    let names = input_names(model);
    // Data with sequences or strings: the error for the model is more specific than that for the data.
    let (inputs, wanted) = match (read("input"), read("output")) {
        (Ok(inputs), Ok(wanted)) if inputs.len() == names.len() => (inputs, wanted),
        (inputs, _) => {
            let reason = inputs.err().unwrap_or_else(|| "the data is not only tensors".to_string());
            return match onnx::load(model, None, &Options::default()) {
                Ok(_) => Outcome::Refused(reason),
                Err(error) => Outcome::Refused(error.to_string()),
            };
        }
    };
    let mut first_refusal = None;
    for (fixed, from) in [("none", names.len()), ("some", 1), ("all", 0)] {
        let free = names.iter().zip(&inputs).take(from);
        // As in the files: a tensor lacks the element type that it was read from.
        let given_files = files("input");
        let baked: Vec<(&str, &[u8])> =
            names.iter().map(String::as_str).zip(given_files.iter().map(Vec::as_slice)).skip(from).collect();
        let bytes = if baked.is_empty() { model.to_vec() } else { fix_inputs_to(model, &baked) };
        let shapes: BTreeMap<_, _> =
            free.clone().map(|(name, tensor)| (name.clone(), tensor.shape().clone())).collect();
        let given: Vec<Tensor> = free.map(|(_, tensor)| tensor.clone()).collect();
        match catch_unwind(AssertUnwindSafe(|| run(&bytes, shapes, &given, execute))) {
            Err(_) => return Outcome::Failed("panicked".to_string()),
            Ok(Err(Failure::Unsupported(reason))) => {
                first_refusal.get_or_insert(reason);
            }
            Ok(Err(Failure::Defect(reason))) => return Outcome::Failed(reason),
            Ok(Ok(got)) => {
                return match compare(&got, &wanted) {
                    Ok(()) => Outcome::Passed { fixed },
                    Err(reason) => Outcome::Failed(reason),
                };
            }
        }
    }
    Outcome::Refused(first_refusal.expect("some attempt was made"))
}

fn run(
    bytes: &[u8],
    shapes: BTreeMap<String, types::Shape>,
    inputs: &[Tensor],
    execute: Execute,
) -> Result<Vec<Tensor>, Failure> {
    let options = Options { shapes, ..Options::default() };
    let graph = onnx::load(bytes, None, &options).map_err(|error| Failure::Unsupported(error.to_string()))?;
    ir::verify(&graph).map_err(|errors| Failure::Defect(format!("does not verify: {errors:?}")))?;
    let inputs: Vec<Tensor> =
        graph.inputs().iter().zip(inputs).map(|(&id, tensor)| as_bf16(tensor, graph.ty(id).dtype)).collect();
    execute(graph, &inputs)
}

/// ONNX recorded bf16 as its bits in u16.
fn as_bf16(tensor: &Tensor, wanted: DType) -> Tensor {
    if wanted != DType::Bf16 || tensor.dtype() != DType::U16 {
        return tensor.clone();
    }
    Tensor::from_le_bytes(DType::Bf16, tensor.shape().clone(), &tensor.to_le_bytes()).expect("as many bytes")
}

fn compare(got: &[Tensor], wanted: &[Tensor]) -> Result<(), String> {
    if got.len() != wanted.len() {
        return Err(format!("{} outputs instead of {}", got.len(), wanted.len()));
    }
    for (ix, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let wanted = &as_bf16(wanted, got.dtype());
        if got.dtype() != wanted.dtype() || got.shape() != wanted.shape() {
            let of = |tensor: &Tensor| format!("{}{}", tensor.dtype(), tensor.shape());
            return Err(format!("output {ix} is {} instead of {}", of(got), of(wanted)));
        }
        // The runner's own tolerances; bf16 has eight bits.
        let (relative, absolute) = match got.dtype() {
            DType::Bf16 => (1e-2, 1e-5),
            dtype if dtype.is_float() => (1e-3, 1e-5),
            _ => (0.0, 0.0),
        };
        let near =
            |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= absolute + relative * b.abs();
        let pairs = got.to_f64().into_iter().zip(wanted.to_f64());
        if let Some((at, (a, b))) = pairs.enumerate().find(|(_, (a, b))| !near(*a, *b)) {
            return Err(format!("output {ix} has {a} at {at} instead of {b}"));
        }
    }
    Ok(())
}
