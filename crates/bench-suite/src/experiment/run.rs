//! [`Runner`]: runs the cells of an experiment as processes.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::process::{CellEnd, CellProcesses};
use super::{CellOutcome, GridCell, Journal};
use crate::clock::unix_seconds;
use crate::lines::{self, Values};
use crate::{GpuMeter, Monitor};

/// The cells that run although the journal has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rerun {
    /// None.
    #[default]
    Never,
    /// All of them.
    Always,
    /// Those that failed.
    OnFail,
}

impl FromStr for Rerun {
    type Err = String;

    fn from_str(text: &str) -> Result<Rerun, String> {
        match text {
            "never" => Ok(Rerun::Never),
            "always" => Ok(Rerun::Always),
            "onfail" => Ok(Rerun::OnFail),
            _ => Err(format!("must be never, always or onfail, got `{text}`")),
        }
    }
}

/// How lines begin with which programs, docker, podman and apptainer among them, state an error. A hint may follow.
const ERRORS: [&str; 5] = ["error", "Error", "docker: ", "FATAL", "fatal"];

/// The largest log that is read.
const LOG_MAX: types::Bytes = types::Bytes(1 << 30);

/// Runs cells one after the other, in a folder with `results.jsonl`, `progress.json` and a log for each cell.
pub struct Runner {
    folder: PathBuf,
    /// The program with the command `benchmark`.
    program: PathBuf,
    rerun: Rerun,
    gpus: Option<OpenGpus>,
    /// Stop after the current cell.
    stop: Arc<AtomicBool>,
    /// End the current cell, which then has no result.
    interrupt: Arc<AtomicBool>,
}

/// Opens the GPUs of the machine for the monitor, or returns the reason why there are none.
pub type OpenGpus = fn() -> Result<Box<dyn GpuMeter>, String>;

/// A step of a run, for a progress bar.
#[derive(Clone, Copy, Debug)]
pub enum GridEvent<'a> {
    /// A cell starts.
    Start(&'a GridCell),
    /// A cell ended, was skipped, or has a result in the journal.
    End(&'a GridCell, &'a CellOutcome),
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Cells of the plan.
    pub cells: usize,
    /// Cells that ran and have times.
    pub succeeded: usize,
    /// Cells that failed or were skipped.
    pub failed: usize,
    /// Cells that had a result.
    pub kept: usize,
    /// Whether a signal stopped the run before its end.
    pub stopped: bool,
}

impl Runner {
    /// A runner with its folder and the program that has the command `benchmark`.
    pub fn new(folder: &Path, program: &Path, rerun: Rerun) -> Runner {
        let (folder, program) = (folder.to_path_buf(), program.to_path_buf());
        Runner { folder, program, rerun, gpus: None, stop: Arc::default(), interrupt: Arc::default() }
    }

    /// Makes the monitor sample GPUs too.
    #[must_use]
    pub fn with_gpus(self, gpus: OpenGpus) -> Runner {
        Runner { gpus: Some(gpus), ..self }
    }

    /// Makes SIGUSR1 stop the run after the current cell. SIGINT (Ctrl-C), SIGTERM and SIGHUP end the processes of the
    /// current cell, which has no result then, and stop the run.
    ///
    /// # Errors
    /// A system without the signals.
    #[cfg(unix)]
    pub fn stop_on_signal(&self) -> Result<(), String> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        for (signal, flag) in
            [(SIGUSR1, &self.stop), (SIGINT, &self.interrupt), (SIGTERM, &self.interrupt), (SIGHUP, &self.interrupt)]
        {
            let registered = signal_hook::flag::register(signal, flag.clone());
            registered.map_err(|error| format!("cannot listen to signals: {error}"))?;
        }
        Ok(())
    }

    /// The path of the journal.
    pub fn journal_path(folder: &Path) -> PathBuf {
        folder.join("results.jsonl")
    }

    /// Runs all cells.
    ///
    /// # Errors
    /// Those of the journal and of log files. A benchmark that fails is a result, not an error.
    pub fn run(&self, cells: &[GridCell], mut watch: impl FnMut(GridEvent)) -> Result<RunReport, String> {
        let path = Runner::journal_path(&self.folder);
        let mut journal = Journal::open(&path)?;
        let processes = CellProcesses::new(&path).map_err(|error| format!("`{}`: {error}", path.display()))?;
        // A run that was killed may have left the process of its last cell, which would disturb the times of the next one.
        processes.end(None);
        let logs = self.folder.join("logs");
        fs::create_dir_all(&logs).map_err(|error| format!("`{}`: {error}", logs.display()))?;
        let mut report = RunReport { cells: cells.len(), ..RunReport::default() };
        let mut limits = Limits::default();
        for outcome in journal.outcomes() {
            limits.learn(&outcome.values);
        }
        for cell in cells {
            if let Some(outcome) = self.kept(&journal, cell) {
                report.kept += 1;
                watch(GridEvent::End(cell, outcome));
                continue;
            }
            let is_stopped = self.stop.load(Ordering::Relaxed) || self.interrupt.load(Ordering::Relaxed);
            if is_stopped {
                report.stopped = true;
                break;
            }
            watch(GridEvent::Start(cell));
            let log = logs.join(format!("{}.log", cell.id));
            let outcome = match limits.excludes(&cell.values) {
                Some(batch) => Some(skipped(cell, batch, &log)?),
                None => self.run_cell(cell, &log, &processes)?,
            };
            let Some(outcome) = outcome else {
                report.stopped = true;
                break;
            };
            limits.learn(&outcome.values);
            match outcome.succeeded {
                true => report.succeeded += 1,
                false => report.failed += 1,
            }
            journal.append(outcome.clone())?;
            self.write_progress(&report)?;
            watch(GridEvent::End(cell, &outcome));
        }
        self.write_progress(&report)?;
        Ok(report)
    }

    fn kept<'a>(&self, journal: &'a Journal, cell: &GridCell) -> Option<&'a CellOutcome> {
        journal.of(&cell.id).filter(|outcome| match self.rerun {
            Rerun::Never => true,
            Rerun::Always => false,
            Rerun::OnFail => outcome.succeeded,
        })
    }

    fn write_progress(&self, report: &RunReport) -> Result<(), String> {
        let done = report.succeeded + report.failed + report.kept;
        let progress = json!({
            "unix_s": unix_seconds(), "cells": report.cells, "done": done, "succeeded": report.succeeded,
            "failed": report.failed, "kept": report.kept, "stopped": report.stopped,
        });
        let path = self.folder.join("progress.json");
        files::write(&path, format!("{progress}\n").as_bytes()).map_err(|error| error.to_string())
    }

    /// Runs one cell with its output in a log, and reads the log. `None`: a signal ended it.
    fn run_cell(&self, cell: &GridCell, log: &Path, processes: &CellProcesses) -> Result<Option<CellOutcome>, String> {
        let failed = |error: std::io::Error| format!("`{}`: {error}", log.display());
        // Appending, because the process writes to the same file.
        let mut file = OpenOptions::new().append(true).create(true).open(log).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        for (name, value) in &described(cell, log) {
            file.write_all(lines::line(name, value).as_bytes()).map_err(failed)?;
        }
        let (program, arguments) = command_line(cell, &self.program);
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null());
        command.stdout(file.try_clone().map_err(failed)?).stderr(file.try_clone().map_err(failed)?);
        let mut added = vec![("results.start_time", json!(unix_seconds()))];
        let reason = match processes.spawn(&mut command) {
            Err(error) => Some(match cell.text("exp.container") {
                "" => format!("cannot start `{program}`: {error}"),
                _ => format!("cannot start `{program}`: {error}; install it, or set exp.launcher"),
            }),
            Ok(mut child) => {
                added.push(("results.proc_pid", json!(child.id())));
                let monitor = self.monitor(cell, child.id(), &mut added);
                let ended = processes.wait(&mut child, cell.number("exp.timeout"), &self.interrupt);
                if let Some(usage) = monitor.map(Monitor::finish) {
                    added.extend(usage.series());
                }
                match ended.map_err(|error| format!("cannot wait for a benchmark: {error}"))? {
                    CellEnd::Exited(status) if status.success() => None,
                    CellEnd::Exited(status) => Some(format!("the process ended with {status}")),
                    CellEnd::TimedOut => Some(format!("the process was ended after {} s", cell.number("exp.timeout"))),
                    CellEnd::Interrupted => return Ok(None),
                }
            }
        };
        added.push(("results.end_time", json!(unix_seconds())));
        let text = files::read_regular(log, LOG_MAX).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&text);
        let (mut values, _) = lines::parse(&text);
        let succeeded =
            values.get("results.time").and_then(Value::as_f64).is_some_and(|time| 0.0 < time) && reason.is_none();
        if !succeeded {
            // The last error, or the last words.
            let own = || text.lines().rev().filter(|line| !line.trim().is_empty() && !line.starts_with("__"));
            let is_error = |line: &&str| ERRORS.iter().any(|word| line.starts_with(word));
            let last = || own().find(is_error).or(own().next());
            let message = match (values.get("results.status_msg"), reason) {
                (Some(own), _) => own.clone(),
                (None, Some(reason)) => json!(last().map_or(reason.clone(), |last| format!("{reason}: {last}"))),
                (None, None) => json!("the log has no line __results.time__"),
            };
            added.extend([("results.status_msg", message), ("exp.status", json!("failure"))]);
            added.push(("results.status", json!("failure")));
            values.remove("results.time");
        }
        for (name, value) in added {
            let line = lines::line(name, &value);
            file.write_all(line.as_bytes()).map_err(failed)?;
            // As a reader of the log gets it.
            values.extend(lines::parse(&line).0);
        }
        Ok(Some(CellOutcome { id: cell.id.clone(), succeeded, values }))
    }

    /// Starts the monitor of a cell that has a frequency.
    fn monitor(&self, cell: &GridCell, pid: u32, added: &mut Vec<(&str, Value)>) -> Option<Monitor> {
        let hertz = cell.number("monitor.frequency");
        if hertz <= 0.0 {
            return None;
        }
        let gpus = self.gpus.map(|open| open()).transpose().unwrap_or_else(|reason| {
            added.push(("results.use.gpu_status", json!(reason)));
            None
        });
        Some(Monitor::start(pid, hertz, gpus))
    }

    /// The command line of a cell, quoted for a shell.
    pub fn dry_run(&self, cell: &GridCell) -> String {
        let (program, arguments) = command_line(cell, &self.program);
        std::iter::once(&program).chain(&arguments).map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// The first lines of a log: the parameters, and the keys that DLBS's scripts read of every benchmark. The benchmark's own lines replace
/// them.
fn described(cell: &GridCell, log: &Path) -> Values {
    let gpus = cell.text("exp.gpus").split([',', ':']).filter(|number| !number.trim().is_empty()).count();
    let rows = [
        ("exp.id", json!(cell.id)),
        ("exp.status", json!("ok")),
        ("exp.model_title", json!(cell.text("exp.model"))),
        ("exp.framework_title", json!(cell.text("exp.framework"))),
        ("exp.device_type", json!(if gpus == 0 { "cpu" } else { "gpu" })),
        ("exp.num_gpus", json!(gpus)),
        ("exp.num_local_gpus", json!(gpus)),
        ("exp.num_local_replicas", json!(1)),
        ("exp.num_nodes", json!(1)),
        ("exp.node_id", json!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim())),
        ("exp.log_file", json!(log)),
    ];
    let mut values: Values = rows.map(|(name, value)| (name.to_string(), value)).into();
    values.extend(cell.values.clone());
    // As the benchmark states them, so that cells that do not run have the same values.
    if cell.text("exp.command").is_empty() {
        if cell.text("exp.data").is_empty() {
            values.insert("exp.data".into(), json!("synthetic"));
        }
        if cell.number("exp.threads") == 0.0 {
            let all = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
            values.insert("exp.threads".into(), json!(all));
        }
    }
    values
}

/// The program and arguments of a cell.
fn command_line(cell: &GridCell, prestow: &Path) -> (String, Vec<String>) {
    let words = match cell.text("exp.command") {
        "" => benchmark(cell, prestow),
        command => vec!["sh".to_string(), "-c".to_string(), command.to_string()],
    };
    let mut words = match cell.text("exp.container") {
        "" => words,
        image => [in_container(cell, image, prestow), words].concat(),
    };
    let program = words.remove(0);
    (program, words)
}

/// Programs in the folder of `prestow` that a benchmark needs: `compile` appends to the runner, and the store reads data sets at
/// URLs.
const HELPERS: [&str; 2] = ["prestow-runner", "prestow-store"];

/// The words before a command that runs in an image. It sees the programs of the product and the folder in which the
/// experiment runs.
fn in_container(cell: &GridCell, image: &str, prestow: &Path) -> Vec<String> {
    let launcher = cell.text("exp.launcher");
    let folder = std::env::current_dir().unwrap_or_default().display().to_string();
    let helpers = HELPERS.map(|name| prestow.with_file_name(name));
    let programs: Vec<&Path> =
        std::iter::once(prestow).chain(helpers.iter().map(PathBuf::as_path).filter(|path| path.is_file())).collect();
    let gpus = cell.text("exp.gpus");
    let mut words = vec![launcher.to_string()];
    match launcher {
        "apptainer" => {
            words.push("exec".into());
            words.extend(programs.iter().map(|program| format!("--bind={}", program.display())));
            words.push(format!("--bind={folder}"));
            words.push(format!("--pwd={folder}"));
            words.extend((!gpus.is_empty()).then(|| "--nv".to_string()));
        }
        _ => {
            // The limits with which DLBS starts its containers. `--init` passes on the signal that ends a cell.
            let flags = ["run", "--rm", "--init", "--ipc=host", "--ulimit=stack=67108864"];
            words.extend(flags.map(String::from));
            // Locked memory is that of transfers to GPUs. Podman runs as the user, who may not raise the limit.
            words.extend((launcher != "podman" && !gpus.is_empty()).then(|| "--ulimit=memlock=-1".to_string()));
            let volume = |program: &&Path| format!("--volume={0}:{0}:ro", program.display());
            words.extend(programs.iter().map(volume));
            words.push(format!("--volume={folder}:{folder}"));
            words.push(format!("--workdir={folder}"));
            words.extend(match (gpus, launcher) {
                ("", _) => None,
                (gpus, "podman") => Some(format!("--device=nvidia.com/gpu={gpus}")),
                (gpus, _) => Some(format!("--gpus=device={gpus}")),
            });
        }
    }
    words.extend(cell.text("exp.container_args").split_whitespace().map(String::from));
    words.push(image.to_string());
    words
}

/// The flags of the benchmark that parameters set.
pub(super) const BENCHMARK_FLAGS: &[(&str, &str)] = &[
    ("model", "exp.model"),
    ("phase", "exp.phase"),
    ("batch_size", "exp.replica_batch"),
    ("num_batches", "exp.num_batches"),
    ("num_warmup_batches", "exp.num_warmup_batches"),
    ("dtype", "exp.dtype"),
    ("target", "exp.target"),
    ("gpus", "exp.gpus"),
    ("framework", "exp.framework"),
    ("data", "exp.data"),
    ("scenario", "exp.scenario"),
    ("memory", "exp.memory"),
    ("python", "exp.python"),
    ("threads", "exp.threads"),
];

fn benchmark(cell: &GridCell, prestow: &Path) -> Vec<String> {
    let mut words = vec![prestow.display().to_string(), "benchmark".into()];
    for &(flag, name) in BENCHMARK_FLAGS {
        let value = match &cell.values.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let is_left_out = match name {
            "exp.python" => cell.text("exp.framework") == "prestow",
            "exp.threads" => cell.number(name) == 0.0,
            _ => value.is_empty(),
        };
        if !is_left_out {
            words.extend([format!("--{flag}"), value]);
        }
    }
    words.extend(cell.text("exp.args").split_whitespace().map(String::from));
    words
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The smallest batch that did not fit, for each row of the grid: cells with larger batches do not run.
#[derive(Default)]
struct Limits(BTreeMap<String, f64>);

/// The start of the reason of a benchmark whose plan exceeds the memory.
const DOES_NOT_FIT: &str = "does not fit:";

impl Limits {
    fn row(values: &Values) -> String {
        let names = ["exp.framework", "exp.model", "exp.phase", "exp.dtype", "exp.target", "exp.gpus", "exp.memory"];
        names.map(|name| values.get(name).map_or_else(String::new, ToString::to_string)).join("\n")
    }

    fn batch(values: &Values) -> Option<f64> {
        values.get("exp.replica_batch")?.as_f64()
    }

    fn learn(&mut self, values: &Values) {
        let reason = values.get("results.status_msg").and_then(Value::as_str).unwrap_or_default();
        if reason.starts_with(DOES_NOT_FIT)
            && let Some(batch) = Limits::batch(values)
        {
            let least = self.0.entry(Limits::row(values)).or_insert(batch);
            *least = least.min(batch);
        }
    }

    fn excludes(&self, values: &Values) -> Option<f64> {
        let least = *self.0.get(&Limits::row(values))?;
        (least < Limits::batch(values)?).then_some(least)
    }
}

/// The outcome of a cell whose batch exceeds one that does not fit, and its log.
fn skipped(cell: &GridCell, batch: f64, log: &Path) -> Result<CellOutcome, String> {
    let mut values = described(cell, log);
    let reason = format!("skipped: batch {batch} does not fit");
    for (name, value) in
        [("results.status", json!("failure")), ("results.status_msg", json!(reason)), ("exp.status", json!("failure"))]
    {
        values.insert(name.into(), value);
    }
    let text: String = values.iter().map(|(name, value)| lines::line(name, value)).collect();
    files::write(log, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(CellOutcome { id: cell.id.clone(), succeeded: false, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Config;

    fn cells(text: &str) -> Vec<GridCell> {
        Config::parse(text).unwrap().plan().unwrap()
    }

    fn dry(text: &str) -> String {
        Runner::new(Path::new("x"), Path::new("/bin/prestow"), Rerun::Never).dry_run(&cells(text)[0])
    }

    #[test]
    fn command_lines_have_the_parameters_of_the_cell() {
        let text = "[parameters]\n\"exp.model\" = \"a b\"\n\"exp.replica_batch\" = 8\n\"exp.threads\" = 2\n";
        let line = dry(text);
        assert!(line.starts_with("/bin/prestow benchmark --model 'a b' --phase inference --batch_size 8"), "{line}");
        assert!(line.ends_with("--framework prestow --threads 2"), "{line}");
        let folder = std::env::current_dir().unwrap().display().to_string();
        let contained =
            |more: &str| dry(&format!("{text}\"exp.container\" = \"img:1\"\n{more}")).replace(&folder, "HERE");
        let line = contained(
            "\"exp.launcher\" = \"podman\"\n\"exp.gpus\" = \"1\"\n\"exp.container_args\" = \"-v /data:/data\"",
        );
        let wanted = "podman run --rm --init --ipc=host --ulimit=stack=67108864 \
                      --volume=/bin/prestow:/bin/prestow:ro --volume=HERE:HERE --workdir=HERE --device=nvidia.com/gpu=1 \
                      -v /data:/data img:1 /bin/prestow benchmark --model 'a b'";
        assert!(line.starts_with(wanted), "{line}");
        let line = contained("\"exp.gpus\" = \"1\"");
        assert!(line.contains(" --ulimit=memlock=-1 ") && line.contains(" --gpus=device=1 img:1 "), "{line}");
        assert!(contained("").starts_with("docker run --rm"));
        assert!(!contained("").contains("memlock"));
        let line = dry(
            "[parameters]\n\"exp.command\" = \"echo ${exp.repeat}\"\n\"exp.container\" = \"i\"\n\"exp.launcher\" = \"apptainer\"",
        );
        let wanted = "apptainer exec --bind=/bin/prestow --bind=HERE --pwd=HERE i sh -c 'echo 1'";
        assert_eq!(line.replace(&folder, "HERE"), wanted);
    }

    #[test]
    fn container_has_the_runner_of_the_program() {
        let folder = std::env::temp_dir().join(format!("prestow-container-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (program, runner) = (folder.join("prestow"), folder.join("prestow-runner"));
        fs::write(&runner, "").unwrap();
        for (launcher, word) in [("podman", "--volume={0}:{0}:ro "), ("apptainer", "--bind={0} ")] {
            let text = format!(
                "[parameters]\n\"exp.model\" = \"lenet\"\n\"exp.container\" = \"i\"\n\"exp.launcher\" = \"{launcher}\""
            );
            let line = Runner::new(Path::new("x"), &program, Rerun::Never).dry_run(&cells(&text)[0]);
            for program in [&program, &runner] {
                assert!(line.contains(&word.replace("{0}", &program.display().to_string())), "{line}");
            }
            assert!(!line.contains("prestow-store"), "it does not exist: {line}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn larger_batches_of_a_row_that_does_not_fit_are_excluded() {
        let mut limits = Limits::default();
        let row = |batch: u64, model: &str| {
            Values::from([("exp.model".into(), json!(model)), ("exp.replica_batch".into(), json!(batch))])
        };
        let mut failed = row(8, "a");
        failed.insert("results.status_msg".into(), json!("does not fit: needs 9 GiB of 8 GiB"));
        limits.learn(&failed);
        assert_eq!(limits.excludes(&row(16, "a")), Some(8.0));
        assert_eq!((limits.excludes(&row(4, "a")), limits.excludes(&row(16, "b"))), (None, None));
    }
}
