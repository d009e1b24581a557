//! [`Why`]: why a buffer is alive at a step.

use serde::{Deserialize, Serialize};

use super::{BufferRow, Planned};

/// Why a buffer is alive at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// The kind of reason.
    pub kind: WhyKind,
    /// The step that decides it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The reason as a sentence.
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
    /// The step reads it, for the last time.
    ReadNow,
    /// A later step reads it.
    ReadLater,
    /// A step of the backward pass reads it.
    SavedForBackward,
    /// The step writes it, and nothing reads it.
    NeverRead,
    /// Another program's profile does not tell.
    NotTold,
}

impl Why {
    /// Why `buffer` is alive at `step`.
    pub(crate) fn new(planned: &Planned, buffer: &BufferRow, step: u32) -> Why {
        let why = |kind, step, text: String| Why { kind, step, text };
        if buffer.role == "workspace" && buffer.last_reader.is_none() {
            return why(WhyKind::Scratch, Some(step), "scratch of this step".into());
        }
        if buffer.role == "output" {
            return why(WhyKind::Output, None, "a result: the caller reads it after the run".into());
        }
        let Some(reader) = &buffer.last_reader else {
            return match planned.steps.is_empty() {
                true => why(WhyKind::NotTold, None, "it was allocated; when it is free is not told".into()),
                false => why(WhyKind::NeverRead, None, "it is written and never read".into()),
            };
        };
        let (at, scope) = (reader.step, &reader.scope);
        if at <= step {
            return why(WhyKind::ReadNow, Some(at), "this step reads it, the last to do so".into());
        }
        match !is_gradient(&buffer.role) && writes_gradient(planned, at) {
            true => why(WhyKind::SavedForBackward, Some(at), format!("saved for backward: `{scope}` reads it at {at}")),
            false => why(WhyKind::ReadLater, Some(at), format!("`{scope}` reads it last, at {at}")),
        }
    }
}

fn is_gradient(role: &str) -> bool {
    matches!(role, "weight_gradient" | "activation_gradient")
}

/// Whether a step writes a gradient first.
fn writes_gradient(planned: &Planned, step: u32) -> bool {
    let writes = |buffer: &BufferRow| buffer.writer.as_ref().is_some_and(|writer| writer.step == step);
    planned.buffers.iter().any(|buffer| is_gradient(&buffer.role) && writes(buffer))
}
