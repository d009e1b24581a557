//! [`Machine`]: facts of the machine that a result needs, from `/proc` and `/sys`.

use std::fs;

use serde::{Deserialize, Serialize};

/// Facts of a machine. Absent where the system does not state them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The model of the processor.
    pub processor: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Operating system and its version.
    pub system: Option<String>,
    /// The frequency governor.
    pub governor: Option<String>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
        Machine {
            processor: processor.map(|(_, name)| name.trim().to_string()),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
            memory_bytes: meminfo("MemTotal"),
            system: read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }

    /// Bytes that a new process can use without swapping.
    pub fn available_bytes() -> Option<u64> {
        meminfo("MemAvailable")
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// A row of `/proc/meminfo` in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let row = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    row.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Disturbances while something is measured: time stolen by other virtual machines, and changes of frequency.
pub struct MachineWatch {
    ticks: Option<(u64, u64)>,
    mhz: Option<f64>,
}

impl MachineWatch {
    /// Starts to watch.
    pub fn start() -> MachineWatch {
        MachineWatch { ticks: ticks(), mhz: mhz() }
    }

    /// Notes on disturbances since the start, empty if there were none.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let (Some((all, steal)), Some((all_now, steal_now))) = (self.ticks, ticks())
            && all < all_now
        {
            let part = 100.0 * (steal_now.saturating_sub(steal)) as f64 / (all_now - all) as f64;
            if 0.5 <= part {
                notes.push(format!("{part:.1} % of the processor time was stolen by other virtual machines"));
            }
        }
        if let (Some(before), Some(after)) = (self.mhz, mhz())
            && 0.05 * before < (after - before).abs()
        {
            notes.push(format!("the frequency changed from {before:.0} to {after:.0} MHz"));
        }
        notes
    }
}

/// All ticks and stolen ticks of `/proc/stat`.
fn ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user time.
    Some((fields.iter().take(8).sum(), *fields.get(7)?))
}

fn mhz() -> Option<f64> {
    read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")?.parse::<f64>().ok().map(|khz| khz / 1e3)
}
