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

/// How conformance is tried here: by the operators' definitions, and once more by those of the graph that comes back from
/// a file that it is written to.
pub(crate) mod executor {
    use ir::Graph;
    use load::onnx;
    use types::Tensor;

    use crate::conformance::Refusal;

    pub(crate) const SNAPSHOT: &str = "tests/it/refusals.txt";

    pub(crate) fn execute(graph: Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refusal> {
        let wrong = |what: &str, error: String| Refusal::Wrong(format!("{what}: {error}"));
        let results = ir::evaluate(&graph, inputs).map_err(|error| wrong("eval", error.to_string()))?;
        let file = export::onnx(&graph).map_err(|error| wrong("export", error.to_string()))?;
        // An extent of 0 is an open one in a file.
        let ports = graph.inputs().iter().map(|&id| graph.value(id));
        let shapes = ports.map(|value| (value.name.clone(), value.ty.shape.clone())).collect();
        let options = onnx::Options { shapes, ..onnx::Options::default() };
        let again = onnx::load(&file, None, &options).map_err(|error| wrong("reload", error.to_string()))?;
        // What the graph computes with constants alone, loading has computed the second time.
        let others = ir::evaluate(&again, inputs).map_err(|error| wrong("reloaded eval", error.to_string()))?;
        let bytes = |tensors: &[Tensor]| tensors.iter().map(Tensor::to_le_bytes).collect::<Vec<_>>();
        match bytes(&results) == bytes(&others) {
            true => Ok(results),
            false => Err(wrong("reload", format!("{others:?} instead of {results:?}"))),
        }
    }
}
