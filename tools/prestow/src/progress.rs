//! [`Progress`]: a line on the terminal for work of more than two seconds.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use report::printable;
use types::Bytes;

use crate::say;

/// Work that is shorter shows nothing.
const DELAY: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);

/// A spinner or a bar on stderr. It disappears when it is dropped, and never appears if stderr is not a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A spinner for work of unknown length.
    pub(crate) fn spinner(message: &str) -> Progress {
        Progress::start(ProgressBar::new_spinner(), "{spinner} {elapsed} {msg}", message)
    }

    /// A bar for a number of items.
    pub(crate) fn bar(items: usize, message: &str) -> Progress {
        Progress::start(ProgressBar::new(items as u64), "{elapsed} [{bar:30}] {pos}/{len} {msg}", message)
    }

    /// Becomes a bar of bytes, at its start.
    pub(crate) fn bytes(&self, size: Bytes, message: &str) {
        let template = "{elapsed} [{bar:30}] {bytes}/{total_bytes} {msg}";
        self.bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        self.bar.set_length(size.0);
        self.message(message);
    }

    /// Shows the number of bytes that are done.
    pub(crate) fn done(&self, bytes: Bytes) {
        self.bar.set_position(bytes.0);
    }

    fn start(bar: ProgressBar, template: &str, message: &str) -> Progress {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message(printable(message).into_owned());
        if std::io::stderr().is_terminal() {
            let late = bar.clone();
            // Work goes on without a bar if the system starts no more threads.
            let _ = std::thread::Builder::new().spawn(move || {
                std::thread::sleep(DELAY);
                if !late.is_finished() {
                    late.set_draw_target(ProgressDrawTarget::stderr());
                    late.enable_steady_tick(TICK);
                }
            });
        }
        Progress { bar }
    }

    /// Shows the current part of the work.
    pub(crate) fn message(&self, message: impl Into<String>) {
        self.bar.set_message(printable(&message.into()).into_owned());
    }

    /// Counts an item. A line is printed where no bar can be.
    pub(crate) fn item(&self, line: &str) {
        self.bar.inc(1);
        match self.bar.is_hidden() {
            true => say::line(line),
            false => self.bar.println(printable(line)),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
