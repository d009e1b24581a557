//! `prestow`: the command line of the compiler. `cargo xtask compile` builds it and calls it.
//!
//! Exit code 0: done; 2: bad use or bad input.

mod arguments;
mod compile;
mod dump;

use std::io::Write;
use std::process::ExitCode;

use arguments::Command;

fn main() -> ExitCode {
    let outcome = arguments::parse(lexopt::Parser::from_env()).and_then(|command| match command {
        Command::Compile(request) => compile::compile(&request),
        Command::Models { json } => Ok(compile::models(json)),
        Command::Help => Ok(arguments::HELP.to_string()),
        Command::Version => Ok(format!("prestow {}\n", env!("CARGO_PKG_VERSION"))),
    });
    match outcome {
        Ok(text) => {
            // Whoever closes the pipe has read enough.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::from(2)
        }
    }
}
