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
mod say;
mod tune;

use std::process::ExitCode;

use clap::FromArgMatches;
use runtime::heap::{self, CountingAllocator};

use cli::{Cli, Command};
use commands::{
    Answer, arena, benchmark, compile, completions, diff, experiment, export, im2rec, models, profile, target, what_if,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    heap::exit_if_exhausted();
    files::fail_above_size_limit();
    files::protect_inputs();
    // Help and version exit with 0, bad use with 2.
    let parsed = cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let code = match parsed {
        Ok(cli) => run(cli).and_then(|answer| say::out(&answer.text).map(|()| i32::from(!answer.yes))),
        Err(message) => say::usage(&message),
    };
    match code {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            say::error(&error);
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
        Command::Benchmark(args) => benchmark::run(&args),
        Command::Experiment(action) => experiment::run(&action),
        Command::Im2rec(args) => im2rec::run(&args).map(Answer::from),
        Command::Target(action) => target::run(&action).map(Answer::from),
        Command::Completions(args) => Ok(completions::run(&args).into()),
        Command::Version => Ok(format!("prestow {}\n", env!("CARGO_PKG_VERSION")).into()),
        Command::Reference => reference::markdown().map(Answer::from),
    }
}
