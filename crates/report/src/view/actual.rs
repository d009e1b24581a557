//! The comparison of planned and actual memory: buffer by buffer, and the rest of the process, each with its source.

use std::fmt::Write;

use types::Bytes;

use super::ViewOptions;
use super::terminal::{fit, wrap};
use crate::Report;
use crate::model::{BufferRow, UnavailableItem, Verdict};

/// Buffers whose verdict is not `equal` in full, a count of the others, then the process item by item.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let Some(measured) = &report.measured else {
        return "actual       not measured; --actual runs the plan under observation\n".into();
    };
    let actual = &measured.actual;
    let mut text = format!("plan, actual {}\n", measured.verdict.text());
    let verdict = |buffer: &BufferRow| buffer.actual.map_or(Verdict::Undetermined, |actual| actual.verdict);
    for (kind, name) in [
        (Verdict::Equal, "equal"),
        (Verdict::Smaller, "smaller"),
        (Verdict::Outside, "outside"),
        (Verdict::Undetermined, "undetermined"),
    ] {
        let found: Vec<&BufferRow> = report.planned.buffers.iter().filter(|buffer| verdict(buffer) == kind).collect();
        let bytes: u64 = found.iter().map(|buffer| buffer.bytes).sum();
        if found.is_empty() {
            continue;
        }
        let _ = writeln!(text, "  {name:<13} {:>6} buffers {:>14}", found.len(), Bytes(bytes).to_string());
        if kind == Verdict::Equal {
            continue;
        }
        for buffer in found.iter().take(options.rows) {
            let seen = buffer.actual.map_or((0, 0), |actual| (actual.written_bytes, actual.outside_bytes));
            let tag = fit(&buffer.tag, options.width.saturating_sub(56).max(20));
            let _ = writeln!(text, "    {tag}: written {} of {}, by others {}", seen.0, buffer.bytes, seen.1);
        }
    }
    for row in actual.outside.iter().take(options.rows) {
        let scope = report.planned.steps.get(row.step).map_or("", |step| &step.scope);
        let _ = writeln!(text, "  step {} (`{}`) wrote {} bytes outside", row.step, fit(scope, 40), row.bytes);
    }
    let _ = writeln!(text, "process      {} resident", Bytes(actual.rss_bytes));
    let groups = [
        ("planned", &actual.planned_resident),
        ("outside the plan", &actual.residual),
        ("on the device", &actual.device),
    ];
    for (title, rows) in groups.into_iter().filter(|(title, rows)| *title != "on the device" || !rows.is_empty()) {
        let sum: u64 = rows.iter().map(|row| row.bytes).sum();
        let _ = writeln!(text, "  {title}: {}", Bytes(sum));
        for row in rows {
            let line = format!("    {:>12}  {} ({})", Bytes(row.bytes).to_string(), row.what, row.method);
            let _ = writeln!(text, "{}", wrap(&line, options.width, 18));
        }
    }
    if !actual.device_processes.is_empty() || !actual.device_unavailable.is_empty() {
        // These figures overlap, so they have no sum.
        let _ = writeln!(text, "  on the device, as its management counts processes:");
    }
    for row in &actual.device_processes {
        let line = format!("    {:>12}  {} ({})", Bytes(row.bytes).to_string(), row.what, row.method);
        let _ = writeln!(text, "{}", wrap(&line, options.width, 18));
    }
    for UnavailableItem { what: figure, why } in &actual.device_unavailable {
        let line = format!("    {:>12}  {figure} ({why})", "unavailable");
        let _ = writeln!(text, "{}", wrap(&line, options.width, 18));
    }
    text
}
