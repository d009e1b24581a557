//! Memory of a plan on a GPU, compared with the GPU's description.

use std::path::Path;

use compiler::Program;
use cuda::DeviceDescription;
use lower::cuda::{CUBLAS_PRODUCT, CUDNN_CONV};
use types::Bytes;

/// The arena that every plan of a program runs in.
pub(crate) fn shared_arena(program: &Program) -> Bytes {
    program.plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default()
}

/// The one block of device memory of a program: arena and constants.
fn block(program: &Program) -> Bytes {
    let alignment = program.plans.iter().map(|plan| plan.arena.alignment).max().unwrap_or(Bytes(1));
    shared_arena(program).align_up(alignment) + program.constants_size()
}

/// Refuses a program that does not fit into the GPU's memory.
///
/// # Errors
/// Block and overhead exceed the GPU's memory.
pub(crate) fn check_capacity(file: &Path, facts: &DeviceDescription, program: &Program) -> Result<(), String> {
    let planned = block(program);
    let total = Bytes(facts.device.total_global_mem);
    let overhead: Bytes = overheads(facts, program).iter().map(|(_, bytes)| *bytes).sum();
    if planned + overhead <= total {
        return Ok(());
    }
    let name = &facts.device.device_name;
    Err(format!(
        "the plan takes {planned} of device memory, and {name} has {total}, of which context and libraries take \
         {overhead} ({}, {}); use a smaller --batch",
        file.display(),
        facts.source.text()
    ))
}

/// Memory that is expected outside the block, as measured when the description was recorded.
fn overheads(facts: &DeviceDescription, program: &Program) -> Vec<(&'static str, Bytes)> {
    let steps = || program.plans.iter().flat_map(|plan| &plan.steps);
    let uses = |kernel: &str| steps().any(|step| step.kernel == kernel);
    let Some(measured) = &facts.measured else { return Vec::new() };
    let overheads = [
        ("context, and other processes", Some(measured.context_bytes)),
        ("cuDNN", measured.cudnn_bytes.filter(|_| uses(CUDNN_CONV))),
        ("cuBLASLt", measured.cublas_bytes.filter(|_| uses(CUBLAS_PRODUCT))),
    ];
    overheads.into_iter().filter_map(|(name, bytes)| Some((name, Bytes(bytes?)))).collect()
}

/// The line for a target that is an architecture.
pub(crate) fn without_description(arch: &str) -> String {
    format!("memory of context and libraries differs between GPUs of {arch}: --target FILE.json describes one GPU\n")
}

/// The note that the GPU's machine has another version of cuDNN than the plan needs.
pub(crate) fn version_mismatch(file: &Path, facts: &DeviceDescription, cudnn: Option<&str>) -> Option<String> {
    let (own, there) = (cudnn?, facts.libraries.get("cudnn")?);
    (own != there).then(|| format!("the executable needs cuDNN {own}, {} has {there}", file.display()))
}

/// The memory of a program on a GPU.
pub(crate) fn as_text(file: &Path, facts: &DeviceDescription, program: &Program) -> String {
    let (name, total) = (&facts.device.device_name, Bytes(facts.device.total_global_mem));
    let (file, source) = (file.display(), facts.source.text());
    let mut text = format!("on {name}: {} planned of {total} ({file}: {source})\n", block(program));
    let overheads = overheads(facts, program);
    if overheads.is_empty() {
        text.push_str("  memory of context and libraries was not measured\n");
    }
    for (name, bytes) in overheads {
        text.push_str(&format!("  {bytes:>12}  {name}: outside the plan, as measured for the description\n"));
    }
    text
}

/// The same as JSON.
pub(crate) fn as_json(file: &Path, facts: &DeviceDescription, program: &Program) -> serde_json::Value {
    serde_json::json!({
        "facts": file,
        "source": facts.source.text(),
        "name": facts.device.device_name,
        "memory_bytes": facts.device.total_global_mem,
        "planned_bytes": block(program).0,
        "measured": facts.measured,
    })
}
