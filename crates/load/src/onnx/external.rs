//! External data: tensors that a model keeps in other files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::{Component, Path};

/// Source of a model's external data.
///
/// Implemented for a [`Directory`] and for a map from locations to bytes in memory.
pub trait ExternalData {
    /// Reads `length` bytes from `offset` on in the file `location`, a path relative to the model.
    ///
    /// `location`, `offset` and `length` come from the model and are not trusted.
    ///
    /// # Errors
    /// If there is no such file, or if it is shorter than `offset + length`.
    fn read(&self, location: &str, offset: u64, length: u64) -> Result<Vec<u8>>;
}

/// External data in the directory of a model file. Files outside the directory are refused.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'a>(pub &'a Path);

impl ExternalData for Directory<'_> {
    fn read(&self, location: &str, offset: u64, length: u64) -> Result<Vec<u8>> {
        let outside = || Error::new(ErrorKind::PermissionDenied, "the path leaves the directory of the model");
        let relative = Path::new(location);
        let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(is_inside) {
            return Err(outside());
        }
        // A symbolic link may also lead out of the directory.
        let path = self.0.join(relative).canonicalize()?;
        if !path.starts_with(self.0.canonicalize()?) {
            return Err(outside());
        }
        let mut file = File::open(path)?;
        // Checked before memory is allocated.
        check_length(file.metadata()?.len(), offset, length)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl<B: AsRef<[u8]>> ExternalData for BTreeMap<String, B> {
    fn read(&self, location: &str, offset: u64, length: u64) -> Result<Vec<u8>> {
        let missing = || Error::new(ErrorKind::NotFound, "no external data is given for this location");
        let bytes = self.get(location).ok_or_else(missing)?.as_ref();
        check_length(bytes.len() as u64, offset, length)?;
        Ok(bytes[offset as usize..][..length as usize].to_vec())
    }
}

fn check_length(file_bytes: u64, offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length).is_some_and(|end| end <= file_bytes) {
        true => Ok(()),
        false => {
            let reason = format!("{length} bytes at offset {offset} are required, but the file has {file_bytes} bytes");
            Err(Error::new(ErrorKind::UnexpectedEof, reason))
        }
    }
}
