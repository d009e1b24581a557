//! Rows of networks: what this machine's processor makes of each, beside what the GPU does, in which memory, and how fast.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use compiler::{Compiled, source};
use cuda::Math;
use lower::Target;
use lower::cpu::CpuTarget;
use profile::BenchReport;
use runtime::{Gpu, Host, RunError, Session};
use serde_json::{Value as Json, json};
use types::{Bytes, DType, Random, Tensor};

use super::On;
use crate::arguments::{GpuCheck, Libraries, Numbers};
use crate::device::{Device, places};

/// Results may differ by this part of the largest one.
const TOLERANCE: f64 = 1e-3;
/// The same in steps of what lies between kernels, where that is rounded: what the tests allow networks.
const STEPS: f64 = 8.0;
/// Networks whose arena has no more bytes are watched byte by byte: watching copies and compares the whole arena after each
/// step. There is room for a workspace of cuBLASLt's (32 MiB) beside what lies between layers.
pub(super) const AUDITED_MAX: Bytes = Bytes(64 << 20);

/// A row for each network, batch and dtype, and whether all are right; what is shown of them goes to the text.
pub(super) fn rows(asked: &GpuCheck, all: &[On], text: &mut String) -> (Vec<Json>, bool) {
    let _ = writeln!(
        text,
        "{:<28} {:>5} {:>5} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}  verdict",
        "network", "batch", "dtype", "arena", "weights", "difference", "ms", "GFLOP/s", "cpu ms"
    );
    let names: Vec<String> = match &asked.models[..] {
        [] => source::models().into_iter().map(|model| model.name.to_string()).collect(),
        names => names.to_vec(),
    };
    let (mut rows, mut yes) = (Vec::new(), true);
    for name in &names {
        for &batch in &asked.batches {
            // What all of them are held to.
            let mut reference = None;
            for on in all {
                let row = |verdict: &str, reason: String| {
                    let dtype = on.numbers.name();
                    json!({ "network": name, "batch": batch, "dtype": dtype, "verdict": verdict, "reason": reason })
                };
                let row = match compiled(asked, &on.device, name, batch) {
                    // What there are no kernels for is said and does not count.
                    Err(reason) => row("refused", reason),
                    Ok(compiled) => check(asked, on, &compiled, name, batch, &mut reference)
                        .unwrap_or_else(|reason| row("FAILED", reason)),
                };
                yes &= ["equal", "right", "refused"].iter().any(|verdict| row["verdict"] == *verdict);
                text.push_str(&line(&row));
                rows.push(row);
            }
        }
    }
    (rows, yes)
}

/// What this machine's processor makes of a network, in `f32`.
struct Reference {
    inputs: Vec<Tensor>,
    want: Vec<Tensor>,
    cpu_ms: f64,
}

impl Reference {
    fn new(asked: &GpuCheck, name: &str, batch: usize) -> Result<Reference, String> {
        let failed = |error: RunError| error.to_string();
        let processor = compile(asked, name, batch, &CpuTarget::new())?;
        let inputs = inputs(&processor.plan);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut host = open(&processor, &Host { threads })?;
        let want = host.run_tensors(&inputs).map_err(failed)?;
        let cpu_ms = timed(&mut host, 3).map_err(failed)?.latency_ms.p50;
        Ok(Reference { inputs, want, cpu_ms })
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
    format!(
        "{name:<28} {batch:>5} {dtype:>5} {:>10} {:>10} {:>10.1e} {:>10.4} {:>9.1} {:>9.3}  {verdict}{audit}\n",
        bytes("arena_bytes"),
        bytes("weights_bytes"),
        number("difference"),
        number("gpu_ms"),
        number("gflop_per_s"),
        number("cpu_ms"),
    )
}

fn compile(asked: &GpuCheck, name: &str, batch: usize, target: &dyn Target) -> Result<Compiled, String> {
    let (model, data) = (name.to_string(), asked.data.clone());
    let request = source::Request { model, batch: Some(batch), data, ..Default::default() };
    let model = source::load(&request).map_err(|error| error.to_string())?;
    compiler::compile(model, target, None, |_, _| {}).map_err(|error| error.to_string())
}

/// One network at one batch, for the GPU.
fn compiled(asked: &GpuCheck, device: &Device, name: &str, batch: usize) -> Result<Compiled, String> {
    let mut compiled = compile(asked, name, batch, &device.target)?;
    device.finish(&mut compiled.plan)?;
    Ok(compiled)
}

/// Runs it here, where that was not done before, and there.
fn check(
    asked: &GpuCheck,
    on: &On,
    compiled: &Compiled,
    name: &str,
    batch: usize,
    reference: &mut Option<Reference>,
) -> Result<Json, String> {
    let failed = |error: RunError| error.to_string();
    let Reference { inputs, want, cpu_ms } = match reference {
        Some(reference) => reference,
        none => none.insert(Reference::new(asked, name, batch)?),
    };
    let mut session = open(compiled, &Gpu { ordinal: asked.device, places: places(&asked.data) })?;
    let got = session.run_tensors(inputs).map_err(failed)?;
    let difference = got.iter().zip(&*want).map(|(got, want)| difference(got, want)).fold(0.0, f64::max);
    let report = timed(&mut session, asked.iters).map_err(failed)?;
    let memory = session.device_memory().map_err(failed)?;
    let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
    let arena = compiled.plan.arena.size;
    let audit = match arena <= AUDITED_MAX {
        true => runtime::audit::audit(&mut session, &bytes).ok_or("the arena could not be read".to_string()),
        false => Err(format!("the arena has {arena}, and no more than {AUDITED_MAX} are watched")),
    };
    let tolerance = tolerance(on.numbers, asked.libraries);
    let verdict = match (difference <= tolerance, audit.as_ref().map(runtime::audit::Audit::is_equal)) {
        (false, _) => "WRONG",
        (true, Ok(false)) => "OTHER MEMORY",
        (true, Ok(true)) => "equal",
        (true, Err(_)) => "right",
    };
    let (p50, flops) = (report.latency_ms.p50, compiled.plan.flops as f64);
    let items: Vec<Json> = memory.iter().map(|item| json!({ "what": item.what, "bytes": item.bytes })).collect();
    Ok(json!({
        "network": name,
        "batch": batch,
        "dtype": on.numbers.name(),
        "arena_bytes": arena.0,
        "weights_bytes": compiled.plan.constants_size.0,
        "device_memory": items,
        "difference": difference,
        "tolerance": tolerance,
        "gpu_ms": p50,
        "latency_ms": report.latency_ms,
        "device_ms": report.device_ms,
        "samples_per_s": report.throughput_per_s,
        "gflop_per_s": flops / 1e6 / p50.max(1e-9),
        "cpu_ms": cpu_ms,
        "verdict": verdict,
        "audited": audit.is_ok(),
        "not_audited": audit.err(),
    }))
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
fn difference(got: &Tensor, want: &Tensor) -> f64 {
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
    let device: Result<Vec<Option<f64>>, RunError> = (0..iters).map(|_| session.run_timed()).collect();
    let device = device?.into_iter().flatten().collect();
    Ok(BenchReport::new(seconds, session.threads(), session.plan().batch).with_device(device))
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
