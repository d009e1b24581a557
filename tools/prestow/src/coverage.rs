//! [`Coverage`]: the layers of a program that cuDNN and cuBLASLt compute, and the reasons for the others.

use compiler::Program;
use compiler::gpu::Libraries;
use lower::cuda::{CUBLAS_PRODUCT, CUDNN_CONV, CudaTarget, EMITTED_CONVS, EMITTED_PRODUCTS};
use plan::{KernelChoice, Plan, Step};

/// A layer that a library does not compute.
struct Fallback {
    scope: String,
    reason: String,
}

/// The layers that libraries refuse whatever their workspace.
pub(crate) struct Fallbacks {
    cudnn: Vec<Fallback>,
    cublas: Vec<Fallback>,
}

impl Fallbacks {
    /// The layers of a graph whose nodes are in their final form.
    pub(crate) fn of(target: &CudaTarget, graph: &ir::Graph) -> Fallbacks {
        let refused = |reason: &dyn Fn(ir::NodeId) -> Option<String>| {
            let refused = |id| Some(Fallback { reason: reason(id)?, scope: graph.node(id).scope.to_string() });
            graph.nodes().keys().filter_map(refused).collect()
        };
        Fallbacks {
            cudnn: refused(&|id| target.refused_by_cudnn(graph, id)),
            cublas: refused(&|id| target.refused_by_cublas(graph, id)),
        }
    }
}

/// The coverage of a library in a program.
pub(crate) struct Coverage {
    /// The key in JSON.
    pub(crate) key: &'static str,
    name: &'static str,
    /// `None`: the library is loaded when the executable is opened.
    version: Option<String>,
    nodes: &'static str,
    plans: Vec<PlanCoverage>,
}

/// The coverage of a library in a plan.
struct PlanCoverage {
    batch: u64,
    done: usize,
    fallbacks: Vec<Fallback>,
}

impl PlanCoverage {
    /// Counts the steps of the finished plan: under a budget some nodes become several steps, and a library may have no
    /// algorithm within the remaining workspace.
    fn of(plan: &Plan, kernel: &str, emitted: &[&str], known: &[Fallback]) -> PlanCoverage {
        let done = plan.steps.iter().filter(|step| step.kernel == kernel).count();
        let others = plan.steps.iter().filter(|step| emitted.contains(&step.kernel.as_str()));
        let fallback = |step: &Step| {
            let scope = step.scope.to_string();
            let known = known.iter().find(|known| known.scope == scope).map(|known| known.reason.clone());
            let slower = plan.choices.iter().find(|choice| choice.scope == step.scope && choice.other == kernel);
            let known = known.or_else(|| slower.map(slower_text));
            let reason = known.unwrap_or_else(|| "it has nothing within the workspace of the budget".into());
            Fallback { reason, scope }
        };
        PlanCoverage { batch: plan.batch, done, fallbacks: others.map(fallback).collect() }
    }
}

/// The reason that an emitted kernel was taken instead of a library's.
fn slower_text(choice: &KernelChoice) -> String {
    let [taken, other] = choice.times.map(|picoseconds| picoseconds as f64 / 1e6);
    let how = if choice.measured { "measured" } else { "modelled" };
    format!("an emitted kernel is faster: {taken:.1} us instead of {other:.1} us, {how}")
}

impl Coverage {
    /// The coverage of each enabled library, with `fallbacks` per plan.
    pub(crate) fn all(
        libraries: Libraries,
        cudnn: Option<String>,
        program: &Program,
        fallbacks: &[Fallbacks],
    ) -> Vec<Coverage> {
        let plans = |kernel: &str, emitted: &[&str], known: fn(&Fallbacks) -> &[Fallback]| -> Vec<PlanCoverage> {
            let of = |(plan, fallbacks): (&Plan, &Fallbacks)| PlanCoverage::of(plan, kernel, emitted, known(fallbacks));
            program.plans.iter().zip(fallbacks).map(of).collect()
        };
        let mut all = Vec::new();
        if cudnn.is_some() {
            let plans = plans(CUDNN_CONV, &EMITTED_CONVS, |fallbacks| &fallbacks.cudnn);
            all.push(Coverage { key: "cudnn", name: "cuDNN", version: cudnn, nodes: "convolutions", plans });
        }
        if libraries.cublas.is_some() {
            let plans = plans(CUBLAS_PRODUCT, &EMITTED_PRODUCTS, |fallbacks| &fallbacks.cublas);
            all.push(Coverage { key: "cublas", name: "cuBLASLt", version: None, nodes: "products", plans });
        }
        all
    }

    /// A line per plan; with `verbose` a line per fallback.
    pub(crate) fn text(&self, verbose: bool) -> String {
        let mut text = String::new();
        let name = self.version.iter().fold(self.name.to_string(), |name, version| format!("{name} {version}"));
        for PlanCoverage { batch, done, fallbacks } in &self.plans {
            let all = done + fallbacks.len();
            let needs = if *done == 0 { "the executable does not need it" } else { "the executable needs it" };
            text.push_str(&format!("{name} does {done} of {all} {} at batch {batch}; {needs}", self.nodes));
            text.push_str(if verbose || fallbacks.is_empty() { "\n" } else { "; --verbose lists the others\n" });
            for Fallback { scope, reason } in fallbacks.iter().filter(|_| verbose) {
                text.push_str(&format!("  {scope}: {reason}\n"));
            }
        }
        text
    }

    /// The same as JSON, with every fallback.
    pub(crate) fn json(&self) -> serde_json::Value {
        let fallback = |Fallback { scope, reason }: &Fallback| serde_json::json!({ "node": scope, "reason": reason });
        let plan = |PlanCoverage { batch, done, fallbacks }: &PlanCoverage| {
            let fallbacks: Vec<serde_json::Value> = fallbacks.iter().map(fallback).collect();
            serde_json::json!({ "batch": batch, "done": done, "refused": fallbacks })
        };
        serde_json::json!({ "version": self.version, "plans": self.plans.iter().map(plan).collect::<Vec<_>>() })
    }
}
