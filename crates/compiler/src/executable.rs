//! [`write_executable`]: a compiled model behind a runner, as one file that runs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Compiled;

/// Why there is no executable.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{path}`: {error}")]
pub struct WriteError {
    /// The file.
    pub path: String,
    /// What the system says.
    pub error: std::io::Error,
}

/// Writes an executable: whole or not at all. The file appears under its name when it is complete; one that was there is
/// replaced, also while it runs.
///
/// # Errors
/// Those of the file system.
pub fn write_executable(path: &Path, runner: &[u8], compiled: &Compiled) -> Result<(), WriteError> {
    let failed = |error| WriteError { path: path.display().to_string(), error };
    let part = part_path(path);
    let written = write_part(&part, runner, compiled).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written.map_err(failed)
}

fn part_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn write_part(part: &Path, runner: &[u8], compiled: &Compiled) -> std::io::Result<()> {
    if let Some(directory) = part.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let mut file = BufWriter::new(File::create(part)?);
    plan::image::write(&mut file, runner, &compiled.plan, &compiled.constants)?;
    file.flush()?;
    make_executable(&file.into_inner().map_err(std::io::IntoInnerError::into_error)?)
}

#[cfg(unix)]
fn make_executable(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &File) -> std::io::Result<()> {
    Ok(())
}
