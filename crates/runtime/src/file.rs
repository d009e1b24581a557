//! [`ImageFile`]: an executable with the image at its end checked. The file is read, or mapped where it cannot change.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, MmapOptions, UncheckedAdvice};
use plan::Plan;
use plan::image::{ImageError, Trailer};

use crate::WeightSource;

/// Reason why an image does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened, read or mapped.
    #[error("cannot open `{path}`: {error}")]
    Io {
        /// The file.
        path: String,
        /// The error of the system.
        error: io::Error,
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

impl OpenError {
    fn io(path: &Path) -> impl Fn(io::Error) -> OpenError {
        move |error| OpenError::Io { path: path.display().to_string(), error }
    }

    fn image(path: &Path) -> impl Fn(ImageError) -> OpenError {
        move |error| OpenError::Image { path: path.display().to_string(), error }
    }
}

/// An image: its plans, and its constants in memory or as part of a mapping.
///
/// Constants that are read in every run, within a limit of memory, are in neither: the run reads them and checks each.
#[derive(Clone)]
pub struct ImageFile {
    /// The plans, one for each batch; at least one.
    pub plans: Vec<Arc<Plan>>,
    trailer: Trailer,
    file: Arc<File>,
    /// For messages.
    path: PathBuf,
    memory: Memory,
}

/// Where the constants of an image are.
#[derive(Clone)]
enum Memory {
    /// In this process's own memory.
    Read(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// In a mapping of the whole file.
    Mapped(Arc<Mmap>),
}

/// The file of the running program. Unlike the path of the executable, it is the file that runs even if another one has
/// that path since.
const OWN: &str = "/proc/self/exe";

/// The most bytes of the plans' section: it is read into memory.
const PLANS_MAX: u64 = 1 << 30;

impl ImageFile {
    /// Reads a file and checks the image at its end. The constants are read into memory; other processes may then change the
    /// file.
    ///
    /// # Errors
    /// A file that cannot be read, is no image, is damaged, or is of another version; separate weights.
    pub fn open(path: &Path) -> Result<ImageFile, OpenError> {
        let mut image = ImageFile::without_constants(open_regular(path)?, path)?;
        image.check_whole()?;
        if !image.reads_in_runs() {
            let constants = read(&image.file, &image.trailer.constants).map_err(OpenError::io(path))?;
            image.memory = Memory::Read(Arc::new(constants));
        }
        image.check_constants()?;
        Ok(image)
    }

    /// Maps a file and checks the image at its end: the constants stay in the file's pages, which all processes share.
    ///
    /// # Safety
    /// Until the image and all sessions that are opened with it are dropped, no process may write to the file or truncate it.
    ///
    /// # Errors
    /// As [`ImageFile::open`].
    #[allow(unsafe_code, reason = "the caller keeps the file as it is")]
    pub unsafe fn map(path: &Path) -> Result<ImageFile, OpenError> {
        let mut image = ImageFile::without_constants(open_regular(path)?, path)?;
        // SAFETY: the caller keeps the file as it is while the mapping exists.
        image.memory =
            Memory::Mapped(Arc::new(unsafe { map(&image.file, &MmapOptions::new()) }.map_err(OpenError::io(path))?));
        image.check_constants()?;
        Ok(image)
    }

    /// Maps the file of the running program and checks its program and its plans, without a read of the constants.
    /// [`ImageFile::check_constants`] must succeed before the constants of this file are used; weights from elsewhere need no
    /// check of them.
    ///
    /// # Errors
    /// As [`ImageFile::open`], except for damaged constants and separate weights.
    #[allow(unsafe_code, reason = "the file of a running program stays as it is")]
    pub fn own() -> Result<ImageFile, OpenError> {
        let path = std::env::current_exe().unwrap_or_else(|_| OWN.into());
        let io = OpenError::io(&path);
        let mut image = ImageFile::without_constants(ImageFile::own_file().map_err(&io)?, &path)?;
        // SAFETY: the file is the one that this process executes, by its inode and not by its path, which may name another
        // file by now. Linux refuses to write to it and to truncate it while it runs (`ETXTBSY`). Where that does not hold
        // (a file system of several machines, an emulator), who changes the file changes the code of this process, which is
        // mapped from it in the same way: no program can be sound against that.
        image.memory = Memory::Mapped(Arc::new(unsafe { map(&image.file, &MmapOptions::new()) }.map_err(io)?));
        Ok(image)
    }

    /// Opens the file of the running program.
    ///
    /// # Errors
    /// Those of the system.
    pub fn own_file() -> io::Result<File> {
        File::open(OWN)
    }

    /// Reads the plans of a file, and checks them and its program. The constants are not read.
    ///
    /// # Errors
    /// As [`ImageFile::open`], except for damaged constants and separate weights.
    pub fn read_plans(path: &Path) -> Result<Vec<Arc<Plan>>, OpenError> {
        Ok(ImageFile::without_constants(open_regular(path)?, path)?.plans)
    }

    /// Checks everything but the constants, which the image does not have yet.
    fn without_constants(file: File, path: &Path) -> Result<ImageFile, OpenError> {
        let (io, damaged) = (OpenError::io(path), OpenError::image(path));
        let length = file.metadata().map_err(&io)?.len();
        let mut end = [0; Trailer::SIZE];
        let end = &mut end[..Trailer::SIZE.min(length as usize)];
        file.read_exact_at(end, length - end.len() as u64).map_err(&io)?;
        let trailer = Trailer::read(end, length).map_err(&damaged)?;
        let start = |offset| FileAt { file: &file, offset };
        trailer.check_rest(start(0), start(trailer.plans.end)).map_err(&io)?.map_err(&damaged)?;
        let size = trailer.plans.end - trailer.plans.start;
        if PLANS_MAX < size {
            return Err(damaged(ImageError::Damaged {
                reason: format!("its plans have {size} bytes, the limit is {PLANS_MAX}"),
            }));
        }
        let section = read(&file, &trailer.plans).map_err(&io)?;
        let plans = trailer.plans(&section).map_err(&damaged)?;
        let plans = plans.into_iter().map(Arc::new).collect();
        let memory = Memory::Read(Arc::new([0u8; 0]));
        Ok(ImageFile { plans, trailer, file: Arc::new(file), path: path.to_path_buf(), memory })
    }

    /// Checks the constants, which reads all of them. Constants that are read in every run are checked then, and not here.
    ///
    /// # Errors
    /// A wrong checksum; separate weights, which are not in this file.
    pub fn check_constants(&self) -> Result<(), OpenError> {
        self.check_whole()?;
        match self.reads_in_runs() {
            true => Ok(()),
            false => self.trailer.check_constants(self.constants()).map_err(OpenError::image(&self.path)),
        }
    }

    /// Refuses separate weights.
    fn check_whole(&self) -> Result<(), OpenError> {
        let weights = || plan::image::weights_name(&self.plans);
        match self.trailer.is_separate() {
            true => Err(OpenError::image(&self.path)(ImageError::Separate { weights: weights() })),
            false => Ok(()),
        }
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

    pub(crate) fn constants(&self) -> &[u8] {
        match &self.memory {
            Memory::Read(constants) => (**constants).as_ref(),
            Memory::Mapped(map) => &map[self.trailer.constants.start as usize..self.trailer.constants.end as usize],
        }
    }

    /// The mapping of the whole file, or the constants in memory. Its address identifies the image's pages.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Read(constants) => (**constants).as_ref(),
            Memory::Mapped(map) => map,
        }
    }

    /// Ends the residence of a range of the constants in this process if they are mapped. The next access maps their pages
    /// again, which the system usually keeps in its cache.
    #[allow(unsafe_code, reason = "pages of a file that stays as it is have the same bytes when they are mapped again")]
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Memory::Mapped(map) = &self.memory {
            let start = self.trailer.constants.start as usize + range.start;
            // SAFETY: the mapping is of a file and read-only, so that no page of it differs from the file, which does not
            // change while it is mapped (`ImageFile::map`, `ImageFile::own`): references keep their bytes. A failure changes
            // nothing.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, range.len()) };
        }
    }
}

impl From<&ImageFile> for WeightSource {
    fn from(image: &ImageFile) -> WeightSource {
        let Range { start, end } = image.trailer.constants;
        match image.reads_in_runs() {
            true => WeightSource::File { file: image.file.clone(), offset: start, size: end - start },
            false => WeightSource::Image(image.clone()),
        }
    }
}

/// Opens a regular file. To open a FIFO would wait for its writer, so that its kind is looked up first.
fn open_regular(path: &Path) -> Result<File, OpenError> {
    let io = OpenError::io(path);
    if !std::fs::metadata(path).map_err(&io)?.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    File::open(path).map_err(io)
}

/// Reads a file from an offset on, without the position that all users of a [`File`] share.
struct FileAt<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Reads a range of a file into page-aligned memory of this process. Memory that does not suffice is an error.
pub(crate) fn read(file: &File, range: &Range<u64>) -> io::Result<Mmap> {
    let too_large = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    let size = usize::try_from(range.end - range.start).map_err(too_large)?;
    // A file that is shorter must not reserve memory that it does not fill.
    if file.metadata()?.len() < range.end {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut memory = MmapMut::map_anon(size)?;
    file.read_exact_at(&mut memory, range.start)?;
    memory.make_read_only()
}

/// Maps a file, or the part of it that `options` name. The one mapping constructor of the runtime.
///
/// # Safety
/// While the mapping exists, no process may write to the file or truncate it: reads would differ, or end the process with a
/// signal. The mapping is read-only, so that it does neither itself.
#[allow(unsafe_code, reason = "a file mapping has no safe constructor")]
pub(crate) unsafe fn map(file: &File, options: &MmapOptions) -> io::Result<Mmap> {
    // SAFETY: the caller's promise is the one that the call demands.
    unsafe { options.map(file) }
}
