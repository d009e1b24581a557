//! [`PeerProcess`]: another runtime in a process that reads commands (`benches/peers/speed.py` describes them).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A peer that has loaded a model.
pub struct PeerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PeerProcess {
    /// Starts the process and waits until the model is loaded.
    ///
    /// # Errors
    /// A program that does not start; a process that ends before it is ready.
    pub fn start(mut command: Command) -> Result<PeerProcess, String> {
        let program = command.get_program().display().to_string();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("cannot start `{program}`: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut peer = PeerProcess { child, input, output };
        match peer.line()? {
            line if line == "ready" => Ok(peer),
            line => Err(format!("`{program}` must print `ready`, printed `{line}`")),
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Nanoseconds of each of `count` runs, by the clock of the peer.
    ///
    /// # Errors
    /// A process that ended or prints something else.
    pub fn runs(&mut self, count: usize) -> Result<Vec<u64>, String> {
        if count == 0 {
            return Ok(vec![]);
        }
        let line = self.ask(&format!("run {count}"))?;
        let times = line.split_whitespace().map(|word| word.parse::<f64>().ok().map(|ms| (ms * 1e6) as u64));
        match times.collect::<Option<Vec<u64>>>() {
            Some(times) if times.len() == count => Ok(times),
            _ => Err(format!("the peer must print {count} times, printed `{line}`")),
        }
    }

    /// Writes the outputs of one run as `0.npy`, `1.npy` and so on.
    ///
    /// # Errors
    /// As [`PeerProcess::runs`].
    pub fn save(&mut self, folder: &Path) -> Result<(), String> {
        match self.ask(&format!("save {}", folder.display()))? {
            line if line == "saved" => Ok(()),
            line => Err(format!("the peer must print `saved`, printed `{line}`")),
        }
    }

    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.input, "{line}").map_err(|error| format!("the peer has ended: {error}"))?;
        self.line()
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end().to_string()),
            Ok(0) => match self.child.wait() {
                Ok(status) => Err(format!("the peer ended with {status}")),
                Err(error) => Err(format!("the peer ended: {error}")),
            },
            Err(error) => Err(format!("cannot read from the peer: {error}")),
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It has no state to save; it may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
