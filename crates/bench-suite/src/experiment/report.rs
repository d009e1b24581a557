//! Tables of an experiment's results.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::CellOutcome;
use crate::lines::Values;
use crate::{Comparison, Plot, ResultTable};

/// A filter and the columns of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSelection {
    /// Values that must be equal, by name.
    pub filter: Values,
    /// The parameter of the rows.
    pub rows: String,
    /// The parameter of the columns.
    pub columns: String,
    /// The key of the cells.
    pub value: String,
}

impl TableSelection {
    fn has(&self, values: &Values) -> bool {
        self.filter.iter().all(|(name, wanted)| values.get(name) == Some(wanted))
    }
}

/// A text or number for a cell.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
        Some(other) => other.to_string(),
    }
}

/// Orders numbers as numbers and texts as texts.
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

/// The mean of a key over the successful results of each row and column; a failed cell has its reason.
pub fn exploration(outcomes: &[CellOutcome], select: &TableSelection) -> ResultTable {
    let chosen: Vec<&CellOutcome> =
        latest(outcomes).into_iter().filter(|outcome| select.has(&outcome.values)).collect();
    let names = |key: &str| {
        let set: BTreeSet<String> = chosen.iter().map(|outcome| cell(outcome.values.get(key))).collect();
        let mut names: Vec<String> = set.into_iter().collect();
        names.sort_by(|a, b| order(a, b));
        names
    };
    let (rows, columns) = (names(&select.rows), names(&select.columns));
    let mut table =
        ResultTable::new(format!("{} by {} and {}", select.value, select.rows, select.columns), &[&select.rows]);
    table.columns.extend(columns.iter().cloned());
    table.plot = Plot::Columns { over: select.columns.clone(), value: select.value.clone() };
    for row in rows {
        let mut line = vec![row.clone()];
        for column in &columns {
            let here = chosen.iter().filter(|outcome| {
                cell(outcome.values.get(&select.rows)) == row && cell(outcome.values.get(&select.columns)) == *column
            });
            let (mut sum, mut count, mut reason) = (0.0, 0usize, String::new());
            for outcome in here {
                match outcome.values.get(&select.value).and_then(Value::as_f64).filter(|_| outcome.succeeded) {
                    Some(value) => (sum, count) = (sum + value, count + 1),
                    None => reason = cell(outcome.values.get("results.status_msg")),
                }
            }
            line.push(if count == 0 { reason } else { format!("{:.3}", sum / count as f64) });
        }
        table.rows.push(line);
    }
    table
}

/// The last outcome of each cell, in the order of the first.
fn latest(outcomes: &[CellOutcome]) -> Vec<&CellOutcome> {
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order = Vec::new();
    for (ix, outcome) in outcomes.iter().enumerate() {
        if last.insert(&outcome.id, ix).is_none() {
            order.push(&outcome.id[..]);
        }
    }
    order.into_iter().map(|id| &outcomes[last[id]]).collect()
}

/// The model of each cell, with the parameters in which it differs from cells of the same model and batch: two rows of a
/// table must not have one name.
fn models(outcomes: &[&CellOutcome]) -> Vec<String> {
    let value = |outcome: &CellOutcome, key: &str| cell(outcome.values.get(key));
    let batch = "exp.replica_batch";
    let mut groups: BTreeMap<(String, String), Vec<&CellOutcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups.entry((value(outcome, "exp.model"), value(outcome, batch))).or_default().push(outcome);
    }
    let name = |outcome: &&CellOutcome| {
        let mut name = value(outcome, "exp.model");
        let same = &groups[&(name.clone(), value(outcome, batch))];
        let parameters = outcome.values.iter().filter(|(key, _)| key.starts_with("exp."));
        for (key, own) in parameters {
            if same.iter().any(|other| other.values.get(key).is_some_and(|other| other != own)) {
                name.push_str(&format!(", {} {}", key.trim_start_matches("exp."), cell(Some(own))));
            }
        }
        name
    };
    outcomes.iter().map(name).collect()
}

/// Speed-up and efficiency over a parameter (`exp.threads`, the number of GPUs): strong scaling keeps the effective batch,
/// weak scaling keeps the batch of a device. The base is the smallest value of the parameter.
pub fn scaling(outcomes: &[CellOutcome], over: &str, weak: bool) -> ResultTable {
    let kind = if weak { "weak" } else { "strong" };
    let columns = ["model", over, "batch time ms", "samples/s", "speed-up", "efficiency %"];
    let mut table = ResultTable::new(format!("{kind} scaling over {over}"), &columns);
    table.plot = Plot::Lines { x: 1, ys: vec![4, 5] };
    let kept = if weak { "exp.replica_batch" } else { "exp.effective_batch" };
    let mut groups: BTreeMap<String, Vec<(f64, f64, f64)>> = BTreeMap::new();
    for outcome in latest(outcomes).into_iter().filter(|outcome| outcome.succeeded) {
        let number = |key: &str| outcome.values.get(key).and_then(Value::as_f64);
        let (Some(units), Some(ms), Some(rate)) = (number(over), number("results.time"), number("results.throughput"))
        else {
            continue;
        };
        let name = format!("{}, batch {}", cell(outcome.values.get("exp.model")), cell(outcome.values.get(kept)));
        groups.entry(name).or_default().push((units, ms, rate));
    }
    for (name, mut points) in groups {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (base_units, _, base_rate) = points[0];
        for (units, ms, rate) in points {
            let speed_up = rate / base_rate.max(f64::MIN_POSITIVE);
            let efficiency = 100.0 * speed_up * base_units / units.max(f64::MIN_POSITIVE);
            let numbers = [ms, rate, speed_up, efficiency].map(|number| format!("{number:.2}"));
            table.rows.push([vec![name.clone(), format!("{units}")], numbers.to_vec()].concat());
        }
    }
    table
}

/// Planned and measured memory of each cell.
pub fn memory_table(outcomes: &[CellOutcome]) -> ResultTable {
    let mut table = ResultTable::new("memory", &["model", "batch", "planned MiB", "largest resident MiB", "status"]);
    table.plot = Plot::Bars(vec![2, 3]);
    let outcomes = latest(outcomes);
    let models = models(&outcomes);
    for (outcome, model) in outcomes.into_iter().zip(models) {
        let mib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 20));
        let planned = outcome.values.get("results.planned_bytes").and_then(Value::as_f64).map(mib);
        let resident = outcome.values.get("results.use.rss_bytes").and_then(Value::as_array);
        let most = resident.and_then(|all| all.iter().filter_map(Value::as_f64).reduce(f64::max)).map(mib);
        let status = match outcome.succeeded {
            true => "done".to_string(),
            false => cell(outcome.values.get("results.status_msg")),
        };
        let batch = cell(outcome.values.get("exp.replica_batch"));
        table.rows.push(vec![model, batch, planned.unwrap_or_default(), most.unwrap_or_default(), status]);
    }
    table
}

/// The samples of resources of each cell that was monitored.
pub fn timelines(outcomes: &[CellOutcome]) -> ResultTable {
    let mut table = ResultTable::new("resources over time", &["cell", "second", "cpu %", "resident MiB", "watts"]);
    table.plot = Plot::Lines { x: 1, ys: vec![2, 3, 4] };
    let outcomes = latest(outcomes);
    let models = models(&outcomes);
    for (outcome, model) in outcomes.into_iter().zip(models) {
        let series = |key: &str| -> Vec<f64> {
            let list = outcome.values.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let name = format!("{model}, batch {}", cell(outcome.values.get("exp.replica_batch")));
        let (cpu, rss, watts) =
            (series("results.use.cpu_percent"), series("results.use.rss_bytes"), series("results.use.watts"));
        for (ix, second) in series("results.use.seconds").into_iter().enumerate() {
            let at = |series: &[f64], scale: f64| {
                series.get(ix).map_or_else(String::new, |value| format!("{:.1}", value / scale))
            };
            let rss = at(&rss, f64::from(1 << 20));
            table.rows.push(vec![name.clone(), format!("{second:.2}"), at(&cpu, 1.0), rss, at(&watts, 1.0)]);
        }
    }
    table
}

/// Cells of two runs of one experiment: times of batches, and a verdict on the second run.
pub fn comparison(before: &[CellOutcome], after: &[CellOutcome]) -> ResultTable {
    let columns = ["model", "batch", "before ms", "after ms", "verdict"];
    let mut table = ResultTable::new("comparison of two runs", &columns);
    table.plot = Plot::Bars(vec![2, 3]);
    let before: BTreeMap<&str, &CellOutcome> = latest(before).into_iter().map(|own| (&own.id[..], own)).collect();
    let after = latest(after);
    let models = models(&after);
    for (outcome, model) in after.into_iter().zip(models) {
        let Some(earlier) = before.get(&outcome.id[..]) else { continue };
        let times = |outcome: &CellOutcome| -> Vec<u64> {
            let list = outcome.values.get("results.time_data").and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_f64).map(|ms| (ms * 1e6) as u64).collect()
        };
        let (old, new) = (times(earlier), times(outcome));
        let verdict = match (old.is_empty(), new.is_empty()) {
            (false, false) => Comparison::new(&old, &new, 1).verdict(),
            (false, true) => "fails now".to_string(),
            (true, false) => "failed before".to_string(),
            (true, true) => "fails in both".to_string(),
        };
        let value = |outcome: &CellOutcome, key: &str| cell(outcome.values.get(key));
        table.rows.push(vec![
            model,
            value(outcome, "exp.replica_batch"),
            value(earlier, "results.time"),
            value(outcome, "results.time"),
            verdict,
        ]);
    }
    table
}
