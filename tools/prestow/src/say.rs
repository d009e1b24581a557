//! Printing: the one place where text reaches the terminal. Names in it come from models.

use std::io::{ErrorKind, Write};

/// Prints the result of a command.
///
/// # Errors
/// Standard output cannot be written, for instance to a full disk. A closed pipe is no error: its reader has seen enough.
pub(crate) fn out(text: &str) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(report::printable(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(failure) if failure.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {failure}"))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", report::printable(text));
}

/// Prints an error.
pub(crate) fn error(message: &str) {
    line(&format!("error: {message}"));
}

/// Prints a note.
pub(crate) fn note(message: &str) {
    line(&format!("note: {message}"));
}
