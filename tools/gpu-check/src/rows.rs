//! The report as types: written as JSON, read again by `--resume`.

use std::collections::BTreeMap;
use std::fmt;

use compiler::gpu::Precision;
use report::Latency;
use runtime::process::MemoryItem;
use serde::{Deserialize, Serialize};

/// Result of checking one operator case or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// Results are right, and every byte of the arena is as planned.
    #[serde(rename = "equal")]
    Equal,
    /// Results are right; memory was not audited.
    #[serde(rename = "right")]
    Right,
    /// There is no kernel.
    #[serde(rename = "refused")]
    Refused,
    /// Results differ by more than the tolerance.
    #[serde(rename = "WRONG")]
    Wrong,
    /// The audit found bytes that the plan does not name.
    #[serde(rename = "OTHER MEMORY")]
    OtherMemory,
    /// The driver allocated memory during a run.
    #[serde(rename = "ALLOCATES")]
    Allocates,
    /// The case did not run.
    #[serde(rename = "FAILED")]
    Failed,
}

impl Verdict {
    /// Whether it leaves the exit code at 0. A refusal does: it is a limitation, not a fault.
    pub(crate) fn passes(self) -> bool {
        matches!(self, Verdict::Equal | Verdict::Right | Verdict::Refused)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Equal => "equal",
            Verdict::Right => "right",
            Verdict::Refused => "refused",
            Verdict::Wrong => "WRONG",
            Verdict::OtherMemory => "OTHER MEMORY",
            Verdict::Allocates => "ALLOCATES",
            Verdict::Failed => "FAILED",
        })
    }
}

/// The whole report.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// `None` until networks are checked.
    pub(crate) peaks: Option<PeaksRow>,
    /// The baselines that were looked for.
    pub(crate) baselines: BTreeMap<Baseline, BaselineState>,
    pub(crate) operators: Vec<OperatorRow>,
    pub(crate) operators_summary: Vec<OperatorSummary>,
    /// Precisions whose operators were stopped by a time limit.
    #[serde(default)]
    pub(crate) operators_part: Vec<OperatorsPart>,
    pub(crate) networks: Vec<NetworkRow>,
    /// Absent in reports of earlier versions.
    #[serde(default)]
    pub(crate) training: Vec<TrainingRow>,
    /// Rows that a time limit left out.
    pub(crate) remaining: usize,
}

/// The machine, and the settings that runs of a resumed report must share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) format: String,
    pub(crate) gpu: String,
    pub(crate) arch: String,
    pub(crate) memory_bytes: usize,
    pub(crate) free_bytes: usize,
    pub(crate) nvrtc: String,
    pub(crate) cudnn: Option<LibraryRow>,
    pub(crate) cublas: Option<LibraryRow>,
    pub(crate) dtypes: Vec<Precision>,
    /// Parts of the names of operator cases.
    pub(crate) only: Vec<String>,
}

/// A library in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LibraryRow {
    pub(crate) version: String,
    /// Its arithmetic, distinct values of all precisions.
    pub(crate) math: String,
}

/// Peaks, or the reason for their absence.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum PeaksRow {
    Measured(Peaks),
    Unavailable { not_measured: String },
}

/// The most that probes reached on this GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peaks {
    /// Bytes read and written per second.
    pub(crate) bytes_per_s: f64,
    /// Operations per second of our own probes, by precision.
    pub(crate) flops_per_s: BTreeMap<String, f64>,
    /// The extent of cuBLASLt's square product.
    pub(crate) product_extent: u32,
    /// Operations per second of that product, by precision; empty without `--cublas`.
    pub(crate) product_flops_per_s: BTreeMap<String, f64>,
}

/// A plan's time compared with the peaks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Roofline {
    pub(crate) moved_bytes: u64,
    pub(crate) gb_per_s: f64,
    pub(crate) of_bandwidth: f64,
    pub(crate) of_flops: f64,
    /// The time in which every step reaches one of the two peaks.
    pub(crate) roofline_ms: f64,
    /// That time as a part of the measured time.
    pub(crate) of_roofline: f64,
}

/// One operator case in one precision.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OperatorRow {
    pub(crate) case: String,
    pub(crate) dtype: Precision,
    pub(crate) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(flatten)]
    pub(crate) run: Option<OperatorRun>,
    #[serde(flatten)]
    pub(crate) mismatch: Option<Mismatch>,
}

/// A case that ran.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OperatorRun {
    pub(crate) kernels: Vec<String>,
    pub(crate) arena_bytes: u64,
    /// The largest error divided by its tolerance; `None` if not finite.
    pub(crate) of_tolerance: Option<f64>,
}

/// The first wrong element.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mismatch {
    pub(crate) output: String,
    pub(crate) index: Vec<usize>,
    /// As text, because JSON has neither NaN nor infinity.
    pub(crate) got: String,
    pub(crate) want: String,
    pub(crate) wrong_elements: usize,
}

/// The first operator cases in one precision, in the order of the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OperatorsPart {
    pub(crate) dtype: Precision,
    /// The number of cases that have rows.
    pub(crate) done: usize,
    /// The number of all cases: a list of another length is another list.
    pub(crate) cases: usize,
    pub(crate) seconds: f64,
}

/// All operator cases in one precision.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OperatorSummary {
    pub(crate) dtype: Precision,
    pub(crate) cases: usize,
    pub(crate) equal: usize,
    pub(crate) right: usize,
    pub(crate) refused: usize,
    pub(crate) wrong: usize,
    pub(crate) other_memory: usize,
    pub(crate) failed: usize,
    pub(crate) seconds: f64,
    /// The largest error divided by its tolerance, and the case that has it.
    pub(crate) of_tolerance: Option<f64>,
    pub(crate) case: Option<String>,
}

/// One network at one batch size in one precision.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NetworkRow {
    pub(crate) network: String,
    pub(crate) batch: usize,
    pub(crate) dtype: Precision,
    pub(crate) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(flatten)]
    pub(crate) run: Option<NetworkRun>,
}

/// A network that ran.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NetworkRun {
    pub(crate) arena_bytes: u64,
    pub(crate) weights_bytes: u64,
    /// The device block of arena and constants. Drivers round it up, so free memory falls by more.
    pub(crate) block_bytes: u64,
    pub(crate) device_memory: Vec<MemoryRow>,
    pub(crate) observed: Vec<MemoryRow>,
    pub(crate) not_observed: Vec<UnavailableRow>,
    pub(crate) allocations_in_run: Option<u64>,
    /// The largest difference divided by the largest reference value; `None` if not finite.
    pub(crate) difference: Option<f64>,
    pub(crate) tolerance: f64,
    pub(crate) gpu_ms: f64,
    pub(crate) latency_ms: Latency,
    pub(crate) device_ms: Option<Latency>,
    pub(crate) samples_per_s: f64,
    pub(crate) gflop_per_s: f64,
    pub(crate) roofline: Option<Roofline>,
    pub(crate) cpu_ms: f64,
    pub(crate) audited: bool,
    pub(crate) not_audited: Option<String>,
    pub(crate) baselines: Vec<BaselineRow>,
}

/// The training step of one network at one batch size, in `f32`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainingRow {
    pub(crate) network: String,
    pub(crate) batch: usize,
    pub(crate) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(flatten)]
    pub(crate) run: Option<TrainingRun>,
}

/// A training step that ran.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainingRun {
    pub(crate) optimizer: String,
    /// The whole step: weights, states, activations, gradients and workspaces.
    pub(crate) arena_bytes: u64,
    /// Of these, weights and other states, which live from step to step.
    pub(crate) states_bytes: u64,
    /// The device block of arena and constants.
    pub(crate) block_bytes: u64,
    pub(crate) device_memory: Vec<MemoryRow>,
    pub(crate) allocations_in_run: Option<u64>,
    /// The losses of the first steps here and on this machine's CPU.
    pub(crate) losses: Vec<f64>,
    pub(crate) cpu_losses: Vec<f64>,
    /// The difference of losses or a state that is closest to its tolerance, or exceeds it by most; `None` if not finite.
    pub(crate) difference: Option<f64>,
    pub(crate) tolerance: f64,
    /// The losses or the state.
    #[serde(default)]
    pub(crate) of: Option<String>,
    /// States that are rounding errors alone on this machine's CPU, too.
    #[serde(default)]
    pub(crate) not_compared: usize,
    pub(crate) latency_ms: Latency,
    pub(crate) device_ms: Option<Latency>,
    pub(crate) steps_per_s: f64,
    pub(crate) samples_per_s: f64,
    pub(crate) cpu_ms: f64,
    pub(crate) audited: bool,
    pub(crate) not_audited: Option<String>,
}

/// Bytes with a name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemoryRow {
    pub(crate) what: String,
    pub(crate) method: String,
    pub(crate) bytes: u64,
}

impl From<&MemoryItem> for MemoryRow {
    fn from(item: &MemoryItem) -> MemoryRow {
        MemoryRow { what: item.what.clone(), method: item.method.clone(), bytes: item.bytes }
    }
}

/// A figure that the system does not give.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnavailableRow {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// Another runtime that is measured on the same GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Baseline {
    TorchEager,
    TorchCompile,
    #[serde(rename = "onnxruntime")]
    OnnxRuntime,
}

impl Baseline {
    pub(crate) const ALL: [Baseline; 3] = [Baseline::TorchEager, Baseline::TorchCompile, Baseline::OnnxRuntime];

    /// The name on the command line and in the script.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Baseline::TorchEager => "torch-eager",
            Baseline::TorchCompile => "torch-compile",
            Baseline::OnnxRuntime => "onnxruntime",
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a baseline is installed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BaselineState {
    Version(String),
    /// Holds the reason.
    Missing(String),
}

/// A baseline on one network.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BaselineRow {
    pub(crate) name: Baseline,
    #[serde(flatten)]
    pub(crate) outcome: BaselineOutcome,
}

/// Times, or the reason for their absence.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum BaselineOutcome {
    Refused { refused: String },
    Ran(BaselineRun),
}

/// Times of a baseline and of ours, measured in turns.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BaselineRun {
    pub(crate) version: String,
    /// The configuration that it chose.
    pub(crate) how: String,
    pub(crate) load_ms: f64,
    pub(crate) difference: f64,
    /// Median of single runs, each waited for.
    pub(crate) latency_ms: f64,
    pub(crate) our_latency_ms: f64,
    /// Time per run if runs are queued back to back.
    pub(crate) back_to_back_ms: f64,
    pub(crate) our_back_to_back_ms: f64,
    /// Our latency divided by the baseline's: smaller is better.
    pub(crate) latency_ratio: f64,
    /// Our throughput divided by the baseline's: larger is better.
    pub(crate) throughput_ratio: f64,
}

impl NetworkRow {
    /// The run of a baseline, if it was compared.
    pub(crate) fn baseline(&self, name: Baseline) -> Option<&BaselineRun> {
        self.run.as_ref()?.baselines.iter().find_map(|row| match &row.outcome {
            BaselineOutcome::Ran(run) if row.name == name => Some(run),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_a_round_trip() {
        let row = OperatorRow {
            case: "conv".into(),
            dtype: Precision::Tf32,
            verdict: Verdict::OtherMemory,
            reason: Some("outside".into()),
            run: Some(OperatorRun { kernels: vec!["cuda_conv".into()], arena_bytes: 12, of_tolerance: None }),
            mismatch: None,
        };
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.contains("\"verdict\":\"OTHER MEMORY\"") && text.contains("\"dtype\":\"tf32\""), "{text}");
        let again: OperatorRow = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        assert!(again.run.is_some() && again.mismatch.is_none());

        let refused = BaselineOutcome::Refused { refused: "no such thing".into() };
        let rows = [
            BaselineRow { name: Baseline::TorchEager, outcome: refused },
            BaselineRow { name: Baseline::OnnxRuntime, outcome: BaselineOutcome::Ran(BaselineRun::default()) },
        ];
        let text = serde_json::to_string(&rows).unwrap();
        let again: Vec<BaselineRow> = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }

    #[test]
    fn refusals_pass_and_faults_do_not() {
        assert!([Verdict::Equal, Verdict::Right, Verdict::Refused].iter().all(|verdict| verdict.passes()));
        let faults = [Verdict::Wrong, Verdict::OtherMemory, Verdict::Allocates, Verdict::Failed];
        assert!(!faults.iter().any(|verdict| verdict.passes()));
    }
}
