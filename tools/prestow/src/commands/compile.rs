//! `prestow compile`: a model becomes an executable.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use compiler::gpu::{self, GpuCompiler, Precision, TuneOptions, library_paths};
use compiler::residency::{self, Within};
use compiler::{BudgetChanges, Compiled, Goal, Optimize, Program, ProgramWeights, Region, TuneOutcome, source};
use cpu::Level;
use lower::Target;
use lower::cpu::CpuTarget;
use lower::cuda::CudaTarget;
use passes::training::Recipe;
use plan::{Phase, Plan, Training};
use serde_json::json;
use types::{Bytes, WeightFormat};

use super::stored_weights::{self, StoredWeights};
use super::{load_message, message, models, separate};
use crate::coverage::{Coverage, Fallbacks};
use crate::device;
use crate::dump::Dump;
use crate::flags::{Gpu, ModelFlags, TargetFlags, TargetSelection, TrainFlags, Tune, TuneFlags};
use crate::progress::Progress;
use crate::say;
use crate::tune;

/// Flags of `prestow compile`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Largest arena, as 4GiB, 3.5MiB or 1000000: the fastest plan that fits. `compile` and `memory` of
    /// the executable state its modelled time as a multiple of the fastest plan's.
    #[arg(long, value_name = "BYTES")]
    budget: Option<Bytes>,
    /// Most memory for arena and weights together, as 512MiB: of the weights, some stay in memory and the others
    /// are read from the executable in every run, ahead of the steps that use them. The rest of the process
    /// (program, threads, inputs) comes on top. On processors, without --train and --separate-weights.
    #[arg(long, value_name = "BYTES")]
    resident: Option<Bytes>,
    /// The quantity to minimize. Balanced: the fewest bytes within 2 % of the least modelled time.
    #[arg(long, value_name = "GOAL", value_enum, default_value_t = OptimizeFlag::Balanced)]
    optimize: OptimizeFlag,
    /// The executable (default target/prestow/NAME, NAME-train with --train).
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// The runner that the plan is appended to (default: prestow-runner in the folder of this program).
    #[arg(long, value_name = "FILE")]
    runner: Option<PathBuf>,
    /// Leave weights that `uprd serve --base DIR` can pack from the file of --weights or --params out of the executable.
    #[arg(long)]
    separate_weights: bool,
    /// Write the graph after each pass, as text.
    #[arg(long, value_name = "DIR")]
    dump_ir: Option<PathBuf>,
    /// List the networks of the zoo instead, as `prestow models`.
    #[arg(long)]
    list: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Model")]
    model: ModelFlags,
    #[command(flatten, next_help_heading = "Training")]
    train: TrainFlags,
    #[command(flatten, next_help_heading = "Target")]
    target: TargetFlags,
    #[command(flatten, next_help_heading = "Tuning")]
    tune: TuneFlags,
}

/// Values of `--optimize`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OptimizeFlag {
    Time,
    Balanced,
    Memory,
}

impl From<OptimizeFlag> for Optimize {
    fn from(flag: OptimizeFlag) -> Optimize {
        match flag {
            OptimizeFlag::Time => Optimize::Time,
            OptimizeFlag::Balanced => Optimize::Balanced,
            OptimizeFlag::Memory => Optimize::Memory,
        }
    }
}

/// The checked flags.
struct Job<'a> {
    args: &'a Args,
    request: source::Request,
    /// At least one. `None`: the batch of the model.
    batches: Vec<Option<usize>>,
    target: TargetSelection,
    precision: Precision,
    tune: Option<Tune>,
    /// How the model is trained, if it is.
    recipe: Option<Recipe>,
    /// The stored form of weights, if it is not `f32`.
    weights: Option<WeightFormat>,
}

impl Job<'_> {
    fn new(args: &Args) -> Result<Job<'_>, String> {
        let target = args.target.select()?;
        let [precision] = target.precisions[..] else {
            return Err("compile takes one --dtype; `prestow what-if` takes several".into());
        };
        if args.budget.is_some() && target.gpu.is_none() && precision != Precision::F32 {
            return Err("on a processor --budget needs --dtype f32; leave out one of them".into());
        }
        let batches = match args.model.batches()? {
            [] => vec![None],
            batches => batches.iter().copied().map(Some).collect(),
        };
        let (request, tune) = (args.model.request()?, args.tune.resolve(&target)?);
        let recipe = args.train.recipe(&request);
        if args.separate_weights {
            separate::check(&request, recipe.is_some())?;
        }
        if recipe.is_some() {
            check_training(&batches, &target, precision, tune.is_some())?;
        }
        if args.resident.is_some() {
            check_resident(args, &target, recipe.is_some())?;
        }
        let weights = args.model.weight_format()?;
        if let Some(format) = weights {
            stored_weights::check(format, target.gpu.is_some(), recipe.is_some(), precision)?;
        }
        let batches = match (&batches[..], args.train.default_batch(&request)) {
            ([None], Some(batch)) => vec![Some(batch)],
            _ => batches,
        };
        Ok(Job { args, request, batches, target, precision, tune, recipe, weights })
    }

    fn load(&self, batch: Option<usize>) -> Result<compiler::Model, String> {
        let request = source::Request { batch, ..self.request.clone() };
        let (model, of_batch) = source::load_noted(&request).map_err(load_message)?;
        if let Some(first) = of_batch.first() {
            say::note(&format!(
                "batch normalization `{first}`{} is in training mode and takes the statistics of the batch; add \
                 --inference-mode for its running statistics",
                others(of_batch.len())
            ));
        }
        Ok(model)
    }

    fn compile(
        &self,
        batch: Option<usize>,
        target: &dyn Target,
        watch: impl FnMut(&'static str, &ir::Graph),
    ) -> Result<Vec<Compiled>, String> {
        let goal = Goal { optimize: self.args.optimize.into(), budget: self.args.budget };
        let done = match &self.recipe {
            None => compiler::compile(self.load(batch)?, target, goal, watch).map(|compiled| vec![compiled]),
            Some(recipe) => {
                let request = source::Request { batch, ..self.request.clone() };
                let model = source::load_trainable(&request).map_err(load_message)?;
                let changed = exporter_notes(&model.trainable);
                changed.iter().for_each(|note| say::note(note));
                compiler::compile_training(model, recipe, target, goal, watch).map(Vec::from)
            }
        };
        done.map_err(|error| match self.batches.len() {
            1 => error.to_string(),
            _ => format!("batch {}: {error}", batch.unwrap_or_default()),
        })
    }

    /// Measures layers on the GPU of this machine, so that `compiler` prefers the fastest algorithms.
    fn tune_on_gpu(&self, tune: &Tune, compiler: &mut GpuCompiler) -> Result<TuneOutcome, String> {
        let gpu = cuda::driver::Gpu::open(0).map_err(|error| format!("--tune needs a GPU: {error}"))?;
        let mut plans_for = |target: &CudaTarget| {
            let of = |&batch: &Option<usize>| self.compile(batch, target, |_, _| {});
            let compiled = self.batches.iter().map(of).collect::<Result<Vec<_>, String>>()?;
            Ok(compiled.into_iter().flatten().map(|compiled| compiled.plan).collect())
        };
        let places = library_paths(&self.request.data);
        let progress = |line: &str| say::line(line);
        let (seconds, cache) = (tune.seconds, tune.cache.as_deref());
        gpu::tune(compiler, &gpu, &mut plans_for, &TuneOptions { seconds, cache, paths: &places, progress: &progress })
    }
}

/// Refuses options whose executables read no constants in a run.
fn check_resident(args: &Args, target: &TargetSelection, is_trained: bool) -> Result<(), String> {
    if is_trained {
        return Err(
            "--resident and --train exclude each other: weights of a step change, and are not read again".into()
        );
    }
    if target.gpu.is_some() {
        return Err("--resident is for processors: a GPU has all constants in its own memory".into());
    }
    match args.separate_weights {
        true => {
            Err("--resident and --separate-weights exclude each other: weights are read from the executable".into())
        }
        false => Ok(()),
    }
}

/// Refuses options that a step of training does not have.
fn check_training(
    batches: &[Option<usize>],
    target: &TargetSelection,
    precision: Precision,
    is_tuned: bool,
) -> Result<(), String> {
    if 1 < batches.len() {
        return Err(format!("--train takes one --batch, got {}", batches.len()));
    }
    target.check_training(precision)?;
    if is_tuned {
        return Err("--train and --tune exclude each other: kernels of a step are not measured".into());
    }
    Ok(())
}

/// Compiles a model and reports the plan.
#[expect(clippy::disallowed_methods, reason = "the report states how long compiling took")]
pub(crate) fn run(args: &Args) -> Result<String, String> {
    if args.list {
        return Ok(models::list(args.json));
    }
    let start = Instant::now();
    let job = Job::new(args)?;
    let runner = read_runner(args.runner.as_deref(), job.target.level)?;
    let output = output_path(args, &job.request, job.recipe.is_some())?;
    if let Some(cache) = job.tune.as_ref().and_then(|tune| tune.cache.as_ref())
        && files::is_same_output(cache, &output)
    {
        return Err(format!("-o and --tune-cache must be two files, got `{}` for both", output.display()));
    }
    let libraries = job.target.libraries.of(job.precision);
    let facts = job.target.gpu.as_ref().and_then(|gpu| gpu.facts.as_ref());
    let places = library_paths(&job.request.data);
    let find = |gpu: &Gpu| {
        let properties = facts.map(|(_, facts)| &facts.device);
        GpuCompiler::find(job.precision.configure(gpu.target.clone()), libraries, properties, &places)
    };
    let mut gpu = job.target.gpu.as_ref().map(find).transpose()?;
    let mut dump = args.dump_ir.as_deref().map(Dump::new).transpose()?;
    let least_batch = job.batches.iter().copied().min().flatten();
    let mut processor = CpuTarget { images: least_batch, weights: job.weights, ..job.target.cpu(job.precision) };
    let tuning = match (&job.tune, &mut gpu) {
        (None, _) => None,
        (Some(options), None) => {
            let largest = job.batches.iter().copied().max().flatten();
            let (tuned, outcome) = tune::tune(job.load(largest)?, options, &processor)?;
            processor.tuned = tuned;
            Some(outcome)
        }
        (Some(options), Some(gpu)) => Some(job.tune_on_gpu(options, gpu)?),
    };
    let target: &dyn Target = match &gpu {
        Some(gpu) => &gpu.target,
        None => &processor,
    };
    let progress = Progress::spinner("loading the model");
    let mut compiled = Vec::with_capacity(job.batches.len());
    let mut fallbacks = Vec::new();
    let mut stored = StoredWeights::default();
    for (ix, &batch) in job.batches.iter().enumerate() {
        let watch = |pass: &'static str, graph: &ir::Graph| {
            progress.message(format!("{}: {pass} is done", graph.name));
            // The graphs of other batches differ in extents only.
            if let (0, Some(dump)) = (ix, &mut dump) {
                dump.show(pass, graph);
            }
            if let (0, Some(_)) = (ix, job.weights) {
                stored.watch(pass, graph);
            }
            if let ("schedule", Some(gpu)) = (pass, &gpu) {
                fallbacks.push(Fallbacks::of(&gpu.target, graph));
            }
        };
        compiled.append(&mut job.compile(batch, target, watch)?);
    }
    if let Some(gpu) = &gpu {
        progress.message("compiling kernels with NVRTC");
        for (ix, compiled) in compiled.iter_mut().enumerate() {
            let source = gpu.finish(&mut compiled.plan)?;
            if let (0, Some(dump)) = (ix, &mut dump) {
                dump.write("kernels.cu", source.as_bytes())?;
            }
        }
    }
    if let Some(dump) = dump {
        dump.finish()?;
    }
    job.weights.map_or(Ok(()), |format| stored.check(format))?;
    let fits: Vec<Option<BudgetChanges>> = compiled.iter().map(|compiled| compiled.fit.clone()).collect();
    let mut program = match args.separate_weights {
        true => separate::program(compiled, &job.request)?,
        false => Program::join(compiled),
    };
    if let Some(limit) = args.resident
        && residency::within(&mut program, limit).map_err(message)? == Within::Whole
    {
        say::note(&format!("all weights fit into {limit} with the arena: none are read in a run"));
    }
    let cudnn = gpu.as_ref().and_then(GpuCompiler::cudnn_version);
    if let Some(note) = facts.and_then(|(file, facts)| device::version_mismatch(file, facts, cudnn.as_deref())) {
        say::note(&note);
    }
    let coverage = Coverage::all(libraries, cudnn, &program, &fallbacks);
    if let Some((file, facts)) = facts {
        device::check_capacity(file, facts, &program)?;
    }
    progress.bytes(program.constants.size(), &format!("packing weights for {}", output.display()));
    compiler::write_executable(&output, &runner, &mut program, |bytes| progress.done(bytes)).map_err(message)?;
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();
    Ok(match args.json {
        true => {
            let mut report = as_json(&program, &fits, tuning.as_ref(), &output, seconds);
            if let Some((file, facts)) = facts {
                report["device"] = device::as_json(file, facts, &program);
            }
            if let Some(format) = job.weights {
                report["stored_weights"] = stored.as_json(format);
            }
            for library in &coverage {
                report[library.key] = library.json();
            }
            format!("{report:#}\n")
        }
        false => {
            let device = match (facts, &gpu) {
                (Some((file, facts)), _) => device::as_text(file, facts, &program),
                (None, Some(gpu)) => device::without_description(gpu.target.arch()),
                (None, None) => String::new(),
            };
            let coverage: String = coverage.iter().map(|library| library.text(job.target.verbose)).collect();
            let stored = job.weights.map(|format| stored.as_text(format)).unwrap_or_default();
            as_text(&program, &fits, tuning.as_ref(), &(stored + &coverage + &device)) + &wrote(&output, seconds)
        }
    })
}

/// The largest runner.
const RUNNER_MAX: Bytes = Bytes(1 << 30);
/// A modelled time of a run, of that without a budget, that is worth a larger budget.
const SLOW: f64 = 2.0;

/// Reads the runner for the architecture of a level.
fn read_runner(given: Option<&Path>, level: Level) -> Result<Vec<u8>, String> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => {
            let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
            own.with_file_name("prestow-runner")
        }
    };
    let runner = files::read(&path, RUNNER_MAX)
        .map_err(|error| format!("no runner: {error}; build it with `cargo build --release -p prestow-runner`"))?;
    match architecture(&runner) {
        Some(arch) if arch == level.arch => Ok(runner),
        arch => Err(format!(
            "the runner `{}` must be for {}, got one for {}; build one with `cargo build --release -p prestow-runner \
             --target {}-unknown-linux-gnu` and name it with --runner",
            path.display(),
            level.arch,
            arch.unwrap_or("an unknown processor"),
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

fn output_path(args: &Args, request: &source::Request, is_training: bool) -> Result<PathBuf, String> {
    let suffix = if is_training { "-train" } else { "" };
    let output = match &args.output {
        Some(path) => path.clone(),
        None => Path::new("target/prestow").join(request.name() + suffix),
    };
    if output.is_dir() {
        return Err(format!("`{}` is a directory; name a file with -o", output.display()));
    }
    Ok(output)
}

fn as_json(
    program: &Program,
    fits: &[Option<BudgetChanges>],
    tuning: Option<&TuneOutcome>,
    output: &Path,
    seconds: f64,
) -> serde_json::Value {
    let plans = program.plans.iter().zip(fits).map(|(plan, fit)| plan_json(plan, fit.as_ref()));
    let mut plans: Vec<serde_json::Value> = plans.collect();
    let mut report = plans[0].take();
    report["output"] = json!(output);
    report["compile_ms"] = json!(seconds * 1e3);
    if program.weights == ProgramWeights::Separate {
        report["separate_weights"] = separate::as_json(program);
    }
    if let Some(TuneOutcome { measured, known, changed, cache, .. }) = tuning {
        let layers = measured + known;
        report["tuned"] = json!({ "layers": layers, "measured": measured, "changed": changed, "cache": cache });
    }
    if let Phase::Training(training) = &program.plans[0].phase {
        report["loss"] = json!(training.loss);
        report["optimizer"] = json!(training.optimizer);
        report["evaluation"] = plans[1].take();
    } else if 1 < plans.len() {
        report["other_batches"] = json!(plans[1..]);
        report["shared_arena_bytes"] = json!(device::shared_arena(program).0);
    }
    report
}

fn plan_json(plan: &Plan, fit: Option<&BudgetChanges>) -> serde_json::Value {
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
        "order": {
            "bound_bytes": plan.order.lower_bound.0,
            "least_bytes": plan.order.least.0,
            "state": plan.order.proof().name(),
        },
        "any_kernels_bytes": plan.any_kernels.0,
        "proved": plan.certificates().texts(),
        "weights_bytes": plan.constants_size.0,
        "code_bytes": code_bytes(plan).0,
        "steps": plan.steps.len(),
        "parameters": plan.parameters,
        "flops": plan.flops,
        "resident": plan.residency.as_ref().map(|residency| json!({
            "limit_bytes": residency.limit.0,
            "block_bytes": residency.size.0,
            "kept_bytes": residency.kept.iter().map(|kept| plan.resident_size(kept).0).sum::<u64>(),
            "read_bytes": plan.read_size().0,
            "least_read_bytes": plan.least_read_size().0,
            "reads": residency.reads.len(),
        })),
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

fn as_text(program: &Program, fits: &[Option<BudgetChanges>], tuning: Option<&TuneOutcome>, device: &str) -> String {
    let mut text = String::new();
    for (plan, fit) in program.plans.iter().zip(fits) {
        let what = match &plan.phase {
            Phase::Inference => String::new(),
            Phase::Training(Training { loss, optimizer, .. }) => format!(", a step of training: {loss}, {optimizer}"),
            Phase::Evaluation(_) => ", evaluation".to_string(),
        };
        let _ = writeln!(text, "{} for {}, batch {}{what}", plan.model, plan.target, plan.batch);
        let _ = writeln!(
            text,
            "  {} steps, {:.2} M parameters, {:.2} GFLOP per run",
            plan.steps.len(),
            plan.parameters as f64 / 1e6,
            plan.flops as f64 / 1e9
        );
        let proved = plan.certificates();
        let _ =
            writeln!(text, "  arena {}, {}; weights {}", plan.arena.size(), proved.placement(), plan.constants_size);
        let _ = writeln!(text, "  order {}", proved.any_order());
        let _ = writeln!(text, "  kernels {}", proved.any_kernels());
        if !plan.modules.is_empty() {
            let planned = plan.arena.size() + plan.constants_size;
            let _ = writeln!(text, "  device memory {planned}, and {} of code", code_bytes(plan));
        }
        for (scope, size) in largest_scopes(plan) {
            let _ = writeln!(text, "  {size:>12}  {scope}");
        }
        if let Some(residency) = &plan.residency {
            let stay: Bytes = residency.kept.iter().map(|kept| plan.resident_size(kept)).sum();
            let _ = writeln!(
                text,
                "  weights in memory {} of {}: {stay} stay, a run reads {} (no order of reads needs less than {})",
                residency.size,
                plan.constants_size,
                plan.read_size(),
                plan.least_read_size()
            );
        }
        let Some(fit) = fit else { continue };
        let _ = writeln!(text, "  the fastest plan needs {}; modelled time of a run x {:.2}", fit.unlimited, fit.cost);
        if SLOW <= fit.cost {
            let _ = writeln!(text, "  this budget is near the smallest arena: a larger one may cost much less time");
        }
        for Region { first, last, axis, stripes } in &fit.regions {
            let of = ["of the batch", "of tokens"].get(*axis).unwrap_or(&"of rows");
            let _ = writeln!(text, "  {stripes} stripes {of}: {first} to {last}");
        }
    }
    if 1 < program.plans.len() && program.plans[0].phase == Phase::Inference {
        let _ = writeln!(text, "one arena for all: {}", device::shared_arena(program));
    }
    if program.weights == ProgramWeights::Separate {
        text.push_str(&separate::as_text(program));
    }
    text.push_str(device);
    if let Some(TuneOutcome { measured, known, changed, cache, .. }) = tuning {
        let layers = measured + known;
        let _ = writeln!(
            text,
            "tuned: {layers} layers, {measured} measured, {known} from {}; {changed} differ from the default",
            cache.display()
        );
    }
    text
}

/// The size of the machine code for a GPU.
fn code_bytes(plan: &Plan) -> Bytes {
    Bytes(plan.modules.iter().map(|module| module.code.len() as u64).sum())
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

/// The number of names behind the first of `count`, in words.
fn others(count: usize) -> String {
    match count {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    }
}

/// Parameters that an exporter merged or computed ahead, which are then not trained as in the original program.
fn exporter_notes(model: &ir::Trainable) -> Vec<String> {
    let remedy = "to train the parameters themselves, export with `optimize=False`";
    let folded = model.folded.first().map(|(weight, parameter)| {
        format!(
            "the exporter computed weight `{weight}`{} from parameter `{parameter}`, and the weight is trained in its place; \
             {remedy}",
            others(model.folded.len())
        )
    });
    let missing = model.missing.first().map(|parameter| {
        format!(
            "the file has no tensor of parameter `{parameter}`{}: the exporter joined it with an equal tensor, which is \
             trained as one, or removed it; {remedy}",
            others(model.missing.len())
        )
    });
    folded.into_iter().chain(missing).collect()
}
