//! [`PeerProcess`]: another runtime in a process that reads commands (`benches/peers/speed.py` describes them).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A peer that has loaded a model.
pub struct PeerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The last line of its standard error, and the thread that reads it.
    last_words: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    version: Option<String>,
}

/// The longest answer without times, and the longest line of standard error, in bytes.
const LINE_MAX: usize = 1 << 16;

/// The longest text of a time in an answer, in bytes.
const TIME_MAX: usize = 32;

impl PeerProcess {
    /// Starts the process and waits until the model is loaded. Its standard error is passed on.
    ///
    /// # Errors
    /// A program that does not start; a process that ends before it is ready.
    pub fn start(mut command: Command) -> Result<PeerProcess, String> {
        let program = command.get_program().display().to_string();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("cannot start `{program}`: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let errors = child.stderr.take().expect("it is piped");
        let last_words = Arc::<Mutex<String>>::default();
        let kept = last_words.clone();
        let reader = std::thread::Builder::new().spawn(move || pass_on(errors, &kept));
        let mut peer = PeerProcess { child, input, output, last_words, reader: None, version: None };
        peer.reader = Some(reader.map_err(|error| format!("cannot start a thread: {error}"))?);
        let line = peer.line(LINE_MAX)?;
        match line.strip_prefix("ready") {
            Some("") => Ok(peer),
            Some(version) if version.starts_with(' ') => {
                peer.version = Some(version.trim().to_string());
                Ok(peer)
            }
            _ => Err(format!("`{program}` must print `ready`, printed `{line}`")),
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The version of the runtime, if it states it.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Nanoseconds of each of `count` runs, by the clock of the peer.
    ///
    /// # Errors
    /// A process that ended or prints something else.
    pub fn runs(&mut self, count: usize) -> Result<Vec<u64>, String> {
        if count == 0 {
            return Ok(vec![]);
        }
        let line = self.ask(&format!("run {count}"), LINE_MAX + count.saturating_mul(TIME_MAX))?;
        let time = |word: &str| word.parse::<f64>().ok().filter(|ms| ms.is_finite() && 0.0 < *ms);
        let times = line.split_whitespace().map(|word| time(word).map(|ms| (ms * 1e6) as u64));
        match times.collect::<Option<Vec<u64>>>() {
            Some(times) if times.len() == count => Ok(times),
            _ => Err(format!("the peer must print {count} times, printed `{}`", beginning(&line))),
        }
    }

    /// Writes the outputs of one run as `0.npy`, `1.npy` and so on.
    ///
    /// # Errors
    /// As [`PeerProcess::runs`].
    pub fn save(&mut self, folder: &Path) -> Result<(), String> {
        match self.ask(&format!("save {}", folder.display()), LINE_MAX)? {
            line if line == "saved" => Ok(()),
            line => Err(format!("the peer must print `saved`, printed `{}`", beginning(&line))),
        }
    }

    fn ask(&mut self, line: &str, longest: usize) -> Result<String, String> {
        match writeln!(self.input, "{line}") {
            Ok(()) => self.line(longest),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(self.ended()),
            Err(error) => Err(format!("cannot write to the peer: {error}")),
        }
    }

    fn line(&mut self, longest: usize) -> Result<String, String> {
        let mut line = String::new();
        match (&mut self.output).take(longest as u64).read_line(&mut line) {
            Ok(0) => Err(self.ended()),
            Ok(_) if line.len() == longest => Err(format!("the peer printed a line of more than {longest} bytes")),
            Ok(_) => Ok(line.trim_end().to_string()),
            Err(error) => Err(format!("cannot read from the peer: {error}")),
        }
    }

    /// The end of the process with its last words.
    fn ended(&mut self) -> String {
        // Closed standard output is the end of a peer, also if the process goes on.
        let _ = self.child.kill();
        let status = match self.child.wait() {
            Ok(status) => format!("the peer ended with {status}"),
            Err(error) => format!("the peer ended: {error}"),
        };
        if let Some(reader) = self.reader.take() {
            // It ends with the pipe, unless a child of the peer holds that.
            let deadline = crate::now_ns() + 1_000_000_000;
            while !reader.is_finished() && crate::now_ns() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        match &self.last_words.lock().expect("no holder of this lock panics")[..] {
            "" => status,
            words => format!("{status}: {words}"),
        }
    }
}

/// Copies lines to standard error, and keeps the last one that is not empty.
fn pass_on(errors: ChildStderr, kept: &Mutex<String>) {
    let mut errors = BufReader::new(errors);
    loop {
        let mut line = Vec::new();
        match (&mut errors).take(LINE_MAX as u64).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let _ = std::io::stderr().lock().write_all(&line);
        let text = String::from_utf8_lossy(&line).trim().to_string();
        if !text.is_empty() {
            *kept.lock().expect("no holder of this lock panics") = text;
        }
    }
}

/// The first characters of a line that may be long.
fn beginning(line: &str) -> String {
    const MOST: usize = 200;
    match line.char_indices().nth(MOST) {
        None => line.to_string(),
        Some((at, _)) => format!("{}...", &line[..at]),
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It has no state to save; it may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
