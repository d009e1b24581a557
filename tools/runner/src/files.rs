//! Files that are written whole or not at all.

use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};

/// Writes all of the files or none: under other names first, which become theirs when every one is complete. Only a rename
/// that fails behind others leaves some.
///
/// Folders that are missing are made.
pub(crate) fn write_all(files: &[(PathBuf, Vec<u8>)]) -> Result<(), String> {
    let parts: Vec<PathBuf> = files.iter().map(|(path, _)| part_path(path)).collect();
    let outcome = write_parts(files, &parts);
    if outcome.is_err() {
        // What was begun is not left behind; that it may not have been begun is no further error.
        parts.iter().for_each(|part| drop(fs::remove_file(part)));
    }
    outcome
}

fn write_parts(files: &[(PathBuf, Vec<u8>)], parts: &[PathBuf]) -> Result<(), String> {
    let failed = |path: &Path, error: Error| format!("cannot write `{}`: {error}", path.display());
    for ((path, bytes), part) in files.iter().zip(parts) {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(|error| failed(path, error))?;
        }
        fs::write(part, bytes).map_err(|error| failed(path, error))?;
    }
    let mut renames = files.iter().zip(parts);
    renames.try_for_each(|((path, _), part)| fs::rename(part, path).map_err(|error| failed(path, error)))
}

/// Beside the file, hidden, and of this process alone.
fn part_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}
