//! `uprd`: the daemon that shares weights between processes, and its command line (docs/guide/weights-daemon.md).
//!
//! Exit code 0: done. 1: the answer is no (a refusal of the daemon). 2: bad use, bad input, no daemon.

mod attach;
mod cli;
mod gpu;
mod operate;
mod serve;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use share::client::ClientError;
use share::settings::{ClientSettings, DaemonSettings};

use cli::{Cli, Command};

/// The end of a command that did not succeed.
enum Failure {
    /// The daemon refused.
    No(String),
    /// Bad use, bad input, no daemon.
    Error(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Refused { .. } => Failure::No(error.to_string()),
            other => Failure::Error(other.to_string()),
        }
    }
}

fn main() -> ExitCode {
    files::fail_above_size_limit();
    files::protect_inputs();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => return usage(&message),
    };
    match run(cli) {
        Ok(text) => match files::print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => unwritable(&error),
        },
        Err(Failure::No(text)) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {text}");
            ExitCode::from(1)
        }
        Err(Failure::Error(text)) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {text}");
            ExitCode::from(2)
        }
    }
}

/// Prints the help, the version or the error that clap made of the arguments.
fn usage(message: &clap::Error) -> ExitCode {
    match message.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => unwritable(&error),
        _ => ExitCode::from(message.exit_code() as u8),
    }
}

fn unwritable(error: &std::io::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "error: cannot write to standard output: {error}");
    ExitCode::from(2)
}

fn run(cli: Cli) -> Result<String, Failure> {
    let lookup = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let is_root = rustix::process::getuid().is_root();
    let settings = DaemonSettings::read(&lookup, env!("CARGO_PKG_VERSION"), is_root);
    let settings = settings.map_err(|error| Failure::Error(error.to_string()))?;
    if let Command::Serve(args) = cli.command {
        return serve::run(&args, cli.socket, settings).map(|()| String::new()).map_err(Failure::Error);
    }
    let place = Place { explicit: cli.socket, settings: settings.client };
    match cli.command {
        Command::Serve(_) => unreachable!("it was handled above"),
        Command::Attach(args) => attach::run(&args, &place),
        Command::Trace(args) => operate::trace(&args),
        other => operate::run(other, &place),
    }
}

/// Where the daemon is.
struct Place {
    explicit: Option<PathBuf>,
    settings: ClientSettings,
}

impl Place {
    fn connect(&self) -> Result<share::Client, ClientError> {
        let is_explicit = self.explicit.is_some() || self.settings.socket_is_explicit;
        let found = self.explicit.as_ref().or_else(|| self.settings.socket());
        let path = found.unwrap_or_else(|| &self.settings.sockets[self.settings.sockets.len() - 1]);
        share::Client::connect(path, is_explicit)
    }
}
