//! Tables of an experiment's results.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::CellOutcome;
use super::parameter::PARAMETERS;
use crate::lines::Values;
use crate::{Comparison, Plot, ResultTable};

/// The parts of an exploration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSelection {
    /// The parameters of the rows. None: the model and the parameters in which the results differ.
    pub rows: Vec<String>,
    /// The parameter of the columns.
    pub columns: String,
    /// The key of the cells.
    pub value: String,
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
    let outcomes = latest(outcomes);
    let value = |outcome: &CellOutcome, key: &str| cell(outcome.values.get(key));
    let named: Vec<String> = match &select.rows[..] {
        [] => names(&outcomes, &[&select.columns]),
        rows => {
            let name = |own: &&CellOutcome| rows.iter().map(|key| value(own, key)).collect::<Vec<_>>().join(", ");
            outcomes.iter().map(name).collect()
        }
    };
    let sorted = |texts: BTreeSet<String>| {
        let mut texts: Vec<String> = texts.into_iter().collect();
        texts.sort_by(|a, b| order(a, b));
        texts
    };
    let columns = sorted(outcomes.iter().map(|outcome| value(outcome, &select.columns)).collect());
    let head = if select.rows.is_empty() { "exp.model".to_string() } else { select.rows.join(", ") };
    let mut table = ResultTable::new(format!("{} by {head} and {}", select.value, select.columns), &[&head]);
    table.columns.extend(columns.iter().cloned());
    let value_text = match &select.value[..] {
        "results.time" => "time of a batch, ms",
        "results.throughput" => "samples per second",
        other => other,
    };
    table.plot = Plot::Columns { over: select.columns.clone(), value: value_text.into() };
    for row in sorted(named.iter().cloned().collect()) {
        let mut line = vec![row.clone()];
        for column in &columns {
            let here = outcomes.iter().zip(&named);
            let here = here.filter(|(own, name)| **name == row && value(own, &select.columns) == *column);
            let (mut sum, mut count, mut reason) = (0.0, 0usize, String::new());
            for (outcome, _) in here {
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

/// Whether a key distinguishes benchmarks: a parameter of the grid, or of DLBS's. Repetitions are the same benchmark.
fn is_parameter(key: &str) -> bool {
    const OF_DLBS: [&str; 6] =
        ["exp.framework_title", "exp.device_type", "exp.num_gpus", "exp.docker_image", "exp.node_id", "exp.data_dir"];
    const SAME: [&str; 5] = ["exp.model", "exp.effective_batch", "exp.repeat", "exp.timeout", "monitor.frequency"];
    let is_own = key.starts_with("user.") || PARAMETERS.iter().any(|own| own.name == key);
    (is_own || OF_DLBS.contains(&key)) && !SAME.contains(&key)
}

/// The name of each benchmark: its model, or its command, and the parameters in which benchmarks of this model differ, without
/// those of `apart`.
fn names(outcomes: &[&CellOutcome], apart: &[&str]) -> Vec<String> {
    let base = |outcome: &CellOutcome| {
        let of = |key: &str| cell(outcome.values.get(key));
        let names = ["exp.model", "exp.model_title", "exp.command"].map(of);
        names.into_iter().find(|name| !name.is_empty()).unwrap_or_default()
    };
    let mut groups: BTreeMap<String, Vec<&CellOutcome>> = BTreeMap::new();
    for outcome in outcomes {
        groups.entry(base(outcome)).or_default().push(outcome);
    }
    let name = |outcome: &&CellOutcome| {
        let mut name = base(outcome);
        let same = &groups[&name];
        for (key, own) in outcome.values.iter().filter(|(key, _)| is_parameter(key) && !apart.contains(&&key[..])) {
            // A title that only repeats a parameter.
            let is_title = key == "exp.framework_title" && outcome.values.contains_key("exp.framework");
            let is_base = key == "exp.command" && name == cell(Some(own));
            if !is_title && !is_base && same.iter().any(|other| other.values.get(key).is_some_and(|other| other != own))
            {
                name.push_str(&format!(", {} {}", key.trim_start_matches("exp."), cell(Some(own))));
            }
        }
        name
    };
    outcomes.iter().map(name).collect()
}

/// The names of the rows of a table that has a column of batches.
fn models(outcomes: &[&CellOutcome]) -> Vec<String> {
    names(outcomes, &["exp.replica_batch"])
}

/// The quantity that stays the same while the number of devices or threads grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The samples of a batch for each device or thread.
    Weak,
    /// The samples of the whole batch.
    Strong,
}

/// The parameter over which results scale: the number of GPUs if it varies, else that of threads.
pub fn scaling_parameter(outcomes: &[CellOutcome]) -> &'static str {
    let gpus = "exp.num_gpus";
    let counts: BTreeSet<u64> = outcomes.iter().filter_map(|own| own.values.get(gpus)?.as_u64()).collect();
    if 1 < counts.len() { gpus } else { "exp.threads" }
}

/// Sums over results of equal parameters.
#[derive(Default)]
struct Repetitions {
    ms: f64,
    rate: f64,
    count: f64,
}

/// Times, speed-up and efficiency over a parameter: a number, or a list of devices with commas. Results of equal parameters
/// are averaged. The base is the smallest value of the parameter; a benchmark with one value has no row.
///
/// Efficiency is the throughput of each device or thread over that of the base.
pub fn scaling(outcomes: &[CellOutcome], over: &str, kind: Scaling) -> ResultTable {
    // The batch is part of the name, which is that of a line of the plot.
    let (title, of_batch) = match kind {
        Scaling::Weak => ("weak", " each"),
        Scaling::Strong => ("strong", ""),
    };
    let columns = ["model", over, "batch time ms", "samples/s", "speed-up", "efficiency %"];
    let mut table = ResultTable::new(format!("{title} scaling over {over}"), &columns);
    table.plot = Plot::Lines { x: 1, ys: vec![4, 5] };
    let outcomes: Vec<&CellOutcome> = latest(outcomes).into_iter().filter(|outcome| outcome.succeeded).collect();
    // The number of GPUs follows from their list.
    let apart = [over, "exp.replica_batch", "exp.gpus", "exp.num_gpus"];
    let apart = if over.contains("gpus") { &apart[..] } else { &apart[..2] };
    // By name and batch, then by units; numbers are in thousandths.
    let mut groups: BTreeMap<(String, u64), BTreeMap<u64, Repetitions>> = BTreeMap::new();
    for (outcome, name) in outcomes.iter().zip(names(&outcomes, apart)) {
        let number = |key: &str| outcome.values.get(key).and_then(Value::as_f64);
        let listed = |text: &str| text.split([',', ':']).filter(|part| !part.trim().is_empty()).count() as f64;
        let units =
            number(over).or_else(|| outcome.values.get(over)?.as_str().map(listed)).filter(|units| 0.0 < *units);
        let batch = number("exp.effective_batch").or(number("exp.replica_batch"));
        let (Some(units), Some(batch), Some(ms)) = (units, batch, number("results.time")) else { continue };
        let kept = if kind == Scaling::Weak { batch / units } else { batch };
        let point = groups.entry((name, (kept * 1e3).round() as u64)).or_default();
        let sums = point.entry((units * 1e3).round() as u64).or_default();
        sums.ms += ms;
        sums.rate += batch / (ms / 1e3);
        sums.count += 1.0;
    }
    for ((name, kept), points) in groups.into_iter().filter(|(_, points)| 1 < points.len()) {
        let mut base = None;
        for (units, Repetitions { ms, rate, count }) in points {
            let (units, ms, rate) = (units as f64 / 1e3, ms / count, rate / count);
            let (base_units, base_rate) = *base.get_or_insert((units, rate));
            let speed_up = rate / base_rate;
            let efficiency = 100.0 * speed_up * base_units / units;
            let numbers = [ms, rate, speed_up, efficiency].map(|number| format!("{number:.2}"));
            let named = format!("{name}, batch {}{of_batch}", kept as f64 / 1e3);
            table.rows.push([vec![named, format!("{units}")], numbers.to_vec()].concat());
        }
    }
    table
}

/// How many benchmarks there are, and the values that their parameters have.
pub fn summary(outcomes: &[CellOutcome]) -> ResultTable {
    let mut table = ResultTable::new("summary", &["key", "results", "values"]);
    let outcomes = latest(outcomes);
    let succeeded = outcomes.iter().filter(|outcome| outcome.succeeded).count();
    for (name, count) in
        [("benchmarks", outcomes.len()), ("successful", succeeded), ("failed", outcomes.len() - succeeded)]
    {
        table.rows.push(vec![name.into(), count.to_string(), String::new()]);
    }
    let mut values: BTreeMap<&str, (usize, BTreeSet<String>)> = BTreeMap::new();
    for (key, value) in outcomes.iter().flat_map(|outcome| &outcome.values) {
        const FACTS: [&str; 5] =
            ["exp.model", "exp.device_title", "exp.framework_ver", "prestow.version", "results.status_msg"];
        if is_parameter(key) || FACTS.contains(&&key[..]) {
            let (count, texts) = values.entry(key).or_default();
            *count += 1;
            texts.insert(cell(Some(value)));
        }
    }
    // A parameter with its default in all results is left out, but for these.
    const ALWAYS: [&str; 3] = ["exp.framework", "exp.phase", "exp.dtype"];
    let is_default = |key: &str, texts: &BTreeSet<String>| {
        let default = PARAMETERS.iter().find(|own| own.name == key).map(|own| cell(Some(&own.default_value())));
        default.is_some_and(|default| texts.iter().all(|text| *text == default)) && !ALWAYS.contains(&key)
    };
    values.retain(|key, (_, texts)| !is_default(key, texts));
    if values.contains_key("exp.framework") {
        values.remove("exp.framework_title");
    }
    for (key, (count, texts)) in values {
        let mut texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by(|a, b| order(a, b));
        if !texts.is_empty() {
            table.rows.push(vec![key.into(), count.to_string(), texts.join(" | ")]);
        }
    }
    table
}

/// The largest value of a series, whose elements may be lists.
fn largest(values: &Values, key: &str) -> Option<f64> {
    let list = values.get(key)?.as_array()?;
    let flat = list.iter().flat_map(|value| value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice));
    flat.filter_map(Value::as_f64).reduce(f64::max)
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// Planned and measured memory of each cell.
pub fn memory_table(outcomes: &[CellOutcome]) -> ResultTable {
    let heads = ["model", "batch", "planned MiB", "largest resident MiB", "largest on a GPU MiB", "status"];
    let mut table = ResultTable::new("memory", &heads);
    table.plot = Plot::Bars(vec![2, 3, 4]);
    let outcomes = latest(outcomes);
    let models = models(&outcomes);
    for (outcome, model) in outcomes.into_iter().zip(models) {
        let values = &outcome.values;
        let planned = values.get("results.planned_bytes").and_then(Value::as_f64);
        // DLBS has KiB, as `top` prints them.
        let resident = largest(values, "results.use.rss_bytes")
            .or_else(|| largest(values, "results.use.mem_res").map(|kib| kib * 1024.0));
        let on_gpu = largest(values, "results.use.gpu_bytes");
        let status = match outcome.succeeded {
            true => "done".to_string(),
            false => cell(values.get("results.status_msg").or(values.get("exp.status_msg"))),
        };
        let [planned, resident, on_gpu] = [planned, resident, on_gpu].map(|bytes| bytes.map(mib).unwrap_or_default());
        table.rows.push(vec![model, cell(values.get("exp.replica_batch")), planned, resident, on_gpu, status]);
    }
    table.drop_empty(&[2, 3, 4]);
    table
}

/// Seconds since the first of DLBS's times, `2018-11-26:15:04:30:123`.
fn seconds_of_dlbs(times: &[Value]) -> Vec<f64> {
    let of_day = |time: &Value| {
        let parts: Vec<f64> = time.as_str()?.split(':').skip(1).filter_map(|part| part.parse().ok()).collect();
        let [hours, minutes, seconds, ms] = parts[..] else { return None };
        Some(3600.0 * hours + 60.0 * minutes + seconds + ms / 1e3)
    };
    let all: Vec<f64> = times.iter().filter_map(of_day).collect();
    let mut midnights = 0.0;
    let since = |ix: usize| {
        if 0 < ix && all[ix] < all[ix - 1] {
            midnights += 86_400.0;
        }
        all[ix] + midnights - all[0]
    };
    (0..all.len()).map(since).collect()
}

/// The samples of resources of each cell that was monitored.
pub fn timelines(outcomes: &[CellOutcome]) -> ResultTable {
    let heads = ["cell", "second", "cpu %", "resident MiB", "watts", "GPU %", "GPU MiB", "GPU watts"];
    let mut table = ResultTable::new("resources over time", &heads);
    table.plot = Plot::Lines { x: 1, ys: (2..heads.len()).collect() };
    let outcomes = latest(outcomes);
    let models = models(&outcomes);
    for (outcome, model) in outcomes.into_iter().zip(models) {
        // A number for each time, or the sum of a list.
        let series = |own: &str, of_dlbs: &str, scale: f64| -> Vec<String> {
            let list = |key: &str| outcome.values.get(&format!("results.use.{key}")).and_then(Value::as_array);
            let (list, scale) = match (list(own), list(of_dlbs)) {
                (Some(list), _) => (list, scale),
                (None, Some(list)) => (list, if of_dlbs == "mem_res" { 1024.0 } else { 1.0 }),
                (None, None) => return vec![],
            };
            let sum = |value: &Value| match value {
                Value::Array(parts) => parts.iter().map(Value::as_f64).sum(),
                value => value.as_f64(),
            };
            // DLBS writes -1 where nothing is readable.
            let text = |value: Option<f64>| match value.filter(|value| 0.0 <= *value) {
                Some(value) => format!("{:.1}", value / scale),
                None => String::new(),
            };
            list.iter().map(|value| text(sum(value))).collect()
        };
        let seconds: Vec<f64> = match outcome.values.get("results.use.seconds").and_then(Value::as_array) {
            Some(list) => list.iter().filter_map(Value::as_f64).collect(),
            None => seconds_of_dlbs(
                outcome.values.get("results.use.time").and_then(Value::as_array).map_or(&[], Vec::as_slice),
            ),
        };
        let mebi = f64::from(1 << 20);
        let columns = [
            series("cpu_percent", "cpu", 1.0),
            series("rss_bytes", "mem_res", mebi),
            series("watts", "power", 1.0),
            series("gpu_percent", "", 1.0),
            series("gpu_bytes", "", mebi),
            series("gpu_watts", "gpus", 1.0),
        ];
        let name = format!("{model}, batch {}", cell(outcome.values.get("exp.replica_batch")));
        for (ix, second) in seconds.into_iter().enumerate() {
            let mut row = vec![name.clone(), format!("{second:.2}")];
            row.extend(columns.iter().map(|column| column.get(ix).cloned().unwrap_or_default()));
            table.rows.push(row);
        }
    }
    table.drop_empty(&[2, 3, 4, 5, 6, 7]);
    table
}

/// Cells of two runs of one experiment: times of batches, and a verdict on the second run.
pub fn comparison(before: &[CellOutcome], after: &[CellOutcome]) -> ResultTable {
    let columns = ["model", "batch", "before ms", "after ms", "verdict"];
    let mut table = ResultTable::new("comparison of two runs", &columns);
    table.plot = Plot::Bars(vec![2, 3]);
    // By id, else by parameters: ids of logs are their paths.
    let parameters = |outcome: &CellOutcome| {
        const LENGTH: [&str; 3] = ["exp.num_batches", "exp.num_warmup_batches", "exp.memory"];
        let is_kept =
            |key: &str| (is_parameter(key) || ["exp.model", "exp.repeat"].contains(&key)) && !LENGTH.contains(&key);
        let kept = outcome.values.iter().filter(|(key, _)| is_kept(key));
        kept.map(|(key, value)| format!("{key}={value}\n")).collect::<String>()
    };
    let before = latest(before);
    let by_id: BTreeMap<&str, &CellOutcome> = before.iter().map(|own| (&own.id[..], *own)).collect();
    let by_parameters: BTreeMap<String, &CellOutcome> = before.iter().map(|own| (parameters(own), *own)).collect();
    let after = latest(after);
    let models = models(&after);
    for (outcome, model) in after.into_iter().zip(models) {
        let value = |outcome: &CellOutcome, key: &str| cell(outcome.values.get(key));
        let batch = value(outcome, "exp.replica_batch");
        let now = value(outcome, "results.time");
        let Some(earlier) = by_id.get(&outcome.id[..]).or_else(|| by_parameters.get(&parameters(outcome))) else {
            table.rows.push(vec![model, batch, String::new(), now, "not in the earlier results".into()]);
            continue;
        };
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
        table.rows.push(vec![model, batch, value(earlier, "results.time"), now, verdict]);
    }
    table
}
