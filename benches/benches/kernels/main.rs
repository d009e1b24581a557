//! Kernels far below the peak rates of the machine: `cargo xtask bench kernels [FLAG]... [FAMILY|NETWORK|FILE]...`.
//!
//! Steps are compared with their bound: the time at peak arithmetic or at memory bandwidth, whichever is longer, both
//! measured in the same process. Steps below a quarter of it are listed, worst first: those of [`families`], which sweep over
//! shapes, and of networks, where a step must also take 2 % of the time.

mod families;

use std::sync::Arc;
use std::time::{Duration, Instant};

use compiler::Model;
use compiler::source::{Request, load};
use ir::Graph;
use lower::cpu::CpuTarget;
use report::{Peaks, StepsReport};
use runtime::{FlopsProbe, Host, Session};
use types::{Random, Tensor};

use families::Family;

fn main() {
    if let Err(error) = Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

struct Options {
    threads: usize,
    /// Time of each case, at least three runs.
    time: Duration,
    /// Steps below this fraction of their bound are listed.
    below: f64,
    /// Names of families, or parts of names of cases behind a colon; networks of the zoo; files.
    subjects: Vec<String>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { threads: 1, time: Duration::from_millis(40), below: 0.25, subjects: Vec::new() };
        for word in words {
            let (flag, value) = word.split_once('=').unwrap_or((&word, ""));
            let number = || match value.parse::<u32>() {
                Ok(number) if 0 < number => Ok(number),
                _ => Err(format!("{flag} takes a number from 1, got `{value}`")),
            };
            match flag {
                "--threads" => options.threads = number()? as usize,
                "--ms" => options.time = Duration::from_millis(number()?.into()),
                "--below" => options.below = f64::from(number()?) / 100.0,
                // An argument of Cargo.
                "--bench" => {}
                flag if flag.starts_with("--") => return Err(format!("`{flag}` is not a flag of this bench")),
                _ => options.subjects.push(word),
            }
        }
        if options.subjects.is_empty() {
            options.subjects = Family::ALL.iter().map(|family| family.name.to_string()).collect();
        }
        Ok(options)
    }
}

/// A step and the fraction of its bound that it reaches.
struct Found {
    of_bound: f64,
    line: String,
}

fn run(options: &Options) -> Result<(), String> {
    let (mut found, mut steps) = (Vec::new(), 0);
    let bytes_per_s = bandwidth(options.threads);
    for subject in &options.subjects {
        let (name, part) = subject.split_once(':').unwrap_or((subject, ""));
        match Family::ALL.iter().find(|family| family.name == name) {
            Some(family) => {
                for (name, graph) in (family.cases)().into_iter().filter(|(name, _)| name.contains(part)) {
                    let model = Model { graph, preprocess: None, labels: Vec::new() };
                    steps += measure(options, &name, model, bytes_per_s, 0.1, &mut found)?;
                }
            }
            None => {
                let request = Request { model: subject.clone(), ..Request::default() };
                let model = load(&request).map_err(|error| format!("{subject}: {error}"))?;
                steps += measure(options, subject, model, bytes_per_s, 0.02, &mut found)?;
            }
        }
    }
    found.sort_by(|a, b| a.of_bound.total_cmp(&b.of_bound));
    println!("| of bound | ms | GFLOP/s | GB/s | kernel | case | step |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    found.iter().for_each(|step| println!("{}", step.line));
    println!(
        "\n{} of {steps} steps below {:.0} % of their bound, {} threads, {:.1} GB/s",
        found.len(),
        100.0 * options.below,
        options.threads,
        bytes_per_s / 1e9
    );
    Ok(())
}

/// Times the steps of a model. Returns how many take at least a share of the time.
fn measure(
    options: &Options,
    name: &str,
    model: Model,
    bytes_per_s: f64,
    share: f64,
    found: &mut Vec<Found>,
) -> Result<usize, String> {
    let inputs = inputs(&model.graph);
    let compiled = compiler::compile(model, &CpuTarget::new(), compiler::Goal::default(), |_, _| {});
    let compiled = compiled.map_err(|error| format!("{name}: {error}"))?;
    let plan = Arc::new(compiled.plan);
    let host = Host { threads: options.threads };
    let session = runtime::open(plan.clone(), Arc::new(compiled.constants.to_vec()), &host);
    let mut session = session.map_err(|error| format!("{name}: {error}"))?;
    let probe = FlopsProbe::new(&plan, options.threads).ok_or("no probe for this processor")?;
    let mut seconds = vec![f64::INFINITY; plan.steps.len()];
    let (mut peak, mut iterations) = (0.0f64, 0);
    let start = now();
    while iterations < 3 || start.elapsed() < options.time {
        run_steps(&mut session, &inputs, &mut seconds).map_err(|error| format!("{name}: {error}"))?;
        let before = now();
        let flops = probe.run(20);
        peak = peak.max(flops as f64 / before.elapsed().as_secs_f64());
        iterations += 1;
    }
    let peaks = Peaks { flop_per_s: peak, bytes_per_s };
    let report = StepsReport::new(&plan, &seconds, peaks, iterations, options.threads);
    let steps: Vec<_> = report.steps.iter().filter(|step| share < step.share).collect();
    for step in steps.iter().filter(|step| step.of_bound < options.below) {
        let line = format!(
            "| {:.1} % | {:.4} | {:.1} | {:.2} | {} | {name} | {} |",
            100.0 * step.of_bound,
            step.ms,
            step.gflop_per_s,
            step.gb_per_s,
            step.kernel,
            step.label
        );
        found.push(Found { of_bound: step.of_bound, line });
    }
    Ok(steps.len())
}

/// Runs every step once and keeps the shortest time of each.
fn run_steps(session: &mut Session, inputs: &[Vec<u8>], seconds: &mut [f64]) -> Result<(), runtime::RunError> {
    for (ix, bytes) in inputs.iter().enumerate() {
        session.write_input(ix, bytes)?;
    }
    for (step, least) in seconds.iter_mut().enumerate() {
        let start = now();
        session.run_step(step)?;
        *least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Random inputs: small integers, fractions, both truth values.
fn inputs(graph: &Graph) -> Vec<Vec<u8>> {
    let tensor = |&value: &ir::ValueId| {
        let (ty, name) = (graph.ty(value), &graph.value(value).name);
        let mut random = Random::for_name(1, name);
        match ty.dtype.is_float() {
            true => Tensor::from_fn(ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(ty.dtype),
            false => Tensor::from_fn(ty.shape.clone(), |_| random.below(2) as i64).cast(ty.dtype),
        }
        .to_le_bytes()
    };
    graph.inputs().iter().map(tensor).collect()
}

/// Bytes read and written per second if all threads copy more than caches hold.
fn bandwidth(threads: usize) -> f64 {
    const BLOCK: usize = 32 << 20;
    let mut blocks: Vec<(Vec<u8>, Vec<u8>)> = (0..threads).map(|_| (vec![1; BLOCK], vec![2; BLOCK])).collect();
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = now();
        std::thread::scope(|scope| {
            for (from, to) in &mut blocks {
                scope.spawn(|| std::hint::black_box(&mut to[..]).copy_from_slice(std::hint::black_box(from)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (2 * BLOCK * threads) as f64 / best
}

#[expect(clippy::disallowed_methods, reason = "the one clock: how long a step takes")]
fn now() -> Instant {
    Instant::now()
}
