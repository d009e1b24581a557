//! [`train`] and [`evaluate`] against gradient descent in `f64`, and runs that continue, that end early, and that are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use compiler::{Goal, compile_training};
use data::{Axes, BatchOptions, Batcher, Damaged, DataError, DataField, Dataset, LastBatch, Normalize, Shuffle};
use ir::ops::{Dropout, MatMul, Reduce, ReduceKind};
use ir::{Graph, Trainable, ValueId};
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use prestow_train::checkpoint::{self, Position};
use prestow_train::{
    Checkpoint, Checkpoints, Event, Job, Metric, Outcome, Schedule, Scores, Settings, Tally, TrainError, evaluate,
    inputs_for, train,
};
use runtime::{Host, Session};
use types::{DType, Random, Scope, Shape, Tensor};

/// Samples of a batch.
const BATCH: usize = 2;
/// Features of a sample.
const WIDTH: usize = 3;

/// Records in memory: features, and a number or a class.
struct Records {
    fields: Vec<DataField>,
    features: Vec<[f32; WIDTH]>,
    labels: Vec<f32>,
    /// A record that cannot be read.
    broken: Option<usize>,
}

impl Records {
    fn new(labels: &[f32], label: DType) -> Records {
        let field = |name: &str, dtype: DType, shape: &[usize]| DataField {
            name: name.into(),
            dtype,
            shape: shape.into(),
            axes: Axes::Plain,
        };
        let of_label: &[usize] = if label == DType::F32 { &[1] } else { &[] };
        let feature = |record: usize| [0, 1, 2].map(|ix| ((record * 5 + ix * 3) % 7) as f32 * 0.25 - 0.5);
        Records {
            fields: vec![field("x", DType::F32, &[WIDTH]), field("label", label, of_label)],
            features: (0..labels.len()).map(feature).collect(),
            labels: labels.to_vec(),
            broken: None,
        }
    }
}

impl Dataset for Records {
    fn name(&self) -> &str {
        "records"
    }

    fn fields(&self) -> &[DataField] {
        &self.fields
    }

    fn records(&self) -> usize {
        self.labels.len()
    }

    fn read(&self, record: usize, _augment: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        if self.broken == Some(record) {
            return Err(DataError::Mismatch("record is broken".into()));
        }
        let bytes = self.features[record].map(f32::to_le_bytes).concat();
        out[0].copy_from_slice(&bytes);
        match self.fields[1].dtype {
            DType::F32 => out[1].copy_from_slice(&self.labels[record].to_le_bytes()),
            _ => out[1].copy_from_slice(&(self.labels[record] as i64).to_le_bytes()),
        }
        Ok(())
    }
}

/// A model with its step and its evaluation.
struct Pair {
    step: Session,
    evaluation: Session,
}

/// `x w`, with dropout of `x` at a rate; `columns` results for each row.
fn compiled(columns: usize, rate: f32, loss: &str, optimizer: &str) -> Pair {
    let mut graph = Graph::new("line");
    let mut x = graph.add_input("x", DType::F32, Shape::from([BATCH, WIDTH]));
    let mut key = None;
    if 0.0 < rate {
        let own = graph.add_input("key", DType::I64, Shape::from([2]));
        key = Some(own);
        x = graph.add1(Dropout { rate, stream: 0 }.into(), &[x, own], Scope::new("dropout")).expect("it fits");
    }
    let initial = Tensor::from_fn(Shape::from([WIDTH, columns]), |at| at as f32 * 0.5 - 0.75);
    let w = graph.add_weight("w", initial);
    let y = graph.add1(MatMul::default().into(), &[x, w], Scope::new("line")).expect("it fits");
    graph.set_outputs(vec![("y".into(), y)]);
    compiled_graph(graph, key, loss, optimizer)
}

fn compiled_graph(graph: Graph, key: Option<ValueId>, loss: &str, optimizer: &str) -> Pair {
    let trainable = Trainable { key, ..Trainable::from(graph) };
    let recipe = Recipe {
        loss: Some(loss.parse().expect("it is a loss")),
        optimizer: optimizer.parse().expect("it is an optimizer"),
        ..Recipe::default()
    };
    let model = compiler::source::TrainableModel { trainable, preprocess: None, labels: Vec::new() };
    let compiled = compile_training(model, &recipe, &CpuTarget::new(), Goal::default(), |_, _| {});
    let [step, evaluation] = compiled.expect("the model is trained").map(|compiled| {
        let weights = compiled.constants.to_vec();
        runtime::open(Arc::new(compiled.plan), weights, &Host { threads: 1 }).expect("the plan opens")
    });
    Pair { step, evaluation }
}

fn batcher(session: &Session, records: Records, options: BatchOptions) -> Batcher {
    let records: Arc<dyn Dataset> = Arc::new(records);
    let inputs = inputs_for(session.plan(), &*records, &Normalize::default()).expect("the fields fit");
    Batcher::new(records, inputs, BatchOptions { batch: BATCH, ..options }).expect("there is a batch")
}

fn settings(steps: u64) -> Settings {
    let schedule = Schedule::default();
    Settings { seed: 5, learning_rate: 0.1, schedule, steps, metric: None, check_finite: false }
}

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("prestow-train-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, a file stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A job without checkpoints.
fn job<'a>(step: &'a mut Session, data: Batcher, settings: Settings) -> Job<'a> {
    Job { step, validation: None, data: Arc::new(data), readers: 1, settings, checkpoints: None, resume: None }
}

fn quiet(job: &mut Job) -> Result<Outcome, TrainError> {
    train(job, &mut |_| {})
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() < 1e-5 * (1.0 + want.abs())
}

/// Another order of the records in each epoch.
const SHUFFLED: Shuffle = Shuffle::Seed(3);

const LABELS: [f32; 5] = [1.0, -0.5, 0.25, 2.0, -1.0];

/// Gradient descent on the mean square in `f64`.
struct Line {
    w: [f64; WIDTH],
}

impl Line {
    fn error(&self, records: &Records, record: usize) -> f64 {
        let x = records.features[record];
        let y: f64 = (0..WIDTH).map(|ix| f64::from(x[ix]) * self.w[ix]).sum();
        y - f64::from(records.labels[record])
    }

    fn step(&mut self, records: &Records, batch: [usize; BATCH], rate: f64) -> f64 {
        let errors = batch.map(|record| self.error(records, record));
        for ix in 0..WIDTH {
            let gradient: f64 =
                (0..BATCH).map(|row| 2.0 * errors[row] * f64::from(records.features[batch[row]][ix])).sum();
            self.w[ix] -= rate * gradient / BATCH as f64;
        }
        errors.map(|error| error * error).iter().sum::<f64>() / BATCH as f64
    }

    fn mean_square(&self, records: &Records) -> f64 {
        let squares = (0..records.labels.len()).map(|record| self.error(records, record).powi(2));
        squares.sum::<f64>() / records.labels.len() as f64
    }
}

/// Two epochs and a step: losses, rates, positions, scores and weights.
#[test]
fn run_is_gradient_descent_with_scores_after_each_epoch() {
    let Pair { mut step, mut evaluation } = compiled(1, 0.0, "mse", "sgd");
    let records = || Records::new(&LABELS, DType::F32);
    let data = batcher(&step, records(), BatchOptions::default());
    let partial = BatchOptions { last: LastBatch::Partial, ..BatchOptions::default() };
    let validation = batcher(&evaluation, records(), partial);
    let schedule: Schedule = "linear-warmup:steps=2,end=0".parse().expect("it is a schedule");
    let own = Settings { schedule, metric: Some(Metric::Mse), ..settings(5) };
    let mut all = job(&mut step, data, own);
    all.validation = Some((&mut evaluation, &validation));
    let (mut line, mut sum) = (Line { w: [-0.75, -0.25, 0.25] }, 0.0);
    let (mut steps, mut epochs) = (0u64, 0);
    let length = prestow_train::schedule::Length { steps: 5, steps_per_epoch: 2 };
    let outcome = train(&mut all, &mut |event| match *event {
        Event::Step { position, loss, learning_rate, samples } => {
            let batch = if steps % 2 == 0 { [0, 1] } else { [2, 3] };
            let rate = 0.1f32 * schedule.factor(steps, length) as f32;
            assert!(near(f64::from(learning_rate), f64::from(rate)), "rate {learning_rate} at step {steps}");
            let want = line.step(&records(), batch, f64::from(rate));
            assert!(near(loss, want), "loss {loss} instead of {want} at step {steps}");
            (steps, sum) = (steps + 1, if steps % 2 == 0 { want } else { sum + want });
            assert_eq!((position.step, position.epoch, position.batch), (steps, (steps - 1) / 2, (steps - 1) % 2 + 1));
            assert_eq!(samples, BATCH);
            assert!(near(position.loss.mean().expect("there is a loss"), sum / position.batch as f64));
            assert_eq!(position.loss.count, (position.batch * BATCH as u64) as f64);
            let metric = position.metric.mean().expect("there is a metric");
            assert!(near(metric, sum / position.batch as f64), "{metric} at step {steps}: the metric is the loss");
        }
        Event::Epoch { position, epoch, training, validation } => {
            epochs += 1;
            assert_eq!((epoch, steps), (epochs, 2 * epochs));
            assert_eq!(position, Position { step: steps, epoch, ..Position::default() });
            assert!(near(training.loss, sum / 2.0) && near(training.metric.expect("it has one"), sum / 2.0));
            assert_eq!((training.samples, training.damaged), (4, 0));
            let validation = validation.expect("it is evaluated");
            assert!(near(validation.loss, line.mean_square(&records())), "the weights are those of the step");
            assert!(near(validation.metric.expect("it has one"), line.mean_square(&records())));
            assert_eq!((validation.samples, validation.damaged), (5, 0));
        }
        ref other => panic!("no such event was expected: {other:?}"),
    });
    let Outcome { position, metric, training, validation } = outcome.expect("it trains");
    assert_eq!((position.step, position.epoch, position.batch, epochs), (5, 2, 1, 2));
    let samples = [training, validation].map(|scores| scores.expect("it has both").samples);
    assert_eq!((metric, samples), (Some(Metric::Mse), [4, 5]));
    let w = step.state("w").expect("it is a state").to_f64();
    assert!(w.iter().zip(line.w).all(|(&got, want)| near(got, want)), "{w:?} instead of {:?}", line.w);
}

/// A model that draws random numbers by seed and step, with an optimizer that counts steps.
fn random() -> Pair {
    compiled(1, 0.5, "mse", "adam")
}

fn states(session: &Session) -> Vec<u8> {
    let states = session.all_states().expect("the states are read");
    states.values().flat_map(Tensor::to_le_bytes).collect()
}

#[test]
fn run_continues_from_its_checkpoint_bit_for_bit() {
    let folder = Folder::new("continued");
    let labels: Vec<f32> = (0..7).map(|record| record as f32 * 0.5 - 1.0).collect();
    // Another order in each epoch.
    let shuffled = BatchOptions { shuffle: SHUFFLED, ..BatchOptions::default() };
    let data = |session: &Session| batcher(session, Records::new(&labels, DType::F32), shuffled.clone());
    let run = |seed: u64, resume: Option<Checkpoint>, folder: Option<&Path>| {
        let Pair { mut step, .. } = random();
        let data = data(&step);
        let mut all = job(&mut step, data, Settings { seed, ..settings(8) });
        all.resume = resume;
        all.checkpoints = folder.map(|folder| Checkpoints { folder: folder.into(), every: Some(5) });
        let mut written = Vec::new();
        let outcome = train(&mut all, &mut |event| {
            if let Event::Checkpoint { step, .. } = event {
                written.push(*step);
            }
        });
        (outcome.expect("it trains"), states(&step), written)
    };
    let (whole, want, written) = run(5, None, Some(&folder.0));
    // Each five steps, and the last one.
    assert_eq!(written, [5, 8]);
    let files = checkpoint::list(&folder.0).expect("the folder is listed");
    assert_eq!(files.len(), 2);
    let (_, first) = checkpoint::load(&files[0]).expect("it is read").expect("it is there");
    // In the middle of the second of three epochs of three batches.
    assert_eq!((first.position.step, first.position.epoch, first.position.batch), (5, 1, 2));
    let (again, got, _) = run(5, Some(first.clone()), None);
    assert_eq!(got, want);
    assert_eq!(again.position, whole.position);
    assert_ne!(run(6, None, None).1, want, "the seed of dropout is that of the run");

    let refused = |change: &dyn Fn(&mut Checkpoint), settings: Settings| {
        let Pair { mut step, .. } = random();
        let data = data(&step);
        let mut all = job(&mut step, data, settings);
        let mut checkpoint = first.clone();
        change(&mut checkpoint);
        all.resume = Some(checkpoint);
        quiet(&mut all).expect_err("it is refused").to_string()
    };
    let text = refused(&|_| {}, Settings { seed: 6, ..settings(8) });
    assert!(text.starts_with("the checkpoint has seed `5`, this run has `6`"), "{text}");
    let text = refused(&|_| {}, Settings { learning_rate: 0.2, ..settings(8) });
    assert!(text.starts_with("the checkpoint has lr `0.1`, this run has `0.2`"), "{text}");
    let own: Vec<(&str, &str)> = first.settings.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    let expected = [
        ("batch", "2"),
        ("loss", "mse"),
        ("lr", "0.1"),
        ("model", "line"),
        ("optimizer", "adam"),
        ("records", "7"),
        ("schedule", "constant"),
        ("seed", "5"),
    ];
    assert_eq!(own, expected);
    for (key, text) in expected {
        let other = |checkpoint: &mut Checkpoint| drop(checkpoint.settings.insert(key.into(), "other".into()));
        let refusal = refused(&other, settings(8));
        assert!(refusal.starts_with(&format!("the checkpoint has {key} `other`, this run has `{text}`")), "{refusal}");
    }
    let text = refused(&|checkpoint| drop(checkpoint.settings.remove("batch")), settings(8));
    assert!(text.starts_with("the checkpoint has batch `none`, this run has `2`"), "{text}");
    let text = refused(&|checkpoint| drop(checkpoint.states.remove("w")), settings(8));
    assert!(text.starts_with("the checkpoint has no state `w`"), "{text}");
    let other = |checkpoint: &mut Checkpoint| drop(checkpoint.states.insert("v".into(), Tensor::scalar(1.0f32)));
    assert!(refused(&other, settings(8)).starts_with("the checkpoint has a state `v`"));
    let text = refused(&|checkpoint| checkpoint.position.step = 4, settings(8));
    assert!(text.starts_with("the checkpoint must have 3 steps for each epoch, got step 4 after 1 epochs"), "{text}");
    // A schedule that depends on the length fixes it; others do not.
    let Pair { mut step, .. } = random();
    let longer = data(&step);
    let mut all = job(&mut step, longer, settings(9));
    all.resume = Some(first.clone());
    assert_eq!(quiet(&mut all).expect("a run may go on").position.step, 9);
    let cosine: Schedule = "cosine:end=0".parse().expect("it is a schedule");
    let text = prestow_train::settings_of(step.plan(), &data(&step), &Settings { schedule: cosine, ..settings(9) });
    assert_eq!(text.get("steps").map(String::as_str), Some("9"));
    assert!(!first.settings.contains_key("steps"));
}

#[test]
fn checkpoints_are_written_after_epochs_by_default() {
    let folder = Folder::new("epochs");
    let Pair { mut step, .. } = compiled(1, 0.0, "mse", "sgd");
    let data = batcher(&step, Records::new(&LABELS, DType::F32), BatchOptions::default());
    let mut all = job(&mut step, data, settings(5));
    all.checkpoints = Some(Checkpoints { folder: folder.0.clone(), every: None });
    let mut written = Vec::new();
    let watch = &mut |event: &Event| {
        if let Event::Checkpoint { step, path } = event {
            assert!(path.exists());
            written.push(*step);
        }
    };
    train(&mut all, watch).expect("it trains");
    assert_eq!(written, [2, 4, 5]);
}

#[test]
fn checkpoints_every_zero_steps_are_written_after_each() {
    let folder = Folder::new("zero");
    let Pair { mut step, .. } = compiled(1, 0.0, "mse", "sgd");
    let data = batcher(&step, Records::new(&LABELS, DType::F32), BatchOptions::default());
    let mut all = job(&mut step, data, settings(3));
    all.checkpoints = Some(Checkpoints { folder: folder.0.clone(), every: Some(0) });
    let mut written = Vec::new();
    let watch = &mut |event: &Event| {
        if let Event::Checkpoint { step, .. } = event {
            written.push(*step);
        }
    };
    train(&mut all, watch).expect("it trains");
    assert_eq!(written, [1, 2, 3]);
}

/// Adam corrects its moments by the number of the step, so that a gradient that stays moves a weight by the learning rate in
/// each step.
#[test]
fn optimizer_counts_steps_from_one() {
    let Pair { mut step, .. } = compiled(1, 0.0, "l1", "adam");
    // One batch again and again; the sign of its errors, far from zero, does not change.
    let data = batcher(&step, Records::new(&[1000.0, -1000.0], DType::F32), BatchOptions::default());
    let before = step.state("w").expect("it is a state").to_f64();
    quiet(&mut job(&mut step, data, settings(3))).expect("it trains");
    let after = step.state("w").expect("it is a state").to_f64();
    let moved: Vec<f64> = before.iter().zip(&after).map(|(before, after)| (after - before).abs()).collect();
    assert!(moved.iter().all(|moved| (moved - 0.3).abs() < 1e-4), "{moved:?}");
}

#[test]
fn dropout_differs_from_step_to_step() {
    let Pair { mut step, .. } = compiled(1, 0.5, "mse", "sgd");
    // One batch again and again, with weights that stay.
    let data = batcher(&step, Records::new(&[1.0, -0.5], DType::F32), BatchOptions::default());
    let mut losses = std::collections::BTreeSet::new();
    let mut all = job(&mut step, data, Settings { learning_rate: 0.0, ..settings(12) });
    let watch = &mut |event: &Event| {
        if let Event::Step { loss, .. } = event {
            losses.insert(loss.to_bits());
        }
    };
    train(&mut all, watch).expect("it trains");
    assert!(3 <= losses.len(), "{} different losses", losses.len());
}

/// Weights that stay, so that the scores of training are those of an evaluation of the same batches.
#[test]
fn metric_of_the_settings_is_that_of_training_and_validation() {
    let loss = "softmax_cross_entropy:ignore=-1";
    for (metric, is_accuracy) in [(None, true), (Some(Metric::Perplexity), false)] {
        let Pair { mut step, mut evaluation } = compiled(2, 0.0, loss, "sgd");
        let records = || Records::new(&[0.0, 1.0, -1.0, 0.0, -1.0, 1.0], DType::I64);
        let data = batcher(&step, records(), BatchOptions::default());
        let validation = batcher(&evaluation, records(), BatchOptions::default());
        let mut all = job(&mut step, data, Settings { learning_rate: 0.0, metric, ..settings(3) });
        all.validation = Some((&mut evaluation, &validation));
        let outcome = quiet(&mut all).expect("it trains");
        let [training, validation] = [outcome.training, outcome.validation].map(|scores| scores.expect("it has both"));
        let want = validation.metric.expect("it has one");
        if is_accuracy {
            assert!(near(training.metric.expect("it has one"), want), "{training:?} {validation:?}");
        } else {
            assert_eq!(outcome.metric, metric);
            assert!(near(want, validation.loss.exp()), "{validation:?}");
            assert!(near(training.metric.expect("it has one"), training.loss.exp()), "{training:?}");
        }
    }
}

#[test]
fn damaged_records_are_replaced_and_counted() {
    let Pair { mut step, mut evaluation } = compiled(1, 0.0, "mse", "sgd");
    let records = || Records { broken: Some(2), ..Records::new(&LABELS, DType::F32) };
    let skip = BatchOptions { damaged: Damaged::Skip, ..BatchOptions::default() };
    let data = batcher(&step, records(), skip.clone());
    let mut seen = Vec::new();
    let mut counts = Vec::new();
    let mut all = job(&mut step, data, settings(4));
    train(&mut all, &mut |event| match event {
        Event::Damaged { step, epoch, errors } => seen.push((*step, *epoch, errors.len())),
        Event::Epoch { training, .. } => counts.push(training.damaged),
        _ => {}
    })
    .expect("it trains");
    // Of each epoch the second batch, once.
    assert_eq!(seen, [(2, 1, 1), (4, 2, 1)]);
    assert_eq!(counts, [1, 1]);
    let data = batcher(&evaluation, records(), BatchOptions { last: LastBatch::Partial, ..skip });
    let scores = evaluate(&mut evaluation, &data, None).expect("it is evaluated");
    assert_eq!((scores.samples, scores.damaged), (4, 1));
}

#[test]
fn loss_that_is_not_finite_ends_the_run_with_its_step() {
    for check_finite in [false, true] {
        let Pair { mut step, .. } = compiled(1, 0.0, "mse", "sgd");
        let labels = [1.0, 2.0, f32::INFINITY, 0.0];
        let data = batcher(&step, Records::new(&labels, DType::F32), BatchOptions::default());
        let mut all = job(&mut step, data, Settings { check_finite, ..settings(4) });
        match quiet(&mut all).expect_err("a label is infinite") {
            TrainError::Loss { step: 2, epoch: 1, .. } if !check_finite => {}
            TrainError::NotFinite { step: 2, epoch: 1, .. } if check_finite => {}
            other => panic!("{other}"),
        }
    }
}

/// Five rows of two classes in batches of two: one row is ignored, and the last batch has one row.
#[test]
fn evaluation_counts_rows_that_have_a_label() {
    let Pair { evaluation: mut session, .. } = compiled(2, 0.0, "softmax_cross_entropy:ignore=-1", "sgd");
    let records = Records::new(&[0.0, 1.0, -1.0, 1.0, 0.0], DType::I64);
    let (mut sum, mut right) = (0.0, 0.0);
    for record in [0, 1, 3, 4] {
        let x = records.features[record].map(f64::from);
        let score = |class: usize| (0..WIDTH).map(|ix| x[ix] * ((ix * 2 + class) as f64 * 0.5 - 0.75)).sum::<f64>();
        let (scores, label) = ([score(0), score(1)], records.labels[record] as usize);
        sum += (scores[0].exp() + scores[1].exp()).ln() - scores[label];
        right += if scores[label] >= scores[1 - label] { 1.0 } else { 0.0 };
    }
    let partial = BatchOptions { last: LastBatch::Partial, ..BatchOptions::default() };
    let data = batcher(&session, records, partial);
    let Scores { loss, metric, samples, damaged } = evaluate(&mut session, &data, None).expect("it is evaluated");
    assert!(near(loss, sum / 4.0), "{loss} instead of {}", sum / 4.0);
    assert!(near(metric.expect("it has one"), right / 4.0));
    assert_eq!((samples, damaged), (5, 0));
    let perplexity = evaluate(&mut session, &data, Some(Metric::Perplexity)).expect("it is evaluated").metric;
    assert!(near(perplexity.expect("it has one"), (sum / 4.0).exp()));
    assert_eq!(Tally::default().mean(), None);
}

/// A model whose output is one loss for the whole batch, in two batches of two samples and one of one.
#[test]
fn loss_of_a_whole_batch_counts_by_its_samples() {
    let mut graph = Graph::new("mean");
    let x = graph.add_input("x", DType::F32, Shape::from([BATCH, WIDTH]));
    let w = graph.add_weight("w", Tensor::from_fn(Shape::from([WIDTH, 1]), |at| at as f32 * 0.5 - 0.75));
    let y = graph.add1(MatMul::default().into(), &[x, w], Scope::new("line")).expect("it fits");
    let mean = Reduce { kind: ReduceKind::Mean, axes: [0, 1].into_iter().collect(), keep: false };
    let loss = graph.add1(mean.into(), &[y], Scope::new("mean")).expect("it fits");
    graph.set_outputs(vec![("mean".into(), loss)]);
    let Pair { evaluation: mut session, .. } = compiled_graph(graph, None, "output", "sgd");
    let records = Records::new(&LABELS, DType::F32);
    let of = |record: usize| -> f64 {
        (0..WIDTH).map(|ix| f64::from(records.features[record][ix]) * (ix as f64 * 0.5 - 0.75)).sum()
    };
    // The rest of the last batch is zero.
    let want = (of(0) + of(1) + of(2) + of(3) + of(4) / 2.0) / 5.0;
    let partial = BatchOptions { last: LastBatch::Partial, ..BatchOptions::default() };
    let data = batcher(&session, Records::new(&LABELS, DType::F32), partial);
    let scores = evaluate(&mut session, &data, None).expect("it is evaluated");
    assert!(near(scores.loss, want) && scores.samples == 5, "{scores:?} instead of {want}");
}
