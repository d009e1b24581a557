//! The report's JSON: written for other programs, read for `diff` and for the page.

use super::{FORMAT, Report, VERSION};

/// The reason that a text is not a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Not JSON, or not JSON of a memory report.
    NotAReport(String),
    /// An unsupported version.
    Version(u64),
    /// Numbers that contradict each other.
    Inconsistent(&'static str),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::NotAReport(why) => write!(f, "not a memory report ({why}); `EXE memory --json` writes one"),
            ReadError::Version(found) => {
                write!(f, "a memory report of version {found}, this build reads {VERSION}; write it again")
            }
            ReadError::Inconsistent(reason) => write!(f, "the report contradicts itself: {reason}; write it again"),
        }
    }
}

impl std::error::Error for ReadError {}

impl Report {
    /// The versioned JSON, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has no maps with other keys than strings")
    }
}

/// Reads a report's JSON.
///
/// # Errors
/// Any input that is not a consistent report. Never panics, for any bytes.
pub fn read(text: &[u8]) -> Result<Report, ReadError> {
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| ReadError::NotAReport(error.to_string()))?;
    if value["format"] != FORMAT {
        return Err(ReadError::NotAReport(format!("its `format` is not \"{FORMAT}\"")));
    }
    let version = value["version"].as_u64().unwrap_or(0);
    if version != u64::from(VERSION) {
        return Err(ReadError::Version(version));
    }
    let report: Report = serde_json::from_value(value).map_err(|error| ReadError::NotAReport(error.to_string()))?;
    check(&report)?;
    Ok(report)
}

/// Checks the invariants that every function over reports relies on.
fn check(report: &Report) -> Result<(), ReadError> {
    let planned = &report.planned;
    let steps = report.step_count();
    let in_bounds = |offset: u64, bytes: u64, size: u64| offset.checked_add(bytes).is_some_and(|end| end <= size);
    for buffer in &planned.buffers {
        if buffer.last_step < buffer.first_step || steps <= buffer.last_step {
            return Err(ReadError::Inconsistent("a buffer lives outside the steps"));
        }
        if buffer.padded_bytes < buffer.bytes || !in_bounds(buffer.offset, buffer.padded_bytes, planned.arena_bytes) {
            return Err(ReadError::Inconsistent("a buffer is outside the arena"));
        }
        let mut next = buffer.first_step;
        for piece in &buffer.pieces {
            let lives = next <= piece.first_step
                && piece.first_step <= piece.last_step
                && piece.last_step <= buffer.last_step
                && in_bounds(piece.offset, piece.padded_bytes, buffer.padded_bytes);
            if !lives {
                return Err(ReadError::Inconsistent("the bytes that a buffer occupies are outside of it"));
            }
            next = piece.last_step.saturating_add(1);
        }
        for value in &buffer.values {
            let lives = buffer.first_step <= value.first_step
                && value.first_step <= value.last_step
                && value.last_step <= value.held_until
                && value.held_until <= buffer.last_step;
            if !lives || !in_bounds(value.offset, value.bytes, buffer.bytes) {
                return Err(ReadError::Inconsistent("a value is outside its buffer"));
            }
        }
    }
    if steps <= planned.peak_step {
        return Err(ReadError::Inconsistent("the peak is after the last step"));
    }
    if planned.alive_at_peak.iter().any(|row| planned.buffers.len() <= row.buffer) {
        return Err(ReadError::Inconsistent("a buffer at the peak does not exist"));
    }
    if planned.alive_at_peak.iter().any(|row| row.padded_bytes < row.bytes) {
        return Err(ReadError::Inconsistent("a buffer at the peak has negative padding"));
    }
    let is_inside = |row: &super::ConstantRow| {
        in_bounds(row.offset, row.bytes, planned.weights_bytes) && row.own_bytes <= row.offset + row.bytes
    };
    if !planned.constants.iter().all(is_inside) {
        return Err(ReadError::Inconsistent("a constant is outside its section"));
    }
    if planned.timeline.values().any(|live| live.len() != steps as usize) {
        return Err(ReadError::Inconsistent("the timeline has another length than the steps"));
    }
    for step in 0..steps as usize {
        let sum = planned.timeline.values().try_fold(0u64, |sum, live| sum.checked_add(live[step]));
        if sum != Some(planned.arena_bytes) {
            return Err(ReadError::Inconsistent("the roles at a step do not add up to the arena"));
        }
    }
    if let Some(resident) = &planned.resident {
        let is_ordered = |row: &super::ResidentConstantRow| {
            row.first_step <= row.first_use && row.first_use <= row.last_step && row.last_step < steps
        };
        if !resident.kept.iter().chain(&resident.reads).all(is_ordered) {
            return Err(ReadError::Inconsistent("a constant is in memory outside the steps"));
        }
        if resident.bytes.len() != planned.steps.len() || resident.bytes.iter().any(|&live| resident.block_bytes < live)
        {
            return Err(ReadError::Inconsistent("the constants in memory at a step exceed their block"));
        }
    }
    let own = planned
        .constants
        .iter()
        .try_fold(0u64, |sum, row| sum.checked_add(row.own_bytes)?.checked_add(row.padding_bytes));
    let section = own.and_then(|own| own.checked_add(planned.constants_other_bytes));
    if section != Some(planned.weights_bytes) || planned.arena_bytes.checked_add(planned.weights_bytes).is_none() {
        return Err(ReadError::Inconsistent("the constants do not add up to their section"));
    }
    Ok(())
}
