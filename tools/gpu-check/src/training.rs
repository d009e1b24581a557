//! Training steps: losses and states compared with this machine's CPU kernels, memory with the plan, steps per second.
//!
//! A training step is discontinuous: a rounding error switches the choice of a `relu` or of a maximum, and normalization and
//! further steps amplify it. Where it does, two correct devices differ. The *movement* of a value is how much it changes on the CPU
//! if the inputs change by a rounding error, and differences are judged by it. States are compared after the first step, because
//! their movement grows with each; losses after every step.

use std::fmt::Write;

use compiler::gpu::{Precision, library_paths};
use compiler::source::{Request, load_trainable};
use compiler::{Compiled, Goal, compile_training};
use lower::Target;
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use plan::{Plan, Training};
use runtime::{CudaDevice, Host, RunError, Session, synthetic_inputs};
use types::{Bytes, Random, Tensor};

use crate::arguments::Settings;
use crate::check::{Deadline, Targets};
use crate::networks::{difference, le_bytes, not_audited, open, threads, timed};
use crate::output::Output;
use crate::rows::{MemoryRow, TrainingRow, TrainingRun, Verdict};

/// Tolerance of losses and states that do not move, relative to the largest element or to the norm of each.
const TOLERANCE: f64 = 1e-3;
/// Tolerance of others, in movements. The GPU rounds everywhere and not only inputs.
const MOVEMENTS: f64 = 4.0;
/// A state that moves by more than this has nothing but rounding errors, as the gradient of a bias before a normalization, and is
/// not compared.
const MOVEMENT_MAX: f64 = 0.25;
/// The part of states that move by at most the typical movement. A state may have no switched choice in the runs that measure
/// movements and yet one on the GPU.
const TYPICAL: f64 = 0.9;
/// Runs with changed inputs, and the relative change: one step of `f32`.
const CHANGED_RUNS: u64 = 2;
const CHANGE: f32 = 1.0 / (1 << 23) as f32;
/// Steps that are compared.
const STEPS: i64 = 3;
/// The loss and the optimizer. Steps of momentum are proportional to gradients; those of Adam are as large where gradients are
/// rounding errors.
const LOSS: &str = "softmax_cross_entropy";
const OPTIMIZER: &str = "sgd:momentum=0.9,lr=0.01";

/// Makes a row for each network and batch. Returns whether all pass.
pub(crate) fn check(targets: &Targets, deadline: &Deadline, output: &mut Output) -> Result<bool, String> {
    let settings = targets.settings;
    // Failed rows of a resumed report are run again.
    output.report.training.retain(|row| row.verdict != Verdict::Failed);
    let of_batch = |(name, usual): &(String, usize)| {
        let batches = settings.batches.clone().unwrap_or_else(|| vec![*usual]);
        batches.into_iter().map(|batch| (name.clone(), batch)).collect::<Vec<_>>()
    };
    let mut tasks: Vec<(String, usize)> = settings.trained.iter().flat_map(of_batch).collect();
    if !tasks.is_empty() {
        output.show(&format!(
            "{:<28} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}  verdict\n",
            "training step",
            "batch",
            "arena",
            "states",
            "difference",
            "ms",
            "device ms",
            "steps/s",
            "samples/s",
            "cpu ms"
        ));
    }
    for row in &output.report.training {
        output.show(&line(row));
    }
    tasks.retain(|task| !output.report.training.iter().any(|row| (&row.network, row.batch) == (&task.0, task.1)));
    for (ix, (network, batch)) in tasks.iter().enumerate() {
        if deadline.is_over() {
            output.report.remaining += tasks.len() - ix;
            break;
        }
        let none = |verdict, reason| TrainingRow {
            network: network.clone(),
            batch: *batch,
            verdict,
            reason: Some(reason),
            run: None,
        };
        let row = match steps(targets, network, *batch) {
            Err(reason) => none(Verdict::Refused, reason),
            Ok([processor, gpu]) => match run(settings, &processor, &gpu) {
                Ok((verdict, run)) => {
                    TrainingRow { network: network.clone(), batch: *batch, verdict, reason: None, run: Some(run) }
                }
                Err(reason) => none(Verdict::Failed, reason),
            },
        };
        let text = line(&row);
        output.add_training(row, &text)?;
    }
    Ok(output.report.training.iter().all(|row| row.verdict.passes()))
}

fn line(row: &TrainingRow) -> String {
    let TrainingRow { network, batch, verdict, reason, run } = row;
    let mut text = format!("{network:<28} {batch:>5}");
    let Some(run) = run else {
        let reason = reason.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        let _ = writeln!(text, "  {verdict}: {reason}");
        return text;
    };
    let audit = run.not_audited.as_ref().map(|why| format!(", memory not audited: {why}")).unwrap_or_default();
    let _ = writeln!(
        text,
        " {:>10} {:>10} {:>10.1e} {:>10.4} {:>10.4} {:>9.1} {:>9.0} {:>9.3}  {verdict}{audit}",
        Bytes(run.arena_bytes).to_string(),
        Bytes(run.states_bytes).to_string(),
        run.difference.unwrap_or(f64::NAN),
        run.latency_ms.p50,
        run.device_ms.as_ref().map_or(0.0, |device| device.p50),
        run.steps_per_s,
        run.samples_per_s,
        run.cpu_ms,
    );
    text
}

/// The step of a network for the processor and for the GPU.
///
/// # Errors
/// The network cannot be trained, or there is no kernel for a node.
fn steps(targets: &Targets, network: &str, batch: usize) -> Result<[Compiled; 2], String> {
    let data = targets.settings.data.clone();
    let request = Request { model: network.into(), batch: Some(batch), data, ..Request::default() };
    let optimizer = OPTIMIZER.parse().expect("it is an optimizer");
    let recipe = Recipe { loss: Some(LOSS.parse().expect("it is a loss")), optimizer, ..Recipe::default() };
    let compiled = |target: &dyn Target| {
        let model = load_trainable(&request).map_err(|error| error.to_string())?;
        let [step, _] =
            compile_training(model, &recipe, target, Goal::default(), |_, _| {}).map_err(|error| error.to_string())?;
        Ok::<Compiled, String>(step)
    };
    let compiler = targets.compiler(Precision::F32)?;
    let mut gpu = compiled(&compiler.target)?;
    compiler.finish(&mut gpu.plan)?;
    Ok([compiled(&CpuTarget::new())?, gpu])
}

/// Runs a step on both devices, and times and audits it on the GPU.
fn run(settings: &Settings, processor: &Compiled, gpu: &Compiled) -> Result<(Verdict, TrainingRun), String> {
    let failed = |error: RunError| error.to_string();
    let plan = &gpu.plan;
    let mut host = open(processor, &Host { threads: threads() })?;
    let device = CudaDevice { ordinal: settings.device, places: library_paths(&settings.data) };
    let mut session = open(gpu, &device)?;
    let want = Steps::of(&mut host, 0).map_err(failed)?;
    let got = Steps::of(&mut session, 0).map_err(failed)?;
    let mut movements = Vec::new();
    for seed in 1..=CHANGED_RUNS {
        let mut changed = open(processor, &Host { threads: threads() })?;
        movements.push(Steps::of(&mut changed, seed).map_err(failed)?.differences(&want));
    }
    let judged = judge(&got.differences(&want), &movements);
    let largest = judged.difference;
    let bytes = le_bytes(&inputs(plan, 1));
    let report = timed(&mut session, &bytes, settings.iters).map_err(failed)?;
    let cpu_ms = timed(&mut host, &bytes, 3).map_err(failed)?.latency_ms.p50;
    let memory = session.device_memory().map_err(failed)?;
    let allocations = session.device_usage().map_err(failed)?.allocations_in_run;
    let arena = plan.arena.size();
    let audit = match not_audited(settings, arena) {
        None => Ok(runtime::audit::audit(&mut session, &bytes).map_err(failed)?),
        Some(why) => Err(why),
    };
    let verdict = match audit.as_ref().map(runtime::audit::Audit::is_equal) {
        _ if largest.is_nan() || judged.tolerance < largest => Verdict::Wrong,
        Ok(false) => Verdict::OtherMemory,
        _ if allocations.is_some_and(|count| 0 < count) => Verdict::Allocates,
        Ok(true) => Verdict::Equal,
        Err(_) => Verdict::Right,
    };
    let run = TrainingRun {
        optimizer: OPTIMIZER.into(),
        arena_bytes: arena.0,
        states_bytes: plan.states.iter().map(|state| state.port.operand.size.0).sum(),
        block_bytes: (arena.align_up(plan.arena.alignment) + plan.constants_size).0,
        device_memory: memory.iter().map(MemoryRow::from).collect(),
        allocations_in_run: allocations,
        losses: got.losses,
        cpu_losses: want.losses,
        difference: Some(largest).filter(|difference| difference.is_finite()),
        tolerance: judged.tolerance,
        of: Some(judged.name),
        not_compared: judged.not_compared,
        steps_per_s: 1e3 / report.latency_ms.p50.max(1e-9),
        samples_per_s: report.throughput_per_s,
        latency_ms: report.latency_ms,
        device_ms: report.device_ms,
        cpu_ms,
        audited: audit.is_ok(),
        not_audited: audit.err(),
    };
    Ok((verdict, run))
}

/// Losses of [`STEPS`] steps, and all states after the first.
struct Steps {
    losses: Vec<f64>,
    states: Vec<(String, Tensor)>,
}

/// Name, and the difference relative to the largest element and to the norm.
type Difference = (String, [f64; 2]);

impl Steps {
    /// Runs the steps on a fresh session. A seed above 0 changes the inputs.
    fn of(session: &mut Session, seed: u64) -> Result<Steps, RunError> {
        let mut steps = Steps { losses: Vec::new(), states: Vec::new() };
        for number in 1..=STEPS {
            let mut inputs = inputs(session.plan(), number);
            if 0 < seed {
                inputs = inputs.iter().enumerate().map(|(ix, tensor)| changed(tensor, seed, ix)).collect();
            }
            steps.losses.push(loss(session, &inputs)?);
            if number == 1 {
                let names: Vec<String> = session.plan().states.iter().map(|state| state.port.name.clone()).collect();
                for name in names {
                    let state = session.state(&name)?;
                    steps.states.push((name, state));
                }
            }
        }
        Ok(steps)
    }

    /// The differences of the losses, then of each state.
    fn differences(&self, want: &Steps) -> Vec<Difference> {
        let vector = |steps: &Steps| Tensor::vector(steps.losses.clone());
        let losses = difference(&vector(self), &vector(want));
        let state = |((name, got), (_, want)): (&(String, Tensor), &(String, Tensor))| {
            (name.clone(), [difference(got, want), norm_of_difference(got, want)])
        };
        let states = self.states.iter().zip(&want.states).map(state);
        std::iter::once(("losses".to_string(), [losses; 2])).chain(states).collect()
    }
}

/// A tensor of floats with each element changed by at most [`CHANGE`].
fn changed(tensor: &Tensor, seed: u64, ix: usize) -> Tensor {
    if !tensor.dtype().is_float() {
        return tensor.clone();
    }
    let (items, mut random) = (tensor.to_f64(), Random::for_name(seed, &ix.to_string()));
    let item = |at: usize| items[at] as f32 * (1.0 + random.uniform(-1.0, 1.0) * CHANGE * 2.0);
    Tensor::from_fn(tensor.shape().clone(), item).cast(tensor.dtype())
}

/// The norm of the difference, relative to the norm.
fn norm_of_difference(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let norm = |items: &mut dyn Iterator<Item = f64>| items.map(|item| item * item).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&want).map(|(got, want)| got - want)) / norm(&mut want.iter().copied()).max(1e-9)
}

/// The difference that comes closest to its tolerance, or exceeds it by most.
struct Judged {
    name: String,
    difference: f64,
    tolerance: f64,
    /// States that have nothing but rounding errors.
    not_compared: usize,
}

/// Judges differences by those of runs with changed inputs.
fn judge(got: &[Difference], movements: &[Vec<Difference>]) -> Judged {
    let movement = |ix: usize, of: usize| movements.iter().map(|run| run[ix].1[of]).fold(0.0, f64::max);
    let typical = |of: usize| {
        let mut all: Vec<f64> = (1..got.len()).map(|ix| movement(ix, of)).collect();
        all.sort_by(f64::total_cmp);
        all.get((TYPICAL * all.len() as f64) as usize).copied().unwrap_or(0.0)
    };
    let typical = [typical(0), typical(1)];
    let mut judged = Judged { name: String::new(), difference: 0.0, tolerance: TOLERANCE, not_compared: 0 };
    for (ix, (name, differences)) in got.iter().enumerate() {
        if MOVEMENT_MAX < movement(ix, 0).max(movement(ix, 1)) {
            judged.not_compared += 1;
            continue;
        }
        for (of, &difference) in differences.iter().enumerate() {
            let own = movement(ix, of);
            // The losses are one value, and have no typical movement.
            let moved = if ix == 0 { own } else { own.max(typical[of].min(MOVEMENT_MAX)) };
            let tolerance = TOLERANCE.max(MOVEMENTS * moved);
            if judged.difference.is_nan() {
                return judged;
            }
            if difference.is_nan() || judged.difference / judged.tolerance < difference / tolerance {
                judged = Judged { name: name.clone(), difference, tolerance, not_compared: judged.not_compared };
            }
        }
    }
    judged
}

/// The inputs of a step.
fn inputs(plan: &Plan, number: i64) -> Vec<Tensor> {
    let mut inputs = synthetic_inputs(plan, number as u64);
    for (port, tensor) in plan.inputs.iter().zip(&mut inputs) {
        if port.name == Training::STEP {
            *tensor = Tensor::scalar(number);
        }
    }
    inputs
}

/// The loss of the next step.
fn loss(session: &mut Session, inputs: &[Tensor]) -> Result<f64, RunError> {
    let outputs = session.run_tensors(inputs)?;
    let ix = session.plan().outputs.iter().position(|port| port.name == Training::LOSS);
    Ok(outputs[ix.expect("a checked plan has the output")].to_f64()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(numbers: &[f64]) -> Vec<Difference> {
        let name = |ix: usize| if ix == 0 { "losses".to_string() } else { format!("state {ix}") };
        numbers.iter().enumerate().map(|(ix, &number)| (name(ix), [number; 2])).collect()
    }

    #[test]
    fn differences_are_judged_by_movements() {
        let judged = |got: &[f64], moved: &[f64]| {
            let Judged { name, difference, tolerance, not_compared } = judge(&rows(got), &[rows(moved)]);
            (name, difference, tolerance, not_compared)
        };
        // Nothing moves, so the tolerance is that of rounding.
        let still = [0.0; 12];
        let mut got = still;
        got[3] = 2e-3;
        assert_eq!(judged(&got, &still), ("state 3".into(), 2e-3, TOLERANCE, 0));
        // The state moves by itself, and by itself alone.
        let mut moved = still;
        moved[3] = 1e-2;
        assert_eq!(judged(&got, &moved), ("state 3".into(), 2e-3, 4e-2, 0));
        got[4] = 2e-3;
        assert_eq!(judged(&got, &moved).0, "state 4");
        // The losses are judged by their own movement.
        let mut all = [1e-2; 12];
        all[0] = 0.0;
        assert_eq!(judged(&[2e-3; 12], &all), ("losses".into(), 2e-3, TOLERANCE, 0));
        // Rounding errors alone are not compared, but a NaN is found.
        all[5] = 1.5;
        let mut got = still;
        got[5] = 3.0;
        assert_eq!(judged(&got, &all).3, 1);
        got[6] = f64::NAN;
        assert!(judged(&got, &all).1.is_nan());
    }

    #[test]
    fn norms_are_relative() {
        let [want, got] = [[3.0f32, 4.0], [3.0, 3.0]].map(|items| Tensor::vector(items.to_vec()));
        assert!((norm_of_difference(&got, &want) - 0.2).abs() < 1e-9);
        let changed = changed(&want, 1, 0).to_f64();
        assert!(changed.iter().zip(want.to_f64()).all(|(a, b)| (a - b).abs() <= 3e-7 * b.abs()), "{changed:?}");
    }
}
