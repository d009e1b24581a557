//! `EXE train`, `evaluate` and `weights`: a compiled training step at work.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::{BatchOptions, Batcher, DataSpec, Dataset, ImageTarget, LastBatch, OpenOptions, Shuffle, Split};
use plan::{Phase, Plan};
use runtime::{ImageFile, Session};
use serde_json::json;
use train::progress::{self, Pace};
use train::{
    Checkpoints, Event, Job, Log, Metric, Outcome, Settings, TrainError, checkpoint, evaluate, inputs_for, metric_of,
    sample_ports, synthetic_fields,
};
use types::Tensor;
use weights::TensorForm;

use crate::arguments::{Common, Duration, Evaluate, ExportWeights, Train};
use crate::commands::{Answer, check_weights, clock, open_image, open_plan, print_json};
use crate::say;

/// The step and the evaluation of an executable that trains.
fn plans(image: &ImageFile) -> Result<(Arc<Plan>, Arc<Plan>), String> {
    match &image.plans[..] {
        [step, evaluation] if train::is_step(step) => Ok((step.clone(), evaluation.clone())),
        _ => Err("this executable has no training step; compile the model with --train".into()),
    }
}

/// Opens a data set for the inputs of a plan.
fn open_data(spec: &DataSpec, plan: &Plan, split: Split) -> Result<Arc<dyn Dataset>, TrainError> {
    let model_input = plan.inputs.iter().find(|port| {
        let is_label = plan.phase.training().is_some_and(|training| training.labels.contains(&port.name));
        plan::Training::is_of_samples(&port.name) && !is_label
    });
    let image = model_input.and_then(|port| ImageTarget::of_sample(port.shape.get(1..)?));
    let inputs = sample_ports(plan)?.into_iter().map(|port| plan.inputs[port].name.clone()).collect();
    let store = std::env::var_os("PRESTOW_STORE").map(PathBuf::from);
    let options = OpenOptions { split, image, synthetic: synthetic_fields(plan)?, inputs, store };
    Ok(Arc::from(spec.open(&options)?))
}

/// The batches of a data set for the inputs of a plan.
fn batches(spec: &DataSpec, plan: &Plan, split: Split, shuffle: Option<u64>) -> Result<Batcher, TrainError> {
    let dataset = open_data(spec, plan, split)?;
    let inputs = inputs_for(plan, &*dataset, &spec.normalize())?;
    let is_training = shuffle.is_some();
    let options = BatchOptions {
        batch: plan.batch as usize,
        shuffle: shuffle.map_or(Shuffle::None, Shuffle::Seed),
        last: if is_training { LastBatch::Drop } else { LastBatch::Partial },
        augment: shuffle,
        damaged: spec.damaged(),
        ..BatchOptions::default()
    };
    Ok(Batcher::new(dataset, inputs, options)?)
}

/// `EXE train`. The answer is no if the loss or a checked value is not finite.
pub(crate) fn train(asked: &Train) -> Result<Answer, String> {
    let image = open_image()?;
    let (step, evaluation) = plans(&image)?;
    check_weights(&image)?;
    match run(asked, &image, step, evaluation) {
        Ok(()) => Ok(Answer::Yes),
        Err(TrainError::Setting(text)) => Err(text),
        Err(error) if error.is_divergence() => {
            say::error(&error.to_string());
            Ok(Answer::No)
        }
        Err(error) => Err(error.to_string()),
    }
}

fn run(asked: &Train, image: &ImageFile, step: Arc<Plan>, evaluation: Arc<Plan>) -> Result<(), TrainError> {
    let other = TrainError::Setting;
    let recipe = step.phase.training().cloned().unwrap_or_default();
    let resume = match &asked.resume {
        None => None,
        Some(path) => {
            let found = checkpoint::load(path)?;
            if found.is_none() {
                say::note(&format!("`{}` has no checkpoint: the run starts from the beginning", path.display()));
            }
            found.map(|(_, checkpoint)| checkpoint)
        }
    };
    // A run continues with the settings that it began with, unless others are given, which are compared.
    let kept = |key: &str| resume.as_ref().and_then(|checkpoint| checkpoint.settings.get(key));
    let seed = asked.seed.or_else(|| kept("seed")?.parse().ok()).unwrap_or(1);
    let learning_rate = asked.learning_rate.or_else(|| kept("lr")?.parse().ok()).unwrap_or(recipe.learning_rate);
    let schedule = asked.schedule.or_else(|| kept("schedule")?.parse().ok()).unwrap_or_default();

    let data = Arc::new(batches(&asked.data, &step, Split::Train, Some(seed))?);
    let steps = match asked.duration {
        Duration::Epochs(epochs) => epochs * data.batches(),
        Duration::Steps(steps) => steps,
    };
    let settings =
        Settings { seed, learning_rate, schedule, steps, metric: asked.metric, check_finite: asked.check_finite };
    let metric = metric_of(&step, asked.metric)?;
    let validation = asked.validate.as_ref().map(|spec| batches(spec, &evaluation, Split::Test, None)).transpose()?;
    let mut session = open_plan(image, step.clone(), &asked.common).map_err(other)?;
    let mut evaluating = validation.map(|data| Ok((open_plan(image, evaluation, &asked.common)?, data)));
    let mut evaluating = evaluating.take().transpose().map_err(other)?;
    let first = resume.as_ref().map_or(0, |checkpoint| checkpoint.position.step);
    let mut log = asked.log.as_deref().map(|path| Log::open(path, first)).transpose()?;
    let folder = asked.checkpoint.clone();
    let mut job = Job {
        step: &mut session,
        validation: evaluating.as_mut().map(|(session, data)| (session, &*data)),
        readers: readers(&data, &asked.common),
        data: data.clone(),
        settings,
        checkpoints: folder.map(|folder| Checkpoints { folder, every: asked.every }),
        resume,
    };
    let mut pace = Pace { steps, steps_per_epoch: data.batches(), batch: data.batch() as u64, ..Pace::default() };
    let started = clock();
    let mut lines = Lines::new(asked.common.json);
    let mut log_error = None;
    let outcome = train::train(&mut job, &mut |event| {
        pace.seconds = clock() - started;
        if let Event::Step { position, .. } = event {
            pace.done = position.step - first;
        }
        lines.show(event, &pace, metric);
        let written = log.as_mut().map_or(Ok(()), |log| log.write(event, metric, pace.seconds));
        log_error = log_error.take().or(written.err());
    });
    lines.clear();
    let outcome = outcome?;
    pace.seconds = clock() - started;
    match log_error {
        Some(error) => Err(error),
        None => {
            report(&outcome, &pace, asked.common.json);
            Ok(())
        }
    }
}

/// Threads that read data: one, but more where images are decoded.
fn readers(data: &Batcher, common: &Common) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if data.dataset().scratch_bytes() == 0 { 1 } else { common.threads.unwrap_or(processors) }
}

fn report(outcome: &Outcome, pace: &Pace, as_json: bool) {
    if as_json {
        print_json(&progress::outcome_json(outcome, pace));
    } else {
        say::out(&format!(
            "{} steps in {:.1} s, {:.0} samples/s\n",
            outcome.position.step,
            pace.seconds,
            pace.samples_per_second()
        ));
    }
}

/// Progress: one line that changes on a terminal; a line per epoch elsewhere.
struct Lines {
    /// Standard error is a terminal, which shows steps.
    is_terminal: bool,
    /// The result goes to standard output as JSON; lines go to standard error.
    is_json: bool,
    shown: f64,
    /// Whether the terminal shows a line that is not final.
    is_open: bool,
    has_damage: bool,
}

impl Lines {
    /// The shortest time between two changes of the line, in seconds.
    const PAUSE: f64 = 0.1;

    fn new(is_json: bool) -> Lines {
        Lines {
            is_terminal: std::io::stderr().is_terminal(),
            is_json,
            shown: f64::NEG_INFINITY,
            is_open: false,
            has_damage: false,
        }
    }

    fn show(&mut self, event: &Event<'_>, pace: &Pace, metric: Option<Metric>) {
        match event {
            Event::Step { position, .. } => {
                if self.is_terminal && self.shown + Lines::PAUSE <= pace.seconds {
                    self.shown = pace.seconds;
                    self.is_open = true;
                    // A carriage return, and "erase to the end of the line".
                    let line = progress::step_line(pace, position, metric);
                    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
                }
            }
            Event::Epoch { epoch, training, validation, .. } => {
                self.clear();
                let line = progress::epoch_line(pace, *epoch, training, validation.as_ref(), metric) + "\n";
                if self.is_json { say::progress(&line) } else { say::out(&line) }
            }
            Event::Damaged { errors, .. } => {
                // The log has all of them.
                if std::mem::replace(&mut self.has_damage, true) {
                    return;
                }
                self.clear();
                say::note(&format!("{}; records that cannot be read are skipped", errors[0]));
            }
            Event::Checkpoint { .. } => {}
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

/// `EXE evaluate`: loss and metric of a data set, with the weights of a checkpoint or those of the executable.
pub(crate) fn measure(asked: &Evaluate) -> Result<Answer, String> {
    let image = open_image()?;
    let (_, evaluation) = plans(&image)?;
    check_weights(&image)?;
    let outcome = || -> Result<(), TrainError> {
        let data = batches(&asked.data, &evaluation, Split::Test, None)?;
        let metric = metric_of(&evaluation, asked.metric)?;
        let mut session = open_plan(&image, evaluation.clone(), &asked.common).map_err(TrainError::Setting)?;
        if let Some(path) = &asked.checkpoint {
            let states = states_of(path)?;
            write_states(&mut session, &states)?;
        }
        let scores = evaluate(&mut session, &data, asked.metric)?;
        if asked.common.json {
            print_json(&progress::evaluation_json(&scores, metric));
        } else {
            say::out(&format!("{} of {} samples\n", progress::scores_text(&scores, metric), scores.samples));
        }
        Ok(())
    };
    outcome().map(|()| Answer::Yes).map_err(|error| error.to_string())
}

/// The states of a checkpoint.
fn states_of(path: &Path) -> Result<BTreeMap<String, Tensor>, TrainError> {
    let found = checkpoint::load(path)?;
    let missing = || TrainError::Setting(format!("`{}` has no checkpoint", path.display()));
    found.map(|(_, checkpoint)| checkpoint.states).ok_or_else(missing)
}

/// Writes the states that a plan has.
fn write_states(session: &mut Session, states: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
    let names: Vec<String> = session.plan().states.iter().map(|state| state.port.name.clone()).collect();
    for name in names {
        let missing = || TrainError::Setting(format!("the checkpoint has no state `{name}`; is it of another model?"));
        session.set_state(&name, states.get(&name).ok_or_else(missing)?)?;
    }
    Ok(())
}

/// `EXE weights`: trained weights and running statistics, under the names that `compile --weights` reads.
pub(crate) fn weights(asked: &ExportWeights) -> Result<Answer, String> {
    let image = open_image()?;
    let (_, evaluation) = plans(&image)?;
    check_weights(&image)?;
    let path = asked.output.display().to_string();
    let form =
        TensorForm::of(&path).ok_or_else(|| format!("-o must end in .safetensors, .npz or .params, got `{path}`"))?;
    let mut session = open_plan(&image, evaluation.clone(), &asked.common)?;
    if let Some(path) = &asked.checkpoint {
        let states = states_of(path).map_err(|error| error.to_string())?;
        write_states(&mut session, &states).map_err(|error| error.to_string())?;
    }
    let mut tensors = session.all_states().map_err(|error| error.to_string())?;
    let Phase::Evaluation(training) = &evaluation.phase else { unreachable!("`plans` returned an evaluation") };
    for name in &training.transposed {
        if let Some(tensor) = tensors.get_mut(name) {
            *tensor = transposed(tensor);
        }
    }
    let bytes = weights::write(form, &tensors)?;
    files::write(&asked.output, &bytes).map_err(|error| error.to_string())?;
    let count = tensors.values().map(Tensor::elements).sum::<usize>();
    if asked.common.json {
        print_json(&json!({ "output": asked.output, "tensors": tensors.len(), "elements": count }));
    } else {
        say::out(&format!("wrote {} tensors with {count} elements to {path}\n", tensors.len()));
    }
    Ok(Answer::Yes)
}

/// A matrix with rows and columns exchanged.
fn transposed(matrix: &Tensor) -> Tensor {
    let (rows, columns) = (matrix.shape()[0], matrix.shape()[1]);
    let items = matrix.as_slice::<f32>().expect("trained weights are f32");
    let shape = types::Shape::from([columns, rows]);
    Tensor::from_fn(shape, |at| items[at % rows * columns + at / rows])
}
