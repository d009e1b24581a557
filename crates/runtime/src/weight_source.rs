//! [`WeightSource`]: the constants of plans, and where they are.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};
use plan::Plan;
use rustix::fs::{SealFlags, fcntl_get_seals};

use crate::{ImageFile, RunError, file};

/// Constants in memory of this process, which stay while a session is open.
#[derive(Clone)]
pub(crate) enum HostConstants {
    Bytes(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// Pages of a file.
    Image(ImageFile),
}

impl HostConstants {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            HostConstants::Bytes(bytes) => (**bytes).as_ref(),
            HostConstants::Image(image) => image.constants(),
        }
    }

    /// Ends the residence of bytes that are not read soon. Only pages of a file are released; they are read again if needed.
    pub(crate) fn release(&self, range: Range<usize>) {
        match self {
            HostConstants::Bytes(_) => (),
            HostConstants::Image(image) => image.release(range),
        }
    }
}

/// The constants' section of an image, and where it is. As long as the plan says, and aligned as the plan's arena is.
///
/// A plan with a `Residency` bounds the constants in memory. The bound holds for a [`WeightSource::File`], which is then
/// read and not mapped; bytes that are in memory already are used where they are.
#[derive(Clone)]
pub enum WeightSource {
    /// In memory of this process.
    Host(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// In an image that is open.
    Image(ImageFile),
    /// In a file or a memfd. A memfd that is sealed against writes and truncation is mapped read-only; any other file is read
    /// into memory.
    File {
        /// The descriptor.
        file: Arc<File>,
        /// The first byte of the section; a multiple of the page size.
        offset: u64,
        /// The size of the section.
        size: u64,
    },
    /// In memory of the device that opens the plans, by descriptors that its driver exported. They are mapped read-only, one
    /// after the other. A processor has no such memory.
    Device {
        /// The parts of the section.
        parts: Arc<[DevicePart]>,
        /// The size of the section.
        size: u64,
    },
}

/// Exported memory of a device.
#[derive(Debug)]
pub struct DevicePart {
    /// The descriptor.
    pub handle: OwnedFd,
    /// Its size; rounded up to the device's unit of shared memory, it is that of the allocation.
    pub size: u64,
}

impl From<Vec<u8>> for WeightSource {
    fn from(bytes: Vec<u8>) -> WeightSource {
        WeightSource::Host(Arc::new(bytes))
    }
}

impl<T: AsRef<[u8]> + Send + Sync + 'static> From<Arc<T>> for WeightSource {
    fn from(bytes: Arc<T>) -> WeightSource {
        WeightSource::Host(bytes)
    }
}

impl WeightSource {
    /// The size of the section.
    pub fn size(&self) -> u64 {
        match self {
            WeightSource::Host(bytes) => (**bytes).as_ref().len() as u64,
            WeightSource::Image(image) => image.constants().len() as u64,
            WeightSource::File { size, .. } | WeightSource::Device { size, .. } => *size,
        }
    }

    /// The bytes in memory of this process. Memory of a device is refused.
    pub(crate) fn to_host(&self, plans: &[Arc<Plan>]) -> Result<HostConstants, RunError> {
        match self {
            WeightSource::Host(bytes) => Ok(HostConstants::Bytes(bytes.clone())),
            WeightSource::Image(image) => Ok(HostConstants::Image(image.clone())),
            WeightSource::File { file, offset, size } => {
                Ok(HostConstants::Bytes(Arc::new(section(file, *offset, *size)?)))
            }
            WeightSource::Device { .. } => {
                let target = plans.first().map_or(String::new(), |plan| plan.target.clone());
                Err(RunError::DeviceWeights { target })
            }
        }
    }
}

/// Sections of a file start at a multiple of this many bytes.
const PAGE: u64 = plan::image::PAGE;

/// Seals after which a file keeps its bytes.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK);

/// Maps a section of sealed memory, or reads one of another file.
#[allow(unsafe_code, reason = "sealed memory stays as it is")]
fn section(file: &File, offset: u64, size: u64) -> Result<Mmap, RunError> {
    let io = |error: std::io::Error| RunError::WeightsFile(error.to_string());
    let length = file.metadata().map_err(io)?.len();
    if !offset.is_multiple_of(PAGE) {
        return Err(RunError::WeightsFile(format!("the offset must be a multiple of {PAGE}, got {offset}")));
    }
    let end = offset.checked_add(size).filter(|&end| end <= length);
    let (end, count) = end.zip(usize::try_from(size).ok()).ok_or_else(|| {
        RunError::WeightsFile(format!("the file must have {size} bytes from {offset} on, got a file of {length}"))
    })?;
    // Files without seals are none of a memfd, for which the question is an error.
    if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
        return file::read(file, &(offset..end)).map_err(io);
    }
    // SAFETY: seals cannot be removed, and the system refuses every write and truncation of a file that has these two.
    unsafe { file::map(file, MmapOptions::new().offset(offset).len(count)) }.map_err(io)
}
