//! GPUs to compile for: the emitted kernels of a plan become machine code in it, and a GPU's facts say whether it has room.

use std::path::{Path, PathBuf};

use compiler::Program;
use cuda::Facts;
use cuda::nvrtc::{Compiler, Places};
use lower::cuda::{CudaTarget, assemble};
use plan::{Module, Plan};
use types::Bytes;

use crate::compile::shared_arena;

/// A target with its compiler.
pub(crate) struct Device {
    pub(crate) target: CudaTarget,
    compiler: Compiler,
}

impl Device {
    /// Finds the compiler.
    pub(crate) fn find(target: &CudaTarget, data: &Path) -> Result<Device, String> {
        let compiler = Compiler::find(&places(data)).map_err(|error| error.to_string())?;
        Ok(Device { target: target.clone(), compiler })
    }

    /// The compiler's version.
    pub(crate) fn version(&self) -> Result<String, String> {
        self.compiler.version().map_err(|error| error.to_string())
    }

    /// Compiles the kernels of a plan and puts them into it; their source.
    pub(crate) fn finish(&self, plan: &mut Plan) -> Result<String, String> {
        let source = assemble([&mut *plan]);
        let cubin = self.compiler.compile(&source.text, self.target.arch()).map_err(|error| error.to_string())?;
        plan.modules.push(Module { arch: cubin.arch, code: cubin.bytes });
        Ok(source.text)
    }
}

/// Where NVIDIA's libraries may be: in folders of the environment, or where `cargo xtask fetch --cuda` put them.
pub(crate) fn places(data: &Path) -> Places {
    let paths = |name: &str| -> Vec<PathBuf> {
        std::env::var_os(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
    };
    let mut packages = packages(&data.join("cuda"));
    packages.extend(paths("VIRTUAL_ENV").iter().flat_map(|root| self::packages(root)));
    let toolkit = paths("CUDA_HOME").into_iter().next();
    Places { folders: paths("PRESTOW_CUDA_LIBS"), toolkit, packages }
}

/// The folders of Python's packages in an environment.
fn packages(root: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("site-packages")).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders
}

/// The device memory that a program's one block takes.
pub(crate) fn planned(program: &Program) -> Bytes {
    let alignment = program.plans.iter().map(|plan| plan.arena.alignment).max().unwrap_or(Bytes(1));
    shared_arena(program).align_up(alignment) + Bytes(program.constants.len() as u64)
}

/// Whether a GPU has room for a block, beside what is known to be taken.
pub(crate) fn fits(file: &Path, facts: &Facts, planned: Bytes) -> Result<(), String> {
    let total = Bytes(facts.device.total_global_mem);
    let taken: Bytes = beside(facts).iter().map(|(_, bytes)| *bytes).sum();
    if planned + taken <= total {
        return Ok(());
    }
    let name = &facts.device.device_name;
    Err(format!(
        "the plan takes {planned} of device memory, and {name} has {total} of which {taken} are taken otherwise ({}, {}); \
         take a smaller --batch",
        file.display(),
        facts.source.text()
    ))
}

/// What is expected beside a plan's block, by what was measured.
fn beside(facts: &Facts) -> Vec<(&'static str, Bytes)> {
    let context = facts.measured.iter().map(|measured| ("context, and what others held", measured.context_bytes));
    let cudnn = facts.measured.iter().filter_map(|measured| Some(("cuDNN", measured.cudnn_bytes?)));
    context.chain(cudnn).map(|(what, bytes)| (what, Bytes(bytes))).collect()
}

/// A program's memory on a GPU, in words.
pub(crate) fn as_text(file: &Path, facts: &Facts, program: &Program) -> String {
    let (name, total) = (&facts.device.device_name, Bytes(facts.device.total_global_mem));
    let (file, source) = (file.display(), facts.source.text());
    let mut text = format!("on {name}: {} planned of {total} ({file}: {source})\n", planned(program));
    let beside = beside(facts);
    if beside.is_empty() {
        text.push_str("  what context and libraries take beside it was not measured\n");
    }
    for (what, bytes) in beside {
        text.push_str(&format!(
            "  {bytes:>12}  {what}: expected beside it, as measured when the facts were recorded\n"
        ));
    }
    text
}

/// The same for machines.
pub(crate) fn as_json(file: &Path, facts: &Facts, program: &Program) -> serde_json::Value {
    serde_json::json!({
        "facts": file,
        "source": facts.source.text(),
        "name": facts.device.device_name,
        "memory_bytes": facts.device.total_global_mem,
        "planned_bytes": planned(program).0,
        "measured": facts.measured,
    })
}
