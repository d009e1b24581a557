//! GPUs to compile for: the emitted kernels of a plan become machine code in it, and a GPU's facts say whether it has room.

use std::path::Path;
use std::rc::Rc;

use compiler::Program;
use cuda::cudnn::{Math, Planner};
use cuda::nvrtc::Compiler;
use cuda::{Facts, Places, Properties};
use lower::cuda::{CUDNN_CONV, CudaTarget, assemble};
use plan::{Module, Plan};
use types::Bytes;

use crate::compile::shared_arena;

/// A target with its compiler.
pub(crate) struct Device {
    pub(crate) target: CudaTarget,
    compiler: Compiler,
    /// The version of cuDNN, where it is asked.
    pub(crate) cudnn: Option<String>,
}

impl Device {
    /// Finds the compiler.
    pub(crate) fn find(target: &CudaTarget, data: &Path) -> Result<Device, String> {
        let compiler = Compiler::find(&places(data)).map_err(|error| error.to_string())?;
        Ok(Device { target: target.clone(), compiler, cudnn: None })
    }

    /// With cuDNN, for a GPU of such properties.
    pub(crate) fn with_cudnn(mut self, device: &Properties, math: Math, data: &Path) -> Result<Device, String> {
        let version;
        (self.target, version) = with_cudnn(self.target, device, math, data)?;
        self.cudnn = Some(version);
        Ok(self)
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

/// A target with cuDNN, for a GPU of such properties, and cuDNN's version.
pub(crate) fn with_cudnn(
    target: CudaTarget,
    device: &Properties,
    math: Math,
    data: &Path,
) -> Result<(CudaTarget, String), String> {
    let planner = Planner::new(&places(data), device, math).map_err(|error| error.to_string())?;
    let version = planner.version();
    Ok((target.with_cudnn(Rc::new(planner)), version))
}

/// Where NVIDIA's libraries may be: in folders of the environment, or where `cargo xtask fetch --cuda` put them.
pub(crate) fn places(data: &Path) -> Places {
    Places::of(|name| std::env::var_os(name)).with_environment(&data.join("cuda"))
}

/// The device memory that a program's one block takes.
pub(crate) fn planned(program: &Program) -> Bytes {
    let alignment = program.plans.iter().map(|plan| plan.arena.alignment).max().unwrap_or(Bytes(1));
    shared_arena(program).align_up(alignment) + Bytes(program.constants.len() as u64)
}

/// Whether a GPU has room for a block, beside what is known to be taken.
pub(crate) fn fits(file: &Path, facts: &Facts, program: &Program) -> Result<(), String> {
    let planned = planned(program);
    let total = Bytes(facts.device.total_global_mem);
    let taken: Bytes = beside(facts, program).iter().map(|(_, bytes)| *bytes).sum();
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
fn beside(facts: &Facts, program: &Program) -> Vec<(&'static str, Bytes)> {
    let steps = || program.plans.iter().flat_map(|plan| &plan.steps);
    let by_cudnn = steps().any(|step| step.kernel == CUDNN_CONV);
    let context = facts.measured.iter().map(|measured| ("context, and what others held", measured.context_bytes));
    let cudnn = facts.measured.iter().filter(|_| by_cudnn);
    let cudnn = cudnn.filter_map(|measured| Some(("cuDNN", measured.cudnn_bytes?)));
    context.chain(cudnn).map(|(what, bytes)| (what, Bytes(bytes))).collect()
}

/// A program's memory on a GPU, in words.
pub(crate) fn as_text(file: &Path, facts: &Facts, program: &Program) -> String {
    let (name, total) = (&facts.device.device_name, Bytes(facts.device.total_global_mem));
    let (file, source) = (file.display(), facts.source.text());
    let mut text = format!("on {name}: {} planned of {total} ({file}: {source})\n", planned(program));
    let beside = beside(facts, program);
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

/// A convolution that cuDNN does not do.
pub(crate) struct Refused {
    scope: String,
    reason: String,
}

/// The convolutions of a graph that cuDNN does not do.
pub(crate) fn refused_by_cudnn(target: &CudaTarget, graph: &ir::Graph) -> Vec<Refused> {
    let refused = |id| {
        let reason = target.refused_by_cudnn(graph, id)?;
        Some(Refused { scope: graph.node(id).scope.to_string(), reason })
    };
    graph.nodes().keys().filter_map(refused).collect()
}

/// What cuDNN does of a program.
pub(crate) struct Library {
    version: String,
    plans: Vec<Share>,
}

/// What it does of a plan.
struct Share {
    batch: u64,
    done: usize,
    refused: Vec<Refused>,
}

impl Library {
    pub(crate) fn new(version: String, program: &Program, refused: Vec<Vec<Refused>>) -> Library {
        let share = |(plan, refused): (&Plan, _)| {
            let done = plan.steps.iter().filter(|step| step.kernel == CUDNN_CONV).count();
            Share { batch: plan.batch, done, refused }
        };
        Library { version, plans: program.plans.iter().zip(refused).map(share).collect() }
    }

    pub(crate) fn text(&self, verbose: bool) -> String {
        let mut text = String::new();
        for Share { batch, done, refused } in &self.plans {
            let all = done + refused.len();
            let needs = if *done == 0 { "the executable does not need it" } else { "the executable needs it" };
            text.push_str(&format!(
                "cuDNN {} does {done} of {all} convolutions at batch {batch}; {needs}",
                self.version
            ));
            text.push_str(if verbose || refused.is_empty() { "\n" } else { "; --verbose says why not the others\n" });
            for Refused { scope, reason } in refused.iter().filter(|_| verbose) {
                text.push_str(&format!("  {scope}: {reason}\n"));
            }
        }
        text
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let refused = |Refused { scope, reason }: &Refused| serde_json::json!({ "node": scope, "reason": reason });
        let plan = |Share { batch, done, refused: others }: &Share| {
            let others: Vec<serde_json::Value> = others.iter().map(refused).collect();
            serde_json::json!({ "batch": batch, "done": done, "refused": others })
        };
        serde_json::json!({ "version": self.version, "plans": self.plans.iter().map(plan).collect::<Vec<_>>() })
    }
}
