//! [`Runner`]: runs the cells of an experiment as processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{CellOutcome, GridCell, Journal};
use crate::Monitor;
use crate::clock::{now_ns, unix_seconds};
use crate::lines::{self, Values};

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

/// Runs cells one after the other, in a folder with `results.jsonl`, `progress.json` and a log for each cell.
pub struct Runner {
    folder: PathBuf,
    /// The program with the command `benchmark`.
    program: PathBuf,
    rerun: Rerun,
    stop: Arc<AtomicBool>,
}

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
        let stop = Arc::new(AtomicBool::new(false));
        Runner { folder: folder.to_path_buf(), program: program.to_path_buf(), rerun, stop }
    }

    /// Makes SIGUSR1 stop the run after the current cell.
    ///
    /// # Errors
    /// A system without the signal.
    #[cfg(unix)]
    pub fn stop_on_signal(&self) -> Result<(), String> {
        let registered = signal_hook::flag::register(signal_hook::consts::SIGUSR1, self.stop.clone());
        registered.map(drop).map_err(|error| format!("cannot listen to SIGUSR1: {error}"))
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
        let mut journal = Journal::open(&Runner::journal_path(&self.folder))?;
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
            if self.stop.load(Ordering::Relaxed) {
                report.stopped = true;
                break;
            }
            watch(GridEvent::Start(cell));
            let outcome = match limits.excludes(&cell.values) {
                Some(batch) => skipped(cell, batch),
                None => self.run_cell(cell, &logs.join(format!("{}.log", cell.id)))?,
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

    /// Runs one cell with its output in a log, and reads the log.
    fn run_cell(&self, cell: &GridCell, log: &Path) -> Result<CellOutcome, String> {
        let failed = |error: std::io::Error| format!("`{}`: {error}", log.display());
        let mut file = File::create(log).map_err(failed)?;
        for (name, value) in &cell.values {
            file.write_all(lines::line(name, value).as_bytes()).map_err(failed)?;
        }
        let (program, arguments) = command_line(cell, &self.program);
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null());
        command.stdout(file.try_clone().map_err(failed)?).stderr(file.try_clone().map_err(failed)?);
        let start = unix_seconds();
        let mut added = vec![("results.start_time", json!(start))];
        let reason = match command.spawn() {
            Err(error) => Some(format!("cannot start `{program}`: {error}")),
            Ok(mut child) => {
                added.push(("results.proc_pid", json!(child.id())));
                let hertz = cell.number("monitor.frequency");
                let monitor = (0.0 < hertz).then(|| Monitor::start(child.id(), hertz));
                let ended = wait(&mut child, cell.number("exp.timeout"));
                if let Some(usage) = monitor.map(Monitor::finish) {
                    added.extend([
                        ("results.use.seconds", json!(usage.seconds)),
                        ("results.use.cpu_percent", json!(usage.cpu_percent)),
                        ("results.use.rss_bytes", json!(usage.rss_bytes)),
                        ("results.use.pss_bytes", json!(usage.pss_bytes)),
                        ("results.use.watts", json!(usage.watts)),
                    ]);
                }
                match ended? {
                    Some(status) if status.success() => None,
                    Some(status) => Some(format!("the process ended with {status}")),
                    None => Some(format!("the process was ended after {} s", cell.number("exp.timeout"))),
                }
            }
        };
        added.push(("results.end_time", json!(unix_seconds())));
        let text = fs::read(log).map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        let (mut values, _) = lines::parse(&text);
        let succeeded = values.get("results.time").is_some_and(Value::is_number) && reason.is_none();
        if !succeeded {
            let last = || text.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("__"));
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
        Ok(CellOutcome { id: cell.id.clone(), succeeded, values })
    }

    /// The command line of a cell, quoted for a shell.
    pub fn dry_run(&self, cell: &GridCell) -> String {
        let (program, arguments) = command_line(cell, &self.program);
        std::iter::once(&program).chain(&arguments).map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Waits for the end. `None`: it was ended after `timeout` seconds.
fn wait(child: &mut Child, timeout: f64) -> Result<Option<ExitStatus>, String> {
    let failed = |error: std::io::Error| format!("cannot wait for a benchmark: {error}");
    if timeout <= 0.0 {
        return child.wait().map(Some).map_err(failed);
    }
    let deadline = now_ns() + (timeout * 1e9) as u64;
    while now_ns() < deadline {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)?;
    Ok(None)
}

/// The program and arguments of a cell.
fn command_line(cell: &GridCell, prestow: &Path) -> (String, Vec<String>) {
    let words = match cell.text("exp.command") {
        "" => benchmark(cell, prestow),
        command => vec!["sh".to_string(), "-c".to_string(), command.to_string()],
    };
    let image = cell.text("exp.container");
    let mut words: Vec<String> = match (image, cell.text("exp.launcher")) {
        ("", _) => words,
        (image, "apptainer") => ["apptainer", "exec", image].map(String::from).into_iter().chain(words).collect(),
        (image, launcher) => {
            // The limits with which DLBS starts its containers.
            let flags = ["run", "--rm", "--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"];
            let head = std::iter::once(launcher).chain(flags).chain([image]).map(String::from);
            head.chain(words).collect()
        }
    };
    let program = words.remove(0);
    (program, words)
}

fn benchmark(cell: &GridCell, prestow: &Path) -> Vec<String> {
    let mut words = vec![prestow.display().to_string(), "benchmark".into()];
    let number = |name: &str| cell.values.get(name).map_or_else(String::new, ToString::to_string);
    for (flag, value) in [
        ("model", cell.text("exp.model").to_string()),
        ("phase", cell.text("exp.phase").to_string()),
        ("batch_size", number("exp.replica_batch")),
        ("num_batches", number("exp.num_batches")),
        ("num_warmup_batches", number("exp.num_warmup_batches")),
        ("dtype", cell.text("exp.dtype").to_string()),
        ("target", cell.text("exp.target").to_string()),
        ("gpus", cell.text("exp.gpus").to_string()),
        ("framework", cell.text("exp.framework").to_string()),
        ("data", cell.text("exp.data").to_string()),
        ("scenario", cell.text("exp.scenario").to_string()),
        ("memory", cell.text("exp.memory").to_string()),
    ] {
        if !value.is_empty() {
            words.extend([format!("--{flag}"), value]);
        }
    }
    if cell.text("exp.framework") != "prestow" {
        words.extend(["--python".into(), cell.text("exp.python").into()]);
    }
    if 0.0 < cell.number("exp.threads") {
        words.extend(["--threads".into(), number("exp.threads")]);
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

fn skipped(cell: &GridCell, batch: f64) -> CellOutcome {
    let mut values = cell.values.clone();
    let reason = format!("skipped: batch {batch} does not fit");
    for (name, value) in
        [("results.status", json!("failure")), ("results.status_msg", json!(reason)), ("exp.status", json!("failure"))]
    {
        values.insert(name.into(), value);
    }
    CellOutcome { id: cell.id.clone(), succeeded: false, values }
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
        let line = dry(&format!("{text}\"exp.container\" = \"img:1\"\n\"exp.launcher\" = \"podman\"\n"));
        assert!(
            line.starts_with("podman run --rm --ipc=host") && line.contains(" img:1 /bin/prestow benchmark"),
            "{line}"
        );
        let line = dry(
            "[parameters]\n\"exp.command\" = \"echo ${exp.repeat}\"\n\"exp.container\" = \"i\"\n\"exp.launcher\" = \"apptainer\"",
        );
        assert_eq!(line, "apptainer exec i sh -c 'echo 1'");
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
