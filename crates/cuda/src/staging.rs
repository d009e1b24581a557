//! [`DeviceMemory::upload`]: large copies to a GPU through pinned host memory.
//!
//! Two pinned staging buffers alternate: while the GPU copies one, the host fills the other. A buffer is refilled after the event
//! that follows its copy.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::driver::{DeviceMemory, DriverError, Gpu, failed};
use crate::event::Event;

/// Size of each of the two staging buffers: large enough (tens of microseconds over PCIe) to amortize the start of a copy.
pub const STAGING_CHUNK_BYTES: usize = 1 << 20;

impl DeviceMemory {
    /// Writes bytes like [`DeviceMemory::write`], through at most two pinned buffers of [`STAGING_CHUNK_BYTES`]. If the system
    /// refuses pinned memory, for instance because of a limit, it is the same as `write`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is outside of the block.
    pub fn upload(&self, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size() && bytes.len() <= self.size() - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(mut staging) = Staging::new(self.gpu(), bytes.len().min(2 * STAGING_CHUNK_BYTES))? else {
            return self.write(offset, bytes);
        };
        // Earlier work may still use these bytes.
        self.gpu().finish()?;
        let sides = [0, 1].into_iter().cycle();
        let starts = (offset..).step_by(STAGING_CHUNK_BYTES);
        for ((side, start), part) in sides.zip(starts).zip(bytes.chunks(STAGING_CHUNK_BYTES)) {
            staging.copy(side, part, self.address(start))?;
        }
        staging.finish()
    }
}

/// Pinned memory with the state of its copies.
struct Staging {
    gpu: Arc<Gpu>,
    pinned: *mut u8,
    size: usize,
    /// Follows the last copy from each buffer.
    read: [Event; 2],
    /// Whether a copy from each buffer was enqueued.
    is_used: [bool; 2],
    /// Whether a copy may be in flight.
    is_read: bool,
}

impl Staging {
    /// Pins `size` bytes. `None` if the system refuses.
    fn new(gpu: &Arc<Gpu>, size: usize) -> Result<Option<Staging>, DriverError> {
        use sys::cudaError_enum as Code;
        let read = [Event::new(gpu)?, Event::new(gpu)?];
        // SAFETY: `Event::new` made the context current, and `Staging` frees the memory. It is written before it is read.
        let pinned = match unsafe { result::malloc_host(size, 0) } {
            Ok(pinned) => pinned.cast(),
            Err(error) => {
                return match error.0 {
                    Code::CUDA_ERROR_OUT_OF_MEMORY
                    | Code::CUDA_ERROR_OPERATING_SYSTEM
                    | Code::CUDA_ERROR_NOT_SUPPORTED
                    | Code::CUDA_ERROR_NOT_PERMITTED => Ok(None),
                    _ => Err(failed("pinning memory of the host")(error)),
                };
            }
        };
        Ok(Some(Staging { gpu: gpu.clone(), pinned, size, read, is_used: [false; 2], is_read: false }))
    }

    /// Waits until a buffer is free, fills it and enqueues its copy to an address.
    fn copy(&mut self, side: usize, part: &[u8], to: sys::CUdeviceptr) -> Result<(), DriverError> {
        let start = side * STAGING_CHUNK_BYTES;
        assert!(part.len() <= STAGING_CHUNK_BYTES, "it fits into a half");
        assert!(start + part.len() <= self.size, "the half is there");
        if self.is_used[side] {
            self.read[side].wait()?;
        }
        self.gpu.enter()?;
        // SAFETY: the range is inside of the pinned memory (asserted), which this struct owns. The GPU does not read it: no copy
        // from this buffer was enqueued, or its event was waited for. `part` cannot alias memory of the driver's.
        let half = unsafe {
            let half = self.pinned.add(start);
            half.copy_from_nonoverlapping(part.as_ptr(), part.len());
            std::slice::from_raw_parts(half, part.len())
        };
        self.is_read = true;
        // SAFETY: `upload` checked the destination's range. The buffer is not changed before the event that follows this copy,
        // and not freed before the stream is synchronized (`finish`, `drop`).
        unsafe { result::memcpy_htod_async(to, half, self.gpu.stream()) }.map_err(failed("copying to the device"))?;
        self.read[side].record()?;
        self.is_used[side] = true;
        Ok(())
    }

    /// Waits for all copies and frees the memory.
    fn finish(mut self) -> Result<(), DriverError> {
        self.gpu.finish()?;
        self.is_read = false;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a failure copies may be in flight. If synchronizing fails too, the context is lost and nothing reads any more.
        if self.is_read {
            let _ = self.gpu.finish();
        }
        if self.gpu.enter().is_ok() {
            // SAFETY: this struct owns the memory, and no copy is in flight.
            let _ = unsafe { result::free_host(self.pinned.cast()) };
        }
    }
}
