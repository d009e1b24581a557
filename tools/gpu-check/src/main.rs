//! `prestow-gpu-check`: checks operators and networks on the GPU at hand: results, memory and speed. `cargo xtask gpu-check`
//! builds it and calls it; `docs/guide/gpu-check.md` explains its output.
//!
//! Exit code 0: everything is right; 1: something is wrong; 2: bad use, or no GPU.

mod arguments;
mod baselines;
mod check;
mod code_model;
mod machine_code;
mod networks;
mod operators;
mod output;
mod peaks;
mod rows;
mod training;
mod trials;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use arguments::Settings;
use clap::Parser;

fn main() -> ExitCode {
    files::fail_above_size_limit();
    let arguments = match arguments::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => return usage(&message),
    };
    let run =
        |settings: Settings| if settings.machine_code { code_model::run(&settings) } else { check::run(&settings) };
    match arguments.resolve().and_then(run) {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(error) => {
            output::progress(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Prints the help, the version or the error that clap made of the arguments.
fn usage(message: &clap::Error) -> ExitCode {
    match message.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            output::progress(&format!("error: cannot write to standard output: {error}"));
            ExitCode::from(2)
        }
        _ => ExitCode::from(message.exit_code() as u8),
    }
}
