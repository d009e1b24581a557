//! The readers of ONNX and MXNet on the ONNX backend tests, handmade models, damaged files and real networks.

mod attention;
mod damaged;
mod few_bits;
mod functions;
mod gradients;
mod learned;
mod limits;
mod model_file;
mod models;
mod modes;
mod mxnet;
mod operators;
mod real;
mod states;
mod subgraphs;
mod trainable;

use std::io::Write;
use std::path::{Path, PathBuf};

use ir::Graph;
use onnx_suite::Failure;
use prestow_load::onnx;
use types::Tensor;

/// A path in the workspace's `data`; `None` after recording that `test` is skipped.
pub(crate) fn data(test: &str, path: &str) -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(path);
    if found.exists() {
        return Some(found);
    }
    eprintln!("SKIPPED: {test}: run cargo xtask fetch");
    if let Some(list) = environment("PRESTOW_SKIPPED") {
        let mut file =
            std::fs::OpenOptions::new().create(true).append(true).open(list).expect("the list can be written");
        writeln!(file, "load::{test}: data/{path} is missing; run `cargo xtask fetch`")
            .expect("the list can be written");
    }
    None
}

/// An environment variable.
#[expect(clippy::disallowed_methods, reason = "switches of the test run")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Factor for the number of random cases: `PRESTOW_FUZZ=50 cargo test ...` for a long run.
pub(crate) fn effort() -> usize {
    environment("PRESTOW_FUZZ").and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The backend tests with the evaluator, and again after export and reload.
#[test]
fn backend_tests_pass_with_the_evaluator() {
    let Some(root) = data("backend_tests_pass_with_the_evaluator", "onnx-test-data") else { return };
    onnx_suite::check_suite(&root, environment("PRESTOW_BLESS").is_some(), &evaluate_twice);
}

fn evaluate_twice(graph: Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
    let defect = |phase: &str, error: String| Failure::Defect(format!("{phase}: {error}"));
    let results = ir::evaluate(&graph, inputs).map_err(|error| defect("eval", error.to_string()))?;
    let file = export::onnx(&graph).map_err(|error| defect("export", error.to_string()))?;
    // In a file, an extent of 0 is a dynamic one.
    let ports = graph.inputs().iter().map(|&id| graph.value(id));
    let shapes = ports.map(|value| (value.name.clone(), value.ty.shape.clone())).collect();
    let options = onnx::Options { shapes, ..onnx::Options::default() };
    let again = onnx::load(&file, None, &options).map_err(|error| defect("reload", error.to_string()))?;
    // Loading folds constants that the first graph computes.
    let others = ir::evaluate(&again, inputs).map_err(|error| defect("reloaded eval", error.to_string()))?;
    let bytes = |tensors: &[Tensor]| tensors.iter().map(Tensor::to_le_bytes).collect::<Vec<_>>();
    match bytes(&results) == bytes(&others) {
        true => Ok(results),
        false => Err(defect("reload", format!("{others:?} instead of {results:?}"))),
    }
}
