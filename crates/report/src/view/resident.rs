//! The weights in memory at each step of a plan that reads some of them in every run.

use std::fmt::Write;
use std::ops::Range;

use types::Bytes;

use super::ViewOptions;
use super::terminal::{columns, wrap};
use crate::Report;
use crate::model::ResidentConstantRow;

const ROWS: u64 = 8;

/// The weights that stay, those that are read, the weights in memory over the steps, and the largest of each.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let Some(resident) = report.planned.resident.as_ref().filter(|resident| !resident.bytes.is_empty()) else {
        return "resident     all weights are in memory at every step\n".into();
    };
    let (block, limit) = (resident.block_bytes, Bytes(resident.limit_bytes));
    let mut text = String::new();
    let line = format!(
        "resident     {} of weights and the arena within {limit} together: {} stay, a run reads {} in {} reads; no \
         order of reads needs less than {}",
        Bytes(block),
        Bytes(resident.kept_bytes),
        Bytes(resident.read_bytes),
        resident.reads.len(),
        Bytes(resident.least_read_bytes)
    );
    let _ = writeln!(text, "{}", wrap(&line, options.width, 13));
    let columns = columns(resident.bytes.len(), options.width);
    let most = |steps: &Range<usize>| resident.bytes[steps.clone()].iter().copied().max().unwrap_or_default();
    let highest: Vec<u64> = columns.iter().map(most).collect();
    for row in (0..ROWS).rev() {
        // A row shows the bytes at its center. Weights that stay are below those that are read.
        let level = ((2 * row + 1) as u128 * u128::from(block.max(1)) / u128::from(2 * ROWS)) as u64;
        let mark = |&live: &u64| match level < live {
            true if level < resident.kept_bytes => '#',
            true => '+',
            false => ' ',
        };
        let line: String = highest.iter().map(mark).collect();
        let label = if row + 1 == ROWS { Bytes(block).to_string() } else { String::new() };
        let _ = writeln!(text, "{}", format!("{label:>11} |{line}").trim_end());
    }
    let _ = writeln!(text, "{:>11} +{}", "0", "-".repeat(columns.len()));
    let _ = writeln!(text, "{:>11}  # stays, + read in this run, over {} steps", "", resident.bytes.len());
    let _ =
        writeln!(text, "read in each run, in order: bytes, weight, steps from the start of the read to the last use");
    list(&mut text, &resident.reads, options, |row| {
        format!("from step {} for step {} to {}", row.first_step, row.first_use, row.last_step)
    });
    let mut kept: Vec<ResidentConstantRow> = resident.kept.clone();
    kept.sort_by_key(|row| (std::cmp::Reverse(row.bytes), row.offset));
    let _ = writeln!(text, "stays in memory, the largest first: bytes, weight, the first step that uses it");
    list(&mut text, &kept, options, |row| format!("step {}", row.first_use));
    text
}

/// The first rows, and the bytes of the others.
fn list(
    text: &mut String,
    rows: &[ResidentConstantRow],
    options: &ViewOptions,
    steps: impl Fn(&ResidentConstantRow) -> String,
) {
    for row in rows.iter().take(options.rows) {
        let line = format!("  {:>11} {} ({})", Bytes(row.bytes).to_string(), row.name, steps(row));
        let _ = writeln!(text, "{}", wrap(&line, options.width, 14));
    }
    if options.rows < rows.len() {
        let bytes: u64 = rows[options.rows..].iter().map(|row| row.bytes).sum();
        let more = rows.len() - options.rows;
        let _ = writeln!(text, "  {:>11} in {more} more; --top N shows more", Bytes(bytes).to_string());
    }
}
