//! Files that a program must not overwrite.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, Metadata};
use std::io::{self, Error, ErrorKind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::FileError;

/// Device and inode of the regular files that must stay, with the kind of each; `None` until [`protect_inputs`] is called.
static INPUTS: Mutex<Option<BTreeMap<(u64, u64), &'static str>>> = Mutex::new(None);

/// From now on, writing refuses to replace a regular file that this process has read through this crate, and the file of the
/// running program: a model, weights, a table or an executable cannot be lost by naming it as the output. For programs; a
/// library leaves the choice to its caller.
///
/// ```standalone_crate
/// use prestow_files::{check_output, protect_inputs, read, write};
///
/// let path = std::env::temp_dir().join(format!("prestow-input-{}", std::process::id()));
/// write(&path, b"weights").unwrap();
/// protect_inputs();
/// read(&path, types::Bytes(100)).unwrap();
/// assert!(check_output(&path).is_err());
/// assert!(write(&path, b"other").unwrap_err().to_string().ends_with("it is an input; name another output"));
/// assert_eq!(std::fs::read(&path).unwrap(), b"weights");
/// # std::fs::remove_file(path).unwrap();
/// ```
pub fn protect_inputs() {
    INPUTS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    if let Ok(own) = env::current_exe().and_then(fs::metadata) {
        note(&own, "the running program");
    }
}

/// Refuses an output that is one of the inputs so far, before work begins whose result cannot be written.
///
/// # Errors
/// The refusal.
pub fn check_output(path: &Path) -> Result<(), FileError> {
    refuse_input(path).map_err(|error| FileError::new("write", path, error))
}

/// From now on, writing refuses to replace this file, which the process has written: two outputs of one command are two
/// files. Without effect before [`protect_inputs`].
pub fn protect_output(path: &Path) {
    if let Ok(found) = fs::metadata(path) {
        note(&found, "another output");
    }
}

/// Notes a file that is being read.
pub(crate) fn note_input(found: &Metadata) {
    note(found, "an input");
}

fn note(found: &Metadata, kind: &'static str) {
    if let (Some(inputs), Some(identity)) =
        (&mut *INPUTS.lock().unwrap_or_else(PoisonError::into_inner), identity(found))
    {
        inputs.entry(identity).or_insert(kind);
    }
}

/// Refuses to write to a file that was read, and to the running program.
pub(crate) fn refuse_input(path: &Path) -> io::Result<()> {
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(inputs), Ok(found)) = (&*inputs, fs::metadata(path)) else { return Ok(()) };
    match identity(&found).and_then(|identity| inputs.get(&identity)) {
        Some(kind) => Err(Error::new(ErrorKind::InvalidInput, format!("it is {kind}; name another output"))),
        None => Ok(()),
    }
}

/// Device and inode of a regular file. A device or a FIFO is not lost by writing to it.
#[cfg(unix)]
pub(crate) fn identity(found: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    found.is_file().then(|| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}
