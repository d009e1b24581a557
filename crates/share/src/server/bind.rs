//! [`Binding`]: the socket that the daemon listens on, its folder, and the lock that keeps a second daemon away.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::net::{SocketFlags, bind, listen};

use crate::socket;

/// Reason why a daemon does not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ServeError {
    #[error("a daemon already serves `{path}`; stop it with `uprd drain`, or use another socket")]
    Running { path: String },
    #[error("the folder `{path}` must belong to user {want} and be closed to others, got user {user}, mode {mode:o}")]
    Folder { path: String, want: u32, user: u32, mode: u32 },
    #[error("cannot {operation} `{path}`: {error}")]
    Io { operation: &'static str, path: String, error: io::Error },
}

/// A listening socket, and the ways to report to the process's owner.
pub struct Binding {
    /// The path, for reports.
    pub path: PathBuf,
    /// The socket.
    pub listener: OwnedFd,
    /// The signalfd, once the server has it.
    pub(super) signals: Option<OwnedFd>,
    /// Reports a state to systemd.
    pub notify: Box<dyn Fn(&str) + Send>,
    /// Reports a problem to the operator.
    pub warn: Box<dyn Fn(&str) + Send>,
    /// Other sockets of this daemon, removed with its own one, while no new daemon can bind them.
    pub others: Vec<PathBuf>,
    /// The lock and its path; `None` if the socket was inherited.
    lock: Option<(File, PathBuf)>,
}

impl Binding {
    /// Makes the folder (mode 0700) and the socket (mode 0600). With `is_open`, other users may reach the socket: 0711 and
    /// 0666, and the server decides by `SO_PEERCRED`. A socket that a killed daemon left behind is replaced; any other file
    /// stays.
    ///
    /// # Errors
    /// Another daemon runs, the folder belongs to someone else, the path is that of another file, those of the system.
    pub fn new(path: &Path, is_open: bool) -> Result<Binding, ServeError> {
        let failed = |operation: &'static str, path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| ServeError::Io { operation, path, error }
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (folder_mode, socket_mode) = if is_open { (0o711, 0o666) } else { (0o700, 0o600) };
        fs::DirBuilder::new().recursive(true).mode(folder_mode).create(folder).map_err(failed("make", folder))?;
        let metadata = fs::metadata(folder).map_err(failed("read", folder))?;
        let (user, mode, want) = (metadata.uid(), metadata.mode() & 0o777, rustix::process::getuid().as_raw());
        if user != want || mode & 0o077 & !folder_mode != 0 {
            return Err(ServeError::Folder { path: folder.display().to_string(), want, user, mode });
        }
        let lock_path = path.with_extension("lock");
        if lock_path == path {
            let reason = "its extension must not be `lock`, which the daemon's lock has";
            return Err(failed("bind", path)(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let lock = lock(&lock_path).map_err(failed("open", &lock_path))?;
        let Some(lock) = lock else { return Err(ServeError::Running { path: path.display().to_string() }) };
        // The lock is ours, so a socket at this path is of a daemon that is gone.
        socket::remove_stale(path).map_err(failed("bind", path))?;
        let listener = socket::new(SocketFlags::NONBLOCK).map_err(failed("make", path))?;
        let address = socket::address(path).map_err(failed("name", path))?;
        bind(&listener, &address).map_err(|error| failed("bind", path)(error.into()))?;
        // From here on an error removes the files.
        let binding = Binding {
            path: path.into(),
            listener,
            signals: None,
            notify: quiet(),
            warn: quiet(),
            others: Vec::new(),
            lock: Some((lock, lock_path)),
        };
        fs::set_permissions(path, Permissions::from_mode(socket_mode)).map_err(failed("restrict", path))?;
        listen(&binding.listener, 1024).map_err(|error| failed("listen on", path)(error.into()))?;
        Ok(binding)
    }

    /// Takes a listening `SOCK_SEQPACKET` socket that systemd made.
    ///
    /// # Errors
    /// Those of the system.
    pub fn inherited(listener: OwnedFd) -> io::Result<Binding> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let path = PathBuf::from("inherited");
        Ok(Binding { path, listener, signals: None, notify: quiet(), warn: quiet(), others: Vec::new(), lock: None })
    }

    /// Removes the sockets' files, and the lock with its file. A drop does the same, also of a daemon that did not start.
    pub(super) fn remove(&mut self) {
        for path in std::mem::take(&mut self.others) {
            let _ = fs::remove_file(path);
        }
        if let Some((lock, path)) = self.lock.take() {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(path);
            drop(lock);
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Locks the file of a path; `None` if another process has the lock.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    // To open a FIFO would wait for its reader.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(flags.bits() as i32);
    loop {
        let file = options.open(path)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        // A daemon that ended since the open has removed the file: a lock of it would keep no other daemon away.
        let own = file.metadata()?;
        if fs::symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
            return Ok(Some(file));
        }
    }
}

fn quiet() -> Box<dyn Fn(&str) + Send> {
    Box::new(|_| ())
}
