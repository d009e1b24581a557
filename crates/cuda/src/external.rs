//! External streams and buffers: those of a caller that uses the same GPU by other means.
//!
//! All users of a device share its primary context, so plans can run on a caller's stream and between a caller's buffers. The
//! constructors are unsafe and state what the caller must guarantee.

use cudarc::driver::{result, sys};

use crate::driver::{DeviceMemory, DriverError, failed};

/// Restores the thread's current context on drop, for libraries whose callers use a GPU too.
#[derive(Debug)]
pub struct ContextGuard(Option<sys::CUcontext>);

impl ContextGuard {
    /// Saves the current context of this thread, if there are a driver and a context.
    pub fn save() -> ContextGuard {
        // SAFETY: the call only queries the system's loader.
        let is_there = unsafe { sys::is_culib_present() };
        // Before the driver's initialization there is no context.
        ContextGuard(is_there.then(|| result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())))
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: the context was current on this thread, so its owner keeps it alive. A failure has no remedy here.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}

/// A stream that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct ExternalStream(sys::CUstream);

impl ExternalStream {
    /// A stream by its driver handle.
    ///
    /// # Safety
    /// `stream` must belong to the device's primary context. The stream, and the session that enqueues work on it, must outlive
    /// that work. Runs of one arena must be enqueued on one stream, or on another one only after the first is synchronized:
    /// nothing else orders them.
    pub unsafe fn new(stream: *mut std::ffi::c_void) -> ExternalStream {
        ExternalStream(stream.cast())
    }

    pub(crate) fn raw(self) -> sys::CUstream {
        self.0
    }
}

/// Device memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct ExternalBuffer {
    start: sys::CUdeviceptr,
    size: usize,
}

impl ExternalBuffer {
    /// `size` bytes from an address.
    ///
    /// # Safety
    /// The range must be device memory that outlives the work that uses it. Until that work is complete, only work on the same
    /// stream may write the range, or read it if the work writes it.
    pub unsafe fn new(start: u64, size: usize) -> ExternalBuffer {
        ExternalBuffer { start, size }
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl DeviceMemory {
    /// Enqueues a copy of an external buffer to an offset of this block.
    ///
    /// # Errors
    /// The driver refuses the copy.
    ///
    /// # Panics
    /// The range is outside of the block.
    pub fn copy_from_external(
        &self,
        place: usize,
        other: &ExternalBuffer,
        stream: ExternalStream,
    ) -> Result<(), DriverError> {
        let address = self.range(place, other.size);
        self.gpu().enter()?;
        // SAFETY: `range` checked the destination; the constructors' contracts cover buffer and stream.
        unsafe { result::memcpy_dtod_async(address, other.start, other.size, stream.raw()) }
            .map_err(failed("copying to the device"))
    }

    /// Enqueues a copy from an offset of this block, of the external buffer's size.
    ///
    /// # Errors
    /// The driver refuses the copy.
    ///
    /// # Panics
    /// The range is outside of the block.
    pub fn copy_to_external(
        &self,
        place: usize,
        other: &ExternalBuffer,
        stream: ExternalStream,
    ) -> Result<(), DriverError> {
        let address = self.range(place, other.size);
        self.gpu().enter()?;
        // SAFETY: as in `copy_from_external`.
        unsafe { result::memcpy_dtod_async(other.start, address, other.size, stream.raw()) }
            .map_err(failed("copying from the device"))
    }

    /// The address of a range of the block.
    fn range(&self, place: usize, size: usize) -> u64 {
        assert!(place <= self.size() && size <= self.size() - place, "they lie in the block");
        self.address(place)
    }
}
