//! Printing: the one place where text reaches the terminal. Names in it come from models. A closed pipe is ignored.

use std::io::Write;

use report::{printable, printable_message};

/// Prints to standard output. If that fails, for instance on a full disk, the process ends with exit code 2.
pub(crate) fn out(text: &str) {
    if let Err(failure) = files::print(&printable(text)) {
        error(&format!("cannot write to standard output: {failure}"));
        std::process::exit(2)
    }
}

/// Prints an error to standard error.
pub(crate) fn error(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {}", printable_message(message));
}

/// Prints a line about work that goes on to standard error.
pub(crate) fn progress(line: &str) {
    let _ = write!(std::io::stderr().lock(), "{line}");
}

/// Prints a note to standard error.
pub(crate) fn note(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "note: {}", printable(message));
}
