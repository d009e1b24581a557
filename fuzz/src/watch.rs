//! [`Watch`]: keeps the running input on disk, for inputs that end the process, and ends the process if one hangs.
//!
//! Time is the processor time of this process, which other load on the machine does not change. A process that is blocked
//! uses none, so that threads which all sleep for as long are a hang as well.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::run::failures;

/// The longest processor time of one input, and the longest time in which no thread can run.
pub(crate) const HANG: Duration = Duration::from_secs(10);

/// The time between two looks at the process.
const PERIOD: Duration = Duration::from_millis(500);

/// The unit of times in `/proc`: USER_HZ, which is 100 on x86-64 and AArch64 (proc(5)).
const TICK: Duration = Duration::from_millis(10);

/// The number of the running input, from one; 0 between inputs.
static RUNNING: AtomicU64 = AtomicU64::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// The running input of a target, in a file.
pub(crate) struct Watch {
    file: Option<std::fs::File>,
    inputs: AtomicU64,
}

impl Watch {
    pub(crate) fn start(name: &str) -> Watch {
        RUNNING.store(0, Ordering::Relaxed);
        let path = failures().join(format!("{name}-running"));
        let made = std::fs::create_dir_all(failures());
        let file = made.and_then(|()| std::fs::File::create(&path)).ok();
        if !IS_WATCHED.swap(true, Ordering::Relaxed) {
            std::thread::spawn(watch);
        }
        Watch { file, inputs: AtomicU64::new(0) }
    }

    pub(crate) fn begin(&self, input: &[u8]) {
        use std::os::unix::fs::FileExt;
        if let Some(file) = &self.file {
            let _ = file.write_all_at(input, 0).and_then(|()| file.set_len(input.len() as u64));
        }
        RUNNING.store(1 + self.inputs.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        RUNNING.store(0, Ordering::Relaxed);
    }
}

/// Looks at the process until an input hangs, and ends the process then.
fn watch() {
    let mut judge = Judge::default();
    loop {
        std::thread::sleep(PERIOD);
        let look = Look { input: RUNNING.load(Ordering::Relaxed), used: used(), is_blocked: is_blocked() };
        if let Some(hang) = judge.add(look) {
            eprintln!("an input {hang}: it is in `{}`", failures().display());
            std::process::exit(1);
        }
    }
}

/// One look at the process.
#[derive(Clone, Copy)]
struct Look {
    /// The number of the running input; 0 between inputs.
    input: u64,
    /// Processor time of all threads since the start of the process.
    used: Duration,
    /// Whether every other thread sleeps.
    is_blocked: bool,
}

/// What the looks at one input have in common.
#[derive(Default)]
struct Judge {
    first: Option<Look>,
    /// Looks in a row at a blocked process.
    blocked: u32,
}

impl Judge {
    /// Adds a look. Returns how the input hangs, if it does.
    fn add(&mut self, look: Look) -> Option<String> {
        let Some(first) = self.first.filter(|first| first.input == look.input && look.input != 0) else {
            *self = Judge { first: Some(look), blocked: 0 };
            return None;
        };
        self.blocked = if look.is_blocked { self.blocked + 1 } else { 0 };
        if HANG < look.used.saturating_sub(first.used) {
            return Some(format!("takes more than {HANG:?} of processor time"));
        }
        (HANG <= PERIOD * self.blocked).then(|| format!("sleeps for {HANG:?}"))
    }
}

/// User and system time of all threads of this process; zero if `/proc` is not mounted.
fn used() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    TICK * fields(&stat).skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum::<u32>()
}

/// Whether every thread but the caller's sleeps. Not if `/proc` is not mounted.
fn is_blocked() -> bool {
    let own = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = threads.filter(|thread| Some(thread.file_name().as_os_str()) != own.file_name());
    let states = others.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let states: Vec<bool> = states.map(|stat| fields(&stat).next() == Some("S")).collect();
    !states.is_empty() && states.iter().all(|&sleeps| sleeps)
}

/// The fields of a `stat` from the state on, which is the third: the second is a name in parentheses of any text.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test is about time")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The looks after which an input is said to hang, of `count`.
    fn hangs(count: u32, look: impl Fn(u32) -> Look) -> Option<u32> {
        let mut judge = Judge::default();
        (0..count).find(|&at| judge.add(look(at)).is_some())
    }

    #[test]
    fn input_that_waits_for_a_processor_does_not_hang() {
        let waits = |at: u32| Look { input: 1, used: SECOND + TICK * at, is_blocked: false };
        assert_eq!(hangs(900, waits), None);
    }

    #[test]
    fn input_that_computes_for_ten_seconds_hangs() {
        assert_eq!(hangs(900, |at| Look { input: 1, used: SECOND * at, is_blocked: false }), Some(11));
        assert_eq!(hangs(900, |at| Look { input: u64::from(at), used: SECOND * at, is_blocked: false }), None);
        assert_eq!(hangs(900, |at| Look { input: 0, used: SECOND * at, is_blocked: false }), None, "between inputs");
    }

    #[test]
    fn input_that_sleeps_for_ten_seconds_hangs() {
        assert_eq!(hangs(900, |_| Look { input: 1, used: SECOND, is_blocked: true }), Some(20));
        assert_eq!(hangs(900, |at| Look { input: 1, used: SECOND, is_blocked: at % 20 != 0 }), None);
    }

    #[test]
    fn times_and_states_of_this_process_are_read() {
        let before = used();
        let start = std::time::Instant::now();
        let mut sum = 0u64;
        while used() < before + TICK * 3 {
            assert!(start.elapsed() < SECOND * 300, "no time is counted");
            sum = std::hint::black_box(sum + 1);
        }
        // The thread that computes here is another one of that which looks.
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
            assert!(!(0..20).all(|_| is_blocked()));
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(fields("7 (a) b) R 1 2").collect::<Vec<_>>(), ["R", "1", "2"]);
    }
}
