//! The limit of file sizes of a process (`ulimit -f`).

/// From now on, a write above the limit of file sizes fails with `EFBIG`, as one to a full disk fails with `ENOSPC`. Without
/// this, SIGXFSZ ends the process, and no message names the file. For programs; a library leaves the choice to its caller.
///
/// A handler and not SIG_IGN, which the programs that this one starts would inherit. A system that refuses the handler keeps
/// the signal.
#[cfg(unix)]
pub fn fail_above_size_limit() {
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
}

/// Other systems have no such signal.
#[cfg(not(unix))]
pub fn fail_above_size_limit() {}
