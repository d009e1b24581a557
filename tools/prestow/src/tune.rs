//! `compile --tune` on a processor: measures the kernels of each layer that has several.
//!
//! Results go to a file, by processor, threads and kernel. Kernels in the file are not measured again, so that the same file
//! gives the same executable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use compiler::{Model, TuneOutcome, default_tune_cache, read_tune_rows};
use cpu::{Kernel, Pool};
use lower::cpu::{CpuTarget, Layer, Tuned};
use runtime::KernelTimer;

use crate::flags::Tune;
use crate::progress::Progress;

/// Limits of the runs of a kernel. The minimum keeps one disturbance from deciding.
const RUNS_MIN: usize = 3;
const RUNS_MAX: usize = 100;
/// The first lines of the file.
const HEADER: &str = "# prestow: measured times of kernels";
const COLUMNS: &str = "# processor\tisa\tthreads\tbatch\tkernel\tmicroseconds for each image";

/// The conditions of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conditions {
    processor: String,
    isa: String,
    threads: usize,
    batch: usize,
}

/// The rows of a file: times in picoseconds for each image, by the name of the kernel.
type Rows = BTreeMap<(Conditions, String), u64>;

/// Times of all kernels that a model can choose from, from the file or by measurement. Plans of several batches use the times
/// for the largest one, so that they share packed weights.
///
/// # Errors
/// A target of another architecture; a file of results that cannot be read or written.
pub(crate) fn tune(model: Model, options: &Tune, target: &CpuTarget) -> Result<(Tuned, TuneOutcome), String> {
    if target.level.arch != std::env::consts::ARCH {
        return Err(format!(
            "--tune needs a --target of this machine, which is {}, got {}; tune on a machine of that architecture",
            std::env::consts::ARCH,
            target.level.name
        ));
    }
    // The batch of a plan is the first extent of its first input.
    let input = model.graph.inputs().first().map(|&input| model.graph.ty(input));
    let batch = input.and_then(|ty| ty.shape.first().copied()).unwrap_or(1);
    let layers = compiler::tunable(model.graph, target).map_err(|error| error.to_string())?;
    let cache = match &options.cache {
        Some(path) => path.clone(),
        None => default_tune_cache("kernel-times.tsv")
            .ok_or("there is no home directory for the results; name a file with --tune-cache")?,
    };
    let mut rows = read(&cache)?;
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let pool = Pool::with_isa(threads, target.level.isa.min(cpu::Isa::detect()));
    let conditions = Conditions { processor: processor(), isa: pool.isa().to_string(), threads, batch };
    let key = |kernel: &Kernel| (conditions.clone(), Tuned::name(kernel));
    let is_known = |rows: &Rows, layer: &Layer| layer.candidates.iter().all(|kernel| rows.contains_key(&key(kernel)));
    let unknown: Vec<&Layer> = layers.iter().filter(|layer| !is_known(&rows, layer)).collect();
    let progress = Progress::bar(unknown.len(), "layers measured");
    for (ix, layer) in unknown.iter().enumerate() {
        let share = options.seconds / unknown.len() as f64;
        let seconds = measure(layer, &pool, share)?;
        for (kernel, seconds) in layer.candidates.iter().zip(&seconds) {
            rows.insert(key(kernel), (seconds * 1e12 / batch.max(1) as f64) as u64);
        }
        let fastest = fastest(layer, &rows, &key);
        progress.item(&format!("tuning {}/{}: {} of {} kernels", ix + 1, unknown.len(), fastest.name(), seconds.len()));
        // After each layer, so that an interrupted run keeps its results.
        write(&cache, &rows)?;
    }
    let mut tuned = Tuned::default();
    let mut changed = 0;
    for layer in &layers {
        changed += usize::from(*fastest(layer, &rows, &key) != layer.candidates[0]);
        for kernel in &layer.candidates {
            tuned.insert(&Tuned::name(kernel), rows[&key(kernel)]);
        }
    }
    Ok((tuned, TuneOutcome { measured: unknown.len(), known: layers.len() - unknown.len(), changed, cache }))
}

/// The kernel of a layer with the least time.
fn fastest<'a>(layer: &'a Layer, rows: &Rows, key: &impl Fn(&Kernel) -> (Conditions, String)) -> &'a Kernel {
    layer.candidates.iter().min_by_key(|kernel| rows[&key(kernel)]).expect("a layer has several kernels")
}

/// The seconds of each kernel of a layer. Kernels alternate for about the given time.
#[expect(clippy::disallowed_methods, reason = "tuning runs for a given time")]
fn measure(layer: &Layer, pool: &Pool, seconds: f64) -> Result<Vec<f64>, String> {
    let start = Instant::now();
    let timers: Result<Vec<KernelTimer>, _> = layer.candidates.iter().map(KernelTimer::new).collect();
    let mut timers = timers.map_err(|error| error.to_string())?;
    for repeat in 0..=RUNS_MAX {
        if RUNS_MIN < repeat && seconds <= start.elapsed().as_secs_f64() {
            break;
        }
        timers.iter_mut().for_each(|timer| timer.run(pool));
    }
    Ok(timers.iter().map(KernelTimer::seconds).collect())
}

/// The processor's name in /proc/cpuinfo.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |name| name.trim().replace('\t', " "))
}

/// Reads the file, which need not be there.
fn read(path: &Path) -> Result<Rows, String> {
    read_tune_rows(path, parse).map(Rows::from_iter)
}

fn parse(line: &str) -> Option<((Conditions, String), u64)> {
    let [processor, isa, threads, batch, kernel, time] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let conditions = Conditions {
        processor: processor.into(),
        isa: isa.into(),
        threads: threads.parse().ok()?,
        batch: batch.parse().ok()?,
    };
    let microseconds = time.parse::<f64>().ok().filter(|time| time.is_finite() && 0.0 <= *time)?;
    Some(((conditions, kernel.into()), (microseconds * 1e6).round() as u64))
}

fn write(path: &Path, rows: &Rows) -> Result<(), String> {
    let mut text = format!("{HEADER}\n{COLUMNS}\n");
    for ((Conditions { processor, isa, threads, batch }, kernel), time) in rows {
        let microseconds = *time as f64 / 1e6;
        let _ = writeln!(text, "{processor}\t{isa}\t{threads}\t{batch}\t{kernel}\t{microseconds}");
    }
    files::write(path, text.as_bytes()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_damaged_rows_name_their_line() {
        let folder = std::env::temp_dir().join(format!("prestow-tune-{}", std::process::id()));
        let path = folder.join("kernel-times.tsv");
        assert_eq!(read(&path).unwrap(), Rows::new());
        let conditions = Conditions { processor: "A b".into(), isa: "avx2".into(), threads: 3, batch: 8 };
        let rows = Rows::from([((conditions, "Conv { batch: 1 }".into()), 2_345_678)]);
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [("\t3\t", "\tx\t"), ("2.345678", "soon"), ("2.345678", "-1"), ("\t2.345678", "")] {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            assert!(read(&path).unwrap_err().contains("line 3"), "{from}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
