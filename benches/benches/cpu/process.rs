//! Programs that print results, with their times.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value as Json;

/// The times of some runs, in milliseconds.
pub(crate) struct Visit {
    pub(crate) median: f64,
    pub(crate) least: f64,
}

/// The times of a new process.
pub(crate) struct Once {
    /// From its start to its first line.
    pub(crate) all_ms: f64,
    /// Of this, from imported packages to a loaded model, if the process prints it.
    pub(crate) load_ms: Option<f64>,
    pub(crate) first_ms: Option<f64>,
    pub(crate) peak_rss_bytes: f64,
}

/// Starts a process and waits for its first line. Further output is discarded.
#[expect(clippy::disallowed_methods, reason = "benches measure time")]
pub(crate) fn first_line(command: &mut Command) -> Result<(String, f64), String> {
    let start = Instant::now();
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    let read = output.read_line(&mut line);
    let seconds = start.elapsed().as_secs_f64();
    let _ = std::io::copy(&mut output, &mut std::io::sink());
    let status = child.wait().map_err(|error| error.to_string())?;
    match read {
        Ok(1..) if status.success() => Ok((line, 1e3 * seconds)),
        _ => Err(format!("{command:?} failed ({status})")),
    }
}

pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>, String> {
    let done = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if done.status.success() { Ok(done.stdout) } else { Err(format!("{command:?} failed ({})", done.status)) }
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Json, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("no JSON: {error}"))
}
