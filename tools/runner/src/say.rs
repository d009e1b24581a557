//! Printing that survives a closed pipe: whoever stops reading has read enough.

use std::io::Write;

/// Prints to standard output as it is.
pub(crate) fn out(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Prints an error to standard error.
pub(crate) fn error(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {message}");
}

/// Prints what a user should know, and can do nothing about here, to standard error.
pub(crate) fn note(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "note: {message}");
}
