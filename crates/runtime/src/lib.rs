//! The runtime: a plan and a device become a [`Session`] that runs and does nothing else.
//!
//! [`open`] reserves the arena, decodes and checks every kernel, and starts the threads. From then on nothing allocates:
//! [`Session::run`] walks the steps. No compiler is needed, no graph is known here. The weights come from a
//! [`WeightSource`]: bytes that somebody keeps, be it a mapped file or another process' memory.
//!
//! What is not part of running: [`audit`] runs a plan under observation and tells which bytes were really touched,
//! [`process`] asks the operating system what the process holds, [`heap`] counts allocations.

pub mod audit;
mod device;
mod file;
pub mod heap;
pub mod process;
mod session;

pub use device::{Device, Host};
pub use file::{ImageFile, OpenError};
pub use session::{RunError, Session, WeightSource, check_input, open};
