//! `compile --tune` on a processor: measures the algorithms of each convolution and prefers the fastest.
//!
//! Results go to a file, by processor, threads, batch and shape. Layers in the file are not measured again, so that the same
//! file gives the same executable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use compiler::{Model, TuneOutcome, default_tune_cache, read_tune_rows};
use cpu::{Args, Kernel, Operand, Pool};
use lower::cpu::{Algorithm, CpuTarget, Layer, Tuned};
use types::Random;

use crate::flags::Tune;
use crate::progress::Progress;

/// Limits of the runs of a candidate. The minimum keeps one disturbance from deciding.
const RUNS_MIN: usize = 3;
const RUNS_MAX: usize = 100;
/// A candidate with more packed weights replaces another only if it takes this part of its time or less.
const WORTHWHILE: f64 = 0.95;
/// Runs alternate between copies of the weights with this total size, as weights of a network come from memory.
const COLD_BYTES: usize = 64 << 20;
/// The first lines of the file.
const HEADER: &str = "# prestow: the fastest way to compute a layer, as measured";
const COLUMNS: &str = "# processor\tfamily\tthreads\tbatch\tlayer\tfastest\tmicroseconds of each";

/// The conditions of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conditions {
    processor: String,
    family: String,
    threads: usize,
    batch: usize,
}

/// The rows of a file: the fastest algorithm, and the text of all times.
type Rows = BTreeMap<(Conditions, String), (Algorithm, String)>;

/// Chooses an algorithm for every layer of a model, from the file or by measurement. Plans of several batches use the
/// choices for the largest one, so that they share packed weights.
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
        None => default_tune_cache("tuned.tsv")
            .ok_or("there is no home directory for the results; name a file with --tune-cache")?,
    };
    let mut rows = read(&cache)?;
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let pool = Pool::with_isa(threads, target.level.isa.min(cpu::Isa::detect()));
    let conditions = Conditions { processor: processor(), family: pool.isa().to_string(), threads, batch };
    let unknown: Vec<&Layer> =
        layers.iter().filter(|layer| !rows.contains_key(&(conditions.clone(), layer.name.clone()))).collect();
    let progress = Progress::bar(unknown.len(), "layers measured");
    for (ix, layer) in unknown.iter().enumerate() {
        let share = options.seconds / unknown.len() as f64;
        let (fastest, times) = measure(layer, &pool, share);
        progress.item(&format!("tuning {}/{}: {}: {fastest} ({times})", ix + 1, unknown.len(), layer.name));
        rows.insert((conditions.clone(), layer.name.clone()), (fastest, times));
        // After each layer, so that an interrupted run keeps its results.
        write(&cache, &rows)?;
    }
    let mut tuned = Tuned::default();
    let mut changed = 0;
    for layer in &layers {
        let (fastest, _) = rows[&(conditions.clone(), layer.name.clone())];
        changed += usize::from(fastest != layer.modelled);
        tuned.insert(&layer.name, fastest);
    }
    Ok((tuned, TuneOutcome { measured: unknown.len(), known: layers.len() - unknown.len(), changed, cache }))
}

/// An algorithm of a layer, with operands of its own.
struct Candidate<'a> {
    algorithm: Algorithm,
    kernel: &'a Kernel,
    /// Copies of operand 1, the weights.
    weights: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    workspace: Vec<u8>,
    least: f64,
}

/// Alignment of operands in plans.
const ALIGNMENT: usize = 64;

/// Bytes with space to align them.
fn bytes(count: u64, mut fill: impl FnMut() -> f32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count.div_ceil(4)).flat_map(|_| fill().to_le_bytes()).collect();
    bytes.resize(count as usize + ALIGNMENT, 0);
    let shift = bytes.as_ptr().align_offset(ALIGNMENT);
    bytes.rotate_right(shift);
    bytes
}

/// The aligned part of such bytes.
fn aligned(bytes: &[u8]) -> &[u8] {
    let shift = bytes.as_ptr().align_offset(ALIGNMENT);
    &bytes[shift..bytes.len() - ALIGNMENT + shift]
}

fn aligned_mut(bytes: &mut [u8]) -> &mut [u8] {
    let shift = bytes.as_ptr().align_offset(ALIGNMENT);
    let end = bytes.len() - ALIGNMENT + shift;
    &mut bytes[shift..end]
}

impl<'a> Candidate<'a> {
    fn new(algorithm: Algorithm, kernel: &'a Kernel) -> Candidate<'a> {
        let sizes = kernel.sizes().expect("kernels made from verified nodes agree with themselves");
        let mut random = Random::new(1);
        let mut uniform = || random.uniform(-1.0, 1.0);
        let copies = (COLD_BYTES / sizes.inputs[1].max(1) as usize).clamp(1, 64);
        let inputs: Vec<Vec<u8>> = sizes.inputs.iter().map(|&size| bytes(size, &mut uniform)).collect();
        Candidate {
            algorithm,
            kernel,
            outputs: sizes.outputs.iter().map(|&size| bytes(size, || 0.0)).collect(),
            workspace: bytes(sizes.workspace, || 0.0),
            weights: (0..copies).map(|_| bytes(sizes.inputs[1], || 0.0)).map(|copy| filled(copy, &inputs[1])).collect(),
            inputs,
            least: f64::INFINITY,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "tuning measures time")]
    fn run(&mut self, repeat: usize, pool: &Pool) {
        let weights = &self.weights[repeat % self.weights.len()];
        let inputs: Vec<Operand> = (0..self.inputs.len())
            .map(|ix| Operand::Bytes(aligned(if ix == 1 { weights } else { &self.inputs[ix] })))
            .collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(|output| aligned_mut(output)).collect();
        let args = Args { inputs: &inputs, outputs: &mut outputs, workspace: aligned_mut(&mut self.workspace) };
        let start = Instant::now();
        self.kernel.run(args, pool);
        let seconds = start.elapsed().as_secs_f64();
        // The first run touches memory for the first time.
        if 0 < repeat {
            self.least = self.least.min(seconds);
        }
    }
}

/// A copy of aligned bytes.
fn filled(mut copy: Vec<u8>, from: &[u8]) -> Vec<u8> {
    aligned_mut(&mut copy).copy_from_slice(aligned(from));
    copy
}

/// The fastest algorithm of a layer and all times. Candidates alternate for about the given time.
#[expect(clippy::disallowed_methods, reason = "tuning runs for a given time")]
fn measure(layer: &Layer, pool: &Pool, seconds: f64) -> (Algorithm, String) {
    let start = Instant::now();
    let mut candidates: Vec<Candidate> =
        layer.candidates.iter().map(|(algorithm, kernel)| Candidate::new(*algorithm, kernel)).collect();
    for repeat in 0..=RUNS_MAX {
        if RUNS_MIN < repeat && seconds <= start.elapsed().as_secs_f64() {
            break;
        }
        candidates.iter_mut().for_each(|candidate| candidate.run(repeat, pool));
    }
    let mut best = &candidates[0];
    for candidate in &candidates[1..] {
        if candidate.least < best.least * WORTHWHILE {
            best = candidate;
        }
    }
    let times = candidates.iter().map(|one| format!("{} {:.1}", one.algorithm, one.least * 1e6));
    (best.algorithm, times.collect::<Vec<_>>().join(", "))
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

fn parse(line: &str) -> Option<((Conditions, String), (Algorithm, String))> {
    let [processor, family, threads, batch, layer, fastest, times] =
        line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let conditions = Conditions {
        processor: processor.into(),
        family: family.into(),
        threads: threads.parse().ok()?,
        batch: batch.parse().ok()?,
    };
    Some(((conditions, layer.into()), (Algorithm::named(fastest)?, times.into())))
}

fn write(path: &Path, rows: &Rows) -> Result<(), String> {
    let mut text = format!("{HEADER}\n{COLUMNS}\n");
    for ((Conditions { processor, family, threads, batch }, layer), (fastest, times)) in rows {
        let _ = writeln!(text, "{processor}\t{family}\t{threads}\t{batch}\t{layer}\t{fastest}\t{times}");
    }
    files::write(path, text.as_bytes()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_damaged_rows_name_their_line() {
        let folder = std::env::temp_dir().join(format!("prestow-tune-{}", std::process::id()));
        let path = folder.join("tuned.tsv");
        assert_eq!(read(&path).unwrap(), Rows::new());
        let conditions = Conditions { processor: "A b".into(), family: "avx2".into(), threads: 3, batch: 8 };
        let rows = Rows::from([((conditions, "conv".into()), (Algorithm::Winograd { tile: 6 }, "direct 2.0".into()))]);
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [("\t3\t", "\tx\t"), ("winograd-6", "winograd-5"), ("\tdirect 2.0", "")] {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            assert!(read(&path).unwrap_err().contains("line 3"), "{from}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
