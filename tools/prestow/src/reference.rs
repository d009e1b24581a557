//! `docs/reference/cli.md`: the help of every command, written by `prestow reference`.
//!
//! `cargo xtask COMMAND --help` prints a command's block of that file, so that it needs no build.

use std::fmt::Write as _;
use std::process::Command;

use crate::cli;

const HEAD: &str = "\
# Command line

Written by `prestow reference`; a test compares. `cargo xtask COMMAND` builds `prestow` and runs it; the flags are the same.

Exit codes: 0 done; 1 the answer is no (plan and actual differ, two plans differ, something does not fit); 2 bad use or bad input.
";

/// The whole file. The help of executables comes from the runner in the folder of this program.
///
/// # Errors
/// A runner that does not start.
pub(crate) fn markdown() -> Result<String, String> {
    let mut text = HEAD.to_string();
    add(&mut text, &cli::command(), "");
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
    let runner = own.with_file_name("prestow-runner");
    for command in ["", "run", "bench", "profile", "memory", "describe"] {
        let arguments = if command.is_empty() { vec!["help"] } else { vec!["help", command] };
        let help = Command::new(&runner).args(arguments).output();
        let help = help.map_err(|error| format!("cannot run `{}`: {error}", runner.display()))?;
        section(&mut text, format!("EXE {command}").trim_end(), &String::from_utf8_lossy(&help.stdout));
    }
    Ok(text)
}

/// A heading and a block of help.
fn section(text: &mut String, name: &str, help: &str) {
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
}

/// A section for a command, then those of its subcommands.
fn add(text: &mut String, command: &clap::Command, parent: &str) {
    let name = format!("{parent}{}", command.get_name());
    let help = command.clone().render_help().to_string();
    section(text, &name, &help);
    for own in command.get_subcommands().filter(|own| !own.is_hide_set() && own.get_name() != "help") {
        add(text, own, &format!("{name} "));
    }
}
