//! [`Recorder`]: spans in Chrome's trace form, with the keys and names of UPR. [`merge`] joins the traces of several
//! processes of one machine on one axis of time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::settings::ClientSettings;

/// Nanoseconds of the machine's monotonic clock, which all processes share.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A finished span.
#[derive(Clone, Debug)]
struct Recorded {
    name: &'static str,
    category: &'static str,
    thread: u64,
    start: u64,
    end: u64,
    arguments: Vec<(&'static str, String)>,
}

/// Collects spans of a process.
#[derive(Debug)]
pub struct Recorder {
    start: Mutex<u64>,
    wall: u64,
    spans: Mutex<Vec<Recorded>>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        let wall = clock_gettime(ClockId::Realtime).tv_sec as u64;
        Recorder { start: Mutex::new(now()), wall, spans: Mutex::default() }
    }
}

/// The most spans that are kept; later ones are counted only.
const SPANS_MAX: usize = 1_000_000;

impl Recorder {
    /// Starts the axis of time now and forgets earlier spans.
    pub fn restart(&self) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = now();
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Adds a span that began at `start`, by [`now`], and ends now.
    pub fn add(
        &self,
        name: &'static str,
        category: &'static str,
        thread: u64,
        start: u64,
        arguments: Vec<(&'static str, String)>,
    ) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() < SPANS_MAX {
            // A span has a length, so that its end sorts after its begin.
            spans.push(Recorded { name, category, thread, start, end: now().max(start + 1), arguments });
        }
    }

    /// Runs `work` in a span of thread 0.
    pub fn span<T>(&self, name: &'static str, category: &'static str, work: impl FnOnce() -> T) -> T {
        let start = now();
        let done = work();
        self.add(name, category, 0, start, Vec::new());
        done
    }

    /// The trace. `other` is added to `otherData`.
    pub fn trace(&self, settings: &ClientSettings, process: &str, other: Value) -> Value {
        let start = *self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let init_time = rfc3339(self.wall);
        let microseconds = |at: u64| at.saturating_sub(start) as f64 / 1e3;
        let mut events = Vec::new();
        for (ix, span) in spans.iter().enumerate() {
            let mut arguments: BTreeMap<&str, String> = span.arguments.iter().cloned().collect();
            arguments.insert("upr_enabled", settings.enabled.to_string());
            for (phase, at) in [("B", span.start), ("E", span.end)] {
                // Outer spans begin first and end last.
                let other_end = if phase == "B" { u64::MAX - span.end } else { u64::MAX - span.start };
                let event = json!({
                    "name": span.name, "cat": span.category, "ph": phase, "ts": microseconds(at), "pid": 0,
                    "tid": span.thread, "upr_enabled": settings.enabled, "init_time": init_time, "args": arguments,
                    "start": microseconds(span.start), "end": microseconds(span.end),
                });
                // Of spans with the same times, the one that was added later is the outer one.
                let added = if phase == "B" { usize::MAX - ix } else { ix };
                events.push(((span.thread, at, phase == "B", other_end, added), event));
            }
        }
        events.sort_by_key(|event| event.0);
        // Chrome writes category, time and thread of metadata too, and some readers require them.
        let name = json!({
            "ph": "M", "name": "process_name", "cat": "__metadata", "ts": 0, "pid": 0, "tid": 0,
            "args": { "name": process, "upr_enabled": settings.enabled },
        });
        let all: Vec<Value> = std::iter::once(name).chain(events.into_iter().map(|(_, event)| event)).collect();
        let mut data = json!({
            "run_id": settings.run_id,
            "hostname": std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim(),
            "username": settings.user_name,
            "git": { "commit": settings.git_commit, "date": settings.git_date, "branch": settings.git_branch },
            "start_at": init_time,
            "end_at": rfc3339(clock_gettime(ClockId::Realtime).tv_sec as u64),
            "monotonic_start_us": start as f64 / 1e3,
            "is_client": settings.is_client,
            "upr_enabled": settings.enabled,
            "upr_base_dir": settings.base_dir,
            "eager_mode": settings.eager,
            "eager_mode_async": settings.eager_async,
            "model_name": settings.model_name,
        });
        if let (Some(data), Value::Object(other)) = (data.as_object_mut(), other) {
            data.extend(other);
        }
        json!({ "traceEvents": all, "upr_enabled": settings.enabled, "displayTimeUnit": "ms", "otherData": data })
    }
}

/// Joins traces: each is one process; times count from the earliest start. Threads are numbered from 1: Perfetto takes thread 0
/// of a process other than 0 for the thread with the number of the process, which may be another one.
///
/// # Errors
/// A document without `traceEvents` or without the start by the monotonic clock; its position.
pub fn merge(traces: &[Value]) -> Result<Value, String> {
    let start = |ix: usize| {
        let start = traces[ix]["otherData"]["monotonic_start_us"].as_f64();
        start.ok_or_else(|| format!("trace {} has no `otherData.monotonic_start_us`", ix + 1))
    };
    let starts: Result<Vec<f64>, String> = (0..traces.len()).map(start).collect();
    let starts = starts?;
    let first = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let (mut events, mut others) = (Vec::new(), Vec::new());
    for (ix, trace) in traces.iter().enumerate() {
        let own = trace["traceEvents"].as_array();
        for event in own.ok_or_else(|| format!("trace {} has no `traceEvents`", ix + 1))? {
            let mut event = event.clone();
            event["pid"] = json!(ix);
            event["tid"] = json!(event["tid"].as_u64().unwrap_or(0).saturating_add(1));
            for key in ["ts", "start", "end"] {
                if let Some(at) = event[key].as_f64().filter(|_| event["ph"] != "M") {
                    event[key] = json!(at + starts[ix] - first);
                }
            }
            events.push(event);
        }
        others.push(trace["otherData"].clone());
    }
    Ok(json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherDatas": others }))
}

/// Seconds since 1970 as UTC, as `2018-03-01T12:00:00.000000000Z`.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to date by Howard Hinnant's `civil_from_days`, for dates after 1970.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000000000Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ClientSettings {
        ClientSettings::read(&|_| None, "v").expect("defaults are valid")
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(rfc3339(1_522_672_496), "2018-04-02T12:34:56.000000000Z");
    }

    /// Checks a trace against the document "Trace Event Format": the phases B, E and M, their fields and types, and on
    /// each thread ends that match begins and times that do not fall. Returns the number of spans.
    fn check_format(trace: &Value) -> usize {
        let unit = trace["displayTimeUnit"].as_str();
        assert!(matches!(unit, Some("ms" | "ns")), "{unit:?}");
        let (mut threads, mut spans) = (BTreeMap::<(u64, u64), (f64, Vec<String>)>::new(), 0);
        for event in trace["traceEvents"].as_array().expect("the object form has a list of events") {
            let text =
                |key: &str| event[key].as_str().unwrap_or_else(|| panic!("`{key}` is text: {event}")).to_string();
            let integer = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("`{key}` is an id: {event}"));
            // Perfetto's importer of JSON replaces thread 0 by the number of the process.
            assert!(integer("tid") != 0 || integer("pid") == 0, "{event}");
            assert!(event["args"].is_object(), "{event}");
            if text("ph") == "M" {
                assert_eq!((text("name").as_str(), event["args"]["name"].is_string()), ("process_name", true));
                assert_eq!((text("cat").as_str(), event["ts"].as_u64()), ("__metadata", Some(0)));
                continue;
            }
            let at = event["ts"].as_f64().expect("a time is a number of microseconds");
            assert!(at.is_finite() && 0.0 <= at && !text("cat").is_empty(), "{event}");
            let (last, open) = threads.entry((integer("pid"), integer("tid"))).or_default();
            assert!(*last <= at, "{event} is behind {last}");
            *last = at;
            match &*text("ph") {
                "B" => open.push(text("name")),
                "E" => {
                    assert_eq!(open.pop(), Some(text("name")));
                    spans += 1;
                }
                phase => panic!("phase `{phase}`"),
            }
        }
        assert!(threads.values().all(|(_, open)| open.is_empty()), "each begin has an end: {threads:?}");
        spans
    }

    #[test]
    fn spans_begin_and_end_in_pairs_that_nest() {
        let recorder = Recorder::default();
        recorder.span("outer", "load", || recorder.span("inner", "io", || ()));
        let trace = recorder.trace(&settings(), "cpu/0", json!({ "model_path": "x" }));
        assert_eq!(check_format(&trace), 2);
        assert_eq!(trace["otherData"]["model_path"], "x");
        assert_eq!(trace["traceEvents"].as_array().map(Vec::len), Some(5));
    }

    #[test]
    fn traces_of_many_threads_have_the_documented_format_alone_and_merged() {
        let recorders: Vec<Recorder> = (0..3).map(|_| Recorder::default()).collect();
        for (ix, recorder) in recorders.iter().enumerate() {
            let early = now();
            if ix == 1 {
                // A span that began before the axis is cut at its start.
                recorder.restart();
                recorder.add("before", "create", 0, early.saturating_sub(5_000_000), Vec::new());
            }
            for thread in 0..4 {
                let outer = now();
                for _ in 0..50 {
                    let inner = now();
                    recorder.add("leaf", "io", thread, inner, vec![("byte_count", "7".into())]);
                    recorder.add("middle", "load", thread, inner, Vec::new());
                }
                recorder.add("outer", "grpc", thread, outer, Vec::new());
            }
        }
        let traces: Vec<Value> = recorders.iter().map(|own| own.trace(&settings(), "p", json!({}))).collect();
        assert_eq!(traces.iter().map(check_format).collect::<Vec<_>>(), [404, 405, 404]);
        let merged = merge(&traces).expect("each has a start");
        // As a viewer reads it.
        let merged: Value = serde_json::from_str(&merged.to_string()).expect("it is JSON");
        assert_eq!(check_format(&merged), 1213);
    }

    #[test]
    fn merged_traces_share_one_axis() {
        let (first, second) = (Recorder::default(), Recorder::default());
        let begin = now();
        first.add("a", "x", 0, begin, Vec::new());
        second.add("b", "x", 0, begin, Vec::new());
        let trace = |recorder: &Recorder| recorder.trace(&settings(), "p", json!({}));
        let merged = merge(&[trace(&first), trace(&second)]).expect("both have a start");
        let begins: Vec<(f64, u64)> = merged["traceEvents"]
            .as_array()
            .expect("it is a list")
            .iter()
            .filter(|event| event["ph"] == "B")
            .map(|event| (event["ts"].as_f64().expect("a time"), event["pid"].as_u64().expect("a process")))
            .collect();
        assert_eq!((begins[0].1, begins[1].1), (0, 1));
        assert!((begins[0].0 - begins[1].0).abs() < 0.01, "{begins:?}");
        assert!(merge(&[json!({})]).is_err());
    }
}
