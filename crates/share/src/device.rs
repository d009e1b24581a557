//! [`ExportingDevice`]: the operations that the daemon needs of a device with its own memory. The program that serves
//! implements it with the device's driver: this crate calls no driver.

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Reason why a device does not take or return bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeviceFailure {
    /// Whether its memory is exhausted.
    pub is_full: bool,
    /// The driver's text.
    pub message: String,
}

/// Reads bytes at an offset into a chunk.
pub type ReadChunk<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// A device whose memory other processes can import by a descriptor and map read-only.
pub trait ExportingDevice: Debug + Send + Sync {
    /// Its name for clients: the UUID of a GPU.
    fn uuid(&self) -> &str;

    /// Makes memory of `size` bytes and fills it by `read`. Returns a descriptor, which alone keeps the memory, and the size
    /// of the allocation, `size` rounded up.
    ///
    /// # Errors
    /// Too little memory, a failure of the device or of `read`.
    fn export(&self, size: u64, read: ReadChunk) -> Result<(OwnedFd, u64), DeviceFailure>;

    /// Calls `each` with the first `size` bytes of exported memory, chunk after chunk.
    ///
    /// # Errors
    /// A failure of the device.
    fn read(&self, memory: BorrowedFd, size: u64, each: &mut dyn FnMut(&[u8])) -> Result<(), DeviceFailure>;
}
