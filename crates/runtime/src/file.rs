//! [`ImageFile`]: an executable's own file, mapped, with the image at its end checked.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};
use plan::Plan;
use plan::image::{ImageError, Trailer};

use crate::WeightSource;

/// Reason why an image does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened or mapped.
    #[error("cannot open `{path}`: {error}")]
    Io {
        /// The file.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file is not an image, or a damaged one.
    #[error("cannot run `{path}`: {error}")]
    Image {
        /// The file.
        path: String,
        /// The error.
        error: ImageError,
    },
}

/// A mapped image: its plans, and their constants as part of the mapping.
#[derive(Clone)]
pub struct ImageFile {
    /// The plans, one for each batch; at least one.
    pub plans: Vec<Arc<Plan>>,
    trailer: Trailer,
    file: Arc<File>,
    map: Arc<Mmap>,
}

impl ImageFile {
    /// Maps a file and checks the image at its end.
    ///
    /// No other process may write to the file or truncate it while it is mapped: reads of constants would differ, or end
    /// the process with a signal. Linux enforces that for the file of a running program. No bounds depend on mapped bytes
    /// after they were checked: plans are decoded into memory. For a file that others may write, read it and give the bytes
    /// to [`plan::image::read`] and [`crate::open_all`].
    ///
    /// # Errors
    /// A file that cannot be opened, is no image, is damaged, or is of another version.
    pub fn open(path: &Path) -> Result<ImageFile, OpenError> {
        let image = ImageFile::open_plans(path)?;
        image.check_constants(path)?;
        Ok(image)
    }

    /// Maps a file and checks its program and its plans, without a read of the constants. [`ImageFile::check_constants`] must succeed before
    /// the constants of this file are used; weights from elsewhere need no check of them.
    ///
    /// # Errors
    /// As [`ImageFile::open`], except for damaged constants.
    pub fn open_plans(path: &Path) -> Result<ImageFile, OpenError> {
        let io = |error| OpenError::Io { path: path.display().to_string(), error };
        let damaged = |error| OpenError::Image { path: path.display().to_string(), error };
        // Before opening: to open a FIFO waits for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        let file = File::open(path).map_err(io)?;
        let map = map(&file, &MmapOptions::new()).map_err(io)?;
        let trailer = Trailer::read(&map, map.len() as u64).map_err(damaged)?;
        // From the file, not from the mapping, so that the program's bytes do not become resident.
        let start = |offset| FileAt { file: &file, offset };
        trailer.check_rest(start(0), start(trailer.plans.end)).map_err(io)?.map_err(damaged)?;
        let plans = trailer.plans(&map[trailer.plans.start as usize..trailer.plans.end as usize]).map_err(damaged)?;
        let plans = plans.into_iter().map(Arc::new).collect();
        Ok(ImageFile { plans, trailer, file: Arc::new(file), map: Arc::new(map) })
    }

    /// Checks the constants, which reads all of them. Constants that are read in every run are checked then, and not here.
    /// `path` is for messages.
    ///
    /// # Errors
    /// A wrong checksum; separate weights, which are not in this file.
    pub fn check_constants(&self, path: &Path) -> Result<(), OpenError> {
        let checked = match self.trailer.is_separate() {
            true => Err(ImageError::Separate { weights: plan::image::weights_name(&self.plans) }),
            false if self.reads_in_runs() => Ok(()),
            false => self.trailer.check_constants(self.constants()),
        };
        checked.map_err(|error| OpenError::Image { path: path.display().to_string(), error })
    }

    /// Whether constants are read in every run, within a limit of memory.
    pub fn reads_in_runs(&self) -> bool {
        self.plans.iter().any(|plan| plan.residency.is_some())
    }

    /// The file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Where the sections of the file are, and their checksums.
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    fn constants(&self) -> &[u8] {
        &self.map[self.trailer.constants.start as usize..self.trailer.constants.end as usize]
    }

    /// The mapping of the whole file. Its address identifies the image's pages.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl From<&ImageFile> for WeightSource {
    fn from(image: &ImageFile) -> WeightSource {
        let Range { start, end } = image.trailer.constants;
        match image.reads_in_runs() {
            true => WeightSource::File { file: image.file.clone(), offset: start, size: end - start },
            false => WeightSource::Host(Arc::new(Constants(image.clone()))),
        }
    }
}

/// Reads a file from an offset on, without the position that all users of a [`File`] share.
struct FileAt<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(bytes, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// The constants' section of a mapped image.
struct Constants(ImageFile);

impl AsRef<[u8]> for Constants {
    fn as_ref(&self) -> &[u8] {
        self.0.constants()
    }
}

/// Maps a file, or the part of it that `options` name. The one mapping constructor of the runtime.
#[allow(unsafe_code, reason = "a file mapping has no safe constructor")]
pub(crate) fn map(file: &File, options: &MmapOptions) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is private and read-only, so this process cannot write to it. Another process that changes or
    // truncates the file can make reads differ or fail. For an executable the system refuses to write to a running one
    // (ETXTBSY), and the checksums were verified on these very pages. `WeightSource::File` requires of its caller that no
    // process writes to the file or truncates it; the kernel enforces that for a sealed memfd.
    unsafe { options.map(file) }
}
