//! [`SessionSubject`]: runs of a session, and its inputs.

use std::path::Path;
use std::sync::Arc;

use bench_suite::Subject;
use plan::{Plan, Port};
use runtime::{CudaDevice, Device, Host, ImageFile, LibraryPaths, Session, synthetic_inputs};
use types::{Bytes, Tensor};

/// Runs of a session with the same inputs.
pub(super) struct SessionSubject {
    session: Session,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    with_copies: bool,
    /// On a processor an input's bytes may be reused by other buffers in the run, so it is written before each.
    writes_inputs: bool,
}

impl SessionSubject {
    /// A subject from a session and the bytes of each input. `with_copies`: inputs are written and outputs are read in each
    /// run, which for a GPU is the transfer; else inputs are written once and outputs stay where they are.
    ///
    /// # Errors
    /// An input of another size.
    pub(super) fn new(mut session: Session, inputs: Vec<Vec<u8>>, with_copies: bool) -> Result<SessionSubject, String> {
        for (ix, bytes) in inputs.iter().enumerate() {
            session.write_input(ix, bytes).map_err(|error| error.to_string())?;
        }
        let bytes = |port: &Port| port.shape.elements() * port.dtype.size().0 as usize;
        let outputs = session.plan().outputs.iter().map(|port| vec![0; bytes(port)]).collect();
        let writes_inputs = with_copies || session.arena().is_ok();
        Ok(SessionSubject { session, inputs, outputs, with_copies, writes_inputs })
    }

    /// The session.
    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Replaces the bytes of an input for the following runs.
    ///
    /// # Errors
    /// An input of another size.
    pub(super) fn set_input(&mut self, ix: usize, bytes: &[u8]) -> Result<(), String> {
        self.session.write_input(ix, bytes).map_err(|error| error.to_string())?;
        self.inputs[ix].clear();
        self.inputs[ix].extend_from_slice(bytes);
        Ok(())
    }
}

impl Subject for SessionSubject {
    fn run(&mut self) -> Result<(), String> {
        let failed = |error: runtime::RunError| error.to_string();
        if self.writes_inputs {
            for (ix, bytes) in self.inputs.iter().enumerate() {
                self.session.write_input(ix, bytes).map_err(failed)?;
            }
        }
        self.session.run().map_err(failed)?;
        if self.with_copies {
            for (ix, bytes) in self.outputs.iter_mut().enumerate() {
                self.session.read_output(ix, bytes).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        self.session.plan().batch
    }
}

/// Opens a plan of an executable with its constants in the mapped file.
pub(super) fn open(image: &ImageFile, plan: &Arc<Plan>, threads: usize, gpu: Option<usize>) -> Result<Session, String> {
    let host = Host { threads };
    let places = LibraryPaths::of(|name| std::env::var_os(name));
    let cuda = CudaDevice { ordinal: gpu.unwrap_or(0), places };
    let device: &dyn Device = if plan.target.starts_with("cuda:") { &cuda } else { &host };
    runtime::open(plan.clone(), image, device).map_err(|error| error.to_string())
}

/// The inputs of `EXE run --synthetic seed:N`, little-endian.
pub(super) fn synthetic(plan: &Plan, seed: u64) -> Vec<Vec<u8>> {
    synthetic_inputs(plan, seed).iter().map(Tensor::to_le_bytes).collect()
}

/// The digest of a file.
pub(super) fn digest(path: &Path) -> Result<String, String> {
    let bytes = files::read_regular(path, Bytes(1 << 40)).map_err(|error| error.to_string())?;
    Ok(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes)))
}
