//! Figures of NVIDIA's management library NVML, which comes with the driver: memory by process ([`usage`]), and utilization,
//! memory and power over time ([`Meter`]). Containers and virtual machines may hide processes or have other process ids.

use std::ffi::{CStr, CString};

use cuda_sys::nvml as sys;

use crate::library::function;
use crate::{LibraryPaths, library};

/// Attempts to list processes while the list grows.
const ATTEMPTS: usize = 4;

/// Error of NVML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NvmlError {
    #[error("libnvidia-ml.so.1 of the driver was not found")]
    NotFound,
    #[error("libnvidia-ml.so.1 must have the function `{0}` of driver 510 or later")]
    Lacks(&'static str),
    #[error("NVML failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

/// Memory usage of a GPU. Each part may be unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The driver's version, such as `580.65.06`.
    pub driver: Result<String, NvmlError>,
    /// The GPU's memory.
    pub memory: Result<MemoryTotals, NvmlError>,
    /// The processes with a compute context.
    pub processes: Result<Vec<Process>, NvmlError>,
}

/// A GPU's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// All memory.
    pub total: u64,
    /// Reserved by driver and GPU.
    pub reserved: u64,
    /// Held by processes.
    pub used: u64,
    /// Free.
    pub free: u64,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id in the namespace that NVML sees.
    pub pid: u32,
    /// Its memory, including context and libraries. `None` if the platform hides it.
    pub bytes: Option<u64>,
}

impl Usage {
    /// The memory of a process.
    ///
    /// # Errors
    /// The reason if it is unavailable.
    pub fn of(&self, pid: u32) -> Result<u64, String> {
        let processes = self.processes.as_ref().map_err(NvmlError::to_string)?;
        match processes.iter().find(|process| process.pid == pid) {
            Some(Process { bytes: Some(bytes), .. }) => Ok(*bytes),
            Some(_) => Err("NVML lists this process without its memory: the platform does not report it".into()),
            None if processes.is_empty() => {
                Err("NVML lists no process: a container or a virtual machine hides them".into())
            }
            None => {
                let count = processes.len();
                let listed = if count == 1 { "1 process".to_string() } else { format!("{count} processes") };
                Err(format!(
                    "NVML lists {listed} but not this one, {pid}: process ids of a container differ from its host's"
                ))
            }
        }
    }

    /// Text with the other processes that hold memory, largest first.
    pub fn holders_beside(&self, own: u32) -> String {
        let processes = match &self.processes {
            Ok(processes) => processes,
            Err(why) => return format!("other processes are unknown: {why}"),
        };
        let others = processes.iter().filter(|process| process.pid != own);
        let mut told: Vec<(u64, u32)> = others.filter_map(|process| Some((process.bytes?, process.pid))).collect();
        told.sort_by(|a, b| b.cmp(a));
        if told.is_empty() {
            let used =
                self.memory.as_ref().map_or(String::new(), |memory| format!(" for the {} bytes in use", memory.used));
            return format!("NVML lists no other process{used}");
        }
        let rows: Vec<String> = told.iter().map(|(bytes, pid)| format!("process {pid} uses {bytes}")).collect();
        rows.join(", ")
    }
}

/// An initialized NVML, shut down on drop.
struct Nvml {
    table: sys::Nvml,
}

impl Nvml {
    fn start(places: &LibraryPaths) -> Result<Nvml, NvmlError> {
        let library = library::table(places, &["libnvidia-ml.so.1"], "").map_err(|_| NvmlError::NotFound)?;
        // SAFETY: the library has NVML's name, and the table has the types of its headers.
        let table = unsafe { sys::Nvml::from_library(library) };
        let table = table.map_err(|error| NvmlError::Failed { what: "initialization", why: error.to_string() })?;
        let init = function!(table, nvmlInit_v2, NvmlError);
        // SAFETY: the function has no arguments and may be called repeatedly.
        let status = unsafe { init() };
        match status {
            sys::nvmlReturn_enum::NVML_SUCCESS => Ok(Nvml { table }),
            // A failed initialization must not be shut down.
            _ => Err(NvmlError::Failed { what: "initialization", why: text(&table, status) }),
        }
    }

    fn check(&self, what: &'static str, status: sys::nvmlReturn_t) -> Result<(), NvmlError> {
        match status {
            sys::nvmlReturn_enum::NVML_SUCCESS => Ok(()),
            _ => Err(NvmlError::Failed { what, why: text(&self.table, status) }),
        }
    }

    fn driver(&self) -> Result<String, NvmlError> {
        let mut text = [0; 81];
        let version = function!(self.table, nvmlSystemGetDriverVersion, NvmlError);
        // SAFETY: the buffer has the given length, and its last byte stays zero.
        self.check("telling the driver", unsafe { version(text.as_mut_ptr(), text.len() as u32 - 1) })?;
        // SAFETY: the text ends with a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn device(&self, bus: &str) -> Result<sys::nvmlDevice_t, NvmlError> {
        let (what, by_bus) = ("finding the GPU", function!(self.table, nvmlDeviceGetHandleByPciBusId_v2, NvmlError));
        let bus = CString::new(bus).map_err(|error| NvmlError::Failed { what, why: error.to_string() })?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and the pointer is valid.
        self.check(what, unsafe { by_bus(bus.as_ptr(), &mut device) })?;
        Ok(device)
    }

    fn memory(&self, device: sys::nvmlDevice_t) -> Result<MemoryTotals, NvmlError> {
        // NVML_STRUCT_VERSION in the header.
        let version = size_of::<sys::nvmlMemory_v2_t>() as u32 | 2 << 24;
        let mut memory = sys::nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        let info = function!(self.table, nvmlDeviceGetMemoryInfo_v2, NvmlError);
        // SAFETY: NVML returned the handle, and the struct has the size of its version.
        self.check("telling the GPU's memory", unsafe { info(device, &mut memory) })?;
        let sys::nvmlMemory_v2_t { total, reserved, used, free, .. } = memory;
        Ok(MemoryTotals { total, reserved, used, free })
    }

    fn name(&self, device: sys::nvmlDevice_t) -> Result<String, NvmlError> {
        // NVML_DEVICE_NAME_V2_BUFFER_SIZE.
        let mut text = [0; 97];
        let name = function!(self.table, nvmlDeviceGetName, NvmlError);
        // SAFETY: NVML returned the handle, the buffer has the given length, and its last byte stays zero.
        self.check("naming the GPU", unsafe { name(device, text.as_mut_ptr(), text.len() as u32 - 1) })?;
        // SAFETY: the text ends with a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn percent(&self, device: sys::nvmlDevice_t) -> Result<u32, NvmlError> {
        let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
        let utilization = function!(self.table, nvmlDeviceGetUtilizationRates, NvmlError);
        // SAFETY: NVML returned the handle, and the pointer is valid.
        self.check("reading the utilization", unsafe { utilization(device, &mut rates) })?;
        Ok(rates.gpu)
    }

    fn watts(&self, device: sys::nvmlDevice_t) -> Result<f64, NvmlError> {
        let (mut milliwatts, power) = (0, function!(self.table, nvmlDeviceGetPowerUsage, NvmlError));
        // SAFETY: NVML returned the handle, and the pointer is valid.
        self.check("reading the power", unsafe { power(device, &mut milliwatts) })?;
        Ok(f64::from(milliwatts) / 1e3)
    }

    fn processes(&self, device: sys::nvmlDevice_t) -> Result<Vec<Process>, NvmlError> {
        let list = function!(self.table, nvmlDeviceGetComputeRunningProcesses_v3, NvmlError);
        let none = sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let (mut infos, mut status) = (vec![none; 64], sys::nvmlReturn_enum::NVML_SUCCESS);
        for _ in 0..ATTEMPTS {
            let mut count = infos.len() as u32;
            // SAFETY: NVML returned the handle, the buffer has `count` elements, and the pointer is valid.
            status = unsafe { list(device, &mut count, infos.as_mut_ptr()) };
            if status != sys::nvmlReturn_enum::NVML_ERROR_INSUFFICIENT_SIZE {
                infos.truncate(count as usize);
                break;
            }
            // More processes may start before the next attempt.
            infos.resize(count as usize + 64, none);
        }
        self.check("listing processes", status)?;
        // `NVML_VALUE_NOT_AVAILABLE` is all ones.
        let told = |info: &sys::nvmlProcessInfo_t| Process {
            pid: info.pid,
            bytes: (info.usedGpuMemory != u64::MAX).then_some(info.usedGpuMemory),
        };
        Ok(infos.iter().map(told).collect())
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(shutdown) = &self.table.nvmlShutdown {
            // SAFETY: `start` initialized NVML once. A failure has no remedy.
            let _ = unsafe { shutdown() };
        }
    }
}

/// NVML's text for a status.
fn text(table: &sys::Nvml, status: sys::nvmlReturn_t) -> String {
    match &table.nvmlErrorString {
        // SAFETY: the text lives as long as the library.
        Ok(text) => unsafe { CStr::from_ptr(text(status)) }.to_string_lossy().into_owned(),
        Err(_) => format!("status {}", status.0),
    }
}

/// Queries the memory usage of the GPU with a PCI bus id, such as `0000:01:00.0`.
///
/// # Errors
/// NVML or the GPU is not found.
pub fn usage(places: &LibraryPaths, bus: &str) -> Result<Usage, NvmlError> {
    let nvml = Nvml::start(places)?;
    let device = nvml.device(bus)?;
    Ok(Usage { driver: nvml.driver(), memory: nvml.memory(device), processes: nvml.processes(device) })
}

/// Utilization, memory and power of the GPUs of this machine, sampled repeatedly.
pub struct Meter {
    nvml: Nvml,
    devices: Vec<sys::nvmlDevice_t>,
    names: Vec<String>,
}

// SAFETY: NVML is thread-safe, and its handles are valid in every thread of the process.
unsafe impl Send for Meter {}

/// Figures of one GPU at one time. `None` if the platform does not report it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Percent of the last sample period in which a kernel ran.
    pub percent: Option<u32>,
    /// Memory held by processes, in bytes.
    pub used: Option<u64>,
    /// Power in watts.
    pub watts: Option<f64>,
}

impl Meter {
    /// Finds all GPUs.
    ///
    /// # Errors
    /// NVML is not found or fails; there is no GPU.
    pub fn start(places: &LibraryPaths) -> Result<Meter, NvmlError> {
        let nvml = Nvml::start(places)?;
        let (mut count, count_of) = (0, function!(nvml.table, nvmlDeviceGetCount_v2, NvmlError));
        // SAFETY: the pointer is valid.
        nvml.check("counting GPUs", unsafe { count_of(&mut count) })?;
        let by_index = function!(nvml.table, nvmlDeviceGetHandleByIndex_v2, NvmlError);
        let (mut devices, mut names) = (Vec::new(), Vec::new());
        for ix in 0..count {
            let mut device = std::ptr::null_mut();
            // SAFETY: the pointer is valid.
            nvml.check("finding a GPU", unsafe { by_index(ix, &mut device) })?;
            devices.push(device);
            names.push(nvml.name(device).unwrap_or_else(|_| format!("GPU {ix}")));
        }
        match devices.is_empty() {
            true => Err(NvmlError::Failed { what: "finding a GPU", why: "the machine has none".into() }),
            false => Ok(Meter { nvml, devices, names }),
        }
    }

    /// The names of the GPUs, in NVML's order, that of their PCI bus ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The figures of each GPU now.
    pub fn read(&self) -> Vec<Reading> {
        let reading = |&device: &sys::nvmlDevice_t| Reading {
            percent: self.nvml.percent(device).ok(),
            used: self.nvml.memory(device).ok().map(|memory| memory.used),
            watts: self.nvml.watts(device).ok(),
        };
        self.devices.iter().map(reading).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of(processes: &[(u32, Option<u64>)]) -> Usage {
        let processes = processes.iter().map(|&(pid, bytes)| Process { pid, bytes }).collect();
        let memory = MemoryTotals { total: 1000, reserved: 10, used: 700, free: 290 };
        Usage { driver: Ok("580.65.06".into()), memory: Ok(memory), processes: Ok(processes) }
    }

    #[test]
    fn usage_of_a_process_or_the_reason_is_reported() {
        let usage = usage_of(&[(7, Some(500)), (8, None), (9, Some(600))]);
        assert_eq!(usage.of(7), Ok(500));
        assert!(usage.of(8).expect_err("it is hidden").contains("the platform does not report it"));
        assert!(usage.of(1).expect_err("it is not there").contains("3 processes but not this one, 1"));
        assert!(usage_of(&[(7, None)]).of(1).expect_err("it is not there").contains("1 process but not this one"));
        assert!(usage_of(&[]).of(1).expect_err("nobody is there").contains("lists no process"));
    }

    #[test]
    fn largest_holder_comes_first() {
        let usage = usage_of(&[(7, Some(5)), (9, Some(6))]);
        assert_eq!(usage.holders_beside(1), "process 9 uses 6, process 7 uses 5");
        assert_eq!(usage.holders_beside(9), "process 7 uses 5");
        let hidden = usage_of(&[(8, None), (9, Some(6))]);
        assert!(hidden.holders_beside(9).contains("no other process for the 700 bytes in use"));
        let refused = Err(NvmlError::Lacks("nvmlDeviceGetMemoryInfo_v2"));
        let hidden = Usage { memory: refused, ..hidden };
        assert_eq!(hidden.holders_beside(9), "NVML lists no other process");
    }
}
