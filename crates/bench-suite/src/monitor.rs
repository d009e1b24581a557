//! [`Monitor`]: resources of a process and its children over time, from `/proc` and `/sys`, and of GPUs from a [`GpuMeter`].

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::now_ns;

/// Clock ticks in a second, as Linux states them to programs on every architecture.
const TICKS_PER_S: f64 = 100.0;

/// Samples of resources; each series has one value for each time, or none at all where nothing is readable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceUsage {
    /// Seconds since the start.
    pub seconds: Vec<f64>,
    /// Processor time in percent of one processor since the sample before.
    pub cpu_percent: Vec<f64>,
    /// Resident bytes.
    pub rss_bytes: Vec<u64>,
    /// Resident bytes, shared ones divided among the processes that share them.
    pub pss_bytes: Vec<Option<u64>>,
    /// Power of all processor packages in watts since the sample before (RAPL).
    pub watts: Vec<Option<f64>>,
    /// The names of the GPUs.
    pub gpu_names: Vec<String>,
    /// For each time the figures of each GPU.
    pub gpus: Vec<Vec<GpuSample>>,
}

/// Figures of one GPU at one time. `None` if not readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Percent of the time in which a kernel ran.
    pub percent: Option<f64>,
    /// Memory held by processes, in bytes.
    pub bytes: Option<u64>,
    /// Power in watts.
    pub watts: Option<f64>,
}

/// Reads the figures of the GPUs of a machine.
pub trait GpuMeter: Send {
    /// The names of the GPUs.
    fn names(&self) -> Vec<String>;

    /// The figures of each GPU now.
    fn sample(&mut self) -> Vec<GpuSample>;
}

/// A thread that samples until it is stopped.
pub struct Monitor {
    stop: Arc<AtomicBool>,
    /// `None` if the system started no thread: then there are no samples.
    thread: Option<JoinHandle<ResourceUsage>>,
}

impl Monitor {
    /// Samples process `pid` and its children, and GPUs if there is a meter, `hertz` times a second.
    pub fn start(pid: u32, hertz: f64, gpus: Option<Box<dyn GpuMeter>>) -> Monitor {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || sample(pid, hertz.clamp(0.01, 100.0), gpus, &stopped));
        Monitor { stop, thread: thread.ok() }
    }

    /// Stops, and returns the samples.
    pub fn finish(self) -> ResourceUsage {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread else { return ResourceUsage::default() };
        thread.thread().unpark();
        thread.join().unwrap_or_default()
    }
}

fn sample(pid: u32, hertz: f64, mut gpus: Option<Box<dyn GpuMeter>>, stop: &AtomicBool) -> ResourceUsage {
    let (start, mut usage) = (now_ns(), ResourceUsage::default());
    usage.gpu_names = gpus.as_ref().map_or_else(Vec::new, |gpus| gpus.names());
    let (mut last_ns, mut last_ticks, mut last_joules) = (start, ticks_of(&family(pid)), joules());
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_secs_f64(1.0 / hertz));
        let (now, family) = (now_ns(), family(pid));
        let seconds = (now - last_ns).max(1) as f64 / 1e9;
        let (ticks, joules) = (ticks_of(&family), joules());
        let rss: u64 = family.iter().filter_map(|pid| status(*pid, "VmRSS")).sum();
        if rss == 0 {
            break;
        }
        usage.seconds.push((now - start) as f64 / 1e9);
        usage.cpu_percent.push(100.0 * ticks.saturating_sub(last_ticks) as f64 / TICKS_PER_S / seconds);
        usage.rss_bytes.push(rss);
        usage.pss_bytes.push(family.iter().map(|pid| pss(*pid)).sum());
        let watts = last_joules.zip(joules).map(|(before, after)| (after - before) / seconds);
        // The counter wraps about once an hour, which the sign shows.
        usage.watts.push(watts.filter(|watts| 0.0 <= *watts));
        usage.gpus.extend(gpus.as_mut().map(|gpus| gpus.sample()));
        (last_ns, last_ticks, last_joules) = (now, ticks, joules);
    }
    clear_unreadable(&mut usage.pss_bytes);
    clear_unreadable(&mut usage.watts);
    usage
}

fn clear_unreadable<T>(series: &mut Vec<Option<T>>) {
    if series.iter().all(Option::is_none) {
        series.clear();
    }
}

impl ResourceUsage {
    /// The series by their keys in a log; those of GPUs have a list for each time.
    pub(crate) fn series(&self) -> Vec<(&'static str, Value)> {
        let mut series = vec![
            ("results.use.seconds", json!(self.seconds)),
            ("results.use.cpu_percent", json!(self.cpu_percent)),
            ("results.use.rss_bytes", json!(self.rss_bytes)),
            ("results.use.pss_bytes", json!(self.pss_bytes)),
            ("results.use.watts", json!(self.watts)),
        ];
        if !self.gpu_names.is_empty() {
            let of = |value: fn(&GpuSample) -> Value| -> Value {
                self.gpus.iter().map(|gpus| gpus.iter().map(value).collect::<Value>()).collect()
            };
            series.extend([
                ("results.use.gpu_names", json!(self.gpu_names)),
                ("results.use.gpu_percent", of(|gpu| json!(gpu.percent))),
                ("results.use.gpu_bytes", of(|gpu| json!(gpu.bytes))),
                ("results.use.gpu_watts", of(|gpu| json!(gpu.watts))),
            ]);
        }
        series
    }
}

/// A process with its descendants.
fn family(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(own) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = fields(own).and_then(|fields| fields.get(1)?.parse().ok()) {
            children.entry(parent).or_default().push(own);
        }
    }
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(parent) = all.get(at) {
        all.extend(children.remove(parent).unwrap_or_default());
        at += 1;
    }
    all
}

/// The fields of `/proc/PID/stat` after the name, which may have blanks: state, parent, ..
fn fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_string).collect())
}

/// User and system ticks of processes, with those of children that ended.
fn ticks_of(family: &[u32]) -> u64 {
    let of =
        |pid: &u32| Some(fields(*pid)?.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum::<u64>());
    family.iter().filter_map(of).sum()
}

fn status(pid: u32, name: &str) -> Option<u64> {
    row(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, name)
}

fn pss(pid: u32) -> Option<u64> {
    row(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss")
}

/// A row `NAME: N kB` in bytes.
fn row(text: &str, name: &str) -> Option<u64> {
    let row = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    row.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Energy of all packages in joules.
fn joules() -> Option<f64> {
    let of = |package: u32| {
        let text = fs::read_to_string(format!("/sys/class/powercap/intel-rapl:{package}/energy_uj")).ok()?;
        text.trim().parse::<f64>().ok().map(|micro| micro / 1e6)
    };
    let first = of(0)?;
    Some((1..8).map_while(of).fold(first, |sum, joules| sum + joules))
}
