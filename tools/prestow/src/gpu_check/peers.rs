//! Other runtimes on the same GPU, on the same network with the same weights and inputs: PyTorch as it is and compiled, and
//! ONNX Runtime. Each runs in a process of its own that obeys lines (`benches/peers/gpu.py` says which), turn by turn with us.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use runtime::Session;
use serde_json::{Value as Json, json};
use types::Tensor;
use weights::npy;

use super::networks::{difference, median};
use crate::arguments::{GpuCheck, Numbers};

/// What the peers are called: by `--peers`, by the script, and in the report.
pub(crate) const NAMES: [&str; 3] = [EAGER, COMPILED, "onnxruntime"];
const EAGER: &str = "torch-eager";
const COMPILED: &str = "torch-compile";

/// The script and what it imports, which travel in this program.
const SCRIPTS: [(&str, &str); 3] = [
    ("gpu.py", include_str!("../../../../benches/peers/gpu.py")),
    ("onnx_torch.py", include_str!("../../../../benches/peers/onnx_torch.py")),
    ("onnx_nodes.py", include_str!("../../../../benches/peers/onnx_nodes.py")),
];

/// How long a peer may take to say what it is.
const KNOWN_WITHIN: Duration = Duration::from_secs(120);
/// How long some runs may take.
const RUNS_WITHIN: Duration = Duration::from_secs(120);
/// Turns of either.
const ROUNDS: usize = 5;

/// The peers that this machine has.
pub(super) struct Peers {
    python: PathBuf,
    folder: Folder,
    /// Of each its version, or why it is missing.
    known: BTreeMap<String, Result<String, String>>,
    load_within: Duration,
}

impl Peers {
    /// Asks the Python that is named, or that of the environment, what it has.
    ///
    /// # Errors
    /// A Python that is named and does not run. One that nobody named may be missing: then all peers are.
    pub(super) fn find(asked: &GpuCheck) -> Result<Peers, String> {
        let usual = || match std::env::var_os("VIRTUAL_ENV") {
            Some(environment) => PathBuf::from(environment).join("bin/python"),
            None => "python3".into(),
        };
        let python = asked.python.clone().unwrap_or_else(usual);
        let folder = Folder::new()?;
        let known = match listed(&python, &folder, asked.device) {
            Ok(known) => known,
            Err(why) if asked.python.is_some() => return Err(format!("--python {}: {why}", python.display())),
            Err(why) => {
                let why = format!("{}: {why}", python.display());
                NAMES.iter().map(|name| (name.to_string(), Err(why.clone()))).collect()
            }
        };
        let known = known.into_iter().filter(|(name, _)| asked.peers.contains(name)).collect();
        Ok(Peers { python, folder, known, load_within: Duration::from_secs(asked.peer_seconds) })
    }

    /// Whether there is one at all.
    pub(super) fn are_there(&self) -> bool {
        self.known.values().any(Result::is_ok)
    }

    /// What there is, in words.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, known) in &self.known {
            let _ = match known {
                Ok(version) => writeln!(text, "beside {name} {version} ({})", self.python.display()),
                Err(why) => writeln!(text, "without {name}: {why}"),
            };
        }
        text
    }

    /// The same for machines.
    pub(super) fn json(&self) -> Json {
        let row = |(name, known): (&String, &Result<String, String>)| match known {
            Ok(version) => (name.clone(), json!({ "version": version })),
            Err(why) => (name.clone(), json!({ "missing": why })),
        };
        self.known.iter().map(row).collect::<serde_json::Map<_, _>>().into()
    }

    /// Runs each peer beside an opened session, which has its inputs, turn by turn. A row for each.
    pub(super) fn measure(&self, turn: &Turn, session: &mut Session) -> Vec<Json> {
        let present = self.known.iter().filter(|(_, known)| known.is_ok());
        let row = |(name, _): (&String, _)| {
            self.beside(name, turn, session).unwrap_or_else(|refused| json!({ "name": name, "refused": refused }))
        };
        present.map(row).collect()
    }

    #[expect(clippy::disallowed_methods, reason = "how long runs take is what was asked")]
    fn beside(&self, name: &str, turn: &Turn, session: &mut Session) -> Result<Json, String> {
        let failed = |error: runtime::RunError| error.to_string();
        let request = turn.write(&self.folder.path)?;
        let mut command = self.command(name);
        let (mut peer, ready) = Peer::start(command.arg(&request), self.load_within)?;
        let ready: Json = serde_json::from_str(&ready).map_err(|_| format!("it answers `{ready}`"))?;
        if let Some(refused) = ready["refused"].as_str() {
            return Err(refused.to_string());
        }
        peer.ask(&format!("save {}", self.folder.path.display()))?;
        let mut apart = 0.0f64;
        for (ix, want) in turn.want.iter().enumerate() {
            let path = self.folder.path.join(format!("{ix}.npy"));
            let bytes = std::fs::read(&path).map_err(|error| format!("its result {ix}: {error}"))?;
            let got = npy::read(&bytes).map_err(|error| format!("its result {ix}: {error}"))?;
            if got.shape() != want.shape() {
                return Err(format!("its result {ix} is {} instead of {}", got.shape(), want.shape()));
            }
            apart = apart.max(difference(&got, want));
        }
        // What somebody computes otherwise is not compared.
        if turn.tolerance < apart {
            return Err(format!(
                "its results differ by {apart:.1e} of the largest, and {:.1e} are allowed",
                turn.tolerance
            ));
        }
        let [mut theirs, mut ours, mut flow, mut own_flow] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            theirs.extend(numbers(&peer.ask(&format!("run {}", turn.iters))?)?);
            for _ in 0..turn.iters {
                let start = Instant::now();
                session.run().map_err(failed)?;
                ours.push(1e3 * start.elapsed().as_secs_f64());
            }
            flow.extend(numbers(&peer.ask(&format!("flow {}", turn.iters))?)?);
            let start = Instant::now();
            session.run_timed(turn.iters).map_err(failed)?;
            own_flow.push(1e3 * start.elapsed().as_secs_f64() / turn.iters as f64);
        }
        let [theirs, ours, flow, own_flow] = [theirs, ours, flow, own_flow].map(|times| median(&times));
        Ok(json!({
            "name": name,
            "version": self.known[name].as_ref().ok(),
            "how": ready["how"],
            "load_ms": ready["load_ms"],
            "difference": apart,
            "latency_ms": theirs,
            "our_latency_ms": ours,
            "flow_ms": flow,
            "our_flow_ms": own_flow,
            "latency_ratio": ours / theirs,
            "throughput_ratio": flow / own_flow,
        }))
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.folder.path.join("gpu.py")).arg(name);
        command
    }
}

/// What a network is to others: the file, what goes in, and what has to come out.
pub(super) struct Turn<'a> {
    pub(super) graph: &'a ir::Graph,
    pub(super) numbers: Numbers,
    pub(super) device: usize,
    pub(super) inputs: &'a [Tensor],
    pub(super) want: &'a [Tensor],
    pub(super) tolerance: f64,
    pub(super) iters: usize,
}

impl Turn<'_> {
    /// Writes all that a peer needs into a folder; the request.
    fn write(&self, folder: &Path) -> Result<PathBuf, String> {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<PathBuf, String>(path)
        };
        let file = export::onnx(self.graph).map_err(|error| error.to_string())?;
        let model = write("model.onnx", &file)?;
        let name = |id: &ir::ValueId| self.graph.value(*id).name.clone();
        let mut inputs = Vec::new();
        for (ix, (id, tensor)) in self.graph.inputs().iter().zip(self.inputs).enumerate() {
            inputs.push(json!([name(id), write(&format!("in-{ix}.npy"), &npy::write(tensor))?]));
        }
        let outputs: Vec<&str> = self.graph.outputs().iter().map(|output| &output.name[..]).collect();
        let request = json!({
            "model": model,
            "device": format!("cuda:{}", self.device),
            "dtype": self.numbers.name(),
            "inputs": inputs,
            "outputs": outputs,
        });
        write("request.json", request.to_string().as_bytes())
    }
}

/// What a Python has of peers.
fn listed(python: &Path, folder: &Folder, device: usize) -> Result<BTreeMap<String, Result<String, String>>, String> {
    let mut command = Command::new(python);
    command.arg(folder.path.join("gpu.py")).arg("--list").arg(format!("cuda:{device}"));
    let (_, line) = Peer::start(&mut command, KNOWN_WITHIN)?;
    let said: BTreeMap<String, Json> = serde_json::from_str(&line).map_err(|_| format!("it answers `{line}`"))?;
    let known = |(name, row): (String, Json)| {
        let word = |key: &str| row[key].as_str().map(str::to_string);
        (name, word("version").ok_or_else(|| word("missing").unwrap_or_default()))
    };
    Ok(said.into_iter().map(known).collect())
}

/// A process that answers a line with a line.
struct Peer {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts it and waits for its first line.
    fn start(command: &mut Command, within: Duration) -> Result<(Peer, String), String> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = spawned.map_err(|error| format!("it does not run: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        // Ends with the process, or when nobody listens any more.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let peer = Peer { child, input, lines };
        let first = peer.line(within)?;
        Ok((peer, first))
    }

    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.input, "{line}").map_err(|error| format!("it has ended: {error}"))?;
        self.line(RUNS_WITHIN)
    }

    fn line(&self, within: Duration) -> Result<String, String> {
        self.lines.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("it says nothing for {} s (--peer-seconds)", within.as_secs()),
            RecvTimeoutError::Disconnected => "it has ended; its last words are on standard error".into(),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing to put away; that it may have ended is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(line: &str) -> Result<Vec<f64>, String> {
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok(numbers),
        _ => Err(format!("it answers `{line}`")),
    }
}

/// A folder of our own, which goes with us.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Result<Folder, String> {
        let base = format!("prestow-gpu-check-{}", std::process::id());
        // What is not ours is not written into, as what a process of our number left that was ended.
        let free = |number: usize| {
            let path = std::env::temp_dir().join(format!("{base}-{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| path.clone()).map_err(|error| format!("{}: {error}", path.display()))),
            }
        };
        let path = (0..).find_map(free).expect("some name is free")?;
        let folder = Folder { path };
        for (name, text) in SCRIPTS {
            std::fs::write(folder.path.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a network's peers come to: throughput beside the faster of PyTorch's two, latency beside its eager one.
pub(super) struct Standing {
    pub(super) throughput: f64,
    pub(super) latency: f64,
}

impl Standing {
    /// Of a row of networks, where both of PyTorch's ran.
    pub(super) fn of(row: &Json) -> Option<Standing> {
        let peers = row["peers"].as_array()?;
        let of = |name: &str, key: &str| peers.iter().find(|peer| peer["name"] == name)?[key].as_f64();
        Some(Standing {
            throughput: of(EAGER, "throughput_ratio")?.min(of(COMPILED, "throughput_ratio")?),
            latency: of(EAGER, "latency_ratio")?,
        })
    }
}

/// A line for each peer of a row.
pub(super) fn lines(row: &Json) -> String {
    let mut text = String::new();
    for peer in row["peers"].as_array().into_iter().flatten() {
        let word = |key: &str| peer[key].as_str().unwrap_or_default();
        let number = |key: &str| peer[key].as_f64().unwrap_or_default();
        let _ = match peer["refused"].as_str() {
            Some(why) => writeln!(text, "    {:<14} is not compared: {why}", word("name")),
            None => writeln!(
                text,
                "    {:<14} {:>9.4} ms a run, {:>9.4} ms one behind the other; ours {:>9.4} ({:.2} of it) and {:>9.4} \
                 ({:.2} times the throughput); {}",
                word("name"),
                number("latency_ms"),
                number("flow_ms"),
                number("our_latency_ms"),
                number("latency_ratio"),
                number("our_flow_ms"),
                number("throughput_ratio"),
                word("how"),
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_held_against_the_faster_of_two() {
        let peer = |name: &str, throughput: f64, latency: f64| json!({ "name": name, "throughput_ratio": throughput, "latency_ratio": latency });
        let row = json!({ "peers": [peer(EAGER, 3.0, 0.25), peer(COMPILED, 1.5, 0.75)] });
        let standing = Standing::of(&row).expect("both ran");
        assert_eq!((standing.throughput, standing.latency), (1.5, 0.25));
        assert!(Standing::of(&json!({ "peers": [peer(EAGER, 3.0, 0.25)] })).is_none(), "one alone says nothing");
        assert!(Standing::of(&json!({})).is_none());
    }

    #[test]
    fn answers_are_numbers_or_errors() {
        assert_eq!(numbers("1.5 2"), Ok(vec![1.5, 2.0]));
        assert!(numbers("").is_err() && numbers("1.5 fast").is_err());
    }
}
