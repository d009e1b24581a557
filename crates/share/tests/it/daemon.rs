//! A daemon and its clients, by the socket.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::sync::Barrier;
use std::time::Duration;

use prestow_share::Client;
use prestow_share::client::{AttachedWeights, ClientError, Opened};
use prestow_share::core::{EvictionPolicy, Granularity};
use prestow_share::load::identify;
use prestow_share::server::{Binding, ServeError, ServerOptions};
use prestow_share::socket;
use prestow_share::wire::{Ask, Code, LoadMode, Tier};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::SocketFlags;
use types::Random;

use crate::support::{Daemon, Folder, bytes_of, open, ranges, tensors, write_image};

const PATIENCE: Duration = Duration::from_secs(20);

fn code<T>(result: Result<T, ClientError>) -> Code {
    match result {
        Err(ClientError::Refused { code, .. }) => code,
        Err(other) => panic!("a refusal was expected, got {other}"),
        Ok(_) => panic!("a refusal was expected"),
    }
}

fn model(folder: &Folder, name: &str, seed: u64, size: usize) -> std::path::PathBuf {
    let path = folder.file(name);
    write_image(&path, &tensors(&[(seed, size)]));
    path
}

#[test]
fn first_open_loads_and_later_ones_hit_with_the_same_bytes() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let all = tensors(&[(1, 100_000), (2, 5), (3, 70_000)]);
    write_image(&folder.file("m"), &all);
    for (round, tier) in [Tier::Disk, Tier::Host, Tier::Host].into_iter().enumerate() {
        let attached = open(&mut daemon.client(), &folder.file("m"), Granularity::Model).expect("it loads");
        assert_eq!(attached.tier, tier, "round {round}");
        assert_eq!(bytes_of(attached, &ranges(&all)), all);
    }
    assert_eq!((daemon.figure("/loads"), daemon.figure("/opens/host")), (1, 2));
}

#[test]
fn twenty_clients_at_once_cause_one_load() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 8 << 20);
    let barrier = Barrier::new(20);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = daemon.client();
                barrier.wait();
                open(&mut client, &path, Granularity::Model).expect("it loads");
            });
        }
    });
    assert_eq!(daemon.figure("/loads"), 1);
    assert_eq!(daemon.figure("/opens/host") + daemon.figure("/opens/disk"), 20);
    daemon.wait_for("/leases", 0);
}

/// Opens without a wait for a load.
fn open_or_fill(daemon: &Daemon, path: &std::path::Path) -> Result<Opened, ClientError> {
    let file = File::open(path).expect("it exists");
    let key = identify(&file, path, Granularity::Model).expect("an executable");
    daemon.client().open_or_fill(&key, &file, 0)
}

#[test]
fn first_client_is_not_kept_waiting_and_later_ones_hit() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let all = tensors(&[(1, 24 << 20)]);
    write_image(&folder.file("m"), &all);
    // Twenty processes come while one load runs; none of them has a lease, and the load does not end with its client.
    for _ in 0..20 {
        match open_or_fill(&daemon, &folder.file("m")).expect("the daemon serves") {
            Opened::Filling { model } => assert_eq!(model, 1),
            Opened::Attached(attached) => assert_eq!(attached.tier, Tier::Host),
        }
    }
    daemon.wait_for("/models/COMMITTED", 1);
    let Opened::Attached(attached) = open_or_fill(&daemon, &folder.file("m")).expect("the daemon serves") else {
        panic!("the model is resident");
    };
    assert_eq!(attached.tier, Tier::Host);
    assert_eq!(bytes_of(attached, &ranges(&all)), all);
    assert_eq!((daemon.figure("/loads"), daemon.figure("/opens/disk")), (1, 0));
    assert!(0 < daemon.figure("/opens/filling"));
}

#[test]
fn client_that_waits_gets_the_load_that_runs_behind_another() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 24 << 20);
    assert!(matches!(open_or_fill(&daemon, &path), Ok(Opened::Filling { .. })));
    open(&mut daemon.client(), &path, Granularity::Model).expect("it loads");
    assert_eq!(daemon.figure("/loads"), 1);
}

#[test]
fn load_behind_a_client_that_fails_is_counted_and_tried_again() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(3 << 20)));
    let path = model(&folder, "m", 1, 1 << 20);
    let bytes = std::fs::read(&path).expect("it exists");
    let mut damaged = bytes.clone();
    damaged[9000] ^= 1;
    std::fs::write(&path, damaged).expect("the folder is writable");
    assert!(matches!(open_or_fill(&daemon, &path), Ok(Opened::Filling { .. })));
    daemon.wait_for("/load_failures", 1);
    assert_eq!(daemon.figure("/tiers/host/reserved_bytes"), 0);
    std::fs::write(&path, bytes).expect("the folder is writable");
    assert!(matches!(open_or_fill(&daemon, &path), Ok(Opened::Filling { .. })));
    daemon.wait_for("/models/COMMITTED", 1);
    // No promise of a load that cannot take place.
    let large = model(&folder, "large", 2, 4 << 20);
    assert_eq!(code(open_or_fill(&daemon, &large)), Code::Exhausted);
    let file = File::open(&path).expect("it exists");
    let key = identify(&file, &path, Granularity::Model).expect("an executable");
    let named = Ask::Open { key, internal: 0, name: "m".into(), load: LoadMode::Behind };
    assert_eq!(code(daemon.client().done(&named, &[file.as_fd()], PATIENCE)), Code::Protocol);
}

/// A client with a good file waits for the load of a bad one: its own file is loaded then.
#[test]
fn bad_file_of_one_client_is_no_refusal_of_another() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let all = tensors(&[(1, 24 << 20)]);
    let good = folder.file("good");
    write_image(&good, &all);
    let bad = folder.file("bad");
    let mut bytes = std::fs::read(&good).expect("it exists");
    // The damage is at the end of the section, so that the load of the bad file runs for a while.
    let at = bytes.len() - plan::image::Trailer::SIZE - 1;
    bytes[at] ^= 1;
    std::fs::write(&bad, bytes).expect("the folder is writable");
    let (barrier, outcomes) = (Barrier::new(9), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for ix in 0..9 {
            let (path, daemon, barrier, outcomes) = (if ix == 0 { &bad } else { &good }, &daemon, &barrier, &outcomes);
            scope.spawn(move || {
                if ix == 0 {
                    let behind = open_or_fill(daemon, path).expect("the daemon serves");
                    assert!(matches!(behind, Opened::Filling { .. }));
                }
                barrier.wait();
                let opened = open(&mut daemon.client(), path, Granularity::Model);
                outcomes.lock().expect("no thread panics").push((ix, opened));
            });
        }
    });
    for (ix, opened) in outcomes.into_inner().expect("no thread panics") {
        match opened {
            Ok(attached) => assert_eq!(bytes_of(attached, &ranges(&all)), all),
            refused => assert_eq!((ix, code(refused)), (0, Code::Damaged)),
        }
    }
    assert_eq!(daemon.figure("/load_failures") - 1, daemon.figure("/refusals"));
}

#[test]
fn model_in_use_is_never_evicted_and_the_refusal_has_numbers() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(3 << 20)));
    let (a, b) = (model(&folder, "a", 1, 2 << 20), model(&folder, "b", 2, 2 << 20));
    let mut first = daemon.client();
    let lease = open(&mut first, &a, Granularity::Model).expect("it fits");
    let refused = open(&mut daemon.client(), &b, Granularity::Model);
    let text = refused.as_ref().expect_err("it does not fit").to_string();
    assert_eq!(code(refused), Code::Exhausted);
    assert!(text.contains("1 models are in use"), "{text}");
    first.close(lease).expect("the lease is open");
    open(&mut daemon.client(), &b, Granularity::Model).expect("the idle model is evicted");
    assert_eq!(daemon.figure("/evictions"), 1);
}

#[test]
fn policies_evict_in_their_order() {
    // Four models of 1 MiB are used in an order; a fifth needs room. The victim is named.
    let cases = [
        (EvictionPolicy::Lru, "1"),
        (EvictionPolicy::Fifo, "0"),
        (EvictionPolicy::Lcu, "3"),
        (EvictionPolicy::Lfu, "3"),
        (EvictionPolicy::SizeAware, "2"),
        (EvictionPolicy::Flush, "0123"),
        (EvictionPolicy::Eager, "0123"),
    ];
    for (policy, victims) in cases {
        let folder = Folder::new();
        let daemon = Daemon::start(ServerOptions { policy, ..ServerOptions::new(6 << 20) });
        let sizes = [1 << 20, 1 << 20, 2 << 20, 1 << 20];
        let paths: Vec<_> = (0..4).map(|ix| model(&folder, &ix.to_string(), ix as u64, sizes[ix])).collect();
        let mut client = daemon.client();
        for ix in [0, 1, 1, 2, 2, 0, 0, 3] {
            let attached = open(&mut client, &paths[ix], Granularity::Model).expect("it fits");
            client.close(attached).expect("it is open");
        }
        // Lru order is 1, 2, 0, 3; uses are 3, 2, 2, 1.
        let fifth = model(&folder, "4", 4, 2 << 20);
        open(&mut client, &fifth, Granularity::Model).expect("room is made");
        let resident = |path| {
            let file = File::open(path).expect("it exists");
            let key = identify(&file, path, Granularity::Model).expect("an executable");
            daemon.client().open(&key, None, 0, "").is_ok()
        };
        let gone: String = (0..4).filter(|ix| !resident(&paths[*ix])).map(|ix| ix.to_string()).collect();
        assert_eq!(gone, victims, "{}", policy.name());
    }
}

#[test]
fn never_refuses_and_random_evicts_something() {
    for (policy, fits) in [(EvictionPolicy::Never, false), (EvictionPolicy::Random, true)] {
        let folder = Folder::new();
        let daemon = Daemon::start(ServerOptions { policy, ..ServerOptions::new(3 << 20) });
        let mut client = daemon.client();
        let attached = open(&mut client, &model(&folder, "a", 1, 2 << 20), Granularity::Model).expect("it fits");
        client.close(attached).expect("it is open");
        let second = open(&mut client, &model(&folder, "b", 2, 2 << 20), Granularity::Model);
        assert_eq!(second.is_ok(), fits, "{}", policy.name());
    }
}

#[test]
fn estimate_includes_rate_and_internal_memory() {
    let folder = Folder::new();
    let path = model(&folder, "m", 1, 1 << 20);
    let open_with = |options: ServerOptions, internal| {
        let daemon = Daemon::start(options);
        let file = File::open(&path).expect("it exists");
        let key = identify(&file, &path, Granularity::Model).expect("an executable");
        daemon.client().open(&key, Some(&file), internal, "").map(drop)
    };
    let small = ServerOptions::new(3 << 20);
    assert!(open_with(small.clone(), 1 << 20).is_ok());
    assert_eq!(code(open_with(small.clone(), 4 << 20)), Code::Exhausted);
    assert!(open_with(ServerOptions { with_internal: false, ..small.clone() }, 4 << 20).is_ok());
    assert_eq!(code(open_with(ServerOptions { estimation_rate: 3.5, ..small }, 0)), Code::Exhausted);
}

#[test]
fn damaged_truncated_and_replaced_files_are_refused_by_name() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 1 << 20);
    let good = std::fs::read(&path).expect("it exists");
    let file = File::open(&path).expect("it exists");
    let key = identify(&file, &path, Granularity::Model).expect("an executable");
    let attempt = |bytes: &[u8]| {
        let other = folder.file("other");
        std::fs::write(&other, bytes).expect("the folder is writable");
        code(daemon.client().open(&key, Some(&File::open(&other).expect("it was written")), 0, ""))
    };
    let mut flipped = good.clone();
    flipped[9000] ^= 1;
    assert_eq!(attempt(&flipped), Code::Damaged);
    assert_eq!(attempt(&good[..good.len() - 1]), Code::Damaged);
    assert_eq!(attempt(&good[good.len() - 80..]), Code::Damaged);
    assert_eq!(attempt(b""), Code::Damaged);
    let other = model(&folder, "n", 2, 1 << 20);
    assert_eq!(attempt(&std::fs::read(other).expect("it exists")), Code::Stale);
    let pipe = File::open("/dev/null").expect("it exists");
    assert_eq!(code(daemon.client().open(&key, Some(&pipe), 0, "")), Code::Unsupported);
    assert_eq!((daemon.figure("/load_failures"), daemon.figure("/tiers/host/resident_bytes")), (6, 0));
    open(&mut daemon.client(), &path, Granularity::Model).expect("the good file still loads");
}

/// A file whose end claims the digest of another model, with a right checksum of that end.
#[test]
fn file_that_claims_the_identity_of_another_model_is_refused() {
    let folder = Folder::new();
    let (good, forged) = (model(&folder, "good", 1, 1 << 20), model(&folder, "forged", 2, 1 << 20));
    let (good_bytes, mut bytes) =
        (std::fs::read(&good).expect("it exists"), std::fs::read(&forged).expect("it exists"));
    let end = bytes.len() - plan::image::Trailer::SIZE;
    let good_end = good_bytes.len() - plan::image::Trailer::SIZE;
    bytes[end + 80..end + 112].copy_from_slice(&good_bytes[good_end + 80..good_end + 112]);
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[end..end + 120]);
    bytes[end + 120..].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&forged, bytes).expect("the folder is writable");
    for granularity in [Granularity::Model, Granularity::Layer] {
        let key = |path| identify(&File::open(path).expect("it exists"), path, granularity).expect("an executable");
        assert_eq!(key(&good), key(&forged), "the identity is claimed");
        let daemon = Daemon::start(ServerOptions::new(1 << 30));
        let refused = open(&mut daemon.client(), &forged, granularity);
        assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("digest is wrong")), "{refused:?}");
        assert_eq!(code(refused), Code::Damaged);
        let attached = open(&mut daemon.client(), &good, granularity).expect("it loads");
        let all = tensors(&[(1, 1 << 20)]);
        assert_eq!(bytes_of(attached, &ranges(&all)), all);
    }
}

#[test]
fn operators_pin_unpin_evict_verify_and_list() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 1 << 20);
    let file = File::open(&path).expect("it exists");
    let key = identify(&file, &path, Granularity::Model).expect("an executable");
    let mut client = daemon.client();
    let preload = Ask::Preload { key, name: "m".into(), pin: true };
    client.done(&preload, &[file.as_fd()], PATIENCE).expect("it loads");
    let evict = |drain| Ask::Evict { model: "m".into(), drain };
    assert_eq!(code(client.done(&evict(false), &[], PATIENCE)), Code::Busy);
    client.done(&Ask::Verify { model: "m".into() }, &[], PATIENCE).expect("the bytes are right");
    client.done(&Ask::Unpin { model: "m".into() }, &[], PATIENCE).expect("it is pinned");

    let lease = client.open_name("m").expect("it is published");
    assert_eq!(code(client.done(&evict(false), &[], PATIENCE)), Code::Busy);
    client.done(&evict(true), &[], PATIENCE).expect("it drains");
    let list = client.text(&Ask::List { from: 0 }).expect("it lists").0;
    assert!(list.contains("\"DRAINING\""), "{list}");
    assert_eq!(code(client.open_name("m")), Code::NotFound);
    client.close(lease).expect("it is open");
    assert_eq!(daemon.figure("/tiers/host/resident_bytes"), 0);
    let history = client.text(&Ask::History { from: 0 }).expect("it has events").0;
    for kind in ["load", "commit", "publish", "pin", "unpin", "lease", "retire", "release", "evict"] {
        assert!(history.contains(&format!("\"{kind}\"")), "{kind} in {history}");
    }
}

#[test]
fn name_moves_to_a_new_model_while_readers_of_the_old_one_drain() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let old = tensors(&[(1, 200_000)]);
    write_image(&folder.file("old"), &old);
    let new = model(&folder, "new", 2, 1 << 20);
    let mut client = daemon.client();
    let publish = |client: &mut Client, path: &std::path::Path, pin: bool| {
        let file = File::open(path).expect("it exists");
        let key = identify(&file, path, Granularity::Model).expect("an executable");
        client.done(&Ask::Preload { key, name: "net".into(), pin }, &[file.as_fd()], PATIENCE).expect("it loads");
    };
    // The pin of a preloaded model ends when its name moves: otherwise every replacement would leave one behind.
    publish(&mut client, &folder.file("old"), true);
    let reader = client.open_name("net").expect("it is published");
    publish(&mut client, &new, false);
    let second = client.open_name("net").expect("it is published");
    assert_ne!((reader.model, reader.generation), (second.model, second.generation));
    assert_eq!(daemon.figure("/models/DRAINING"), 1);
    let lease = reader.lease;
    assert_eq!(bytes_of(reader, &ranges(&old)), old, "the old reader's bytes are unchanged");
    client.done(&Ask::Close { lease }, &[], PATIENCE).expect("it is open");
    assert_eq!(daemon.figure("/tiers/host/resident_bytes"), 1 << 20);
}

#[test]
fn evicted_name_is_loaded_again_from_its_file() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(3 << 20)));
    let (a, b) = (model(&folder, "a", 1, 2 << 20), model(&folder, "b", 2, 2 << 20));
    let file = File::open(&a).expect("it exists");
    let key = identify(&file, &a, Granularity::Model).expect("an executable");
    let mut client = daemon.client();
    client.done(&Ask::Preload { key, name: "a".into(), pin: false }, &[file.as_fd()], PATIENCE).expect("it loads");
    let other = open(&mut client, &b, Granularity::Model).expect("the preloaded one is idle");
    client.close(other).expect("it is open");
    assert_eq!(client.open_name("a").expect("its file is known").tier, Tier::Disk);
}

#[test]
fn models_of_the_preload_list_are_for_everyone_and_pinned() {
    let folder = Folder::new();
    let path = model(&folder, "m", 1, 1000);
    let preload = vec![(path, "m".to_string(), Granularity::Model)];
    let daemon = Daemon::start(ServerOptions { preload, ..ServerOptions::new(1 << 20) });
    daemon.wait_for("/models/COMMITTED", 1);
    let (rows, _) = daemon.client().text(&Ask::List { from: 0 }).expect("the daemon answers");
    let rows: serde_json::Value = serde_json::from_str(&rows).expect("it is JSON");
    assert_eq!((&rows[0]["user"], &rows[0]["pinned"]), (&"everyone".into(), &true.into()));
    assert_eq!(daemon.client().open_name("m").expect("it is published").tier, Tier::Host);
}

#[test]
fn garbage_ends_one_connection_and_nothing_else() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 100_000);
    let mut bystander = daemon.client();
    let lease = open(&mut bystander, &path, Granularity::Model).expect("it loads");
    let mut random = Random::new(3);
    let null = File::open("/dev/null").expect("it exists");
    for round in 0..300 {
        let raw = socket::new(SocketFlags::empty()).expect("there are descriptors");
        rustix::net::connect(&raw, &socket::address(&daemon.socket).expect("short")).expect("it listens");
        let length = 1 + random.below(if round % 7 == 0 { 90_000 } else { 200 }) as usize;
        let mut packet: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
        if round % 3 == 0 {
            let head = Ask::Pin { model: "x".into() }.encode(1);
            let count = head.len().min(packet.len());
            packet[..count].copy_from_slice(&head[..count]);
        }
        let many = vec![null.as_fd(); random.below(60) as usize];
        let _ = socket::send(&raw, &packet, &many);
        if round % 2 == 0 {
            let mut buffer = vec![0; prestow_share::wire::PACKET_MAX];
            let _ = socket::receive(&raw, &mut buffer);
        }
    }
    daemon.wait_for("/clients", 2);
    assert!(100 < daemon.figure("/protocol_errors"));
    bystander.close(lease).expect("its lease is untouched");
}

#[test]
fn client_that_never_reads_does_not_block_others() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 100_000);
    let silent = socket::new(SocketFlags::NONBLOCK).expect("there are descriptors");
    rustix::net::connect(&silent, &socket::address(&daemon.socket).expect("short")).expect("it listens");
    let mut sent = 0;
    for _ in 0..100_000 {
        match socket::send(&silent, &Ask::Status.encode(1), &[]) {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    assert!(10 < sent, "the socket has a buffer");
    for _ in 0..50 {
        open(&mut daemon.client(), &path, Granularity::Model).expect("others are served");
    }
    drop(silent);
    daemon.wait_for("/clients", 1);
}

#[test]
fn leases_end_with_the_connection_and_closing_is_idempotent() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = model(&folder, "m", 1, 100_000);
    for _ in 0..50 {
        let mut client = daemon.client();
        for _ in 0..4 {
            drop(open(&mut client, &path, Granularity::Layer).expect("it loads"));
        }
        let mut thief = daemon.client();
        for lease in 0..40 {
            thief.done(&Ask::Close { lease }, &[], PATIENCE).expect("closing is idempotent");
        }
        assert_eq!(daemon.figure("/leases"), 4, "a lease of another connection cannot be closed");
        drop(client);
        daemon.wait_for("/leases", 0);
    }
    let mut client = daemon.client();
    client.done(&Ask::Evict { model: "1".into(), drain: false }, &[], PATIENCE).expect("it is idle");
    assert_eq!((daemon.figure("/extents"), daemon.figure("/tiers/host/resident_bytes")), (0, 0));
}

#[test]
fn quotas_bound_leases_and_clients() {
    let folder = Folder::new();
    let path = model(&folder, "m", 1, 1000);
    let daemon = Daemon::start(ServerOptions { leases_max: 3, clients_max: 5, ..ServerOptions::new(1 << 20) });
    let mut client = daemon.client();
    let leases: Vec<_> = (0..3).map(|_| open(&mut client, &path, Granularity::Model).expect("within quota")).collect();
    assert_eq!(code(open(&mut client, &path, Granularity::Model)), Code::Exhausted);
    drop(leases);
    let mut others: Vec<Client> = (0..4).map(|_| daemon.client()).collect();
    others[3].text(&Ask::Status).expect("the fifth client is served");
    assert_eq!(code(daemon.client().text(&Ask::Status)), Code::Exhausted);
}

#[test]
fn second_daemon_refuses_and_stale_sockets_are_replaced() {
    let folder = Folder::new();
    let path = folder.file("run/uprd.sock");
    let first = Binding::new(&path, false).expect("the folder is fresh");
    assert_eq!(std::fs::metadata(folder.file("run")).expect("it was made").permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::metadata(&path).expect("it was made").permissions().mode() & 0o777, 0o600);
    assert!(matches!(Binding::new(&path, false), Err(ServeError::Running { .. })));
    // A daemon that does not start, or ends, leaves no file.
    drop(first);
    assert_eq!(std::fs::read_dir(folder.file("run")).expect("it was made").count(), 0);
    // After SIGKILL there are the socket and the lock's file, without a lock.
    drop(UnixListener::bind(&path).expect("the folder is empty"));
    std::fs::write(path.with_extension("lock"), "").expect("the folder is ours");
    assert!(matches!(Client::connect(&path, true), Err(ClientError::NotRunning { .. })));
    Binding::new(&path, false).expect("the stale socket is replaced");

    let open_folder = folder.file("open");
    std::fs::create_dir(&open_folder).expect("it is fresh");
    std::fs::set_permissions(&open_folder, PermissionsExt::from_mode(0o777)).expect("it is ours");
    assert!(matches!(Binding::new(&open_folder.join("s"), false), Err(ServeError::Folder { .. })));
}

/// A file, a link to one, a folder: whatever is not a socket is not removed for one.
#[test]
fn path_of_another_file_is_refused_and_the_file_stays() {
    let folder = Folder::new();
    let run = folder.file("run");
    std::fs::DirBuilder::new().mode(0o700).create(&run).expect("it is fresh");
    std::fs::write(run.join("file"), "weights").expect("the folder is writable");
    std::os::unix::fs::symlink("file", run.join("link")).expect("the folder takes links");
    std::fs::create_dir(run.join("folder")).expect("the folder is writable");
    for name in ["file", "link", "folder"] {
        let error = Binding::new(&run.join(name), false).err().unwrap_or_else(|| panic!("{name} was replaced"));
        assert!(error.to_string().contains("it exists and is not a socket"), "{name}: {error}");
        assert!(std::fs::symlink_metadata(run.join(name)).is_ok(), "{name} is gone");
    }
    assert_eq!(std::fs::read(run.join("file")).expect("it is there"), b"weights");
}

/// The lock would be the socket, or wait for the reader of a FIFO.
#[test]
fn lock_that_is_no_file_is_refused() {
    let folder = Folder::new();
    let error = Binding::new(&folder.file("run/uprd.lock"), false).err().expect("it is the lock's path");
    assert!(error.to_string().contains("its extension must not be `lock`"), "{error}");
    mknodat(CWD, folder.file("run/fifo.lock"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("it is fresh");
    let error = Binding::new(&folder.file("run/fifo.sock"), false).err().expect("nobody reads the FIFO");
    assert!(error.to_string().contains("cannot open"), "{error}");
    // A link would make a file, or lock one, at the place that another user chose.
    std::os::unix::fs::symlink("elsewhere", folder.file("run/link.lock")).expect("the folder takes links");
    let error = Binding::new(&folder.file("run/link.sock"), false).err().expect("the lock is a link");
    assert!(error.to_string().contains("cannot open"), "{error}");
    assert!(!folder.file("run/elsewhere").exists());
}

#[test]
fn draining_daemon_refuses_leases_and_ends_with_the_last_one() {
    let folder = Folder::new();
    let path = model(&folder, "m", 1, 100_000);
    let mut daemon = Daemon::start(ServerOptions::new(1 << 20));
    let (mut reader, mut operator) = (daemon.client(), daemon.client());
    let lease = open(&mut reader, &path, Granularity::Model).expect("it loads");
    let AttachedWeights::Section { .. } = &lease.weights else { panic!("granularity is model") };
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| operator.done(&Ask::Drain, &[], PATIENCE));
        while code_or_open(&daemon, &path) != Some(Code::Draining) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!drained.is_finished());
        reader.close(lease).expect("leases can be closed");
        drained.join().expect("it does not panic").expect("the drain ends");
    });
    daemon.join();
    assert!(!daemon.socket.exists());
}

fn code_or_open(daemon: &Daemon, path: &std::path::Path) -> Option<Code> {
    match open(&mut daemon.client(), path, Granularity::Model) {
        Err(ClientError::Refused { code, .. }) => Some(code),
        _ => None,
    }
}

#[test]
fn ten_thousand_manifests_and_a_thousand_clients_are_served() {
    let folder = Folder::new();
    let daemon = Daemon::start(ServerOptions::new(1 << 30));
    let mut client = daemon.client();
    let path = folder.file("m");
    for seed in 0..10_000 {
        write_image(&path, &tensors(&[(seed, 64)]));
        let attached = open(&mut client, &path, Granularity::Model).expect("it is small");
        client.close(attached).expect("it is open");
    }
    let mut clients: Vec<Client> = (0..1000).map(|_| daemon.client()).collect();
    let leases: Vec<_> =
        clients.iter_mut().map(|client| open(client, &path, Granularity::Model).expect("it is resident")).collect();
    assert_eq!((daemon.figure("/leases"), daemon.figure("/clients")), (1000, 1002));
    assert_eq!(daemon.figure("/models/COMMITTED") + daemon.figure("/models/RO"), 10_000);
    drop((leases, clients));
    daemon.wait_for("/leases", 0);
    let (mut rows, mut from) = (0, 0);
    loop {
        let (text, next) = client.text(&Ask::List { from }).expect("it lists");
        let page: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        rows += page.as_array().expect("a list").len();
        from = next;
        if next == 0 {
            break;
        }
    }
    assert_eq!(rows, 10_000);
}
