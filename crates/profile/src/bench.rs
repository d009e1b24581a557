//! [`BenchReport`]: how long runs took.

use serde::Serialize;

/// Latencies of a number of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The shortest, in milliseconds.
    pub min: f64,
    /// Half of the runs took no longer.
    pub p50: f64,
    /// Nine in ten runs took no longer.
    pub p90: f64,
    /// 99 in 100 runs took no longer.
    pub p99: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// What `bench` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Latencies in milliseconds.
    pub latency_ms: Latency,
    /// Runs that were counted.
    pub iters: usize,
    /// Threads that computed.
    pub threads: usize,
    /// Samples (inputs of the batch) a second at the median latency.
    pub throughput_per_s: f64,
}

impl BenchReport {
    /// From the seconds that each run took; there is at least one.
    pub fn new(mut seconds: Vec<f64>, threads: usize, batch: u64) -> BenchReport {
        seconds.sort_by(f64::total_cmp);
        // The nearest rank: the least time that the given part of the runs did not exceed.
        let rank = |part: f64| {
            let at = (part * seconds.len() as f64).ceil() as usize;
            seconds[at.clamp(1, seconds.len()) - 1] * 1e3
        };
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64 * 1e3;
        let latency_ms = Latency { min: rank(0.0), p50: rank(0.5), p90: rank(0.9), p99: rank(0.99), mean };
        let throughput_per_s = batch as f64 / (latency_ms.p50 / 1e3);
        BenchReport { latency_ms, iters: seconds.len(), threads, throughput_per_s }
    }

    /// The report in two lines.
    pub fn text(&self) -> String {
        let ms = &self.latency_ms;
        format!(
            "latency ms   min {:.3}  p50 {:.3}  p90 {:.3}  p99 {:.3}  mean {:.3}\n\
             throughput   {:.1} samples/s at the median, {} runs, {} threads\n",
            ms.min, ms.p50, ms.p90, ms.p99, ms.mean, self.throughput_per_s, self.iters, self.threads
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
        assert_eq!([ms.min, ms.p50, ms.p90, ms.p99].map(|ms| ms.round() as u32), [1, 50, 90, 99]);
        assert!((ms.mean - 50.5).abs() < 1e-9 && (report.throughput_per_s - 160.0).abs() < 1e-6);
    }
}
