//! GPUs as devices of the daemon: [`share::device::ExportingDevice`] by NVIDIA's driver.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cuda::driver::{self, DeviceMemory, DriverError};
use share::core::EvictionPolicy;
use share::device::{DeviceFailure, ReadChunk};
use share::server::DeviceOptions;
use share::settings::DaemonSettings;

use crate::cli::ServeArgs;

/// A GPU with its UUID.
pub(crate) struct Gpu {
    gpu: Arc<driver::Gpu>,
    uuid: String,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uuid)
    }
}

impl Gpu {
    /// Opens a GPU by its UUID or number.
    pub(crate) fn open(word: &str) -> Result<Gpu, String> {
        let ordinal = match word.parse() {
            Ok(ordinal) => ordinal,
            Err(_) => with_uuid(word)?,
        };
        let gpu = driver::Gpu::open(ordinal).map_err(|error| error.to_string())?;
        let uuid = gpu.uuid().map_err(|error| error.to_string())?;
        Ok(Gpu { gpu, uuid })
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Maps exported memory to be read.
    pub(crate) fn map(&self, parts: &[(OwnedFd, u64)]) -> Result<DeviceMemory, String> {
        let parts: Vec<(BorrowedFd, usize)> = parts.iter().map(|(own, size)| (own.as_fd(), *size as usize)).collect();
        let mapped = DeviceMemory::with_imported(&self.gpu, 0, &parts);
        mapped.map(|(memory, _)| memory).map_err(|error| error.to_string())
    }
}

fn with_uuid(uuid: &str) -> Result<usize, String> {
    let count = driver::count().map_err(|error| error.to_string())?;
    let known: Result<Vec<String>, DriverError> = (0..count).map(driver::uuid_of).collect();
    let known = known.map_err(|error| error.to_string())?;
    let found = known.iter().position(|own| own == uuid);
    found.ok_or_else(|| format!("there is no GPU `{uuid}`; the GPUs are {}", known.join(", ")))
}

fn failure(error: DriverError) -> DeviceFailure {
    let is_full =
        matches!(error, DriverError::Full { .. } | DriverError::OutOfMemory { .. } | DriverError::Refused { .. });
    DeviceFailure { is_full, message: error.to_string() }
}

/// Bytes that are read back at a time.
const CHUNK_BYTES: usize = 32 << 20;

impl share::device::ExportingDevice for Gpu {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn export(&self, size: u64, read: ReadChunk) -> Result<(OwnedFd, u64), DeviceFailure> {
        let mut failed = None;
        let mut chunk = |at: u64, bytes: &mut [u8]| {
            let error = read(at, bytes).err();
            failed = error.map(|error| DeviceFailure { is_full: false, message: error.to_string() });
            failed.is_none().then_some(())
        };
        let exported = DeviceMemory::export(&self.gpu, size as usize, &mut chunk);
        match exported {
            Ok((descriptor, whole)) => Ok((descriptor, whole as u64)),
            Err(error) => Err(failed.or(error.map(failure)).expect("one of the two failed")),
        }
    }

    fn read(&self, memory: BorrowedFd, size: u64, each: &mut dyn FnMut(&[u8])) -> Result<(), DeviceFailure> {
        let (mapped, _) = DeviceMemory::with_imported(&self.gpu, 0, &[(memory, size as usize)]).map_err(failure)?;
        let mut buffer = vec![0; CHUNK_BYTES.min(size as usize)];
        for at in (0..size as usize).step_by(CHUNK_BYTES) {
            let chunk = &mut buffer[..CHUNK_BYTES.min(size as usize - at)];
            mapped.read(at, chunk).map_err(failure)?;
            each(chunk);
        }
        Ok(())
    }
}

/// The device tiers of the flags.
pub(crate) fn tiers(args: &ServeArgs, settings: &DaemonSettings) -> Result<Vec<DeviceOptions>, String> {
    let words: Vec<String> = match args.device.iter().any(|word| word == "all") {
        true => (0..driver::count().map_err(|error| error.to_string())?).map(|ix| ix.to_string()).collect(),
        false => args.device.clone(),
    };
    let policy = args.policy.unwrap_or(settings.policy);
    let policy = if settings.persist_only_cpu { EvictionPolicy::Eager } else { policy };
    let policy = args.device_policy.unwrap_or(policy);
    let tier = |word: &String| {
        let gpu = Gpu::open(word)?;
        let (_, total) = gpu.gpu.memory().map_err(|error| error.to_string())?;
        let limit = (total as f64 * settings.memory_fraction) as u64;
        let limit = args.device_budget.map_or(limit, |budget| budget.0);
        Ok(DeviceOptions { memory: Arc::new(gpu), limit, policy })
    };
    let tiers: Result<Vec<DeviceOptions>, String> = words.iter().map(tier).collect();
    let tiers = tiers?;
    for (ix, tier) in tiers.iter().enumerate() {
        if tiers[..ix].iter().any(|other| other.memory.uuid() == tier.memory.uuid()) {
            return Err(format!("--device names {} twice", tier.memory.uuid()));
        }
    }
    Ok(tiers)
}
