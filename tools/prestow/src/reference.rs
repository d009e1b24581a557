//! `docs/reference/cli.md`: the help of every command, written by `prestow reference`.
//!
//! `cargo xtask COMMAND --help` prints a command's block of that file, so that it needs no build.

use std::fmt::Write as _;

use crate::cli;

const HEAD: &str = "\
# Command line

Written by `prestow reference`; a test compares. `cargo xtask COMMAND` builds `prestow` and runs it; the flags are the same.

Exit codes: 0 done; 1 the answer is no (plan and actual differ, two plans differ, something does not fit); 2 bad use or bad input.
";

/// The whole file.
pub(crate) fn markdown() -> String {
    let mut text = HEAD.to_string();
    add(&mut text, &cli::command(), "");
    text
}

/// A section for a command, then those of its subcommands.
fn add(text: &mut String, command: &clap::Command, parent: &str) {
    let name = format!("{parent}{}", command.get_name());
    let help = command.clone().render_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for own in command.get_subcommands().filter(|own| !own.is_hide_set() && own.get_name() != "help") {
        add(text, own, &format!("{name} "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == markdown(),
            "docs/reference/cli.md is stale; write it: target/release/prestow reference > docs/reference/cli.md"
        );
    }
}
