//! The readers of ONNX and MXNet against ONNX's own tests, hand-made models, damaged files and real networks.

mod conformance;
mod damaged;
mod models;
mod mxnet;
mod operators;
mod real;
mod subgraphs;
mod wire;

extern crate prestow_load as load;

use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder or file below the workspace's `data`, or none, told aloud: a test without its data has not passed.
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

/// A variable of the environment. Tests are the edge where it is read.
#[expect(clippy::disallowed_methods, reason = "switches of the test run")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// How many times the usual count random damage is tried: `PRESTOW_FUZZ=50 cargo test ...` for a long run.
pub(crate) fn effort() -> usize {
    environment("PRESTOW_FUZZ").and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// How conformance is tried here: by the operators' definitions.
pub(crate) mod executor {
    use ir::Graph;
    use types::Tensor;

    use crate::conformance::Refusal;

    pub(crate) const SNAPSHOT: &str = "tests/it/refusals.txt";

    pub(crate) fn execute(graph: Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refusal> {
        ir::evaluate(&graph, inputs).map_err(|error| Refusal::Wrong(error.to_string()))
    }
}
