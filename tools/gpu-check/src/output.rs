//! [`Output`]: the report on the screen and in a file, both updated after every row.

use std::cell::OnceCell;
use std::io::Write;
use std::path::PathBuf;

use crate::arguments::Settings;
use crate::rows::{Head, NetworkRow, Report, TrainingRow};

/// The report and its destinations.
pub(crate) struct Output {
    path: Option<PathBuf>,
    /// JSON on the screen at the end, instead of text as it comes.
    json: bool,
    /// The first error of printing.
    unprinted: OnceCell<String>,
    pub(crate) report: Report,
}

impl Output {
    /// An empty report, or with `--resume` the one in the file.
    ///
    /// # Errors
    /// The file cannot be read, or it is of another GPU or other settings.
    pub(crate) fn new(settings: &Settings, head: Head) -> Result<Output, String> {
        let mut report = Report {
            head,
            peaks: None,
            baselines: Default::default(),
            operators: Vec::new(),
            operators_summary: Vec::new(),
            operators_part: Vec::new(),
            networks: Vec::new(),
            training: Vec::new(),
            remaining: 0,
        };
        if let (true, Some(path)) = (settings.resume, &settings.output)
            && let Some(before) = read(path)?
        {
            is_same_run(&before.head, &report.head).map_err(|why| format!("--resume {}: {why}", path.display()))?;
            report = Report { head: report.head, remaining: 0, ..before };
            let mut known: Vec<_> = report.operators_summary.iter().map(|summary| summary.dtype).collect();
            known.extend(report.operators_part.iter().map(|part| part.dtype));
            report.operators.retain(|row| known.contains(&row.dtype));
        }
        Ok(Output { path: settings.output.clone(), json: settings.json, unprinted: OnceCell::new(), report })
    }

    /// Prints text, unless JSON is wanted. [`Output::finish`] returns an error of printing: the checks go on without it.
    pub(crate) fn show(&self, text: &str) {
        if !self.json {
            self.print(text);
        }
    }

    fn print(&self, text: &str) {
        if let Err(error) = files::print(text) {
            self.unprinted.get_or_init(|| format!("cannot write to standard output: {error}"));
        }
    }

    /// Adds a row of a network.
    pub(crate) fn add_network(&mut self, row: NetworkRow, text: &str) -> Result<(), String> {
        self.report.networks.push(row);
        self.show(text);
        self.save()
    }

    /// Adds a row of a training step.
    pub(crate) fn add_training(&mut self, row: TrainingRow, text: &str) -> Result<(), String> {
        self.report.training.push(row);
        self.show(text);
        self.save()
    }

    /// Writes the file.
    pub(crate) fn save(&self) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let text = self.text();
        files::write(path, text.as_bytes()).map_err(|error| error.to_string())
    }

    /// Prints the JSON if it is wanted.
    ///
    /// # Errors
    /// Standard output cannot be written, now or earlier.
    pub(crate) fn finish(self) -> Result<(), String> {
        if self.json {
            self.print(&self.text());
        }
        self.unprinted.into_inner().map_or(Ok(()), Err)
    }

    fn text(&self) -> String {
        let text = serde_json::to_string_pretty(&self.report).expect("the report is plain data");
        text + "\n"
    }
}

/// The report of an earlier run. `None` if there is no file.
fn read(path: &std::path::Path) -> Result<Option<Report>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("--resume {}: {error}", path.display())),
    };
    let report = serde_json::from_slice(&bytes);
    report.map(Some).map_err(|error| format!("--resume {}: not a report of this version: {error}", path.display()))
}

/// Prints a line about work that goes on to standard error.
pub(crate) fn progress(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn is_same_run(before: &Head, now: &Head) -> Result<(), String> {
    let differs = |what: &str, before: &dyn std::fmt::Debug, now: &dyn std::fmt::Debug| {
        Err(format!("the file has {what} {before:?}, this run has {now:?}; name another file with -o"))
    };
    match () {
        () if before.gpu != now.gpu => differs("the GPU", &before.gpu, &now.gpu),
        () if before.nvrtc != now.nvrtc => differs("NVRTC", &before.nvrtc, &now.nvrtc),
        () if before.cudnn != now.cudnn => differs("cuDNN", &before.cudnn, &now.cudnn),
        () if before.cublas != now.cublas => differs("cuBLASLt", &before.cublas, &now.cublas),
        () if before.only != now.only => differs("--only", &before.only, &now.only),
        () => Ok(()),
    }
}
