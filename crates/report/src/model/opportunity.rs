//! [`Opportunity`]: a change of the model, the kernels or the options that would need less memory.
//!
//! Savings of the arena are exact for the given order and count only bytes that lower the peak over all steps: the next
//! highest step limits them.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use types::{Bytes, Role};

use super::{AlternativeRow, BufferRow, ConstantRow, Planned};

/// A change that would need less memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opportunity {
    /// The kind of change.
    pub kind: OpportunityKind,
    /// Bytes of arena or constants that the change saves at most.
    pub saves_bytes: u64,
    /// The bytes in question, and why they are needed now.
    pub text: String,
    /// The change.
    pub action: String,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpportunityKind {
    /// A result in the bytes of an operand that nothing reads later.
    InPlace,
    /// Sharing that the compiler refused.
    Refused,
    /// Elements of channel blocks at the peak that are no channel.
    Padding,
    /// A copy of a value in another layout at the peak.
    Relayout,
    /// Kernels and layouts that were not chosen.
    Alternative,
    /// Scratch of a kernel at the peak.
    Workspace,
    /// One tensor that is stored twice.
    TiedWeights,
    /// Constants of `f32` in half precision.
    Precision,
    /// An arena above its lower bound.
    Placement,
}

/// Most opportunities of a report.
const COUNT_MAX: usize = 8;
/// Operations per element up to which a kernel could work in place: elementwise operators and normalizations. Products
/// and convolutions read an operand after they have written results.
const FLOPS_IN_PLACE: u64 = 32;

/// The opportunities of a plan, the largest saving first.
pub(super) fn find(planned: &Planned) -> Vec<Opportunity> {
    let mut found = in_place(planned);
    found.extend(refused(planned));
    found.extend(workspace(planned));
    found.extend(padding(planned));
    found.extend(relayouts(planned));
    found.extend(alternatives(planned));
    found.extend(tied_weights(planned));
    found.extend(precision(planned));
    found.extend(placement(planned));
    // A change that saves less than a ten-thousandth is not worth a row.
    let least = planned.arena_bytes.saturating_add(planned.weights_bytes) / 10_000;
    found.retain(|row| least.max(1) <= row.saves_bytes);
    found.sort_by_key(|row| Reverse(row.saves_bytes));
    // Several results of one node are one change.
    found.dedup();
    found.truncate(COUNT_MAX);
    found
}

/// How much the peak falls if `bytes` are not live at the steps `first..=last`.
fn peak_saving(planned: &Planned, bytes: u64, first: u32, last: u32) -> u64 {
    let live = planned.steps.iter().enumerate().map(|(at, row)| match (first..=last).contains(&(at as u32)) {
        true => row.live_bytes.saturating_sub(bytes),
        false => row.live_bytes,
    });
    planned.lower_bound_bytes.saturating_sub(live.max().unwrap_or(planned.lower_bound_bytes))
}

/// The bytes that a buffer occupies at the peak.
fn bytes_at_peak(planned: &Planned, buffer: &BufferRow) -> u64 {
    buffer.piece_at(planned.peak_step).map_or(0, |piece| piece.padded_bytes)
}

fn at_peak(planned: &Planned) -> impl Iterator<Item = &BufferRow> {
    planned.buffers.iter().filter(|buffer| buffer.is_alive(planned.peak_step))
}

/// Results of the peak's step that do not share bytes with an operand of at least their size that dies there.
fn in_place(planned: &Planned) -> Vec<Opportunity> {
    let peak = planned.peak_step;
    let Some(step) = planned.steps.get(peak as usize) else { return Vec::new() };
    let is_result = |buffer: &&BufferRow| {
        let elements = (buffer.bytes / 4).max(1);
        buffer.first_step == peak
            && buffer.role != Role::Workspace.name()
            && buffer.writer.as_ref().is_some_and(|writer| writer.step == peak)
            && step.flops <= elements.saturating_mul(FLOPS_IN_PLACE)
    };
    let dies = |buffer: &&BufferRow| {
        buffer.last_step == peak
            && buffer.first_step < peak
            && buffer.last_reader.as_ref().is_some_and(|reader| reader.step == peak)
    };
    let mut found = Vec::new();
    for result in at_peak(planned).filter(is_result) {
        // A refusal is its own row, with the reason.
        let fits = |operand: &&BufferRow| result.padded_bytes <= operand.padded_bytes;
        let Some(operand) = at_peak(planned).filter(dies).filter(fits).min_by_key(|operand| operand.padded_bytes)
        else {
            continue;
        };
        if result.refused.iter().any(|row| row.sharing == "in_place") {
            continue;
        }
        found.push(Opportunity {
            kind: OpportunityKind::InPlace,
            saves_bytes: peak_saving(planned, result.padded_bytes, peak, peak),
            text: format!(
                "`{}` ({}) does not share bytes with its operand `{}` ({}), which no later step reads: the kernel `{}` does not \
                 work in place",
                result.scope,
                Bytes(result.bytes),
                operand.scope,
                Bytes(operand.bytes),
                step.kernel
            ),
            action: format!("a kernel `{}` that works in place, or no `{}` in the model", step.kernel, step.scope),
        });
    }
    found
}

/// Refused sharing between two buffers that are both alive at the peak.
fn refused(planned: &Planned) -> Vec<Opportunity> {
    let holds = |buffer: &BufferRow, name: &str| buffer.values.iter().any(|value| value.name == name);
    let mut found = Vec::new();
    for buffer in at_peak(planned) {
        let other = |name: &str| at_peak(planned).find(|other| !std::ptr::eq(*other, buffer) && holds(other, name));
        let Some((row, other)) = buffer.refused.iter().find_map(|row| Some((row, other(&row.of)?))) else { continue };
        let action = match &row.reason[..] {
            "read_later" => "read the shared value earlier, or compute it again; `--budget BYTES` searches for both",
            "output" => "do not return the value as a result of the model",
            "given" => "copy the caller's value only where it is changed",
            "kernel" => "a kernel that works in place",
            _ => "an order of the steps that lets the blocks meet; `--budget BYTES` searches for one",
        };
        let (first, last) = (buffer.first_step.max(other.first_step), buffer.last_step.min(other.last_step));
        found.push(Opportunity {
            kind: OpportunityKind::Refused,
            saves_bytes: peak_saving(planned, bytes_at_peak(planned, buffer), first, last),
            text: format!("`{}` ({}) {}", buffer.scope, Bytes(buffer.bytes), row.text),
            action: action.into(),
        });
    }
    found
}

fn workspace(planned: &Planned) -> Vec<Opportunity> {
    let scratch = at_peak(planned).filter(|buffer| buffer.role == Role::Workspace.name());
    scratch
        .map(|buffer| Opportunity {
            kind: OpportunityKind::Workspace,
            saves_bytes: peak_saving(planned, buffer.padded_bytes, buffer.first_step, buffer.last_step),
            text: format!("`{}` uses {} of workspace at the peak", buffer.scope, Bytes(buffer.bytes)),
            action: "`--budget BYTES` chooses kernels with less workspace".into(),
        })
        .collect()
}

fn padding(planned: &Planned) -> Vec<Opportunity> {
    let mut found = Vec::new();
    for buffer in at_peak(planned) {
        let live = buffer.values.iter().filter(|value| {
            (value.first_step..=value.held_until).contains(&planned.peak_step) && 0 < value.padding_bytes
        });
        let Some(value) = live.max_by_key(|value| value.padding_bytes) else { continue };
        found.push(Opportunity {
            kind: OpportunityKind::Padding,
            saves_bytes: peak_saving(planned, value.padding_bytes, buffer.first_step, buffer.last_step),
            text: format!(
                "{} of the {} of `{}` ({} {}) are padding of its last channel block",
                Bytes(value.padding_bytes),
                Bytes(value.bytes),
                value.name,
                value.type_text(),
                value.layout
            ),
            action: "row-major kernels here, if they pay: `--optimize memory`; or channels that fill blocks".into(),
        });
    }
    found
}

/// Copies of values in another layout. The compiler names them behind the value's node.
fn relayouts(planned: &Planned) -> Vec<Opportunity> {
    let copies = at_peak(planned).filter(|buffer| buffer.scope.ends_with("/relayout"));
    copies
        .map(|buffer| Opportunity {
            kind: OpportunityKind::Relayout,
            saves_bytes: peak_saving(planned, buffer.padded_bytes, buffer.first_step, buffer.last_step),
            text: format!("`{}` ({}) is a copy in another layout", buffer.scope, Bytes(buffer.bytes)),
            action: "kernels of one layout on both sides, if they pay: `--optimize memory`".into(),
        })
        .collect()
}

fn alternatives(planned: &Planned) -> Vec<Opportunity> {
    let one = |row: &AlternativeRow| {
        let time = match row.adds_us {
            Some(us) => format!("{:+.3} ms, x {:.3}", us / 1e3, row.time_ratio),
            None => format!("x {:.3}", row.time_ratio),
        };
        Opportunity {
            kind: OpportunityKind::Alternative,
            saves_bytes: row.saves_bytes,
            text: format!("at the peak, not chosen at `{}`: {}", row.scope, row.change),
            action: format!(
                "modelled time of a run {time}; `--optimize balanced`, `--optimize memory` or `--budget BYTES` trade \
                 time for bytes"
            ),
        }
    };
    planned.alternatives.iter().map(one).collect()
}

/// A table that rows are gathered from, and the only other constant with its extents exchanged: an embedding and the
/// projection back onto the vocabulary are often one tensor.
fn tied_weights(planned: &Planned) -> Option<Opportunity> {
    let is_gathered = |row: &ConstantRow| {
        let mut readers = planned.steps.iter().filter(|step| step.scope == row.scope);
        readers.any(|step| step.kernel.contains("gather"))
    };
    let twins = |row: &ConstantRow| -> Vec<ConstantRow> {
        let reversed: Vec<usize> = row.shape.iter().rev().copied().collect();
        let is_twin = |other: &&ConstantRow| other.shape == reversed && other.dtype == row.dtype;
        planned.constants.iter().filter(is_twin).cloned().collect()
    };
    let tables = planned.constants.iter().filter(|row| row.shape.len() == 2 && row.shape[0] != row.shape[1]);
    let mut tables: Vec<&ConstantRow> = tables.filter(|row| is_gathered(row)).collect();
    tables.sort_by_key(|row| Reverse(row.own_bytes));
    tables.into_iter().find_map(|table| {
        let [twin] = &twins(table)[..] else { return None };
        Some(Opportunity {
            kind: OpportunityKind::TiedWeights,
            saves_bytes: table.own_bytes.min(twin.own_bytes),
            text: format!(
                "`{}` ({}) and `{}` ({}) have the same elements if the model ties them: the table is read by rows, the \
                 projection is packed for its kernel",
                table.name,
                Bytes(table.own_bytes),
                twin.name,
                Bytes(twin.own_bytes)
            ),
            action: "one copy, read by a product with a transposed operand".into(),
        })
    })
}

/// Constants of `f32`, if they are most of the memory.
fn precision(planned: &Planned) -> Option<Opportunity> {
    let bytes: u64 = planned.constants.iter().filter(|row| row.dtype == "f32").map(|row| row.own_bytes).sum();
    (planned.arena_bytes <= bytes).then(|| Opportunity {
        kind: OpportunityKind::Precision,
        saves_bytes: bytes / 2,
        text: format!("constants of f32 are {}", Bytes(bytes)),
        action: "half precision, at most half of it: `prestow what-if MODEL --dtype f32,f16,bf16` plans both".into(),
    })
}

fn placement(planned: &Planned) -> Option<Opportunity> {
    let saves_bytes = planned.arena_bytes.checked_sub(planned.least_bytes)?;
    (planned.state.is_some() && !planned.optimal).then(|| Opportunity {
        kind: OpportunityKind::Placement,
        saves_bytes,
        text: format!("the arena is {} above its proved lower bound", Bytes(saves_bytes)),
        action: "a longer search for a placement: `prestow arena` takes the file that `--placement` writes".into(),
    })
}
