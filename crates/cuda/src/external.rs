//! Streams and memory that are somebody else's, for programs that work on the same GPU by other means.
//!
//! The driver has one primary context a device, which whoever asks for it shares. So another library's buffers are ours to
//! read, and its streams ours to launch on; what has to be promised for that is promised where one is made.

use cudarc::driver::{result, sys};

use crate::driver::{DeviceMemory, DriverError, failed};

/// The context that a thread has, which it has again when this goes: for those who are called by others that use a GPU, this
/// one or another.
#[derive(Debug)]
pub struct ContextGuard(Option<sys::CUcontext>);

impl ContextGuard {
    /// That of this thread; none where it has none, or where there is no driver.
    pub fn save() -> ContextGuard {
        // SAFETY: it asks the system's loader.
        let is_there = unsafe { sys::is_culib_present() };
        // A driver that nobody started yet has no context for anybody.
        ContextGuard(is_there.then(|| result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())))
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: the thread had it, and whoever gave it that keeps it alive. What could be said of a failure helps nobody.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}

/// A stream that somebody else keeps.
#[derive(Clone, Copy, Debug)]
pub struct ExternalStream(sys::CUstream);

impl ExternalStream {
    /// A stream by the driver's handle.
    ///
    /// # Safety
    /// The stream is of the device's primary context and alive until what was begun on it is done, and so is whatever began
    /// it, whose code and memory the GPU uses. What works on one arena is begun on one stream only, or on another when the
    /// first is done: nothing else keeps runs apart.
    pub unsafe fn new(stream: *mut std::ffi::c_void) -> ExternalStream {
        ExternalStream(stream.cast())
    }

    pub(crate) fn raw(self) -> sys::CUstream {
        self.0
    }
}

/// DeviceMemory of a GPU that somebody else keeps.
#[derive(Clone, Copy, Debug)]
pub struct ExternalBuffer {
    start: sys::CUdeviceptr,
    size: usize,
}

impl ExternalBuffer {
    /// So many bytes from an address on.
    ///
    /// # Safety
    /// They are memory of the device, alive until what was begun with them is done, and nobody writes them, nor reads them
    /// where they are written, until then, apart from what is begun on the same stream.
    pub unsafe fn new(start: u64, size: usize) -> ExternalBuffer {
        ExternalBuffer { start, size }
    }

    /// How many bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl DeviceMemory {
    /// Begins to take all bytes of another's memory to a place.
    ///
    /// # Errors
    /// The driver refuses it.
    ///
    /// # Panics
    /// Bytes outside.
    pub fn copy_from_external(
        &self,
        place: usize,
        other: &ExternalBuffer,
        stream: ExternalStream,
    ) -> Result<(), DriverError> {
        let address = self.range(place, other.size);
        self.gpu().enter()?;
        // SAFETY: the bytes lie in the block; of the other's memory and the stream their makers promised what is needed.
        unsafe { result::memcpy_dtod_async(address, other.start, other.size, stream.raw()) }
            .map_err(failed("taking bytes"))
    }

    /// Begins to give bytes from a place on, as many as another's memory has.
    ///
    /// # Errors
    /// The driver refuses it.
    ///
    /// # Panics
    /// Bytes outside.
    pub fn copy_to_external(
        &self,
        place: usize,
        other: &ExternalBuffer,
        stream: ExternalStream,
    ) -> Result<(), DriverError> {
        let address = self.range(place, other.size);
        self.gpu().enter()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtod_async(other.start, address, other.size, stream.raw()) }
            .map_err(failed("giving bytes"))
    }

    /// The address of bytes that lie in the block.
    fn range(&self, place: usize, size: usize) -> u64 {
        assert!(place <= self.size() && size <= self.size() - place, "they lie in the block");
        self.address(place)
    }
}
