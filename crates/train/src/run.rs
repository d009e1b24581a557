//! [`train`] and [`evaluate`]: the loops.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::{Batcher, DataError, PrefetchedBatch, Prefetcher};
use plan::{Plan, Port};
use runtime::Session;
use types::Tensor;

use crate::checkpoint::{self, Checkpoint, Position};
use crate::finite::{self, NotFinite};
use crate::metric::{Metric, Tally};
use crate::ports::{Ports, tensor};
use crate::schedule::{Length, Schedule};
use crate::{CheckpointError, TrainError};

/// Batches that are read ahead of their use.
const AHEAD: usize = 2;

/// The settings of a run, besides executable and data.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Seeds of the data's order and of dropout.
    pub seed: u64,
    /// The learning rate that the schedule multiplies.
    pub learning_rate: f32,
    /// The schedule.
    pub schedule: Schedule,
    /// The steps of the whole run.
    pub steps: u64,
    /// The measure besides the loss; by default the one that fits prediction and label.
    pub metric: Option<Metric>,
    /// Whether every value is checked for NaN and infinity.
    pub check_finite: bool,
}

/// When and where checkpoints are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// The folder.
    pub folder: PathBuf,
    /// Steps between two checkpoints, with one more at the end; by default one after each epoch.
    pub every: Option<u64>,
}

/// A run of training.
pub struct Job<'a> {
    /// The session of the step, with its first states.
    pub step: &'a mut Session,
    /// The session and data of the evaluation after each epoch.
    pub validation: Option<(&'a mut Session, &'a Batcher)>,
    /// The data.
    pub data: Arc<Batcher>,
    /// Threads that read the data.
    pub readers: usize,
    /// The settings.
    pub settings: Settings,
    /// Checkpoints, if any are written.
    pub checkpoints: Option<Checkpoints>,
    /// The checkpoint that the run continues from.
    pub resume: Option<Checkpoint>,
}

/// An event, for logs and progress.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A step is done.
    Step {
        /// Where the run is, with the sums of the epoch.
        position: Position,
        /// The loss of the step.
        loss: f64,
        /// The learning rate of the step.
        learning_rate: f32,
        /// Samples of the step.
        samples: usize,
    },
    /// Records of the next step could not be read, and others replace them.
    Damaged {
        /// The step, from 1.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// The reasons.
        errors: &'a [DataError],
    },
    /// An epoch is done.
    Epoch {
        /// Where the run is.
        position: Position,
        /// Its number, from 1.
        epoch: u64,
        /// Mean loss and metric of its steps.
        training: Scores,
        /// Those of the validation data.
        validation: Option<Scores>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Its file.
        path: &'a Path,
        /// Steps that are done.
        step: u64,
    },
}

/// Loss and metric of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// The mean loss.
    pub loss: f64,
    /// The metric, if there is one.
    pub metric: Option<f64>,
    /// The number of samples.
    pub samples: u64,
    /// Records that could not be read. An evaluation leaves them out, training replaced them since it started or continued.
    pub damaged: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Where the run ended.
    pub position: Position,
    /// The metric that was used.
    pub metric: Option<Metric>,
    /// Scores of the last epoch that ended.
    pub training: Option<Scores>,
    /// Those of the validation data after it.
    pub validation: Option<Scores>,
}

/// The metric of a plan: the asked one if it fits its ports, else the one that fits.
///
/// # Errors
/// A metric that does not fit.
pub fn metric_of(plan: &Plan, asked: Option<Metric>) -> Result<Option<Metric>, TrainError> {
    Ports::of(plan)?.metric(plan, asked)
}

/// The settings of a run by name, as a checkpoint has them.
pub fn settings_of(plan: &Plan, data: &Batcher, settings: &Settings) -> BTreeMap<String, String> {
    let training = plan.phase.training().cloned().unwrap_or_default();
    let mut texts = BTreeMap::from([
        ("model".to_string(), plan.model.clone()),
        ("loss".to_string(), training.loss),
        ("optimizer".to_string(), training.optimizer),
        ("batch".to_string(), plan.batch.to_string()),
        ("seed".to_string(), settings.seed.to_string()),
        ("lr".to_string(), settings.learning_rate.to_string()),
        ("schedule".to_string(), settings.schedule.to_string()),
        ("records".to_string(), data.dataset().records().to_string()),
    ]);
    if settings.schedule.depends_on_length() {
        texts.insert("steps".to_string(), settings.steps.to_string());
    }
    texts
}

/// Trains: reads batches, runs steps, evaluates after each epoch, writes checkpoints. `watch` sees every event.
///
/// The states of `job.step` are those of `job.resume`, or else stay as they are. The same job gives the same states, bit for
/// bit, also when it continues from a checkpoint that it wrote.
///
/// # Errors
/// Settings or a checkpoint that do not fit; data that cannot be read; a loss or a value that is not finite.
pub fn train(job: &mut Job<'_>, watch: &mut dyn FnMut(&Event<'_>)) -> Result<Outcome, TrainError> {
    let plan = job.step.plan().clone();
    let ports = Ports::of(&plan)?;
    let metric = ports.metric(&plan, job.settings.metric)?;
    let settings = settings_of(&plan, &job.data, &job.settings);
    let mut position = match &job.resume {
        Some(checkpoint) => restore(job.step, &plan, checkpoint, &settings)?,
        None => Position::default(),
    };
    let per_epoch = job.data.batches();
    if job.resume.is_some() && !position.is_possible(per_epoch) {
        let Position { step, epoch, batch, .. } = position;
        return Err(TrainError::Setting(format!(
            "the checkpoint must have {per_epoch} steps for each epoch, got step {step} after {epoch} epochs and {batch} \
             batches; continue from another checkpoint"
        )));
    }
    let length = Length { steps: job.settings.steps, steps_per_epoch: per_epoch };
    let start = data::Position { epoch: position.epoch, batch: position.batch };
    let mut batches = Prefetcher::new(&job.data, start, job.readers, AHEAD)?;
    let mut runner =
        StepRunner { session: &mut *job.step, plan: &plan, ports: &ports, settings: &job.settings, length };
    let mut outcome = Outcome { position, metric, training: None, validation: None };
    let mut damaged = 0;
    while position.step < job.settings.steps {
        let batch = batches.next_batch()?;
        if !batch.fill.damaged.is_empty() {
            damaged += batch.fill.damaged.len() as u64;
            let (step, epoch) = (position.step + 1, position.epoch + 1);
            watch(&Event::Damaged { step, epoch, errors: &batch.fill.damaged });
        }
        let (loss, learning_rate) = runner.step(position.step, &batch)?;
        let samples = batch.fill.count;
        position.loss.add(loss * samples as f64, samples as f64);
        if let (Some(metric), Some(prediction), Some(label)) = (metric, ports.prediction, ports.label) {
            let prediction = runner.session.output(prediction)?;
            let label = tensor(&plan.inputs[ports.samples[label]], &batch.inputs[label]);
            let of_batch = Tally { sum: loss * samples as f64, count: samples as f64 };
            let ignored = ports.training.ignored_label;
            metric.add(&mut position.metric, &prediction, &label, of_batch, samples, ignored);
        }
        drop(batch);
        position.step += 1;
        position.batch += 1;
        watch(&Event::Step { position, loss, learning_rate, samples });
        let ends_epoch = position.batch == per_epoch;
        if ends_epoch {
            let training = scores(position.loss, metric.map(|metric| (metric, position.metric)));
            let training = Scores { damaged: std::mem::take(&mut damaged), ..training };
            let validation = match &mut job.validation {
                Some((session, data)) => {
                    copy_states(runner.session, session)?;
                    Some(evaluate(session, data, job.settings.metric)?)
                }
                None => None,
            };
            let epoch = position.epoch + 1;
            position = Position { step: position.step, epoch, ..Position::default() };
            watch(&Event::Epoch { position, epoch, training, validation });
            (outcome.training, outcome.validation) = (Some(training), validation);
        }
        let is_last = position.step == job.settings.steps;
        if let Some(Checkpoints { folder, every }) = &job.checkpoints {
            let is_due = every.map_or(ends_epoch, |every| position.step.is_multiple_of(every.max(1)));
            if is_due || is_last {
                let states = runner.session.all_states()?;
                let checkpoint = Checkpoint { position, settings: settings.clone(), states };
                let path = checkpoint::save(folder, &checkpoint)?;
                watch(&Event::Checkpoint { path: &path, step: position.step });
            }
        }
    }
    outcome.position = position;
    Ok(outcome)
}

/// Checks that a checkpoint is of this run, and writes its states.
fn restore(
    session: &mut Session,
    plan: &Plan,
    checkpoint: &Checkpoint,
    settings: &BTreeMap<String, String>,
) -> Result<Position, TrainError> {
    for (key, text) in settings {
        let found = checkpoint.settings.get(key).map_or("none", String::as_str);
        if found != text {
            return Err(TrainError::Setting(format!(
                "the checkpoint has {key} `{found}`, this run has `{text}`; a run continues with the settings that it \
                 began with"
            )));
        }
    }
    let names: Vec<&String> = plan.states.iter().map(|state| &state.port.name).collect();
    if let Some(other) = checkpoint.states.keys().find(|name| !names.contains(name)) {
        return Err(TrainError::Setting(format!(
            "the checkpoint has a state `{other}`, which this executable does not have; was it compiled anew?"
        )));
    }
    for name in names {
        let Some(tensor) = checkpoint.states.get(name) else {
            return Err(TrainError::Setting(format!(
                "the checkpoint has no state `{name}`, which this executable has; was it compiled anew?"
            )));
        };
        session.set_state(name, tensor)?;
    }
    Ok(checkpoint.position)
}

/// Copies every state that an evaluation reads from the step that trains it.
///
/// # Errors
/// The device fails.
pub fn copy_states(from: &Session, to: &mut Session) -> Result<(), TrainError> {
    let names: Vec<String> = to.plan().states.iter().map(|state| state.port.name.clone()).collect();
    for name in names {
        to.set_state(&name, &from.state(&name)?)?;
    }
    Ok(())
}

/// Runs steps of a plan.
struct StepRunner<'a> {
    session: &'a mut Session,
    plan: &'a Plan,
    ports: &'a Ports,
    settings: &'a Settings,
    length: Length,
}

impl StepRunner<'_> {
    /// Runs one step; `done` counts those before it. Returns the loss and the learning rate.
    fn step(&mut self, done: u64, batch: &PrefetchedBatch) -> Result<(f64, f32), TrainError> {
        let factor = self.settings.schedule.factor(done, self.length);
        let learning_rate = (f64::from(self.settings.learning_rate) * factor) as f32;
        for (&input, bytes) in self.ports.samples.iter().zip(&batch.inputs) {
            self.session.write_input(input, bytes)?;
        }
        let number = i64::try_from(done + 1).expect("fewer than 2^63 steps");
        let key = [self.settings.seed as i64, number].map(i64::to_le_bytes).concat();
        let scalars = [
            (self.ports.learning_rate, &learning_rate.to_le_bytes()[..]),
            (self.ports.step, &number.to_le_bytes()),
            (self.ports.key, &key),
        ];
        for (input, bytes) in scalars {
            input.map_or(Ok(()), |input| self.session.write_input(input, bytes))?;
        }
        let place = || (done + 1, batch.position.epoch + 1);
        if self.settings.check_finite {
            if let Some(found) = finite::run_checked(self.session, self.plan)? {
                let (step, epoch) = place();
                return Err(TrainError::NotFinite { step, epoch, found });
            }
        } else {
            self.session.run()?;
        }
        let loss = self.session.output(self.ports.loss)?.to_f64()[0];
        if !loss.is_finite() {
            let (step, epoch) = place();
            return Err(TrainError::Loss { step, epoch, loss });
        }
        Ok((loss, learning_rate))
    }
}

/// Runs the evaluation of every sample of a data set with the session's states.
///
/// # Errors
/// Data that cannot be read, or a metric that does not fit.
pub fn evaluate(session: &mut Session, data: &Batcher, asked: Option<Metric>) -> Result<Scores, TrainError> {
    let plan = session.plan().clone();
    let ports = Ports::of(&plan)?;
    let metric = ports.metric(&plan, asked)?;
    let ignored = ports.training.ignored_label;
    let (mut loss, mut measured, mut samples, mut damaged) = (Tally::default(), Tally::default(), 0, 0);
    let mut bytes: Vec<Vec<u8>> = data.batch_bytes().into_iter().map(|size| vec![0; size]).collect();
    for batch in 0..data.batches() {
        let mut slices: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
        let fill = data.fill(data::Position { epoch: 0, batch }, &mut slices)?;
        let count = fill.count;
        damaged += fill.damaged.len() as u64;
        for (&input, bytes) in ports.samples.iter().zip(&bytes) {
            session.write_input(input, bytes)?;
        }
        session.run()?;
        let label = ports.label.map(|label| tensor(&plan.inputs[ports.samples[label]], &bytes[label]));
        let rows = session.output(ports.loss)?;
        let of_batch = row_losses(&rows, &plan.outputs[ports.loss], label.as_ref(), ignored, count);
        loss.add(of_batch.sum, of_batch.count);
        if let (Some(metric), Some(prediction), Some(label)) = (metric, ports.prediction, &label) {
            let prediction = session.output(prediction)?;
            metric.add(&mut measured, &prediction, label, of_batch, count, ignored);
        }
        samples += count as u64;
    }
    Ok(Scores { samples, damaged, ..scores(loss, metric.map(|metric| (metric, measured))) })
}

/// The sum of the losses of the first `count` samples: rows with an ignored label count for nothing.
fn row_losses(rows: &Tensor, port: &Port, label: Option<&Tensor>, ignored: Option<i64>, count: usize) -> Tally {
    let losses = rows.to_f64();
    let Some(&batch) = port.shape.first() else {
        return Tally { sum: losses[0] * count as f64, count: count as f64 };
    };
    let used = losses.len() / batch.max(1) * count;
    let sum = losses[..used].iter().sum();
    let is_counted = |label: &&i64| Some(**label) != ignored;
    let rows = match (ignored, label) {
        (Some(_), Some(label)) if label.elements() == losses.len() => {
            label.to_i64()[..used].iter().filter(is_counted).count()
        }
        _ => used,
    };
    Tally { sum, count: rows as f64 }
}

fn scores(loss: Tally, metric: Option<(Metric, Tally)>) -> Scores {
    Scores {
        loss: loss.mean().unwrap_or(f64::NAN),
        metric: metric.and_then(|(metric, tally)| metric.value(tally)),
        samples: loss.count as u64,
        damaged: 0,
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> TrainError {
        TrainError::Checkpoint(Box::new(error))
    }
}

impl From<NotFinite> for String {
    fn from(found: NotFinite) -> String {
        let kind = if found.is_nan { "a NaN" } else { "an infinity" };
        match found.kernel {
            Some(kernel) => format!("`{}` (kernel {kernel}) has {kind}", found.value),
            None => format!("`{}` has {kind} before the step runs", found.value),
        }
    }
}
