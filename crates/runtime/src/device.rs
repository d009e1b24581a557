//! [`Device`]: what a plan can be opened on. One module a kind of device; [`Host`] is the CPU.

mod host;

use std::sync::Arc;

use plan::{Operand, Plan};

pub use host::Host;

use crate::{RunError, WeightSource};

/// Something that plans for one target can be opened on.
pub trait Device {
    /// Reserves memory, decodes and checks every kernel.
    ///
    /// # Errors
    /// A plan for another target, too little memory, a kernel that does not fit its operands.
    fn open(&self, plan: Arc<Plan>, weights: Arc<dyn WeightSource>) -> Result<Box<dyn Backend>, RunError>;
}

/// A plan opened on a device: its arena and its kernels. Nothing here allocates.
pub trait Backend: Send {
    /// Runs one step.
    fn step(&mut self, step: usize);

    /// Copies bytes into the arena.
    fn write(&mut self, operand: &Operand, bytes: &[u8]);

    /// Copies bytes out of the arena or the constants.
    fn read(&self, operand: &Operand, bytes: &mut [u8]);

    /// The arena, where the host can see it.
    fn arena(&mut self) -> Option<&mut [u8]>;

    /// The number of threads that compute.
    fn threads(&self) -> usize;

    /// The device in a few words.
    fn describe(&self) -> String;
}
