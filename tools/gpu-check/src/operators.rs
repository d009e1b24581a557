//! Operator cases on the GPU, in every precision, compared with their definitions; and the memory of each compared with its
//! plan.
//!
//! Several cases are compiled as one source, and several sources at once. Each case is then opened and run by itself.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cases::Case;
use cases::judge::Verdict as Comparison;
use compiler::Compiled;
use compiler::gpu::{Precision, library_paths};
use lower::cuda::{KernelOrigin, assemble};
use plan::{DeviceCode, Plan};
use runtime::{CudaDevice, RunError};
use types::Tensor;

use crate::arguments::Settings;
use crate::check::{Deadline, Targets};
use crate::networks::{not_audited, open};
use crate::output::Output;
use crate::rows::{Mismatch, OperatorRow, OperatorRun, OperatorSummary, OperatorsPart, Verdict};
use crate::trials::{Reference, TargetUnderTest, Trial, compile, trials};

/// Plans per source. A source repeats the templates, and each of its plans loads all of it.
const PLANS_PER_SOURCE: usize = 24;

/// Cases that are compiled and run before the report is written.
const CASES_TOGETHER: usize = 10 * PLANS_PER_SOURCE;

/// Characters of a case's name on the screen; the file has all.
const NAME_WIDTH: usize = 80;

/// The cases with one of `only` in their names, or all if it is empty.
///
/// # Errors
/// A text is in no name.
pub(crate) fn chosen(only: &[String]) -> Result<Vec<Case>, String> {
    let all = cases::all();
    let is_in = |case: &Case, text: &String| case.name.contains(&text[..]);
    if let Some(text) = only.iter().find(|text| !all.iter().any(|case| is_in(case, text))) {
        let example = "as --only conv; the rows of --json have all names";
        return Err(format!("--only {text}: no operator case has that in its name, {example}"));
    }
    Ok(all.into_iter().filter(|case| only.is_empty() || only.iter().any(|text| is_in(case, text))).collect())
}

/// Checks cases in every precision. Returns whether all pass.
pub(crate) fn check(
    targets: &Targets,
    cases: &[Case],
    deadline: &Deadline,
    output: &mut Output,
) -> Result<bool, String> {
    output.show(&format!(
        "{:<9} {:>6} {:>6} {:>6} {:>8} {:>6} {:>6} {:>7} {:>9}  largest error / tolerance\n",
        "operators", "cases", "equal", "right", "refused", "WRONG", "memory", "FAILED", "seconds"
    ));
    for &precision in &targets.settings.precisions {
        let known = output.report.operators_summary.iter().find(|summary| summary.dtype == precision);
        if let Some(summary) = known {
            output.show(&line(summary));
            continue;
        }
        let mut part = part_of(output, precision, cases.len());
        let mut compiler = targets.compiler(precision)?;
        // Small cases would hardly have a library's kernel by its time. A check without libraries has the emitted ones.
        compiler.target = compiler.target.taking(KernelOrigin::Library);
        let target = TargetUnderTest { precision, compiler };
        let mut lost = None;
        while part.done < cases.len() && !deadline.is_over() {
            let some = &cases[part.done..cases.len().min(part.done + CASES_TOGETHER)];
            let (rows, seconds) = timed(|| check_on(targets, &target, some, &mut lost));
            (part.done, part.seconds) = (part.done + some.len(), part.seconds + seconds);
            output.report.operators.extend(rows);
            output.report.operators_part.retain(|part| part.dtype != precision);
            output.report.operators_part.push(part.clone());
            output.save()?;
        }
        if part.done < cases.len() {
            output.report.remaining += cases.len() - part.done;
            continue;
        }
        output.report.operators_part.retain(|part| part.dtype != precision);
        let rows = output.report.operators.iter().filter(|row| row.dtype == precision);
        let summary = summarize(precision, &rows.collect::<Vec<_>>(), part.seconds);
        output.show(&line(&summary));
        output.report.operators_summary.push(summary);
        output.save()?;
    }
    output.show(&faults(&output.report.operators));
    Ok(output.report.operators.iter().all(|row| row.verdict.passes()))
}

/// The rows that a resumed report has of a precision, if they are of the same list of cases; otherwise they are removed.
fn part_of(output: &mut Output, dtype: Precision, cases: usize) -> OperatorsPart {
    let own = output.report.operators_part.iter().find(|part| part.dtype == dtype && part.cases == cases).cloned();
    own.unwrap_or_else(|| {
        output.report.operators.retain(|row| row.dtype != dtype);
        OperatorsPart { dtype, done: 0, cases, seconds: 0.0 }
    })
}

fn summarize(dtype: Precision, rows: &[&OperatorRow], seconds: f64) -> OperatorSummary {
    let count = |verdict: Verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let errors = rows.iter().filter_map(|row| Some((row.run.as_ref()?.of_tolerance?, &row.case)));
    let most = errors.reduce(|a, b| if a.0 < b.0 { b } else { a });
    OperatorSummary {
        dtype,
        cases: rows.len(),
        equal: count(Verdict::Equal),
        right: count(Verdict::Right),
        refused: count(Verdict::Refused),
        wrong: count(Verdict::Wrong),
        other_memory: count(Verdict::OtherMemory),
        failed: count(Verdict::Failed),
        seconds,
        of_tolerance: most.map(|(error, _)| error),
        case: most.map(|(_, case)| case.clone()),
    }
}

fn line(summary: &OperatorSummary) -> String {
    let OperatorSummary { dtype, cases, equal, right, refused, wrong, other_memory, failed, seconds, .. } = summary;
    let mut text = format!("{dtype:<9} {cases:>6} {equal:>6} {right:>6} {refused:>8} {wrong:>6} ");
    let _ = write!(text, "{other_memory:>6} {failed:>7} {seconds:>9.1}");
    if let (Some(error), Some(case)) = (summary.of_tolerance, &summary.case) {
        let _ = write!(text, "  {error:.2}, {}", shortened(case));
    }
    text + "\n"
}

/// A line for each fault and each refusal. Refusals of several precisions share a line.
fn faults(rows: &[OperatorRow]) -> String {
    let mut lines: Vec<(Verdict, String, Vec<&str>)> = Vec::new();
    for verdict in [Verdict::Wrong, Verdict::OtherMemory, Verdict::Failed, Verdict::Refused] {
        for row in rows.iter().filter(|row| row.verdict == verdict) {
            let reason = row.reason.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            // The part before it names the target, which differs between precisions.
            let reason = match verdict {
                Verdict::Refused => reason.rsplit("has no kernel").next().unwrap_or(reason),
                _ => reason,
            };
            let line = format!("{}: {}", shortened(&row.case), reason.trim());
            match lines.iter_mut().find(|(of, other, _)| *of == verdict && *other == line) {
                Some((_, _, dtypes)) => dtypes.push(row.dtype.name()),
                None => lines.push((verdict, line, vec![row.dtype.name()])),
            }
        }
    }
    lines.iter().map(|(verdict, line, dtypes)| format!("  {verdict}: {}, {line}\n", dtypes.join(" "))).collect()
}

/// The beginning of a case's name.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_WIDTH) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_string(),
    }
}

/// The rows of some cases in one precision. `lost` is the case since which the GPU does not answer.
fn check_on(
    targets: &Targets,
    target: &TargetUnderTest,
    cases: &[Case],
    lost: &mut Option<String>,
) -> Vec<OperatorRow> {
    let (settings, gpu) = (targets.settings, &targets.gpu);
    let libraries = settings.libraries.of(target.precision);
    let mut all: Vec<Trial> =
        cases.iter().flat_map(|case| trials(case, &target.compiler.target, target.precision, libraries)).collect();
    let mut modules = compile_together(target, &mut all);
    let references = in_parallel(&all, Trial::reference);
    let mut rows = Vec::with_capacity(all.len());
    for (ix, (trial, reference)) in all.into_iter().zip(references).enumerate() {
        let row = |verdict: Verdict, reason: Option<String>| OperatorRow {
            case: trial.name.clone(),
            dtype: target.precision,
            verdict,
            reason,
            run: None,
            mismatch: None,
        };
        let failed = |reason: String| row(Verdict::Failed, Some(reason));
        rows.push(match (&trial.compiled, &*lost) {
            (Err(reason), _) => row(Verdict::Refused, Some(reason.clone())),
            (Ok(_), Some(name)) => failed(format!("not run: the GPU does not answer since `{name}`")),
            (Ok(compiled), None) => {
                let module = modules[ix].take().expect("every compiled trial has an entry");
                let linked = module.map(|module| with_module(compiled, module));
                let outcome = linked.and_then(|compiled| run(settings, &compiled, &trial.given, &reference?));
                match outcome {
                    Ok(Outcome { verdict, reason, run, mismatch }) => {
                        OperatorRow { run: Some(run), mismatch, ..row(verdict, reason) }
                    }
                    Err(reason) => {
                        *lost = gpu.memory().is_err().then(|| trial.name.clone());
                        failed(reason)
                    }
                }
            }
        });
    }
    rows
}

/// The machine code of each trial, or the compiler's error. `None` for refused trials.
fn compile_together(target: &TargetUnderTest, all: &mut [Trial]) -> Vec<Option<Result<DeviceCode, String>>> {
    let mut plans: Vec<(usize, &mut Plan)> = Vec::new();
    for (ix, trial) in all.iter_mut().enumerate() {
        plans.extend(trial.compiled.as_mut().ok().map(|compiled| (ix, &mut compiled.plan)));
    }
    let sources: Vec<(Vec<usize>, String)> = plans
        .chunks_mut(PLANS_PER_SOURCE)
        .map(|some| {
            let trials = some.iter().map(|(ix, _)| *ix).collect();
            (trials, assemble(some.iter_mut().map(|(_, plan)| &mut **plan)).text)
        })
        .collect();
    let (code, arch) = (target.compiler.code(), target.compiler.target.arch());
    let modules = in_parallel(&sources, |(_, source)| code(source, arch));
    let mut of_trials: Vec<Option<Result<DeviceCode, String>>> = all.iter().map(|_| None).collect();
    for ((trials, _), module) in sources.iter().zip(modules) {
        for &ix in trials {
            of_trials[ix] = Some(match &module {
                Ok(module) => Ok(module.clone()),
                // Compiling each plan by itself finds the one that does not compile.
                Err(_) => compile_alone(target, &mut all[ix]),
            });
        }
    }
    of_trials
}

/// The machine code of one trial.
fn compile_alone(target: &TargetUnderTest, trial: &mut Trial) -> Result<DeviceCode, String> {
    let (_, again) = compile(&trial.graph, &target.compiler.target);
    let mut compiled = again?;
    target.compiler.finish(&mut compiled.plan)?;
    let module = compiled.plan.modules.pop().ok_or("the compiler gave no code")?;
    trial.compiled = Ok(compiled);
    Ok(module)
}

fn with_module(compiled: &Compiled, module: DeviceCode) -> Compiled {
    let mut compiled = compiled.clone();
    compiled.plan.modules = vec![module];
    compiled
}

/// Result of a trial that ran.
struct Outcome {
    verdict: Verdict,
    reason: Option<String>,
    run: OperatorRun,
    mismatch: Option<Mismatch>,
}

/// Runs a plan, compares its results, and audits its memory.
fn run(settings: &Settings, compiled: &Compiled, given: &[Tensor], reference: &Reference) -> Result<Outcome, String> {
    let failed = |error: RunError| error.to_string();
    let paths = library_paths(&settings.data);
    let mut session = open(compiled, &CudaDevice { ordinal: settings.device, places: paths })?;
    let got = session.run_tensors(given).map_err(failed)?;
    let mut of_tolerance = 0.0f64;
    let mut wrong = None;
    for (port, ((got, want), allowed)) in
        compiled.plan.outputs.iter().zip(got.iter().zip(&reference.outputs).zip(&reference.allowed))
    {
        let comparison = Comparison::of(got, want, allowed).map_err(|other| format!("{}: {other}", port.name))?;
        of_tolerance = of_tolerance.max(comparison.part);
        let Some(first) = comparison.first else { continue };
        wrong.get_or_insert_with(|| {
            let index = first.index(want.shape());
            let count = format!("{} of {} elements differ", comparison.wrong, want.elements());
            let reason = format!("{}{index:?} is {}, not {}; {count}", port.name, first.got, first.want);
            let mismatch = Mismatch {
                output: port.name.clone(),
                index,
                got: first.got.to_string(),
                want: first.want.to_string(),
                wrong_elements: comparison.wrong,
            };
            (reason, mismatch)
        });
    }
    let arena = compiled.plan.arena.size();
    let run = OperatorRun {
        kernels: compiled.plan.steps.iter().map(|step| step.kernel.to_string()).collect(),
        arena_bytes: arena.0,
        of_tolerance: Some(of_tolerance).filter(|error| error.is_finite()),
    };
    if let Some((reason, mismatch)) = wrong {
        return Ok(Outcome { verdict: Verdict::Wrong, reason: Some(reason), run, mismatch: Some(mismatch) });
    }
    let outcome = |verdict: Verdict, reason: Option<String>| Outcome { verdict, reason, run, mismatch: None };
    if not_audited(settings, arena).is_some() {
        return Ok(outcome(Verdict::Right, None));
    }
    let bytes: Vec<Vec<u8>> = given.iter().map(Tensor::to_le_bytes).collect();
    let audit = runtime::audit::audit(&mut session, &bytes).map_err(failed)?;
    if audit.is_equal() {
        return Ok(outcome(Verdict::Equal, None));
    }
    let runs = if audit.same_results { "agree" } else { "differ" };
    let reason = format!(
        "{} of {} planned bytes are written, {} outside, and results of runs over other bytes {runs}",
        audit.written_bytes, audit.planned_bytes, audit.outside_bytes
    );
    Ok(outcome(Verdict::OtherMemory, Some(reason)))
}

/// Maps items on all cores, in their order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((ix, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|ix| Some((ix, items.get(ix)?)))
                {
                    let result = work(item);
                    done.lock().expect("no thread panics with the lock").push((ix, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock");
    done.sort_by_key(|(ix, _)| *ix);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A result and the seconds that it took.
#[expect(clippy::disallowed_methods, reason = "the duration is part of the report")]
fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}
