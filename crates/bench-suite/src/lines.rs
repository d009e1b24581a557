//! The result lines of DLBS: `__KEY__=JSON`, one value a line, among other lines of a log.
//!
//! A reader takes every line that matches `[ \t]*__(.+?(?=__[ \t]*[=]))__[ \t]*=(.+)` and keeps the last value of a key.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use types::Bytes;

/// Values by key, without the underscores: `results.time`.
pub type Values = BTreeMap<String, Value>;

/// The largest log that is read.
const LOG_MAX: Bytes = Bytes(1 << 30);

/// One line with its newline.
pub fn line(key: &str, value: &Value) -> String {
    format!("__{key}__={value}\n")
}

/// The lines of a benchmark that ran: mean batch time in ms, samples per second as an integer, the title of the model, and
/// the time of each batch in ms.
///
/// Below one sample per second the throughput has its fraction: to DLBS's scripts a benchmark with the throughput 0 failed.
pub fn success(title: &str, times_ms: &[f64], effective_batch: u64) -> String {
    let mean = times_ms.iter().sum::<f64>() / times_ms.len().max(1) as f64;
    let rate = effective_batch as f64 / (mean / 1e3);
    let throughput = if rate < 1.0 { json!(rate) } else { json!(rate as u64) };
    let mut text = String::new();
    for (key, value) in [
        ("results.time", json!(mean)),
        ("results.throughput", throughput),
        ("exp.model_title", json!(title)),
        ("results.time_data", json!(times_ms)),
    ] {
        text.push_str(&line(key, &value));
    }
    text
}

/// The lines of a benchmark that has no times.
pub fn failure(reason: &str) -> String {
    line("results.status", &json!("failure")) + &line("results.status_msg", &json!(reason))
}

/// The lines that take back a failure, for a benchmark that succeeds later in one log.
pub fn recovered() -> String {
    line("results.status", &json!("ok")) + &line("results.status_msg", &json!(""))
}

/// The lines that take back times, for a benchmark that fails later in one log. -1 is DLBS's time of a failure.
pub fn without_times() -> String {
    let rows = [("results.time", json!(-1)), ("results.throughput", json!(0)), ("results.time_data", json!([]))];
    rows.map(|(key, value)| line(key, &value)).concat()
}

/// Whether values are those of a benchmark that ran: DLBS's scripts take a time or throughput that is not positive, or none,
/// as a failure.
pub fn succeeded(values: &Values) -> bool {
    let number = |key: &str| values.get(key).and_then(Value::as_f64);
    number("results.time").or(number("results.throughput")).is_some_and(|value| 0.0 < value)
}

/// Writes benchmarks as DLBS's scripts read them: `{"data": [..]}`, compressed if the name ends with `.gz`.
///
/// # Errors
/// Those of the file system; then the file is as before.
pub fn write_file(path: &Path, benchmarks: &[Values]) -> Result<(), String> {
    let mut bytes = format!("{:#}\n", json!({ "data": benchmarks })).into_bytes();
    if path.extension().is_some_and(|extension| extension == "gz") {
        // Without a time and a name, so that equal benchmarks are equal files.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish());
        bytes = packed.map_err(|error| format!("`{}`: gzip: {error}", path.display()))?;
    }
    files::write(path, &bytes).map_err(|error| error.to_string())
}

/// The values of a log. Lines whose value is not JSON are counted: the second result.
pub fn parse(log: &str) -> (Values, usize) {
    let (mut values, mut malformed) = (Values::new(), 0);
    for line in log.lines() {
        let Some((key, value)) = split(line) else { continue };
        // A value of blanks is null.
        let value = if value.trim().is_empty() { Ok(Value::Null) } else { serde_json::from_str(value.trim()) };
        match value {
            Ok(value) => {
                values.insert(key.trim().to_string(), value);
            }
            Err(_) => malformed += 1,
        }
    }
    (values, malformed)
}

/// The key and value of a line: the key ends at the first `__` that blanks and `=` follow.
fn split(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start_matches([' ', '\t']).strip_prefix("__")?;
    // Underscores may overlap: the key of `__a___=1` is `a_`.
    let ends = rest.as_bytes().windows(2).enumerate().filter(|(at, pair)| 0 < *at && *pair == b"__");
    ends.map(|(at, _)| at).find_map(|at| {
        let value = rest[at + 2..].trim_start_matches([' ', '\t']).strip_prefix('=')?;
        (!value.is_empty()).then_some((&rest[..at], value))
    })
}

/// The benchmarks of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogFile {
    /// The values of each.
    pub benchmarks: Vec<Values>,
    /// Result lines whose value is not JSON.
    pub malformed: usize,
}

/// The benchmarks of a file: one of a log (`.log`, `.log.gz`), several of a list (`.json`, `.json.gz`: a list of objects, or
/// an object with the list `data`).
///
/// # Errors
/// A file that cannot be read or has another form.
pub fn read_file(path: &Path) -> Result<LogFile, String> {
    let name = path.display();
    let mut bytes = files::read(path, LOG_MAX).map_err(|error| error.to_string())?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        let inflated = MultiGzDecoder::new(&bytes[..]).take(LOG_MAX.0).read_to_end(&mut plain);
        inflated.map_err(|error| format!("`{name}`: gzip: {error}"))?;
        bytes = plain;
    }
    let text = String::from_utf8_lossy(&bytes);
    let stem = path.file_name().unwrap_or_default().to_string_lossy();
    if !stem.trim_end_matches(".gz").ends_with(".json") {
        let (values, malformed) = parse(&text);
        return Ok(LogFile { benchmarks: if values.is_empty() { vec![] } else { vec![values] }, malformed });
    }
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("`{name}`: {error}"))?;
    let rows = match value {
        Value::Array(rows) => rows,
        Value::Object(mut object) => match object.remove("data") {
            Some(Value::Array(rows)) => rows,
            _ => vec![Value::Object(object)],
        },
        _ => return Err(format!("`{name}` must be a list of objects")),
    };
    let object = |row| match row {
        Value::Object(object) => Ok(object.into_iter().collect()),
        other => Err(format!("`{name}` must be a list of objects, found {other}")),
    };
    Ok(LogFile { benchmarks: rows.into_iter().map(object).collect::<Result<_, String>>()?, malformed: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lines_are_read_back() {
        let text = format!("noise\n{}", success("DeepMNIST", &[87.88, 86.07, 89.91], 8));
        let first = text.lines().nth(1).unwrap();
        assert!(first.starts_with("__results.time__=87.95333333333"), "{first}");
        let (values, malformed) = parse(&text);
        assert_eq!(values["results.throughput"], json!(90));
        assert_eq!(values["results.time_data"], json!([87.88, 86.07, 89.91]));
        assert_eq!((values["exp.model_title"].as_str(), malformed), (Some("DeepMNIST"), 0));
        let (values, _) = parse(&success("VGG16", &[4000.0], 1));
        assert_eq!(values["results.throughput"], json!(0.25), "0 is a failure to DLBS");
        let (values, _) = parse(&failure("does not fit: needs 9.1 GiB of 8"));
        assert_eq!(values["results.status"], json!("failure"));
    }

    #[test]
    fn keys_and_values_follow_the_grammar() {
        assert_eq!(split(" \t__a.b__ \t= 1"), Some(("a.b", " 1")));
        assert_eq!(split("__a__b__=1"), Some(("a__b", "1")));
        assert_eq!(split("__a__=__b__=1"), Some(("a", "__b__=1")));
        assert_eq!((split("__a___=1"), split("_____=1")), (Some(("a_", "1")), Some(("_", "1"))));
        assert_eq!(split("__größe__=1"), Some(("größe", "1")));
        for wrong in ["a__b__=1", "__a__=", "__=1", "__a_=1", "____=1", "__a__ b =1"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
        let (values, malformed) = parse("__a__=1\n__a__=[2]\n__b__=oops\n");
        assert_eq!((values, malformed), (Values::from([("a".into(), json!([2]))]), 1));
    }
}
