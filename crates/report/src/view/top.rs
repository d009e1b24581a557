//! The largest buffers at the peak: contents, offset, live range, and the reason why they are alive.

use std::cmp::Reverse;
use std::fmt::Write;

use types::Bytes;

use super::ViewOptions;
use super::terminal::{fit, wrap};
use crate::Report;
use crate::model::{BufferRow, ConstantRow, Origin, spans, type_text};

/// A table of at least two lines per entry.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let planned = &report.planned;
    let step = planned.peak_step;
    let mut text = format!("at the peak  step {step}");
    let end = format!(": {} buffers", planned.alive_at_peak.len());
    if let Some(row) = planned.steps.get(step as usize) {
        // Parentheses, a comma and spaces take 5 characters.
        let taken = text.chars().count() + row.kernel.chars().count() + end.chars().count() + 5;
        let _ = write!(text, " ({}, {})", fit(&row.scope, options.width.saturating_sub(taken).max(10)), row.kernel);
    }
    text = wrap(&(text + &end), options.width, 13) + "\n";
    let is_plan = report.origin == Origin::Plan;
    // An imported profile has neither offsets nor ends of lives.
    let place = if is_plan { format!(" {:>13} {:>11}", "offset", "steps") } else { String::new() };
    let _ = writeln!(text, "  {:>11} {:>10}{place}  tag", "bytes", "padding");
    for row in planned.alive_at_peak.iter().take(options.rows) {
        let buffer = &planned.buffers[row.buffer];
        let life = format!("{}..{}", buffer.first_step, buffer.last_step);
        let place = if is_plan { format!(" {:>13} {life:>11}", buffer.offset) } else { String::new() };
        let line = format!("  {:>11} {:>10}{place}", Bytes(row.bytes), row.padded_bytes - row.bytes);
        let _ = writeln!(text, "{}", with_name(&line, &buffer.tag, options.width));
        let indent = 6;
        let mut say = |line: &str| {
            let line = format!("{}{line}", " ".repeat(indent));
            let _ = writeln!(text, "{}", wrap(&line, options.width, indent + 2));
        };
        if is_plan {
            say(&holds(buffer, step, options.width));
            say(&format!("alive: {}", row.why.text));
        }
        buffer.refused.iter().take(2).for_each(|refused| say(&refused.text));
    }
    if options.rows < planned.alive_at_peak.len() {
        let rest = &planned.alive_at_peak[options.rows..];
        let bytes: u64 = rest.iter().map(|row| row.bytes).sum();
        let _ = writeln!(text, "  {:>11}  in {} more; --top N shows more", Bytes(bytes).to_string(), rest.len());
    }
    constants(report, options, &mut text);
    text
}

/// The largest constants, which are always resident: packed size and size in the model.
fn constants(report: &Report, options: &ViewOptions, text: &mut String) {
    let mut rows: Vec<&ConstantRow> = report.planned.constants.iter().collect();
    if rows.is_empty() {
        return;
    }
    let tensors: u64 = rows.iter().map(|row| row.tensor_bytes).sum();
    let packed = Bytes(report.planned.weights_bytes);
    let _ = writeln!(text, "in the executable {packed} of constants, packed from {}", Bytes(tensors));
    let _ = writeln!(text, "  {:>11} {:>11}  name", "packed", "tensor");
    rows.sort_by_key(|row| (Reverse(row.bytes), row.offset));
    for row in rows.iter().take(options.rows.div_ceil(2)) {
        let name = format!("{} {}", row.tag, type_text(&row.dtype, &row.shape));
        let (packed, tensor) = (Bytes(row.bytes).to_string(), Bytes(row.tensor_bytes).to_string());
        let _ = writeln!(text, "{}", with_name(&format!("  {packed:>11} {tensor:>11}"), &name, options.width));
    }
}

/// A line that ends with a name; a name that does not fit has lines of its own, so that nothing of it is cut.
fn with_name(line: &str, name: &str, width: usize) -> String {
    let used = line.chars().count() + 2;
    match used + name.chars().count() <= width {
        true => format!("{line}  {name}"),
        false => {
            let letters: Vec<char> = name.chars().collect();
            let lines = letters.chunks(width - 4).map(|part| format!("\n    {}", part.iter().collect::<String>()));
            line.to_string() + &lines.collect::<String>()
        }
    }
}

/// The contents of a buffer at a step.
fn holds(buffer: &BufferRow, step: u32, width: usize) -> String {
    let now: Vec<_> =
        spans(buffer).into_iter().filter(|span| (span.first_step..=span.last_step).contains(&step)).collect();
    let mut values: Vec<usize> = now.iter().filter_map(|span| span.value).collect();
    values.dedup();
    let idle: u64 = now.iter().filter(|span| span.value.is_none()).map(|span| span.bytes).sum();
    let waits = if 0 < idle { format!(", {} wait to be written or are done with", Bytes(idle)) } else { String::new() };
    match (&values[..], &buffer.values[..]) {
        ([], []) if buffer.role == "workspace" => "holds scratch".into(),
        ([], _) => "holds nothing at this step".into(),
        ([one], all) => {
            let value = &all[*one];
            let others =
                if 1 < all.len() { format!(" (one of {} values in its life)", all.len()) } else { String::new() };
            let name = if value.name == buffer.scope { String::new() } else { fit(&value.name, width / 2) + " " };
            format!("holds {name}{}{}{others}{waits}", value.type_text(), blocked(&value.layout))
        }
        (some, all) => {
            format!("holds {} of its {} values, {} the last{waits}", some.len(), all.len(), {
                let last = some.iter().max_by_key(|ix| all[**ix].first_step).map_or(0, |ix| *ix);
                fit(&all[last].name, width / 2)
            })
        }
    }
}

fn blocked(layout: &str) -> String {
    if layout == "row_major" { String::new() } else { format!(" {layout}") }
}
