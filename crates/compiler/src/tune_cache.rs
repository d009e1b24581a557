//! Files of tuning results, one row per layer.

use std::path::{Path, PathBuf};

/// Result of tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuneOutcome {
    /// Layers that were measured.
    pub measured: usize,
    /// Layers whose results were in the file.
    pub known: usize,
    /// Layers whose algorithm differs from the default.
    pub changed: usize,
    /// The file of results.
    pub cache: PathBuf,
}

/// The default path of a file of tuning results: in the user's cache folder. `None` if there is no home directory.
pub fn default_tune_cache(file: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("prestow").join(file))
}

/// Reads the rows of a file of tuning results. A missing file has no rows.
///
/// # Errors
/// The file cannot be read, or `parse` rejects a line.
pub fn read_tune_rows<R>(path: &Path, parse: impl Fn(&str) -> Option<R>) -> Result<Vec<R>, String> {
    // Before opening: to open a FIFO waits for its writer.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(format!("cannot read `{}`: it is not a regular file", path.display()));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot read `{}`: {error}", path.display())),
    };
    let rows = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    rows.map(|(ix, line)| {
        parse(line).ok_or_else(|| {
            let path = path.display();
            format!("`{path}`, line {}: not a row of choices; remove the line or the file, or name another", ix + 1)
        })
    })
    .collect()
}
