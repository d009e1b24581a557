//! [`DeviceMemory::upload`]: many bytes to a GPU through pinned memory of the host.
//!
//! The GPU reads pinned memory by itself. There is a bounded piece of it, in two halves: while the GPU takes one, the other is
//! filled, and it is filled again only when the event behind its copy is reached.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::driver::{DeviceMemory, DriverError, Gpu, failed};
use crate::event::Event;

/// The bytes of a half: some tens of microseconds of a bus, so that what it costs to begin a copy is small beside it.
pub const STAGING_CHUNK_BYTES: usize = 1 << 20;

impl DeviceMemory {
    /// Writes bytes from a place on, as [`DeviceMemory::write`] does, through pinned memory of two [`STAGING_CHUNK_BYTES`]s at most, which is given
    /// back at the end. Where the system gives none, as where a limit is on what a process may pin, it is what `write` does.
    ///
    /// # Errors
    /// What failed.
    ///
    /// # Panics
    /// Bytes outside.
    pub fn upload(&self, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size() && bytes.len() <= self.size() - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(mut staging) = Staging::new(self.gpu(), bytes.len().min(2 * STAGING_CHUNK_BYTES))? else {
            return self.write(offset, bytes);
        };
        // What was begun before may work on these bytes.
        self.gpu().finish()?;
        let sides = [0, 1].into_iter().cycle();
        let starts = (offset..).step_by(STAGING_CHUNK_BYTES);
        for ((side, start), part) in sides.zip(starts).zip(bytes.chunks(STAGING_CHUNK_BYTES)) {
            staging.copy(side, part, self.address(start))?;
        }
        staging.finish()
    }
}

/// Pinned memory, and how far the GPU has read it.
struct Staging {
    gpu: Arc<Gpu>,
    pinned: *mut u8,
    size: usize,
    /// Behind the last copy out of each half.
    read: [Event; 2],
    /// Whether a copy out of each half was begun.
    is_used: [bool; 2],
    /// Whether a copy may still be on its way.
    is_read: bool,
}

impl Staging {
    /// So many bytes, or none where the system gives none.
    fn new(gpu: &Arc<Gpu>, size: usize) -> Result<Option<Staging>, DriverError> {
        use sys::cudaError_enum as Code;
        let read = [Event::new(gpu)?, Event::new(gpu)?];
        // SAFETY: the context is current (`Event::new`), and `Staging` frees the memory. It is written before it is read.
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

    /// Fills a half, when it is free, and begins to copy it to an address.
    fn copy(&mut self, side: usize, part: &[u8], to: sys::CUdeviceptr) -> Result<(), DriverError> {
        let start = side * STAGING_CHUNK_BYTES;
        assert!(part.len() <= STAGING_CHUNK_BYTES, "it fits into a half");
        assert!(start + part.len() <= self.size, "the half is there");
        if self.is_used[side] {
            self.read[side].wait()?;
        }
        self.gpu.enter()?;
        // SAFETY: the bytes lie in the pinned memory (asserted), which is ours; the GPU does not read them: no copy was begun
        // out of this half, or the event behind the last one is reached. `part` is the caller's, who cannot have a reference
        // into what the driver gave.
        let half = unsafe {
            let half = self.pinned.add(start);
            half.copy_from_nonoverlapping(part.as_ptr(), part.len());
            std::slice::from_raw_parts(half, part.len())
        };
        self.is_read = true;
        // SAFETY: the address is `upload`'s, of as many bytes that lie in a block. The half stays as it is until the event
        // behind this copy is reached, and is there until the stream is done (`finish`, `drop`).
        unsafe { result::memcpy_htod_async(to, half, self.gpu.stream()) }.map_err(failed("taking bytes"))?;
        self.read[side].record()?;
        self.is_used[side] = true;
        Ok(())
    }

    /// Waits for all copies, and gives the memory back.
    fn finish(mut self) -> Result<(), DriverError> {
        self.gpu.finish()?;
        self.is_read = false;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Where something failed, copies may be on their way; a GPU that cannot say that they are done reads no more.
        if self.is_read {
            let _ = self.gpu.finish();
        }
        if self.gpu.enter().is_ok() {
            // SAFETY: the memory is ours, and nobody reads it any more.
            let _ = unsafe { result::free_host(self.pinned.cast()) };
        }
    }
}
