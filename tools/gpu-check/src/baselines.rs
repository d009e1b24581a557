//! [`Baselines`]: other runtimes on the same GPU, with the same network, weights and inputs: PyTorch eager, PyTorch compiled,
//! ONNX Runtime. Each is a process that answers commands, one line each (`scripts/gpu.py`). Runs of a baseline and of
//! ours alternate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use compiler::gpu::Precision;
use runtime::Session;
use serde::{Deserialize, Serialize};
use types::Tensor;
use weights::npy;

use crate::arguments::Settings;
use crate::networks::{difference, write};
use crate::rows::{Baseline, BaselineOutcome, BaselineRow, BaselineRun, BaselineState, NetworkRow};

/// The script and its imports. They are part of this program, which runs without the repository (`--pack`).
const SCRIPTS: [(&str, &str); 3] = [
    ("gpu.py", include_str!("../scripts/gpu.py")),
    ("onnx_torch.py", include_str!("../../../benches/peers/onnx_torch.py")),
    ("onnx_nodes.py", include_str!("../../../benches/peers/onnx_nodes.py")),
];

/// Time limit to list the installed baselines.
const LIST_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Lines of a baseline's standard error that are reported, and characters of each.
const MESSAGE_LINES: usize = 8;
const MESSAGE_LENGTH: usize = 200;
/// Time limit for standard error after the end of standard output.
const MESSAGES_LIMIT: Duration = Duration::from_millis(500);
/// Alternations between a baseline and ours.
const ROUNDS: usize = 5;

/// The baselines of this machine.
pub(crate) struct Baselines {
    python: PathBuf,
    folder: ScriptFolder,
    states: BTreeMap<Baseline, BaselineState>,
    load_limit: Duration,
}

impl Baselines {
    /// Lists the baselines of the Python of `--python`, or of the environment.
    ///
    /// # Errors
    /// The Python of `--python` does not run. If the environment has none, all baselines are missing instead.
    pub(crate) fn find(settings: &Settings) -> Result<Baselines, String> {
        let usual = || match std::env::var_os("VIRTUAL_ENV") {
            Some(environment) => PathBuf::from(environment).join("bin/python"),
            None => "python3".into(),
        };
        let python = settings.python.clone().unwrap_or_else(usual);
        let folder = ScriptFolder::new()?;
        let states = match listed(&python, &folder, settings.device) {
            Ok(states) => states,
            Err(why) if settings.python.is_some() => return Err(format!("--python {}: {why}", python.display())),
            Err(why) => {
                let why = format!("{}: {why}", python.display());
                Baseline::ALL.into_iter().map(|name| (name, BaselineState::Missing(why.clone()))).collect()
            }
        };
        let states = states.into_iter().filter(|(name, _)| settings.baselines.contains(name)).collect();
        Ok(Baselines { python, folder, states, load_limit: Duration::from_secs(settings.baseline_seconds) })
    }

    /// The baselines of the settings, with versions or reasons for their absence.
    pub(crate) fn states(&self) -> &BTreeMap<Baseline, BaselineState> {
        &self.states
    }

    /// Whether one is installed.
    pub(crate) fn any(&self) -> bool {
        self.states.values().any(|state| matches!(state, BaselineState::Version(_)))
    }

    /// A line for each.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, state) in &self.states {
            let _ = match state {
                BaselineState::Version(version) => {
                    writeln!(text, "baseline {name} {version} ({})", self.python.display())
                }
                BaselineState::Missing(why) => writeln!(text, "no baseline {name}: {why}"),
            };
        }
        text
    }

    /// Compares an opened session, whose inputs are written, with every installed baseline.
    pub(crate) fn measure(&self, comparison: &Comparison, session: &mut Session) -> Vec<BaselineRow> {
        let mut rows = Vec::new();
        for (&name, state) in &self.states {
            let BaselineState::Version(version) = state else { continue };
            let outcome = match self.measure_one(name, comparison, session) {
                Ok(run) => BaselineOutcome::Ran(BaselineRun { version: version.clone(), ..run }),
                Err(refused) => BaselineOutcome::Refused { refused },
            };
            rows.push(BaselineRow { name, outcome });
        }
        rows
    }

    #[expect(clippy::disallowed_methods, reason = "the time of a run is the result")]
    fn measure_one(
        &self,
        name: Baseline,
        comparison: &Comparison,
        session: &mut Session,
    ) -> Result<BaselineRun, String> {
        let failed = |error: runtime::RunError| error.to_string();
        let request = comparison.write(&self.folder.path)?;
        let mut command = Command::new(&self.python);
        command.arg(self.folder.path.join("gpu.py")).arg(name.name()).arg(&request);
        let (mut process, line) = Process::start(&mut command, self.load_limit)?;
        let ready: Ready = serde_json::from_str(&line).map_err(|_| format!("it answers `{line}`"))?;
        let (how, load_ms) = match ready {
            Ready::Refused { refused } => return Err(refused),
            Ready::Loaded { how, load_ms } => (how, load_ms),
        };
        process.command(&format!("save {}", self.folder.path.display()))?;
        let mut largest = 0.0f64;
        for (ix, want) in comparison.want.iter().enumerate() {
            let path = self.folder.path.join(format!("{ix}.npy"));
            let bytes = std::fs::read(&path).map_err(|error| format!("its result {ix}: {error}"))?;
            let got = npy::read(&bytes).map_err(|error| format!("its result {ix}: {error}"))?;
            if got.shape() != want.shape() {
                return Err(format!("its result {ix} is {} instead of {}", got.shape(), want.shape()));
            }
            largest = largest.max(difference(&got, want));
        }
        // Times of a different computation would mean nothing.
        if comparison.tolerance < largest {
            let tolerance = comparison.tolerance;
            return Err(format!(
                "its results differ by {largest:.1e} of the largest, and the tolerance is {tolerance:.1e}"
            ));
        }
        let [mut theirs, mut ours, mut their_queue, mut our_queue] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            theirs.extend(times(&process.command(&format!("run {}", comparison.iters))?)?);
            for _ in 0..comparison.iters {
                write(session, comparison.bytes).map_err(failed)?;
                let start = Instant::now();
                session.run().map_err(failed)?;
                ours.push(1e3 * start.elapsed().as_secs_f64());
            }
            their_queue.extend(times(&process.command(&format!("queue {}", comparison.iters))?)?);
            write(session, comparison.bytes).map_err(failed)?;
            let start = Instant::now();
            session.run_timed(comparison.iters).map_err(failed)?;
            our_queue.push(1e3 * start.elapsed().as_secs_f64() / comparison.iters as f64);
        }
        let [theirs, ours, their_queue, our_queue] = [theirs, ours, their_queue, our_queue].map(|times| median(&times));
        Ok(BaselineRun {
            version: String::new(),
            how,
            load_ms,
            difference: largest,
            latency_ms: theirs,
            our_latency_ms: ours,
            back_to_back_ms: their_queue,
            our_back_to_back_ms: our_queue,
            latency_ratio: ours / theirs,
            throughput_ratio: their_queue / our_queue,
        })
    }
}

/// A network as a baseline gets it.
pub(crate) struct Comparison<'a> {
    pub(crate) graph: &'a ir::Graph,
    pub(crate) precision: Precision,
    pub(crate) device: usize,
    pub(crate) inputs: &'a [Tensor],
    /// The bytes of the inputs.
    pub(crate) bytes: &'a [Vec<u8>],
    /// The reference results.
    pub(crate) want: &'a [Tensor],
    pub(crate) tolerance: f64,
    pub(crate) iters: usize,
}

/// The file that the script reads.
#[derive(Serialize)]
struct Request {
    model: PathBuf,
    device: String,
    dtype: Precision,
    /// Names and files.
    inputs: Vec<(String, PathBuf)>,
    outputs: Vec<String>,
}

/// A row of the script's `--list`.
#[derive(Deserialize)]
struct Listed {
    version: Option<String>,
    missing: Option<String>,
}

/// The script's first line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ready {
    Refused { refused: String },
    Loaded { how: String, load_ms: f64 },
}

impl Comparison<'_> {
    /// Writes model, inputs and request into a folder. Returns the request's path.
    fn write(&self, folder: &Path) -> Result<PathBuf, String> {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<PathBuf, String>(path)
        };
        let file = export::onnx(self.graph).map_err(|error| error.to_string())?;
        let model = write("model.onnx", &file)?;
        let mut inputs = Vec::new();
        for (ix, (&id, tensor)) in self.graph.inputs().iter().zip(self.inputs).enumerate() {
            let path = write(&format!("in-{ix}.npy"), &npy::write(tensor))?;
            inputs.push((self.graph.value(id).name.clone(), path));
        }
        let outputs = self.graph.outputs().iter().map(|output| output.name.clone()).collect();
        let device = format!("cuda:{}", self.device);
        let request = Request { model, device, dtype: self.precision, inputs, outputs };
        write("request.json", &serde_json::to_vec(&request).expect("a request is plain data"))
    }
}

/// The baselines that a Python has.
fn listed(python: &Path, folder: &ScriptFolder, device: usize) -> Result<BTreeMap<Baseline, BaselineState>, String> {
    let mut command = Command::new(python);
    command.arg(folder.path.join("gpu.py")).arg("--list").arg(format!("cuda:{device}"));
    let (_, line) = Process::start(&mut command, LIST_LIMIT)?;
    let all: BTreeMap<Baseline, Listed> = serde_json::from_str(&line).map_err(|_| format!("it answers `{line}`"))?;
    let state = |listed: Listed| match listed {
        Listed { version: Some(version), .. } => BaselineState::Version(version),
        Listed { missing, .. } => BaselineState::Missing(missing.unwrap_or_default()),
    };
    Ok(all.into_iter().map(|(name, listed)| (name, state(listed))).collect())
}

/// A process that answers a line with a line.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// The last lines of standard error, when the process has ended.
    messages: Option<JoinHandle<Vec<String>>>,
}

impl Process {
    /// Starts a process and waits for its first line.
    fn start(command: &mut Command, limit: Duration) -> Result<(Process, String), String> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("it does not run: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        // The thread ends with the process, or when the receiver is dropped.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let messages = std::thread::spawn(move || last_lines(errors));
        let mut process = Process { child, input, lines, messages: Some(messages) };
        let first = process.line(limit)?;
        Ok((process, first))
    }

    fn command(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.input, "{line}").map_err(|error| format!("it has ended: {error}"))?;
        self.line(COMMAND_LIMIT)
    }

    fn line(&mut self, limit: Duration) -> Result<String, String> {
        self.lines.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {} s (--baseline-seconds)", limit.as_secs()),
            RecvTimeoutError::Disconnected => self.ended(),
        })
    }
}

impl Process {
    /// That it has ended, with the last lines of its standard error.
    fn ended(&mut self) -> String {
        // A child of it may hold standard error open, so the process is not waited for without limit.
        let reads = self.messages.as_ref().is_some_and(|thread| !thread.is_finished());
        if reads {
            std::thread::sleep(MESSAGES_LIMIT);
        }
        let messages = self.messages.take().filter(JoinHandle::is_finished).and_then(|thread| thread.join().ok());
        match messages.unwrap_or_default() {
            lines if lines.is_empty() => "it has ended without a message".into(),
            lines => format!("it has ended: {}", lines.join("\n      ")),
        }
    }
}

/// The last lines of a text that may be long, with the first part of each. Lines equal to the one before are left out: a failed
/// assertion on a GPU prints one for each thread.
fn last_lines(text: impl BufRead) -> Vec<String> {
    let mut last = VecDeque::new();
    for line in text.split(b'\n').map_while(Result::ok) {
        let line: String = String::from_utf8_lossy(&line).trim_end().chars().take(MESSAGE_LENGTH).collect();
        if line.is_empty() || last.back() == Some(&line) {
            continue;
        }
        if last.len() == MESSAGE_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into()
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has no state to save, and it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn times(line: &str) -> Result<Vec<f64>, String> {
    let times: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match times {
        Ok(times) if !times.is_empty() => Ok(times),
        _ => Err(format!("it answers `{line}`")),
    }
}

/// The middle element.
fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A temporary folder with the scripts, removed on drop.
struct ScriptFolder {
    path: PathBuf,
}

impl ScriptFolder {
    fn new() -> Result<ScriptFolder, String> {
        let base = format!("prestow-gpu-check-{}", std::process::id());
        // A killed process with the same id may have left a folder, so an existing one is never used.
        let free = |number: usize| {
            let path = std::env::temp_dir().join(format!("{base}-{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| path.clone()).map_err(|error| format!("{}: {error}", path.display()))),
            }
        };
        let path = (0..).find_map(free).expect("some name is free")?;
        let folder = ScriptFolder { path };
        for (name, text) in SCRIPTS {
            std::fs::write(folder.path.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(folder)
    }
}

impl Drop for ScriptFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A network's ratios: throughput to the faster mode of PyTorch, latency to its eager mode.
pub(crate) struct Speedup {
    pub(crate) throughput: f64,
    pub(crate) latency: f64,
}

impl Speedup {
    /// `None` unless both modes ran.
    pub(crate) fn of(row: &NetworkRow) -> Option<Speedup> {
        let (eager, compiled) = (row.baseline(Baseline::TorchEager)?, row.baseline(Baseline::TorchCompile)?);
        let throughput = eager.throughput_ratio.min(compiled.throughput_ratio);
        Some(Speedup { throughput, latency: eager.latency_ratio })
    }
}

/// A line for each baseline of a row.
pub(crate) fn lines(row: &NetworkRow) -> String {
    let mut text = String::new();
    for BaselineRow { name, outcome } in row.run.iter().flat_map(|run| &run.baselines) {
        let _ = match outcome {
            BaselineOutcome::Refused { refused } => writeln!(text, "    {name:<14} is not compared: {refused}"),
            BaselineOutcome::Ran(run) => writeln!(
                text,
                "    {name:<14} {:>9.4} ms a run, {:>9.4} ms back to back; ours {:>9.4} ({:.2} of it) and {:>9.4} ({:.2} \
                 times the throughput); {}",
                run.latency_ms,
                run.back_to_back_ms,
                run.our_latency_ms,
                run.latency_ratio,
                run.our_back_to_back_ms,
                run.throughput_ratio,
                run.how,
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Verdict;

    #[test]
    fn throughput_is_relative_to_the_faster_mode() {
        let ran = |name: Baseline, throughput_ratio: f64, latency_ratio: f64| {
            let run = BaselineRun { throughput_ratio, latency_ratio, ..BaselineRun::default() };
            BaselineRow { name, outcome: BaselineOutcome::Ran(run) }
        };
        let row = |baselines: Vec<BaselineRow>| {
            let text = r#"{"network": "n", "batch": 1, "dtype": "f32", "verdict": "equal", "arena_bytes": 1,
                "weights_bytes": 1, "block_bytes": 2, "device_memory": [], "observed": [], "not_observed": [],
                "allocations_in_run": null, "difference": 0.0, "tolerance": 0.1, "gpu_ms": 1.0, "device_ms": null,
                "latency_ms": {"min": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "mean": 1.0}, "samples_per_s": 1.0,
                "gflop_per_s": 1.0, "roofline": null, "cpu_ms": 1.0, "audited": true, "not_audited": null,
                "baselines": []}"#;
            let mut row: NetworkRow = serde_json::from_str(text).unwrap();
            assert_eq!(row.verdict, Verdict::Equal);
            row.run.as_mut().expect("its fields are there").baselines = baselines;
            row
        };
        let both = vec![ran(Baseline::TorchEager, 3.0, 0.25), ran(Baseline::TorchCompile, 1.5, 0.75)];
        let speedup = Speedup::of(&row(both)).unwrap();
        assert_eq!((speedup.throughput, speedup.latency), (1.5, 0.25));
        assert!(Speedup::of(&row(vec![ran(Baseline::TorchEager, 3.0, 0.25)])).is_none());
    }

    #[test]
    fn messages_are_the_last_lines() {
        let lines: String = (0..5000).map(|ix| format!("thread [{}]\n", ix / 3)).collect();
        let long = "x".repeat(3 * MESSAGE_LENGTH);
        let last = last_lines(format!("{lines}\n{long}\r\nassert").as_bytes());
        assert_eq!(
            (last.len(), &last[0][..], &last[MESSAGE_LINES - 1][..]),
            (MESSAGE_LINES, "thread [1661]", "assert")
        );
        assert_eq!(last[MESSAGE_LINES - 2], long[..MESSAGE_LENGTH]);
        assert!(last_lines(&b""[..]).is_empty());
    }

    #[test]
    fn an_ended_process_has_its_messages() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read line; echo it asserts >&2"]);
        let (mut process, first) = Process::start(&mut command, COMMAND_LIMIT).expect("there is a shell");
        assert_eq!((&first[..], process.command("go")), ("ready", Err("it has ended: it asserts".into())));
    }

    #[test]
    fn answers_are_times_or_errors() {
        assert_eq!(times("1.5 2"), Ok(vec![1.5, 2.0]));
        assert!(times("").is_err() && times("1.5 fast").is_err());
    }
}
