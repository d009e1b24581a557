//! GPUs to compile for: the emitted kernels of a plan become machine code in it, and a GPU's facts say whether it has room.

use std::path::Path;

use compiler::Program;
use compiler::gpu::Libraries;
use cuda::Facts;
use lower::cuda::{CUBLAS_PRODUCT, CUDNN_CONV, CudaTarget, EMITTED_CONVS, EMITTED_PRODUCTS};
use plan::{Plan, Step};
use types::Bytes;

use crate::compile::shared_arena;

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
    let by = |kernel: &str| steps().any(|step| step.kernel == kernel);
    let Some(measured) = &facts.measured else { return Vec::new() };
    let taken = [
        ("context, and what others held", Some(measured.context_bytes)),
        ("cuDNN", measured.cudnn_bytes.filter(|_| by(CUDNN_CONV))),
        ("cuBLASLt", measured.cublas_bytes.filter(|_| by(CUBLAS_PRODUCT))),
    ];
    taken.into_iter().filter_map(|(what, bytes)| Some((what, Bytes(bytes?)))).collect()
}

/// What is said of memory where only an architecture is known.
pub(crate) fn unknown(arch: &str) -> String {
    format!(
        "what context and libraries take beside it is not known of every {arch}: --target FILE.json names one GPU's facts\n"
    )
}

/// Whether the library that planned is another than the facts have, where the executable will refuse to run.
pub(crate) fn other_version(file: &Path, facts: &Facts, cudnn: Option<&str>) -> Option<String> {
    let (own, there) = (cudnn?, facts.libraries.get("cudnn")?);
    (own != there).then(|| {
        format!("{} has cuDNN {there}; the executable needs {own}, which planned, where it runs", file.display())
    })
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

/// A node that a library does not do.
struct Refused {
    scope: String,
    reason: String,
}

/// Why libraries do not do nodes, where that does not depend on how much workspace they may have.
pub(crate) struct Left {
    by_cudnn: Vec<Refused>,
    by_cublas: Vec<Refused>,
}

impl Left {
    /// Of a graph whose nodes are in their final form.
    pub(crate) fn of(target: &CudaTarget, graph: &ir::Graph) -> Left {
        let refused = |reason: &dyn Fn(ir::NodeId) -> Option<String>| {
            let refused = |id| Some(Refused { reason: reason(id)?, scope: graph.node(id).scope.to_string() });
            graph.nodes().keys().filter_map(refused).collect()
        };
        Left {
            by_cudnn: refused(&|id| target.refused_by_cudnn(graph, id)),
            by_cublas: refused(&|id| target.refused_by_cublas(graph, id)),
        }
    }
}

/// What a library does of a program.
pub(crate) struct Library {
    /// Under which name machines are told of it.
    pub(crate) key: &'static str,
    name: &'static str,
    /// None where it is not asked before a plan runs.
    version: Option<String>,
    nodes: &'static str,
    plans: Vec<Share>,
}

/// What it does of a plan.
struct Share {
    batch: u64,
    done: usize,
    refused: Vec<Refused>,
}

impl Share {
    /// By the steps that a plan has in the end: under a budget some nodes are cut into several, and a library may have
    /// nothing within the workspace that is left.
    fn of(plan: &Plan, kernel: &str, emitted: &[&str], known: &[Refused]) -> Share {
        let done = plan.steps.iter().filter(|step| step.kernel == kernel).count();
        let others = plan.steps.iter().filter(|step| emitted.contains(&step.kernel.as_str()));
        let refused = |step: &Step| {
            let scope = step.scope.to_string();
            let known = known.iter().find(|known| known.scope == scope).map(|known| known.reason.clone());
            Refused {
                reason: known.unwrap_or_else(|| "it has nothing within the workspace of the budget".into()),
                scope,
            }
        };
        Share { batch: plan.batch, done, refused: others.map(refused).collect() }
    }
}

impl Library {
    /// Those that are asked for, with what they leave of each plan, and why.
    pub(crate) fn all(libraries: Libraries, cudnn: Option<String>, program: &Program, left: &[Left]) -> Vec<Library> {
        let plans = |kernel: &str, emitted: &[&str], known: fn(&Left) -> &[Refused]| -> Vec<Share> {
            let share = |(plan, left): (&Plan, &Left)| Share::of(plan, kernel, emitted, known(left));
            program.plans.iter().zip(left).map(share).collect()
        };
        let mut all = Vec::new();
        if cudnn.is_some() {
            let plans = plans(CUDNN_CONV, &EMITTED_CONVS, |left| &left.by_cudnn);
            all.push(Library { key: "cudnn", name: "cuDNN", version: cudnn, nodes: "convolutions", plans });
        }
        if libraries.cublas.is_some() {
            let plans = plans(CUBLAS_PRODUCT, &EMITTED_PRODUCTS, |left| &left.by_cublas);
            all.push(Library { key: "cublas", name: "cuBLASLt", version: None, nodes: "products", plans });
        }
        all
    }

    pub(crate) fn text(&self, verbose: bool) -> String {
        let mut text = String::new();
        let name = self.version.iter().fold(self.name.to_string(), |name, version| format!("{name} {version}"));
        for Share { batch, done, refused } in &self.plans {
            let all = done + refused.len();
            let needs = if *done == 0 { "the executable does not need it" } else { "the executable needs it" };
            text.push_str(&format!("{name} does {done} of {all} {} at batch {batch}; {needs}", self.nodes));
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
