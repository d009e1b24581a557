//! Reading within limits.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use types::Bytes;

use crate::FileError;
use crate::protect::{identity, note_input};

/// Reads a file, a pipe or a device to its end.
///
/// # Errors
/// Those of the file system; more than `limit` bytes.
pub fn read(path: &Path, limit: Bytes) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(|error| FileError::new("read", path, error))?;
    read_open(path, file, limit)
}

/// As [`read()`], for a regular file only: to read a FIFO without a writer would wait for one.
///
/// # Errors
/// As [`read()`]; a folder, FIFO, device or socket.
pub fn read_regular(path: &Path, limit: Bytes) -> Result<Vec<u8>, FileError> {
    read_open(path, open_regular(path)?, limit)
}

fn read_open(path: &Path, file: File, limit: Bytes) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::new("read", path, error);
    let found = file.metadata().map_err(failed)?;
    note_input(&found);
    let size = found.len();
    if limit.0 < size {
        return Err(failed(too_long(Bytes(size), limit)));
    }
    let mut bytes = Vec::new();
    // The length that the system states is a hint only: it is 0 for pipes and devices.
    let size = usize::try_from(size).map_err(|error| failed(io::Error::other(error)))?;
    bytes.try_reserve_exact(size).map_err(|error| failed(io::Error::other(error)))?;
    file.take(limit.0.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if limit.0 < bytes.len() as u64 {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit}"))));
    }
    Ok(bytes)
}

fn too_long(size: Bytes, limit: Bytes) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {size}, the limit is {limit}"))
}

/// Opens a regular file for reading.
///
/// # Errors
/// Those of the file system; a folder, FIFO, device or socket.
pub fn open_regular(path: &Path) -> Result<File, FileError> {
    let failed = |error| FileError::new("read", path, error);
    // Before opening: to open a FIFO waits for its writer.
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    note_input(&found);
    File::open(path).map_err(failed)
}

/// [`read()`] for text.
///
/// # Errors
/// As [`read()`]; bytes that are not UTF-8.
pub fn read_text(path: &Path, limit: Bytes) -> Result<String, FileError> {
    let bytes = read(path, limit)?;
    String::from_utf8(bytes)
        .map_err(|_| FileError::new("read", path, io::Error::new(io::ErrorKind::InvalidData, "it must be UTF-8 text")))
}

/// Whether two paths name one regular file, by links or by another spelling of the path. False if either does not exist;
/// [`crate::is_same_output`] is for files to be written.
pub fn is_same(left: &Path, right: &Path) -> bool {
    let (Ok(left), Ok(right)) = (fs::metadata(left), fs::metadata(right)) else { return false };
    identity(&left).is_some_and(|own| Some(own) == identity(&right))
}
