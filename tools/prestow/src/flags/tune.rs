//! [`TuneFlags`]: measurement of the fastest algorithm per layer.

use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::TargetSelection;

/// How long layers are measured by default.
const SECONDS: f64 = 20.0;

/// Flags of `compile --tune`.
#[derive(Args)]
pub(crate) struct TuneFlags {
    /// Measure on this machine which algorithm of each layer is fastest, for about this long (default 20). On a GPU,
    /// device 0: the engines of cuDNN and the algorithms of cuBLASLt.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = parse_seconds)]
    tune: Option<Option<f64>>,
    /// Threads that the measured layers use (default: one per core).
    #[arg(long, value_name = "N", requires = "tune")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    tune_threads: Option<usize>,
    /// File of results, read and extended (default ~/.cache/prestow/kernel-times.tsv, tuned-gpu.tsv for GPUs).
    #[arg(long, value_name = "FILE", requires = "tune")]
    tune_cache: Option<PathBuf>,
}

/// Options of a measurement.
pub(crate) struct Tune {
    /// Approximate time for all layers together.
    pub(crate) seconds: f64,
    /// `None`: one per core.
    pub(crate) threads: Option<usize>,
    /// `None`: in the user's cache folder.
    pub(crate) cache: Option<PathBuf>,
}

impl TuneFlags {
    /// The options, or `None` without `--tune`.
    ///
    /// # Errors
    /// A target or precision whose algorithms cannot be measured.
    pub(crate) fn resolve(&self, target: &TargetSelection) -> Result<Option<Tune>, String> {
        let Some(seconds) = self.tune else { return Ok(None) };
        match &target.gpu {
            None if target.exact => return Err("--tune and --exact exclude each other".into()),
            None if !target.is_cpu_f32() => {
                return Err("on a processor --tune needs --dtype f32; leave out --tune or --dtype".into());
            }
            Some(_) if !target.libraries.any() => return Err("on a GPU --tune needs --cudnn or --cublas".into()),
            Some(_) if self.tune_threads.is_some() => {
                return Err("--tune-threads needs a processor as --target; leave it out for a GPU".into());
            }
            _ => {}
        }
        let (threads, cache) = (self.tune_threads, self.tune_cache.clone());
        Ok(Some(Tune { seconds: seconds.unwrap_or(SECONDS), threads, cache }))
    }
}

fn parse_seconds(given: &str) -> Result<f64, String> {
    let seconds = given.parse().ok().filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds up to a day, as --tune=60".into())
}
