//! Printing: the one place where text reaches the terminal. Names in it come from models. A closed pipe is ignored.

use std::io::{ErrorKind, Write};

use report::printable;

/// Prints to standard output. If that fails, for instance on a full disk, the process ends with exit code 2.
pub(crate) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(printable(text).as_bytes()).and_then(|()| stdout.flush()) {
        Err(failure) if failure.kind() != ErrorKind::BrokenPipe => {
            error(&format!("cannot write to standard output: {failure}"));
            std::process::exit(2)
        }
        _ => {}
    }
}

/// Prints an error to standard error.
pub(crate) fn error(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {}", printable(message));
}

/// Prints a line about work that goes on to standard error.
pub(crate) fn progress(line: &str) {
    let _ = write!(std::io::stderr().lock(), "{line}");
}

/// Prints a note to standard error.
pub(crate) fn note(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "note: {}", printable(message));
}
