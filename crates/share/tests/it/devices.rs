//! The device tier with a device whose memory is memfds.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prestow_share::Client;
use prestow_share::client::{Attached, ClientError};
use prestow_share::core::{EvictionPolicy, Granularity};
use prestow_share::device::{DeviceFailure, ExportingDevice, ReadChunk};
use prestow_share::load::identify;
use prestow_share::server::{DeviceOptions, ServerOptions};
use prestow_share::wire::{Ask, Code, Tier};

use crate::support::{Daemon, Folder, bytes_of, ranges, tensors, write_image};

const UNIT: u64 = 1 << 16;

#[derive(Debug)]
struct Fake {
    uuid: &'static str,
    is_broken: bool,
}

impl ExportingDevice for Fake {
    fn uuid(&self) -> &str {
        self.uuid
    }

    fn export(&self, size: u64, read: ReadChunk) -> Result<(OwnedFd, u64), DeviceFailure> {
        if self.is_broken {
            return Err(DeviceFailure { is_full: true, message: "out of memory".into() });
        }
        let memory = rustix::fs::memfd_create("fake-device", rustix::fs::MemfdFlags::CLOEXEC).expect("Linux has it");
        let (file, whole) = (File::from(memory), size.next_multiple_of(UNIT));
        file.set_len(whole).expect("there is memory");
        for at in (0..size).step_by(1000) {
            let mut chunk = vec![0; 1000.min(size - at) as usize];
            read(at, &mut chunk).expect("the host has the bytes");
            file.write_all_at(&chunk, at).expect("there is memory");
        }
        Ok((file.into(), whole))
    }

    fn read(&self, memory: BorrowedFd, size: u64, each: &mut dyn FnMut(&[u8])) -> Result<(), DeviceFailure> {
        let file = File::from(memory.try_clone_to_owned().expect("there are descriptors"));
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).expect("it has the bytes");
        each(&bytes);
        Ok(())
    }
}

const FIRST: &str = "GPU-1";
const SECOND: &str = "GPU-2";

fn device(uuid: &'static str, limit: u64, policy: EvictionPolicy) -> DeviceOptions {
    DeviceOptions { memory: Arc::new(Fake { uuid, is_broken: false }), limit, policy }
}

fn two(limit: u64) -> ServerOptions {
    let devices = [FIRST, SECOND].map(|uuid| device(uuid, limit, EvictionPolicy::Lru)).to_vec();
    ServerOptions { devices, ..ServerOptions::new(1 << 30) }
}

fn open(client: &mut Client, path: &Path, granularity: Granularity, device: &str) -> Result<Attached, ClientError> {
    let file = File::open(path).expect("it was written");
    let key = identify(&file, path, granularity).expect("it is an executable");
    client.open_device(&key, &file, 0, device)
}

fn code<T>(result: Result<T, ClientError>) -> Code {
    match result {
        Err(ClientError::Refused { code, .. }) => code,
        Err(other) => panic!("a refusal was expected, got {other}"),
        Ok(_) => panic!("a refusal was expected"),
    }
}

#[test]
fn models_reach_a_device_from_disk_then_host_and_then_stay_there() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(1 << 20)));
    let content = tensors(&[(1, 70_000), (2, 333)]);
    write_image(&folder.file("m"), &content);
    for granularity in [Granularity::Model, Granularity::Layer] {
        let mut client = daemon.client();
        let cases = [(FIRST, Tier::Disk), (SECOND, Tier::Host), (FIRST, Tier::Device), (SECOND, Tier::Device)];
        for (uuid, tier) in cases {
            let attached = open(&mut client, &folder.file("m"), granularity, uuid).expect("there is room");
            assert_eq!((attached.tier, attached.load_us == 0), (tier, tier == Tier::Device), "{granularity:?} {uuid}");
            assert_eq!(bytes_of(attached, &ranges(&content)), content);
        }
    }
    assert_eq!(daemon.figure("/opens/device"), 4);
    assert_eq!(daemon.figure("/tiers/devices/0/leases"), 0, "leases end with the connection");
    assert_eq!(daemon.figure("/tiers/devices/1/models"), 2);
    let rows = daemon.client().text(&Ask::List { from: 0 }).expect("it answers").0;
    assert!(rows.contains(r#""tier":"GPU-2""#), "{rows}");
}

#[test]
fn unknown_device_is_refused_with_the_known_ones() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(1 << 20)));
    write_image(&folder.file("m"), &tensors(&[(1, 100)]));
    let error = open(&mut daemon.client(), &folder.file("m"), Granularity::Model, "GPU-9").map(drop);
    let text = error.as_ref().expect_err("there is no such device").to_string();
    assert!(text.contains("no tier for device GPU-9; its devices are: GPU-1, GPU-2"), "{text}");
    assert_eq!(code(error), Code::Unsupported);
}

#[test]
fn device_budget_evicts_idle_models_and_never_those_in_use() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(2 * UNIT)));
    for seed in 1..=3 {
        write_image(&folder.file(&format!("m{seed}")), &tensors(&[(seed, 60_000)]));
    }
    let path = |ix: u64| folder.file(&format!("m{ix}"));
    let mut client = daemon.client();
    let first = open(&mut client, &path(1), Granularity::Model, FIRST).expect("there is room");
    let second = open(&mut client, &path(2), Granularity::Model, FIRST).expect("there is room");
    assert_eq!(code(open(&mut client, &path(3), Granularity::Model, FIRST)), Code::Exhausted);
    client.close(first).expect("it can be closed");
    open(&mut client, &path(3), Granularity::Model, FIRST).expect("the idle one goes");
    assert_eq!(daemon.figure("/tiers/devices/0/resident_bytes"), 2 * UNIT);
    let content = tensors(&[(2, 60_000)]);
    assert_eq!(bytes_of(second, &ranges(&content)), content);
    assert_eq!(daemon.figure("/tiers/host/resident_bytes"), 3 * 60_000, "the host keeps its copies");
}

#[test]
fn layers_are_shared_on_a_device() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(1 << 24)));
    let (backbone, a, b) = ((1, 500_000), (2, 100_000), (3, 100_000));
    let contents = [tensors(&[backbone, a]), tensors(&[backbone, b])];
    let mut client = daemon.client();
    for (ix, content) in contents.iter().enumerate() {
        let path = folder.file(&format!("m{ix}"));
        write_image(&path, content);
        let attached = open(&mut client, &path, Granularity::Layer, FIRST).expect("there is room");
        assert_eq!(bytes_of(attached, &ranges(content)), *content);
    }
    let units = |bytes: u64| bytes.next_multiple_of(UNIT);
    let want = units(600_064) + units(100_000);
    assert!(daemon.figure("/tiers/devices/0/resident_bytes") <= want, "the backbone is there once");
    assert_eq!(daemon.figure("/tiers/devices/0/tensor_bytes"), 1_200_000);
}

#[test]
fn ten_clients_at_once_cause_one_copy() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(1 << 24)));
    let content = tensors(&[(1, 3_000_000)]);
    write_image(&folder.file("m"), &content);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = daemon.client();
                let attached = open(&mut client, &folder.file("m"), Granularity::Model, FIRST).expect("there is room");
                assert_eq!(bytes_of(attached, &ranges(&content)), content);
            });
        }
    });
    assert_eq!(daemon.figure("/loads"), 2, "one to the host, one to the device");
}

#[test]
fn failed_copy_is_a_refusal_and_frees_the_reservation() {
    let memory = Arc::new(Fake { uuid: FIRST, is_broken: true });
    let devices = vec![DeviceOptions { memory, limit: 1 << 20, policy: EvictionPolicy::Lru }];
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions { devices, ..ServerOptions::new(100_000) }));
    write_image(&folder.file("m"), &tensors(&[(1, 1000)]));
    write_image(&folder.file("large"), &tensors(&[(1, 200_000)]));
    let error = open(&mut daemon.client(), &folder.file("m"), Granularity::Model, FIRST);
    assert_eq!(code(error), Code::Exhausted);
    // Here the host tier refuses.
    assert_eq!(code(open(&mut daemon.client(), &folder.file("large"), Granularity::Model, FIRST)), Code::Exhausted);
    assert_eq!(daemon.figure("/tiers/devices/0/reserved_bytes"), 0);
    assert_eq!(daemon.figure("/leases"), 0);
}

#[test]
fn host_copies_are_dropped_and_device_copies_are_eager_if_told() {
    let devices = vec![device(FIRST, 1 << 20, EvictionPolicy::Eager)];
    let options = ServerOptions { devices, persist_host: false, ..ServerOptions::new(1 << 20) };
    let (folder, daemon) = (Folder::new(), Daemon::start(options));
    write_image(&folder.file("m"), &tensors(&[(1, 1000)]));
    let mut client = daemon.client();
    let attached = open(&mut client, &folder.file("m"), Granularity::Model, FIRST).expect("there is room");
    assert_eq!(daemon.figure("/tiers/host/resident_bytes"), 0);
    assert_eq!(daemon.figure("/tiers/devices/0/resident_bytes"), UNIT);
    client.close(attached).expect("it can be closed");
    assert_eq!(daemon.figure("/tiers/devices/0/resident_bytes"), 0);
}

#[test]
fn operators_verify_pin_and_evict_device_copies_by_number() {
    let (folder, daemon) = (Folder::new(), Daemon::start(two(1 << 20)));
    write_image(&folder.file("m"), &tensors(&[(1, 1000)]));
    let mut client = daemon.client();
    let attached = open(&mut client, &folder.file("m"), Granularity::Model, SECOND).expect("there is room");
    let model = attached.model.to_string();
    let mut done = |ask: Ask| client.done(&ask, &[], Duration::from_secs(20));
    done(Ask::Verify { model: model.clone() }).expect("the bytes are right");
    assert_eq!(code(done(Ask::Evict { model: model.clone(), drain: false })), Code::Busy);
    done(Ask::Close { lease: attached.lease }).expect("it can be closed");
    done(Ask::Pin { model: model.clone() }).expect("it is resident");
    assert_eq!(code(done(Ask::Evict { model: model.clone(), drain: false })), Code::Busy);
    done(Ask::Unpin { model: model.clone() }).expect("it is resident");
    done(Ask::Evict { model, drain: false }).expect("it is idle");
    assert_eq!(daemon.figure("/tiers/devices/1/resident_bytes"), 0);
}
