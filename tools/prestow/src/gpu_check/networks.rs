//! Rows of networks: what this machine's processor makes of each, beside what the GPU does, in which memory, and how fast.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use compiler::{Compiled, Model, source};
use cuda::Math;
use ir::Graph;
use lower::cpu::CpuTarget;
use report::BenchReport;
use runtime::process::MemoryItem;
use runtime::{CudaDevice, Host, RunError, Session};
use serde_json::{Value as Json, json};
use types::{Bytes, DType, Random, Tensor};

use super::peers::{self, Standing, Turn};
use super::{Check, Maker, Report};
use crate::arguments::{GpuCheck, Libraries, Numbers, Tune};
use crate::device::{Device, places};
use crate::tune_gpu::{self, How};

/// Results may differ by this part of the largest one.
const TOLERANCE: f64 = 1e-3;
/// The same in steps of what lies between kernels, where that is rounded: what the tests allow networks.
const STEPS: f64 = 8.0;
/// Networks whose arena has no more bytes are watched byte by byte: watching copies and compares the whole arena after each
/// step.
pub(super) const AUDITED_MAX: Bytes = Bytes(256 << 20);
/// Networks that other runtimes are run beside where none is named.
const COMPARED: [&str; 5] = ["resnet50", "mobilenet_v2", "densenet121", "vgg16", "bert_base"];
/// So many are compiled at once, at most: each has its weights in memory.
const AHEAD: usize = 8;

/// One row.
struct Task {
    name: String,
    batch: usize,
    numbers: Numbers,
    /// Whether other runtimes are run beside it.
    compared: bool,
}

/// All rows, those of a network and a batch one behind the other.
fn tasks(asked: &GpuCheck, peers: bool) -> Vec<Task> {
    let names: Vec<String> = match &asked.models[..] {
        [] => source::models().into_iter().map(|model| model.name.to_string()).collect(),
        names => names.to_vec(),
    };
    let mut tasks = Vec::new();
    for name in names {
        let compared = peers && (!asked.models.is_empty() || COMPARED.contains(&&name[..]));
        let usual: &[usize] = if compared { &[1, 64] } else { &[1] };
        for &batch in asked.batches.as_deref().unwrap_or(usual) {
            let task = |&numbers| Task { name: name.clone(), batch, numbers, compared };
            tasks.extend(asked.dtypes.iter().map(task));
        }
    }
    tasks
}

/// A row for each network, batch and dtype; whether all are right.
pub(super) fn rows(check: &Check, report: &mut Report) -> Result<bool, String> {
    let head = format!(
        "{:<28} {:>5} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}  verdict\n",
        "network",
        "batch",
        "dtype",
        "arena",
        "weights",
        "difference",
        "ms",
        "device ms",
        "GFLOP/s",
        "of least",
        "cpu ms"
    );
    report.show(&head);
    let tasks = tasks(check.asked, check.peers.is_some());
    // Who measures is alone.
    let most = if check.asked.tune.is_some() { 1 } else { AHEAD };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)).min(most);
    // What all rows of a network and a batch are held to.
    let mut reference: Option<Reference> = None;
    let (mut yes, mut standings) = (true, String::new());
    for some in tasks.chunks(threads) {
        let compiled: Vec<Result<Compiled, String>> = std::thread::scope(|scope| {
            let started: Vec<_> = some.iter().map(|task| scope.spawn(|| compiled(&check.maker, task))).collect();
            started.into_iter().map(|thread| thread.join().expect("compiling does not panic")).collect()
        });
        for (task, compiled) in some.iter().zip(compiled) {
            let row = |verdict: &str, reason: String| {
                let (network, dtype) = (&task.name, task.numbers.name());
                json!({ "network": network, "batch": task.batch, "dtype": dtype, "verdict": verdict, "reason": reason })
            };
            let row = match compiled {
                // What there are no kernels for is said and does not count.
                Err(reason) => row("refused", reason),
                Ok(compiled) => {
                    self::row(check, task, &compiled, &mut reference).unwrap_or_else(|reason| row("FAILED", reason))
                }
            };
            yes &= ["equal", "right", "refused"].iter().any(|verdict| row["verdict"] == *verdict);
            if let Some(Standing { throughput, latency }) = Standing::of(&row) {
                let (name, batch, dtype) = (&task.name, task.batch, task.numbers.name());
                let _ = writeln!(standings, "{name:<28} {batch:>5} {dtype:>5} {throughput:>10.2} {latency:>10.2}");
            }
            let text = line(&row) + &peers::lines(&row);
            report.add("networks", row, &text)?;
        }
    }
    if !standings.is_empty() {
        report.show(&format!(
            "throughput in those of the faster of PyTorch's two, latency in those of its eager one:\n{:<28} {:>5} {:>5} \
             {:>10} {:>10}\n{standings}",
            "network", "batch", "dtype", "throughput", "latency"
        ));
    }
    Ok(yes)
}

/// What this machine's processor makes of a network, in `f32`.
struct Reference {
    name: String,
    batch: usize,
    graph: Graph,
    inputs: Vec<Tensor>,
    want: Vec<Tensor>,
    cpu_ms: f64,
}

impl Reference {
    fn new(asked: &GpuCheck, task: &Task) -> Result<Reference, String> {
        let failed = |error: RunError| error.to_string();
        let (name, batch) = (task.name.clone(), task.batch);
        let model = load(asked, task)?;
        let graph = model.graph.clone();
        let processor =
            compiler::compile(model, &CpuTarget::new(), None, |_, _| {}).map_err(|error| error.to_string())?;
        let inputs = inputs(&processor.plan);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut host = open(&processor, &Host { threads })?;
        let want = host.run_tensors(&inputs).map_err(failed)?;
        let cpu_ms = timed(&mut host, 3).map_err(failed)?.latency_ms.p50;
        Ok(Reference { name, batch, graph, inputs, want, cpu_ms })
    }

    fn is_of(&self, task: &Task) -> bool {
        (&self.name, self.batch) == (&task.name, task.batch)
    }
}

pub(super) fn open(compiled: &Compiled, device: &dyn runtime::Device) -> Result<Session, String> {
    let (plan, constants) = (Arc::new(compiled.plan.clone()), Arc::new(compiled.constants.clone()));
    runtime::open(plan, constants, device).map_err(|error| error.to_string())
}

fn line(row: &Json) -> String {
    let dtype = row["dtype"].as_str().unwrap_or_default();
    let (name, batch) = (row["network"].as_str().unwrap_or_default(), row["batch"].as_u64().unwrap_or_default());
    let verdict = row["verdict"].as_str().unwrap_or_default();
    if let Some(reason) = row["reason"].as_str() {
        return format!("{name:<28} {batch:>5} {dtype:>5}  {verdict}: {}\n", reason.lines().next().unwrap_or_default());
    }
    let bytes = |key: &str| Bytes(row[key].as_u64().unwrap_or_default()).to_string();
    let number = |key: &str| row[key].as_f64().unwrap_or_default();
    let audit = row["not_audited"].as_str().map(|why| format!(", memory not audited: {why}")).unwrap_or_default();
    let device = row["device_ms"]["p50"].as_f64().unwrap_or_default();
    let of_least = row["reached"]["of_least"].as_f64().map_or("".into(), |part| format!("{part:.2}"));
    format!(
        "{name:<28} {batch:>5} {dtype:>5} {:>10} {:>10} {:>10.1e} {:>10.4} {device:>10.4} {:>9.1} {of_least:>9} {:>9.3}  \
         {verdict}{audit}\n",
        bytes("arena_bytes"),
        bytes("weights_bytes"),
        number("difference"),
        number("gpu_ms"),
        number("gflop_per_s"),
        number("cpu_ms"),
    )
}

fn load(asked: &GpuCheck, task: &Task) -> Result<Model, String> {
    let (model, data) = (task.name.clone(), asked.data.clone());
    let request = source::Request { model, batch: Some(task.batch), data, ..Default::default() };
    source::load(&request).map_err(|error| error.to_string())
}

/// For the GPU.
fn compiled(maker: &Maker, task: &Task) -> Result<Compiled, String> {
    let mut device = maker.device(task.numbers)?;
    let model = load(maker.asked, task)?;
    let planned = |device: &Device, model: Model| {
        compiler::compile(model, &device.target, None, |_, _| {}).map_err(|error| error.to_string())
    };
    let mut compiled = planned(&device, model.clone())?;
    if let Some(Tune { seconds, cache, .. }) = &maker.asked.tune {
        let places = places(&maker.asked.data);
        let how = How { seconds: *seconds, cache: cache.as_deref(), places: &places };
        tune_gpu::tune(&mut device, &maker.gpu, &[&compiled.plan], &how)?;
        compiled = planned(&device, model)?;
    }
    device.finish(&mut compiled.plan)?;
    Ok(compiled)
}

/// Runs it here, where that was not done before, and there.
fn row(check: &Check, task: &Task, compiled: &Compiled, reference: &mut Option<Reference>) -> Result<Json, String> {
    let failed = |error: RunError| error.to_string();
    let (asked, numbers) = (check.asked, task.numbers);
    let reference = match reference {
        Some(own) if own.is_of(task) => own,
        other => other.insert(Reference::new(asked, task)?),
    };
    let Reference { graph, inputs, want, cpu_ms, .. } = &*reference;
    let mut session = open(compiled, &CudaDevice { ordinal: asked.device, places: places(&asked.data) })?;
    let got = session.run_tensors(inputs).map_err(failed)?;
    let difference = got.iter().zip(want).map(|(got, want)| difference(got, want)).fold(0.0, f64::max);
    let report = timed(&mut session, asked.iters).map_err(failed)?;
    let memory = session.device_memory().map_err(failed)?;
    let observed = session.device_usage().map_err(failed)?;
    let allocations = observed.allocations_in_run;
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let arena = compiled.plan.arena.size();
    let audit = match arena <= AUDITED_MAX {
        true => Ok(runtime::audit::audit(&mut session, &bytes).map_err(failed)?),
        false => Err(format!("the arena has {arena}, and no more than {AUDITED_MAX} are watched")),
    };
    let tolerance = tolerance(numbers, asked.libraries);
    let is_planned = audit.as_ref().map(runtime::audit::Audit::is_equal);
    let verdict = match is_planned {
        // What is no number is not within anything.
        _ if difference.is_nan() || tolerance < difference => "WRONG",
        Ok(false) => "OTHER MEMORY",
        _ if allocations.is_some_and(|count| 0 < count) => "ALLOCATES",
        Ok(true) => "equal",
        Err(_) => "right",
    };
    let (p50, flops) = (report.latency_ms.p50, compiled.plan.flops as f64);
    let device_seconds = report.device_ms.as_ref().map_or(p50, |device| device.p50) / 1e3;
    let reached = check.ceilings.as_ref().map(|most| most.reached(&compiled.plan, numbers, device_seconds.max(1e-9)));
    let of_peers = match (&check.peers, task.compared && verdict != "WRONG") {
        (Some(peers), true) => {
            write(&mut session, &bytes).map_err(failed)?;
            let (device, iters) = (asked.device, asked.iters);
            peers.measure(&Turn { graph, numbers, device, inputs, want, tolerance, iters }, &mut session)
        }
        _ => Vec::new(),
    };
    let items = |items: &[MemoryItem]| -> Vec<Json> {
        items.iter().map(|item| json!({ "what": item.what, "method": item.method, "bytes": item.bytes })).collect()
    };
    let untold: Vec<Json> =
        observed.unavailable.iter().map(|untold| json!({ "what": untold.what, "why": untold.why })).collect();
    Ok(json!({
        "network": task.name,
        "batch": task.batch,
        "dtype": numbers.name(),
        "arena_bytes": arena.0,
        "weights_bytes": compiled.plan.constants_size.0,
        // Beside what free memory fell by when it was asked for, which drivers round up.
        "block_bytes": (arena.align_up(compiled.plan.arena.alignment) + compiled.plan.constants_size).0,
        "device_memory": items(&memory),
        "observed": items(&observed.items),
        "not_observed": untold,
        "allocations_in_run": allocations,
        "difference": difference,
        "tolerance": tolerance,
        "gpu_ms": p50,
        "latency_ms": report.latency_ms,
        "device_ms": report.device_ms,
        "samples_per_s": report.throughput_per_s,
        "gflop_per_s": flops / 1e6 / p50.max(1e-9),
        "reached": reached,
        "cpu_ms": cpu_ms,
        "verdict": verdict,
        "audited": audit.is_ok(),
        "not_audited": audit.err(),
        "peers": of_peers,
    }))
}

/// Inputs as they were, behind an audit that left its marks.
fn write(session: &mut Session, inputs: &[Vec<u8>]) -> Result<(), RunError> {
    inputs.iter().enumerate().try_for_each(|(ix, bytes)| session.write_input(ix, bytes))
}

/// How much results may differ: by what is stored, and by what rounds on the way into a tensor core.
fn tolerance(numbers: Numbers, libraries: Libraries) -> f64 {
    let rounds = [libraries.cudnn, libraries.cublas].contains(&Some(Math::Tf32));
    match numbers {
        Numbers::Stored(DType::Bf16) => STEPS / 128.0,
        Numbers::Stored(DType::F16) | Numbers::Tf32 => STEPS / 1024.0,
        Numbers::Stored(_) if rounds => STEPS / 1024.0,
        Numbers::Stored(_) => TOLERANCE,
    }
}

/// Made-up inputs: floats in [-1, 1), integers of a few.
fn inputs(plan: &plan::Plan) -> Vec<Tensor> {
    let input = |port: &plan::Port| {
        let mut random = Random::for_name(1, &port.name);
        match port.dtype.is_float() {
            true => Tensor::from_fn(port.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(port.dtype),
            false => Tensor::from_fn(port.shape.clone(), |_| random.below(3) as i64).cast(port.dtype),
        }
    };
    plan.inputs.iter().map(input).collect()
}

/// The largest difference as a part of the largest wanted number; endless where one is no number and the other is.
pub(super) fn difference(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().filter(|item| item.is_finite()).fold(1e-6f64, |largest, item| largest.max(item.abs()));
    let apart = |(got, want): (&f64, &f64)| match got == want || (got.is_nan() && want.is_nan()) {
        true => 0.0,
        false if got.is_nan() || want.is_nan() => f64::INFINITY,
        false => (got - want).abs() / largest,
    };
    got.iter().zip(&want).map(apart).fold(0.0, f64::max)
}

/// The latency of runs; what inputs hold is as good as any other.
#[expect(clippy::disallowed_methods, reason = "how long runs take is what was asked")]
fn timed(session: &mut Session, iters: usize) -> Result<BenchReport, RunError> {
    session.run()?;
    let mut seconds = Vec::with_capacity(iters);
    for _ in 0..iters {
        let start = Instant::now();
        session.run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let device: Result<Vec<Option<f64>>, RunError> = (0..iters).map(|_| session.run_timed(1)).collect();
    let device = device?.into_iter().flatten().collect();
    Ok(BenchReport::new(seconds, session.threads(), session.plan().batch).with_device(device))
}

/// The one in the middle.
pub(super) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rounds_to_eleven_bits_is_held_to_eleven_bits() {
        let libraries = |cudnn, cublas| Libraries { cudnn, cublas, ..Libraries::default() };
        let (strict, tf32) = (Some(Math::Strict), Some(Math::Tf32));
        for (numbers, libraries, parts) in [
            (Numbers::F32, libraries(None, None), 1000.0),
            (Numbers::F32, libraries(strict, Some(Math::Exact)), 1000.0),
            (Numbers::F32, libraries(tf32, strict), 128.0),
            (Numbers::F32, libraries(None, tf32), 128.0),
            (Numbers::Tf32, libraries(None, None), 128.0),
            (Numbers::Stored(DType::Bf16), libraries(strict, strict), 16.0),
        ] {
            assert_eq!(1.0 / tolerance(numbers, libraries), parts, "{numbers:?}");
        }
    }
}
