//! [`Measured`]: what a run really used, beside the plan.

use runtime::audit::{Audit, BufferAudit};
use runtime::process::{MemoryItem, ProcessMemory};
use serde::{Deserialize, Serialize};

use super::Report;

/// What a run really used, and whether that is what was planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The memory.
    pub actual: Actual,
    /// The conclusion.
    pub verdict: Verdict,
}

/// Memory as it was used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actual {
    /// Arena bytes that lie under some buffer at some time.
    pub arena_planned_bytes: u64,
    /// Of these, bytes that a run wrote.
    pub arena_written_bytes: u64,
    /// Bytes written where no live buffer of the step lies.
    pub outside_bytes: u64,
    /// The steps that did so.
    pub outside: Vec<Outside>,
    /// Allocations on the heap during a run.
    pub heap_allocations_in_run: u64,
    /// Whether runs over different patterns gave the same results bit by bit: nothing read what holds nothing.
    pub same_results: bool,
    /// After each step, the bytes of live buffers that were written by then.
    pub live_written_bytes: Vec<u64>,
    /// The most that was resident at once.
    pub peak_rss_bytes: u64,
    /// Resident after a run.
    pub rss_bytes: u64,
    /// Resident, private and written to.
    pub private_dirty_bytes: u64,
    /// What is resident of the arena and of the image's plan and weights.
    pub planned_resident: Vec<ProcessItem>,
    /// What is resident besides.
    pub residual: Vec<ProcessItem>,
    /// What is taken of a device's own memory, where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<ProcessItem>,
    /// What the device's own management says that processes hold, libraries and contexts included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_processes: Vec<ProcessItem>,
    /// What it does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_untold: Vec<UnavailableItem>,
}

/// What could not be told, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnavailableItem {
    /// What it would have been.
    pub what: String,
    /// Why nobody knows.
    pub why: String,
}

impl Actual {
    /// Resident bytes that are neither arena nor image.
    pub fn residual_bytes(&self) -> u64 {
        self.residual.iter().map(|item| item.bytes).sum()
    }
}

/// A step that wrote where it may not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// Its position.
    pub step: usize,
    /// How many bytes.
    pub bytes: u64,
}

/// Resident bytes of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessItem {
    /// What they are.
    pub what: String,
    /// How many.
    pub bytes: u64,
    /// How that is known.
    pub method: String,
}

/// Whether what was used is what was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every planned byte was written, none else, nothing was allocated.
    Equal,
    /// Some planned bytes were never written.
    Smaller,
    /// Bytes outside live buffers were written.
    Outside,
    /// Runs over different patterns differ: a step read bytes that hold nothing.
    Stale,
    /// A run allocated, on the heap or on a device.
    Allocates,
    /// It cannot be told.
    Undetermined,
}

impl Verdict {
    /// For eyes.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Equal => "equal",
            Verdict::Smaller => "SMALLER than planned",
            Verdict::Outside => "OUTSIDE the plan",
            Verdict::Stale => "READS bytes that hold nothing",
            Verdict::Allocates => "ALLOCATES in a run",
            Verdict::Undetermined => "undetermined",
        }
    }
}

/// What a run did to one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferActual {
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes that steps wrote there and had no right to.
    pub outside_bytes: u64,
    /// `equal`, `smaller`, `outside` or `undetermined`.
    pub verdict: Verdict,
}

impl BufferActual {
    fn new(bytes: u64, touched: &BufferAudit) -> BufferActual {
        let verdict = match *touched {
            BufferAudit { outside: 1.., .. } => Verdict::Outside,
            BufferAudit { written, .. } if written < bytes => Verdict::Smaller,
            // What only ever held an operand before it was written shows no pattern.
            BufferAudit { assumed: 1.., .. } => Verdict::Undetermined,
            _ => Verdict::Equal,
        };
        BufferActual { written_bytes: touched.written, outside_bytes: touched.outside, verdict }
    }
}

/// The mappings that a plan accounts for, by the names that the caller gave them.
pub const PLANNED_MAPPINGS: [&str; 2] = ["arena", "image (plan and weights)"];

impl Report {
    /// Adds what a run really used.
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
        } else if audit.written_bytes < audit.planned_bytes {
            Verdict::Smaller
        } else {
            Verdict::Equal
        };
        let told = |item: &MemoryItem| {
            let MemoryItem { what, bytes, method } = item.clone();
            ProcessItem { what, bytes, method }
        };
        let items = memory.items.iter().map(told);
        let device = memory.device.iter().map(told).collect();
        let device_processes = memory.device_usage.items.iter().map(told).collect();
        let untold = memory.device_usage.unavailable.iter();
        let device_untold =
            untold.map(|untold| UnavailableItem { what: untold.what.clone(), why: untold.why.clone() }).collect();
        let (planned_resident, residual) = items.partition(|item| PLANNED_MAPPINGS.contains(&item.what.as_str()));
        let actual = Actual {
            arena_planned_bytes: audit.planned_bytes,
            arena_written_bytes: audit.written_bytes,
            outside_bytes: audit.outside_bytes,
            outside: audit.outside.iter().map(|&(step, bytes)| Outside { step, bytes }).collect(),
            heap_allocations_in_run: heap_allocations,
            same_results: audit.same_results,
            live_written_bytes: audit.live_written.clone(),
            peak_rss_bytes: memory.peak_rss_bytes,
            rss_bytes: memory.rss_bytes,
            private_dirty_bytes: memory.private_dirty_bytes,
            planned_resident,
            residual,
            device,
            device_processes,
            device_untold,
        };
        self.measured = Some(Measured { actual, verdict });
        self
    }
}
