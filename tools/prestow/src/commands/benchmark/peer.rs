//! Benchmarks of other runtimes on the same model, inputs and threads.

use std::path::{Path, PathBuf};
use std::process::Command;

use bench_suite::{PeerProcess, Subject};
use plan::Plan;
use serde_json::json;
use types::{Bytes, Tensor};
use weights::npy;

use super::own_program;
use super::session::SessionSubject;

/// Peers in Python, and programs of `benches/peers/native`.
const PYTHON: [&str; 7] = ["onnxruntime", "openvino", "mnn", "torch", "torch-eager", "torch-jit", "mxnet"];
const NATIVE: [&str; 2] = ["tract", "rten"];

/// Refuses a name that is no peer.
pub(super) fn check(name: &str) -> Result<(), String> {
    match PYTHON.contains(&name) || NATIVE.contains(&name) {
        true => Ok(()),
        false => {
            let names = [&PYTHON[..], &NATIVE[..]].concat().join(", ");
            Err(format!("--framework takes prestow, {names}, got `{name}`"))
        }
    }
}

/// How a peer is started.
pub(super) struct Run<'a> {
    pub(super) name: &'a str,
    pub(super) python: &'a str,
    pub(super) peers: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) threads: usize,
}

/// The model as a peer has it.
pub(super) struct Exported {
    folder: PathBuf,
    outputs: usize,
}

impl Run<'_> {
    /// Exports the model as ONNX, writes inputs, and starts the peer.
    pub(super) fn start(
        &self,
        model: &str,
        plan: &Plan,
        flags: &[String],
        seed: u64,
    ) -> Result<(PeerProcess, Exported), String> {
        // Peers resolve paths from other folders.
        let folder = std::fs::canonicalize(self.folder).map_err(|error| error.to_string())?;
        let peers = std::fs::canonicalize(self.peers)
            .map_err(|error| format!("`{}`: {error}; set --peers", self.peers.display()))?;
        let onnx = folder.join("model.onnx");
        let mut words = vec!["export".to_string(), model.into(), "-o".into(), onnx.display().to_string()];
        words.push(format!("--batch={}", plan.batch));
        words.extend(flags.iter().cloned());
        own_program(&words)?;
        let mut inputs = Vec::new();
        for (ix, (port, tensor)) in plan.inputs.iter().zip(runtime::synthetic_inputs(plan, seed)).enumerate() {
            let path = folder.join(format!("input{ix}.npy"));
            files::write(&path, &npy::write(&tensor)).map_err(|error| error.to_string())?;
            inputs.push(json!([port.name, path]));
        }
        let outputs: Vec<&str> = plan.outputs.iter().map(|port| &port.name[..]).collect();
        let request = json!({
            "model": onnx, "plain": onnx, "threads": self.threads, "dtype": "f32", "inputs": inputs, "outputs": outputs,
        });
        let path = folder.join("request.json");
        files::write(&path, request.to_string().as_bytes()).map_err(|error| error.to_string())?;
        let mut command = match NATIVE.contains(&self.name) {
            true => Command::new(native(&peers, self.name)?),
            false => {
                let mut command = Command::new(self.python);
                command.arg(peers.join("speed.py")).arg(self.name);
                command
            }
        };
        command.arg(path).current_dir(&folder);
        Ok((PeerProcess::start(command)?, Exported { folder, outputs: plan.outputs.len() }))
    }
}

/// The program of a peer that is a Rust crate, as cargo or `cargo xtask bench cpu` builds it.
fn native(peers: &Path, name: &str) -> Result<PathBuf, String> {
    let manifest = peers.join("native/Cargo.toml");
    let places =
        ["native/target/release", "../../target/peers-native/release"].map(|place| peers.join(place).join(name));
    places.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        format!(
            "the peer `{name}` is not built: cargo build --release --bin {name} --manifest-path {}",
            manifest.display()
        )
    })
}

impl Exported {
    /// The largest difference between outputs of the peer and ours, in units of the largest element of the output.
    pub(super) fn difference(&self, peer: &mut PeerProcess, own: &mut SessionSubject) -> Result<f64, String> {
        peer.save(&self.folder)?;
        own.run()?;
        let mut most = 0.0f64;
        for ix in 0..self.outputs {
            let path = self.folder.join(format!("{ix}.npy"));
            let bytes = files::read_regular(&path, Bytes(1 << 40)).map_err(|error| error.to_string())?;
            let theirs: Tensor = npy::read(&bytes).map_err(|error| format!("`{}`: {error}", path.display()))?;
            let ours = own.session().output(ix).map_err(|error| error.to_string())?;
            let (ours, theirs) = (ours.to_f64(), theirs.to_f64());
            if ours.len() != theirs.len() {
                return Err(format!("output {ix} has {} elements, that of the peer {}", ours.len(), theirs.len()));
            }
            let scale = ours.iter().fold(f64::MIN_POSITIVE, |most, value| most.max(value.abs()));
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let difference = (ours - theirs).abs() / scale;
                // A number that only one of them has is the largest difference.
                most = if difference.is_nan() { f64::INFINITY } else { most.max(difference) };
            }
        }
        Ok(most)
    }
}
