//! `prestow completions SHELL`: a script that completes commands and flags.

use clap_complete::Shell;

use crate::cli;

/// Flags of `prestow completions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell; `prestow completions bash > ~/.local/share/bash-completion/completions/prestow` installs one.
    shell: Shell,
}

/// The script.
pub(crate) fn run(args: &Args) -> String {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "prestow", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
