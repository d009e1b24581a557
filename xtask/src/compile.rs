//! `cargo xtask compile`: builds the compiler and the runner, then hands the words on.

use std::process::Command;

use crate::{cargo, check, target};

pub(crate) fn run(command: &str, words: &[String]) -> Result<u8, String> {
    check("the build", cargo().args(["build", "--quiet", "--release", "-p", "prestow-cli", "-p", "prestow-runner"]))?;
    let mut prestow = Command::new(target().join("release/prestow"));
    run_program(prestow.arg(command).args(words))
}

/// Builds and runs `prestow-gpu-check`.
pub(crate) fn gpu_check(words: &[String]) -> Result<u8, String> {
    check("the build", cargo().args(["build", "--quiet", "--release", "-p", "prestow-gpu-check"]))?;
    run_program(Command::new(target().join("release/prestow-gpu-check")).args(words))
}

fn run_program(program: &mut Command) -> Result<u8, String> {
    let status = program.status().map_err(|error| format!("cannot run {program:?}: {error}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
}
