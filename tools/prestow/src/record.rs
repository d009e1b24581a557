//! `prestow target record`: the facts of the GPU at hand, as a file that stands for it on machines without it.

use compiler::gpu::library_places;
use cuda::cublas::{self, CublasError};
use cuda::cudnn::{self, CudnnError};

use crate::arguments::Record;

/// Asks the driver, and the libraries that are there.
pub(crate) fn record(request: &Record) -> Result<String, String> {
    let gpu = cuda::driver::Gpu::open(request.device).map_err(|error| error.to_string())?;
    let mut facts = gpu.facts().map_err(|error| error.to_string())?;
    if let Ok(compiler) = cuda::nvrtc::Compiler::find(&library_places(&request.data)) {
        facts.libraries.insert("nvrtc".into(), compiler.version().map_err(|error| error.to_string())?);
    }
    let places = library_places(&request.data);
    let free = || gpu.memory().map(|(free, _)| free).map_err(|error| error.to_string());
    let before = free()?;
    // What is not there has no version. What is there and does not work is said, and the other facts are as good without it.
    let without = |what: &str, why: String| eprintln!("note: no facts of {what}: {why}");
    match cudnn::Cudnn::find(&places).and_then(|_| cudnn::Handle::new(&places, &gpu)) {
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
    let Some(path) = &request.output else { return Ok(text) };
    files::write(path, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(format!("wrote {}: {} ({}), {}\n", path.display(), gpu.name(), gpu.arch(), facts.source.text()))
}
