//! [`MemoryReport`]: planned memory, and actual beside it.

use std::collections::BTreeMap;
use std::fmt::Write;

use plan::{Plan, Proof};
use runtime::audit::Audit;
use runtime::process::Figures;
use serde::Serialize;
use types::{Bytes, Role};

/// What `memory` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryReport {
    /// What the plan says.
    pub planned: Planned,
    /// What a run really used, where it was asked for.
    #[serde(flatten)]
    pub measured: Option<Actual>,
}

/// What a run really used, and whether that is what was planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Actual {
    /// The figures.
    pub actual: ActualReport,
    /// The conclusion.
    pub verdict: Verdict,
}

/// Memory as the plan has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// The size of the arena.
    pub arena_bytes: u64,
    /// The largest sum of live buffers: no placement of these buffers is smaller.
    pub lower_bound_bytes: u64,
    /// No placement is smaller than this either: the lower bound, or more where a search has ruled out what is between.
    pub least_bytes: u64,
    /// `optimal_by_bound`, `optimal_by_search` or `gap`.
    pub state: &'static str,
    #[serde(skip)]
    proof: Proof,
    /// Whether it is known that no placement of these buffers is smaller.
    pub optimal: bool,
    /// What is known about the order of the steps.
    pub order: OrderReport,
    /// A step at which the lower bound is reached.
    pub peak_step: u32,
    /// The buffers that are alive then, the largest first.
    pub alive_at_peak: Vec<BufferReport>,
    /// The constants in the image: packed weights and other constants.
    pub weights_bytes: u64,
    /// Bytes by role: buffers alive at the peak step, with the padding and holes that fill the arena; constants.
    pub by_role: BTreeMap<&'static str, u64>,
    /// Every buffer.
    pub buffers: Vec<BufferReport>,
}

/// What is known about the order of the steps: whether another one could have a smaller lower bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderReport {
    /// No order of these steps has a lower bound below this.
    pub bound_bytes: u64,
    /// Nor below this: the bound, or more where a search has ruled out what is between.
    pub least_bytes: u64,
    /// `optimal_by_bound`, `optimal_by_search` or `gap`.
    pub state: &'static str,
    #[serde(skip)]
    text: String,
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BufferReport {
    /// Scope and role.
    pub tag: String,
    /// The role.
    pub role: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its place in the arena.
    pub offset: u64,
    /// The first step of its life.
    pub first_step: u32,
    /// The last step of its life, included.
    pub last_step: u32,
}

/// Memory as it was used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActualReport {
    /// Arena bytes that lie under some buffer at some time.
    pub arena_planned_bytes: u64,
    /// Of these, bytes that a run wrote.
    pub arena_written_bytes: u64,
    /// Bytes written where no live buffer of the step lies.
    pub outside_bytes: u64,
    /// Allocations on the heap during a run.
    pub heap_allocations_in_run: u64,
    /// Whether runs over different patterns gave the same results bit by bit: nothing read what holds nothing.
    pub same_results: bool,
    /// The most that was resident at once.
    pub peak_rss_bytes: u64,
    /// Resident after a run.
    pub rss_bytes: u64,
    /// Resident, private and written to.
    pub private_dirty_bytes: u64,
    /// What is resident besides the arena and the image's plan and weights.
    pub residual: Vec<Residual>,
}

/// Resident bytes that are not the plan's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// What they are.
    pub what: String,
    /// How many.
    pub bytes: u64,
}

/// Whether what was used is what was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// A run allocated on the heap.
    Allocates,
}

impl MemoryReport {
    /// Of a plan alone.
    pub fn new(plan: &Plan) -> MemoryReport {
        let buffers: Vec<BufferReport> = plan
            .buffers
            .iter()
            .map(|buffer| BufferReport {
                tag: buffer.tag.to_string(),
                role: buffer.tag.role.name(),
                bytes: buffer.size.0,
                offset: buffer.offset.0,
                first_step: buffer.first_step,
                last_step: buffer.last_step,
            })
            .collect();
        let (arena, order) = (&plan.arena, &plan.order);
        let is_alive = |buffer: &&BufferReport| (buffer.first_step..=buffer.last_step).contains(&arena.peak_step);
        let mut alive_at_peak: Vec<BufferReport> = buffers.iter().filter(is_alive).cloned().collect();
        alive_at_peak.sort_by_key(|buffer| (std::cmp::Reverse(buffer.bytes), buffer.offset));
        let planned = Planned {
            arena_bytes: arena.size.0,
            lower_bound_bytes: arena.lower_bound.0,
            least_bytes: arena.least.0,
            state: arena.proof.name(),
            proof: arena.proof,
            optimal: arena.is_optimal(),
            order: OrderReport {
                bound_bytes: order.bound.0,
                least_bytes: order.least.0,
                state: order.proof.name(),
                text: order.proof.text(arena.lower_bound, order.least),
            },
            peak_step: arena.peak_step,
            alive_at_peak,
            weights_bytes: plan.constants_size.0,
            by_role: by_role(plan),
            buffers,
        };
        MemoryReport { planned, measured: None }
    }

    /// Adds what a run really used.
    #[must_use]
    pub fn with_actual(mut self, audit: &Audit, heap_allocations: u64, figures: &Figures) -> MemoryReport {
        let verdict = if 0 < audit.outside_bytes {
            Verdict::Outside
        } else if !audit.same_results {
            Verdict::Stale
        } else if 0 < heap_allocations {
            Verdict::Allocates
        } else if audit.written_bytes < audit.planned_bytes {
            Verdict::Smaller
        } else {
            Verdict::Equal
        };
        let ours = ["arena", "image (plan and weights)"];
        let residual = figures.items.iter().filter(|item| !ours.contains(&item.what.as_str()));
        let actual = ActualReport {
            arena_planned_bytes: audit.planned_bytes,
            arena_written_bytes: audit.written_bytes,
            outside_bytes: audit.outside_bytes,
            heap_allocations_in_run: heap_allocations,
            same_results: audit.same_results,
            peak_rss_bytes: figures.peak_rss_bytes,
            rss_bytes: figures.rss_bytes,
            private_dirty_bytes: figures.private_dirty_bytes,
            residual: residual.map(|item| Residual { what: item.what.clone(), bytes: item.bytes }).collect(),
        };
        self.measured = Some(Actual { actual, verdict });
        self
    }

    /// Whether nothing that was measured differs from the plan.
    pub fn agrees(&self) -> bool {
        self.measured.as_ref().is_none_or(|measured| measured.verdict == Verdict::Equal)
    }

    /// The report for eyes: headline, roles, the largest buffers, and actual beside planned.
    pub fn text(&self, rows: usize) -> String {
        let planned = &self.planned;
        let mut text = format!(
            "planned      arena {}, {}; order {}; weights {}\n",
            Bytes(planned.arena_bytes),
            planned.proof.text(Bytes(planned.arena_bytes), Bytes(planned.least_bytes)),
            planned.order.text,
            Bytes(planned.weights_bytes)
        );
        if let Some(Actual { actual, verdict }) = &self.measured {
            let _ = writeln!(
                text,
                "actual       written {} of {} planned bytes, outside {}, heap allocations in a run {}: {}",
                actual.arena_written_bytes,
                actual.arena_planned_bytes,
                actual.outside_bytes,
                actual.heap_allocations_in_run,
                match verdict {
                    Verdict::Equal => "equal",
                    Verdict::Smaller => "SMALLER than planned",
                    Verdict::Outside => "OUTSIDE the plan",
                    Verdict::Stale => "READS bytes that hold nothing",
                    Verdict::Allocates => "ALLOCATES on the heap",
                }
            );
            let residual: u64 = actual.residual.iter().map(|item| item.bytes).sum();
            let _ = writeln!(
                text,
                "process      resident {} (peak {}), of which {} is neither arena nor image:",
                Bytes(actual.rss_bytes),
                Bytes(actual.peak_rss_bytes),
                Bytes(residual)
            );
            for item in &actual.residual {
                let _ = writeln!(text, "             {:>12}  {}", Bytes(item.bytes), item.what);
            }
        }
        if rows == 0 {
            return text;
        }
        let _ = writeln!(
            text,
            "bounds       these buffers: {} at step {}; any order of these steps: {}",
            Bytes(planned.lower_bound_bytes),
            planned.peak_step,
            Bytes(planned.order.bound_bytes)
        );
        text.push_str("at the peak  bytes          offset   tag\n");
        for buffer in planned.alive_at_peak.iter().take(rows) {
            let _ = writeln!(text, "      {:>12} {:>15}   {}", Bytes(buffer.bytes), buffer.offset, buffer.tag);
        }
        if rows < planned.alive_at_peak.len() {
            let _ = writeln!(text, "             {} more", planned.alive_at_peak.len() - rows);
        }
        text.push_str("by role      at the peak of the arena, and constants\n");
        for (role, bytes) in &planned.by_role {
            let _ = writeln!(text, "             {:>12}  {role}", Bytes(*bytes));
        }
        text.push_str("largest      bytes          offset   steps       tag\n");
        let mut largest: Vec<&BufferReport> = planned.buffers.iter().collect();
        largest.sort_by_key(|buffer| (std::cmp::Reverse(buffer.bytes), buffer.first_step, buffer.offset));
        for buffer in largest.iter().take(rows) {
            let steps = format!("{}..={}", buffer.first_step, buffer.last_step);
            let _ =
                writeln!(text, "      {:>12} {:>15}   {steps:<11} {}", Bytes(buffer.bytes), buffer.offset, buffer.tag);
        }
        if rows < largest.len() {
            let _ = writeln!(text, "             {} more; `memory --json` has them all", largest.len() - rows);
        }
        text
    }
}

/// The plan's placement in minimalloc's form: `id,lower,upper,size,alignment,offset`, sizes rounded up to the alignment,
/// an id being the buffer's number and its tag. With it anyone can check the arena.
pub fn placement_csv(plan: &Plan) -> String {
    let id = |(ix, buffer): (usize, &plan::Buffer)| {
        let tag: String =
            buffer.tag.to_string().chars().map(|c| if c == ',' || c.is_control() { '_' } else { c }).collect();
        format!("{ix} {tag}")
    };
    let ids = plan.buffers.iter().enumerate().map(id).collect();
    let offsets: Vec<Bytes> = plan.buffers.iter().map(|buffer| buffer.offset).collect();
    arena::csv::write(&arena::csv::Table { ids, problem: plan.problem() }, Some(&offsets))
}

/// Bytes by role. What is alive at the peak step, its padding, and the holes add up to the arena.
fn by_role(plan: &Plan) -> BTreeMap<&'static str, u64> {
    let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
    let step = plan.arena.peak_step;
    let mut live: Vec<_> =
        plan.buffers.iter().filter(|buffer| (buffer.first_step..=buffer.last_step).contains(&step)).collect();
    live.sort_by_key(|buffer| buffer.offset);
    let mut end = 0;
    for buffer in &live {
        *sums.entry(buffer.tag.role.name()).or_default() += buffer.size.0;
        let gap = buffer.offset.0.saturating_sub(end);
        // Less than one alignment in front of a buffer is padding; more is a hole.
        let role = if gap < plan.arena.alignment.0 { Role::Padding } else { Role::Hole };
        *sums.entry(role.name()).or_default() += gap;
        end = buffer.offset.0 + buffer.size.0;
    }
    *sums.entry(Role::Hole.name()).or_default() += plan.arena.size.0.saturating_sub(end);
    for constant in &plan.constants {
        *sums.entry(constant.tag.role.name()).or_default() += constant.size.0;
    }
    sums.retain(|_, bytes| 0 < *bytes);
    sums
}
