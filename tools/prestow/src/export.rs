//! `prestow export`: a model as an ONNX file.

use std::path::PathBuf;

use compiler::source;
use serde_json::json;
use types::Bytes;

use crate::arguments::Compile;

/// Writes the model and says what was written.
pub(crate) fn export(request: &Compile) -> Result<String, String> {
    let output = request.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.onnx", request.source.name())));
    if output.is_dir() {
        return Err(format!("`{}` is a directory; name a file with -o", output.display()));
    }
    let batch = request.batches.first().copied();
    let model = source::load(&source::Request { batch, ..request.source.clone() });
    let graph = model.map_err(|error| error.to_string())?.graph;
    let bytes = export::onnx(&graph).map_err(|error| error.to_string())?;
    files::write(&output, &bytes).map_err(|error| error.to_string())?;
    let (nodes, size) = (graph.nodes().len(), Bytes(bytes.len() as u64));
    Ok(match request.json {
        true => format!("{:#}\n", json!({ "output": output, "model": graph.name, "nodes": nodes, "bytes": size.0 })),
        false => format!("wrote {}: {nodes} nodes, {size}\n", output.display()),
    })
}
