//! Comparison with ONNX Runtime: networks of the zoo exported to ONNX, and published networks at several sizes.

use std::path::PathBuf;
use std::process::Command;

use cases::judge::inputs;
use ir::Graph;
use load::onnx;
use types::{Shape, Tensor};
use weights::npy;
use zoo::Seeded;

use crate::support::{compiled, data, difference, effort, open, root, skip};

/// Networks with fewer parameters run always, all of them with `PRESTOW_FUZZ=2`.
const SMALL: u64 = 9_000_000;

/// ONNX Runtime, and the folder of its inputs and outputs.
struct Peer {
    python: PathBuf,
    folder: PathBuf,
}

impl Peer {
    /// `None` after recording that `test` is skipped.
    fn new(test: &str) -> Option<Peer> {
        let python = root().join("target/peers/bin/python");
        if !python.exists() {
            skip(test, "onnxruntime is missing; run `cargo xtask fetch --with-onnxruntime`");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("prestow-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder of temporary files is writable");
        Some(Peer { python, folder })
    }

    /// Runs a file in ONNX Runtime and its graph here, and compares each output relative to its largest value. `fixed` are
    /// inputs of the file that are constants of the graph.
    fn compare(&self, name: &str, file: &[u8], graph: Graph, fixed: &[(&str, Tensor)]) {
        let write = |file: String, bytes: &[u8]| {
            std::fs::write(self.folder.join(file), bytes).expect("the folder is writable");
        };
        write("net.onnx".into(), file);
        // Token ids are small; segment ids and masks are 0 or 1.
        let small = |tensor: Tensor| match tensor.as_slice::<i64>() {
            Some(items) => Tensor::from_fn(tensor.shape().clone(), |at| items[at] % 2),
            None => tensor,
        };
        let given: Vec<Tensor> = inputs(&graph, 5).into_iter().map(small).collect();
        for (&id, tensor) in graph.inputs().iter().zip(&given) {
            write(format!("net_{}.npy", graph.value(id).name), &npy::write(tensor));
        }
        fixed.iter().for_each(|(name, tensor)| write(format!("net_{name}.npy"), &npy::write(tensor)));
        let script = root().join("tests/peers/onnxruntime_run.py");
        let done = Command::new(&self.python).arg(script).arg(&self.folder).arg("net").status();
        assert!(done.is_ok_and(|status| status.success()), "{name}: onnxruntime takes the file");
        let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = open(&compiled, 2).run_tensors(&given).expect("the inputs fit");
        for (ix, ours) in ours.iter().enumerate() {
            let theirs = std::fs::read(self.folder.join(format!("net_output{ix}.npy"))).expect("it was written");
            let theirs: Tensor = npy::read(&theirs).expect("NumPy wrote it");
            // Scores that are almost 0 everywhere are compared absolutely.
            let largest = theirs.to_f64().into_iter().fold(1e-3f64, |largest, item| largest.max(item.abs()));
            // Hundreds of layers, computed by other algorithms.
            assert_eq!(difference(ours, &theirs, 1e-3, 1e-3 * largest), None, "{name}: output {ix}");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Files that cannot be removed do no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn exports_match_onnxruntime() {
    let Some(peer) = Peer::new("exports_match_onnxruntime") else { return };
    for spec in zoo::list().iter().filter(|spec| 1 < effort() || spec.parameters < SMALL || spec.name == "sockeye") {
        let graph = zoo::build(spec.name, 1, &mut Seeded(3), &zoo::NetworkOptions::default());
        let graph = graph.expect("it is on the list").graph;
        let file = export::onnx(&graph).unwrap_or_else(|error| panic!("{}: {error}", spec.name));
        peer.compare(spec.name, &file, graph, &[]);
    }
}

#[test]
fn published_networks_match_onnxruntime_at_several_sizes() {
    const TEST: &str = "networks_that_people_have_run_at_several_sizes";
    let Some(peer) = Peer::new(TEST) else { return };
    let run = |path: &str, shapes: &[(&str, &[usize])], fixed: &[(&str, i64)]| {
        let Some(file) = data(TEST, &format!("models/{path}.onnx")) else { return };
        let file = std::fs::read(file).expect("the file is there");
        let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), Shape::from(*shape))).collect();
        let numbers = fixed.iter().map(|(name, number)| (name.to_string(), *number as f64)).collect();
        let options = onnx::Options { shapes, fixed: numbers, ..onnx::Options::default() };
        let graph = onnx::load(&file, None, &options).unwrap_or_else(|error| panic!("{path}: {error}"));
        let fixed: Vec<(&str, Tensor)> = fixed.iter().map(|(name, number)| (*name, Tensor::scalar(*number))).collect();
        peer.compare(path, &file, graph, &fixed);
    };
    for [rows, columns] in [[64, 96], [160, 224], [320, 192]] {
        run("ppocrv4/ch_PP-OCRv4_det_infer", &[("x", &[1, 3, rows, columns])], &[]);
    }
    for [batch, columns] in [[1, 64], [2, 160], [1, 320]] {
        run("ppocrv4/ch_PP-OCRv4_rec_infer", &[("x", &[batch, 3, 48, columns])], &[]);
    }
    for batch in [1, 3] {
        run("ppocrv4/ch_ppocr_mobile_v2.0_cls_infer", &[("x", &[batch, 3, 48, 192])], &[]);
    }
    for steps in [1, 7, 100] {
        run("silero/silero_vad_16k_sequence", &[("input", &[steps, 576])], &[]);
    }
    // The only `If` of the file depends on the sampling rate.
    for (rate, samples) in [(16_000, 576), (8_000, 288)] {
        let shapes: [(&str, &[usize]); 2] = [("input", &[2, samples]), ("state", &[2, 2, 128])];
        run("silero/silero_vad_op18_ifless", &shapes, &[("sr", rate)]);
    }
}
