//! The flags.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use share::core::{EvictionPolicy, Granularity};
use types::Bytes;

#[derive(Parser)]
#[command(name = "uprd", version, about = "share weights between processes")]
pub(crate) struct Cli {
    /// The daemon's socket (default: UPRD_SOCKET, else uprd/uprd.sock in XDG_RUNTIME_DIR, else /run/uprd/uprd.sock)
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the daemon until it is drained
    Serve(Box<ServeArgs>),
    /// Show budget, models, leases, clients and counters
    Status(Format),
    /// List the models
    List(Format),
    /// Load a model, publish it under a name, and pin it
    Preload(PreloadArgs),
    /// Keep a model resident
    Pin(ModelArg),
    /// End a pin
    Unpin(ModelArg),
    /// Drop an idle model
    Evict(EvictArgs),
    /// Compare a model's resident bytes with their digests
    Verify(ModelArg),
    /// Refuse new leases, wait for the last one to end, stop the daemon
    Drain,
    /// Show the settings of the daemon, or change them
    Config(ConfigArgs),
    /// Show the last changes of state
    History(HistoryArgs),
    /// Lease a model as an executable would; show the time it took
    Attach(AttachArgs),
    /// Join traces of daemon and clients on one axis of time
    Trace(TraceArgs),
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Bytes of the host tier, as 8GiB (default: UPRD_MEMORY_PERCENTAGE of the memory)
    #[arg(long, value_name = "BYTES")]
    pub(crate) budget: Option<Bytes>,
    /// The order of eviction: lru, fifo, lcu, never, flush, eager, lfu, size-aware, random (default: UPRD_EVICTION_POLICY)
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Option<EvictionPolicy>,
    /// A GPU to hold models on, by its UUID or number, or `all`; repeat for several
    #[arg(long, value_name = "GPU")]
    pub(crate) device: Vec<String>,
    /// Bytes of the tier of each device (default: UPRD_MEMORY_PERCENTAGE of its memory)
    #[arg(long, value_name = "BYTES")]
    pub(crate) device_budget: Option<Bytes>,
    /// The order of eviction on devices (default: that of --policy; eager with UPRD_PERSIST_ONLY_CPU)
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) device_policy: Option<EvictionPolicy>,
    /// A user that may lease models besides root and the daemon's own; repeat for several
    #[arg(long, value_name = "UID")]
    pub(crate) allow: Vec<u32>,
    /// Let all allowed users share models; by default each has its own, and those that are preloaded
    #[arg(long)]
    pub(crate) one_namespace: bool,
    /// A model to load at the start, publish under its file's name and pin; repeat for several
    #[arg(long, value_name = "FILE")]
    pub(crate) preload: Vec<PathBuf>,
    /// A file with one model to preload per line; `#` starts a comment
    #[arg(long, value_name = "FILE")]
    pub(crate) preload_list: Option<PathBuf>,
    /// Granularity of preloaded models: model or layer (default: UPR_SHARING_GRANULARITY)
    #[arg(long, value_name = "G", value_parser = granularity)]
    pub(crate) granularity: Option<Granularity>,
    /// Folder of models that are preloaded by name, and of the weights of executables that have none of their own
    /// (default: UPR_BASE_DIR)
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<PathBuf>,
    /// The socket of the figures in Prometheus' form (default: metrics.sock next to the daemon's)
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics: Option<PathBuf>,
    /// Serve the figures at a loopback address too, as 127.0.0.1:9400
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_tcp: Option<SocketAddr>,
    /// Threads that load
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// The most connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) clients_max: usize,
    /// The most leases of a connection
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) leases_max: usize,
}

#[derive(Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ModelArg {
    /// A name, or a number of `uprd list`
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
}

#[derive(Args)]
pub(crate) struct PreloadArgs {
    /// An executable or a file of tensors; a name without a slash is looked up in the base folder too (default:
    /// UPR_MODEL_NAME)
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The name to publish it under (default: the file's)
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// model or layer (default: UPR_SHARING_GRANULARITY)
    #[arg(long, value_name = "G", value_parser = granularity)]
    pub(crate) granularity: Option<Granularity>,
    /// Folder of models (default: UPR_BASE_DIR)
    #[arg(long, value_name = "DIR")]
    pub(crate) base: Option<PathBuf>,
    /// Do not pin it
    #[arg(long)]
    pub(crate) no_pin: bool,
}

#[derive(Args)]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Hide a model in use now, and drop it when its last lease ends
    #[arg(long)]
    pub(crate) drain: bool,
}

#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Change the bytes of the host tier
    #[arg(long, value_name = "BYTES")]
    pub(crate) budget: Option<Bytes>,
    /// Change the order of eviction
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Option<EvictionPolicy>,
}

#[derive(Args)]
pub(crate) struct HistoryArgs {
    /// The first event
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: u64,
}

#[derive(Args)]
pub(crate) struct AttachArgs {
    /// An executable, or the name of a published model (default: UPR_MODEL_NAME)
    #[arg(value_name = "FILE|NAME")]
    pub(crate) model: Option<PathBuf>,
    /// model or layer (default: UPR_SHARING_GRANULARITY)
    #[arg(long, value_name = "G", value_parser = granularity)]
    pub(crate) granularity: Option<Granularity>,
    /// Lease it in memory of this GPU, by its UUID or number
    #[arg(long, value_name = "GPU")]
    pub(crate) device: Option<String>,
    /// Attach this often, each time with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) count: usize,
    /// Keep the last lease until standard input ends
    #[arg(long)]
    pub(crate) hold: bool,
    /// Read all bytes once, as a run would
    #[arg(long)]
    pub(crate) read: bool,
    /// Fail if the model is not resident
    #[arg(long)]
    pub(crate) resident: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TraceArgs {
    /// Traces of UPR_PROFILE_TARGET
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The joined trace
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

fn policy(word: &str) -> Result<EvictionPolicy, String> {
    share::settings::policy(word).map_err(|error| error.to_string())
}

fn granularity(word: &str) -> Result<Granularity, String> {
    let found =
        [Granularity::Model, Granularity::Layer].into_iter().find(|own| own.name() == word.to_ascii_lowercase());
    found.ok_or_else(|| format!("must be model or layer, got `{word}`"))
}
