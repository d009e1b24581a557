//! Steps a second and peak resident memory, compared with other frameworks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value as Json;
use types::Random;

use crate::median;

/// Networks, batches and optimizers if none are given.
const NETWORKS: [&str; 4] = ["mnist_cnn:100:adam", "resnet18:8:sgd", "mobilenet_v2:8:sgd", "vgg11:4:sgd"];
/// The length of a visit.
const VISIT_MS: f64 = 1500.0;
const MIB: f64 = (1 << 20) as f64;
/// Folders in names of networks that `benches/peers/training.py` exports.
const EXPORTED: [&str; 2] = ["torch/", "timm/"];

pub(crate) struct Options {
    /// Names and Pythons of peers.
    peers: Vec<(String, PathBuf)>,
    rounds: usize,
    threads: usize,
    /// The goal of the compiler.
    goal: String,
    networks: Vec<String>,
}

impl Options {
    pub(crate) fn parse(words: &[String]) -> Result<Options, String> {
        let mut options =
            Options { peers: Vec::new(), rounds: 7, threads: 2, goal: "balanced".into(), networks: Vec::new() };
        for word in words {
            let (flag, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || match value.parse() {
                Ok(number) if 0 < number => Ok(number),
                _ => Err(format!("{flag} takes a number from 1, not `{value}`")),
            };
            match flag {
                // `xtask/src/peers.rs` derives these from `--peers`.
                "--python" => {
                    let (name, python) = value.split_once('=').ok_or("--python takes NAME=PYTHON")?;
                    options.peers.push((name.into(), python.into()));
                }
                "--rounds" => options.rounds = number()?,
                "--threads" => options.threads = number()?,
                "--optimize" => options.goal = value.into(),
                flag if flag.starts_with("--") => return Err(format!("`{flag}` is not a flag of this bench")),
                _ => options.networks.push(word.clone()),
            }
        }
        if options.networks.is_empty() {
            options.networks = NETWORKS.map(String::from).to_vec();
        }
        Ok(options)
    }
}

/// Prints a row for each network.
pub(crate) fn table(options: &Options) -> Result<(), String> {
    let heads = |what: &str| options.peers.iter().map(|(name, _)| format!("{name} {what} | ")).collect::<String>();
    println!("| network | prestow ms | {}ratio to the best | prestow MiB | {}ratio |", heads("ms"), heads("MiB"));
    println!("| --- | --- | {}--- | --- | {0}--- |", "--- | ".repeat(options.peers.len()));
    for network in &options.networks {
        println!("{}", row(options, network)?);
    }
    Ok(())
}

fn row(options: &Options, network: &str) -> Result<String, String> {
    let words: Vec<&str> = network.split(':').collect();
    let (name, batch, optimizer) = match words[..] {
        [name, batch] => (name, batch, "adam"),
        [name, batch, optimizer] => (name, batch, optimizer),
        _ => return Err(format!("expected NETWORK:BATCH[:OPTIMIZER], got `{network}`")),
    };
    let step = Step::compile(options, name, batch, optimizer)?;
    let mut peers: Vec<Option<Peer>> = Vec::new();
    for (mode, python) in &options.peers {
        let threads = options.threads.to_string();
        let peer = Peer::start(python, &[mode, name, batch, &threads, optimizer]);
        peers.push(peer.map_err(|error| eprintln!("{network}: {error}")).ok());
    }
    // By contestant, executable first: the median of each round.
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); 1 + peers.len()];
    let runs = |ms: f64| (VISIT_MS / ms).ceil().clamp(3.0, 100.0) as usize;
    let own_runs = runs(step.visit(2)?);
    let mut random = Random::new(1);
    for _ in 0..options.rounds {
        let count = rounds.len();
        let first = random.below(count as u64) as usize;
        for contestant in (first..first + count).map(|ix| ix % count) {
            let took = match contestant {
                0 => Some(step.visit(own_runs)?),
                _ => peers[contestant - 1].as_mut().map(|peer| peer.visit(own_runs)).transpose()?,
            };
            rounds[contestant].extend(took);
        }
    }
    let middles: Vec<Option<f64>> = rounds.iter().map(|times| median(times)).collect();
    let best = (1..middles.len()).filter(|&ix| middles[ix].is_some()).min_by(|&a, &b| {
        let [a, b] = [a, b].map(|ix| middles[ix].unwrap_or(f64::INFINITY));
        a.total_cmp(&b)
    });
    let ratios: Vec<f64> = match best {
        Some(best) => rounds[0].iter().zip(&rounds[best]).map(|(own, other)| own / other).collect(),
        None => Vec::new(),
    };
    let mut memory = vec![Some(step.peak_resident_bytes()?)];
    for peer in &mut peers {
        memory.push(peer.as_mut().map(Peer::peak_resident_bytes).transpose()?);
    }
    let least = memory[1..].iter().flatten().copied().min_by(f64::total_cmp);
    let number = |number: Option<f64>, digits: usize| number.map_or("-".into(), |number| format!("{number:.digits$}"));
    let times: String = middles.iter().map(|&ms| format!("{} | ", number(ms, 1))).collect();
    let sizes: String =
        memory.iter().map(|bytes| format!("{} | ", number(bytes.map(|bytes| bytes / MIB), 0))).collect();
    let of_memory = memory[0].zip(least).map(|(own, least)| own / least);
    Ok(format!("| {network} | {times}{} | {sizes}{} |", number(median(&ratios), 2), number(of_memory, 2)))
}

/// An executable of ours.
struct Step {
    exe: PathBuf,
    threads: String,
}

impl Step {
    /// A network of the zoo, or one that PyTorch exports.
    fn compile(options: &Options, name: &str, batch: &str, optimizer: &str) -> Result<Step, String> {
        let folder = target().join("bench-training");
        std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make `{}`: {error}", folder.display()))?;
        let exe = folder.join(name.replace('/', "_"));
        let spec = if optimizer == "sgd" { "sgd:momentum=0.9" } else { optimizer };
        let mut command = Command::new(target().join("release/prestow"));
        command.args(["compile", "--train", "--optimizer", spec, "--optimize", &options.goal, "-o"]).arg(&exe);
        if EXPORTED.iter().any(|folder| name.starts_with(folder)) {
            let exporter = options.peers.iter().find(|(peer, _)| peer.starts_with("torch"));
            let (_, python) =
                exporter.ok_or_else(|| format!("`{name}` needs --peers=torch-eager, which exports it"))?;
            let file = exe.with_extension("onnx");
            output_of(Command::new(python).arg(script()).args(["export", name, batch]).arg(&file))?;
            command.arg(&file).args(["--loss", "softmax_cross_entropy"]);
        } else {
            command.args([name, "--batch", batch]);
        }
        output_of(&mut command)?;
        Ok(Step { exe, threads: options.threads.to_string() })
    }

    /// The median milliseconds of some steps in a new process.
    fn visit(&self, runs: usize) -> Result<f64, String> {
        let mut command = Command::new(&self.exe);
        command.args(["bench", "--json", "--warmup", "2", "--iters", &runs.to_string(), "--threads", &self.threads]);
        let report: Json = parse(&output_of(&mut command)?)?;
        report["latency_ms"]["p50"].as_f64().ok_or_else(|| format!("{command:?} printed no median"))
    }

    fn peak_resident_bytes(&self) -> Result<f64, String> {
        let mut command = Command::new(&self.exe);
        let output = output_of(command.args(["memory", "--actual", "--json", "--threads", &self.threads]))?;
        let report: Json = parse(&output)?;
        report["actual"]["peak_rss_bytes"].as_f64().ok_or_else(|| format!("{command:?} printed no peak"))
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/training.py")
}

/// A process of `benches/peers/training.py`.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &Path, words: &[&str]) -> Result<Peer, String> {
        let mut command = Command::new(python);
        command.arg(script()).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut peer = Peer { child, input, output };
        match peer.line()?.as_str() {
            "ready" => Ok(peer),
            line => Err(format!("`{}` answers `{line}`", words[0])),
        }
    }

    fn visit(&mut self, runs: usize) -> Result<f64, String> {
        let line = self.ask(&format!("run {runs}"))?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        median(&times).ok_or_else(|| format!("a peer answers `{line}`"))
    }

    fn peak_resident_bytes(&mut self) -> Result<f64, String> {
        let line = self.ask("memory")?;
        line.parse().map_err(|_| format!("a peer answers `{line}`"))
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

fn output_of(command: &mut Command) -> Result<Vec<u8>, String> {
    let done = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if done.status.success() { Ok(done.stdout) } else { Err(format!("{command:?} failed ({})", done.status)) }
}

fn parse(bytes: &[u8]) -> Result<Json, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("no JSON: {error}"))
}

/// The target folder, which has this program under `release/deps`.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a file");
    own.ancestors().nth(3).expect("benches are in a target folder").to_path_buf()
}
