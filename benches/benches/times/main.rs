//! Times of kernels, recorded and fitted: `cargo xtask bench times [--seconds=N] [--layers=N] [--worst=N] [--record=FILE]
//! [--level=NAME] [--families=NAME,..] [--write] [NETWORK|FILE]...`.
//!
//! The kernels that can do the same work are measured in turns, those of random shapes ([`sweep`]) and those of the given
//! networks. Times of units of work are fitted to the random ones alone, so that the networks test the model: for each the
//! table has how much longer its layers take with the kernels that the model chooses than with the fastest ones. `--write`
//! puts the fitted times where the compiler reads them; with `--families` those of some families alone, and the others stay.

mod fit;
mod sweep;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use compiler::source::{Request, load};
use cpu::{Isa, Kernel, Level, Pool};
use lower::cpu::{CpuTarget, Layer, Times, Workload};
use runtime::KernelTimer;

use fit::{Sample, fit};

/// Random layers, and their seed.
const LAYERS: usize = 6000;
const SEED: u64 = 2026;

fn main() {
    if let Err(error) = Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

struct Options {
    /// Time of all measurements of the sweep, and of each network.
    seconds: u64,
    /// Random layers.
    layers: usize,
    is_written: bool,
    /// A file of measured times, which are read instead of measured if it is there.
    record: Option<PathBuf>,
    /// The processors whose kernels are measured.
    level: Level,
    /// Families whose times are fitted and written, if not all.
    families: Vec<String>,
    /// Layers to list with all times, those first that lose most by the model's choice.
    worst: usize,
    networks: Vec<String>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            seconds: 240,
            layers: LAYERS,
            is_written: false,
            record: None,
            level: Level::native().ok_or("there are no kernels for this processor")?,
            families: Vec::new(),
            worst: 0,
            networks: Vec::new(),
        };
        for word in words {
            let (flag, value) = word.split_once('=').unwrap_or((&word, ""));
            let number = || match value.parse::<u32>() {
                Ok(number) if 0 < number => Ok(number),
                _ => Err(format!("{flag} takes a number from 1, got `{value}`")),
            };
            match flag {
                "--seconds" => options.seconds = number()?.into(),
                "--layers" => options.layers = number()? as usize,
                "--worst" => options.worst = number()? as usize,
                "--record" => options.record = Some(value.into()),
                "--write" => options.is_written = true,
                "--families" => options.families.extend(value.split(',').map(str::to_string)),
                "--level" => {
                    options.level = Level::named(value).ok_or_else(|| format!("there is no level `{value}`"))?;
                }
                // An argument of Cargo.
                "--bench" => {}
                flag if flag.starts_with("--") => return Err(format!("`{flag}` is not a flag of this bench")),
                _ => options.networks.push(word),
            }
        }
        Ok(options)
    }
}

/// Kernels of one layer with their times in picoseconds.
type Measured = Vec<(Kernel, f64)>;
/// The measured layers of a source.
type Record = Vec<(String, Vec<Measured>)>;

fn run(options: &Options) -> Result<(), String> {
    let target = CpuTarget { level: options.level, ..CpuTarget::new() };
    let pool = Pool::with_isa(1, options.level.isa);
    if pool.isa() != options.level.isa {
        return Err(format!("this processor has no instructions of `{}`", options.level.name));
    }
    let record = match &options.record {
        Some(path) if path.exists() => read(path)?,
        _ => measured(options, &target, &pool)?,
    };
    if let Some(path) = options.record.as_ref().filter(|path| !path.exists()) {
        let text = serde_json::to_string(&record).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let (_, sweep) = &record[0];
    let mut families: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
    for (kernel, picoseconds) in sweep.iter().flatten() {
        let work = Workload::of(kernel).ok_or_else(|| format!("{kernel:?} is not modelled"))?;
        families.entry(work.family).or_default().push(Sample { amounts: work.amounts, picoseconds: *picoseconds });
    }
    if let Some(missing) = options.families.iter().find(|name| !families.contains_key(name.as_str())) {
        return Err(format!("no random layer has a kernel of the family `{missing}`"));
    }
    families.retain(|family, _| options.families.is_empty() || options.families.iter().any(|name| name == family));
    let before = Times::of(pool.isa());
    let mut table = String::new();
    println!("| family | kernels | error: median | 90 % | most |");
    println!("| --- | --- | --- | --- | --- |");
    for (family, samples) in &families {
        let units = fit(samples);
        let modelled = |sample: &Sample| sample.amounts.iter().map(|(name, amount)| units[name] * amount).sum::<f64>();
        let mut errors: Vec<f64> =
            samples.iter().map(|sample| (modelled(sample) / sample.picoseconds).ln().abs().exp()).collect();
        errors.sort_by(f64::total_cmp);
        let of = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
        println!("| {family} | {} | {:.2} | {:.2} | {:.2} |", samples.len(), of(0.5), of(0.9), of(1.0));
        for (amount, unit) in units {
            let _ = writeln!(table, "{family}\t{amount}\t{unit:.6}");
        }
    }
    let times = before.with(&Times::parse(&table)?);
    println!("\n| layers of | layers | time of chosen kernels, of the fastest | most of a layer | before |");
    println!("| --- | --- | --- | --- | --- |");
    let mut networks = Vec::new();
    for (ix, (name, layers)) in record.iter().enumerate() {
        regret(name, layers, &times, before, options.worst);
        networks.extend_from_slice(if 0 < ix { layers } else { &[] });
    }
    if !networks.is_empty() {
        regret("all networks", &networks, &times, before, 0);
    }
    if options.is_written {
        write(&table, pool.isa(), &options.families)?;
    }
    Ok(())
}

/// The sweep, and the networks behind it.
fn measured(options: &Options, target: &CpuTarget, pool: &Pool) -> Result<Record, String> {
    let mut sweep = sweep::random_layers(SEED, options.layers, target);
    let is_fitted = |kernel: &Kernel| {
        Workload::of(kernel).is_some_and(|work| options.families.iter().any(|family| family == work.family))
    };
    sweep.retain(|layer| options.families.is_empty() || layer.candidates.iter().any(is_fitted));
    let mut record = vec![("sweep".to_string(), measure("sweep", &sweep, options.seconds, pool)?)];
    for network in &options.networks {
        let request = Request { model: network.clone(), ..Request::default() };
        let model = load(&request).map_err(|error| format!("{network}: {error}"))?;
        let layers = compiler::tunable(model.graph, target).map_err(|error| format!("{network}: {error}"))?;
        record.push((network.clone(), measure(network, &layers, options.seconds.div_ceil(20), pool)?));
    }
    Ok(record)
}

fn read(path: &Path) -> Result<Record, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Measures all kernels of layers, those of a layer in turns. A layer has an equal part of the time.
fn measure(name: &str, layers: &[Layer], seconds: u64, pool: &Pool) -> Result<Vec<Measured>, String> {
    const RUNS_MIN: usize = 4;
    const RUNS_MAX: usize = 60;
    const FAR: f64 = 6.0;
    let share = Duration::from_secs(seconds) / layers.len().max(1) as u32;
    let mut measured = Vec::new();
    for layer in layers {
        let timers: Result<Vec<KernelTimer>, _> = layer.candidates.iter().map(KernelTimer::new).collect();
        let mut timers = timers.map_err(|error| format!("{name}: {error}"))?;
        let (start, mut runs) = (now(), 0);
        while runs < RUNS_MIN || (runs < RUNS_MAX && start.elapsed() < share) {
            let least = timers.iter().map(KernelTimer::seconds).fold(f64::INFINITY, f64::min);
            // Kernels far from the fastest need no better times.
            let is_near = |timer: &&mut KernelTimer| runs < RUNS_MIN || timer.seconds() < FAR * least;
            timers.iter_mut().filter(is_near).for_each(|timer| timer.run(pool));
            runs += 1;
        }
        let times = timers.iter().map(|timer| timer.seconds() * 1e12);
        measured.push(layer.candidates.iter().cloned().zip(times).collect());
    }
    Ok(measured)
}

/// Prints how much longer layers take with the kernels that models choose than with the fastest.
fn regret(name: &str, layers: &[Measured], times: &Times, before: &Times, listed: usize) {
    let chosen = |layer: &Measured, times: &Times| {
        let modelled = |kernel: &Kernel| times.of_kernel(kernel).unwrap_or(u64::MAX);
        layer
            .iter()
            .filter(|(kernel, _)| !rounds_more(kernel))
            .min_by_key(|(kernel, _)| modelled(kernel))
            .map(|&(_, time)| time)
    };
    let fastest = |layer: &Measured| {
        layer.iter().filter(|(kernel, _)| !rounds_more(kernel)).map(|&(_, time)| time).min_by(f64::total_cmp)
    };
    let of = |times: &Times| {
        let pairs: Vec<(f64, f64)> =
            layers.iter().filter_map(|layer| Some((chosen(layer, times)?, fastest(layer)?))).collect();
        let total = pairs.iter().map(|pair| pair.0).sum::<f64>() / pairs.iter().map(|pair| pair.1).sum::<f64>();
        (total, pairs.iter().map(|pair| pair.0 / pair.1).fold(1.0, f64::max))
    };
    let ((total, most), (earlier, _)) = (of(times), of(before));
    let name = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
    println!("| {name} | {} | {total:.3} | {most:.2} | {earlier:.3} |", layers.len());
    let ratio =
        |layer: &Measured| chosen(layer, times).zip(fastest(layer)).map_or(0.0, |(chosen, fastest)| chosen / fastest);
    let mut worst: Vec<&Measured> = layers.iter().collect();
    worst.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    for layer in worst.iter().take(listed) {
        for (kernel, picoseconds) in layer.iter() {
            let modelled = times.of_kernel(kernel).unwrap_or(0) as f64 / 1e6;
            eprintln!("{:10.1} us, modelled {modelled:10.1} us: {kernel:?}", picoseconds / 1e6);
        }
        eprintln!();
    }
}

/// Winograd's algorithm with the largest tiles is not a choice of the model.
fn rounds_more(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Winograd(kernel) if 4 < kernel.tile)
        || matches!(kernel, Kernel::DynamicConv(kernel) if matches!(&kernel.conv, cpu::PackedConv::Winograd(kernel) if 4 < kernel.tile))
}

/// Writes a table; if `families` has names, lines of other families and the heads stay as they are.
fn write(table: &str, isa: Isa, families: &[String]) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/lower/src/cpu/times/{isa}.tsv"));
    let in_file = |error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_string()
    };
    let processor = format!("{} family {} model {}", field("model name"), field("cpu family"), field("model\t"));
    let text = match families {
        [] => format!(
            "# Picoseconds of a unit of work, one thread, {isa}: {processor}.\n# Made by `cargo xtask bench times \
             --write`.\n# family\tamount\tpicoseconds\n{table}"
        ),
        families => {
            let old = std::fs::read_to_string(&path).map_err(in_file)?;
            let stays = |line: &&str| {
                let family = line.split('\t').next();
                family.is_none_or(|family| families.iter().all(|other| other != family))
            };
            let note = format!("# Later: {}, {processor}.", families.join(", "));
            let (mut heads, mut lines): (Vec<&str>, Vec<&str>) =
                old.lines().filter(stays).filter(|&line| line != note).partition(|line| line.starts_with('#'));
            heads.insert(heads.len().saturating_sub(1), &note);
            lines.extend(table.lines());
            lines.sort_unstable();
            [heads, lines].concat().join("\n") + "\n"
        }
    };
    std::fs::write(&path, text).map_err(in_file)
}

#[expect(clippy::disallowed_methods, reason = "measurements run for a given time")]
fn now() -> Instant {
    Instant::now()
}
