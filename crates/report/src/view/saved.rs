//! The values that a training step saves for its backward pass, and those that it computes again.

use std::fmt::Write;

use types::Bytes;

use super::ViewOptions;
use super::terminal::wrap;
use crate::Report;

/// A row for each value: bytes, type, and the reason of each reader.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let (saved, recomputed) = (&report.planned.saved, &report.planned.recomputed);
    if saved.is_empty() {
        return "saved        nothing: it is no training step\n".into();
    }
    let bytes: u64 = saved.iter().map(|row| row.bytes).sum();
    let mut text = format!("saved        {} in {} values for the backward pass\n", Bytes(bytes), saved.len());
    for row in saved.iter().take(options.rows) {
        let from = row.writer.as_ref().map_or("given".into(), |writer| format!("step {}", writer.step));
        let line = format!("  {:>11} {} {} ({from})", Bytes(row.bytes).to_string(), row.name, row.type_text());
        let _ = writeln!(text, "{}", wrap(&line, options.width, 14));
        for reader in &row.readers {
            let line = format!("{}step {}: {}", " ".repeat(14), reader.step, reader.reason);
            let _ = writeln!(text, "{}", wrap(&line, options.width, 16));
        }
    }
    if options.rows < saved.len() {
        let bytes: u64 = saved[options.rows..].iter().map(|row| row.bytes).sum();
        let more = saved.len() - options.rows;
        let _ = writeln!(text, "  {:>11} in {more} more; --top N shows more", Bytes(bytes).to_string());
    }
    if !recomputed.is_empty() {
        let bytes: u64 = recomputed.iter().map(|row| row.bytes).sum();
        let _ = writeln!(text, "computed again instead of saved: {} in {} steps", Bytes(bytes), recomputed.len());
        for row in recomputed.iter().take(options.rows) {
            let line =
                format!("  {:>11} {} at step {} ({})", Bytes(row.bytes).to_string(), row.scope, row.step, row.kernel);
            let _ = writeln!(text, "{}", wrap(&line, options.width, 14));
        }
    }
    text
}
