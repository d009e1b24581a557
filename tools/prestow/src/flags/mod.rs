//! Flags that several commands share, and the parsers of their values.
//!
//! A struct per topic: [`ModelFlags`], [`TargetFlags`], [`TrainFlags`], [`TuneFlags`], [`ReportFlags`]. Each is checked as a whole before
//! a command starts to work.

mod model;
mod report;
mod target;
mod train;
mod tune;

pub(crate) use model::{BATCH_MAX, ModelFlags};
pub(crate) use report::{AllReports, DiffReport, ReportFlags, WhatIfReport};
pub(crate) use target::{Gpu, TargetFlags, TargetSelection};
pub(crate) use train::TrainFlags;
pub(crate) use tune::{Tune, TuneFlags};

/// The first name that occurs twice.
fn repeated<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = Vec::new();
    for item in items {
        if seen.contains(&item) {
            return Some(item);
        }
        seen.push(item);
    }
    None
}
