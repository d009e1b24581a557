//! [`Device`]: what a plan can be opened on. One module a kind of device; [`Host`] is the CPU, [`CudaDevice`] an
//! NVIDIA GPU.

mod cuda;
mod host;
mod stream;

use std::sync::Arc;

use plan::{Operand, Plan};

pub use self::cuda::{CudaDevice, required_libraries};
pub use host::Host;
pub use stream::StreamSession;

use crate::process::{DeviceUsage, MemoryItem};
use crate::{RunError, WeightSource};

/// Something that plans for one target can be opened on.
pub trait Device {
    /// Reserves one arena that is large enough for each of the plans, decodes and checks every kernel.
    ///
    /// # Errors
    /// A plan for another target, too little memory, a kernel that does not fit its operands.
    fn open(&self, plans: &[Arc<Plan>], weights: &WeightSource) -> Result<Box<dyn Backend>, RunError>;
}

/// Plans opened on a device: their arena and their kernels. Nothing here allocates. Plans are named by their position.
pub trait Backend: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// The device fails. Processors do not.
    fn step(&mut self, plan: usize, step: usize) -> Result<(), RunError>;

    /// Runs all steps.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn run(&mut self, plan: usize) -> Result<(), RunError>;

    /// Runs all steps so many times, waits once, and says how many seconds they took together by the device's own clock. None
    /// where it has no clock; nothing is run then.
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

    /// Copies bytes out of the arena or the constants.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn read(&self, plan: usize, operand: &Operand, bytes: &mut [u8]) -> Result<(), RunError>;

    /// The arena: where it lies, or a copy that goes back before anything else is done.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn arena(&mut self) -> Result<&mut [u8], RunError>;

    /// What of the device's own memory is taken, and by what. Nothing where that is the host's.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn device_memory(&self) -> Result<Vec<MemoryItem>, RunError> {
        Ok(Vec::new())
    }

    /// What the device's own management says of its memory, process by process, and what is asked of its driver in a run,
    /// which is done for that. Nothing where memory is the host's. Asking allocates.
    ///
    /// # Errors
    /// As [`Backend::step`].
    fn device_usage(&mut self, _plan: usize) -> Result<DeviceUsage, RunError> {
        Ok(DeviceUsage::default())
    }

    /// The number of threads that compute.
    fn threads(&self) -> usize;

    /// Whether a step writes all of its workspace, so that one who looks at the arena may expect that.
    fn fills_workspace(&self, _plan: usize, _step: usize) -> bool {
        true
    }

    /// What a user should know about how this device computes, where there is something: that it is slow, and why.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// The device in a few words.
    fn describe(&self) -> String;
}
