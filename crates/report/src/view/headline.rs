//! The headline (arena, bounds, certificate, weights, process) and [`Fit`], whether a model fits in a memory.

use std::fmt::Write;

use serde::Serialize;
use types::Bytes;

use super::terminal::wrap;
use crate::Report;
use crate::model::{Measured, Origin};

/// The headline in a few lines of at most `width` characters.
pub(crate) fn text(report: &Report, width: usize) -> String {
    lines(report).lines().map(|line| wrap(line, width, 13) + "\n").collect()
}

fn lines(report: &Report) -> String {
    if report.origin != Origin::Plan {
        return foreign(report);
    }
    let mut text = total(report);
    text.push_str(&bounds(report));
    if let Some(Measured { actual, verdict }) = &report.measured {
        let _ = writeln!(
            text,
            "actual       written {} of {} planned bytes, outside {}, heap allocations in a run {}: {}",
            actual.arena_written_bytes,
            actual.arena_planned_bytes,
            actual.outside_bytes,
            actual.heap_allocations_in_run,
            verdict.text()
        );
        if let Some(read) = actual.read_bytes_in_run {
            let planned = report.planned.resident.as_ref().map_or(0, |resident| resident.read_bytes);
            let _ = writeln!(text, "             a run read {read} of {planned} planned bytes of weights");
        }
        let _ = writeln!(
            text,
            "process      resident {} (peak {}), of which {} is neither arena nor executable:",
            Bytes(actual.rss_bytes),
            Bytes(actual.peak_rss_bytes),
            Bytes(actual.residual_bytes())
        );
        for item in actual.residual.iter().chain(&actual.device) {
            let _ = writeln!(text, "             {:>12}  {}", Bytes(item.bytes), item.what);
        }
    }
    text
}

/// The total and its two parts; one part if the other is empty.
fn total(report: &Report) -> String {
    let planned = &report.planned;
    let (arena, weights) = (Bytes(planned.arena_bytes), Bytes(planned.weights_bytes));
    let total = Bytes(report.memory_bytes());
    if let Some(resident) = &planned.resident {
        let (block, read) = (Bytes(resident.block_bytes), Bytes(resident.read_bytes));
        return format!("total        {total}: arena {arena}, {block} of {weights} of weights; a run reads {read}\n");
    }
    match (arena, weights) {
        (_, Bytes(0)) => format!("total        {total}, the arena\n"),
        (Bytes(0), _) => format!("total        {total} of weights\n"),
        _ => format!("total        {total}: arena {arena}, weights {weights}\n"),
    }
}

/// Proved bounds of the arena.
fn bounds(report: &Report) -> String {
    let planned = &report.planned;
    let certificates = planned.certificates();
    let mut text = format!("arena        {}; peak at step {}\n", certificates.placement(), planned.peak_step);
    if planned.lower_bound_bytes != planned.arena_bytes {
        let _ = writeln!(text, "             {} live at that step", Bytes(planned.lower_bound_bytes));
    }
    let _ = writeln!(text, "order        {}", certificates.any_order());
    let _ = writeln!(text, "kernels      {}", certificates.any_kernels());
    if let Some(limit) = &planned.limit {
        let (bytes, unlimited) = (Bytes(limit.bytes), Bytes(limit.unlimited_bytes));
        let _ = writeln!(
            text,
            "budget       {bytes}; fastest plan {unlimited}; modelled time of a run x {:.2}",
            limit.time_ratio
        );
    }
    text
}

/// The headline of an imported profile.
fn foreign(report: &Report) -> String {
    let planned = &report.planned;
    let contents = match report.origin {
        Origin::MxnetCsv => "contents of MXNet's pool at one moment",
        _ => "every allocation; the profile has no releases",
    };
    let requested: u64 = planned.buffers.iter().map(|buffer| buffer.bytes).sum();
    let padded: u64 = planned.buffers.iter().map(|buffer| buffer.padded_bytes).sum();
    let mut text = format!("profile      {}: {contents}\n", report.model);
    let _ = writeln!(text, "allocated    {} in {} allocations", Bytes(padded), planned.buffers.len());
    let _ = writeln!(
        text,
        "requested    {}; rounding adds {} ({:.1} %)",
        Bytes(requested),
        Bytes(padded - requested),
        100.0 * (padded - requested) as f64 / requested.max(1) as f64
    );
    for row in &report.unnamed {
        let sign = if row.bytes < 0 { "-" } else { "" };
        let _ = writeln!(text, "unnamed      {sign}{}  {}", Bytes(row.bytes.unsigned_abs()), row.what);
    }
    text
}

/// Whether a model fits in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// Size of the memory.
    pub capacity_bytes: u64,
    /// Required bytes: arena, weights and, if measured, the rest of the process.
    pub need_bytes: u64,
    /// The part of `need_bytes` that is the rest of the process.
    pub residual_bytes: Option<i64>,
}

impl Fit {
    /// Compares a report with a capacity.
    pub fn new(report: &Report, capacity: u64) -> Fit {
        let residual_bytes = report.residual_bytes();
        let need_bytes = report.memory_bytes().saturating_add_signed(residual_bytes.unwrap_or(0));
        Fit { capacity_bytes: capacity, need_bytes, residual_bytes }
    }

    /// Whether the model fits.
    pub fn fits(&self) -> bool {
        self.need_bytes <= self.capacity_bytes
    }

    /// The result as a sentence.
    pub fn text(&self) -> String {
        let rest = match self.residual_bytes {
            Some(bytes) => format!(", of which {} outside the plan", Bytes(bytes.max(0).unsigned_abs())),
            None => "; arena and weights only, --actual adds the rest of the process".into(),
        };
        let answer = if self.fits() { "yes" } else { "NO" };
        let (mut need, mut limit) = (Bytes(self.need_bytes).to_string(), Bytes(self.capacity_bytes).to_string());
        if need == limit {
            (need, limit) = (format!("{} bytes", self.need_bytes), format!("{} bytes", self.capacity_bytes));
        }
        format!("fits         {answer}: needs {need}, limit {limit}{rest}\n")
    }
}
