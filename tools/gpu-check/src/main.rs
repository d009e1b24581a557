//! `prestow-gpu-check`: checks operators and networks on the GPU at hand: results, memory and speed. `cargo xtask gpu-check`
//! builds it and calls it; `docs/guide/gpu-check.md` explains its output.
//!
//! Exit code 0: everything is right; 1: something is wrong; 2: bad use, or no GPU.

mod arguments;
mod baselines;
mod check;
mod networks;
mod operators;
mod output;
mod peaks;
mod rows;
mod trials;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match arguments::Arguments::parse().resolve().and_then(|settings| check::run(&settings)) {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
