//! ONNX's backend tests: each is loaded, executed and compared, or refused with a reason. Who includes this file says how
//! graphs are executed: by the operators' definitions, or by a compiled plan.
//!
//! Many of these tests pass what an exporter would have fixed (shapes, axes, scales) as an input. A test that is refused
//! as it stands is tried again with all inputs but the first fixed, then with all of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use load::onnx::{self, Options};
use types::{DType, Tensor};

use crate::executor::{SNAPSHOT, execute};
use crate::wire::{fix_inputs, input_names};
use crate::{data, environment};

/// Tests that are left out, by the beginning of their names: random results, gradients, strings, images.
const LEFT_OUT: &[&str] =
    &["test_bernoulli", "test_gradient", "test_image_decoder", "test_regex_full_match", "test_string_", "test_strnorm"];

/// Tests whose recorded results differ from ours, known and not counted as failures. onnxruntime differs here as well.
const DIFFERS: &[&str] = &[
    // Recorded: with an epsilon of 0.01, which the model does not have. onnxruntime does not have the operator.
    "test_adam_multiple",
    // Recorded: the mean also counts cells of a last window that hang over the padding.
    "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
    // Recorded: results beyond i8 wrap around, where the operator's text has them saturate.
    "test_qlinearmatmul_2D_int8_float16",
    "test_qlinearmatmul_2D_int8_float32",
    "test_qlinearmatmul_3D_int8_float16",
    "test_qlinearmatmul_3D_int8_float32",
    // Recorded: the output's extent is taken before it is rounded down, `2.4 - 1` instead of `2 - 1`.
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
    as_it_is: usize,
    some_fixed: usize,
    all_fixed: usize,
    refused: usize,
    failed: usize,
    differs: usize,
    left_out: usize,
}

#[test]
fn conformance() {
    let Some(root) = data("conformance", "onnx-test-data") else { return };
    let (mut refusals, mut failures, mut table) = (String::new(), String::new(), String::new());
    for set in ["node", "simple", "pytorch-converted", "pytorch-operator"] {
        let mut count = Count::default();
        for folder in sorted(&root.join(set)) {
            let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
            if LEFT_OUT.iter().any(|left_out| name.starts_with(left_out)) {
                count.left_out += 1;
                continue;
            }
            let outcome = check(&folder);
            if DIFFERS.contains(&name.as_str()) {
                assert!(matches!(outcome, Outcome::Failed(_)), "{name} differs no longer: take it off the list");
                count.differs += 1;
                continue;
            }
            match outcome {
                Outcome::Passed { fixed: "none" } => count.as_it_is += 1,
                Outcome::Passed { fixed: "some" } => count.some_fixed += 1,
                Outcome::Passed { .. } => count.all_fixed += 1,
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
        let Count { as_it_is, some_fixed, all_fixed, refused, failed, differs, left_out } = count;
        let passed = as_it_is + some_fixed + all_fixed;
        writeln!(
            table,
            "# {set}: {passed} passed ({as_it_is} as they are, {some_fixed} with all inputs but the first fixed, \
             {all_fixed} with all fixed), {refused} refused, {failed} failed, {differs} known to differ, {left_out} left out"
        )
        .expect("a string takes all");
    }
    eprint!("{table}");
    assert!(failures.is_empty(), "failed:\n{failures}");
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join(SNAPSHOT);
    let text = format!("{table}{refusals}");
    if environment("PRESTOW_BLESS").is_some() {
        std::fs::write(&snapshot, &text).expect("the snapshot can be written");
    }
    let known = std::fs::read_to_string(&snapshot).unwrap_or_default();
    let (known, now): (Vec<&str>, Vec<&str>) = (known.lines().collect(), text.lines().collect());
    let gone: Vec<&&str> = known.iter().filter(|line| !now.contains(line)).collect();
    let new: Vec<&&str> = now.iter().filter(|line| !known.contains(line)).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "{SNAPSHOT} differs (PRESTOW_BLESS=1 writes it)\ngone: {gone:#?}\nnew: {new:#?}"
    );
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("readable").path()).collect();
    entries.sort();
    entries
}

fn check(folder: &Path) -> Outcome {
    let model = std::fs::read(folder.join("model.onnx")).expect("each test has a model");
    let mut passed = None;
    for set in sorted(folder).into_iter().filter(|path| path.is_dir()) {
        match check_set(&model, &set) {
            Outcome::Passed { fixed } => passed = Some(fixed),
            other => return other,
        }
    }
    passed.map_or_else(|| Outcome::Failed("there is no data".to_string()), |fixed| Outcome::Passed { fixed })
}

fn check_set(model: &[u8], set: &Path) -> Outcome {
    let read = |name: &str| -> Result<Vec<Tensor>, String> {
        (0..)
            .map(|ix| set.join(format!("{name}_{ix}.pb")))
            .take_while(|path| path.exists())
            .map(|path| onnx::tensor(&std::fs::read(path).expect("readable")).map_err(|error| error.to_string()))
            .collect()
    };
    let names = input_names(model);
    // Sequences and strings in the data: the model is refused for the same reason, in better words.
    let (inputs, wanted) = match (read("input"), read("output")) {
        (Ok(inputs), Ok(wanted)) if inputs.len() == names.len() => (inputs, wanted),
        (inputs, _) => {
            let reason = inputs.err().unwrap_or_else(|| "the data is not made of tensors".to_string());
            return match onnx::load(model, None, &Options::default()) {
                Ok(_) => Outcome::Refused(reason),
                Err(error) => Outcome::Refused(error.to_string()),
            };
        }
    };
    let mut first_refusal = None;
    for (fixed, from) in [("none", names.len()), ("some", 1), ("all", 0)] {
        let free = names.iter().zip(&inputs).take(from);
        let baked: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&inputs).skip(from).collect();
        let bytes = if baked.is_empty() { model.to_vec() } else { fix_inputs(model, &baked) };
        let shapes: BTreeMap<_, _> =
            free.clone().map(|(name, tensor)| (name.clone(), tensor.shape().clone())).collect();
        let given: Vec<Tensor> = free.map(|(_, tensor)| tensor.clone()).collect();
        match catch_unwind(AssertUnwindSafe(|| run(&bytes, shapes, &given))) {
            Err(_) => return Outcome::Failed("panicked".to_string()),
            Ok(Err(Refusal::Load(reason))) => {
                first_refusal.get_or_insert(reason);
            }
            Ok(Err(Refusal::Wrong(reason))) => return Outcome::Failed(reason),
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

/// Why there is no result.
pub(crate) enum Refusal {
    /// It is not supported, for a reason that is told before anything runs.
    Load(String),
    /// It should have been.
    #[allow(dead_code, reason = "not every executor fails")]
    Wrong(String),
}

fn run(bytes: &[u8], shapes: BTreeMap<String, types::Shape>, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refusal> {
    let options = Options { shapes, ..Options::default() };
    let graph = onnx::load(bytes, None, &options).map_err(|error| Refusal::Load(error.to_string()))?;
    ir::verify(&graph).map_err(|errors| Refusal::Wrong(format!("does not verify: {errors:?}")))?;
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
