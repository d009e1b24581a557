//! Packets with descriptors over a `SOCK_SEQPACKET` unix socket.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

use crate::wire::{DESCRIPTORS_MAX, PACKET_MAX};

/// A packet as received.
#[derive(Debug)]
pub enum Received {
    /// The peer closed the connection.
    Closed,
    /// A packet that is too long, or whose descriptors did not all arrive: this process may have too many.
    Truncated,
    /// `length` bytes of the buffer, and descriptors.
    Packet {
        /// Bytes of the buffer that are the packet.
        length: usize,
        /// The descriptors; closed when dropped.
        descriptors: Vec<OwnedFd>,
    },
}

/// A new socket, closed on exec.
///
/// # Errors
/// Those of the system.
pub fn new(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)?)
}

/// The address of a path.
///
/// # Errors
/// A path of more than 107 bytes.
pub fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(path)?)
}

/// Removes the socket that an ended process left behind. A path without a file is no error.
///
/// # Errors
/// Those of the system; anything that is not a socket: it stays.
pub fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => {
            let reason = "it exists and is not a socket; remove it or name another path";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, reason))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sends one packet. Never raises SIGPIPE.
///
/// # Errors
/// Those of the system; `WouldBlock` on a non-blocking socket whose peer does not read.
pub fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet into a buffer of [`PACKET_MAX`] bytes.
///
/// # Errors
/// Those of the system; `WouldBlock` if no packet waits on a non-blocking socket, or after the time-out.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    debug_assert!(PACKET_MAX <= buffer.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Ok(Received::Truncated);
    }
    match message.bytes {
        0 => Ok(Received::Closed),
        length => Ok(Received::Packet { length, descriptors }),
    }
}
