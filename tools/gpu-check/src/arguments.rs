//! [`Arguments`] of the command line, and the [`Settings`] that they resolve to.

use std::path::PathBuf;

use clap::Parser;
use compiler::gpu::{Libraries, Precision};
use compiler::source::Request;
use cuda::MathMode;
use types::Bytes;

use crate::rows::Baseline;

/// Networks whose training step is checked if none is named, with their batches.
const TRAINED: [(&str, usize); 4] = [("mnist_cnn", 100), ("resnet18", 32), ("mobilenet_v2", 32), ("resnet50", 32)];
/// The batch of a named network's training step without `--batch`.
const TRAINING_BATCH: usize = 32;

/// Checks operators and networks on the GPU at hand: results, memory and speed.
#[derive(Debug, Parser)]
#[command(name = "prestow-gpu-check", version)]
pub(crate) struct Arguments {
    /// Networks to check. Without any, and without --operators and --only: all operators and all networks
    models: Vec<String>,
    /// Check the training step of each named network too; without named networks, some are checked anyway
    #[arg(long, requires = "models")]
    train: bool,
    /// Print the time of each kernel of the named networks by a model of its machine code; needs no GPU, but nvdisasm
    #[arg(long = "sass", requires = "models", conflicts_with_all = ["train", "operators", "only", "cudnn", "cublas", "tune", "resume", "output"])]
    machine_code: bool,
    /// Check the cases of every operator, and no networks except those that are named
    #[arg(long)]
    operators: bool,
    /// Check the operator cases with TEXT in their names; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Batch sizes [default: 1; 1,64 for networks that are compared with baselines]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Vec<u32>,
    /// Precisions: f32, tf32, f16, bf16 [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    dtype: Vec<Precision>,
    /// Convolutions by cuDNN; tf32: with operands rounded for tensor cores
    #[arg(long, value_name = "tf32", num_args = 0..=1, require_equals = true, default_missing_value = "strict")]
    #[arg(value_parser = parse_math)]
    cudnn: Option<MathMode>,
    /// Products by cuBLASLt; tf32: with operands rounded for tensor cores
    #[arg(long, value_name = "tf32", num_args = 0..=1, require_equals = true, default_missing_value = "strict")]
    #[arg(value_parser = parse_math)]
    cublas: Option<MathMode>,
    /// The most workspace of a cuBLASLt product, such as 32MiB
    #[arg(long, value_name = "BYTES")]
    cublas_workspace: Option<Bytes>,
    /// Measure the algorithms of cuDNN and cuBLASLt for each network, for about SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "20")]
    tune: Option<f64>,
    /// File of tuning results [default: ~/.cache/prestow/tuned-gpu.tsv]
    #[arg(long, value_name = "FILE", requires = "tune")]
    tune_cache: Option<PathBuf>,
    /// Timed runs
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// The Python that has PyTorch and ONNX Runtime [default: VIRTUAL_ENV's, or python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Baselines to compare with, or none: torch-eager, torch-compile, onnxruntime
    #[arg(long = "baselines", visible_alias = "peers", value_name = "NAME,...", value_parser = parse_baselines)]
    #[arg(default_value = "torch-eager,torch-compile,onnxruntime")]
    baselines: BaselineList,
    /// Time limit for a baseline to load a network
    #[arg(long = "baseline-seconds", visible_alias = "peer-seconds", value_name = "SECONDS", default_value_t = 900)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    baseline_seconds: u64,
    /// Stop before the next row once N minutes have passed. Order of rows: networks compared with baselines, operators, other
    /// networks, training steps
    #[arg(long, value_name = "N", value_parser = parse_minutes)]
    minutes: Option<f64>,
    /// Leave out the audits of memory, which run each network twice more, step by step
    #[arg(long)]
    no_audit: bool,
    /// Continue the report of -o: its rows are kept and not run again
    #[arg(long, requires = "output")]
    resume: bool,
    /// Ordinal of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Folder of `cargo xtask fetch`
    #[arg(long, value_name = "DIR", default_value_os_t = Request::default().data)]
    data: PathBuf,
    /// File for the report as JSON, rewritten after every row
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// A list of baselines, which may be empty.
#[derive(Clone, Debug)]
struct BaselineList(Vec<Baseline>);

/// Settings of a run.
pub(crate) struct Settings {
    /// Whether a model of machine code is printed, and nothing runs.
    pub(crate) machine_code: bool,
    pub(crate) device: usize,
    /// Whether networks are checked.
    pub(crate) networks: bool,
    /// Empty: all networks of the zoo.
    pub(crate) models: Vec<String>,
    /// Networks whose training step is checked, with the batch where `batches` has none.
    pub(crate) trained: Vec<(String, usize)>,
    /// `None`: no operators. Otherwise parts of case names; all cases if empty.
    pub(crate) operators: Option<Vec<String>>,
    /// `None`: 1, and 64 for networks that are compared with baselines.
    pub(crate) batches: Option<Vec<usize>>,
    pub(crate) iters: usize,
    /// Distinct.
    pub(crate) precisions: Vec<Precision>,
    pub(crate) libraries: Libraries,
    pub(crate) data: PathBuf,
    pub(crate) output: Option<PathBuf>,
    pub(crate) json: bool,
    /// `None`: the Python of the environment.
    pub(crate) python: Option<PathBuf>,
    pub(crate) baselines: Vec<Baseline>,
    pub(crate) baseline_seconds: u64,
    pub(crate) tune: Option<Tune>,
    pub(crate) minutes: Option<f64>,
    /// Whether memory is audited.
    pub(crate) audits: bool,
    pub(crate) resume: bool,
}

/// Settings of `--tune`.
pub(crate) struct Tune {
    /// Time limit per network.
    pub(crate) seconds: f64,
    /// `None`: in the user's cache folder.
    pub(crate) cache: Option<PathBuf>,
}

impl Arguments {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// Two arguments exclude each other, or one needs another.
    pub(crate) fn resolve(self) -> Result<Settings, String> {
        let Arguments { cudnn, cublas, cublas_workspace, .. } = self;
        let libraries = Libraries { cudnn, cublas, cublas_workspace };
        let batches: Vec<usize> = self.batch.iter().map(|&batch| batch as usize).collect();
        distinct("--batch", &batches)?;
        distinct("--dtype", &self.dtype)?;
        let precisions = match &self.dtype[..] {
            // TF32 in a library is about f32.
            [] if libraries.rounds() => vec![Precision::F32],
            // By worth: those that tensor cores are fastest with first.
            [] if self.minutes.is_some() => vec![Precision::F16, Precision::Tf32, Precision::F32, Precision::Bf16],
            [] => Precision::ALL.to_vec(),
            named => named.to_vec(),
        };
        let libraries = libraries.resolve(false, &precisions)?;
        if self.tune.is_some() && !libraries.any() {
            return Err("--tune chooses among algorithms of libraries; add --cudnn or --cublas".into());
        }
        if let Some(seconds) = self.tune.filter(|seconds| !(0.0..=86_400.0).contains(seconds)) {
            return Err(format!("--tune takes seconds up to a day, not `{seconds}`"));
        }
        // Named networks are checked; without any, everything is.
        let by_operator = self.operators || !self.only.is_empty();
        let operators = (by_operator || self.models.is_empty()).then_some(self.only);
        let networks = !self.models.is_empty() || !by_operator;
        let trained = match &self.models[..] {
            [] if networks => TRAINED.map(|(name, batch)| (name.to_string(), batch)).into(),
            models if self.train => models.iter().map(|name| (name.clone(), TRAINING_BATCH)).collect(),
            _ => Vec::new(),
        };
        Ok(Settings {
            machine_code: self.machine_code,
            device: self.device as usize,
            networks,
            trained,
            models: self.models,
            operators,
            batches: Some(batches).filter(|batches| !batches.is_empty()),
            iters: self.iters as usize,
            precisions,
            libraries,
            data: self.data,
            output: self.output,
            json: self.json,
            python: self.python,
            baselines: self.baselines.0,
            baseline_seconds: self.baseline_seconds,
            tune: self.tune.map(|seconds| Tune { seconds, cache: self.tune_cache }),
            minutes: self.minutes,
            audits: !self.no_audit,
            resume: self.resume,
        })
    }
}

fn distinct<T: PartialEq + std::fmt::Display>(flag: &str, items: &[T]) -> Result<(), String> {
    let twice = items.iter().enumerate().find(|(ix, item)| items[..*ix].contains(item));
    twice.map_or(Ok(()), |(_, item)| Err(format!("{flag} names {item} twice")))
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| 0.0 < *minutes && *minutes <= 1440.0);
    minutes.ok_or_else(|| format!("minutes must be above 0 and at most 1440, a day, got `{text}`"))
}

fn parse_math(text: &str) -> Result<MathMode, String> {
    match text {
        "strict" => Ok(MathMode::Strict),
        "tf32" => Ok(MathMode::Tf32),
        other => Err(format!("`{other}` is not tf32")),
    }
}

fn parse_baselines(text: &str) -> Result<BaselineList, String> {
    let mut all = Vec::new();
    for name in text.split(',').map(str::trim).filter(|_| text != "none") {
        let found = Baseline::ALL
            .into_iter()
            .find(|baseline| baseline.name() == name)
            .ok_or_else(|| format!("`{name}` is not one of {}, none", Baseline::ALL.map(Baseline::name).join(", ")))?;
        all.push(found);
    }
    distinct("--baselines", &all)?;
    Ok(BaselineList(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &[&str]) -> Result<Settings, String> {
        Arguments::try_parse_from([&["gpu-check"], words].concat()).map_err(|error| error.to_string())?.resolve()
    }

    #[test]
    fn named_networks_exclude_operators() {
        let chosen = |words: &[&str]| settings(words).map(|settings| (settings.operators, settings.networks)).unwrap();
        assert_eq!(chosen(&[]), (Some(Vec::new()), true));
        assert_eq!(chosen(&["resnet50"]), (None, true));
        assert_eq!(chosen(&["--operators"]), (Some(Vec::new()), false));
        assert_eq!(chosen(&["--only", "conv", "resnet50"]), (Some(vec!["conv".into()]), true));
    }

    #[test]
    fn training_steps_are_checked_where_they_are_asked_for() {
        let trained = |words: &[&str]| settings(words).map(|settings| settings.trained).unwrap();
        assert_eq!(trained(&[]).len(), TRAINED.len());
        assert_eq!(trained(&["resnet50", "--train"]), [("resnet50".to_string(), TRAINING_BATCH)]);
        assert_eq!(trained(&["resnet50"]), []);
        assert_eq!(trained(&["--operators"]), []);
    }

    #[test]
    fn library_options_take_tf32_after_an_equals_sign() {
        let libraries = |words: &[&str]| settings(words).map(|settings| settings.libraries).unwrap();
        assert_eq!(libraries(&["--cudnn", "resnet50"]).cudnn, Some(MathMode::Strict));
        assert_eq!(libraries(&["--cublas=tf32", "--dtype", "f32"]).cublas, Some(MathMode::Tf32));
        assert_eq!(settings(&["--cudnn=tf32"]).unwrap().precisions, [Precision::F32]);
    }

    #[test]
    fn contradictions_are_refused() {
        for (words, part) in [
            (&["--tune"][..], "--cudnn or --cublas"),
            (&["--tune-cache", "file", "--cudnn"], "--tune"),
            (&["--train"], "MODELS"),
            (&["--dtype", "f16,f16"], "names f16 twice"),
            (&["--batch", "0"], "--batch"),
            (&["--peers", "tensorflow"], "`tensorflow` is not one of torch-eager"),
            (&["--resume"], "--output"),
            (&["--cublas-workspace", "1MiB"], "requires cuBLASLt"),
            (&["--cudnn=fast"], "`fast` is not tf32"),
            (&["--minutes", "0"], "above 0"),
            (&["--minutes", "NaN"], "above 0"),
            (&["--minutes", "1441"], "at most 1440"),
        ] {
            let error = settings(words).err().unwrap_or_else(|| panic!("{words:?}"));
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }
}
