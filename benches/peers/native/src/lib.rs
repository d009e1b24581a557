//! The counterpart of `benches/peers/speed.py` for runtimes that are Rust crates: runs one of them on one ONNX file,
//! controlled by `benches/benches/cpu`. The head of that script has the commands.
//!
//! A runtime is a [`Peer`] and a separate program, so that none pays for another's code.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Deserialize;
use types::Tensor;
use weights::npy;

/// The request, as the bench writes it.
#[derive(Deserialize)]
pub struct Request {
    /// The ONNX file.
    pub model: PathBuf,
    /// The number of threads.
    pub threads: usize,
    inputs: Vec<(String, PathBuf)>,
    /// The names of the outputs.
    pub outputs: Vec<String>,
}

impl Request {
    /// The inputs by name.
    pub fn inputs(&self) -> Result<Vec<(&str, Tensor)>, String> {
        self.inputs.iter().map(|(name, file)| Ok((name.as_str(), read(file)?))).collect()
    }
}

/// A runtime with a model and its inputs. Errors are returned unchanged.
pub trait Peer: Sized {
    /// The runtime's type of results.
    type Outputs;

    /// Loads a model for the requested number of threads.
    fn load(request: &Request) -> Result<Self, String>;

    /// One run, which is timed.
    fn run(&mut self) -> Result<Self::Outputs, String>;

    /// Outputs in the order of the request.
    fn tensors(outputs: Self::Outputs) -> Result<Vec<Tensor>, String>;
}

/// A peer's program: `PROGRAM REQUEST.json [--once]`.
pub fn serve<P: Peer>() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &words[..] {
        [request] => obey::<P>(Path::new(request)),
        [request, flag] if flag == "--once" => once::<P>(Path::new(request)),
        _ => Err("usage: PROGRAM REQUEST.json [--once]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn load<P: Peer>(request: &Path) -> Result<P, String> {
    let text = fs::read(request).map_err(|error| format!("cannot read `{}`: {error}", request.display()))?;
    let request: Request = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    P::load(&request)
}

fn obey<P: Peer>(request: &Path) -> Result<(), String> {
    let mut peer: P = load(request)?;
    say("ready")?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let (command, word) = line.split_once(' ').unwrap_or((&line, ""));
        match command {
            "run" => {
                let runs: usize = word.parse().map_err(|error| format!("`{word}`: {error}"))?;
                let times: Vec<String> = (0..runs)
                    .map(|_| timed(|| peer.run()).map(|(_, took)| format!("{:.4}", milliseconds(took))))
                    .collect::<Result<_, _>>()?;
                say(&times.join(" "))?;
            }
            "save" => {
                for (ix, tensor) in P::tensors(peer.run()?)?.iter().enumerate() {
                    let file = Path::new(word).join(format!("{ix}.npy"));
                    let written = fs::write(&file, npy::write(tensor));
                    written.map_err(|error| format!("cannot write `{}`: {error}", file.display()))?;
                }
                say("saved")?;
            }
            _ => return Err(format!("`{command}` is not a command")),
        }
    }
    Ok(())
}

fn once<P: Peer>(request: &Path) -> Result<(), String> {
    let (mut peer, load) = timed(|| load::<P>(request))?;
    let (_, first) = timed(|| peer.run())?;
    let report = serde_json::json!({
        "load_ms": milliseconds(load), "first_ms": milliseconds(first), "peak_rss_bytes": peak_rss_bytes()?,
    });
    say(&report.to_string())
}

#[expect(clippy::disallowed_methods, reason = "benches measure time")]
fn timed<T>(what: impl FnOnce() -> Result<T, String>) -> Result<(T, Duration), String> {
    let start = Instant::now();
    let done = what()?;
    Ok((done, start.elapsed()))
}

fn milliseconds(took: Duration) -> f64 {
    1e3 * took.as_secs_f64()
}

/// The peak of resident memory so far.
fn peak_rss_bytes() -> Result<u64, String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().map_err(|error| format!("VmHWM: {error}"))?;
    Ok(1024 * kib)
}

/// Prints an answer; a closed pipe is an error.
fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn read(file: &Path) -> Result<Tensor, String> {
    let bytes = fs::read(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    npy::read(&bytes).map_err(|error| format!("`{}`: {error}", file.display()))
}
