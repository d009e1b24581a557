//! `prestow compile`: a model becomes an executable.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use compiler::gpu::{self, GpuCompiler, TuneOptions, library_places};
use compiler::{Compiled, Fit, Program, Region, TuneOutcome, source};
use cpu::Level;
use lower::Target;
use lower::cpu::CpuTarget;
use plan::Plan;
use serde_json::json;
use types::Bytes;

use crate::arguments::{Compile, Gpu, Tune};
use crate::device::{self, Left, Library};
use crate::dump::Dump;
use crate::tune;

/// Compiles and says what came of it.
#[expect(clippy::disallowed_methods, reason = "how long compiling takes is told, and goes nowhere else")]
pub(crate) fn compile(request: &Compile) -> Result<String, String> {
    let start = Instant::now();
    let [numbers] = request.dtypes[..] else {
        return Err("--dtype takes one dtype for an executable; what-if takes several".into());
    };
    let runner = read_runner(request.runner.as_deref(), request.level)?;
    let output = output_path(request)?;
    let gpu = request.device.as_ref();
    let libraries = request.libraries.of(numbers);
    let facts = gpu.and_then(|gpu| gpu.facts.as_ref());
    let properties = facts.map(|(_, facts)| &facts.device);
    let places = library_places(&request.source.data);
    let find = |gpu: &Gpu| GpuCompiler::find(numbers.configure(gpu.target.clone()), libraries, properties, &places);
    let mut device = gpu.map(find).transpose()?;
    let mut dump = request.dump_ir.as_deref().map(Dump::new).transpose()?;
    let (dtype, pictures) = (numbers.dtype(), request.batches.iter().copied().min());
    let mut processor = CpuTarget { level: request.level, exact: request.exact, dtype, pictures, ..CpuTarget::new() };
    let batches = match &request.batches[..] {
        [] => vec![None],
        batches => batches.iter().copied().map(Some).collect(),
    };
    let tuning = match (&request.tune, &mut device) {
        (None, _) => None,
        (Some(how), None) => {
            let (tuned, outcome) = tune::tune(request, how, &processor)?;
            processor.tuned = tuned;
            Some(outcome)
        }
        (Some(how), Some(device)) => Some(tune_on_gpu(request, how, device, &batches)?),
    };
    let target: &dyn Target = match &device {
        Some(device) => &device.target,
        None => &processor,
    };
    let mut compiled = Vec::with_capacity(batches.len());
    let mut left = Vec::new();
    for (ix, &batch) in batches.iter().enumerate() {
        let model = source::load(&source::Request { batch, ..request.source.clone() });
        let model = model.map_err(|error| error.to_string())?;
        let watch = |pass: &'static str, graph: &ir::Graph| {
            // The graphs of other batches differ in extents only.
            if let (0, Some(dump)) = (ix, &mut dump) {
                dump.show(pass, graph);
            }
            if let ("schedule", Some(device)) = (pass, &device) {
                left.push(Left::of(&device.target, graph));
            }
        };
        let done = compiler::compile(model, target, request.budget, watch);
        compiled.push(done.map_err(|error| match batches.len() {
            1 => error.to_string(),
            _ => format!("batch {}: {error}", batch.unwrap_or_default()),
        })?);
    }
    if let Some(device) = &device {
        for (ix, compiled) in compiled.iter_mut().enumerate() {
            let source = device.finish(&mut compiled.plan)?;
            if let (0, Some(dump)) = (ix, &mut dump) {
                dump.write("kernels.cu", source.as_bytes())?;
            }
        }
    }
    if let Some(dump) = dump {
        dump.finish()?;
    }
    let fits: Vec<Option<Fit>> = compiled.iter().map(|compiled| compiled.fit.clone()).collect();
    let program = Program::join(compiled);
    let cudnn = device.as_ref().and_then(GpuCompiler::cudnn_version);
    if let Some(note) = facts.and_then(|(file, facts)| device::other_version(file, facts, cudnn.as_deref())) {
        eprintln!("note: {note}");
    }
    let libraries = Library::all(libraries, cudnn, &program, &left);
    if let Some((file, facts)) = facts {
        device::fits(file, facts, &program)?;
    }
    compiler::write_executable(&output, &runner, &program).map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(match request.json {
        true => {
            let mut report = as_json(&program, &fits, tuning.as_ref(), &output, seconds);
            if let Some((file, facts)) = facts {
                report["device"] = device::as_json(file, facts, &program);
            }
            for library in &libraries {
                report[library.key] = library.json();
            }
            format!("{report:#}\n")
        }
        false => {
            let device = match (facts, &device) {
                (Some((file, facts)), _) => device::as_text(file, facts, &program),
                (None, Some(device)) => device::unknown(device.target.arch()),
                (None, None) => String::new(),
            };
            let libraries: String = libraries.iter().map(|library| library.text(request.verbose)).collect();
            as_text(&program, &fits, tuning.as_ref(), &(libraries + &device)) + &wrote(&output, seconds)
        }
    })
}

/// Has a device prefer what is fastest on the GPU at hand for a model's layers.
fn tune_on_gpu(
    request: &Compile,
    how: &Tune,
    device: &mut GpuCompiler,
    batches: &[Option<usize>],
) -> Result<TuneOutcome, String> {
    let gpu = cuda::driver::Gpu::open(0).map_err(|error| format!("--tune measures on a GPU: {error}"))?;
    let compiled = |&batch: &Option<usize>| {
        let model = source::load(&source::Request { batch, ..request.source.clone() });
        let model = model.map_err(|error| error.to_string())?;
        compiler::compile(model, &device.target, request.budget, |_, _| {}).map_err(|error| error.to_string())
    };
    let compiled: Vec<Compiled> = batches.iter().map(compiled).collect::<Result<_, String>>()?;
    let plans: Vec<&Plan> = compiled.iter().map(|compiled| &compiled.plan).collect();
    let places = library_places(&request.source.data);
    let progress = |line: &str| eprintln!("{line}");
    let (seconds, cache) = (how.seconds, how.cache.as_deref());
    gpu::tune(device, &gpu, &plans, &TuneOptions { seconds, cache, places: &places, progress: &progress })
}

/// The bytes of the runner for a level's architecture.
fn read_runner(given: Option<&Path>, level: Level) -> Result<Vec<u8>, String> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => {
            let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
            own.with_file_name("prestow-runner")
        }
    };
    let runner = std::fs::read(&path).map_err(|error| {
        format!(
            "cannot read the runner `{}`: {error}; build it with `cargo build --release -p prestow-runner`",
            path.display()
        )
    })?;
    match architecture(&runner) {
        Some(arch) if arch == level.arch => Ok(runner),
        arch => Err(format!(
            "the runner `{}` is for {}, not for {}; build one with `cargo build --release -p prestow-runner --target \
             {}-unknown-linux-gnu` and name it with --runner",
            path.display(),
            arch.unwrap_or("no processor that is known"),
            level.name,
            level.arch
        )),
    }
}

/// The architecture of an ELF file, by its header's `e_machine` (System V ABI, "ELF Header").
fn architecture(file: &[u8]) -> Option<&'static str> {
    let header: &[u8; 20] = file.first_chunk()?;
    match (&header[..4], u16::from_le_bytes([header[18], header[19]])) {
        (b"\x7fELF", 62) => Some("x86_64"),
        (b"\x7fELF", 183) => Some("aarch64"),
        _ => None,
    }
}

fn output_path(request: &Compile) -> Result<PathBuf, String> {
    let output = match &request.output {
        Some(path) => path.clone(),
        None => Path::new("target/prestow").join(request.source.name()),
    };
    if output.is_dir() {
        return Err(format!("`{}` is a directory; name a file with -o", output.display()));
    }
    Ok(output)
}

fn as_json(
    program: &Program,
    fits: &[Option<Fit>],
    tuning: Option<&TuneOutcome>,
    output: &Path,
    seconds: f64,
) -> serde_json::Value {
    let plans = program.plans.iter().zip(fits).map(|(plan, fit)| plan_json(plan, fit.as_ref()));
    let mut plans: Vec<serde_json::Value> = plans.collect();
    let mut report = plans[0].take();
    report["output"] = json!(output);
    report["compile_ms"] = json!(seconds * 1e3);
    if let Some(TuneOutcome { measured, known, changed, cache, .. }) = tuning {
        let layers = measured + known;
        report["tuned"] = json!({ "layers": layers, "measured": measured, "changed": changed, "cache": cache });
    }
    if 1 < plans.len() {
        report["other_batches"] = json!(plans[1..]);
        report["shared_arena_bytes"] = json!(shared_arena(program).0);
    }
    report
}

fn plan_json(plan: &Plan, fit: Option<&Fit>) -> serde_json::Value {
    let region = |region: &Region| json!({ "first": region.first, "last": region.last, "axis": region.axis, "stripes": region.stripes });
    json!({
        "model": plan.model,
        "target": plan.target,
        "batch": plan.batch,
        "arena_bytes": plan.arena.size().0,
        "lower_bound_bytes": plan.arena.certificate.lower_bound.0,
        "least_bytes": plan.arena.certificate.least.0,
        "state": plan.arena.certificate.proof().name(),
        "optimal": plan.arena.certificate.is_optimal(),
        "weights_bytes": plan.constants_size.0,
        "code_bytes": code_bytes(plan).0,
        "steps": plan.steps.len(),
        "parameters": plan.parameters,
        "flops": plan.flops,
        "fit": fit.map(|fit| json!({
            "unlimited_arena_bytes": fit.unlimited.0,
            "modelled_cost": fit.cost,
            "regions": fit.regions.iter().map(region).collect::<Vec<_>>(),
        })),
    })
}

fn wrote(output: &Path, seconds: f64) -> String {
    format!("wrote {} in {seconds:.2} s; run it\n", output.display())
}

fn as_text(program: &Program, fits: &[Option<Fit>], tuning: Option<&TuneOutcome>, device: &str) -> String {
    let mut text = String::new();
    for (plan, fit) in program.plans.iter().zip(fits) {
        let _ = writeln!(text, "{} for {}, batch {}", plan.model, plan.target, plan.batch);
        let _ = writeln!(
            text,
            "  {} steps, {:.2} M parameters, {:.2} GFLOP a run",
            plan.steps.len(),
            plan.parameters as f64 / 1e6,
            plan.flops as f64 / 1e9
        );
        let proof = plan.arena.certificate.text();
        let _ = writeln!(text, "  arena {}, {proof}; weights {}", plan.arena.size(), plan.constants_size);
        if !plan.modules.is_empty() {
            let planned = plan.arena.size() + plan.constants_size;
            let _ = writeln!(text, "  device memory {planned}; its code takes {} more", code_bytes(plan));
        }
        for (scope, size) in largest_scopes(plan) {
            let _ = writeln!(text, "  {size:>12}  {scope}");
        }
        let Some(fit) = fit else { continue };
        let _ = writeln!(text, "  without a budget {}; modelled cost of a run x {:.2}", fit.unlimited, fit.cost);
        for Region { first, last, axis, stripes } in &fit.regions {
            let of = if *axis == 0 { "of the batch" } else { "of rows" };
            let _ = writeln!(text, "  {stripes} stripes {of}: {first} to {last}");
        }
    }
    if 1 < program.plans.len() {
        let _ = writeln!(text, "one arena for all: {}", shared_arena(program));
    }
    text.push_str(device);
    if let Some(TuneOutcome { measured, known, changed, cache, .. }) = tuning {
        let layers = measured + known;
        let _ = writeln!(
            text,
            "tuned: {layers} layers, {measured} of them measured, {known} known from {}; {changed} otherwise than without",
            cache.display()
        );
    }
    text
}

/// The machine code of a device.
fn code_bytes(plan: &Plan) -> Bytes {
    Bytes(plan.modules.iter().map(|module| module.code.len() as u64).sum())
}

/// The arena that serves whichever plan runs.
pub(crate) fn shared_arena(program: &Program) -> Bytes {
    program.plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default()
}

/// The three largest buffers alive at the peak.
fn largest_scopes(plan: &Plan) -> Vec<(String, Bytes)> {
    let step = plan.arena.peak_step;
    let alive = plan.buffers.iter().filter(|buffer| (buffer.first_step..=buffer.last_step).contains(&step));
    let mut largest: Vec<(String, Bytes)> = alive.map(|buffer| (buffer.tag.to_string(), buffer.size)).collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(3);
    largest
}

/// The networks that have a name.
pub(crate) fn models(json: bool) -> String {
    let models = source::models();
    if json {
        let row = |model: &source::Listed| {
            let input = |(name, ty): &(&str, ir::TensorType)| json!({ "name": name, "dtype": ty.dtype.to_string(), "shape": ty.shape.to_vec() });
            json!({
                "name": model.name,
                "title": model.title,
                "parameters": model.parameters,
                "flops": model.flops,
                "inputs": model.inputs.iter().map(input).collect::<Vec<_>>(),
                "pretrained": model.pretrained,
            })
        };
        return format!("{:#}\n", json!(models.iter().map(row).collect::<Vec<_>>()));
    }
    let mut text = format!("{:<24} {:>12} {:>9}  inputs at batch 1\n", "name", "parameters", "GFLOP");
    for model in models {
        let inputs: Vec<String> = model.inputs.iter().map(|(name, ty)| format!("{name} {ty}")).collect();
        let pretrained = if model.pretrained { "  --pretrained" } else { "" };
        let gflop = model.flops as f64 / 1e9;
        let inputs = inputs.join(", ");
        let _ = writeln!(text, "{:<24} {:>12} {gflop:>9.3}  {inputs}{pretrained}", model.name, model.parameters);
    }
    text
}
