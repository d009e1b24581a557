//! [`Journal`]: the results of an experiment, one JSON object a line.
//!
//! A line is appended and flushed to disk when its cell ends. A process that is killed leaves whole lines and at most one
//! incomplete last line, which the next open removes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use types::Bytes;

use crate::lines::Values;

/// The end of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// The id of the cell.
    pub id: String,
    /// Whether it has times.
    pub succeeded: bool,
    /// The parameters of the cell and the result lines of its log.
    pub values: Values,
}

/// The results of an experiment on disk.
pub struct Journal {
    file: File,
    path: PathBuf,
    outcomes: Vec<CellOutcome>,
}

/// The largest file of results.
const SIZE_MAX: Bytes = Bytes(1 << 32);

/// The results of whole lines.
fn outcomes(path: &Path, text: &[u8]) -> Result<Vec<CellOutcome>, String> {
    let text = String::from_utf8_lossy(text);
    let outcome = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("`{}` line {}: {error}", path.display(), number + 1))
    };
    text.lines().enumerate().map(outcome).collect()
}

/// Attempts to lock a journal, and the pause between two.
const LOCK_ATTEMPTS: usize = 50;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

impl Journal {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// Those of the file system; a line that is no result; another process that has the journal open.
    pub fn open(path: &Path) -> Result<Journal, String> {
        let failed = |error: io::Error| format!("`{}`: {error}", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        // A device may never end.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(format!("`{}` must be a regular file", path.display()));
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        // A child that another thread is starting holds the lock of a closed journal until it executes its program.
        let mut attempts = LOCK_ATTEMPTS;
        while let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            attempts -= 1;
            if attempts == 0 {
                return Err(format!("`{}` is in use by another run of the experiment", path.display()));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        let mut journal = Journal { file, path: path.to_path_buf(), outcomes: vec![] };
        if SIZE_MAX.0 < journal.file.metadata().map_err(failed)?.len() {
            return Err(format!("`{}` must have at most {SIZE_MAX}", path.display()));
        }
        let mut text = Vec::new();
        journal.file.read_to_end(&mut text).map_err(failed)?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            journal.file.set_len(whole as u64).map_err(failed)?;
        }
        journal.outcomes = outcomes(path, &text[..whole])?;
        Ok(journal)
    }

    /// The results of a file, which stays as it is: it may be of a run that goes on. An incomplete last line is left out.
    ///
    /// # Errors
    /// Those of the file system; a line that is no result.
    pub fn read(path: &Path) -> Result<Vec<CellOutcome>, String> {
        let text = files::read_regular(path, SIZE_MAX).map_err(|error| error.to_string())?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut found = outcomes(path, &text[..whole])?;
        found.extend(serde_json::from_slice::<CellOutcome>(&text[whole..]));
        Ok(found)
    }

    /// All results in the order of their ends.
    pub fn outcomes(&self) -> &[CellOutcome] {
        &self.outcomes
    }

    /// The last result of a cell.
    pub fn of(&self, id: &str) -> Option<&CellOutcome> {
        self.outcomes.iter().rev().find(|outcome| outcome.id == id)
    }

    /// Appends a result.
    ///
    /// # Errors
    /// Those of the file system, as a full disk; then the file is as before.
    pub fn append(&mut self, outcome: CellOutcome) -> Result<(), String> {
        let mut line = serde_json::to_string(&outcome).expect("JSON values");
        line.push('\n');
        let size = self.file.seek(SeekFrom::End(0)).map_err(|error| self.failed(&error))?;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.file.set_len(size);
            return Err(self.failed(&error));
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("cannot append to `{}`: {error}; all earlier results are in it", self.path.display())
    }
}
