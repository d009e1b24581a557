//! Files that are whole or not there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{path}`: {error}")]
pub struct WriteError {
    /// The file.
    pub path: String,
    /// What the system says.
    pub error: std::io::Error,
}

/// Writes a file whole or not at all: under another name first, so that it appears under its own when it is complete. One
/// that was there is replaced; folders that are missing are made.
///
/// # Errors
/// Those of the file system, and of `write`.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), WriteError> {
    let part = part_path(path);
    let written = write_part(&part, write).and_then(|()| fs::rename(&part, path));
    written.map_err(|error| {
        // What was begun is not left behind; that it may not have been begun is no further error.
        let _ = fs::remove_file(&part);
        WriteError { path: path.display().to_string(), error }
    })
}

fn part_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn write_part(part: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> std::io::Result<()> {
    if let Some(directory) = part.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    write(&mut File::create(part)?)
}
