//! Helpers of the tests: compiling in process, comparing, recording skipped tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use compiler::{Compiled, Goal, Model, compile};
use ir::Graph;
use lower::cpu::CpuTarget;
use runtime::heap::CountingAllocator;
use runtime::{Host, Session};
use types::{Bytes, Tensor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").to_path_buf()
}

/// A file of the public data; `None` after recording that `test` is skipped.
pub(crate) fn data(test: &str, name: &str) -> Option<PathBuf> {
    let path = root().join("data").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(test, &format!("data/{name} is missing; run `cargo xtask fetch`"));
    None
}

/// Counts a test as skipped, with the reason.
#[expect(clippy::disallowed_methods, reason = "the test runner names its file in the environment")]
pub(crate) fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED: {test}: {reason}");
    if let Ok(path) = std::env::var("PRESTOW_SKIPPED")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(file, "{test}: {reason}");
    }
}

/// Factor for the number of random cases: `PRESTOW_FUZZ=50 cargo test ...` for a long run.
#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
pub(crate) fn effort() -> usize {
    std::env::var("PRESTOW_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Compiles a graph for this machine's processor.
pub(crate) fn compiled(graph: Graph) -> Result<Compiled, compiler::CompileError> {
    compile(Model { graph, preprocess: None, labels: Vec::new() }, &CpuTarget::new(), Goal::default(), |_, _| {})
}

/// Compiles a graph for this machine's processor with an arena budget.
pub(crate) fn compiled_within(graph: Graph, budget: Bytes) -> Result<Compiled, compiler::CompileError> {
    compile(Model { graph, preprocess: None, labels: Vec::new() }, &CpuTarget::new(), Goal::within(budget), |_, _| {})
}

/// Opens a compiled model.
pub(crate) fn open(compiled: &Compiled, threads: usize) -> Session {
    try_open(compiled, threads).expect("a compiled plan opens")
}

pub(crate) fn try_open(compiled: &Compiled, threads: usize) -> Result<Session, runtime::RunError> {
    let weights = Arc::new(compiled.constants.to_vec());
    runtime::open(Arc::new(compiled.plan.clone()), weights, &Host { threads })
}

/// The first difference of more than `relative` times the expected value plus `absolute`; NaN equals NaN.
pub(crate) fn difference(got: &Tensor, want: &Tensor, relative: f64, absolute: f64) -> Option<String> {
    if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
        return Some(format!("{}{} not {}{}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    let pairs = got.to_f64().into_iter().zip(want.to_f64());
    for (at, (got, want)) in pairs.enumerate() {
        let same = got == want || (got.is_nan() && want.is_nan());
        if !same && (got.is_nan() != want.is_nan() || absolute + relative * want.abs() < (got - want).abs()) {
            return Some(format!("element {at} is {got}, not {want}"));
        }
    }
    None
}
