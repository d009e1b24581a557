//! [`Peer`]: another runtime with a model, in a process that reads commands (see `benches/peers/speed.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use types::Tensor;

use crate::median;
use crate::model::{Model, at_root, read};
use crate::process::{Once, Visit, first_line, parse};

/// The program of a peer.
pub(crate) struct Program {
    pub(crate) name: String,
    host: Host,
}

enum Host {
    /// A Python with its package.
    Python(PathBuf),
    /// A program of `benches/peers/native`.
    Native(PathBuf),
}

impl Program {
    /// Reads `--python=NAME=PYTHON` and `--native=NAME=PROGRAM`.
    pub(crate) fn parse(flag: &str, value: &str) -> Result<Program, String> {
        let (name, path) = value.split_once('=').ok_or_else(|| format!("{flag} takes NAME=PROGRAM, not `{value}`"))?;
        let host = if flag == "--python" { Host::Python } else { Host::Native };
        Ok(Program { name: name.into(), host: host(path.into()) })
    }

    fn command(&self, model: &Model) -> Command {
        let mut command = match &self.host {
            Host::Python(python) => {
                let mut command = Command::new(python);
                command.arg(at_root("benches/peers/speed.py")).arg(&self.name);
                command
            }
            Host::Native(program) => Command::new(program),
        };
        // MNN's converter writes a file to its working folder.
        command.arg(model.folder.join("request.json")).current_dir(&model.folder);
        command
    }
}

/// A peer that has loaded a model.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Loads and warms up. Prints an error and skips a peer that cannot.
    pub(crate) fn start(program: &Program, model: &Model) -> Option<Peer> {
        let mut command = program.command(model);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| eprintln!("cannot run {command:?}: {error}")).ok()?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut peer = Peer { child, input, output };
        let is_ready = peer.line().is_ok_and(|line| line.starts_with("ready")) && peer.visit(3).is_ok();
        if !is_ready {
            eprintln!("{}: `{}` cannot run it", model.name, program.name);
        }
        is_ready.then_some(peer)
    }

    /// In a fresh process.
    pub(crate) fn once(program: &Program, model: &Model) -> Result<Once, String> {
        let (line, all_ms) = first_line(program.command(model).arg("--once"))?;
        let report = parse(line.as_bytes())?;
        Ok(Once {
            all_ms,
            load_ms: report["load_ms"].as_f64(),
            first_ms: report["first_ms"].as_f64(),
            peak_rss_bytes: report["peak_rss_bytes"].as_f64().unwrap_or(f64::NAN),
        })
    }

    /// Some runs.
    pub(crate) fn visit(&mut self, runs: usize) -> Result<Visit, String> {
        let line = self.ask(&format!("run {runs}"))?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let least = times.iter().copied().min_by(f64::total_cmp);
        let visit = median(&times).zip(least).map(|(median, least)| Visit { median, least });
        visit.ok_or_else(|| format!("a peer answers `{line}`"))
    }

    pub(crate) fn outputs(&mut self, model: &Model) -> Result<Vec<Tensor>, String> {
        self.ask(&format!("save {}", model.folder.display()))?;
        (0..model.output_names.len()).map(|ix| read(&model.folder.join(format!("{ix}.npy")))).collect()
    }

    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.input, "{line}").map_err(|error| format!("a peer has ended: {error}"))?;
        self.line()
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end().to_string()),
            _ => Err("a peer has ended".into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has no state to save; it may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
