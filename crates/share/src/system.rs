//! The daemon as a process: signals as a descriptor, sockets that systemd passed on, notifications to it, and the limit of
//! descriptors.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Blocks SIGTERM, SIGINT, SIGQUIT and SIGHUP for this thread and the threads that it starts; returns a descriptor that
/// becomes readable when one arrives. SIGXFSZ is blocked too: a write above the limit of file sizes is then an error. Call
/// it before any thread is started.
///
/// # Errors
/// Those of the system.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the sets are plain structures that `sigemptyset` initializes before their use; the calls only access them. The
    // descriptor that `signalfd` returns is fresh and owned by nothing else.
    #[expect(unsafe_code, reason = "signal masks have no safe wrapper here")]
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        let code = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let mut size: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut size);
        libc::sigaddset(&mut size, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &size, std::ptr::null_mut());
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// The shortest time slice of Linux's fair scheduler.
const SLICE_NANOSECONDS: u64 = 100_000;
/// The nice value of a preferred thread: it runs soon after it wakes although processes of the usual priority take all
/// processors.
const NICE_PREFERRED: i32 = -10;

/// The first version of the kernel's `sched_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SchedulerAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The time slice in nanoseconds, for the usual policy.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Short time slices of the thread that makes it, until it is dropped: the scheduler then lets the thread run soon after it
/// wakes, also under load, and gives it no more time in total. Kernels before 6.12 ignore it; other failures
/// leave the usual slices.
#[derive(Debug)]
pub struct ShortSlices(Option<SchedulerAttributes>);

impl ShortSlices {
    /// Requests short slices.
    #[expect(clippy::new_without_default, reason = "it changes the calling thread")]
    pub fn new() -> ShortSlices {
        ShortSlices::with(|usual| SchedulerAttributes { runtime: SLICE_NANOSECONDS, ..*usual })
    }

    /// Requests short slices and a high priority, for a thread that many processes wait for and that works for microseconds
    /// at a time. A system that refuses the priority (it needs `CAP_SYS_NICE` or `RLIMIT_NICE`) gives short slices alone.
    pub fn preferred() -> ShortSlices {
        let guard = ShortSlices::with(|usual| {
            let nice = usual.nice.min(NICE_PREFERRED);
            SchedulerAttributes { runtime: SLICE_NANOSECONDS, nice, ..*usual }
        });
        if guard.0.is_some() { guard } else { ShortSlices::new() }
    }

    /// Changes the attributes of a thread that has the usual policy.
    fn with(change: impl FnOnce(&SchedulerAttributes) -> SchedulerAttributes) -> ShortSlices {
        let mut usual = SchedulerAttributes::default();
        let size = size_of::<SchedulerAttributes>() as u32;
        // SAFETY: the call is for this thread (0) and writes at most `size` bytes, all of them inside of the structure.
        #[expect(unsafe_code, reason = "the scheduler's attributes have no safe wrapper here")]
        let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut usual, size, 0) };
        let is_usual = done == 0 && usual.policy == libc::SCHED_OTHER as u32;
        ShortSlices((is_usual && set(&change(&usual))).then_some(usual))
    }
}

impl Drop for ShortSlices {
    fn drop(&mut self) {
        self.0.as_ref().map(set);
    }
}

/// Sets the attributes of this thread; returns whether the system accepted them.
fn set(attributes: &SchedulerAttributes) -> bool {
    // SAFETY: the call is for this thread (0) and reads `attributes.size` bytes, at most those of the structure: the kernel
    // set that field to the size that it was given, or to less.
    #[expect(unsafe_code, reason = "the scheduler's attributes have no safe wrapper here")]
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) };
    done == 0
}

/// The sockets that systemd passed on, with their names. `listen` is `(LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES)`; they are
/// for another process if the first is not this one's number. Call it once, before descriptors are opened.
pub fn inherited(listen: (Option<&str>, Option<&str>, Option<&str>)) -> Vec<(String, OwnedFd)> {
    let (Some(process), Some(count), names) = listen else { return Vec::new() };
    let count = count.parse().unwrap_or(0).min(16);
    if process.parse() != Ok(std::process::id()) {
        return Vec::new();
    }
    let names: Vec<&str> = names.unwrap_or_default().split(':').collect();
    (0..count)
        .map(|ix: i32| {
            // SAFETY: systemd's protocol (sd_listen_fds) makes descriptors 3 and following this process's own, and the
            // caller takes them once.
            #[expect(unsafe_code, reason = "descriptors by number")]
            let descriptor = unsafe { OwnedFd::from_raw_fd(3 + ix) };
            // They were passed through an exec, so they are not closed by the next one.
            let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
            (names.get(ix as usize).copied().unwrap_or_default().to_string(), descriptor)
        })
        .collect()
}

/// Sends a state to systemd; `socket` is the value of `NOTIFY_SOCKET`. Failures are ignored: the daemon serves anyway.
pub fn notify(socket: &str, state: &str) {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    };
    if let (Ok(address), Ok(sender)) = (address, UnixDatagram::unbound()) {
        let _ = sender.send_to_addr(state.as_bytes(), &address);
    }
}

/// Raises the limit of descriptors as far as the system allows, and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("se.slice"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("the thread exists")
    }

    #[test]
    fn priority_is_high_until_the_guard_is_dropped_if_the_system_permits() {
        let before = nice();
        let guard = ShortSlices::preferred();
        assert!([before, before.min(NICE_PREFERRED)].contains(&nice()), "{before} {}", nice());
        drop(guard);
        assert_eq!(nice(), before);
    }

    #[test]
    fn slices_are_short_until_the_guard_is_dropped() {
        let before = slice();
        let guard = ShortSlices::new();
        let during = slice();
        // Older kernels have no such setting, and some show none.
        assert!(during == SLICE_NANOSECONDS || during == before, "{before} {during}");
        drop(guard);
        assert_eq!(slice(), before);
    }
}
