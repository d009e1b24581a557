//! `prestow`: the command line of the compiler. `cargo xtask compile` builds it and runs it.
//!
//! Exit code 0: done. 1: the answer is no (buffers that do not fit, plans that differ). 2: bad use or bad input.

mod cli;
mod commands;
mod coverage;
mod device;
mod dump;
mod flags;
mod progress;
mod reference;
mod remedy;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches;

use cli::{Cli, Command};
use commands::{Answer, arena, compile, completions, diff, export, models, profile, target, what_if};

fn main() -> ExitCode {
    // Help and version exit with 0, bad use with 2.
    let parsed = cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    match run(parsed.unwrap_or_else(|error| error.exit())) {
        Ok(Answer { text, yes }) => {
            // A closed pipe is not an error: its reader has seen enough.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::from(u8::from(!yes))
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> Result<Answer, String> {
    let Some(command) = cli.command else { return Ok(cli::command().render_help().to_string().into()) };
    match command {
        Command::Compile(args) => compile::run(&args).map(Answer::from),
        Command::Models(args) => Ok(models::run(&args).into()),
        Command::Export(args) => export::run(&args).map(Answer::from),
        Command::WhatIf(args) => what_if::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Arena(args) => arena::run(&args),
        Command::Profile(action) => profile::run(&action),
        Command::Target(action) => target::run(&action).map(Answer::from),
        Command::Completions(args) => Ok(completions::run(&args).into()),
        Command::Version => Ok(format!("prestow {}\n", env!("CARGO_PKG_VERSION")).into()),
        Command::Reference => reference::markdown().map(Answer::from),
    }
}
