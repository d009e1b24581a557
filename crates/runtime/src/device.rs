//! [`Device`]: a CPU ([`Host`]) or an NVIDIA GPU ([`CudaDevice`]) on which plans are opened. One module for each kind.

mod cuda;
mod host;
mod pager;
mod stream;

use std::sync::Arc;

use plan::{Initial, Operand, Place, Plan};
use types::Bytes;

pub use self::cuda::{CudaDevice, required_libraries};
pub use host::Host;
pub use pager::PagerUsage;
pub use stream::StreamSession;

use crate::process::{DeviceUsage, MemoryItem};
use crate::{RunError, WeightSource};

/// A device on which plans can be opened.
pub trait Device {
    /// Reserves one arena that is large enough for each of the plans; decodes and checks every kernel.
    ///
    /// # Errors
    /// A plan for another target, too little memory, a kernel that does not fit its operands.
    fn open(&self, plans: &[Arc<Plan>], weights: &WeightSource) -> Result<Box<dyn Backend>, RunError>;
}

/// Plans opened on a device: arena and kernels. Methods take the position of a plan. Runs do not allocate.
pub trait Backend: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// The device fails; processors do not.
    fn step(&mut self, plan: usize, step: usize) -> Result<(), RunError>;

    /// Runs all steps.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn run(&mut self, plan: usize) -> Result<(), RunError>;

    /// Runs all steps `runs` times, waits once, and returns the total in seconds by the device's own clock. `None`, without
    /// a run, if it has no clock.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn run_timed(&mut self, _plan: usize, _runs: usize) -> Result<Option<f64>, RunError> {
        Ok(None)
    }

    /// Copies bytes into the arena.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn write(&mut self, plan: usize, operand: &Operand, bytes: &[u8]) -> Result<(), RunError>;

    /// Gives a state its initial value.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn initialize(&mut self, plan: usize, operand: &Operand, initial: Initial) -> Result<(), RunError> {
        let mut bytes = vec![0; operand.size.0 as usize];
        if let Initial::Constant(constant) = initial {
            let whole = Operand { place: Place::Constant(constant), offset: Bytes::ZERO, size: operand.size };
            self.read(plan, &whole, &mut bytes)?;
        }
        self.write(plan, operand, &bytes)
    }

    /// Copies bytes out of the arena or the constants.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn read(&self, plan: usize, operand: &Operand, bytes: &mut [u8]) -> Result<(), RunError>;

    /// The arena, or a copy that is written back before the next operation.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn arena(&mut self) -> Result<&mut [u8], RunError>;

    /// The used memory of the device by purpose. Empty if its memory is the host's.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn device_memory(&self) -> Result<Vec<MemoryItem>, RunError> {
        Ok(Vec::new())
    }

    /// Memory by process as the device's management reports it, and driver allocations in one run, which this makes. Empty if
    /// memory is the host's. Allocates.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn device_usage(&mut self, _plan: usize) -> Result<DeviceUsage, RunError> {
        Ok(DeviceUsage::default())
    }

    /// Memory and reads of constants that are read in every run. `None` if all constants are in memory.
    fn pager_usage(&self) -> Option<PagerUsage> {
        None
    }

    /// The number of threads that compute.
    fn threads(&self) -> usize;

    /// Whether a step writes every byte of its workspace. The audit relies on it.
    fn fills_workspace(&self, _plan: usize, _step: usize) -> bool {
        true
    }

    /// A hint for users about the device's speed, if there is one.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// A short description of the device.
    fn describe(&self) -> String;
}
