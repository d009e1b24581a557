//! Bounds of one client: loads that wait, files behind a load, and replies that it does not read.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use prestow_share::core::Granularity;
use prestow_share::load::identify;
use prestow_share::server::ServerOptions;
use prestow_share::socket::{self, Received};
use prestow_share::wire::{Ask, Code, LoadMode, PACKET_MAX, Reply};
use rustix::net::SocketFlags;

use crate::support::{Daemon, Folder, tensors, write_image};

/// Bytes whose load takes longer than a hundred requests.
const LARGE: usize = 48 << 20;

fn connect(daemon: &Daemon, flags: SocketFlags) -> OwnedFd {
    let raw = socket::new(flags).expect("there are descriptors");
    rustix::net::connect(&raw, &socket::address(&daemon.socket).expect("short")).expect("it listens");
    raw
}

/// Requests models on one connection without reading a reply, then reads all of them, in the order of their numbers.
fn ask_all(daemon: &Daemon, asks: &[(Ask, File)]) -> Vec<Reply> {
    let raw = connect(daemon, SocketFlags::empty());
    for (number, (ask, file)) in asks.iter().enumerate() {
        socket::send(&raw, &ask.encode(number as u32), &[file.as_fd()]).expect("the daemon reads");
    }
    let mut buffer = vec![0; PACKET_MAX];
    let mut replies: Vec<(u32, Reply)> = Vec::new();
    while replies.len() < asks.len() {
        match socket::receive(&raw, &mut buffer).expect("the daemon replies") {
            Received::Packet { length, .. } => replies.push(Reply::decode(&buffer[..length]).expect("it is a reply")),
            _ => panic!("the daemon hung up after {} replies", replies.len()),
        }
    }
    replies.sort_by_key(|(number, _)| *number);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

fn ask(path: &Path, load: LoadMode) -> (Ask, File) {
    let file = File::open(path).expect("the file exists");
    let key = identify(&file, path, Granularity::Model).expect("it is an executable");
    (Ask::Open { key, internal: 0, name: String::new(), load }, file)
}

/// A large model and `count` small ones; all of them are distinct.
fn models(folder: &Folder, count: usize) -> Vec<PathBuf> {
    let model = |ix: usize| {
        let path = folder.file(&format!("m{ix}"));
        write_image(&path, &tensors(&[(ix as u64, if ix == 0 { LARGE } else { 64 })]));
        path
    };
    (0..=count).map(model).collect()
}

fn refused(replies: &[Reply]) -> Vec<(usize, Code)> {
    let code = |(ix, reply): (usize, &Reply)| match reply {
        Reply::Refused { code, .. } => Some((ix, *code)),
        _ => None,
    };
    replies.iter().enumerate().filter_map(code).collect()
}

#[test]
fn connection_waits_for_at_most_64_loads() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions { workers: 1, ..ServerOptions::new(1 << 30) }));
    let asks: Vec<_> = models(&folder, 65).iter().map(|path| ask(path, LoadMode::Wait)).collect();
    assert_eq!(refused(&ask_all(&daemon, &asks)), [(64, Code::Exhausted), (65, Code::Exhausted)]);
    // Loads that have ended count no more.
    assert_eq!(refused(&ask_all(&daemon, &asks)), []);
}

#[test]
fn at_most_64_loads_wait_behind_clients() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let asks: Vec<_> = models(&folder, 65).iter().map(|path| ask(path, LoadMode::Behind)).collect();
    assert_eq!(refused(&ask_all(&daemon, &asks)), [(64, Code::Exhausted), (65, Code::Exhausted)]);
    daemon.wait_for("/models/COMMITTED", 64);
    assert_eq!(refused(&ask_all(&daemon, &asks[64..])), []);
}

/// The eighteenth file is not kept: with the sixteen before it, sixteen descriptors would wait for one load.
#[test]
fn at_most_16_files_wait_for_one_load() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions { workers: 1, ..ServerOptions::new(1 << 30) }));
    let (good, bad) = (folder.file("good"), folder.file("bad"));
    write_image(&good, &tensors(&[(1, LARGE / 2)]));
    let mut bytes = std::fs::read(&good).expect("it exists");
    // The damage is at the end of the section: a load runs until it finds it.
    let at = bytes.len() - plan::image::Trailer::SIZE - 1;
    bytes[at] ^= 1;
    std::fs::write(&bad, bytes).expect("the folder is writable");
    let asks = |bad_count: usize| -> Vec<(Ask, File)> {
        let paths = std::iter::repeat_n(&bad, bad_count).chain([&good]);
        paths.map(|path| ask(path, LoadMode::Wait)).collect()
    };
    let replies = ask_all(&daemon, &asks(17));
    assert_eq!(refused(&replies), (0..18).map(|ix| (ix, Code::Damaged)).collect::<Vec<_>>());
    let replies = ask_all(&daemon, &asks(16));
    assert_eq!(refused(&replies), (0..16).map(|ix| (ix, Code::Damaged)).collect::<Vec<_>>());
    assert!(matches!(replies[16], Reply::Opened { .. }), "{:?}", replies[16]);
}

/// Its requests stay in the socket, and the daemon neither keeps replies for it nor turns idly.
#[test]
fn client_that_never_reads_is_not_read_from() {
    let daemon = Daemon::start(ServerOptions::new(1 << 30));
    let silent = connect(&daemon, SocketFlags::NONBLOCK);
    let (mut sent, mut idle_ms) = (0, 0);
    while idle_ms < 500 {
        match socket::send(&silent, &Ask::Settings.encode(1), &[]) {
            Ok(()) => (sent, idle_ms) = (sent + 1, 0),
            Err(_) => {
                std::thread::sleep(Duration::from_millis(1));
                idle_ms += 1;
            }
        }
        assert!(sent < 20_000, "the daemon reads from a client that reads nothing");
    }
    assert!(10 < sent, "the socket has a buffer");
    daemon.client().text(&Ask::Status).expect("others are served");
}
