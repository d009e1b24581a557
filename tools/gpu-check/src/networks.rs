//! Networks: results compared with this machine's CPU kernels, memory with the plan, speed with peaks and baselines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compiler::gpu::{Libraries, Precision, TuneOptions, library_paths, tune};
use compiler::{Compiled, Model, source};
use ir::analysis::index::index_limits;
use ir::{Graph, ValueId};
use lower::cpu::CpuTarget;
use lower::cuda::CudaTarget;
use report::BenchReport;
use runtime::{CudaDevice, Host, RunError, Session};
use types::{Bytes, DType, Random, Tensor};

use crate::arguments::{Settings, Tune};
use crate::baselines::{self, Baselines, Comparison, Speedup};
use crate::check::{Deadline, Targets, Worth};
use crate::output::Output;
use crate::peaks;
use crate::rows::{MemoryRow, NetworkRow, NetworkRun, Peaks, UnavailableRow, Verdict};

/// Tolerance in `f32`, relative to the largest result.
const TOLERANCE: f64 = 1e-3;
/// Tolerance in lower precisions, in units of the last place of stored values: the bound of the networks' tests.
const STEPS: f64 = 8.0;
/// Tolerance in lower precisions of deep networks, in differences of this machine's CPU from its own `f32`. Both devices round
/// values at the same places, so their differences are two samples of one distribution, whose largest elements differ by less.
const OF_CPU: f64 = 2.0;
/// The largest arena that is audited: an audit copies and compares the whole arena after each step.
const AUDITED_MAX: Bytes = Bytes(256 << 20);
/// Networks that are compared with baselines if none is named.
const COMPARED: [&str; 5] = ["resnet50", "mobilenet_v2", "densenet121", "vgg16", "bert_base"];
/// The most networks that are compiled at once: each has its weights in memory.
const COMPILED_MAX: usize = 8;
/// Runs before the timed ones: clocks rise under load.
const WARM: Duration = Duration::from_millis(500);

/// Inputs of the check.
pub(crate) struct NetworkCheck<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) targets: &'a Targets<'a>,
    /// `None` if they could not be measured.
    pub(crate) peaks: Option<Peaks>,
    /// `None` if no baseline is installed.
    pub(crate) baselines: Option<Baselines>,
}

/// One row to make.
struct Task {
    name: String,
    batch: usize,
    precision: Precision,
    /// Whether baselines run too.
    compared: bool,
}

/// The rows of a part. Those of one network and batch are neighbors, because they share a reference.
fn tasks(settings: &Settings, baselines: bool, worth: Worth) -> Vec<Task> {
    let mut names: Vec<String> = match &settings.models[..] {
        [] => source::models().into_iter().map(|model| model.name.to_string()).collect(),
        names => names.to_vec(),
    };
    let is_compared = |name: &String| COMPARED.contains(&&name[..]);
    names.retain(|name| match worth {
        Worth::All => true,
        Worth::First => !settings.models.is_empty() || is_compared(name),
        Worth::Later => settings.models.is_empty() && !is_compared(name),
    });
    let mut tasks = Vec::new();
    for name in names {
        let compared = baselines && (!settings.models.is_empty() || is_compared(&name));
        let usual: &[usize] = if compared { &[1, 64] } else { &[1] };
        for &batch in settings.batches.as_deref().unwrap_or(usual) {
            let task = |&precision| Task { name: name.clone(), batch, precision, compared };
            tasks.extend(settings.precisions.iter().map(task));
        }
    }
    tasks
}

impl Task {
    fn is_row(&self, row: &NetworkRow) -> bool {
        (&self.name, self.batch, self.precision) == (&row.network, row.batch, row.dtype)
    }

    fn row(&self, verdict: Verdict, reason: Option<String>) -> NetworkRow {
        let (network, batch, dtype) = (self.name.clone(), self.batch, self.precision);
        NetworkRow { network, batch, dtype, verdict, reason, run: None }
    }
}

/// Makes a row for each network of a part, batch and precision. Returns whether all rows pass.
pub(crate) fn check(
    check: &NetworkCheck,
    worth: Worth,
    deadline: &Deadline,
    output: &mut Output,
) -> Result<bool, String> {
    let mut tasks = tasks(check.settings, check.baselines.is_some(), worth);
    if tasks.is_empty() {
        return Ok(true);
    }
    output.show(&format!(
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
        "roofline",
        "cpu ms"
    ));
    // Rows of a resumed report. Failed ones are run again.
    let is_own = |row: &NetworkRow| tasks.iter().any(|task| task.is_row(row));
    output.report.networks.retain(|row| row.verdict != Verdict::Failed || !is_own(row));
    for row in output.report.networks.iter().filter(|row| is_own(row)) {
        output.show(&(line(row) + &baselines::lines(row)));
    }
    tasks.retain(|task| !output.report.networks.iter().any(|row| task.is_row(row)));
    // Tuning measures, so nothing else may run on the GPU then.
    let most = if check.settings.tune.is_some() { 1 } else { COMPILED_MAX };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)).min(most);
    // Shared by all rows of a network and batch.
    let mut reference: Option<Reference> = None;
    for (ix, some) in tasks.chunks(threads).enumerate() {
        if deadline.is_over() {
            output.report.remaining += tasks.len() - ix * threads;
            break;
        }
        let compiled: Vec<Result<Compiled, String>> = std::thread::scope(|scope| {
            let started: Vec<_> = some.iter().map(|task| scope.spawn(|| compiled(check.targets, task))).collect();
            started.into_iter().map(|thread| thread.join().expect("compiling does not panic")).collect()
        });
        for (task, compiled) in some.iter().zip(compiled) {
            let row = match compiled {
                Err(reason) => task.row(Verdict::Refused, Some(reason)),
                Ok(compiled) => row(check, task, &compiled, &mut reference)
                    .unwrap_or_else(|reason| task.row(Verdict::Failed, Some(reason))),
            };
            let text = line(&row) + &baselines::lines(&row);
            output.add_network(row, &text)?;
        }
    }
    if worth != Worth::Later {
        output.show(&speedups(&output.report.networks));
    }
    Ok(output.report.networks.iter().all(|row| row.verdict.passes()))
}

/// A table of the rows that both of PyTorch's modes have. Empty if there are none.
fn speedups(rows: &[NetworkRow]) -> String {
    let mut lines = String::new();
    for row in rows {
        if let Some(Speedup { throughput, latency }) = Speedup::of(row) {
            let NetworkRow { network, batch, dtype, .. } = row;
            let _ = writeln!(lines, "{network:<28} {batch:>5} {dtype:>5} {throughput:>10.2} {latency:>10.2}");
        }
    }
    if lines.is_empty() {
        return lines;
    }
    format!(
        "throughput relative to the faster mode of PyTorch, latency relative to its eager mode:\n{:<28} {:>5} {:>5} {:>10} \
         {:>10}\n{lines}",
        "network", "batch", "dtype", "throughput", "latency"
    )
}

/// Results of this machine's CPU kernels in `f32`.
struct Reference {
    name: String,
    batch: usize,
    graph: Graph,
    inputs: Vec<Tensor>,
    want: Vec<Tensor>,
    cpu_ms: f64,
    /// The differences of this machine's CPU kernels if values are stored in half precision. `None` if there are none for it.
    halves: BTreeMap<DType, Option<f64>>,
}

impl Reference {
    fn new(settings: &Settings, task: &Task) -> Result<Reference, String> {
        let failed = |error: RunError| error.to_string();
        let (name, batch) = (task.name.clone(), task.batch);
        let model = load(settings, task)?;
        let graph = model.graph.clone();
        let compiled = compiler::compile(model, &CpuTarget::new(), compiler::Goal::default(), |_, _| {})
            .map_err(|error| error.to_string())?;
        let inputs = inputs(&graph);
        let mut host = open(&compiled, &Host { threads: threads() })?;
        let want = host.run_tensors(&inputs).map_err(failed)?;
        let bytes = le_bytes(&inputs);
        let cpu_ms = timed(&mut host, &bytes, 3).map_err(failed)?.latency_ms.p50;
        Ok(Reference { name, batch, graph, inputs, want, cpu_ms, halves: BTreeMap::new() })
    }

    /// The difference that storing values in `dtype` makes on this machine's CPU.
    fn difference_in(&mut self, settings: &Settings, task: &Task, dtype: DType) -> Option<f64> {
        if let Some(&known) = self.halves.get(&dtype) {
            return known;
        }
        let run = || -> Result<f64, String> {
            let target = CpuTarget { dtype, ..CpuTarget::new() };
            let compiled = compiler::compile(load(settings, task)?, &target, compiler::Goal::default(), |_, _| {})
                .map_err(|error| error.to_string())?;
            let mut host = open(&compiled, &Host { threads: threads() })?;
            let got = host.run_tensors(&self.inputs).map_err(|error| error.to_string())?;
            Ok(largest_difference(&got, &self.want))
        };
        let difference = run().ok();
        self.halves.insert(dtype, difference);
        difference
    }

    fn is_of(&self, task: &Task) -> bool {
        (&self.name, self.batch) == (&task.name, task.batch)
    }
}

/// The threads of this machine.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Opens a compiled model on a device.
///
/// # Errors
/// The device refuses the plan.
pub(crate) fn open(compiled: &Compiled, device: &dyn runtime::Device) -> Result<Session, String> {
    let (plan, constants) = (Arc::new(compiled.plan.clone()), Arc::new(compiled.constants.to_vec()));
    runtime::open(plan, constants, device).map_err(|error| error.to_string())
}

fn line(row: &NetworkRow) -> String {
    let NetworkRow { network, batch, dtype, verdict, reason, run } = row;
    let mut text = format!("{network:<28} {batch:>5} {dtype:>5}");
    let Some(run) = run else {
        let reason = reason.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        let _ = writeln!(text, "  {verdict}: {reason}");
        return text;
    };
    let audit = run.not_audited.as_ref().map(|why| format!(", memory not audited: {why}")).unwrap_or_default();
    let device = run.device_ms.as_ref().map_or(0.0, |device| device.p50);
    let roofline = run.roofline.as_ref().map_or("".into(), |roofline| format!("{:.2}", roofline.of_roofline));
    let _ = writeln!(
        text,
        " {:>10} {:>10} {:>10.1e} {:>10.4} {device:>10.4} {:>9.1} {roofline:>9} {:>9.3}  {verdict}{audit}",
        Bytes(run.arena_bytes).to_string(),
        Bytes(run.weights_bytes).to_string(),
        run.difference.unwrap_or(f64::NAN),
        run.gpu_ms,
        run.gflop_per_s,
        run.cpu_ms,
    );
    text
}

fn load(settings: &Settings, task: &Task) -> Result<Model, String> {
    let (model, data) = (task.name.clone(), settings.data.clone());
    let request = source::Request { model, batch: Some(task.batch), data, ..Default::default() };
    source::load(&request).map_err(|error| error.to_string())
}

/// Compiles a network for the GPU.
fn compiled(targets: &Targets, task: &Task) -> Result<Compiled, String> {
    let mut compiler = targets.compiler(task.precision)?;
    let model = load(targets.settings, task)?;
    let planned = |target: &CudaTarget, model: Model| {
        compiler::compile(model, target, compiler::Goal::default(), |_, _| {}).map_err(|error| error.to_string())
    };
    if let Some(Tune { seconds, cache }) = &targets.settings.tune {
        let paths = library_paths(&targets.settings.data);
        let progress = crate::output::progress;
        let options = TuneOptions { seconds: *seconds, cache: cache.as_deref(), paths: &paths, progress: &progress };
        let mut plans_for = |target: &CudaTarget| Ok(vec![planned(target, model.clone())?.plan]);
        tune(&mut compiler, &targets.gpu, &mut plans_for, &options)?;
    }
    let mut compiled = planned(&compiler.target, model)?;
    compiler.finish(&mut compiled.plan)?;
    Ok(compiled)
}

/// Runs a network on the GPU and compares it with the reference, which is computed if it is of another network.
fn row(
    check: &NetworkCheck,
    task: &Task,
    compiled: &Compiled,
    reference: &mut Option<Reference>,
) -> Result<NetworkRow, String> {
    let failed = |error: RunError| error.to_string();
    let (settings, precision) = (check.settings, task.precision);
    let reference = match reference {
        Some(own) if own.is_of(task) => own,
        other => other.insert(Reference::new(settings, task)?),
    };
    let paths = library_paths(&settings.data);
    let mut session = open(compiled, &CudaDevice { ordinal: settings.device, places: paths })?;
    let got = session.run_tensors(&reference.inputs).map_err(failed)?;
    let difference = largest_difference(&got, &reference.want);
    let mut tolerance = tolerance(precision, settings.libraries);
    // Computed only where it may matter: baselines are judged by it, too.
    if let Some(dtype) = rounded_dtype(precision).filter(|_| task.compared || tolerance < difference) {
        tolerance = with_cpu(tolerance, reference.difference_in(settings, task, dtype));
    }
    let Reference { graph, inputs, want, cpu_ms, .. } = &*reference;
    let bytes = le_bytes(inputs);
    let report = timed(&mut session, &bytes, settings.iters).map_err(failed)?;
    let memory = session.device_memory().map_err(failed)?;
    let usage = session.device_usage().map_err(failed)?;
    let allocations = usage.allocations_in_run;
    let arena = compiled.plan.arena.size();
    let audit = match not_audited(settings, arena) {
        None => Ok(runtime::audit::audit(&mut session, &bytes).map_err(failed)?),
        Some(why) => Err(why),
    };
    let verdict = match audit.as_ref().map(runtime::audit::Audit::is_equal) {
        _ if difference.is_nan() || tolerance < difference => Verdict::Wrong,
        Ok(false) => Verdict::OtherMemory,
        _ if allocations.is_some_and(|count| 0 < count) => Verdict::Allocates,
        Ok(true) => Verdict::Equal,
        Err(_) => Verdict::Right,
    };
    let (p50, flops) = (report.latency_ms.p50, compiled.plan.flops as f64);
    let device_seconds = report.device_ms.as_ref().map_or(p50, |device| device.p50) / 1e3;
    let seconds = device_seconds.max(1e-9);
    let roofline = check.peaks.as_ref().map(|peaks| peaks::roofline(peaks, &compiled.plan, precision, seconds));
    let of_baselines = match (&check.baselines, task.compared && verdict != Verdict::Wrong) {
        (Some(baselines), true) => {
            let (device, iters) = (settings.device, settings.iters);
            let comparison = Comparison { graph, precision, device, inputs, bytes: &bytes, want, tolerance, iters };
            baselines.measure(&comparison, &mut session)
        }
        _ => Vec::new(),
    };
    let not_observed =
        usage.unavailable.iter().map(|row| UnavailableRow { what: row.what.clone(), why: row.why.clone() }).collect();
    let run = NetworkRun {
        arena_bytes: arena.0,
        weights_bytes: compiled.plan.constants_size.0,
        block_bytes: (arena.align_up(compiled.plan.arena.alignment) + compiled.plan.constants_size).0,
        device_memory: memory.iter().map(MemoryRow::from).collect(),
        observed: usage.items.iter().map(MemoryRow::from).collect(),
        not_observed,
        allocations_in_run: allocations,
        difference: Some(difference).filter(|difference| difference.is_finite()),
        tolerance,
        gpu_ms: p50,
        latency_ms: report.latency_ms,
        device_ms: report.device_ms,
        samples_per_s: report.throughput_per_s,
        gflop_per_s: flops / 1e6 / p50.max(1e-9),
        roofline,
        cpu_ms: *cpu_ms,
        audited: audit.is_ok(),
        not_audited: audit.err(),
        baselines: of_baselines,
    };
    Ok(NetworkRow { run: Some(run), ..task.row(verdict, None) })
}

/// The reason that an arena is not audited, if there is one.
pub(crate) fn not_audited(settings: &Settings, arena: Bytes) -> Option<String> {
    match arena <= AUDITED_MAX {
        _ if !settings.audits => Some("--no-audit".into()),
        true => None,
        false => Some(format!("the arena has {arena}, and the limit is {AUDITED_MAX}")),
    }
}

/// The bytes of tensors as an executable reads them.
pub(crate) fn le_bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(Tensor::to_le_bytes).collect()
}

/// Writes all inputs of a session.
pub(crate) fn write(session: &mut Session, inputs: &[Vec<u8>]) -> Result<(), RunError> {
    inputs.iter().enumerate().try_for_each(|(ix, bytes)| session.write_input(ix, bytes))
}

/// The tolerance of results, by the rounding of stored values and of tensor-core operands.
fn tolerance(precision: Precision, libraries: Libraries) -> f64 {
    match precision {
        Precision::Bf16 => STEPS / 128.0,
        Precision::F16 | Precision::Tf32 => STEPS / 1024.0,
        Precision::F32 if libraries.rounds() => STEPS / 1024.0,
        Precision::F32 => TOLERANCE,
    }
}

/// The dtype whose rounding is that of a precision: TF32 rounds operands to as many bits as `f16` has.
fn rounded_dtype(precision: Precision) -> Option<DType> {
    match precision {
        Precision::F32 => None,
        Precision::Tf32 | Precision::F16 => Some(DType::F16),
        Precision::Bf16 => Some(DType::Bf16),
    }
}

/// The tolerance, not below [`OF_CPU`] times the difference of this machine's CPU.
fn with_cpu(tolerance: f64, cpu: Option<f64>) -> f64 {
    cpu.filter(|cpu| cpu.is_finite()).map_or(tolerance, |cpu| tolerance.max(OF_CPU * cpu))
}

/// Made-up inputs: floats in [-1, 1), indices of any row of their tables, other integers in 0..3. Runtimes differ in
/// the result of an index outside its table.
fn inputs(graph: &Graph) -> Vec<Tensor> {
    let limits = index_limits(graph);
    let input = |id: &ValueId| {
        let value = graph.value(*id);
        let mut random = Random::for_name(1, &value.name);
        let mut integers = |end: usize| {
            Tensor::from_fn(value.ty.shape.clone(), |_| random.below(end as u64) as i64).cast(value.ty.dtype)
        };
        match limits.get(id) {
            Some(&limit) => integers(limit),
            None if !value.ty.dtype.is_float() => integers(3),
            None => Tensor::from_fn(value.ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(value.ty.dtype),
        }
    };
    graph.inputs().iter().map(input).collect()
}

/// The largest [`difference`] of several results.
fn largest_difference(got: &[Tensor], want: &[Tensor]) -> f64 {
    got.iter().zip(want).map(|(got, want)| difference(got, want)).fold(0.0, f64::max)
}

/// The largest difference, relative to the largest reference value. Infinite if only one of two elements is NaN.
pub(crate) fn difference(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().filter(|item| item.is_finite()).fold(1e-6f64, |largest, item| largest.max(item.abs()));
    let apart = |(got, want): (&f64, &f64)| match got == want || (got.is_nan() && want.is_nan()) {
        true => 0.0,
        false if got.is_nan() || want.is_nan() => f64::INFINITY,
        false => (got - want).abs() / largest,
    };
    got.iter().zip(&want).map(apart).fold(0.0, f64::max)
}

/// Times runs, by the host's clock and by the device's. A run may overwrite its inputs, so they are written before each:
/// numbers that a run left behind may be faster or slower to compute with.
#[expect(clippy::disallowed_methods, reason = "the time of a run is the result")]
pub(crate) fn timed(session: &mut Session, inputs: &[Vec<u8>], iters: usize) -> Result<BenchReport, RunError> {
    let warm = Instant::now();
    loop {
        write(session, inputs)?;
        session.run()?;
        if WARM <= warm.elapsed() {
            break;
        }
    }
    let mut seconds = Vec::with_capacity(iters);
    for _ in 0..iters {
        write(session, inputs)?;
        let start = Instant::now();
        session.run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let timed = |_| {
        write(session, inputs)?;
        session.run_timed(1)
    };
    let device: Result<Vec<Option<f64>>, RunError> = (0..iters).map(timed).collect();
    let device = device?.into_iter().flatten().collect();
    Ok(BenchReport::new(seconds, session.threads(), session.plan().batch).with_device(device))
}

#[cfg(test)]
mod tests {
    use cuda::MathMode;

    use super::*;

    #[test]
    fn tolerance_follows_the_rounding_of_operands() {
        let libraries = |cudnn, cublas| Libraries { cudnn, cublas, ..Libraries::default() };
        let (strict, tf32) = (Some(MathMode::Strict), Some(MathMode::Tf32));
        for (precision, libraries, inverse) in [
            (Precision::F32, libraries(None, None), 1000.0),
            (Precision::F32, libraries(strict, Some(MathMode::Exact)), 1000.0),
            (Precision::F32, libraries(tf32, strict), 128.0),
            (Precision::F32, libraries(None, tf32), 128.0),
            (Precision::Tf32, libraries(None, None), 128.0),
            (Precision::Bf16, libraries(strict, strict), 16.0),
        ] {
            assert_eq!(1.0 / tolerance(precision, libraries), inverse, "{precision:?}");
        }
    }

    #[test]
    fn tolerance_of_deep_networks_follows_the_processor() {
        let [steps, cpu] = [STEPS / 1024.0, 8.0e-3];
        assert_eq!(with_cpu(steps, Some(cpu)), 2.0 * cpu);
        assert_eq!(
            [Some(cpu / 4.0), Some(f64::NAN), Some(f64::INFINITY), None].map(|cpu| with_cpu(steps, cpu)),
            [steps; 4]
        );
        assert_eq!(rounded_dtype(Precision::F32), None);
    }

    /// Token types of BERT have a table of two rows.
    #[test]
    fn indices_are_inside_their_tables() {
        let request = source::Request { model: "all_minilm_l6_v2".into(), batch: Some(1), ..Default::default() };
        let graph = source::load(&request).expect("it is in the zoo").graph;
        let (inputs, limits) = (inputs(&graph), index_limits(&graph));
        assert!(limits.values().any(|&limit| limit == 2), "{limits:?}");
        let mut seen = 0;
        for (id, tensor) in graph.inputs().iter().zip(&inputs) {
            if let Some(&limit) = limits.get(id) {
                assert!(tensor.to_i64().iter().all(|ix| (0..limit as i64).contains(ix)), "{}", graph.value(*id).name);
                seen += 1;
            }
        }
        assert!(2 <= seen, "{limits:?}");
    }
}
