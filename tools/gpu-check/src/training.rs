//! Training steps: losses and states compared with this machine's CPU kernels, memory with the plan, steps per second.

use std::fmt::Write;

use compiler::gpu::{Precision, library_paths};
use compiler::source::{Request, load_trainable};
use compiler::{Compiled, Goal, compile_training};
use lower::Target;
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use plan::{Plan, Training};
use runtime::{CudaDevice, Host, RunError, Session, synthetic_inputs};
use types::{Bytes, Tensor};

use crate::arguments::Settings;
use crate::check::{Deadline, Targets};
use crate::networks::{AUDITED_MAX, difference, le_bytes, open, timed};
use crate::output::Output;
use crate::rows::{MemoryRow, TrainingRow, TrainingRun, Verdict};

/// Tolerance of losses and states behind the compared steps, relative to the largest element of each.
const TOLERANCE: f64 = 1e-3;
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
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut host = open(processor, &Host { threads })?;
    let device = CudaDevice { ordinal: settings.device, places: library_paths(&settings.data) };
    let mut session = open(gpu, &device)?;
    let (mut losses, mut cpu_losses) = (Vec::new(), Vec::new());
    for number in 1..=STEPS {
        let inputs = inputs(plan, number);
        cpu_losses.push(loss(&mut host, &inputs).map_err(failed)?);
        losses.push(loss(&mut session, &inputs).map_err(failed)?);
    }
    let vector = |losses: &[f64]| Tensor::vector(losses.to_vec());
    let mut largest = difference(&vector(&losses), &vector(&cpu_losses));
    for port in plan.states.iter().map(|state| &state.port) {
        let (got, want) = (session.state(&port.name).map_err(failed)?, host.state(&port.name).map_err(failed)?);
        largest = largest.max(difference(&got, &want));
    }
    let bytes = le_bytes(&inputs(plan, 1));
    let report = timed(&mut session, &bytes, settings.iters).map_err(failed)?;
    let cpu_ms = timed(&mut host, &bytes, 3).map_err(failed)?.latency_ms.p50;
    let memory = session.device_memory().map_err(failed)?;
    let allocations = session.device_usage().map_err(failed)?.allocations_in_run;
    let arena = plan.arena.size();
    let audit = match arena <= AUDITED_MAX {
        true => Ok(runtime::audit::audit(&mut session, &bytes).map_err(failed)?),
        false => Err(format!("the arena has {arena}, and the limit is {AUDITED_MAX}")),
    };
    let verdict = match audit.as_ref().map(runtime::audit::Audit::is_equal) {
        _ if largest.is_nan() || TOLERANCE < largest => Verdict::Wrong,
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
        losses,
        cpu_losses,
        difference: Some(largest).filter(|difference| difference.is_finite()),
        tolerance: TOLERANCE,
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
