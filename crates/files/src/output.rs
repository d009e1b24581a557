//! Writing: complete files or none.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Error, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::FileError;
use crate::input::is_same;
use crate::protect::refuse_input;
use crate::standard_output::note_output;

/// The permissions of a new file, before the process's umask is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Readable and writable. A file that is replaced hands on its permissions.
    Data,
    /// Executable as well.
    Program,
}

/// Writes one data file, as [`write_with`] does.
///
/// # Errors
/// Those of the file system; then a file that existed is unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_with(path, Kind::Data, |file| file.write_all(bytes))
}

/// Writes one file. Missing folders are made. A regular file is replaced when the new one is complete and on disk, also
/// while it runs; anything else that exists at `path` is written through.
///
/// # Errors
/// Those of the file system and of `write`; then a file that existed is unchanged.
pub fn write_with(path: &Path, kind: Kind, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), FileError> {
    let written = begin(path, kind).and_then(|mut output| {
        write(output.file())?;
        output.flush()?;
        output.publish()
    });
    written.map_err(|error| FileError::new("write", path, error))
}

/// Writes all data files or none: none is replaced before every one is complete. Only a failure between two renames can
/// leave some of them.
///
/// # Errors
/// Those of the file system, for the first file that fails; two paths that name one file.
pub fn write_all(files: &[(PathBuf, Vec<u8>)]) -> Result<(), FileError> {
    let mut outputs = Vec::with_capacity(files.len());
    let mut places = BTreeSet::new();
    for (path, bytes) in files {
        let begun = begin(path, Kind::Data).and_then(|mut output| {
            if let Output::Replace(temporary) = &output
                && !places.insert(temporary.place()?)
            {
                return Err(Error::new(ErrorKind::InvalidInput, "another output has this path; name two files"));
            }
            output.file().write_all(bytes)?;
            output.flush()?;
            Ok(output)
        });
        outputs.push((path, begun.map_err(|error| FileError::new("write", path, error))?));
    }
    for (path, output) in outputs {
        output.publish().map_err(|error| FileError::new("write", path, error))?;
    }
    Ok(())
}

/// Whether two outputs would be one file, existing or not. False for devices and FIFOs, which are written through.
pub fn is_same_output(left: &Path, right: &Path) -> bool {
    let is_special = |path: &Path| fs::metadata(path).is_ok_and(|found| !found.is_file());
    if is_special(left) || is_special(right) {
        return false;
    }
    is_same(left, right) || matches!((future_place(left), future_place(right)), (Ok(left), Ok(right)) if left == right)
}

/// Where a file will be, the same for every path to it; folders on the way may be missing.
fn future_place(path: &Path) -> io::Result<PathBuf> {
    let path = link_target(path)?;
    let folder = folder_of(&path);
    let made = folder.ancestors().find(|ancestor| !ancestor.as_os_str().is_empty() && ancestor.exists());
    let made = made.unwrap_or(Path::new("."));
    let missing = path.strip_prefix(made).unwrap_or(&path);
    Ok(fs::canonicalize(made)?.join(missing))
}

/// A file being written.
enum Output {
    /// A device, FIFO or socket.
    Through(File),
    /// A temporary file that will be renamed.
    Replace(Temporary),
}

fn begin(path: &Path, kind: Kind) -> io::Result<Output> {
    refuse_input(path)?;
    let found = fs::metadata(path);
    if let Ok(found) = &found {
        note_output(found);
    }
    match found {
        Ok(found) if found.is_dir() => Err(Error::new(ErrorKind::IsADirectory, "it is a folder")),
        Ok(found) if !found.is_file() => Ok(Output::Through(OpenOptions::new().write(true).open(path)?)),
        Ok(found) => {
            let temporary = Temporary::create(fs::canonicalize(path)?, kind)?;
            if kind == Kind::Data {
                temporary.file.set_permissions(found.permissions())?;
            }
            Ok(Output::Replace(temporary))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(Output::Replace(Temporary::create(link_target(path)?, kind)?))
        }
        Err(error) => Err(error),
    }
}

/// The path that a chain of symbolic links without a file at its end names.
fn link_target(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    // Linux follows at most 40 links.
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(Error::new(ErrorKind::InvalidInput, "too many symbolic links"))
}

impl Output {
    fn file(&mut self) -> &mut File {
        match self {
            Output::Through(file) => file,
            Output::Replace(temporary) => &mut temporary.file,
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self {
            Output::Through(_) => Ok(()),
            Output::Replace(temporary) => temporary.file.sync_all(),
        }
    }

    fn publish(self) -> io::Result<()> {
        match self {
            Output::Through(_) => Ok(()),
            Output::Replace(temporary) => temporary.rename(),
        }
    }
}

/// A temporary file in the folder of its destination. It is removed unless it was renamed; one that a killed process left
/// behind is removed by the next write to the same folder. The process that writes it holds a lock on it, which tells the
/// two apart.
struct Temporary {
    file: File,
    path: PathBuf,
    destination: PathBuf,
    renamed: bool,
}

/// How the names of temporary files begin and end: short, since the destination's name may have the longest length that
/// the file system allows.
const PREFIX: &str = ".prestow-";
const SUFFIX: &str = ".part";

impl Temporary {
    fn create(destination: PathBuf, kind: Kind) -> io::Result<Temporary> {
        if destination.file_name().is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "it does not end in the name of a file"));
        }
        let folder = folder_of(&destination);
        fs::create_dir_all(folder)?;
        remove_abandoned(folder);
        loop {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{PREFIX}{}-{count}{SUFFIX}", std::process::id()));
            let file = match new_file(kind).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // A file system without locks has no owner to protect either: abandoned files then stay.
            let _ = file.try_lock();
            // Between creation and lock another process may have taken the file for an abandoned one.
            // An error of the question is no answer: the file counts as there, so that it is removed in the end.
            if path.try_exists().unwrap_or(true) {
                return Ok(Temporary { file, path, destination, renamed: false });
            }
        }
    }

    /// The destination, the same for every path to it.
    fn place(&self) -> io::Result<PathBuf> {
        let name = self.destination.file_name().unwrap_or_default();
        Ok(fs::canonicalize(folder_of(&self.destination))?.join(name))
    }

    fn rename(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.destination)?;
        self.renamed = true;
        // The rename is durable when its folder is. Some file systems cannot flush folders; the file is whole either way.
        if let Ok(folder) = File::open(folder_of(&self.destination)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn new_file(kind: Kind) -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(match kind {
        Kind::Data => 0o666,
        Kind::Program => 0o777,
    });
    options
}

#[cfg(not(unix))]
fn new_file(_: Kind) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    options
}

/// Removes temporary files whose process is gone. Failures leave a file that a later write removes.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_temporary = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_temporary
            && is_file
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}
