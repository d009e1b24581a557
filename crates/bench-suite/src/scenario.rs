//! Scenarios in the terms of MLPerf's LoadGen.
//!
//! - Single stream: a query of one run is issued when its predecessor is complete. Result: 90th percentile of latency.
//! - Multiple streams: the same with the samples of a batch in each query. Result: 99th percentile of latency.
//! - Server: queries arrive by a Poisson process, whether or not earlier ones are complete (open loop). A latency counts from
//!   the scheduled arrival, so that a stall delays every query that arrives during it (no coordinated omission). A run is
//!   valid if the bound holds at its percentile. Result: the largest rate with a valid run, by bisection.
//! - Offline: all samples are available at once. Result: samples per second.
//!
//! A run is valid only with a minimum duration and a minimum number of queries.

use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::Subject;
use crate::arrivals::poisson_arrivals;
use crate::clock::{now_ns, wait_until};
use crate::statistics::nearest_rank;

/// How queries are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// One after the other.
    SingleStream,
    /// One after the other, several samples each.
    MultiStream,
    /// By a Poisson process.
    Server,
    /// All at once.
    Offline,
}

impl Scenario {
    /// The scenarios by name.
    pub const NAMES: [(&str, Scenario); 4] = [
        ("single-stream", Scenario::SingleStream),
        ("multi-stream", Scenario::MultiStream),
        ("server", Scenario::Server),
        ("offline", Scenario::Offline),
    ];

    /// The percentile, in thousandths, of the latency that is the result or must hold the bound.
    pub fn per_mille(self) -> usize {
        match self {
            Scenario::SingleStream => 900,
            _ => 990,
        }
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Scenario, String> {
        let found = Scenario::NAMES.iter().find(|(name, _)| *name == text);
        let names = Scenario::NAMES.map(|(name, _)| name).join(", ");
        found.map(|(_, scenario)| *scenario).ok_or_else(|| format!("a scenario is one of {names}, got `{text}`"))
    }
}

/// When a run may end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioLimits {
    /// The shortest duration.
    pub seconds: f64,
    /// The fewest queries.
    pub queries: usize,
}

/// A run of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// The scenario.
    pub scenario: Scenario,
    /// The latency of each query.
    #[serde(skip)]
    pub latencies_ns: Vec<u64>,
    /// From the first arrival to the last completion.
    pub seconds: f64,
    /// Samples that were computed.
    pub samples: u64,
    /// Samples in a second.
    pub samples_per_s: f64,
    /// The latency at [`Scenario::per_mille`].
    pub percentile_ms: f64,
}

impl ScenarioResult {
    fn new(scenario: Scenario, latencies_ns: Vec<u64>, span_ns: u64, samples: u64) -> ScenarioResult {
        let mut sorted = latencies_ns.clone();
        sorted.sort_unstable();
        let seconds = span_ns.max(1) as f64 / 1e9;
        let percentile_ms = nearest_rank(&sorted, scenario.per_mille()) as f64 / 1e6;
        let samples_per_s = samples as f64 / seconds;
        ScenarioResult { scenario, latencies_ns, seconds, samples, samples_per_s, percentile_ms }
    }

    /// Single or multiple streams.
    ///
    /// # Errors
    /// A run that fails.
    pub fn streams(
        scenario: Scenario,
        subject: &mut dyn Subject,
        limits: ScenarioLimits,
    ) -> Result<ScenarioResult, String> {
        let start = now_ns();
        let (mut latencies, mut last) = (Vec::new(), start);
        while latencies.len() < limits.queries.max(1) || ((last - start) as f64) < limits.seconds * 1e9 {
            let issued = now_ns();
            subject.run()?;
            last = now_ns();
            latencies.push(last - issued);
        }
        let samples = latencies.len() as u64 * subject.batch();
        Ok(ScenarioResult::new(scenario, latencies, last - start, samples))
    }

    /// Offline: at least `limits.queries` samples, all available at the start, on all subjects at once.
    ///
    /// # Errors
    /// A run that fails.
    pub fn offline(subjects: &mut [Box<dyn Subject>], limits: ScenarioLimits) -> Result<ScenarioResult, String> {
        let (start, done) = (now_ns(), AtomicUsize::new(0));
        let deadline = start + (limits.seconds * 1e9) as u64;
        let batch = subjects.iter().map(|subject| subject.batch()).min().unwrap_or(1).max(1);
        let runs = limits.queries.div_ceil(batch as usize).max(1);
        let results = in_threads(subjects, &|subject| {
            let mut latencies = Vec::new();
            while done.fetch_add(1, Ordering::Relaxed) < runs || now_ns() < deadline {
                subject.run()?;
                latencies.push(now_ns() - start);
            }
            Ok(latencies)
        })?;
        let mut latencies: Vec<u64> = results.into_iter().flatten().collect();
        latencies.sort_unstable();
        let span = latencies.last().copied().ok_or("no subject ran")?;
        let samples = latencies.len() as u64 * batch;
        Ok(ScenarioResult::new(Scenario::Offline, latencies, span, samples))
    }
}

/// One run of the server scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRun {
    /// Queries in a second, as scheduled.
    pub rate: f64,
    /// The result.
    pub result: ScenarioResult,
    /// Whether the bound holds at the percentile.
    pub is_valid: bool,
}

/// The most queries of a run.
const QUERIES_MAX: f64 = 1e8;

impl ServerRun {
    /// Issues queries at `rate` by LoadGen's Poisson process of `seed`; the subjects take them in their order of arrival.
    ///
    /// # Errors
    /// A run that fails; a rate that is not positive; more than 10^8 queries, whose arrivals are kept in memory.
    pub fn new(
        subjects: &mut [Box<dyn Subject>],
        rate: f64,
        bound_ms: f64,
        seed: u64,
        limits: ScenarioLimits,
    ) -> Result<ServerRun, String> {
        let queries = (rate * limits.seconds).max(limits.queries as f64);
        if !(0.0 < rate && queries <= QUERIES_MAX) {
            return Err(format!(
                "a run of the server scenario takes a rate > 0 and at most {QUERIES_MAX} queries, got {rate} queries/s and \
                 {queries} queries; lower the rate, the shortest duration or the fewest queries"
            ));
        }
        let arrivals = poisson_arrivals(rate, seed, limits);
        let next = AtomicUsize::new(0);
        // Time for all threads to start.
        let start = now_ns() + 1_000_000;
        let batch = subjects.iter().map(|subject| subject.batch()).min().unwrap_or(1);
        let results = in_threads(subjects, &|subject| {
            let mut done = Vec::new();
            while let Some(arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
                wait_until(start + arrival);
                subject.run()?;
                done.push((*arrival, now_ns() - start));
            }
            Ok(done)
        })?;
        let done: Vec<(u64, u64)> = results.into_iter().flatten().collect();
        let span = done.iter().map(|(_, end)| *end).max().unwrap_or(1);
        let latencies = done.iter().map(|(arrival, end)| end.saturating_sub(*arrival)).collect();
        let result = ScenarioResult::new(Scenario::Server, latencies, span, done.len() as u64 * batch);
        Ok(ServerRun { rate, is_valid: result.percentile_ms <= bound_ms, result })
    }
}

/// The search for the largest rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bisection {
    /// The largest rate whose run was valid; `None` if none was.
    pub rate: Option<f64>,
    /// Every rate tried, with the latency at the percentile.
    pub tried: Vec<(f64, f64)>,
}

/// Bisects for the largest valid rate up to `most`, to within 2 %.
///
/// # Errors
/// Those of `run`.
pub fn bisect_rate(
    most: f64,
    mut run: impl FnMut(f64) -> Result<ServerRun, String>,
) -> Result<(Bisection, Option<ServerRun>), String> {
    let (mut low, mut high, mut best, mut tried) = (0.0, most, None, Vec::new());
    let mut rate = most;
    while low < 0.98 * high || tried.is_empty() {
        let done = run(rate)?;
        tried.push((rate, done.result.percentile_ms));
        match done.is_valid {
            true => {
                low = rate;
                best = Some(done);
            }
            false => high = rate,
        }
        // No rate holds the bound if a run alone exceeds it.
        if low == 0.0 && high < most / 1000.0 {
            break;
        }
        rate = if low == 0.0 { high / 2.0 } else { (low + high) / 2.0 };
    }
    Ok((Bisection { rate: best.as_ref().map(|best: &ServerRun| best.rate), tried }, best))
}

/// Runs `work` on every subject in a thread of its own.
fn in_threads<T: Send>(
    subjects: &mut [Box<dyn Subject>],
    work: &(dyn Fn(&mut dyn Subject) -> Result<T, String> + Sync),
) -> Result<Vec<T>, String> {
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for subject in subjects {
            let results = &results;
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                let result = work(&mut **subject);
                results.lock().expect("no holder of this lock panics").push(result);
            });
            if let Err(error) = started {
                let reason = format!("cannot start a thread: {error}");
                results.lock().expect("no holder of this lock panics").push(Err(reason));
            }
        }
    });
    results.into_inner().expect("no holder of this lock panics").into_iter().collect()
}
