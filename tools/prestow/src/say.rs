//! Printing: the one place where text reaches the terminal. Names in it come from models.

use std::io::Write;

/// Prints the result of a command.
///
/// # Errors
/// Standard output cannot be written, for instance to a full disk. A closed pipe is no error: its reader has seen enough.
pub(crate) fn out(text: &str) -> Result<(), String> {
    files::print(&report::printable(text)).map_err(unwritable)
}

/// The help, the version or the error that clap made of the arguments, and the exit code.
///
/// # Errors
/// As [`out`].
pub(crate) fn usage(message: &clap::Error) -> Result<i32, String> {
    // An error quotes the arguments.
    let text = message.render().to_string();
    match message.use_stderr() {
        true => {
            let _ = write!(std::io::stderr().lock(), "{}", report::printable(&text));
        }
        false => out(&text)?,
    }
    Ok(message.exit_code())
}

fn unwritable(failure: std::io::Error) -> String {
    format!("cannot write to standard output: {failure}")
}

/// Prints a line to standard error.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", report::printable(text));
}

/// Prints an error.
pub(crate) fn error(message: &str) {
    line(&format!("error: {}", report::printable_message(message)));
}

/// Prints a note.
pub(crate) fn note(message: &str) {
    line(&format!("note: {message}"));
}
