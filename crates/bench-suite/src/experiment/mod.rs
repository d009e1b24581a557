//! Experiments: a grid of benchmarks, each a process whose log has result lines.
//!
//! [`Config`] reads parameters, variables and extensions; [`Config::plan`] makes one [`GridCell`] for each combination;
//! [`Runner`] runs the cells that the [`Journal`] lacks.

mod config;
mod journal;
mod parameter;
mod process;
mod report;
mod run;
mod selection;

pub use config::{Config, ConfigError, GridCell};
pub use journal::{CellOutcome, Journal};
pub use parameter::{PARAMETERS, Parameter, nearest, nearest_of, search};
pub use report::{
    Scaling, TableSelection, comparison, exploration, memory_table, scaling, scaling_parameter, summary, timelines,
};
pub use run::{GridEvent, OpenGpus, Rerun, RunReport, Runner};
pub use selection::ResultSelection;
