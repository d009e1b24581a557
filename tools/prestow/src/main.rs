//! `prestow`: the command line of the compiler. `cargo xtask compile` builds it and calls it.
//!
//! Exit code 0: done; 1: the answer is no (buffers that do not fit, plans that differ); 2: bad use or bad input.

mod arena;
mod arguments;
mod compile;
mod device;
mod diff;
mod dump;
mod export;
mod profiles;
mod record;
mod tune;
mod what_if;

use std::io::Write;
use std::process::ExitCode;

use arguments::Command;

/// What is printed, and whether the answer is yes.
struct Answer {
    text: String,
    yes: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, yes: true }
    }
}

fn main() -> ExitCode {
    let outcome = arguments::parse(lexopt::Parser::from_env()).and_then(|command| match command {
        Command::Compile(request) => compile::compile(&request).map(Answer::from),
        Command::Export(request) => export::export(&request).map(Answer::from),
        Command::Models { json } => Ok(compile::models(json).into()),
        Command::Arena(request) => arena::arena(&request),
        Command::Diff(request) => diff::diff(&request),
        Command::WhatIf(request) => what_if::what_if(&request),
        Command::Profile(request) => profiles::profile(&request),
        Command::Record(request) => record::record(&request).map(Answer::from),
        Command::Help => Ok(arguments::HELP.join(report::Request::HELP).into()),
        Command::Version => Ok(format!("prestow {}\n", env!("CARGO_PKG_VERSION")).into()),
    });
    match outcome {
        Ok(Answer { text, yes }) => {
            // Whoever closes the pipe has read enough.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::from(u8::from(!yes))
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::from(2)
        }
    }
}
