//! Times of units of work, fitted to measured times.

use std::collections::BTreeMap;

/// Rounds over all units. The sum falls with each, and hardly after this number.
const ROUNDS: usize = 5_000;
/// Rounds of weighting: samples that are off by more than `FAIR` count less.
const WEIGHTINGS: usize = 6;
const FAIR: f64 = 0.25;

/// A measured time and the amounts of work behind it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) amounts: Vec<(&'static str, f64)>,
    pub(crate) picoseconds: f64,
}

/// The times of units that are not negative and whose sums have the least relative errors, squared and added up. Samples far
/// off count less (iteratively reweighted least squares with Huber's weights).
pub(crate) fn fit(samples: &[Sample]) -> BTreeMap<&'static str, f64> {
    let mut names: Vec<&'static str> = Vec::new();
    for (name, _) in samples.iter().flat_map(|sample| &sample.amounts) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    // Rows of amounts relative to the time: the sum over a row should be 1.
    let amount = |sample: &Sample, name: &str| {
        sample.amounts.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, amount)| amount / sample.picoseconds)
    };
    let rows: Vec<Vec<f64>> =
        samples.iter().map(|sample| names.iter().map(|name| amount(sample, name)).collect()).collect();
    let mut weights = vec![1.0; rows.len()];
    let mut units = vec![0.0; names.len()];
    for _ in 0..WEIGHTINGS {
        descend(&rows, &weights, &mut units);
        let modelled = |row: &Vec<f64>| row.iter().zip(&units).map(|(amount, unit)| amount * unit).sum::<f64>();
        weights = rows.iter().map(|row| FAIR / (modelled(row) - 1.0).abs().max(FAIR)).collect();
    }
    names.into_iter().zip(units).collect()
}

/// Coordinate descent on the weighted sum of squares of `row * units - 1`.
fn descend(rows: &[Vec<f64>], weights: &[f64], units: &mut [f64]) {
    let count = units.len();
    let weighted = || rows.iter().zip(weights);
    let dot = |a: usize, b: usize| weighted().map(|(row, weight)| weight * row[a] * row[b]).sum::<f64>();
    let products: Vec<Vec<f64>> = (0..count).map(|a| (0..count).map(|b| dot(a, b)).collect()).collect();
    let sums: Vec<f64> = (0..count).map(|a| weighted().map(|(row, weight)| weight * row[a]).sum()).collect();
    for _ in 0..ROUNDS {
        for a in 0..count {
            let others: f64 = (0..count).filter(|&b| b != a).map(|b| products[a][b] * units[b]).sum();
            units[a] = if 0.0 < products[a][a] { ((sums[a] - others) / products[a][a]).max(0.0) } else { 0.0 };
        }
    }
}
