//! Networks of the zoo as ONNX files, run by onnxruntime: it takes them, and gives what our executables give.

use std::path::Path;
use std::process::Command;

use types::{Tensor, npy};
use zoo::{Options, Seeded};

use crate::support::{compiled, difference, effort, inputs, open, root, skip};

/// Networks of fewer parameters are run each time, all of them where more effort is asked for (`PRESTOW_FUZZ=2`).
const SMALL: u64 = 9_000_000;

#[test]
fn onnxruntime_runs_what_is_exported() {
    let python = root().join("target/peers/bin/python");
    if !python.exists() {
        let reason = "onnxruntime is missing; run `cargo xtask fetch --with-onnxruntime`";
        return skip("onnxruntime_runs_what_is_exported", reason);
    }
    let folder = std::env::temp_dir().join(format!("prestow-exported-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder of temporary files is writable");
    for spec in zoo::list().iter().filter(|spec| 1 < effort() || spec.parameters < SMALL || spec.name == "sockeye") {
        check(spec.name, &python, &folder);
    }
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

fn check(name: &str, python: &Path, folder: &Path) {
    let graph = zoo::build(name, 1, &mut Seeded(3), &Options::default()).expect("it is on the list").graph;
    let file = export::onnx(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    // Ids of words are small; the second sentence and the mask are 0 or 1.
    let small = |tensor: Tensor| match tensor.as_slice::<i64>() {
        Some(items) => Tensor::from_fn(tensor.shape().clone(), |at| items[at] % 2),
        None => tensor,
    };
    let given: Vec<Tensor> = inputs(&graph, 5).into_iter().map(small).collect();
    let write = |file: String, bytes: &[u8]| std::fs::write(folder.join(file), bytes).expect("the folder is writable");
    write("net.onnx".into(), &file);
    drop(file);
    for (ix, tensor) in given.iter().enumerate() {
        write(format!("net_input{ix}.npy"), &npy::write(tensor));
    }
    let script = root().join("tests/peers/onnxruntime_run.py");
    let done = Command::new(python).arg(script).arg(folder).arg("net").status();
    assert!(done.is_ok_and(|status| status.success()), "{name}: onnxruntime takes the file");
    let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let ours = open(&compiled, 2).run_tensors(&given).expect("the inputs fit");
    for (ix, ours) in ours.iter().enumerate() {
        let theirs = std::fs::read(folder.join(format!("net_output{ix}.npy"))).expect("it was written");
        let theirs: Tensor = npy::read(&theirs).expect("NumPy wrote it");
        let largest = theirs.to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
        // Some hundred layers deep, by other algorithms.
        assert_eq!(difference(ours, &theirs, 1e-3, 1e-3 * largest), None, "{name}: output {ix}");
    }
}
