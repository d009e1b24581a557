//! Changes of the model, the kernels or the options that would need less memory.

use std::fmt::Write;

use types::Bytes;

use super::ViewOptions;
use super::terminal::wrap;
use crate::Report;
use crate::model::Origin;

/// A row for each opportunity: its largest saving, the reason for the bytes, and the change.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let rows = &report.planned.opportunities;
    if report.origin != Origin::Plan {
        return "to change    not for an imported profile: it has no steps\n".into();
    }
    if rows.is_empty() {
        return "to change    nothing found that would lower the peak\n".into();
    }
    let mut text = String::from("to change    saves at most\n");
    for row in rows.iter().take(options.rows) {
        let line = format!("  {:>11} {}", Bytes(row.saves_bytes).to_string(), row.text);
        let _ = writeln!(text, "{}", wrap(&line, options.width, 14));
        let line = format!("{}change: {}", " ".repeat(14), row.action);
        let _ = writeln!(text, "{}", wrap(&line, options.width, 16));
    }
    text
}
