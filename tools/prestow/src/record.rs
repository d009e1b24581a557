//! `prestow target record`: the facts of the GPU at hand, as a file that stands for it on machines without it.

use cuda::cudnn::{Cudnn, CudnnError, Handle};

use crate::arguments::Record;
use crate::device;

/// Asks the driver, and the libraries that are there.
pub(crate) fn record(request: &Record) -> Result<String, String> {
    let gpu = cuda::driver::Gpu::open(request.device).map_err(|error| error.to_string())?;
    let mut facts = gpu.facts().map_err(|error| error.to_string())?;
    if let Ok(compiler) = cuda::nvrtc::Compiler::find(&device::places(&request.data)) {
        facts.libraries.insert("nvrtc".into(), compiler.version().map_err(|error| error.to_string())?);
    }
    match Cudnn::find(&device::places(&request.data)) {
        Ok(_) => {
            let before = gpu.memory().map_err(|error| error.to_string())?.0;
            let handle = Handle::new(&device::places(&request.data), &gpu).map_err(|error| error.to_string())?;
            let after = gpu.memory().map_err(|error| error.to_string())?.0;
            facts.libraries.insert("cudnn".into(), handle.version());
            if let Some(measured) = &mut facts.measured {
                measured.cudnn_bytes = Some(before.saturating_sub(after) as u64);
            }
        }
        // What is not there has no version.
        Err(CudnnError::NotFound(_)) => {}
        Err(error) => return Err(error.to_string()),
    }
    let text = facts.text();
    let Some(path) = &request.output else { return Ok(text) };
    compiler::write_whole(path, |file| std::io::Write::write_all(file, text.as_bytes()))
        .map_err(|error| error.to_string())?;
    Ok(format!("wrote {}: {} ({}), {}\n", path.display(), gpu.name(), gpu.arch(), facts.source.text()))
}
