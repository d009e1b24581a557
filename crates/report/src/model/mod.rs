//! [`Report`]: the memory report as exact numbers. Every view and every export is a function of it.
//!
//! `build` makes one from a plan, `actual` adds measurements of a run, `span` attributes bytes of a buffer to values
//! over time, `lives` extends values by their views, `saved` lists the values that wait for the backward pass of a
//! training step. `item` divides the bytes at the peak into items that add up to the plan's bytes. `json` reads and
//! writes the versioned form that `docs/reference/memory-report.md` describes.

mod actual;
mod build;
mod item;
mod json;
mod lives;
mod opportunity;
mod saved;
mod span;
mod why;

use std::collections::BTreeMap;

use plan::{ArenaLimit, Persistence};
use serde::{Deserialize, Serialize};
use types::{Bytes, Certificate, Certificates, Proof};

pub use actual::{Actual, BufferActual, Measured, Outside, PLANNED_MAPPINGS, ProcessItem, UnavailableItem, Verdict};
pub use build::placement_csv;
pub(crate) use build::{finish, timeline};
pub(crate) use item::{Item, ItemKind, items};
pub use json::{ReadError, read};
pub use opportunity::{Opportunity, OpportunityKind};
pub use saved::{Recomputed, Saved, SavedReader};
pub(crate) use span::{Span, spans};
pub use why::{Why, WhyKind};

/// The `format` of a report's JSON.
pub const FORMAT: &str = "prestow-memory-report";
/// The version of the report's JSON. It grows by one with every change that readers of older versions would misread.
pub const VERSION: u32 = 2;

/// Planned memory, and used memory if it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The source of the report.
    pub origin: Origin,
    /// The model's name.
    pub model: String,
    /// The target.
    pub target: String,
    /// The first extent of the model's inputs.
    pub batch: u64,
    /// Planned memory.
    pub planned: Planned,
    /// Used memory, if measured.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Bytes that another profiler counted without a name; negative if the named bytes exceed the count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unnamed: Vec<Unnamed>,
}

/// The source of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A plan of prestow: exact.
    Plan,
    /// MXNet's CSV with five columns: the contents of its pool at one moment.
    MxnetCsv,
    /// The older CSV of tag and MiB: every allocation that was ever made.
    TwoColumnCsv,
    /// The log of TBD's profiler: every allocation that was ever made.
    TbdLog,
}

/// Bytes that an imported profile has no name for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unnamed {
    /// Their name in the profile.
    pub what: String,
    /// The number of bytes.
    pub bytes: i64,
}

/// Planned memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The size of the arena.
    pub arena_bytes: u64,
    /// The alignment: offsets and padded sizes are multiples of it.
    pub alignment_bytes: u64,
    /// The largest sum of live buffers: no placement of these buffers is smaller.
    pub lower_bound_bytes: u64,
    /// The best proved lower bound: `lower_bound_bytes`, or more if a search excluded smaller arenas.
    pub least_bytes: u64,
    /// The proof that the arena is minimal: `optimal_by_bound`, `optimal_by_search`, `gap`, or `not_planned` for
    /// another program's profile.
    #[serde(with = "proof_name")]
    pub state: Option<Proof>,
    /// Whether the arena is proved minimal.
    pub optimal: bool,
    /// The bounds of `lower_bound_bytes` over all orders of the steps.
    pub order: BoundsRow,
    /// A lower bound on the arena of these steps with any kernels and layouts, in any order; zero if none is proved.
    #[serde(default)]
    pub any_kernels_bytes: u64,
    /// A step at which the lower bound is reached.
    pub peak_step: u32,
    /// The constants' section of the executable.
    pub weights_bytes: u64,
    /// Bytes of the section between one constant and the next.
    pub constants_padding_bytes: u64,
    /// Bytes of the section that only plans for other batches read.
    pub constants_other_bytes: u64,
    /// Bytes by role: buffers alive at the peak step, with `padding` and `free`, which add up to the arena; then
    /// `weight` and `constant` from the executable.
    pub by_role: BTreeMap<String, u64>,
    /// Ranges of the arena that no buffer covers at the peak step.
    pub free_at_peak: Vec<FreeRange>,
    /// The buffers that are alive at the peak step, the largest first, and why.
    pub alive_at_peak: Vec<AtPeak>,
    /// Kernels and layouts that need fewer live bytes at the peak and were not chosen.
    #[serde(default)]
    pub alternatives: Vec<AlternativeRow>,
    /// The limit that the arena was planned for, if it would be larger without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitRow>,
    /// The constants in memory, if some are read in every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<ResidentRow>,
    /// Changes that would need less memory, the largest saving first.
    pub opportunities: Vec<Opportunity>,
    /// The values that a training step saves for its backward pass, the largest first, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub saved: Vec<Saved>,
    /// The values that it computes again instead, the largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recomputed: Vec<Recomputed>,
    /// The kernel calls.
    pub steps: Vec<StepRow>,
    /// For each role the bytes alive at each step; with `padding` and `free` they add up to the arena at each.
    pub timeline: BTreeMap<String, Vec<u64>>,
    /// Every buffer.
    pub buffers: Vec<BufferRow>,
    /// Every constant that this plan reads, by offset.
    pub constants: Vec<ConstantRow>,
}

impl Planned {
    /// Proved bounds of the arena.
    pub fn certificates(&self) -> Certificates {
        let certificate = |value: u64, lower_bound: u64, least: u64| Certificate {
            value: Bytes(value),
            lower_bound: Bytes(lower_bound),
            least: Bytes(least),
        };
        Certificates {
            arena: certificate(self.arena_bytes, self.lower_bound_bytes, self.least_bytes),
            order: certificate(self.lower_bound_bytes, self.order.bound_bytes, self.order.least_bytes),
            any_kernels: Bytes(self.any_kernels_bytes),
        }
    }
}

/// Kernels and layouts that were not chosen, with the bytes that they save and the time that they cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlternativeRow {
    /// The node that differs; the first if there are several.
    pub scope: String,
    /// The other kernels and layouts.
    pub change: String,
    /// The live bytes by which the peak falls.
    pub saves_bytes: u64,
    /// The modelled time of a run, of the chosen one.
    pub time_ratio: f64,
    /// The modelled microseconds that a run takes longer, if the target's costs are times.
    pub adds_us: Option<f64>,
}

/// A limit of the arena, with its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRow {
    /// The largest arena.
    pub bytes: u64,
    /// The arena without a limit.
    pub unlimited_bytes: u64,
    /// The modelled time of a run, of that without a limit.
    pub time_ratio: f64,
}

impl From<&ArenaLimit> for LimitRow {
    fn from(limit: &ArenaLimit) -> LimitRow {
        LimitRow {
            bytes: limit.bytes.0,
            unlimited_bytes: limit.unlimited.0,
            time_ratio: limit.time_permille as f64 / 1e3,
        }
    }
}

/// Constants that are in memory for a part of each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResidentRow {
    /// The limit of the arena and these constants.
    pub limit_bytes: u64,
    /// The memory for constants, without the arena.
    pub block_bytes: u64,
    /// Constants that stay.
    pub kept_bytes: u64,
    /// Constants that a run reads from the executable.
    pub read_bytes: u64,
    /// No order of reads needs fewer bytes in a run, with this arena.
    pub least_read_bytes: u64,
    /// By step: the constants that have a place in memory.
    pub bytes: Vec<u64>,
    /// The constants that stay, by their offsets in memory.
    pub kept: Vec<ResidentConstantRow>,
    /// The reads of a run, in order.
    pub reads: Vec<ResidentConstantRow>,
}

/// A constant in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResidentConstantRow {
    /// The constant's name.
    pub name: String,
    /// The scope of the node of the first of these steps that uses it; its layer.
    pub scope: String,
    /// Its bytes, in whole pages.
    pub bytes: u64,
    /// Its offset in memory.
    pub offset: u64,
    /// The first step at which it has these bytes: a read starts after the steps before.
    pub first_step: u32,
    /// The first of these steps that uses it; a read is done before it.
    pub first_use: u32,
    /// The last step that uses it, inclusive.
    pub last_step: u32,
}

/// The bounds of a certificate whose value is stored elsewhere in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundsRow {
    /// The lower bound that follows from the problem alone.
    pub bound_bytes: u64,
    /// The best proved lower bound.
    pub least_bytes: u64,
    /// The proof, as in [`Planned::state`].
    #[serde(with = "proof_name")]
    pub state: Option<Proof>,
}

impl From<&Certificate> for BoundsRow {
    fn from(certificate: &Certificate) -> BoundsRow {
        BoundsRow {
            bound_bytes: certificate.lower_bound.0,
            least_bytes: certificate.least.0,
            state: Some(certificate.proof()),
        }
    }
}

/// The text of a proof for a value in bytes; `None` is another program's profile.
pub(crate) fn proof_text(proof: Option<Proof>, value: u64, least: u64) -> String {
    proof.map_or_else(|| "not planned".into(), |proof| proof.text(Bytes(value), Bytes(least)))
}

/// A proof as its name; `not_planned` if absent.
pub(crate) mod proof_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use types::Proof;

    const NONE: &str = "not_planned";

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(proof: &Option<Proof>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(proof.map_or(NONE, Proof::name))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Proof>, D::Error> {
        let name = String::deserialize(deserializer)?;
        match Proof::ALL.into_iter().find(|proof| proof.name() == name) {
            None if name != NONE => {
                Err(Error::unknown_variant(&name, &["optimal_by_bound", "optimal_by_search", "gap", NONE]))
            }
            proof => Ok(proof),
        }
    }
}

/// A range of the arena that no buffer covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeRange {
    /// Its start.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A buffer that is alive at the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtPeak {
    /// Its position among the buffers.
    pub buffer: usize,
    /// The buffer's scope and role.
    pub tag: String,
    /// Its size.
    pub bytes: u64,
    /// Its size in the arena.
    pub padded_bytes: u64,
    /// The reason that it is alive at the peak.
    pub why: Why,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// The scope of its node.
    pub scope: String,
    /// The kernel's name.
    pub kernel: String,
    /// A description of the kernel's work.
    pub label: String,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes of buffers alive at this step, padding included.
    pub live_bytes: u64,
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferRow {
    /// The buffer's scope and role.
    pub tag: String,
    /// Its scope.
    pub scope: String,
    /// Its role.
    pub role: String,
    /// Its size.
    pub bytes: u64,
    /// Its size in the arena: rounded up to the alignment.
    pub padded_bytes: u64,
    /// Its offset in the arena.
    pub offset: u64,
    /// The first step at which it is alive.
    pub first_step: u32,
    /// The last step at which it is alive, inclusive.
    pub last_step: u32,
    /// How long its bytes are kept.
    #[serde(default, skip_serializing_if = "is_run")]
    pub persistence: Persistence,
    /// The bytes that it occupies, by rising steps, where they are not all of them at all of its steps: other buffers may have the
    /// bytes of a concatenation's slice before it is written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<PieceRow>,
    /// The values that it holds over time.
    pub values: Vec<ValueRow>,
    /// The step that writes it first; `None` if the caller does.
    pub writer: Option<Touch>,
    /// The last step that reads it; `None` if no step does.
    pub last_reader: Option<Touch>,
    /// Sharing that would have avoided this buffer, and the reasons against it.
    pub refused: Vec<RefusedRow>,
    /// The audit of a run, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<BufferActual>,
}

fn is_run(persistence: &Persistence) -> bool {
    *persistence == Persistence::Run
}

impl BufferRow {
    /// The role of the bytes of a value, or of bytes that no value has.
    pub(crate) fn role_of(&self, value: Option<usize>) -> &str {
        value.map_or(&self.role, |value| &self.values[value].role)
    }

    /// The bytes that it occupies, by rising steps.
    pub fn pieces(&self) -> impl Iterator<Item = PieceRow> + '_ {
        let whole = PieceRow {
            first_step: self.first_step,
            last_step: self.last_step,
            offset: 0,
            padded_bytes: self.padded_bytes,
        };
        self.pieces.iter().copied().chain(self.pieces.is_empty().then_some(whole))
    }

    /// The bytes that it occupies at a step; `None` if it occupies none.
    pub fn piece_at(&self, step: u32) -> Option<PieceRow> {
        self.pieces().find(|piece| (piece.first_step..=piece.last_step).contains(&step))
    }

    /// Whether it occupies bytes at a step.
    pub fn is_alive(&self, step: u32) -> bool {
        self.piece_at(step).is_some()
    }

    /// The bytes of a piece that are the buffer's own, without those that round its size up.
    pub fn own_bytes(&self, piece: PieceRow) -> u64 {
        piece.end().min(self.bytes).saturating_sub(piece.offset)
    }

    /// The number of steps at which it is alive.
    pub fn steps(&self) -> u64 {
        u64::from(self.last_step - self.first_step) + 1
    }
}

/// Bytes of a buffer that are occupied at some steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRow {
    /// The first step.
    pub first_step: u32,
    /// The last step, inclusive.
    pub last_step: u32,
    /// The offset in the buffer.
    pub offset: u64,
    /// The number of bytes, in multiples of the alignment.
    pub padded_bytes: u64,
}

impl PieceRow {
    /// The byte of the buffer behind the last.
    pub fn end(self) -> u64 {
        self.offset + self.padded_bytes
    }

    /// The number of steps.
    pub fn steps(self) -> u64 {
        u64::from(self.last_step - self.first_step) + 1
    }
}

/// A value in a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueRow {
    /// The scope of the node that yields it, or the name of the input.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// The order of its elements in memory.
    pub layout: String,
    /// Its offset in the buffer.
    pub offset: u64,
    /// Its size, including the padding of the last channel block.
    pub bytes: u64,
    /// Bytes that are no element: the rest of the last channel block.
    #[serde(default)]
    pub padding_bytes: u64,
    /// The first step that touches it.
    pub first_step: u32,
    /// The last step that touches it, inclusive.
    pub last_step: u32,
    /// The last step that reads its bytes, also through a view of them, inclusive.
    pub held_until: u32,
    /// The purpose of its bytes. It differs from the buffer's role if the buffer holds a result later.
    pub role: String,
    /// `own`, `view`, `part` or `in_place`.
    pub sharing: String,
}

impl ValueRow {
    /// Its dtype and shape, as in `f32[1,64,56,56]`.
    pub fn type_text(&self) -> String {
        type_text(&self.dtype, &self.shape)
    }
}

/// A step that touches a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Its position.
    pub step: u32,
    /// The scope of its node.
    pub scope: String,
}

/// Sharing that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// The node at which bytes would have been shared.
    pub node: String,
    /// The value whose bytes would have been shared.
    pub of: String,
    /// `part` or `in_place`.
    pub sharing: String,
    /// `read_later`, `output`, `given`, `kernel`, `occupied` or `peak`.
    pub reason: String,
    /// The refusal as a sentence.
    pub text: String,
}

/// A constant of the executable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstantRow {
    /// Its name and role.
    pub tag: String,
    /// Its name.
    pub name: String,
    /// `weight` or `constant`.
    pub role: String,
    /// The scope of the node of the first step that reads it; its layer.
    pub scope: String,
    /// The dtype of the tensor it was packed from.
    pub dtype: String,
    /// The extents of that tensor.
    pub shape: Vec<usize>,
    /// Its offset in the section.
    pub offset: u64,
    /// The size of that tensor.
    pub tensor_bytes: u64,
    /// Its size as packed for the kernel that reads it.
    pub bytes: u64,
    /// Bytes of it that no earlier constant has: equal constants share bytes.
    pub own_bytes: u64,
    /// The padding after it.
    pub padding_bytes: u64,
}

impl Report {
    /// The bytes of the arena and of the executable's constants.
    pub fn planned_bytes(&self) -> u64 {
        self.planned.arena_bytes + self.planned.weights_bytes
    }

    /// The bytes of the arena and of the constants that are in memory with it.
    pub fn memory_bytes(&self) -> u64 {
        let planned = &self.planned;
        planned.arena_bytes + planned.resident.as_ref().map_or(planned.weights_bytes, |resident| resident.block_bytes)
    }

    /// Whether the measured memory equals the plan; true without measurements.
    pub fn agrees(&self) -> bool {
        self.measured.as_ref().is_none_or(|measured| measured.verdict == Verdict::Equal)
    }

    /// The number of steps, at least one.
    pub fn step_count(&self) -> u32 {
        (self.planned.steps.len() as u32).max(1)
    }

    /// Residual memory of the process, or unnamed bytes of an imported profile, if available.
    pub fn residual_bytes(&self) -> Option<i64> {
        let measured = self.measured.as_ref().map(|measured| measured.actual.residual_bytes() as i64);
        measured.or_else(|| (!self.unnamed.is_empty()).then(|| self.unnamed.iter().map(|row| row.bytes).sum()))
    }
}

/// A dtype and extents, as in `f32[1,64,56,56]`.
pub(crate) fn type_text(dtype: &str, shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("{dtype}[{}]", extents.join(","))
}
