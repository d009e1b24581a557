//! [`CellProcesses`]: the process of a cell with all processes that it starts.
//!
//! They are found by a variable of their environment, which names the journal. So a timeout or a signal ends all of them, and
//! a run ends those that a killed run of the same experiment left behind. Elsewhere than on Linux only the first process ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now_ns;

/// The variable of the environment.
const MARK: &str = "PRESTOW_EXPERIMENT";

/// The time between SIGTERM and SIGKILL.
const GRACE_NS: u64 = 3_000_000_000;

const PAUSE: Duration = Duration::from_millis(10);

/// How the process of a cell ended.
#[derive(Debug)]
pub(super) enum CellEnd {
    /// By itself.
    Exited(ExitStatus),
    /// After the time of the cell.
    TimedOut,
    /// By a signal to the run.
    Interrupted,
}

/// Starts and ends the processes of one experiment.
pub(super) struct CellProcesses {
    /// The absolute path of the journal.
    mark: PathBuf,
}

impl CellProcesses {
    /// For the experiment of a journal that exists.
    pub(super) fn new(journal: &Path) -> std::io::Result<CellProcesses> {
        Ok(CellProcesses { mark: std::fs::canonicalize(journal)? })
    }

    /// Starts the process of a cell.
    pub(super) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        command.env(MARK, &self.mark).spawn()
    }

    /// Waits for the end. After `timeout` seconds, if that is not 0, or at an interruption the processes are ended.
    pub(super) fn wait(&self, child: &mut Child, timeout: f64, interrupted: &AtomicBool) -> std::io::Result<CellEnd> {
        let start = now_ns();
        let end = loop {
            if let Some(status) = child.try_wait()? {
                // The terminal sends Ctrl-C to the cell too, whose end may be seen first.
                if !status.success() {
                    std::thread::sleep(PAUSE);
                }
                match interrupted.load(Ordering::Relaxed) {
                    true => break CellEnd::Interrupted,
                    false => return Ok(CellEnd::Exited(status)),
                }
            }
            if interrupted.load(Ordering::Relaxed) {
                break CellEnd::Interrupted;
            }
            if 0.0 < timeout && timeout * 1e9 <= (now_ns() - start) as f64 {
                break CellEnd::TimedOut;
            }
            std::thread::sleep(PAUSE);
        };
        self.end(Some(child));
        child.wait()?;
        Ok(end)
    }

    /// Ends all processes of the experiment: first by SIGTERM, so that a program that runs containers ends its container.
    pub(super) fn end(&self, mut child: Option<&mut Child>) -> usize {
        let mut signal = |signal: Signal| {
            let found = self.found();
            for pid in &found {
                // It may have ended since it was found.
                let _ = kill_process(*pid, signal);
            }
            // Reaped, so that it is not found again.
            let _ = child.as_mut().map(|child| child.try_wait());
            found.len()
        };
        let (start, count) = (now_ns(), signal(Signal::TERM));
        while !self.found().is_empty() {
            if start + GRACE_NS < now_ns() {
                signal(Signal::KILL);
            }
            std::thread::sleep(PAUSE);
            if start + 2 * GRACE_NS < now_ns() {
                break;
            }
        }
        if let Some(child) = child {
            // Where processes have no list.
            let _ = child.kill();
        }
        count
    }

    /// The processes of the experiment, without this one.
    fn found(&self) -> Vec<Pid> {
        let mark = [MARK.as_bytes(), b"=", self.mark.as_os_str().as_encoded_bytes()].concat();
        let own = std::process::id();
        let is_marked = |pid: &u32| {
            // That of another user cannot be read, and that of a process that has ended is empty.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            *pid != own && environment.split(|&byte| byte == 0).any(|variable| variable == mark)
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(is_marked).filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect()
    }
}
