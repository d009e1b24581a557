//! [`WhatIf`]: one model planned for several batches and dtypes.

use std::fmt::Write;

use serde::Serialize;
use types::{Bytes, Proof};

use super::svg::{Amount, Svg};
use super::terminal::bar;
use crate::Report;
use crate::model::{proof_name, proof_text};

/// Plans for comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The model.
    pub model: String,
    /// The target.
    pub target: String,
    /// The capacity that each plan is compared with.
    pub capacity_bytes: Option<u64>,
    /// The plans, by dtype and batch.
    pub variants: Vec<Variant>,
    /// The largest batch that fits, per dtype.
    pub largest: Vec<Largest>,
}

/// The largest batch of one dtype.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Largest {
    /// The storage dtype between kernels.
    pub dtype: String,
    /// The largest batch that fits, if a capacity is given and one fits.
    pub batch: Option<u64>,
    /// Whether the next batch is proved not to fit. Memory grows with the batch.
    pub is_largest: bool,
}

/// One plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Batch size.
    pub batch: u64,
    /// The storage dtype between kernels.
    pub dtype: String,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Largest sum of live buffers.
    pub lower_bound_bytes: u64,
    /// The proof that the arena is minimal; see [`Planned::state`](crate::Planned::state).
    #[serde(serialize_with = "proof_name::serialize")]
    pub state: Option<Proof>,
    /// Best lower bound of the arena.
    pub least_bytes: u64,
    /// Size of the constants.
    pub weights_bytes: u64,
    /// Arena and constants.
    pub total_bytes: u64,
    /// Whether they fit, if a capacity is given.
    pub fits: Option<bool>,
    /// Whether the batch was requested; otherwise it was planned during the search for the largest one.
    pub asked: bool,
}

impl Variant {
    /// The variant of a plan's report.
    pub fn new(report: &Report, dtype: &str, capacity: Option<u64>, asked: bool) -> Variant {
        let planned = &report.planned;
        let total_bytes = report.planned_bytes();
        Variant {
            batch: report.batch,
            dtype: dtype.into(),
            arena_bytes: planned.arena_bytes,
            lower_bound_bytes: planned.lower_bound_bytes,
            state: planned.state,
            least_bytes: planned.least_bytes,
            weights_bytes: planned.weights_bytes,
            total_bytes,
            fits: capacity.map(|capacity| total_bytes <= capacity),
            asked,
        }
    }
}

impl WhatIf {
    /// Whether every requested variant fits.
    pub fn all_fit(&self) -> bool {
        self.variants.iter().all(|variant| !variant.asked || variant.fits != Some(false))
    }

    /// A table.
    pub fn text(&self, width: usize) -> String {
        let mut text = format!("{} for {}\n", self.model, self.target);
        let most = self.variants.iter().map(|variant| variant.total_bytes).max().unwrap_or(0);
        let _ =
            writeln!(text, "{:>7} {:<5} {:>10} {:>10} {:>10}  state", "batch", "dtype", "arena", "weights", "total");
        for variant in &self.variants {
            let size = |bytes: u64| Bytes(bytes).to_string();
            let fits = match variant.fits {
                Some(true) => "fits ",
                Some(false) => "NO   ",
                None => "",
            };
            let line = format!(
                "{:>7} {:<5} {:>10} {:>10} {:>10}  {:<19} {fits}{}",
                variant.batch,
                variant.dtype,
                size(variant.arena_bytes),
                size(variant.weights_bytes),
                size(variant.total_bytes),
                proof_text(variant.state, variant.arena_bytes, variant.least_bytes),
                bar(variant.total_bytes, most, width.saturating_sub(74))
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Some(capacity) = self.capacity_bytes {
            let capacity = Bytes(capacity);
            for Largest { dtype, batch, is_largest } in &self.largest {
                let _ = match (batch, is_largest) {
                    (Some(batch), true) => {
                        writeln!(text, "largest      {dtype}: batch {batch} fits in {capacity}, {} does not", batch + 1)
                    }
                    (Some(batch), false) => {
                        writeln!(text, "largest      {dtype}: batch {batch}, the largest asked for, fits in {capacity}")
                    }
                    (None, _) => writeln!(text, "largest      {dtype}: no batch fits in {capacity}"),
                };
            }
            text.push_str("             arena and weights only, without the rest of the process\n");
        }
        text
    }

    /// One row per plan.
    pub fn csv(&self) -> String {
        let mut text =
            String::from("batch,dtype,arena_bytes,lower_bound_bytes,least_bytes,weights_bytes,total_bytes,fits\n");
        for variant in &self.variants {
            let fits = variant.fits.map_or("", |fits| if fits { "yes" } else { "no" });
            let Variant { batch, dtype, arena_bytes, lower_bound_bytes, .. } = variant;
            let _ = writeln!(
                text,
                "{batch},{dtype},{arena_bytes},{lower_bound_bytes},{},{},{},{fits}",
                variant.least_bytes, variant.weights_bytes, variant.total_bytes
            );
        }
        text
    }

    /// A curve of the total over the batch for each dtype.
    pub fn svg(&self) -> String {
        let (left, top, width, height) = (90.0, 50.0, 640.0, 320.0);
        let mut svg = Svg::new(left + width + 30.0, top + height + 60.0);
        svg.text(20.0, 28.0, "title", &format!("{}: arena and weights over the batch", self.model));
        let most =
            self.variants.iter().map(|variant| variant.total_bytes).chain(self.capacity_bytes).max().unwrap_or(1);
        let widest = self.variants.iter().map(|variant| variant.batch).max().unwrap_or(1).max(1);
        let x = |batch: u64| left + width * batch as f64 / widest as f64;
        let y = |bytes: u64| top + height * (1.0 - bytes as f64 / most.max(1) as f64);
        let points = |Largest { dtype, .. }: &Largest| -> Vec<(f64, f64)> {
            let own = self.variants.iter().filter(|variant| variant.dtype == *dtype);
            own.map(|variant| (x(variant.batch), y(variant.total_bytes))).collect()
        };
        let lines: Vec<Vec<(f64, f64)>> = self.largest.iter().map(points).collect();
        let ends: Vec<f64> = lines.iter().filter_map(|points| points.last()).map(|end| end.1).collect();
        for (ix, (points, Largest { dtype, .. })) in lines.iter().zip(&self.largest).enumerate() {
            svg.line("actual", points);
            if let (Some((x, y)), 1..) = (points.last(), self.largest.len() - 1) {
                // Below its line if another one ends close above.
                let is_close = |(at, end): (usize, &f64)| {
                    let apart = y - end;
                    at != ix && (0.0..26.0).contains(&apart) && (0.0 < apart || at < ix)
                };
                let is_below = ends.iter().enumerate().any(is_close);
                svg.text(x - 8.0, y + if is_below { 18.0 } else { -8.0 }, "small end", dtype);
            }
        }
        for variant in &self.variants {
            let (x, y) = (x(variant.batch), y(variant.total_bytes));
            let title = format!("batch {}, {}: {}", variant.batch, variant.dtype, Bytes(variant.total_bytes));
            let look = if variant.fits == Some(false) { "free" } else { "weight" };
            svg.rect([x - 4.0, y - 4.0, 8.0, 8.0], look, &title, Amount::None);
        }
        let mut labelled = f64::NEG_INFINITY;
        let first = self.largest.first().map(|largest| &largest.dtype);
        for variant in self.variants.iter().filter(|variant| variant.asked && Some(&variant.dtype) == first) {
            if labelled + 26.0 <= x(variant.batch) {
                labelled = x(variant.batch);
                svg.text(labelled, top + height + 16.0, "small mid", &variant.batch.to_string());
            }
        }
        if let Some(capacity) = self.capacity_bytes {
            svg.line("peak", &[(left, y(capacity)), (left + width, y(capacity))]);
            svg.text(left + 6.0, y(capacity) + 14.0, "small", &format!("limit {}", Bytes(capacity)));
        }
        svg.line("axis", &[(left, top), (left, top + height), (left + width, top + height)]);
        for part in 0..=4u64 {
            let bytes = most / 4 * part;
            svg.text(left - 6.0, y(bytes) + 4.0, "small end", &Bytes(bytes).to_string());
        }
        svg.text(left + width / 2.0, top + height + 36.0, "small mid", "batch");
        svg.finish()
    }
}
