//! `prestow models`: the networks of the zoo.

use std::fmt::Write as _;

use compiler::source::{self, Listed};
use serde_json::json;

/// Flags of `prestow models`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The list.
pub(crate) fn run(args: &Args) -> String {
    list(args.json)
}

/// The list, as text or JSON.
pub(crate) fn list(json: bool) -> String {
    let models = source::models();
    match json {
        true => format!("{:#}\n", json!(models.iter().map(as_json).collect::<Vec<_>>())),
        false => as_text(&models),
    }
}

fn as_json(model: &Listed) -> serde_json::Value {
    let input = |(name, ty): &(&str, ir::TensorType)| json!({ "name": name, "dtype": ty.dtype.to_string(), "shape": ty.shape.to_vec() });
    json!({
        "name": model.name,
        "title": model.title,
        "parameters": model.parameters,
        "flops": model.flops,
        "inputs": model.inputs.iter().map(input).collect::<Vec<_>>(),
        "pretrained": model.pretrained,
    })
}

fn as_text(models: &[Listed]) -> String {
    let mut text = format!("{:<24} {:>12} {:>9}  inputs at batch 1\n", "name", "parameters", "GFLOP");
    for model in models {
        let inputs: Vec<String> = model.inputs.iter().map(|(name, ty)| format!("{name} {ty}")).collect();
        let pretrained = if model.pretrained { "  --pretrained" } else { "" };
        let gflop = model.flops as f64 / 1e9;
        let inputs = inputs.join(", ");
        let _ = writeln!(text, "{:<24} {:>12} {gflop:>9.3}  {inputs}{pretrained}", model.name, model.parameters);
    }
    text + "\nCase and `-`, `_`, `.` do not matter in names: squeezenet1.1 is squeezenet1_1.\n"
}
