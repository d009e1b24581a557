//! Zip archives: NumPy's `.npz` and PyTorch's newer `.pth`.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use types::Tensor;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::{Budget, FormatError, npy, pth};

/// An archive in memory.
pub(super) struct Archive<'a>(ZipArchive<Cursor<&'a [u8]>>);

impl<'a> Archive<'a> {
    fn open(bytes: &'a [u8]) -> Result<Archive<'a>, FormatError> {
        ZipArchive::new(Cursor::new(bytes)).map(Archive).map_err(refused)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.file_names().map(str::to_string).collect();
        names.sort();
        names
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.file_names().any(|other| other == name)
    }

    /// The content of an entry. The budget limits it, not the size in the archive's directory.
    pub(super) fn entry(&mut self, name: &str, budget: &mut Budget) -> Result<Vec<u8>, FormatError> {
        let entry = self.0.by_name(name).map_err(|error| match error {
            ZipError::FileNotFound => FormatError::Content(format!("entry `{name}` is missing in the archive")),
            other => refused(other),
        })?;
        let mut content = vec![];
        let inflated = entry.take(budget.left().saturating_add(1)).read_to_end(&mut content);
        inflated.map_err(|error| FormatError::Zip(error.to_string()))?;
        budget.take(content.len() as u64)?;
        Ok(content)
    }
}

fn refused(error: ZipError) -> FormatError {
    FormatError::Zip(error.to_string())
}

/// Reads either kind, detected by the names of the entries.
pub(super) fn read(bytes: &[u8], budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut archive = Archive::open(bytes)?;
    let names = archive.names();
    let is_pickle = |name: &&String| *name == "data.pkl" || name.ends_with("/data.pkl");
    if let Some(name) = names.iter().find(is_pickle) {
        return pth::read_archive(&mut archive, name.trim_end_matches("data.pkl"), budget);
    }
    let mut tensors = BTreeMap::new();
    for entry in names.iter().filter(|name| name.ends_with(".npy")) {
        let content = archive.entry(entry, budget)?;
        budget.take(content.len() as u64)?;
        let tensor = npy::read(&content).map_err(|error| FormatError::Npy { entry: entry.clone(), error })?;
        tensors.insert(entry.trim_end_matches(".npy").to_string(), tensor);
    }
    match names.iter().any(|name| name.ends_with(".npy")) {
        true => Ok(tensors),
        false => Err(FormatError::Unknown),
    }
}
