//! [`Description`]: summary of an executable.

use std::collections::BTreeMap;
use std::fmt::Write;

use plan::{KernelChoice, Plan, Port, image::FORMAT_VERSION};
use serde::Serialize;
use types::Bytes;

/// The output of `describe`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// The model's name.
    pub model: String,
    /// The target.
    pub target: String,
    /// The first extent of the inputs.
    pub batch: u64,
    /// All batch sizes with a plan.
    pub batches: Vec<u64>,
    /// Size of the arena, which all batch sizes share.
    pub arena_bytes: u64,
    /// Proved bounds of the arena of this batch: over placements, orders, and kernels with layouts.
    pub proved: [String; 3],
    /// A lower bound on the arena of these steps with any kernels and layouts, in any order; zero if none is proved.
    pub any_kernels_bytes: u64,
    /// The inputs.
    pub inputs: Vec<PortReport>,
    /// The outputs.
    pub outputs: Vec<PortReport>,
    /// Kernel calls per run.
    pub steps: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Arithmetic operations per run; a multiply-add counts as two.
    pub flops: u64,
    /// Required libraries other than the driver.
    pub libraries: Vec<String>,
    /// The layers that a library and an emitted kernel can compute, with the choice.
    pub choices: Vec<ChoiceReport>,
    /// Version of the plan format.
    pub format_version: u32,
}

/// The choice between a library's kernel and an emitted one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChoiceReport {
    /// The layer.
    pub node: String,
    /// The kernel that was taken.
    pub taken: String,
    /// The other one.
    pub other: String,
    /// The time of the one taken, in microseconds.
    pub taken_us: f64,
    /// The time of the other one.
    pub other_us: f64,
    /// Whether the times were measured; otherwise they are modelled.
    pub measured: bool,
}

impl From<&KernelChoice> for ChoiceReport {
    fn from(choice: &KernelChoice) -> ChoiceReport {
        let [taken_us, other_us] = choice.times.map(|picoseconds| picoseconds as f64 / 1e6);
        ChoiceReport {
            node: choice.scope.to_string(),
            taken: choice.taken.clone(),
            other: choice.other.clone(),
            taken_us,
            other_us,
            measured: choice.measured,
        }
    }
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortReport {
    /// The name.
    pub name: String,
    /// The dtype.
    pub dtype: String,
    /// The extents.
    pub shape: Vec<usize>,
}

impl Description {
    /// The description of an executable's only plan.
    pub fn new(plan: &Plan) -> Description {
        let ports = |ports: &[Port]| {
            let report = |port: &Port| PortReport {
                name: port.name.clone(),
                dtype: port.dtype.to_string(),
                shape: port.shape.to_vec(),
            };
            ports.iter().map(report).collect()
        };
        Description {
            model: plan.model.clone(),
            target: plan.target.clone(),
            batch: plan.batch,
            batches: vec![plan.batch],
            arena_bytes: plan.arena.size().0,
            proved: plan.certificates().texts(),
            any_kernels_bytes: plan.any_kernels.0,
            inputs: ports(&plan.inputs),
            outputs: ports(&plan.outputs),
            steps: plan.steps.len(),
            parameters: plan.parameters,
            flops: plan.flops,
            libraries: runtime::required_libraries(plan),
            choices: plan.choices.iter().map(ChoiceReport::from).collect(),
            format_version: FORMAT_VERSION,
        }
    }

    /// The description in a few lines.
    pub fn text(&self) -> String {
        let mut text = format!("{} for {}, batch {}\n", self.model, self.target, self.batch);
        if 1 < self.batches.len() {
            let batches: Vec<String> = self.batches.iter().map(u64::to_string).collect();
            let _ = writeln!(
                text,
                "{:<12} {}; they share one arena of {}; choose with --batch",
                "batches",
                batches.join(", "),
                Bytes(self.arena_bytes)
            );
        }
        for (kind, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            for port in ports {
                let extents: Vec<String> = port.shape.iter().map(usize::to_string).collect();
                let _ = writeln!(text, "{kind:<12} {} {}[{}]", port.name, port.dtype, extents.join(","));
            }
        }
        let _ = writeln!(
            text,
            "{:<12} {} steps, {:.2} M parameters, {:.2} GFLOP a run, plan format {}",
            "work",
            self.steps,
            self.parameters as f64 / 1e6,
            self.flops as f64 / 1e9,
            self.format_version
        );
        for library in &self.libraries {
            let _ = writeln!(text, "{:<12} {library}", "needs");
        }
        text + &self.choice_text()
    }

    /// A line for each pair of kernels between which there was a choice: how often one was taken, and the times of both.
    fn choice_text(&self) -> String {
        let mut sums: BTreeMap<(&str, &str, bool), (usize, f64, f64)> = BTreeMap::new();
        for choice in &self.choices {
            let (count, taken, other) = sums.entry((&choice.taken, &choice.other, choice.measured)).or_default();
            (*count, *taken, *other) = (*count + 1, *taken + choice.taken_us, *other + choice.other_us);
        }
        let mut text = String::new();
        for ((taken, other, measured), (count, taken_us, other_us)) in sums {
            let (layers, how) =
                (if count == 1 { "layer" } else { "layers" }, if measured { "measured" } else { "modelled" });
            let _ = writeln!(
                text,
                "{:<12} {taken} for {count} {layers}, {taken_us:.1} us; {other} would take {other_us:.1} us, {how}",
                "choice"
            );
        }
        text
    }

    /// Proved bounds of the arena, a line for each.
    pub fn proof_text(&self) -> String {
        let mut text = String::new();
        for (coverage, proved) in ["placement", "order", "kernels"].iter().zip(&self.proved) {
            let _ = writeln!(text, "{coverage:<12} {proved}");
        }
        text
    }
}
