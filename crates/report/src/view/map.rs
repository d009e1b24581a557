//! The packing map: steps from left to right, offsets from bottom to top, one rectangle per buffer; uncovered space is
//! free.

use std::fmt::Write;

use types::Bytes;

use super::palette::{rank, style};
use super::svg::{Amount, Svg};
use super::terminal::{columns, fit, list, mark};
use crate::Report;
use crate::model::{BufferRow, Span, spans};

const ROWS: usize = 20;

/// A raster of letters, each for the buffer at the center of its cell.
pub(crate) fn text(report: &Report, width: usize) -> String {
    let planned = &report.planned;
    let steps = report.step_count() as usize;
    let columns = columns(steps, width);
    let top = planned.arena_bytes.max(1);
    let mut cells = vec![vec!['.'; columns.len()]; ROWS];
    let step_of = |column: usize| ((columns[column].start + columns[column].end - 1) / 2) as u32;
    let row_of = |level: u64| -> usize {
        // The first row whose center is at or above a level.
        let twice = u128::from(level) * 2 * ROWS as u128;
        (twice.div_ceil(u128::from(top)) as usize).saturating_sub(1).div_ceil(2)
    };
    let mut draw = |buffer: &BufferRow| {
        let rows = row_of(buffer.offset)..row_of(buffer.offset + buffer.bytes).min(ROWS);
        let spans = spans(buffer);
        for row in rows {
            for (column, cell) in cells[row].iter_mut().enumerate() {
                let level = ((2 * row as u128 + 1) * u128::from(top) / (2 * ROWS as u128)) as u64;
                if let Some(role) = role_at(buffer, &spans, step_of(column), level) {
                    *cell = style(role).letter;
                }
            }
        }
    };
    planned.buffers.iter().for_each(&mut draw);
    let mut text = format!("packing map  steps across, offsets up; {} a row\n", Bytes(top.div_ceil(ROWS as u64)));
    for (row, line) in cells.iter().enumerate().rev() {
        let label = if row + 1 == ROWS { Bytes(top).to_string() } else { String::new() };
        let _ = writeln!(text, "{label:>11} |{}", line.iter().collect::<String>());
    }
    let _ = writeln!(text, "{:>11} +{}", "0", "-".repeat(columns.len()));
    let _ = writeln!(text, "{}", mark(&columns, planned.peak_step, width));
    let mut legend: Vec<String> = roles(report).iter().map(|role| format!("{} {role}", style(role).letter)).collect();
    legend.push(". free".into());
    let _ = writeln!(text, "{}", list(&legend, width, 13));
    text
}

/// The role of a buffer's byte at an offset of the arena and at a step; `None` if the buffer does not occupy it.
fn role_at<'a>(buffer: &'a BufferRow, spans: &[Span], step: u32, offset: u64) -> Option<&'a str> {
    let inside = offset.checked_sub(buffer.offset)?;
    let holds = |span: &&Span| {
        (span.first_step..=span.last_step).contains(&step) && (span.offset..span.offset + span.bytes).contains(&inside)
    };
    spans.iter().find(holds).map(|span| buffer.role_of(span.value))
}

/// The roles in the buffers, in stacking order.
fn roles(report: &Report) -> Vec<String> {
    let planned = &report.planned;
    let of_buffer = |buffer: &BufferRow| -> Vec<String> {
        spans(buffer).iter().map(|span| buffer.role_of(span.value).to_string()).collect()
    };
    let mut roles: Vec<String> = planned.buffers.iter().flat_map(of_buffer).collect();
    roles.sort_by_key(|role| (rank(role), role.clone()));
    roles.dedup();
    roles
}

/// A rectangle for each range of bytes that a buffer occupies, on a hatched background; each shows its details on hover.
pub(crate) fn svg(report: &Report) -> String {
    let planned = &report.planned;
    let steps = f64::from(report.step_count());
    let (left, top, width, height) = (80.0, 50.0, 900.0, 480.0);
    let mut svg = Svg::new(left + width + 30.0, top + height + 80.0);
    svg.text(20.0, 28.0, "title", &format!("{}: arena of {}", fit(&report.model, 60), Bytes(planned.arena_bytes)));
    let most = planned.arena_bytes.max(1) as f64;
    svg.rect([left, top, width, height], "free", "free: under no buffer", Amount::None);
    for (ix, buffer) in planned.buffers.iter().enumerate() {
        let card = card(ix, buffer);
        let place = |first: u32, steps_of: u64, offset: u64, bytes: u64| {
            let y = top + height * (1.0 - (buffer.offset + offset + bytes) as f64 / most);
            [left + width * f64::from(first) / steps, y, width * steps_of as f64 / steps, height * bytes as f64 / most]
        };
        // The name goes onto the largest piece.
        let mut largest = [0.0; 4];
        for piece in buffer.pieces() {
            let bytes = buffer.own_bytes(piece);
            let rect = place(piece.first_step, piece.steps(), piece.offset, bytes);
            svg.rect(rect, &buffer.role, &card, Amount::Bytes(bytes.into()));
            if largest[2] * largest[3] < rect[2] * rect[3] {
                largest = rect;
            }
        }
        // Bytes with another role for some steps are drawn over the buffer.
        for span in spans(buffer).into_iter().filter(|span| buffer.role_of(span.value) != buffer.role) {
            let steps_of = u64::from(span.last_step - span.first_step) + 1;
            let rect = place(span.first_step, steps_of, span.offset, span.bytes);
            svg.rect(rect, buffer.role_of(span.value), &card, Amount::None);
        }
        let [x, y, wide, high] = largest;
        // About six units per character.
        let name = fit(&buffer.scope, (wide / 6.0) as usize);
        if 12.0 <= high && 30.0 <= wide {
            svg.text(x + 3.0, y + high.min(40.0) / 2.0 + 4.0, "small on", &name);
        }
    }
    let peak = left + width * (f64::from(planned.peak_step) + 0.5) / steps;
    svg.line("peak", &[(peak, top - 4.0), (peak, top + height)]);
    svg.text(peak, top - 8.0, "small mid", &format!("peak, step {}", planned.peak_step));
    svg.line("axis", &[(left, top), (left, top + height), (left + width, top + height)]);
    for part in 0..=4u64 {
        let bytes = planned.arena_bytes / 4 * part;
        let y = top + height * (1.0 - bytes as f64 / most);
        svg.text(left - 6.0, y + 4.0, "small end", &Bytes(bytes).to_string());
    }
    svg.text(left, top + height + 16.0, "small", "step 0");
    svg.text(left + width, top + height + 16.0, "small end", &format!("step {}", steps - 1.0));
    let mut legend = roles(report);
    legend.push("free".into());
    svg.legend(left, top + height + 34.0, &legend);
    svg.finish()
}

/// Details of a buffer in a few lines.
fn card(ix: usize, buffer: &BufferRow) -> String {
    let mut card = format!(
        "buffer {ix}: {}\n{} bytes (+{} padding) at {}\nsteps {} to {}",
        buffer.tag,
        buffer.bytes,
        buffer.padded_bytes - buffer.bytes,
        buffer.offset,
        buffer.first_step,
        buffer.last_step
    );
    for value in buffer.values.iter().take(8) {
        let _ = write!(card, "\n{} {}", value.name, value.type_text());
    }
    if 8 < buffer.values.len() {
        let _ = write!(card, "\n{} more values", buffer.values.len() - 8);
    }
    card
}
