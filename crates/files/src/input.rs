//! Reading within limits.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use types::Bytes;

use crate::FileError;

/// Reads a file, a pipe or a device to its end.
///
/// # Errors
/// Those of the file system; more than `limit` bytes.
pub fn read(path: &Path, limit: Bytes) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::new("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    if limit.0 < size {
        return Err(failed(too_long(Bytes(size), limit)));
    }
    let mut bytes = Vec::new();
    // The length that the system states is a hint only: it is 0 for pipes and devices.
    bytes.try_reserve_exact(size as usize).map_err(|error| failed(io::Error::other(error)))?;
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
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    File::open(path).map_err(failed)
}

/// Whether two paths name one file, by links or by another spelling of the path. False if either does not exist.
pub fn is_same(left: &Path, right: &Path) -> bool {
    let (Ok(left), Ok(right)) = (fs::metadata(left), fs::metadata(right)) else { return false };
    same_identity(&left, &right)
}

#[cfg(unix)]
fn same_identity(left: &fs::Metadata, right: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (left.dev(), left.ino()) == (right.dev(), right.ino())
}

#[cfg(not(unix))]
fn same_identity(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}
