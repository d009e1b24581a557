//! [`Client`]: a connection to the daemon. Its leases end when it is dropped, or when the process dies.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{SocketFlags, connect};

use crate::core::{Granularity, ModelKey};
use crate::manifest::{MANIFEST_MAX, Manifest};
use crate::memory::{Mapped, check_sealed};
use crate::socket::{self, Received};
use crate::wire::{Ask, Code, LoadMode, PACKET_MAX, Reply, Tier, WireError};

/// Reason why weights do not come from the daemon.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ClientError {
    #[error("no daemon answers at `{path}`: {error}")]
    NotRunning { path: String, error: io::Error },
    #[error("this user may not connect to `{path}`; start the daemon with --allow {user}")]
    NotPermitted { path: String, user: u32 },
    #[error("the daemon at `{path}` is of user {user}; it must be this user's or root's")]
    Untrusted { path: String, user: u32 },
    #[error("the daemon refused ({}): {message}", code.name())]
    Refused { code: Code, message: String },
    #[error("the daemon closed the connection")]
    Closed,
    #[error("the daemon did not reply within {0} s")]
    TimedOut(u64),
    #[error("the daemon's reply is invalid: {0}")]
    Reply(String),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<WireError> for ClientError {
    fn from(error: WireError) -> ClientError {
        ClientError::Reply(error.to_string())
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    next: u32,
    buffer: Vec<u8>,
}

/// A lease, and the memory that it is for.
#[derive(Debug)]
pub struct Attached {
    /// The lease on its connection.
    pub lease: u64,
    /// The model's number in the daemon.
    pub model: u64,
    /// The load that the bytes are from.
    pub generation: u64,
    /// Where the bytes came from.
    pub tier: Tier,
    /// Microseconds of the load; 0 if the model was resident.
    pub load_us: u64,
    /// The weights.
    pub weights: AttachedWeights,
}

/// The reply to a client that does not wait for a load.
#[derive(Debug)]
pub enum Opened {
    /// The model is resident: a lease.
    Attached(Attached),
    /// The daemon loads it; this process uses its own copy.
    Filling {
        /// The model's number in the daemon.
        model: u64,
    },
}

/// Weights in sealed memory.
#[derive(Debug)]
pub enum AttachedWeights {
    /// The section of an executable, as one descriptor that is not mapped yet.
    Section {
        /// The descriptor.
        file: File,
        /// Its size.
        size: u64,
    },
    /// Memory of the device that was requested, as descriptors of its driver that are not mapped yet.
    Device {
        /// The descriptors with their sizes, to be mapped one after the other.
        parts: Vec<(OwnedFd, u64)>,
        /// The place of each tensor, for granularity `layer`.
        manifest: Option<Manifest>,
        /// The size of the section or of the range.
        size: u64,
    },
    /// Tensors, mapped into one range.
    Tensors {
        /// The range.
        mapped: Mapped,
        /// The place of each.
        manifest: Manifest,
    },
}

/// The wait for a reply that needs no load.
const PATIENCE: Duration = Duration::from_secs(10);
/// A load is expected to be at least this fast.
const BYTES_PER_SECOND_MIN: u64 = 20 << 20;

impl Client {
    /// Connects. `is_explicit` is whether the user named the socket; then its owner may be anyone.
    ///
    /// # Errors
    /// No daemon, one of another user.
    pub fn connect(path: &Path, is_explicit: bool) -> Result<Client, ClientError> {
        let failed = |error: io::Error| {
            let path = path.display().to_string();
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    ClientError::NotPermitted { path, user: rustix::process::getuid().as_raw() }
                }
                _ => ClientError::NotRunning { path, error },
            }
        };
        let socket = socket::new(SocketFlags::empty()).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).map_err(io::Error::from)?;
        connect(&socket, &socket::address(path).map_err(failed)?).map_err(|error| failed(error.into()))?;
        let user = socket_peercred(&socket).map_err(io::Error::from)?.uid;
        if !is_explicit && !user.is_root() && user != rustix::process::getuid() {
            return Err(ClientError::Untrusted { path: path.display().to_string(), user: user.as_raw() });
        }
        Ok(Client { socket, next: 1, buffer: vec![0; PACKET_MAX] })
    }

    /// The descriptor of the connection.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// The connection fails, or no reply comes within `patience`. A refusal is a reply here.
    pub fn call(
        &mut self,
        ask: &Ask,
        descriptors: &[BorrowedFd],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let late = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => ClientError::TimedOut(patience.as_secs()),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed,
            _ => ClientError::Io(error),
        };
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience)).map_err(io::Error::from)?;
        let sent = socket::send(&self.socket, &ask.encode(id), descriptors);
        // A daemon that refuses a connection sends its reason and closes; the reason can still be read.
        match &sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(late(sent.expect_err("it failed"))),
            _ => {}
        }
        let mut resets = 0;
        loop {
            let received = match socket::receive(&self.socket, &mut self.buffer) {
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => continue,
                // The daemon closed before it read the request; its reason, if any, is behind the error.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && resets == 0 => {
                    resets = 1;
                    continue;
                }
                received => received.map_err(late)?,
            };
            return match received {
                Received::Closed => Err(ClientError::Closed),
                Received::Truncated => {
                    Err(ClientError::Reply("descriptors are missing; this process may have too many open".into()))
                }
                Received::Packet { length, descriptors } => match Reply::decode(&self.buffer[..length])? {
                    (0, Reply::Refused { code, message }) => Err(ClientError::Refused { code, message }),
                    (own, reply) if own == id => Ok((reply, descriptors)),
                    // A reply to a request that was given up.
                    _ => continue,
                },
            };
        }
    }

    /// Leases a model; `file` is read by the daemon if the model is not resident.
    ///
    /// # Errors
    /// A refusal, a reply that is not valid, a connection that fails.
    pub fn open(
        &mut self,
        key: &ModelKey,
        file: Option<&File>,
        internal: u64,
        name: &str,
    ) -> Result<Attached, ClientError> {
        let load = if file.is_some() { LoadMode::Wait } else { LoadMode::Never };
        let ask = Ask::Open { key: *key, internal, name: name.into(), load };
        let descriptors: Vec<BorrowedFd> = file.iter().map(|file| file.as_fd()).collect();
        let patience = PATIENCE + Duration::from_secs(key.size / BYTES_PER_SECOND_MIN);
        let (reply, descriptors) = self.call(&ask, &descriptors, patience)?;
        attached(reply, descriptors, false)
    }

    /// Leases a model if it is resident; otherwise the daemon loads it from `file` behind this process.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_or_fill(&mut self, key: &ModelKey, file: &File, internal: u64) -> Result<Opened, ClientError> {
        let ask = Ask::Open { key: *key, internal, name: String::new(), load: LoadMode::Behind };
        let (reply, descriptors) = self.call(&ask, &[file.as_fd()], PATIENCE)?;
        opened(reply, descriptors, false)
    }

    /// As [`Client::open_or_fill`], in memory of a device.
    ///
    /// # Errors
    /// As [`Client::open_device`].
    pub fn open_or_fill_device(
        &mut self,
        key: &ModelKey,
        file: &File,
        internal: u64,
        device: &str,
    ) -> Result<Opened, ClientError> {
        let ask = Ask::OpenDevice { key: *key, internal, load: LoadMode::Behind, device: device.into() };
        let (reply, descriptors) = self.call(&ask, &[file.as_fd()], PATIENCE)?;
        opened(reply, descriptors, true)
    }

    /// Leases a model in memory of a device, by its UUID; `file` is read by the daemon if no tier has the model.
    ///
    /// # Errors
    /// As [`Client::open`]; a daemon without that device refuses.
    pub fn open_device(
        &mut self,
        key: &ModelKey,
        file: &File,
        internal: u64,
        device: &str,
    ) -> Result<Attached, ClientError> {
        let ask = Ask::OpenDevice { key: *key, internal, load: LoadMode::Wait, device: device.into() };
        let patience = PATIENCE + Duration::from_secs(key.size / BYTES_PER_SECOND_MIN);
        let (reply, descriptors) = self.call(&ask, &[file.as_fd()], patience)?;
        attached(reply, descriptors, true)
    }

    /// Leases the model that was published under a name.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_name(&mut self, name: &str) -> Result<Attached, ClientError> {
        let ask = Ask::OpenName { name: name.into() };
        // The size is not known before the reply.
        let (reply, descriptors) = self.call(&ask, &[], Duration::from_secs(600))?;
        attached(reply, descriptors, false)
    }

    /// Ends a lease. The weights must be unmapped first, so it takes them.
    ///
    /// # Errors
    /// The connection fails.
    pub fn close(&mut self, attached: Attached) -> Result<(), ClientError> {
        let Attached { lease, weights, .. } = attached;
        drop(weights);
        self.done(&Ask::Close { lease }, &[], PATIENCE)
    }

    /// Makes a request whose reply has no content.
    ///
    /// # Errors
    /// As [`Client::call`]; a refusal.
    pub fn done(&mut self, ask: &Ask, descriptors: &[BorrowedFd], patience: Duration) -> Result<(), ClientError> {
        match self.call(ask, descriptors, patience)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Makes a request whose reply is text. Returns the number to continue from too.
    ///
    /// # Errors
    /// As [`Client::call`]; a refusal.
    pub fn text(&mut self, ask: &Ask) -> Result<(String, u64), ClientError> {
        match self.call(ask, &[], PATIENCE)?.0 {
            Reply::Text { text, next } => Ok((text, next)),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(reply: Reply) -> ClientError {
    match reply {
        Reply::Refused { code, message } => ClientError::Refused { code, message },
        other => ClientError::Reply(format!("a reply of another kind: {other:?}")),
    }
}

fn opened(reply: Reply, descriptors: Vec<OwnedFd>, is_on_device: bool) -> Result<Opened, ClientError> {
    match reply {
        Reply::Filling { model } => Ok(Opened::Filling { model }),
        reply => attached(reply, descriptors, is_on_device).map(Opened::Attached),
    }
}

fn attached(reply: Reply, descriptors: Vec<OwnedFd>, is_on_device: bool) -> Result<Attached, ClientError> {
    let Reply::Opened { lease, model, generation, granularity, size, tier, load_us } = reply else {
        return Err(unexpected(reply));
    };
    let missing = || ClientError::Reply("descriptors are missing".into());
    let mut descriptors = descriptors.into_iter();
    let first = descriptors.next().ok_or_else(missing)?;
    let weights = match granularity {
        Granularity::Model if is_on_device => {
            AttachedWeights::Device { parts: vec![(first, size)], manifest: None, size }
        }
        Granularity::Model => {
            if check_sealed(&first)? != size {
                return Err(ClientError::Reply("the memory has another size than the section".into()));
            }
            AttachedWeights::Section { file: first.into(), size }
        }
        Granularity::Layer => {
            let length = check_sealed(&first)?;
            if MANIFEST_MAX < length {
                return Err(ClientError::Reply("the manifest is too long".into()));
            }
            let mut bytes = vec![0; length as usize];
            File::from(first).read_exact_at(&mut bytes, 0)?;
            let manifest =
                Manifest::decode(&bytes).ok_or_else(|| ClientError::Reply("the manifest is invalid".into()))?;
            let extents: Vec<OwnedFd> = descriptors.collect();
            if is_on_device {
                let parts: Vec<(OwnedFd, u64)> =
                    extents.into_iter().zip(manifest.segments.iter().map(|segment| segment.length)).collect();
                let total = parts.iter().try_fold(0u64, |total, (_, size)| total.checked_add(*size));
                if total != Some(manifest.length) || parts.len() != manifest.segments.len() {
                    return Err(missing());
                }
                let weights = AttachedWeights::Device { parts, size: manifest.length, manifest: Some(manifest) };
                return Ok(Attached { lease, model, generation, tier, load_us, weights });
            }
            let mapped = Mapped::new(&extents, &manifest.segments, manifest.length)?;
            AttachedWeights::Tensors { mapped, manifest }
        }
    };
    Ok(Attached { lease, model, generation, tier, load_us, weights })
}
