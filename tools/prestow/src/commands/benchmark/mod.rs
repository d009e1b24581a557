//! `prestow benchmark`: compiles a model, runs it, and prints DLBS's result lines.
//!
//! Result lines go to standard output, everything else to standard error. A batch that cannot run is a failure row, and the
//! larger batches of the list are skipped if it does not fit.

mod args;
mod input;
mod peer;
mod session;

use std::cell::{Cell, RefCell};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use bench_suite::{
    BenchResult, Comparison, Machine, MachineWatch, RawSeries, RawTimes, Scenario, ScenarioLimits, ScenarioResult,
    ServerRun, Subject, Summary, answer_queries, bisect_rate, lines, now_ns,
};
use compiler::source;
use plan::Plan;
use runtime::ImageFile;
use serde_json::json;
use types::Bytes;

use super::Answer;
use crate::say;
pub(crate) use args::Args;
use args::{DeviceKind, Phase};
use input::Inputs;
use session::SessionSubject;

/// A checked command line.
struct Job<'a> {
    args: &'a Args,
    phase: Phase,
    /// The model as given.
    given: &'a str,
    model: &'a str,
    title: String,
    target: String,
    gpu: Option<usize>,
    dtype: &'static str,
    scenario: Option<Scenario>,
    folder: Scratch,
    /// The times of --raw.
    raw: RefCell<RawTimes>,
    /// Whether the output has times.
    has_times: Cell<bool>,
}

/// The end of a row.
enum Row {
    Done(Box<BenchResult>),
    /// The plan needs more memory than there is.
    DoesNotFit(String),
    Failed(String),
}

impl<'a> Job<'a> {
    fn new(args: &'a Args) -> Result<Job<'a>, String> {
        let given = args.model.as_deref().or(args.positional.as_deref()).expect("clap requires one of them");
        let listed = source::models();
        // A name that only DLBS's networks have.
        let of_dlbs = format!("dlbs/{given}");
        let is_known = listed.iter().any(|own| own.name == given) || Path::new(given).exists();
        let of_dlbs = listed.iter().find(|own| own.name == of_dlbs).filter(|_| !is_known);
        let model = of_dlbs.map_or(given, |own| own.name);
        let phase = args.phase.unwrap_or(match args.forward_only {
            Some(false) => Phase::Training,
            Some(true) | None => Phase::Inference,
        });
        let options: serde_json::Value =
            serde_json::from_str(&args.model_opts).map_err(|error| format!("--model_opts must be JSON: {error}"))?;
        if options.as_object().is_none_or(|options| !options.is_empty()) {
            return Err(format!("--model_opts must be {{}}: networks of the zoo have no options, got {options}"));
        }
        if args.num_gpus.is_some_and(|count| 1 < count) {
            return Err(format!(
                "--num_gpus must be 1: a benchmark runs on one device, got {}",
                args.num_gpus.unwrap_or(0)
            ));
        }
        let gpu = match args.gpus.as_deref() {
            None | Some("") => (args.device == Some(DeviceKind::Gpu)).then_some(0),
            Some(number) => Some(number.parse().map_err(|_| {
                format!("--gpus takes the number of one GPU: a benchmark runs on one device, got `{number}`")
            })?),
        };
        let target = match (&args.target, gpu) {
            (Some(target), _) => target.clone(),
            (None, None) => "cpu".into(),
            (None, Some(_)) => "cuda:sm_90".into(),
        };
        let dtype = match &args.dtype[..] {
            "float" | "float32" | "f32" => "f32",
            "float16" | "f16" => "f16",
            "bf16" => "bf16",
            "tf32" => "tf32",
            other => return Err(format!("--dtype takes float32, float16, bf16 or tf32, got `{other}`")),
        };
        let scenario = args.scenario.as_deref().map(Scenario::from_str).transpose()?;
        if scenario == Some(Scenario::Server) && args.latency_bound.is_none() {
            return Err("the server scenario needs a bound: --latency-bound MS".into());
        }
        if args.answer_queries && (1 < args.batches.len() || 1 < args.threads.len()) {
            return Err("--answer-queries takes one batch and one number of threads".into());
        }
        if args.framework != "prestow" {
            peer::check(&args.framework)?;
            if scenario.is_some()
                || args.against.is_some()
                || 0 < args.cold
                || args.answer_queries
                || args.data.is_some()
                || args.data_dir.is_some()
            {
                return Err("a peer runs a plain loop on synthetic inputs; leave out the other flags".into());
            }
        }
        let title = listed.iter().find(|listed| listed.name == model).map(|listed| listed.title.to_string());
        let stem = Path::new(model).file_stem().unwrap_or_default().to_string_lossy();
        let title = title.unwrap_or_else(|| stem.into_owned());
        let is_plain = args.framework == "prestow" && scenario.is_none() && args.cold == 0 && !args.answer_queries;
        if phase == Phase::Training && !is_plain {
            return Err(
                "training is measured in a plain loop of prestow; leave out --framework, --scenario and --cold".into(),
            );
        }
        Ok(Job {
            args,
            phase,
            given,
            model,
            title,
            target,
            gpu,
            dtype,
            scenario,
            folder: Scratch::new()?,
            raw: RefCell::default(),
            has_times: Cell::default(),
        })
    }

    /// The lines before all rows, which DLBS's reports read of failures too.
    fn described(&self) -> String {
        let version = json!(env!("CARGO_PKG_VERSION"));
        let dtype = match self.dtype {
            "f32" => "float32",
            "f16" => "float16",
            other => other,
        };
        let gpus = self.gpu.map_or_else(String::new, |gpu| gpu.to_string());
        let data = self.data().ok().flatten().unwrap_or_else(|| "synthetic".into());
        let mut rows = vec![
            ("prestow.version", version.clone()),
            ("exp.framework", json!(self.args.framework)),
            ("exp.framework_title", json!(self.args.framework)),
            ("exp.phase", json!(self.phase.name())),
            ("exp.model", json!(self.given)),
            ("exp.model_title", json!(self.title)),
            ("exp.dtype", json!(dtype)),
            ("exp.data", json!(data)),
            ("exp.device_type", json!(if self.gpu.is_some() { "gpu" } else { "cpu" })),
            ("exp.gpus", json!(gpus)),
            ("exp.num_gpus", json!(usize::from(self.gpu.is_some()))),
        ];
        if self.args.framework == "prestow" {
            rows.push(("exp.framework_ver", version));
        }
        rows.iter().map(|(key, value)| lines::line(key, value)).collect()
    }

    /// The processor or GPU as DLBS's reports name it.
    fn device_title(&self, result: &BenchResult) -> String {
        match self.gpu {
            Some(_) => result.device.clone(),
            None => result.machine.processor.clone().unwrap_or_else(|| result.device.clone()),
        }
    }

    /// The batches to run; `None` is the batch of the model.
    fn batches(&self) -> Vec<Option<u64>> {
        match &self.args.batches[..] {
            [] => vec![None],
            batches => batches.iter().copied().map(Some).collect(),
        }
    }

    fn threads(&self) -> Vec<usize> {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        match &self.args.threads[..] {
            [] => vec![(all / self.args.concurrency).max(1)],
            threads => threads.to_vec(),
        }
    }

    /// The executable: the given one, or compiled by a process of this program.
    fn executable(&self, batch: Option<u64>) -> Result<PathBuf, String> {
        let given = Path::new(self.model);
        if given.is_file() && is_image(given) {
            // A name without a folder would be searched for in PATH.
            return std::path::absolute(given).map_err(|error| format!("`{}`: {error}", given.display()));
        }
        let path = self.folder.0.join(format!("model-{}", batch.unwrap_or(0)));
        let mut words = vec!["compile".to_string(), self.model.into(), "-o".into(), path.display().to_string()];
        words.extend(["--target".into(), self.target.clone(), "--dtype".into(), self.dtype.into()]);
        words.extend(batch.map(|batch| format!("--batch={batch}")));
        words.extend((self.phase == Phase::Training).then(|| "--train".into()));
        words.extend(self.args.compile.iter().cloned());
        own_program(&words)?;
        Ok(path)
    }

    /// Memory of the device.
    fn capacity(&self) -> Option<Bytes> {
        let file = Path::new(&self.target);
        let described = || {
            let text = self.target.ends_with(".json").then(|| files::read_text(file, DESCRIPTION_MAX).ok())??;
            let facts: serde_json::Value = serde_json::from_str(&text).ok()?;
            facts["device"]["total_global_mem"].as_u64()
        };
        let free = || match self.target.starts_with("cpu") {
            true => Machine::available_bytes(),
            false => None,
        };
        self.args.memory.or_else(|| described().or_else(free).map(Bytes))
    }

    fn row(&self, batch: Option<u64>, threads: usize) -> Row {
        match self.measure(batch, threads) {
            Ok(row) => row,
            Err(reason) => Row::Failed(reason),
        }
    }

    fn measure(&self, batch: Option<u64>, threads: usize) -> Result<Row, String> {
        let path = self.executable(batch)?;
        let image = open_image(&path)?;
        let plan = self.phase.plan(&image, batch).ok_or_else(|| {
            let of_batch = batch.map_or(String::new(), |batch| format!(" and batch {batch}"));
            format!(
                "the executable needs a plan for {}{of_batch}, it has one for {} and batch {}",
                self.phase.name(),
                if train::is_step(&image.plans[0]) { "training" } else { "inference" },
                image.plans[0].batch
            )
        })?;
        let need = planned(plan, self.args.concurrency);
        if let Some(capacity) = self.capacity().filter(|capacity| *capacity < need) {
            return Ok(Row::DoesNotFit(format!("does not fit: needs {need} of {capacity}")));
        }
        let watch = MachineWatch::start();
        let mut result = match &self.args.framework[..] {
            "prestow" => self.run_session(&path, &image, plan, threads)?,
            peer => self.run_peer(peer, &image, plan, threads)?,
        };
        result.planned_bytes = need.0;
        result.digest = Some(session::digest(&path)?);
        result.phase = self.phase.name().into();
        (result.dtype, result.target) = (self.dtype.into(), plan.target.clone());
        (result.framework, result.with_copies) = (self.args.framework.clone(), self.args.copies);
        result.notes = watch.notes();
        Ok(Row::Done(Box::new(result)))
    }

    fn open(&self, image: &ImageFile, plan: &Arc<Plan>, threads: usize, seed: u64) -> Result<SessionSubject, String> {
        let session = session::open(image, plan, threads, self.gpu)?;
        SessionSubject::new(session, session::synthetic(plan, seed), self.args.copies)
    }

    fn run_session(
        &self,
        path: &Path,
        image: &ImageFile,
        plan: &Arc<Plan>,
        threads: usize,
    ) -> Result<BenchResult, String> {
        let args = self.args;
        let mut subject = self.open(image, plan, threads, args.seed)?;
        let mut inputs = self.data()?.map(|spec| Inputs::open(&spec, plan, args)).transpose()?;
        let mut step = |subject: &mut SessionSubject| -> Result<u64, String> {
            let start = now_ns();
            if let Some(inputs) = &mut inputs {
                inputs.next(subject)?;
            }
            subject.run()?;
            Ok(now_ns() - start)
        };
        // A run is complete when it returns, so that no warm-up is left in the first timed batch.
        for _ in 0..args.num_warmup_batches {
            step(&mut subject)?;
        }
        let (mut times, mut others) = (Vec::new(), Vec::new());
        let mut other = args.against.as_deref().map(|path| self.rival(path, threads)).transpose()?;
        for _ in 0..args.num_batches {
            times.push(step(&mut subject)?);
            if let Some(other) = &mut other {
                let start = now_ns();
                other.run()?;
                others.push(now_ns() - start);
            }
        }
        let (device, threads) = (subject.session().device(), subject.session().threads());
        let mut result = BenchResult::new(self.model, &times, plan.batch);
        (result.device, result.threads) = (device, threads);
        if !others.is_empty() {
            let verdict = Comparison::new(&others, &times, 1).verdict();
            say::line(&format!("against {}: {verdict}", args.against.as_deref().unwrap_or(Path::new("")).display()));
            say::out(&lines::line("results.verdict", &json!(verdict)))?;
        }
        if let Some(inputs) = &inputs {
            inputs.report();
        }
        self.print_times(&times, plan.batch)?;
        self.keep("run", &times, &result);
        if self.scenario.is_some() || args.answer_queries {
            let rest = (1..args.concurrency).map(|ix| self.open(image, plan, threads, args.seed + ix as u64));
            let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(subject)];
            for own in rest {
                subjects.push(Box::new(own?));
            }
            match self.scenario {
                Some(scenario) => self.run_scenario(scenario, &mut subjects, &mut result)?,
                None => {
                    let count = answer_queries(&mut subjects, BufReader::new(std::io::stdin()), std::io::stdout())?;
                    eprintln!("answered {count} queries");
                }
            }
        }
        if 0 < args.cold {
            let times = (0..args.cold).map(|_| cold_start(path, plan.batch, threads)).collect::<Result<Vec<_>, _>>()?;
            let cold = Summary::new(&times, 1);
            say::line(&format!("from start to first result, {}", cold.text()));
            say::out(&lines::line("results.cold_data", &json!(ms(&times))))?;
            result.cold = Some(cold);
        }
        Ok(result)
    }

    fn rival(&self, path: &Path, threads: usize) -> Result<SessionSubject, String> {
        let image = open_image(path)?;
        let plan = self.phase.plan(&image, None).ok_or("the other executable must be for the same phase")?;
        let mut subject = self.open(&image, plan, threads, self.args.seed)?;
        (0..self.args.num_warmup_batches).try_for_each(|_| subject.run())?;
        Ok(subject)
    }

    fn run_peer(&self, name: &str, image: &ImageFile, plan: &Arc<Plan>, threads: usize) -> Result<BenchResult, String> {
        let args = self.args;
        if is_image(Path::new(self.model)) {
            let model = self.model;
            return Err(format!("a peer needs a network of the zoo or a model file, `{model}` is an executable"));
        }
        let mut own = self.open(image, plan, threads, args.seed)?;
        let run = peer::Run { name, python: &args.python, peers: &args.peers, folder: &self.folder.0, threads };
        let (mut peer, exported) = run.start(self.model, plan, &args.compile, args.seed)?;
        if let Some(version) = peer.version() {
            say::out(&lines::line("exp.framework_ver", &json!(version)))?;
        }
        peer.runs(args.num_warmup_batches)?;
        let times = peer.runs(args.num_batches)?;
        let difference = exported.difference(&mut peer, &mut own)?;
        if 1e-2 < difference {
            return Err(format!("the outputs of {name} differ from ours by {difference:.2e} of their largest element"));
        }
        say::out(&lines::line("results.difference", &json!(difference)))?;
        self.print_times(&times, plan.batch)?;
        let mut result = BenchResult::new(self.model, &times, plan.batch);
        (result.device, result.threads) = ("processor".into(), threads);
        self.keep("run", &times, &result);
        Ok(result)
    }

    fn run_scenario(
        &self,
        scenario: Scenario,
        subjects: &mut [Box<dyn Subject>],
        result: &mut BenchResult,
    ) -> Result<(), String> {
        let args = self.args;
        let limits = ScenarioLimits { seconds: args.min_duration, queries: args.min_queries };
        let done = match (scenario, args.latency_bound) {
            (Scenario::SingleStream | Scenario::MultiStream, _) => {
                ScenarioResult::streams(scenario, &mut *subjects[0], limits)?
            }
            (Scenario::Offline, _) => ScenarioResult::offline(subjects, limits)?,
            (Scenario::Server, bound) => {
                let bound = bound.ok_or("the server scenario needs a bound")?;
                let mut run = |rate| ServerRun::new(subjects, rate, bound, args.seed, limits);
                match args.rate {
                    Some(rate) => {
                        let run = run(rate)?;
                        let valid = if run.is_valid { "holds" } else { "does not hold" };
                        say::line(&format!("{rate} queries per second: the bound of {bound} ms {valid}"));
                        say::out(&lines::line("results.scenario_valid", &json!(run.is_valid)))?;
                        run.result
                    }
                    None => {
                        // No rate above the rate of runs without pause can last.
                        let most = 1.2e3 * args.concurrency as f64 / result.times.p50_ms;
                        let (found, best) = bisect_rate(most, run)?;
                        let rate = found.rate;
                        result.bisection = Some(found);
                        let best = best.ok_or_else(|| format!("no rate holds the bound of {bound} ms"))?;
                        say::line(&format!("{:.2} queries per second hold the bound of {bound} ms", best.rate));
                        say::out(&lines::line("results.server_rate", &json!(rate)))?;
                        best.result
                    }
                }
            }
        };
        let percentile = scenario.per_mille() as f64 / 10.0;
        say::line(&format!(
            "{}: {} queries in {:.2} s, {:.1} samples/s, p{percentile} {:.3} ms",
            args.scenario.as_deref().unwrap_or_default(),
            done.latencies_ns.len(),
            done.seconds,
            done.samples_per_s,
            done.percentile_ms
        ));
        for (key, value) in [
            ("results.scenario", json!(scenario)),
            ("results.scenario_percentile", json!(percentile)),
            ("results.scenario_latency", json!(done.percentile_ms)),
            ("results.scenario_throughput", json!(done.samples_per_s)),
        ] {
            say::out(&lines::line(key, &value))?;
        }
        self.keep("query", &done.latencies_ns, result);
        result.samples_per_s = done.samples_per_s;
        result.scenario = Some(done);
        Ok(())
    }

    /// The data set of --data or --data_dir.
    fn data(&self) -> Result<Option<String>, String> {
        let Some(path) = self.args.data_dir.as_deref().filter(|path| !path.is_empty()).map(Path::new) else {
            return Ok(self.args.data.clone().filter(|text| !text.is_empty()));
        };
        let file = if path.is_dir() { path.join("train.rec") } else { path.to_path_buf() };
        let kind = match file.extension().and_then(|extension| extension.to_str()) {
            // The variations of DLBS's own iterator.
            Some("rec") => return Ok(Some(format!("rec:{},crop=random,mirror=yes", file.display()))),
            Some("npz") => "npz",
            _ => {
                return Err(format!(
                    "--data_dir takes a .rec or .npz file, its URL, or a folder, got `{}`",
                    path.display()
                ));
            }
        };
        Ok(Some(format!("{kind}:{}", file.display())))
    }

    fn print_times(&self, times_ns: &[u64], batch: u64) -> Result<(), String> {
        self.has_times.set(true);
        say::out(&lines::success(&self.title, &ms(times_ns), batch))
    }

    /// Keeps times for --raw.
    fn keep(&self, kind: &'static str, times: &[u64], result: &BenchResult) {
        if self.args.raw.is_some() {
            let (batch, threads) = (result.batch, result.threads);
            self.raw.borrow_mut().add(RawSeries { kind, batch, threads, times_ns: times.to_vec() });
        }
    }

    /// Writes the times of all rows: runs to --raw, queries of a scenario to a second file.
    fn write_raw(&self) -> Result<(), String> {
        let (Some(path), raw) = (&self.args.raw, self.raw.borrow()) else { return Ok(()) };
        raw.write(path, "run")?;
        if raw.has("query") { raw.write(&queries_of(path), "query") } else { Ok(()) }
    }
}

/// The second file of --raw.
fn queries_of(raw: &Path) -> PathBuf {
    raw.with_extension("query.jsonl")
}

/// Compiles and runs all rows. The answer is no if one of them failed.
pub(crate) fn run(args: &Args) -> Result<Answer, String> {
    if let (Some(json), Some(raw)) = (&args.json, &args.raw)
        && (files::is_same_output(json, raw) || files::is_same_output(json, &queries_of(raw)))
    {
        let (json, raw) = (json.display(), raw.display());
        return Err(format!("--json and --raw must be two files, got `{json}` and `{raw}`"));
    }
    let job = Job::new(args)?;
    // Before the runs, whose results could not be written.
    for path in
        [Some(Path::new(job.model)), args.against.as_deref()].into_iter().flatten().filter(|path| path.is_file())
    {
        files::open_regular(path).map_err(|error| error.to_string())?;
    }
    for path in [&args.json, &args.raw].into_iter().flatten() {
        files::check_output(path).map_err(|error| error.to_string())?;
    }
    say::out(&job.described())?;
    let (mut results, mut yes, mut has_failed) = (String::new(), true, false);
    for threads in job.threads() {
        let mut too_large: Option<u64> = None;
        for batch in job.batches() {
            say::out(&lines::line("exp.threads", &json!(threads)))?;
            if let Some(batch) = batch {
                say::out(&batch_lines(batch))?;
            }
            let row = match too_large {
                Some(least) if batch.is_some_and(|batch| least < batch) => {
                    Row::Failed(format!("skipped: batch {least} does not fit"))
                }
                _ => job.row(batch, threads),
            };
            let is_done = matches!(row, Row::Done(_));
            // A reader of the log keeps the last value of a key: a failure must not have earlier times, nor the reverse.
            if is_done && has_failed {
                say::out(&lines::recovered())?;
            }
            if !is_done && job.has_times.replace(false) {
                say::out(&lines::without_times())?;
            }
            has_failed = !is_done;
            match row {
                Row::Done(result) => {
                    if batch.is_none() {
                        say::out(&batch_lines(result.batch))?;
                    }
                    let names = format!("{}, batch {}, {} threads", job.title, result.batch, result.threads);
                    say::line(&format!("{names}: {}", result.times.text()));
                    for note in &result.notes {
                        say::note(note);
                    }
                    say::out(&lines::line("exp.device_title", &json!(job.device_title(&result))))?;
                    say::out(&lines::line("results.planned_bytes", &json!(result.planned_bytes)))?;
                    results.push_str(&serde_json::to_string(&result).map_err(|error| error.to_string())?);
                    results.push('\n');
                }
                Row::DoesNotFit(reason) => {
                    too_large = batch;
                    yes = false;
                    fail(&reason)?;
                }
                Row::Failed(reason) => {
                    yes = false;
                    fail(&reason)?;
                }
            }
        }
    }
    job.write_raw()?;
    if let Some(path) = &args.json {
        files::write(path, results.as_bytes()).map_err(|error| error.to_string())?;
    }
    Ok(Answer { text: String::new(), yes })
}

/// The lines of a batch on one device.
fn batch_lines(batch: u64) -> String {
    lines::line("exp.replica_batch", &json!(batch)) + &lines::line("exp.effective_batch", &json!(batch))
}

/// The largest description of a GPU that is read.
const DESCRIPTION_MAX: Bytes = Bytes(64 << 20);

/// Opens an executable, which is an input from now on: no result replaces it.
fn open_image(path: &Path) -> Result<ImageFile, String> {
    files::open_regular(path).map_err(|error| error.to_string())?;
    ImageFile::open(path).map_err(|error| error.to_string())
}

/// Whether a file is an executable with a model, whose weights are not read for that.
fn is_image(path: &Path) -> bool {
    files::open_regular(path).is_ok() && ImageFile::read_plans(path).is_ok()
}

fn fail(reason: &str) -> Result<(), String> {
    say::line(&format!("failure: {reason}"));
    say::out(&lines::failure(reason))
}

fn ms(times_ns: &[u64]) -> Vec<f64> {
    times_ns.iter().map(|&ns| ns as f64 / 1e6).collect()
}

/// Bytes of `count` sessions that share constants and code.
fn planned(plan: &Plan, count: usize) -> Bytes {
    let code: u64 = plan.modules.iter().map(|module| module.code.len() as u64).sum();
    Bytes(plan.arena.size().0 * count as u64 + plan.constants_size.0 + code)
}

/// Nanoseconds from the start of a process of the executable to its end after one run.
fn cold_start(path: &Path, batch: u64, threads: usize) -> Result<u64, String> {
    let start = now_ns();
    let mut command = Command::new(path);
    command.args(["run", "--synthetic", "seed:1", "--batch", &batch.to_string(), "--threads", &threads.to_string()]);
    let (succeeded, said) = ended(&mut command).map_err(|error| format!("cannot run `{}`: {error}", path.display()))?;
    let time = now_ns() - start;
    if succeeded { Ok(time) } else { Err(said.trim().to_string()) }
}

/// Runs another command of this program.
fn own_program(words: &[String]) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
    let ended = ended(Command::new(own).args(words));
    let (succeeded, text) = ended.map_err(|error| format!("cannot run `prestow {}`: {error}", words[0]))?;
    if succeeded {
        return Ok(());
    }
    let last = text.lines().rev().find(|line| line.starts_with("error: ")).unwrap_or(text.trim());
    Err(last.trim_start_matches("error: ").to_string())
}

/// Runs a program to its end. Returns whether it succeeded, and its standard error. `Command::output` panics if a pipe
/// cannot be read.
fn ended(command: &mut Command) -> std::io::Result<(bool, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = Vec::new();
    let read = child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut said));
    // The pipe is closed, so that a child that goes on writing ends, and is waited for in any case.
    let status = child.wait();
    read?;
    Ok((status?.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// A folder for executables, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, String> {
        let path = std::env::temp_dir().join(format!("prestow-benchmark-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("`{}`: {error}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
