//! Statistics of raw times: [`Summary`] of one series, [`Comparison`] of two.
//!
//! Intervals are percentile bootstraps (Efron 1979) of the median with 1000 resamples from a fixed seed. Outliers are
//! counted and kept. A percentile is reported only if at least ten runs are above it.

use serde::{Deserialize, Serialize};
use types::Random;

const RESAMPLES: usize = 1000;

/// The coverage of an interval: from this quantile to the one that is as far from 1.
const TAIL: f64 = 0.025;

/// Statistics of the times of one benchmark, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of runs.
    pub runs: usize,
    /// The shortest.
    pub min_ms: f64,
    /// The arithmetic mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The 95 % interval of the median.
    pub p50_interval_ms: [f64; 2],
    /// The 90th percentile; `None` for fewer than 100 runs.
    pub p90_ms: Option<f64>,
    /// The 95th percentile; `None` for fewer than 200 runs.
    pub p95_ms: Option<f64>,
    /// The 99th percentile; `None` for fewer than 1000 runs.
    pub p99_ms: Option<f64>,
    /// The 99.9th percentile; `None` for fewer than 10000 runs.
    pub p999_ms: Option<f64>,
    /// The longest.
    pub max_ms: f64,
    /// The median absolute deviation from the median.
    pub mad_ms: f64,
    /// Runs longer than the median by more than ten median absolute deviations.
    pub outliers: usize,
}

impl Summary {
    /// From the nanoseconds of each run; there must be at least one. The seed is that of the bootstrap.
    pub fn new(times_ns: &[u64], seed: u64) -> Summary {
        let mut sorted = times_ns.to_vec();
        sorted.sort_unstable();
        let ms = |ns: f64| ns / 1e6;
        let median = median(&sorted);
        let mut deviations: Vec<u64> = sorted.iter().map(|&time| (time as f64 - median).abs() as u64).collect();
        deviations.sort_unstable();
        let mad = self::median(&deviations);
        let percentile = |per_mille: usize| {
            let enough = 10_000 <= sorted.len() * (1000 - per_mille);
            enough.then(|| ms(nearest_rank(&sorted, per_mille) as f64))
        };
        let [low, high] = interval(medians(&sorted, seed));
        Summary {
            runs: sorted.len(),
            min_ms: ms(sorted[0] as f64),
            mean_ms: ms(sorted.iter().map(|&time| time as f64).sum::<f64>() / sorted.len() as f64),
            p50_ms: ms(median),
            p50_interval_ms: [ms(low), ms(high)],
            p90_ms: percentile(900),
            p95_ms: percentile(950),
            p99_ms: percentile(990),
            p999_ms: percentile(999),
            max_ms: ms(sorted[sorted.len() - 1] as f64),
            mad_ms: ms(mad),
            outliers: sorted.iter().filter(|&&time| median + 10.0 * mad.max(1.0) < time as f64).count(),
        }
    }

    /// One line.
    pub fn text(&self) -> String {
        let Summary { runs, min_ms, mean_ms, p50_ms, p50_interval_ms: [low, high], max_ms, mad_ms, .. } = self;
        let optional = |name: &str, value: Option<f64>, runs: usize| match value {
            Some(ms) => format!("{name} {ms:.3}"),
            None => format!("{name} (needs {runs} runs)"),
        };
        let outliers = match self.outliers {
            0 => String::new(),
            count => format!("  outliers {count}"),
        };
        format!(
            "ms of {runs} runs: min {min_ms:.3}  median {p50_ms:.3} [{low:.3}, {high:.3}]  {}  {}  max {max_ms:.3}  mean \
             {mean_ms:.3}  MAD {mad_ms:.3}{outliers}",
            optional("p90", self.p90_ms, 100),
            optional("p99", self.p99_ms, 1000),
        )
    }
}

/// The ratio of the medians of two series that were measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Median of the baseline over median of the other: above 1 the other is faster.
    pub ratio: f64,
    /// The 95 % interval of the ratio.
    pub interval: [f64; 2],
}

impl Comparison {
    /// From the nanoseconds of each run of the baseline and of the other; each must have at least one.
    pub fn new(baseline_ns: &[u64], other_ns: &[u64], seed: u64) -> Comparison {
        let sorted = |times: &[u64]| {
            let mut sorted = times.to_vec();
            sorted.sort_unstable();
            sorted
        };
        let (baseline, other) = (sorted(baseline_ns), sorted(other_ns));
        let ratios = medians(&baseline, seed).into_iter().zip(medians(&other, !seed)).map(|(a, b)| a / b.max(1.0));
        let ratio = median(&baseline) / median(&other).max(1.0);
        Comparison { ratio, interval: interval(ratios.collect()) }
    }

    /// `faster 1.18x [1.14, 1.22]`, `slower ..`, or `no difference shown ..` if the interval has 1.
    pub fn verdict(&self) -> String {
        let Comparison { ratio, interval: [low, high] } = self;
        match (1.0 < *low, *high < 1.0) {
            (true, _) => format!("faster {ratio:.2}x [{low:.2}, {high:.2}]"),
            (_, true) => format!("slower {:.2}x [{:.2}, {:.2}]", 1.0 / ratio, 1.0 / high, 1.0 / low),
            _ => format!("no difference shown, {ratio:.2}x [{low:.2}, {high:.2}]"),
        }
    }
}

fn median(sorted: &[u64]) -> f64 {
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (low as f64 + high as f64) / 2.0
}

/// The least time that at least this part of the runs does not exceed.
pub(crate) fn nearest_rank(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Medians of resamples of a sorted series.
fn medians(sorted: &[u64], seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let mut drawn = vec![0u32; sorted.len()];
    let resample = |_| {
        drawn.iter_mut().for_each(|at| *at = random.below(sorted.len() as u64) as u32);
        // The order of positions is the order of times.
        let (high_rank, low_rank) = (drawn.len() / 2, (drawn.len() - 1) / 2);
        let (below, &mut high, _) = drawn.select_nth_unstable(high_rank);
        let low = if low_rank == high_rank { high } else { below.iter().copied().max().unwrap_or(high) };
        (sorted[low as usize] as f64 + sorted[high as usize] as f64) / 2.0
    };
    (0..RESAMPLES).map(resample).collect()
}

fn interval(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| values[((values.len() - 1) as f64 * quantile).round() as usize];
    [at(TAIL), at(1.0 - TAIL)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_need_ten_runs_above_them() {
        let times: Vec<u64> = (1..=1000).map(|ms| ms * 1_000_000).collect();
        let summary = Summary::new(&times, 1);
        assert_eq!((summary.p90_ms, summary.p99_ms, summary.p999_ms), (Some(900.0), Some(990.0), None));
        assert_eq!((summary.p50_ms, summary.mad_ms, summary.outliers), (500.5, 250.0, 0));
        assert_eq!(Summary::new(&times[..999], 1).p99_ms, None);
        assert_eq!(Summary::new(&times[..99], 1).p90_ms, None);
        assert!(Summary::new(&times[..99], 1).text().contains("p90 (needs 100 runs)"));
    }

    #[test]
    fn outliers_are_counted_and_kept() {
        let mut times = vec![1_000_000u64; 50];
        times.extend([1_000_010, 90_000_000]);
        let summary = Summary::new(&times, 1);
        assert_eq!((summary.outliers, summary.max_ms, summary.runs), (1, 90.0, 52));
    }

    #[test]
    fn interval_covers_the_true_median_about_95_times_in_100() {
        let mut random = Random::new(11);
        let covered = (0..200)
            .filter(|seed| {
                let times: Vec<u64> = (0..60).map(|_| 1_000_000 + random.below(1_000_000)).collect();
                let [low, high] = Summary::new(&times, *seed).p50_interval_ms;
                (low..=high).contains(&1.5)
            })
            .count();
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn verdict_needs_an_interval_without_one() {
        let mut random = Random::new(3);
        let mut noisy = |around: u64| -> Vec<u64> { (0..50).map(|_| around + random.below(around / 10)).collect() };
        let (slow, fast, also) = (noisy(1200), noisy(1000), noisy(1000));
        assert!(Comparison::new(&slow, &fast, 1).verdict().starts_with("faster 1.2"));
        assert!(Comparison::new(&fast, &slow, 1).verdict().starts_with("slower 1.2"));
        assert!(Comparison::new(&fast, &also, 1).verdict().starts_with("no difference shown"));
    }
}
