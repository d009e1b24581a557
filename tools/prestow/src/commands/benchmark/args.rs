//! [`Args`]: the command line of `prestow benchmark`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use plan::Plan;
use runtime::ImageFile;
use types::Bytes;

use crate::flags::BATCH_MAX;

/// Flags of `prestow benchmark`. Those with an underscore have the names of DLBS's `mxnet_benchmarks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A network of the zoo, a model file, or an executable of `prestow compile`.
    #[arg(long = "model", value_name = "MODEL|FILE", required_unless_present = "positional")]
    pub(super) model: Option<String>,
    /// The same, without the flag.
    #[arg(value_name = "MODEL|FILE", conflicts_with = "model")]
    pub(super) positional: Option<String>,
    /// Samples of a batch; several for a sweep.
    #[arg(long = "batch_size", value_name = "N[,N...]", value_delimiter = ',')]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<u64>::new().range(1..=BATCH_MAX))]
    pub(super) batches: Vec<u64>,
    /// Batches that are timed.
    #[arg(long = "num_batches", value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub(super) num_batches: usize,
    /// Batches before the timed ones; they are complete before the first timed one starts.
    #[arg(long = "num_warmup_batches", value_name = "N", default_value_t = 1)]
    pub(super) num_warmup_batches: usize,
    /// Inference, or training: whole steps, as `compile --train` compiles them.
    #[arg(long, value_name = "PHASE")]
    pub(super) phase: Option<Phase>,
    /// True: inference, the default; false: training. The earlier name of --phase.
    #[arg(long = "forward_only", value_name = "BOOL", conflicts_with = "phase", value_parser = parse_bool)]
    pub(super) forward_only: Option<bool>,
    /// cpu or gpu; the earlier name of --gpus.
    #[arg(long, value_name = "DEVICE", conflicts_with = "gpus")]
    pub(super) device: Option<DeviceKind>,
    /// Number of GPUs, which must be 1.
    #[arg(long = "num_gpus", value_name = "N")]
    pub(super) num_gpus: Option<usize>,
    /// Number of the GPU; empty for the processor.
    #[arg(long, value_name = "N")]
    pub(super) gpus: Option<String>,
    /// Target of the plan, as --target of `compile` (default cpu; with a GPU, cuda:sm_90).
    #[arg(long, value_name = "TARGET")]
    pub(super) target: Option<String>,
    /// float32 (float) or float16, or a --dtype of `compile`.
    #[arg(long, value_name = "DTYPE", default_value = "float32")]
    pub(super) dtype: String,
    /// Aggregation of gradients; one device needs none.
    #[arg(long = "kv_store", value_name = "TYPE", default_value = "device")]
    pub(super) kv_store: String,
    /// Options of the model as JSON. Networks of the zoo have none.
    #[arg(long = "model_opts", value_name = "JSON", default_value = "{}")]
    pub(super) model_opts: String,
    /// A .rec or .npz file, or a folder with train.rec. Without it the same synthetic batch is used again and again.
    #[arg(long = "data_dir", value_name = "PATH", conflicts_with = "data")]
    pub(super) data_dir: Option<String>,
    /// A data set, as `rec:FILE,resize=256`; the guide lists the kinds. The wait for a batch is part of its time.
    #[arg(long, value_name = "KIND:SOURCE")]
    pub(super) data: Option<String>,
    /// Threads that read data.
    #[arg(long = "preprocess_threads", value_name = "N", default_value_t = 4)]
    pub(super) preprocess_threads: usize,
    /// Batches that are read ahead.
    #[arg(long = "prefetch_buffer", value_name = "N", default_value_t = 10)]
    pub(super) prefetch_buffer: usize,
    /// Layout of the input: NCHW, that of the networks of the zoo.
    #[arg(long = "input_layout", value_name = "LAYOUT", value_parser = ["NCHW"])]
    pub(super) input_layout: Option<String>,
    /// Layout between layers: the compiler chooses it, whatever this flag is.
    #[arg(long = "model_layout", value_name = "LAYOUT", value_parser = ["NCHW", "NHWC"])]
    pub(super) model_layout: Option<String>,
    /// Has no effect: for command lines of DLBS.
    #[arg(long = "nvidia_layers", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(super) nvidia_layers: Option<String>,
    /// Has no effect: for command lines of DLBS.
    #[arg(long = "use_dali", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(super) use_dali: Option<String>,
    /// Has no effect: the compiler bounds workspaces by the plan.
    #[arg(long, value_name = "MIB")]
    pub(super) workspace: Option<u64>,
    /// Threads that compute (default: all processors).
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',')]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(super) threads: Vec<usize>,
    /// Whether a run includes the copies of inputs to the device and of outputs from it.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = parse_bool)]
    #[arg(action = clap::ArgAction::Set)]
    pub(super) copies: bool,
    /// Memory of the device, as 8GiB (default: the free memory, or that of the GPU of --target FILE.json).
    #[arg(long, value_name = "BYTES")]
    pub(super) memory: Option<Bytes>,
    /// A scenario of MLPerf's LoadGen instead of a plain loop.
    #[arg(long, value_name = "SCENARIO")]
    #[arg(value_parser = ["single-stream", "multi-stream", "server", "offline"])]
    pub(super) scenario: Option<String>,
    /// Queries per second of the server scenario (default: the largest that holds the bound, by bisection).
    #[arg(long, value_name = "QPS", requires = "scenario", value_parser = parse_rate)]
    pub(super) rate: Option<f64>,
    /// Latency bound of the server scenario at the 99th percentile, in ms.
    #[arg(long = "latency-bound", value_name = "MS", requires = "scenario", value_parser = parse_bound)]
    pub(super) latency_bound: Option<f64>,
    /// Shortest duration of a scenario in seconds.
    #[arg(long = "min-duration", value_name = "S", default_value_t = 1.0, value_parser = parse_duration)]
    pub(super) min_duration: f64,
    /// Fewest queries of a scenario.
    #[arg(long = "min-queries", value_name = "N", default_value_t = 100)]
    pub(super) min_queries: usize,
    /// Seed of arrivals and of synthetic inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Sessions that run at the same time, in the server and offline scenarios and for --answer-queries.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(super) concurrency: usize,
    /// At the end run a query for each line of standard input, and repeat the line on standard output when the query is
    /// complete, with a tab and the nanoseconds of the run: for load generators of other programs, as LoadGen itself (benches/peers/loadgen.py).
    #[arg(long = "answer-queries", conflicts_with_all = ["scenario", "data", "data_dir"])]
    pub(super) answer_queries: bool,
    /// Also measure N processes from their start to their first result.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) cold: usize,
    /// Measure another executable in turns with this one, and print a verdict.
    #[arg(long, value_name = "EXECUTABLE")]
    pub(super) against: Option<PathBuf>,
    /// The runtime: prestow, or a peer of benches/peers: onnxruntime, openvino, mnn, torch, torch-eager, torch-jit, mxnet,
    /// tract, rten.
    #[arg(long, value_name = "NAME", default_value = "prestow")]
    pub(super) framework: String,
    /// Python interpreter that has the peer's package.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub(super) python: String,
    /// Folder of the peers' programs.
    #[arg(long, value_name = "DIR", default_value = "benches/peers")]
    pub(super) peers: PathBuf,
    /// Write the results as JSON, one object a line (docs/reference/benchmark-results.md).
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write the time of every run as JSON lines, in nanoseconds.
    #[arg(long, value_name = "FILE")]
    pub(super) raw: Option<PathBuf>,
    /// Further flags of `compile`, after `--`.
    #[arg(last = true, value_name = "FLAGS")]
    pub(super) compile: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Phase {
    Inference,
    Training,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Inference => "inference",
            Phase::Training => "training",
        }
    }

    /// The plan of a batch, or the first plan, that is for this phase.
    pub(super) fn plan(self, image: &ImageFile, batch: Option<u64>) -> Option<&Arc<Plan>> {
        let mut plans = image.plans.iter();
        plans.find(|plan| match self {
            Phase::Inference => plan.phase == plan::Phase::Inference,
            Phase::Training => train::is_step(plan),
        } && batch.is_none_or(|batch| plan.batch == batch))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceKind {
    Cpu,
    Gpu,
}

fn parse_bool(text: &str) -> Result<bool, String> {
    match &text.to_lowercase()[..] {
        "true" | "on" | "t" | "1" | "yes" => Ok(true),
        "false" | "off" | "f" | "0" | "no" => Ok(false),
        _ => Err(format!("expected true or false, got `{text}`")),
    }
}

fn parse_number(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a number from {} to {}, got `{text}`", range.start(), range.end()))
}

/// Queries per second. Arrivals are nanoseconds apart.
fn parse_rate(text: &str) -> Result<f64, String> {
    parse_number(text, 0.001..=1e8)
}

/// Milliseconds.
fn parse_bound(text: &str) -> Result<f64, String> {
    parse_number(text, 1e-6..=1e9)
}

/// Seconds, up to a week.
fn parse_duration(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0..=604_800.0)
}
