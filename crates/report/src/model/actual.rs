//! [`Measured`]: the memory that a run used, compared with the plan.

use runtime::audit::{Audit, BufferAudit};
use runtime::process::{MemoryItem, ProcessMemory, SHARED_WEIGHTS};
use serde::{Deserialize, Serialize};

use super::Report;

/// The memory that a run used, and whether it equals the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The measured memory.
    pub actual: Actual,
    /// The verdict of the comparison.
    pub verdict: Verdict,
}

/// The memory that a run used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actual {
    /// Arena bytes that some buffer covers at some step.
    pub arena_planned_bytes: u64,
    /// The part of these bytes that a run wrote.
    pub arena_written_bytes: u64,
    /// Bytes that steps wrote outside the operands that they may write.
    pub outside_bytes: u64,
    /// The steps that wrote these bytes.
    pub outside: Vec<Outside>,
    /// Heap allocations during a run.
    pub heap_allocations_in_run: u64,
    /// Bytes of constants that a run read, if it reads any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_in_run: Option<u64>,
    /// Whether runs over different fill patterns gave bit-identical results: no step read uninitialized bytes.
    pub same_results: bool,
    /// After each step, the bytes of live buffers that have been written.
    pub live_written_bytes: Vec<u64>,
    /// The peak of resident memory.
    pub peak_rss_bytes: u64,
    /// Resident memory after a run.
    pub rss_bytes: u64,
    /// Resident private memory that was written.
    pub private_dirty_bytes: u64,
    /// Resident memory of the arena and of the image's plan and weights.
    pub planned_resident: Vec<ProcessItem>,
    /// Residual memory: all other resident memory.
    pub residual: Vec<ProcessItem>,
    /// Memory of the device, if it has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<ProcessItem>,
    /// Device memory of whole processes, including libraries and contexts, as the device's management library reports
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_processes: Vec<ProcessItem>,
    /// Figures that the device's management library does not report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_unavailable: Vec<UnavailableItem>,
}

/// A figure that is unavailable, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnavailableItem {
    /// The figure.
    pub what: String,
    /// The reason.
    pub why: String,
}

impl Actual {
    /// Resident bytes that are neither arena nor image.
    pub fn residual_bytes(&self) -> u64 {
        self.residual.iter().map(|item| item.bytes).sum()
    }
}

/// A step that wrote outside its operands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// Its position.
    pub step: usize,
    /// The number of bytes outside.
    pub bytes: u64,
}

/// Resident bytes of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessItem {
    /// Their kind.
    pub what: String,
    /// The number of bytes.
    pub bytes: u64,
    /// How the figure was measured.
    pub method: String,
}

/// Whether used memory equals planned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every planned byte was written, no other byte was, and nothing was allocated.
    Equal,
    /// Some planned bytes were never written.
    Smaller,
    /// Bytes outside live buffers were written.
    Outside,
    /// Runs over different fill patterns differ: a step read uninitialized bytes.
    Stale,
    /// A run allocated, on the heap or on a device.
    Allocates,
    /// A run read other constants than planned, or has more bytes of them in memory.
    Reads,
    /// The audit cannot decide.
    Undetermined,
}

impl Verdict {
    /// The verdict as text.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Equal => "equal",
            Verdict::Smaller => "SMALLER than planned",
            Verdict::Outside => "OUTSIDE the plan",
            Verdict::Stale => "READS uninitialized bytes",
            Verdict::Allocates => "ALLOCATES in a run",
            Verdict::Reads => "READS other constants than planned",
            Verdict::Undetermined => "undetermined",
        }
    }
}

/// The audit of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferActual {
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes of it that steps wrote without having it as an operand.
    pub outside_bytes: u64,
    /// `equal`, `smaller`, `outside` or `undetermined`.
    pub verdict: Verdict,
}

impl BufferActual {
    fn new(bytes: u64, touched: &BufferAudit) -> BufferActual {
        let verdict = match *touched {
            BufferAudit { outside: 1.., .. } => Verdict::Outside,
            BufferAudit { written, .. } if written < bytes => Verdict::Smaller,
            // Bytes that held an operand before they were written never held the fill pattern.
            BufferAudit { assumed: 1.., .. } => Verdict::Undetermined,
            _ => Verdict::Equal,
        };
        BufferActual { written_bytes: touched.written, outside_bytes: touched.outside, verdict }
    }
}

/// The names of the mappings that a plan accounts for.
pub const PLANNED_MAPPINGS: [&str; 4] = ["arena", "executable (plan and weights)", SHARED_WEIGHTS, "weights in memory"];

impl Report {
    /// Adds the memory that a run used.
    #[must_use]
    pub fn with_actual(mut self, audit: &Audit, heap_allocations: u64, memory: &ProcessMemory) -> Report {
        for (buffer, touched) in self.planned.buffers.iter_mut().zip(&audit.buffers) {
            buffer.actual = Some(BufferActual::new(buffer.bytes, touched));
        }
        let verdict = if 0 < audit.outside_bytes {
            Verdict::Outside
        } else if !audit.same_results {
            Verdict::Stale
        } else if 0 < heap_allocations || 0 < memory.device_in_run || memory.device_usage.allocations_in_run > Some(0) {
            Verdict::Allocates
        } else if !self.reads_as_planned(memory) {
            Verdict::Reads
        } else if audit.written_bytes < audit.planned_bytes {
            Verdict::Smaller
        } else {
            Verdict::Equal
        };
        let item = |item: &MemoryItem| {
            let MemoryItem { what, bytes, method } = item.clone();
            ProcessItem { what, bytes, method }
        };
        let items = memory.items.iter().map(item);
        let device = memory.device.iter().map(item).collect();
        let device_processes = memory.device_usage.items.iter().map(item).collect();
        let unavailable = memory.device_usage.unavailable.iter();
        let device_unavailable =
            unavailable.map(|item| UnavailableItem { what: item.what.clone(), why: item.why.clone() }).collect();
        let (planned_resident, residual) = items.partition(|item| PLANNED_MAPPINGS.contains(&item.what.as_str()));
        let actual = Actual {
            arena_planned_bytes: audit.planned_bytes,
            arena_written_bytes: audit.written_bytes,
            outside_bytes: audit.outside_bytes,
            outside: audit.outside.iter().map(|&(step, bytes)| Outside { step, bytes }).collect(),
            heap_allocations_in_run: heap_allocations,
            read_bytes_in_run: memory.read_in_run,
            same_results: audit.same_results,
            live_written_bytes: audit.live_written.clone(),
            peak_rss_bytes: memory.peak_rss_bytes,
            rss_bytes: memory.rss_bytes,
            private_dirty_bytes: memory.private_dirty_bytes,
            planned_resident,
            residual,
            device,
            device_processes,
            device_unavailable,
        };
        self.measured = Some(Measured { actual, verdict });
        self
    }

    /// Whether a run read the planned bytes of constants, and has at most the planned ones in memory.
    fn reads_as_planned(&self, memory: &ProcessMemory) -> bool {
        let [.., block] = PLANNED_MAPPINGS;
        let resident: u64 = memory.items.iter().filter(|item| item.what == block).map(|item| item.bytes).sum();
        match &self.planned.resident {
            None => memory.read_in_run.is_none(),
            // A system without `smaps` reports no items.
            Some(planned) => memory.read_in_run == Some(planned.read_bytes) && resident <= planned.block_bytes,
        }
    }
}
