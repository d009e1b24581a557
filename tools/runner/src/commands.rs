//! The commands of an executable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use plan::{Phase, Plan};
use report::{BenchReport, Description, PLANNED_MAPPINGS, Peaks, PortReport, Report, StepTime, StepsReport, View};
use runtime::{
    CudaDevice, Device, FlopsProbe, Host, ImageFile, LibraryPaths, Session, WeightSource, audit, heap, process,
};
use serde_json::json;
use types::Tensor;
use weights::npy;

use crate::arguments::{Command, Common, Limit, Rows, Run};
use crate::weights::{Attachment, Loaded};
use crate::{bandwidth, inputs, memory, say, train};

/// The answer of a command, which becomes the exit code.
pub(crate) enum Answer {
    Yes,
    No,
}

/// Runs a command.
pub(crate) fn execute(command: Command) -> Result<Answer, String> {
    match command {
        Command::Help(text) => say::out(&text),
        Command::Version => say::out(&format!("prestow runner {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Describe(common) => describe(&common)?,
        Command::Summary(common) => return summary(&common),
        Command::Run(run) => self::run(&run)?,
        Command::Bench { run, warmup, iters } => bench(&run, warmup, iters)?,
        Command::Profile { run, warmup, iters, rows, trace } => steps(&run, warmup, iters, rows, trace.as_deref())?,
        Command::Memory(request) => return memory::memory(&request),
        Command::Train(asked) => return train::train(&asked),
        Command::Evaluate(asked) => return train::measure(&asked),
        Command::Weights(asked) => return train::weights(&asked),
    }
    Ok(Answer::Yes)
}

/// The executable with its plans. Its weights are not read.
pub(crate) fn open_image() -> Result<ImageFile, String> {
    ImageFile::own().map_err(|error| error.to_string())
}

/// Checks the weights in the executable's own file, which must precede their use.
pub(crate) fn check_weights(image: &ImageFile) -> Result<(), String> {
    image.check_constants().map_err(|error| error.to_string())
}

pub(crate) fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find this executable's own file: {error}"))
}

/// The plan for the given batch, by default the first.
pub(crate) fn chosen(image: &ImageFile, common: &Common) -> Result<Arc<Plan>, String> {
    let Some(batch) = common.batch else { return Ok(image.plans[0].clone()) };
    let found = image.plans.iter().find(|plan| plan.batch == batch);
    found.cloned().ok_or_else(|| {
        let batches: Vec<String> = image.plans.iter().map(|plan| plan.batch.to_string()).collect();
        format!("no plan is for batch {batch}; the batches of this executable are {}", batches.join(", "))
    })
}

pub(crate) fn open_session(loaded: &Loaded, common: &Common) -> Result<Session, String> {
    open_with(&loaded.image, common, loaded.source.clone())
}

fn open_with(image: &ImageFile, common: &Common, weights: WeightSource) -> Result<Session, String> {
    let plan = chosen(image, common)?;
    if plan.phase != Phase::Inference {
        return open_plans(image, vec![plan], common, weights);
    }
    let mut session = open_plans(image, image.plans.clone(), common, weights)?;
    session.select(plan.batch);
    Ok(session)
}

/// Opens one plan with the weights in the executable's own file.
pub(crate) fn open_plan(image: &ImageFile, plan: Arc<Plan>, common: &Common) -> Result<Session, String> {
    open_plans(image, vec![plan], common, image.into())
}

fn open_plans(
    image: &ImageFile,
    plans: Vec<Arc<Plan>>,
    common: &Common,
    weights: WeightSource,
) -> Result<Session, String> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let host = Host { threads: common.threads.unwrap_or(processors) };
    let is_for_gpu = image.plans.iter().any(|plan| plan.target.starts_with("cuda:"));
    // Libraries are searched for only if the plan needs them: see SECURITY.md.
    let gpu = is_for_gpu.then(|| {
        let places = LibraryPaths::of(|name| std::env::var_os(name));
        CudaDevice { ordinal: common.device.unwrap_or(0), places }
    });
    let device: &dyn Device = match &gpu {
        Some(gpu) => gpu,
        None => &host,
    };
    let session = runtime::open_all(plans, weights, device).map_err(|error| error.to_string())?;
    if let Some(remark) = session.remark() {
        say::note(remark);
    }
    Ok(session)
}

/// The description of the chosen plan, with the batches of all plans.
fn description(image: &ImageFile, common: &Common) -> Result<Description, String> {
    let mut description = Description::new(&*chosen(image, common)?);
    description.batches = image.plans.iter().map(|plan| plan.batch).collect();
    description.arena_bytes = image.plans.iter().map(|plan| plan.arena.size().0).max().unwrap_or_default();
    Ok(description)
}

fn describe(common: &Common) -> Result<(), String> {
    let description = description(&open_image()?, common)?;
    match common.json {
        true => print_json(&json!(description)),
        false => say::out(&format!("{}{}", description.text(), description.proof_text())),
    }
    Ok(())
}

fn summary(common: &Common) -> Result<Answer, String> {
    let loaded = Loaded::new(common)?;
    let mut session = open_session(&loaded, common)?;
    let tensors = runtime::synthetic_inputs(session.plan(), 1);
    let seconds = timed_run(&mut session, &to_bytes(&tensors))?;
    let description = description(&loaded.image, common)?;
    let report = measure(&loaded.image, &mut session, &tensors)?;
    if common.json {
        print_json(&json!({ "describe": description, "latency_ms": seconds * 1e3, "memory": report }));
    } else {
        say::out(&description.text());
        say::out(&format!("one run      {:.3} ms (the first) on {}\n", seconds * 1e3, session.device()));
        say::out(&report.text(View::Headline, &report::ViewOptions::default()));
        say::out("more         run --help; bench, profile, memory and describe, each with --json\n");
    }
    Ok(if report.agrees() { Answer::Yes } else { Answer::No })
}

fn run(run: &Run) -> Result<(), String> {
    let mut attachment = Attachment::new(&run.common, run.weights_from)?;
    let plan = chosen(&attachment.image, &run.common)?;
    if plan.phase != Phase::Inference {
        return Err("this executable trains: use train and evaluate, then compile the model with its weights".into());
    }
    attachment.check_input(&plan)?;
    let tensors = inputs::tensors(&plan, run, attachment.settings.mean)?;
    check_outputs(&plan, run)?;
    let weights = attachment.weights()?;
    let plan = &*chosen(&attachment.image, &run.common)?;
    let recorder = &attachment.recorder;
    let open = || open_with(&attachment.image, &run.common, weights);
    let mut session = recorder.span("create_predictor", "prediction", open)?;
    let (seconds, outputs) = recorder.span("predict", "prediction", || {
        let bytes = recorder.span("set_input", "prediction", || to_bytes(&tensors));
        let seconds = recorder.span("forward", "prediction", || timed_run(&mut session, &bytes))?;
        let outputs = recorder.span("get_output", "prediction", || session.outputs());
        outputs.map(|outputs| (seconds, outputs)).map_err(|error| error.to_string())
    })?;

    if let Some(directory) = &run.output_dir {
        let names = files::file_names(plan.outputs.iter().map(|port| port.name.as_str()), ".npy");
        let files = names.iter().zip(&outputs).map(|(name, tensor)| (directory.join(name), npy::write(tensor)));
        files::write_all(&files.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    }
    let top = run.top.map(|count| highest(plan, &outputs[0], count));
    if run.common.json {
        let ports = Description::new(plan).outputs.into_iter().zip(&outputs);
        let results: Vec<_> = ports.map(|(port, tensor)| result_json(&port, tensor, run.values)).collect();
        let top: Option<Vec<_>> = top.map(|top| {
            let row = |(index, score)| json!({ "index": index, "label": label(plan, index), "score": score });
            top.into_iter().map(row).collect()
        });
        print_json(&json!({
            "outputs": results, "top": top, "latency_ms": seconds * 1e3, "weights": attachment.origin,
        }));
        return attachment.end(session);
    }
    for (index, score) in top.iter().flatten() {
        say::out(&format!("{score:9.4}  {index:5}  {}\n", label(plan, *index).unwrap_or_default()));
    }
    if top.is_none() {
        for (port, tensor) in plan.outputs.iter().zip(&outputs) {
            let items = tensor.to_f64();
            let some: Vec<String> = items.iter().take(6).map(|item| format!("{item:.5}")).collect();
            let dots = if some.len() < items.len() { " .." } else { "" };
            say::out(&format!("{} {}{} = {}{dots}\n", port.name, port.dtype, port.shape, some.join(" ")));
        }
    }
    say::out(&format!("{:.3} ms on {}\n", seconds * 1e3, session.device()));
    attachment.end(session)
}

/// A result's port and its first elements, in row-major order.
fn result_json(port: &PortReport, tensor: &Tensor, limit: Limit) -> serde_json::Value {
    let mut result = json!(port);
    let is_float = tensor.dtype().is_float();
    let number = |value: f64| match value {
        // The shortest decimal that reads back as the same `f32`. JSON has no NaN and no infinity.
        value if value.is_finite() => json!(format!("{}", value as f32).parse::<f64>().unwrap_or(value)),
        value => json!(value.to_string()),
    };
    let values: Vec<serde_json::Value> = match is_float {
        true => tensor.to_f64().into_iter().take(limit.0).map(number).collect(),
        false => tensor.to_i64().into_iter().take(limit.0).map(|value| json!(value)).collect(),
    };
    result["elements"] = json!(tensor.elements());
    result["values"] = json!(values);
    result
}

/// Rejects flags that the outputs do not support, before anything runs.
fn check_outputs(plan: &Plan, run: &Run) -> Result<(), String> {
    if run.top.is_some() && plan.outputs.first().is_none_or(|port| !port.dtype.is_float()) {
        return Err("--top needs a first output of floats".into());
    }
    if let Some(directory) = &run.output_dir
        && directory.exists()
        && !directory.is_dir()
    {
        return Err(format!("`{}` is not a directory", directory.display()));
    }
    Ok(())
}

fn bench(run: &Run, warmup: usize, iters: usize) -> Result<(), String> {
    let common = &run.common;
    let loaded = Loaded::new(common)?;
    let bytes = to_bytes(&inputs::tensors(&*chosen(&loaded.image, common)?, run, [None; 3])?);
    let mut session = open_session(&loaded, common)?;
    (0..warmup).try_for_each(|_| timed_run(&mut session, &bytes).map(drop))?;
    let seconds: Result<Vec<f64>, String> = (0..iters).map(|_| timed_run(&mut session, &bytes)).collect();
    // Separate runs, so that reading the device's clock does not add to the latencies.
    let device = device_seconds(&mut session, &bytes, iters)?;
    let report = BenchReport::new(seconds?, session.threads(), session.plan().batch).with_device(device);
    let report = if session.plan().phase == Phase::Inference { report } else { report.of_steps() };
    match common.json {
        true => print_json(&json!(report)),
        false => say::out(&report.text()),
    }
    Ok(())
}

/// The seconds of further runs by the device's own clock; empty if it has none.
fn device_seconds(session: &mut Session, inputs: &[Vec<u8>], iters: usize) -> Result<Vec<f64>, String> {
    let mut seconds = Vec::new();
    for _ in 0..iters {
        write_inputs(session, inputs)?;
        match session.run_timed(1).map_err(|error| error.to_string())? {
            Some(own) => seconds.push(own),
            None => break,
        }
    }
    Ok(seconds)
}

/// Rounds of the probe: about as long as a short step.
const PROBE_ROUNDS: usize = 20;

fn steps(run: &Run, warmup: usize, iters: usize, rows: Rows, trace: Option<&Path>) -> Result<(), String> {
    let common = &run.common;
    let loaded = Loaded::new(common)?;
    let bytes = to_bytes(&inputs::tensors(&*chosen(&loaded.image, common)?, run, [None; 3])?);
    let mut session = open_session(&loaded, common)?;
    (0..warmup).try_for_each(|_| timed_run(&mut session, &bytes).map(drop))?;
    let probe = FlopsProbe::new(session.plan(), session.threads());
    let (mut seconds, mut peak) = (vec![f64::INFINITY; session.plan().steps.len()], 0.0f64);
    for _ in 0..iters {
        write_inputs(&mut session, &bytes)?;
        for (step, least) in seconds.iter_mut().enumerate() {
            let (done, seconds) = timed(|| session.run_step(step));
            done.map_err(|error| error.to_string())?;
            *least = least.min(seconds);
        }
        if let Some(probe) = &probe {
            // The first call wakes threads that are parked.
            probe.run(PROBE_ROUNDS);
            let (flops, seconds) = timed(|| probe.run(PROBE_ROUNDS));
            peak = peak.max(flops as f64 / seconds);
        }
    }
    // The processor's bandwidth does not apply to a device.
    let here = session.device_memory().map_err(|error| error.to_string())?.is_empty();
    let bytes_per_s = if here { bandwidth::measure(session.threads()) } else { 0.0 };
    let peaks = Peaks { flop_per_s: peak, bytes_per_s };
    let mut report = StepsReport::new(session.plan(), &seconds, peaks, iters, session.threads());
    if let Some(path) = trace {
        let mut start = 0.0;
        let time = |seconds: &f64| {
            let time = StepTime { start_us: start, us: seconds * 1e6 };
            start += time.us;
            time
        };
        let times: Vec<StepTime> = seconds.iter().map(time).collect();
        let text = Report::new(session.plan()).trace_json(Some(&times));
        files::write_all(&[(path.to_path_buf(), text.into_bytes())]).map_err(|error| error.to_string())?;
    }
    match common.json {
        true => {
            if rows == Rows::BelowPeak {
                report.steps = report.below_peak().into_iter().cloned().collect();
            }
            print_json(&json!(report));
        }
        false => match rows {
            Rows::Slowest(count) => say::out(&report.text(count)),
            Rows::BelowPeak => say::out(&report.below_peak_text()),
        },
    }
    Ok(())
}

/// The memory report with measurements: allocations, memory of the process, then the audit.
pub(crate) fn measure(image: &ImageFile, session: &mut Session, tensors: &[Tensor]) -> Result<Report, String> {
    let bytes = to_bytes(tensors);
    if !heap::is_counting() {
        return Err("this build does not count allocations".into());
    }
    write_inputs(session, &bytes)?;
    // Reading the device's memory allocates on the host, so it precedes the count.
    let taken = session.device_bytes().map_err(|error| error.to_string())?;
    let before = heap::allocations();
    session.run().map_err(|error| error.to_string())?;
    let allocations = heap::allocations() - before;
    let device = session.device_memory().map_err(|error| error.to_string())?;
    let taken_in_run = device.iter().map(|item| item.bytes).sum::<u64>().saturating_sub(taken);

    // For a device with its own memory, the arena here is a copy for the audit.
    let arena = match device.is_empty() {
        true => session.arena().map(|arena| range_of(arena)).unwrap_or_default(),
        false => 0..0,
    };
    let [in_arena, in_image, _, in_block] = PLANNED_MAPPINGS;
    let pager = session.pager_usage();
    let block = pager.as_ref().map_or(0..0, |pager| pager.block.clone());
    let known = [(in_arena, arena), (in_image, range_of(image.bytes())), (in_block, block)];
    // Measured before the audit, whose copies would be counted.
    let mut memory = process::memory(&known).unwrap_or_default();
    memory.read_in_run = pager.map(|pager| pager.read_in_run);
    memory.device = device;
    memory.device_in_run = taken_in_run;
    memory.device_usage = session.device_usage().map_err(|error| error.to_string())?;
    let audit = audit::audit(session, &bytes).map_err(|error| error.to_string())?;
    Ok(Report::new(session.plan()).with_actual(&audit, allocations, &memory))
}

fn range_of(bytes: &[u8]) -> std::ops::Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

fn write_inputs(session: &mut Session, inputs: &[Vec<u8>]) -> Result<(), String> {
    let mut inputs = inputs.iter().enumerate();
    inputs.try_for_each(|(ix, bytes)| session.write_input(ix, bytes)).map_err(|error| error.to_string())
}

fn timed_run(session: &mut Session, inputs: &[Vec<u8>]) -> Result<f64, String> {
    // A run may have overwritten its inputs, so they are written before each, outside of the timed part.
    write_inputs(session, inputs)?;
    let (done, seconds) = timed(|| session.run());
    done.map_err(|error| error.to_string())?;
    Ok(seconds)
}

/// Seconds on a clock that only differences of are used.
#[expect(clippy::disallowed_methods, reason = "progress states samples per second and the time that is left")]
pub(crate) fn clock() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// The result of `work`, and its duration in seconds.
#[expect(clippy::disallowed_methods, reason = "the one clock: how long a run takes")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

fn to_bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(Tensor::to_le_bytes).collect()
}

/// The highest scores of the first sample with their positions; ties are in order of position.
fn highest(plan: &Plan, output: &Tensor, count: usize) -> Vec<(usize, f64)> {
    let scores = output.to_f64();
    let per_sample = scores.len() / (plan.batch.max(1) as usize);
    let mut ranked: Vec<(usize, f64)> = scores.into_iter().take(per_sample.max(1)).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(count);
    ranked
}

fn label(plan: &Plan, index: usize) -> Option<&str> {
    plan.labels.get(index).map(String::as_str)
}

pub(crate) fn print_json(value: &serde_json::Value) {
    say::out(&format!("{value:#}\n"));
}
