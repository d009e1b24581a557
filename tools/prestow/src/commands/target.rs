//! `prestow target probe`: the description of this machine's GPU, to compile for it on machines without it.

use std::path::PathBuf;

use compiler::gpu::library_paths;
use cuda::cublas::{self, CublasError};
use cuda::cudnn::{self, CudnnError};

use super::message;
use crate::say;

/// The kinds of `prestow target`.
#[derive(clap::Subcommand)]
pub(crate) enum Action {
    /// Write the description of a GPU, for `--target FILE.json`.
    #[command(alias = "record")]
    Probe(Probe),
}

/// Flags of `prestow target probe`.
#[derive(clap::Args)]
pub(crate) struct Probe {
    /// Number of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: usize,
    /// Folder of fetched data.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// The file (default: print the description).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs one of them.
pub(crate) fn run(Action::Probe(args): &Action) -> Result<String, String> {
    probe(args)
}

/// Reads the properties from the driver, and the versions of the libraries that are installed.
fn probe(args: &Probe) -> Result<String, String> {
    let gpu = cuda::driver::Gpu::open(args.device).map_err(message)?;
    let mut facts = gpu.describe().map_err(message)?;
    if let Ok(compiler) = cuda::nvrtc::Compiler::find(&library_paths(&args.data)) {
        facts.libraries.insert("nvrtc".into(), compiler.version().map_err(message)?);
    }
    let places = library_paths(&args.data);
    let free = || gpu.memory().map(|(free, _)| free).map_err(message);
    let before = free()?;
    // A library that is absent has no version. One that fails is reported; the rest of the description is valid without it.
    let without = |library: &str, reason: String| say::note(&format!("no version of {library}: {reason}"));
    match cudnn::CudnnLibrary::find(&places).and_then(|_| cudnn::Handle::new(&places, &gpu)) {
        Ok(handle) => {
            facts.libraries.insert("cudnn".into(), handle.version());
            let taken = before.saturating_sub(free()?) as u64;
            facts.measured.iter_mut().for_each(|measured| measured.cudnn_bytes = Some(taken));
        }
        Err(CudnnError::NotFound(_)) => {}
        Err(error) => without("cuDNN", error.to_string()),
    }
    let before = free()?;
    match cublas::Handle::new(&places, &gpu) {
        Ok(handle) => {
            facts.libraries.insert("cublaslt".into(), handle.version());
            let taken = before.saturating_sub(free()?) as u64;
            facts.measured.iter_mut().for_each(|measured| measured.cublas_bytes = Some(taken));
        }
        Err(CublasError::NotFound(_)) => {}
        Err(error) => without("cuBLASLt", error.to_string()),
    }
    let text = facts.text();
    let Some(path) = &args.output else { return Ok(text) };
    files::write(path, text.as_bytes()).map_err(message)?;
    Ok(format!("wrote {}: {} ({}), {}\n", path.display(), gpu.name(), gpu.arch(), facts.source.text()))
}
