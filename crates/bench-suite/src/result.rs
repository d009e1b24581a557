//! [`BenchResult`]: the JSON of one benchmark; [`RawTimes`]: its raw times.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::clock::unix_seconds;
use crate::{Bisection, Machine, ScenarioResult, Summary};

/// The version of the JSON of [`BenchResult`].
const SCHEMA: u32 = 1;

/// One benchmark with its facts. `docs/reference/benchmark-results.md` describes the JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// The version of this form.
    pub schema: u32,
    /// The version of the program.
    pub version: String,
    /// Seconds since 1970.
    pub unix_s: f64,
    /// The model as given.
    pub model: String,
    /// `inference` or `training`.
    pub phase: String,
    /// The runtime: `prestow` or the name of a peer.
    pub framework: String,
    /// Samples of a run.
    pub batch: u64,
    /// The dtype of the computation.
    pub dtype: String,
    /// The target of the plan.
    pub target: String,
    /// The device that ran.
    pub device: String,
    /// Threads that compute.
    pub threads: usize,
    /// The digest (XXH3, 64 bits) of the executable.
    pub digest: Option<String>,
    /// Bytes of arena, constants and code as planned.
    pub planned_bytes: u64,
    /// Whether copies of inputs and outputs are part of a run.
    pub with_copies: bool,
    /// Statistics of the runs.
    pub times: Summary,
    /// Samples in a second: batch over mean time, or that of the scenario.
    pub samples_per_s: f64,
    /// The scenario other than a plain loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<ScenarioResult>,
    /// The search for the largest rate of the server scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bisection: Option<Bisection>,
    /// Times from the start of a process to its first result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<Summary>,
    /// Disturbances while the benchmark ran.
    pub notes: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

impl BenchResult {
    /// A result of now on this machine, with times only.
    pub fn new(model: &str, times_ns: &[u64], batch: u64) -> BenchResult {
        let times = Summary::new(times_ns, 1);
        BenchResult {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").into(),
            unix_s: unix_seconds(),
            model: model.into(),
            phase: "inference".into(),
            framework: "prestow".into(),
            batch,
            dtype: "f32".into(),
            target: String::new(),
            device: String::new(),
            threads: 0,
            digest: None,
            planned_bytes: 0,
            with_copies: true,
            samples_per_s: batch as f64 / (times.mean_ms / 1e3),
            times,
            scenario: None,
            bisection: None,
            cold: None,
            notes: Vec::new(),
            machine: Machine::here(),
        }
    }
}

/// Raw times of one or more series, as JSON lines: `{"batch":1,"kind":"run","ns":123,"run":0,"threads":2}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawTimes(Vec<RawSeries>);

/// The times of one batch on one number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSeries {
    /// `run`, or `query` of a scenario.
    pub kind: &'static str,
    /// Samples of a run.
    pub batch: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Nanoseconds of each run, in order.
    pub times_ns: Vec<u64>,
}

impl RawTimes {
    /// Adds a series behind the others.
    pub fn add(&mut self, series: RawSeries) {
        self.0.push(series);
    }

    /// Whether a series is of this kind.
    pub fn has(&self, kind: &str) -> bool {
        self.0.iter().any(|series| series.kind == kind)
    }

    /// Writes all series of a kind. `run` counts from 0 in each.
    ///
    /// # Errors
    /// Those of the file system; then the file is as before.
    pub fn write(&self, path: &Path, kind: &str) -> Result<(), String> {
        let rows = |file: &mut File| {
            let mut out = BufWriter::new(file);
            for RawSeries { batch, threads, times_ns, .. } in self.0.iter().filter(|series| series.kind == kind) {
                for (run, ns) in times_ns.iter().enumerate() {
                    let row = json!({ "kind": kind, "batch": batch, "threads": threads, "run": run, "ns": ns });
                    writeln!(out, "{row}")?;
                }
            }
            out.flush()
        };
        files::write_with(path, files::Kind::Data, rows).map_err(|error| error.to_string())
    }

    /// Reads the times of a file, in the order of its lines.
    ///
    /// # Errors
    /// A file that cannot be read; a line without `ns`.
    pub fn read(path: &Path) -> Result<Vec<u64>, String> {
        let bytes = files::read_regular(path, types::Bytes(1 << 32)).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        let time = |(number, line): (usize, &str)| {
            let row: Option<serde_json::Value> = serde_json::from_str(line).ok();
            row.and_then(|row| row["ns"].as_u64())
                .ok_or_else(|| format!("`{}` line {}: must have a number `ns`", path.display(), number + 1))
        };
        text.lines().enumerate().map(time).collect()
    }
}
