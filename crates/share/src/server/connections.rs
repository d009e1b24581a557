//! Connections: accepting, reading packets, sending replies, hanging up. A client that does not read is not read from.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use serde_json::Value;

use super::device::device_of;
use super::{Connection, OWN_DESCRIPTORS, SELF, Server, UNREAD_MAX};
use crate::core::{ClientId, Denial, EVERYONE};
use crate::memory::Extent;
use crate::socket;
use crate::socket::Received;
use crate::trace::now;
use crate::wire::{Ask, Code, DESCRIPTORS_MAX, PACKET_MAX, Reply, TEXT_MAX};

impl Server {
    /// Accepts every connection that waits.
    pub(super) fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.binding.listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    // Give up the spare descriptor to accept, refuse and close one; otherwise the loop would spin on it.
                    // The system reports exhaustion also if no connection waits.
                    self.spare = None;
                    let accepted = accept_with(&self.binding.listener, flags);
                    if let Ok(socket) = &accepted {
                        let reply = Reply::refused(Code::Exhausted, "the daemon has no free descriptor");
                        let _ = socket::send(socket, &reply.encode(0), &[]);
                        self.metrics.refusals.add();
                    }
                    let is_done = accepted.is_err();
                    drop(accepted);
                    self.spare = File::open("/dev/null").ok();
                    if is_done {
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Admits a connection by its user.
    pub(super) fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = socket_peercred(&socket) else { return };
        let (user, own) = (peer.uid.as_raw(), rustix::process::getuid().as_raw());
        let refuse = |code, message: String| {
            let _ = socket::send(&socket, &Reply::refused(code, message).encode(0), &[]);
        };
        if user != 0 && user != own && !self.options.allow.contains(&user) {
            self.metrics.strangers.add();
            return refuse(
                Code::Permission,
                format!("user {user} is not allowed; start the daemon with --allow {user}"),
            );
        }
        if self.free_descriptors() == 0 {
            self.metrics.refusals.add();
            return refuse(Code::Exhausted, "the daemon has no free descriptor; raise its limit (LimitNOFILE)".into());
        }
        if self.options.clients_max <= self.clients.len() {
            self.metrics.refusals.add();
            return refuse(Code::Exhausted, format!("the daemon has {} clients, the limit", self.clients.len()));
        }
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.poll, &socket, epoll::EventData::new_u64(id.0), flags).is_err() {
            return refuse(Code::Exhausted, "the daemon cannot watch another connection".into());
        }
        let process = peer.pid.as_raw_nonzero().get();
        self.clients
            .insert(id, Connection { socket, user, process, unsent: VecDeque::new(), waiting: 0, watched: flags });
    }

    /// Descriptors that new connections may take: a part stays free for files that clients send and for memory.
    pub(super) fn free_descriptors(&self) -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let reserve = OWN_DESCRIPTORS + (limit / 4).min(2 * DESCRIPTORS_MAX as u64);
        let on_devices: usize = self.devices.iter().map(|own| own.blocks.len() + own.residents.len()).sum();
        let files: usize = self.loading.values().map(|load| 1 + load.others.len()).sum();
        let used = self.clients.len() + self.extents.len() + self.sources.len() + files + on_devices;
        limit.saturating_sub(reserve + used as u64)
    }

    /// Serves a connection: unsent replies first, then requests until one is unsent.
    pub(super) fn serve(&mut self, id: ClientId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) && !self.flush(id) {
            return;
        }
        if !flags.intersects(
            epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP,
        ) {
            return;
        }
        // A few packets at a time, so that one client cannot keep the others waiting.
        for _ in 0..8 {
            let Some(client) = self.clients.get(&id) else { return };
            if UNREAD_MAX <= client.unsent.len() {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = socket::receive(&client.socket, &mut buffer);
            let start = now();
            let outcome = match received {
                Ok(Received::Packet { length, descriptors }) => Ok(Some((length, descriptors))),
                Ok(Received::Closed) => Ok(None),
                Ok(Received::Truncated) => Err(Some(Reply::refused(
                    Code::Protocol,
                    format!("a packet has at most {PACKET_MAX} bytes, and all of its descriptors"),
                ))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(None),
                Err(_) => Ok(None),
            };
            match outcome {
                Ok(Some((length, descriptors))) => {
                    let decoded = Ask::decode(&buffer[..length]);
                    let request = crate::wire::request_id(&buffer[..length]);
                    self.buffer = buffer;
                    match decoded {
                        Ok((request, ask)) => self.answer(id, request, ask, descriptors, start),
                        Err(error) => {
                            self.metrics.protocol_errors.add();
                            self.reply(id, request, &Reply::refused(Code::Protocol, error.to_string()), Vec::new());
                            return self.hang_up(id);
                        }
                    }
                }
                Ok(None) => {
                    self.buffer = buffer;
                    return self.hang_up(id);
                }
                Err(Some(reply)) => {
                    self.buffer = buffer;
                    self.metrics.protocol_errors.add();
                    self.reply(id, 0, &reply, Vec::new());
                    return self.hang_up(id);
                }
                Err(None) => {
                    self.buffer = buffer;
                    return;
                }
            }
        }
    }

    /// Ends a connection with its leases.
    pub(super) fn hang_up(&mut self, id: ClientId) {
        if let Some(client) = self.clients.remove(&id) {
            let _ = epoll::delete(&self.poll, &client.socket);
            self.core.gone(id);
            self.devices.iter_mut().for_each(|device| device.core.gone(id));
            self.drains.retain(|(client, _)| *client != id);
        }
    }

    pub(super) fn user_of(&self, client: ClientId) -> u32 {
        let user = self.clients.get(&client).map_or(EVERYONE, |client| client.user);
        if self.options.one_namespace { EVERYONE } else { user }
    }

    /// Whether a connection may use commands of operators.
    pub(super) fn is_operator(&self, client: ClientId) -> bool {
        let own = rustix::process::getuid().as_raw();
        self.clients.get(&client).is_some_and(|client| client.user == 0 || client.user == own)
    }

    pub(super) fn deny(&mut self, client: ClientId, request: u32, denial: &Denial) {
        let code = match denial {
            Denial::NotFound => Code::NotFound,
            Denial::Draining => Code::Draining,
            Denial::Exhausted { .. } => Code::Exhausted,
            Denial::InUse { .. } | Denial::Pinned | Denial::Loading => Code::Busy,
        };
        if client == SELF {
            return (self.binding.warn)(&format!("cannot preload: {denial}"));
        }
        self.refuse(client, request, code, &denial.to_string());
    }

    pub(super) fn refuse(&mut self, client: ClientId, request: u32, code: Code, message: &str) {
        if let Some(ix) = device_of(client) {
            // The host tier refuses the bytes for a device.
            if let Some(upload) = self.devices[ix].uploads.remove(&request) {
                self.not_uploaded(ix, upload.model, code, message);
            }
            return;
        }
        self.metrics.refusals.add();
        self.reply(client, request, &Reply::refused(code, message), Vec::new());
    }

    pub(super) fn text(&mut self, client: ClientId, request: u32, value: Value, next: u64) {
        let text = value.to_string();
        let reply = match text.len() <= TEXT_MAX {
            true => Reply::Text { text, next },
            false => Reply::refused(Code::System, "the report is longer than a packet"),
        };
        self.reply(client, request, &reply, Vec::new());
    }

    /// Sends a reply, or keeps it until the client reads.
    pub(super) fn reply(&mut self, client: ClientId, request: u32, reply: &Reply, memory: Vec<Arc<Extent>>) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        connection.unsent.push_back((reply.encode(request), memory));
        if connection.unsent.len() == 1 {
            self.flush(client);
        }
    }

    /// Sends unsent replies. Returns whether the connection still exists.
    pub(super) fn flush(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let mut failed = false;
        while let Some((packet, memory)) = client.unsent.front() {
            let descriptors: Vec<BorrowedFd> = memory.iter().map(|extent| extent.file.as_fd()).collect();
            match socket::send(&client.socket, packet, &descriptors) {
                Ok(()) => drop(client.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
        if failed {
            self.hang_up(id);
            return false;
        }
        let mut flags = epoll::EventFlags::RDHUP;
        if client.unsent.len() < UNREAD_MAX {
            flags |= epoll::EventFlags::IN;
        }
        if !client.unsent.is_empty() {
            flags |= epoll::EventFlags::OUT;
        }
        if flags != client.watched {
            client.watched = flags;
            let _ = epoll::modify(&self.poll, &client.socket, epoll::EventData::new_u64(id.0), flags);
        }
        true
    }
}

/// Descriptors of this process.
pub(super) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}
