//! [`Why`]: why a buffer is alive at a step.

use plan::Persistence;
use serde::{Deserialize, Serialize};
use types::Role;

use super::{BufferRow, Planned, ValueRow};

/// Why a buffer is alive at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The kind of reason.
    pub kind: WhyKind,
    /// The step that decides, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The reason in words.
    pub text: String,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyKind {
    /// Scratch of the step itself.
    Scratch,
    /// A result of the model.
    Output,
    /// State, kept between runs.
    State,
    /// The step is its last reader.
    ReadNow,
    /// A later step reads it.
    ReadLater,
    /// A step of the backward pass reads it.
    SavedForBackward,
    /// The step writes it, and nothing reads it.
    NeverRead,
    /// It holds no value at the step: a slice of it is yet to be written.
    Waits,
    /// Unknown, for an imported profile.
    Unknown,
}

impl Why {
    /// The reason that `buffer` is alive at `step`.
    pub(crate) fn new(planned: &Planned, buffer: &BufferRow, step: u32) -> Why {
        let why = |kind, step, text: String| Why { kind, step, text };
        if buffer.persistence == Persistence::Session {
            return why(WhyKind::State, None, "state: the next run reads it".into());
        }
        if buffer.role == "workspace" && buffer.last_reader.is_none() {
            return why(WhyKind::Scratch, Some(step), "scratch of this step".into());
        }
        let is_now = |value: &&ValueRow| (value.first_step..=value.held_until).contains(&step);
        // If several values are alive, the one that is held longest keeps the buffer alive.
        let holds = buffer.values.iter().filter(is_now).max_by_key(|value| (value.held_until, value.first_step));
        let next = buffer.values.iter().filter(|value| step < value.first_step).min_by_key(|value| value.first_step);
        if let (None, Some(next)) = (holds, next) {
            let text = format!("no value yet: `{}` is written at step {}", next.name, next.first_step);
            return why(WhyKind::Waits, Some(next.first_step), text);
        }
        let is_result = holds.map_or(&buffer.role, |value| &value.role) == Role::Output.name();
        let last = holds.map(|value| value.held_until);
        if is_result && last.is_none_or(|last| last == buffer.last_step) {
            return why(WhyKind::Output, None, "a result: the caller reads it after the run".into());
        }
        let reader = buffer.last_reader.as_ref().map(|reader| reader.step);
        let Some(at) = last.filter(|last| Some(*last) != reader && *last < buffer.last_step).or(reader) else {
            return match planned.steps.is_empty() {
                true => why(WhyKind::Unknown, None, "it was allocated; the end of its lifetime is unknown".into()),
                false => why(WhyKind::NeverRead, None, "it is written and never read".into()),
            };
        };
        let scope = planned.steps.get(at as usize).map_or("", |row| &row.scope);
        let read = format!("last read at step {at} by `{scope}`");
        if at <= step {
            return why(WhyKind::ReadNow, Some(at), read);
        }
        match !is_gradient(&buffer.role) && writes_gradient(planned, at) {
            true => why(WhyKind::SavedForBackward, Some(at), format!("saved for backward: {read}")),
            false => why(WhyKind::ReadLater, Some(at), read),
        }
    }
}

fn is_gradient(role: &str) -> bool {
    matches!(role, "weight_gradient" | "activation_gradient")
}

/// Whether a step is the first to write a gradient.
fn writes_gradient(planned: &Planned, step: u32) -> bool {
    let writes = |buffer: &BufferRow| buffer.writer.as_ref().is_some_and(|writer| writer.step == step);
    planned.buffers.iter().any(|buffer| is_gradient(&buffer.role) && writes(buffer))
}
