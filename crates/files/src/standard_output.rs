//! Standard output: the results of a command, and sometimes also a file that the command writes.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a file was written to standard output, as by `-o /dev/stdout`.
static HAS_FILE: AtomicBool = AtomicBool::new(false);

/// Prints to standard output. If an output of this process was written there, prints to standard error instead: text behind
/// the bytes of a file would damage it.
///
/// # Errors
/// Those of the system, for instance of a full disk. A closed pipe is no error: its reader has seen enough.
pub fn print(text: &str) -> io::Result<()> {
    let mut stream: Box<dyn Write> = match HAS_FILE.load(Ordering::Relaxed) {
        true => Box::new(io::stderr().lock()),
        false => Box::new(io::stdout().lock()),
    };
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Notes that a file is written to `found`, which may be standard output.
#[cfg(unix)]
pub(crate) fn note_output(found: &Metadata) {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    // A terminal and the null device are damaged by no text.
    if found.file_type().is_char_device() {
        return;
    }
    let is_same = |own: Metadata| (own.dev(), own.ino()) == (found.dev(), found.ino());
    if standard_output().and_then(|own| own.metadata()).is_ok_and(is_same) {
        HAS_FILE.store(true, Ordering::Relaxed);
    }
}

#[cfg(not(unix))]
pub(crate) fn note_output(_: &Metadata) {}

/// A descriptor of its own for standard output.
#[cfg(unix)]
fn standard_output() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}
