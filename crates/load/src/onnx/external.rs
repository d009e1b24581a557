//! External data: tensors that a model keeps in other files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Take};
use std::path::{Component, Path};

/// Source of a model's external data.
///
/// Implemented for a [`Directory`] and for a map from locations to bytes in memory.
pub trait ExternalData {
    /// `length` bytes from `offset` on in the file `location`, a path relative to the model.
    ///
    /// `location`, `offset` and `length` come from the model and are not trusted.
    ///
    /// # Errors
    /// If there is no such file, or if it is shorter than `offset + length`.
    fn open(&self, location: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>>;
}

/// External data in the directory of a model file. Files outside the directory are refused.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'a>(pub &'a Path);

impl ExternalData for Directory<'_> {
    fn open(&self, location: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>> {
        Ok(Box::new(open_in(self.0, location, offset, length)?))
    }
}

/// Opens a part of a file in a folder.
pub(super) fn open_in(folder: &Path, location: &str, offset: u64, length: u64) -> Result<Take<File>> {
    let outside = || Error::new(ErrorKind::PermissionDenied, "the path leaves the directory of the model");
    let relative = Path::new(location);
    let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || !relative.components().all(is_inside) {
        return Err(outside());
    }
    // The directory of a bare file name is empty, which no system call accepts.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // A symbolic link may also lead out of the directory.
    let path = folder.join(relative).canonicalize()?;
    if !path.starts_with(folder.canonicalize()?) {
        return Err(outside());
    }
    let mut file = files::open_regular(&path).map_err(|failed| failed.error)?;
    // Checked before memory is allocated.
    check_length(file.metadata()?.len(), offset, length)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.take(length))
}

impl<B: AsRef<[u8]>> ExternalData for BTreeMap<String, B> {
    fn open(&self, location: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>> {
        let missing = || Error::new(ErrorKind::NotFound, "no external data is given for this location");
        let bytes = self.get(location).ok_or_else(missing)?.as_ref();
        check_length(bytes.len() as u64, offset, length)?;
        Ok(Box::new(&bytes[offset as usize..][..length as usize]))
    }
}

pub(super) fn check_length(file_bytes: u64, offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length).is_some_and(|end| end <= file_bytes) {
        true => Ok(()),
        false => {
            let reason = format!("{length} bytes at offset {offset} are required, but the file has {file_bytes} bytes");
            Err(Error::new(ErrorKind::UnexpectedEof, reason))
        }
    }
}
