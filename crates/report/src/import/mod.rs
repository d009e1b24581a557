//! Imports: profiles of other programs become [`Report`]s, so that all views work on them.
//!
//! Such a profile has names and sizes, but neither offsets nor ends of live ranges: its allocations are placed one
//! after the other and live until the end. Roles are inferred from keywords in the names.

mod mxnet;
mod tbd;
mod two_column;

use plan::Persistence;
use types::{Bytes, Role};

use crate::export::mxnet::HEADER;
use crate::model::{
    AtPeak, BoundsRow, BufferRow, FORMAT, Origin, Planned, Report, StepRow, Unnamed, VERSION, WhyKind, finish, timeline,
};

/// A file is not a valid profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError(String);

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImportError {}

/// Reads a profile of MXNet (either CSV) or TBD (a log); the format is detected from the contents. `name` becomes the
/// name of the report.
///
/// # Errors
/// The invalid line and the reason. Never panics, and uses memory in proportion to the input.
pub fn import(name: &str, bytes: &[u8]) -> Result<Report, ImportError> {
    // Logs contain arbitrary program output.
    let text = String::from_utf8_lossy(bytes);
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.replace('"', "").trim() == HEADER.replace('"', "") {
        return mxnet::read(name, &text);
    }
    if text.lines().any(tbd::is_allocation) {
        return tbd::read(name, &text);
    }
    if first.rsplit_once(',').is_some_and(|(_, number)| number.trim().parse::<f64>().is_ok()) {
        return two_column::read(name, &text);
    }
    Err(ImportError(
        "neither MXNet's CSV (five columns with a header, or tag and MiB) nor a log with lines `[mem] Allocate N bytes GPU \
         memory (TAG).`"
            .into(),
    ))
}

/// An allocation of an imported profile.
struct Row {
    tag: String,
    scope: String,
    role: &'static str,
    requested: u64,
    actual: u64,
}

/// Whether a profile has an order of allocations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The memory held at one time.
    Snapshot,
    /// Allocations in order.
    Sequence,
}

/// The report of allocations placed one after the other.
fn report(
    origin: Origin,
    name: &str,
    kind: Kind,
    rows: Vec<Row>,
    unnamed: Vec<Unnamed>,
) -> Result<Report, ImportError> {
    if rows.is_empty() {
        return Err(ImportError("there is no allocation in it".into()));
    }
    let count = u32::try_from(rows.len()).map_err(|_| ImportError("there are too many allocations in it".into()))?;
    let steps = if kind == Kind::Sequence { count } else { 1 };
    let too_large = || ImportError("its sizes add up to more than 2^63 bytes".into());
    let mut end = 0u64;
    let mut buffers = Vec::with_capacity(rows.len());
    for (ix, row) in rows.into_iter().enumerate() {
        let offset = end;
        end = end.checked_add(row.actual).filter(|end| *end <= i64::MAX as u64).ok_or_else(too_large)?;
        buffers.push(BufferRow {
            pieces: Vec::new(),
            tag: row.tag,
            scope: row.scope,
            role: row.role.into(),
            bytes: row.requested.min(row.actual),
            padded_bytes: row.actual,
            offset,
            first_step: if kind == Kind::Sequence { ix as u32 } else { 0 },
            last_step: steps - 1,
            persistence: Persistence::Run,
            values: Vec::new(),
            writer: None,
            last_reader: None,
            refused: Vec::new(),
            actual: None,
        });
    }
    let timeline = timeline(&buffers, steps, end);
    let step = |(ix, buffer): (usize, &BufferRow)| StepRow {
        scope: buffer.tag.clone(),
        kernel: "allocate".into(),
        label: Bytes(buffer.padded_bytes).to_string(),
        flops: 0,
        live_bytes: end - timeline[Role::Free.name()][ix],
    };
    let step_rows = if kind == Kind::Sequence { buffers.iter().enumerate().map(step).collect() } else { Vec::new() };
    let mut planned = Planned {
        arena_bytes: end,
        alignment_bytes: 1,
        lower_bound_bytes: end,
        least_bytes: end,
        state: None,
        optimal: false,
        order: BoundsRow { bound_bytes: end, least_bytes: end, state: None },
        any_kernels_bytes: 0,
        peak_step: steps - 1,
        weights_bytes: 0,
        constants_padding_bytes: 0,
        constants_other_bytes: 0,
        by_role: Default::default(),
        free_at_peak: Vec::new(),
        alive_at_peak: Vec::new(),
        alternatives: Vec::new(),
        limit: None,
        resident: None,
        opportunities: Vec::new(),
        saved: Vec::new(),
        recomputed: Vec::new(),
        steps: step_rows,
        timeline,
        buffers,
        constants: Vec::new(),
    };
    finish(&mut planned);
    let unknown_end = |row: &mut AtPeak| {
        row.why.kind = WhyKind::Unknown;
        row.why.step = None;
        row.why.text = "it was allocated; the profile has no end of its lifetime".into();
    };
    planned.alive_at_peak.iter_mut().for_each(unknown_end);
    Ok(Report {
        format: FORMAT.into(),
        version: VERSION,
        origin,
        model: name.into(),
        target: "another program".into(),
        batch: 0,
        planned,
        measured: None,
        unnamed,
    })
}

/// The role that the keywords of a name imply.
fn role(tag: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| tag.contains(word));
    let role = if has(&["optimizer_state", "optimizer_weight_update", "optimizer_grad_update"]) {
        Role::OptimizerState
    } else if has(&["arg_grad:", "kvstore:"]) {
        Role::WeightGradient
    } else if has(&["aux_state:"]) {
        Role::State
    } else if has(&["in_arg:"]) {
        Role::Weight
    } else if has(&[":constant:"]) {
        Role::Constant
    } else if tag.starts_with("image_io:") {
        Role::Input
    } else if has(&["workspace", "temp_space", "cudnn_dropout_state", "reserve_space", "<ephemeral>"]) {
        Role::Workspace
    } else if has(&["head_grad"]) || tag.ends_with("_backward") {
        Role::ActivationGradient
    } else if tag.ends_with("_output") {
        Role::Output
    } else if has(&["unknown", "untagged", "ctx_source_unclear"]) || tag.starts_with("<unk>:") || tag.is_empty() {
        return "unknown";
    } else {
        Role::Activation
    };
    role.name()
}

/// The parts of a name that are not keywords, as a path.
fn scope(tag: &str) -> String {
    const WORDS: [&str; 13] = [
        "in_arg",
        "arg_grad",
        "aux_state",
        "optimizer_state",
        "constant",
        "data_entry",
        "forward_features",
        "head_grad",
        "workspace",
        "resource",
        "temp_space",
        "<unk>",
        "unknown",
    ];
    let parts: Vec<&str> =
        tag.split(':').map(str::trim).filter(|part| !part.is_empty() && !WORDS.contains(part)).collect();
    parts.join("/")
}
