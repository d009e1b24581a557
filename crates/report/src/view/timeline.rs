//! Live bytes over the steps, stacked by role, with the peak marked and the written bytes, if measured.

use std::fmt::Write;
use std::ops::Range;

use types::Bytes;

use super::palette::{rank, style};
use super::svg::{Amount, Svg};
use super::terminal::{columns, fit, list, mark, wrap};
use crate::Report;

/// The roles from bottom to top, without free space.
fn stacked(report: &Report) -> Vec<(&str, &[u64])> {
    let mut roles: Vec<(&str, &[u64])> = report
        .planned
        .timeline
        .iter()
        .filter(|(role, live)| *role != "free" && live.iter().any(|bytes| 0 < *bytes))
        .map(|(role, live)| (&role[..], &live[..]))
        .collect();
    roles.sort_by_key(|(role, _)| rank(role));
    roles
}

/// Bytes written by each step, if measured. A plan without steps has one column all the same.
fn actual(report: &Report) -> Option<&[u64]> {
    let live = &report.measured.as_ref()?.actual.live_written_bytes;
    (live.len() == report.step_count() as usize).then_some(&live[..])
}

const ROWS: usize = 12;

/// Columns of letters; each column is the step with the most bytes among its steps.
pub(crate) fn text(report: &Report, width: usize) -> String {
    let planned = &report.planned;
    let steps = report.step_count() as usize;
    let columns = columns(steps, width);
    let roles = stacked(report);
    let actual = actual(report);
    let live = |step: usize| roles.iter().map(|(_, live)| live[step]).sum::<u64>();
    // The step with the most bytes; the peak step among equals.
    let highest = |steps: &Range<usize>| {
        let most = steps.clone().max_by_key(|&step| (live(step), step == planned.peak_step as usize));
        most.unwrap_or(steps.start)
    };
    let highest: Vec<usize> = columns.iter().map(highest).collect();
    let top = planned.arena_bytes.max(1);
    let mut text = format!("live bytes   over {steps} steps, {} a row\n", Bytes(top.div_ceil(ROWS as u64)));
    for row in (0..ROWS).rev() {
        // A row shows the buffer at its center.
        let level = ((2 * row + 1) as u128 * u128::from(top) / (2 * ROWS) as u128) as u64;
        let label = match row + 1 {
            ROWS => format!("{:>11}", Bytes(top).to_string()),
            _ => " ".repeat(11),
        };
        let line: String = highest
            .iter()
            .map(|&step| {
                let mut below = 0;
                let at = roles.iter().find(|(_, live)| {
                    below += live[step];
                    level < below
                });
                // Letters above the written bytes are lowercase.
                let is_written = actual.is_none_or(|actual| level < actual[step]);
                let letter = |letter: char| if is_written { letter } else { letter.to_ascii_lowercase() };
                at.map_or(' ', |(role, _)| letter(style(role).letter))
            })
            .collect();
        let _ = writeln!(text, "{}", format!("{label} |{line}").trim_end());
    }
    let _ = writeln!(text, "{:>11} +{}", "0", "-".repeat(columns.len()));
    let _ = writeln!(text, "{}", mark(&columns, planned.peak_step, width));
    let legend: Vec<String> = roles.iter().map(|(role, _)| format!("{} {role}", style(role).letter)).collect();
    let _ = writeln!(text, "{}", list(&legend, width, 13));
    if let Some(actual) = actual {
        let most = actual.iter().enumerate().max_by_key(|(step, bytes)| (**bytes, usize::MAX - step));
        if let Some((step, bytes)) = most {
            let line = format!(
                "{:>11}  small: planned, not yet written; written at most {} at step {step}",
                "",
                Bytes(*bytes)
            );
            let _ = writeln!(text, "{}", wrap(&line, width, 13));
        }
    }
    text
}

/// Stacked areas.
pub(crate) fn svg(report: &Report) -> String {
    let planned = &report.planned;
    let steps = report.step_count() as usize;
    let (left, top, width, height) = (80.0, 50.0, 800.0, 320.0);
    let mut svg = Svg::new(left + width + 30.0, top + height + 80.0);
    svg.text(20.0, 28.0, "title", &format!("{}: live bytes over {steps} steps", fit(&report.model, 60)));
    let most = planned.arena_bytes.max(1) as f64;
    let x = |step: usize| left + width * step as f64 / steps as f64;
    let y = |bytes: u64| top + height * (1.0 - bytes as f64 / most);
    let roles = stacked(report);
    let mut below = vec![0u64; steps];
    for (role, live) in &roles {
        let above: Vec<u64> = below.iter().zip(*live).map(|(below, live)| below + live).collect();
        let edge = |sums: &[u64]| -> Vec<(f64, f64)> {
            let corners = sums.iter().enumerate();
            corners.flat_map(|(step, bytes)| [(x(step), y(*bytes)), (x(step + 1), y(*bytes))]).collect()
        };
        let mut points = edge(&above);
        points.extend(edge(&below).into_iter().rev());
        let byte_steps = live.iter().map(|bytes| u128::from(*bytes)).sum();
        svg.area(&points, role, Amount::ByteSteps(byte_steps));
        below = above;
    }
    if let Some(actual) = actual(report) {
        let corners = actual.iter().enumerate();
        let points: Vec<(f64, f64)> =
            corners.flat_map(|(step, bytes)| [(x(step), y(*bytes)), (x(step + 1), y(*bytes))]).collect();
        svg.line("actual", &points);
        svg.text(left + width, top - 6.0, "small end", "line: bytes that a run had written");
    }
    let peak = x(planned.peak_step as usize) + width / steps as f64 / 2.0;
    svg.line("peak", &[(peak, top - 4.0), (peak, top + height)]);
    let class = if peak < left + width / 2.0 { "small" } else { "small end" };
    let text = format!("peak {} at step {}", Bytes(planned.lower_bound_bytes), planned.peak_step);
    svg.text(if class == "small" { peak + 5.0 } else { peak - 5.0 }, top + 10.0, class, &text);
    svg.line("axis", &[(left, top), (left, top + height), (left + width, top + height)]);
    for part in 0..=4u64 {
        let bytes = planned.arena_bytes / 4 * part;
        svg.text(left - 6.0, y(bytes) + 4.0, "small end", &Bytes(bytes).to_string());
    }
    svg.text(left, top + height + 16.0, "small", "step 0");
    svg.text(left + width, top + height + 16.0, "small end", &format!("step {}", steps - 1));
    let names: Vec<String> = roles.iter().map(|(role, _)| (*role).to_string()).collect();
    svg.legend(left, top + height + 34.0, &names);
    svg.finish()
}
