//! The loop of a compiled training step.
//!
//! A plan of [`plan::Phase::Training`] is one whole step: forward, backward, update. This crate runs it on batches of the crate
//! `data`, with a learning rate from a [`Schedule`], and needs no compiler:
//!
//! - [`train`] runs steps, evaluates after each epoch and writes [`checkpoint`]s; [`evaluate`] measures a data set.
//! - A [`Checkpoint`] has all states, the position in the data and the settings; a run continues from it bit for bit.
//! - [`Metric`]s compare predictions with labels; [`Log`] writes JSON lines; [`progress`] formats lines for people.
//! - With [`Settings::check_finite`] the first value with a NaN or an infinity is named.
//!
//! It reads no clock: callers pass seconds.
//!
//! ```
//! use prestow_train::schedule::{Length, Schedule};
//!
//! let schedule: Schedule = "linear-warmup:steps=100,end=0".parse().unwrap();
//! let length = Length { steps: 1000, steps_per_epoch: 50 };
//! assert_eq!(schedule.factor(49, length), 0.5);
//! assert_eq!(schedule.factor(550, length), 0.5);
//! ```

pub mod checkpoint;
mod finite;
mod log;
mod metric;
mod ports;
pub mod progress;
mod run;
pub mod schedule;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use finite::NotFinite;
pub use log::Log;
pub use metric::{Metric, Tally};
pub use ports::{inputs_for, is_step, sample_ports, synthetic_fields};
pub use run::{
    Checkpoints, Event, Job, Outcome, Scores, Settings, copy_states, evaluate, metric_of, settings_of, train,
};
pub use schedule::Schedule;

/// Why a run of training ends early.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum TrainError {
    #[error("this executable has no training step; compile the model with --train")]
    NotForTraining,
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Data(#[from] data::DataError),
    #[error(transparent)]
    Run(#[from] runtime::RunError),
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    #[error("cannot write the log: {0}")]
    Log(#[from] files::FileError),
    #[error("step {step} (epoch {epoch}): {}", String::from(.found.clone()))]
    NotFinite { step: u64, epoch: u64, found: NotFinite },
    #[error("step {step} (epoch {epoch}): the loss is {loss}; run again with --check-finite to find the layer")]
    Loss { step: u64, epoch: u64, loss: f64 },
}

impl TrainError {
    /// Whether the input was valid, but the numbers left the range of floats.
    pub fn is_divergence(&self) -> bool {
        matches!(self, TrainError::NotFinite { .. } | TrainError::Loss { .. })
    }
}
