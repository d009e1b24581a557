//! [`BenchReport`]: latencies of runs.

use serde::{Deserialize, Serialize};

/// Latencies of a number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest, in milliseconds.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile. `None` for fewer than 100 runs.
    pub p99: Option<f64>,
    /// The arithmetic mean.
    pub mean: f64,
}

/// The fewest runs that have a 99th percentile other than their maximum.
const P99_RUNS: usize = 100;

/// The report of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Latencies in milliseconds, by this machine's clock.
    pub latency_ms: Latency,
    /// Latencies of further runs by the device's own clock, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ms: Option<Latency>,
    /// The number of counted runs.
    pub iters: usize,
    /// The number of threads that compute.
    pub threads: usize,
    /// Samples (inputs of the batch) per second at the median latency.
    pub throughput_per_s: f64,
    /// Steps of training per second at the median latency, if a run is a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_per_s: Option<f64>,
}

impl Latency {
    /// From the seconds of each run; there must be at least one.
    pub fn new(mut seconds: Vec<f64>) -> Latency {
        seconds.sort_by(f64::total_cmp);
        // The nearest-rank percentile: the least time that at least this fraction of the runs does not exceed.
        let rank = |fraction: f64| {
            let at = (fraction * seconds.len() as f64).ceil() as usize;
            seconds[at.clamp(1, seconds.len()) - 1] * 1e3
        };
        let p99 = (P99_RUNS <= seconds.len()).then(|| rank(0.99));
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64 * 1e3;
        Latency { min: rank(0.0), p50: rank(0.5), p90: rank(0.9), p99, mean }
    }

    fn text(&self) -> String {
        let Latency { min, p50, p90, p99, mean } = self;
        let p99 = p99.map_or_else(|| format!("(needs {P99_RUNS} runs)"), |ms| format!("{ms:.3}"));
        format!("min {min:.3}  p50 {p50:.3}  p90 {p90:.3}  p99 {p99}  mean {mean:.3}")
    }
}

impl BenchReport {
    /// From the seconds of each run; there must be at least one.
    pub fn new(seconds: Vec<f64>, threads: usize, batch: u64) -> BenchReport {
        let iters = seconds.len();
        let latency_ms = Latency::new(seconds);
        let throughput_per_s = batch as f64 / (latency_ms.p50 / 1e3);
        BenchReport { latency_ms, device_ms: None, iters, threads, throughput_per_s, steps_per_s: None }
    }

    /// Adds the seconds of further runs by the device's own clock, if there are any.
    #[must_use]
    pub fn with_device(self, seconds: Vec<f64>) -> BenchReport {
        let device_ms = (!seconds.is_empty()).then(|| Latency::new(seconds));
        BenchReport { device_ms, ..self }
    }

    /// As a report of steps of training.
    #[must_use]
    pub fn of_steps(self) -> BenchReport {
        BenchReport { steps_per_s: Some(1e3 / self.latency_ms.p50), ..self }
    }

    /// The report in two lines, or three.
    pub fn text(&self) -> String {
        let steps = self.steps_per_s.map(|steps| format!("{steps:.2} steps/s, ")).unwrap_or_default();
        let device = self.device_ms.as_ref().map(|ms| format!("device ms    {}, by its own clock\n", ms.text()));
        format!(
            "latency ms   {}\n{}throughput   {steps}{:.1} samples/s at the median, {} runs, {} threads\n",
            self.latency_ms.text(),
            device.unwrap_or_default(),
            self.throughput_per_s,
            self.iters,
            self.threads
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let report = BenchReport::new((1..=100).rev().map(|ms| f64::from(ms) / 1e3).collect(), 2, 8);
        let ms = &report.latency_ms;
        assert_eq!([ms.min, ms.p50, ms.p90].map(|ms| ms.round() as u32), [1, 50, 90]);
        assert_eq!(ms.p99.map(|ms| ms.round() as u32), Some(99));
        assert!((ms.mean - 50.5).abs() < 1e-9 && (report.throughput_per_s - 160.0).abs() < 1e-6);
    }

    #[test]
    fn p99_needs_a_hundred_runs() {
        let report = BenchReport::new(vec![0.004; 99], 1, 1);
        assert_eq!(report.latency_ms.p99, None);
        assert!(report.text().contains("p99 (needs 100 runs)  mean 4.000"), "{}", report.text());
    }

    #[test]
    fn device_time_is_reported_next_to_the_latency() {
        let report = BenchReport::new(vec![0.004, 0.002], 1, 1);
        assert_eq!(report.clone().with_device(Vec::new()), report);
        assert!(!report.text().contains("device"));
        let report = report.with_device(vec![0.001, 0.003]);
        assert_eq!((report.latency_ms.min, report.device_ms.as_ref().map(|ms| ms.p50)), (2.0, Some(1.0)));
        assert!(report.text().contains("\ndevice ms    min 1.000  p50 1.000  p90 3.000"), "{}", report.text());
    }
}
