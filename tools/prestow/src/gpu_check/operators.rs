//! Every operator on the GPU: cases of all of them, in each of the dtypes asked for, against their definitions, and the
//! memory that each used against its plan.
//!
//! Cases are compiled many at a time, as one source, and sources by several threads; each is then opened and run by itself,
//! one after the other.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cases::Case;
use cases::judge::Verdict;
use compiler::Compiled;
use lower::cuda::assemble;
use plan::{DeviceCode, Plan};
use runtime::{CudaDevice, RunError};
use serde_json::{Value as Json, json};
use types::Tensor;

use super::networks::{AUDITED_MAX, open};
use super::trials::{On, Trial, Wanted, compile, trials};
use super::{Maker, Report};
use crate::arguments::GpuCheck;
use crate::device::places;

/// Plans whose kernels are one source. A source repeats what kernels share, and all of it is loaded for each of its plans.
const TOGETHER: usize = 24;

/// Characters of a case's name that are shown; the file has all.
const NAME_SHOWN: usize = 80;

/// Verdicts that say yes, those that say no, and how they are counted.
const VERDICTS: [&str; 6] = ["equal", "right", "refused", "WRONG", "OTHER MEMORY", "FAILED"];

/// The cases whose names have one of some texts in them; all where there is no text.
pub(super) fn chosen(only: &[String]) -> Result<Vec<Case>, String> {
    let all = cases::all();
    let is_in = |case: &Case, text: &String| case.name.contains(&text[..]);
    if let Some(text) = only.iter().find(|text| !all.iter().any(|case| is_in(case, text))) {
        let example = "as --only conv; the rows of --json have all names";
        return Err(format!("--only {text}: no operator case has that in its name, {example}"));
    }
    Ok(all.into_iter().filter(|case| only.is_empty() || only.iter().any(|text| is_in(case, text))).collect())
}

/// Checks cases in each of the dtypes; whether all are right.
pub(super) fn check(maker: &Maker, cases: &[Case], report: &mut Report) -> Result<bool, String> {
    report.show(&format!(
        "{:<9} {:>6} {:>6} {:>6} {:>8} {:>6} {:>6} {:>7} {:>9}  largest difference, as a part of what is allowed\n",
        "operators", "cases", "equal", "right", "refused", "WRONG", "memory", "FAILED", "seconds"
    ));
    let (mut rows, mut sums) = (Vec::new(), Vec::new());
    for &numbers in &maker.asked.dtypes {
        let on = On { numbers, device: maker.device(numbers)? };
        let (own, seconds) = timed(|| check_in(maker.asked, &maker.gpu, &on, cases));
        let (dtype, mut text) = (numbers.name(), String::new());
        let count = |verdict: &str| own.iter().filter(|row| row["verdict"] == verdict).count();
        let counts = VERDICTS.map(count);
        let part = |row: &Json| row["part"].as_f64().map(|part| (part, row["case"].clone()));
        let most = own.iter().filter_map(part).reduce(|a, b| if a.0 < b.0 { b } else { a });
        let [equal, right, refused, wrong, memory, failed] = counts;
        let _ = write!(text, "{dtype:<9} {:>6} {equal:>6} {right:>6} {refused:>8} {wrong:>6} ", own.len());
        let _ = write!(text, "{memory:>6} {failed:>7} {seconds:>9.1}");
        if let Some((part, name)) = &most {
            let _ = write!(text, "  {part:.2}, {}", shortened(name.as_str().unwrap_or_default()));
        }
        report.show(&(text + "\n"));
        let mut sum = json!({
            "dtype": dtype,
            "cases": own.len(),
            "seconds": seconds,
            "part": most.as_ref().map(|most| most.0),
            "case": most.map(|most| most.1),
        });
        for (verdict, count) in VERDICTS.iter().zip(counts) {
            sum[verdict.to_lowercase().replace(' ', "_")] = count.into();
        }
        sums.push(sum);
        rows.extend(own);
        // After each dtype: what was found is kept, whatever happens next.
        report.tell("operators_summary", json!(sums), "")?;
        report.tell("operators", json!(rows), "")?;
    }
    let yes = rows.iter().all(|row| VERDICTS[..3].iter().any(|verdict| row["verdict"] == *verdict));
    report.show(&told(&rows));
    Ok(yes)
}

/// A line for each that is not right, and one for what is refused in several dtypes.
fn told(rows: &[Json]) -> String {
    let mut lines: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for verdict in ["WRONG", "OTHER MEMORY", "FAILED", "refused"] {
        for row in rows.iter().filter(|row| row["verdict"] == verdict) {
            let field = |key: &str| row[key].as_str().unwrap_or_default();
            let reason = field("reason").lines().next().unwrap_or_default();
            // A target's name has the dtype in it.
            let reason =
                if verdict == "refused" { reason.rsplit("has no kernel").next().unwrap_or(reason) } else { reason };
            let line = format!("{}: {}", shortened(field("case")), reason.trim());
            match lines.iter_mut().find(|(of, other, _)| *of == verdict && *other == line) {
                Some((_, _, dtypes)) => dtypes.push(field("dtype")),
                None => lines.push((verdict, line, vec![field("dtype")])),
            }
        }
    }
    lines.iter().map(|(verdict, line, dtypes)| format!("  {verdict}: {}, {line}\n", dtypes.join(" "))).collect()
}

/// As much of a case's name as a line has room for.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_SHOWN) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_string(),
    }
}

/// The rows of one dtype.
fn check_in(asked: &GpuCheck, gpu: &cuda::driver::Gpu, on: &On, cases: &[Case]) -> Vec<Json> {
    let libraries = asked.libraries.of(on.numbers);
    let mut all: Vec<Trial> = cases.iter().flat_map(|case| trials(case, on, libraries)).collect();
    let mut modules = compiled_together(on, &mut all);
    let wanted = in_parallel(&all, Trial::wanted);
    let mut lost = None;
    let mut rows = Vec::with_capacity(all.len());
    for (ix, (trial, wanted)) in all.into_iter().zip(wanted).enumerate() {
        let row = |verdict: &str, more: Json| {
            let mut row = json!({ "case": trial.name, "dtype": on.numbers.name(), "verdict": verdict });
            more.as_object().into_iter().flatten().for_each(|(key, value)| row[key] = value.clone());
            row
        };
        let failed = |reason: String| row("FAILED", json!({ "reason": reason }));
        rows.push(match (&trial.compiled, &lost) {
            // What there are no kernels for is said and does not count.
            (Err(reason), _) => row("refused", json!({ "reason": reason })),
            (Ok(_), Some(name)) => failed(format!("not run: the GPU does not answer since `{name}`")),
            (Ok(compiled), None) => {
                let module = modules[ix].take().expect("each that is compiled has one");
                let found = module.and_then(|module| finished(compiled, module));
                match found.and_then(|compiled| run(asked, &compiled, &trial.given, &wanted?)) {
                    Ok((verdict, more)) => row(verdict, more),
                    Err(reason) => {
                        lost = gpu.memory().is_err().then(|| trial.name.clone());
                        failed(reason)
                    }
                }
            }
        });
    }
    rows
}

/// The machine code of each plan, or why there is none, some at a time; none for what is refused.
fn compiled_together(on: &On, all: &mut [Trial]) -> Vec<Option<Result<DeviceCode, String>>> {
    let mut plans: Vec<(usize, &mut Plan)> = Vec::new();
    for (ix, trial) in all.iter_mut().enumerate() {
        plans.extend(trial.compiled.as_mut().ok().map(|compiled| (ix, &mut compiled.plan)));
    }
    let sources: Vec<(Vec<usize>, String)> = plans
        .chunks_mut(TOGETHER)
        .map(|some| {
            let places = some.iter().map(|(ix, _)| *ix).collect();
            (places, assemble(some.iter_mut().map(|(_, plan)| &mut **plan)).text)
        })
        .collect();
    let (code, arch) = (on.device.code(), on.device.target.arch());
    let modules = in_parallel(&sources, |(_, source)| code(source, arch));
    let mut of_plans: Vec<Option<Result<DeviceCode, String>>> = all.iter().map(|_| None).collect();
    for ((places, _), module) in sources.iter().zip(modules) {
        for &ix in places {
            of_plans[ix] = Some(match &module {
                Ok(module) => Ok(module.clone()),
                // One of them is to blame: each by itself.
                Err(_) => alone(on, &mut all[ix]),
            });
        }
    }
    of_plans
}

/// The machine code of one plan.
fn alone(on: &On, trial: &mut Trial) -> Result<DeviceCode, String> {
    let (_, again) = compile(&trial.graph, &on.device.target);
    let mut compiled = again?;
    on.device.finish(&mut compiled.plan)?;
    let module = compiled.plan.modules.pop().ok_or("there is no code")?;
    trial.compiled = Ok(compiled);
    Ok(module)
}

fn finished(compiled: &Compiled, module: DeviceCode) -> Result<Compiled, String> {
    let mut compiled = compiled.clone();
    compiled.plan.modules = vec![module];
    Ok(compiled)
}

/// Runs a plan: its verdict, and what is known of it.
fn run(
    asked: &GpuCheck,
    compiled: &Compiled,
    given: &[Tensor],
    wanted: &Wanted,
) -> Result<(&'static str, Json), String> {
    let failed = |error: RunError| error.to_string();
    let mut session = open(compiled, &CudaDevice { ordinal: asked.device, places: places(&asked.data) })?;
    let got = session.run_tensors(given).map_err(failed)?;
    let mut part = 0.0f64;
    let mut wrong = None;
    for (port, ((got, want), allowed)) in
        compiled.plan.outputs.iter().zip(got.iter().zip(&wanted.outputs).zip(&wanted.allowed))
    {
        let verdict = Verdict::of(got, want, allowed).map_err(|other| format!("{}: {other}", port.name))?;
        part = part.max(verdict.part);
        let Some(first) = verdict.first else { continue };
        wrong.get_or_insert_with(|| {
            let index = first.index(want.shape());
            let counted = format!("{} of {} elements differ", verdict.wrong, want.elements());
            let reason = format!("{}{index:?} is {}, not {}; {counted}", port.name, first.got, first.want);
            json!({
                "reason": reason,
                "output": port.name,
                "index": index,
                // JSON has no number for what is none, or endless.
                "got": first.got.to_string(),
                "want": first.want.to_string(),
                "wrong_elements": verdict.wrong,
            })
        });
    }
    let kernels: Vec<&str> = compiled.plan.steps.iter().map(|step| &step.kernel[..]).collect();
    let arena = compiled.plan.arena.size();
    let mut more =
        json!({ "kernels": kernels, "arena_bytes": arena.0, "part": Some(part).filter(|part| part.is_finite()) });
    if let Some(wrong) = wrong {
        wrong.as_object().into_iter().flatten().for_each(|(key, value)| more[key] = value.clone());
        return Ok(("WRONG", more));
    }
    let bytes: Vec<Vec<u8>> = given.iter().map(Tensor::to_le_bytes).collect();
    if AUDITED_MAX < arena {
        return Ok(("right", more));
    }
    let audit = runtime::audit::audit(&mut session, &bytes).map_err(failed)?;
    if audit.is_equal() {
        return Ok(("equal", more));
    }
    let runs = if audit.same_results { "agree" } else { "differ" };
    more["reason"] = json!(format!(
        "{} of {} planned bytes are written, {} outside, and results of runs over other bytes {runs}",
        audit.written_bytes, audit.planned_bytes, audit.outside_bytes
    ));
    Ok(("OTHER MEMORY", more))
}

/// What a function makes of each item, by as many threads as there are cores; in the items' order.
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
                    done.lock().expect("nobody panics with it").push((ix, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics with it");
    done.sort_by_key(|(ix, _)| *ix);
    done.into_iter().map(|(_, result)| result).collect()
}

/// What a function gives, and how many seconds it took.
#[expect(clippy::disallowed_methods, reason = "how long the check takes is told")]
fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}
