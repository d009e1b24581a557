//! Printing that ignores a closed pipe.

use std::io::{ErrorKind, Write};

/// Prints to standard output. If that fails, for instance on a full disk, the process ends with exit code 2.
pub(crate) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(failure) if failure.kind() != ErrorKind::BrokenPipe => {
            error(&format!("cannot write to standard output: {failure}"));
            std::process::exit(2)
        }
        _ => {}
    }
}

/// Prints an error to standard error.
pub(crate) fn error(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {message}");
}

/// Prints a note to standard error.
pub(crate) fn note(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "note: {message}");
}
