//! `cargo xtask compile`: builds the compiler and the runner, then hands the words on.

use std::process::Command;

use crate::{cargo, check, target};

pub(crate) fn run(command: &str, words: &[String]) -> Result<u8, String> {
    check("the build", cargo().args(["build", "--quiet", "--release", "-p", "prestow-cli", "-p", "prestow-runner"]))?;
    let mut prestow = Command::new(target().join("release/prestow"));
    prestow.arg(command).args(words);
    let status = prestow.status().map_err(|error| format!("cannot run {prestow:?}: {error}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
}
