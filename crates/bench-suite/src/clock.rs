//! The clock of this crate.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the first call in this process, by the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the clock with which runs are measured")]
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Below this the thread spins, since a sleep may end late by about as much.
const SPIN_NS: u64 = 200_000;

/// Waits until [`now_ns`] is at least `ns`.
pub(crate) fn wait_until(ns: u64) {
    loop {
        let now = now_ns();
        if ns <= now {
            return;
        }
        match ns - now {
            left if SPIN_NS < left => std::thread::sleep(Duration::from_nanos(left - SPIN_NS)),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Seconds since 1970, in whole microseconds.
#[expect(clippy::disallowed_methods, reason = "results state when they were measured")]
pub(crate) fn unix_seconds() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |duration| (duration.as_secs_f64() * 1e6).round() / 1e6)
}
