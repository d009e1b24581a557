//! `prestow export`: a model as an ONNX file.

use std::path::PathBuf;

use compiler::source;
use serde_json::json;
use types::Bytes;

use super::{load_message, message};
use crate::flags::ModelFlags;

/// Flags of `prestow export`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The ONNX file (default NAME.onnx).
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Model")]
    model: ModelFlags,
}

/// Writes the file.
pub(crate) fn run(args: &Args) -> Result<String, String> {
    let request = args.model.request_in_f32()?;
    let batch = match args.model.batches()? {
        [] => None,
        [batch] => Some(*batch),
        _ => return Err("export takes one --batch".into()),
    };
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.onnx", request.name())));
    if output.is_dir() {
        return Err(format!("`{}` is a directory; name a file with -o", output.display()));
    }
    let graph = source::load(&source::Request { batch, ..request }).map_err(load_message)?.graph;
    let bytes = export::onnx(&graph).map_err(message)?;
    files::write(&output, &bytes).map_err(message)?;
    let (nodes, size) = (graph.nodes().len(), Bytes(bytes.len() as u64));
    Ok(match args.json {
        true => format!("{:#}\n", json!({ "output": output, "model": graph.name, "nodes": nodes, "bytes": size.0 })),
        false => format!("wrote {}: {nodes} nodes, {size}\n", output.display()),
    })
}
