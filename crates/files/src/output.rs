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
                temporary.file.set_permissions(inherited(&found))?;
            }
            Ok(Output::Replace(temporary))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(Output::Replace(Temporary::create(link_target(path)?, kind)?))
        }
        Err(error) => Err(error),
    }
}

/// The permissions of a replaced file without those to run as its owner or group: they were given to the old contents.
#[cfg(unix)]
fn inherited(found: &fs::Metadata) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(found.permissions().mode() & 0o777)
}

#[cfg(not(unix))]
fn inherited(found: &fs::Metadata) -> fs::Permissions {
    found.permissions()
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

/// A temporary file in the folder of its destination. Where the file system can make a file without a name, it has a name
/// only between its completion and its rename, so that a process that is killed leaves nothing behind. Elsewhere it has one
/// from the start, is removed unless it was renamed, and one that a killed process left behind is removed by the next write
/// to the same folder. The process that writes it holds a lock on it, which tells the two apart.
struct Temporary {
    file: File,
    /// The name, if it has one.
    path: Option<PathBuf>,
    destination: PathBuf,
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
        if let Some(file) = nameless_file(folder, kind) {
            // As below: the lock is for the moment between its name and its rename.
            let _ = file.try_lock();
            return Ok(Temporary { file, path: None, destination });
        }
        loop {
            let path = new_path(folder);
            let file = match new_file(kind).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // A file system without locks has no owner to protect either: abandoned files then stay.
            let _ = file.try_lock();
            // Between creation and lock another process may have taken the file for an abandoned one.
            // An error of the question is no answer: the file counts as there, so that it is removed in the end.
            if path.try_exists().unwrap_or(true) {
                return Ok(Temporary { file, path: Some(path), destination });
            }
        }
    }

    /// The destination, the same for every path to it.
    fn place(&self) -> io::Result<PathBuf> {
        let name = self.destination.file_name().unwrap_or_default();
        Ok(fs::canonicalize(folder_of(&self.destination))?.join(name))
    }

    fn rename(mut self) -> io::Result<()> {
        while self.path.is_none() {
            let path = new_path(folder_of(&self.destination));
            match give_name(&self.file, &path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => self.path = Some(path),
            }
        }
        if let Some(path) = &self.path {
            fs::rename(path, &self.destination)?;
        }
        self.path = None;
        // The rename is durable when its folder is. Some file systems cannot flush folders; the file is whole either way.
        if let Ok(folder) = File::open(folder_of(&self.destination)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The error that led here is the one to report.
            let _ = fs::remove_file(path);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A path for a temporary file, another at every call.
fn new_path(folder: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{PREFIX}{}-{count}{SUFFIX}", std::process::id()))
}

/// A file in `folder` that has no name and is gone when it is closed; `None` if the file system has no such files, or if
/// [`give_name`] could not find it.
#[cfg(target_os = "linux")]
fn nameless_file(folder: &Path, kind: Kind) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(open(folder, flags, Mode::from_raw_mode(mode(kind))).ok()?);
    path_of(&file).exists().then_some(file)
}

#[cfg(not(target_os = "linux"))]
fn nameless_file(_: &Path, _: Kind) -> Option<File> {
    None
}

/// Gives a file of [`nameless_file`] its first name.
#[cfg(target_os = "linux")]
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    Ok(linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn give_name(_: &File, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// The path by which Linux names an open file of this process.
#[cfg(target_os = "linux")]
fn path_of(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The permissions of a new file, before the umask.
#[cfg(unix)]
fn mode(kind: Kind) -> u32 {
    match kind {
        Kind::Data => 0o666,
        Kind::Program => 0o777,
    }
}

#[cfg(unix)]
fn new_file(kind: Kind) -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode(kind));
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
