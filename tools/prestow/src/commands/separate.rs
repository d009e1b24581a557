//! `prestow compile --separate-weights`: constants with a recipe stay in the file of weights, from which `uprd` packs them.
//! Every recipe is applied here and compared with the compiled bytes.

use std::path::Path;

use compiler::source::{Request, WeightSpec};
use compiler::{Compiled, Program};
use plan::{ConstantSource, separate_constants};
use serde_json::{Value, json};
use types::Bytes;

use super::message;

/// Refuses a model without a file of weights.
pub(super) fn check(request: &Request, is_trained: bool) -> Result<(), String> {
    if is_trained {
        return Err("--separate-weights and --train exclude each other: a step changes its weights".into());
    }
    weights_file(request).map(drop)
}

/// The file that has the weights of a model.
fn weights_file(request: &Request) -> Result<&Path, String> {
    let file = match (&request.weights, &request.params) {
        (WeightSpec::File(file), _) | (_, Some(file)) => file,
        _ => return Err("--separate-weights needs a file of weights; name it with --weights or --params".into()),
    };
    let name = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !["safetensors", "npz", "params"].contains(&name) {
        return Err(format!("--separate-weights needs a file of safetensors, npz or params, got `{}`", file.display()));
    }
    Ok(file)
}

/// The program whose constants with recipes are left out. Reads the file of weights again and packs all of them.
pub(super) fn program(compiled: Vec<Compiled>, request: &Request) -> Result<Program, String> {
    let file = weights_file(request)?;
    let name = file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let program = Program::join_separate(compiled, &name);
    let size = std::fs::metadata(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?.len();
    let bytes = files::read(file, Bytes(size)).map_err(message)?;
    let tensors = weights::read(&file.display().to_string(), &bytes).map_err(message)?;
    let separate = separate_constants(&program.plans)?;
    for (constant, source) in &separate.rows {
        let ConstantSource::Recipe(recipe) = source else { continue };
        let compiled = program.constants.bytes((constant.offset, constant.size));
        let packed = share::recipe::apply(recipe, constant.size.0, &tensors);
        if packed.as_ref() != Ok(&compiled) {
            let reason = packed.map_or_else(|reason| reason, |_| "its bytes differ".to_string());
            return Err(format!("internal error: the recipe of `{}` does not give it: {reason}", constant.tag.scope));
        }
    }
    if separate.rows.iter().all(|(_, source)| matches!(source, ConstantSource::Stored(_))) {
        return Err(format!(
            "no constant of the model follows from one of `{}` by a recipe; leave out --separate-weights",
            file.display()
        ));
    }
    Ok(program)
}

/// Constants and bytes: all of them, and those in the executable.
fn counts(program: &Program) -> [u64; 4] {
    let Ok(separate) = separate_constants(&program.plans) else { return [0; 4] };
    let kept = separate.rows.iter().filter(|(_, source)| matches!(source, ConstantSource::Stored(_))).count();
    [separate.rows.len() as u64, program.constants_size().0, kept as u64, separate.stored.0]
}

pub(super) fn as_json(program: &Program) -> Value {
    let [constants, bytes, kept, kept_bytes] = counts(program);
    json!({
        "weights_name": plan::image::weights_name(&program.plans),
        "constants": constants, "bytes": bytes, "kept_constants": kept, "kept_bytes": kept_bytes,
    })
}

pub(super) fn as_text(program: &Program) -> String {
    let [constants, bytes, kept, kept_bytes] = counts(program);
    let name = plan::image::weights_name(&program.plans);
    format!(
        "weights: {} of {constants} constants from a file named `{name}` in the base folder of uprd ({}); {kept} in the \
         executable ({})\n",
        constants - kept,
        Bytes(bytes - kept_bytes),
        Bytes(kept_bytes)
    )
}
