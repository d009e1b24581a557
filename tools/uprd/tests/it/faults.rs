//! Clients and daemons that die, stop, lie or run out at every step of the protocol. After each round a bystander's bytes are
//! unchanged; at every quiet point descriptors, memory and leases are those of the start.
//!
//! `UPRD_FAULT_ROUNDS=10000 cargo test --release -p prestow-uprd faults` is the long run.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::SocketFlags;
use share::client::{Attached, AttachedWeights, ClientError};
use share::core::Granularity;
use share::memory::Mapped;
use share::wire::{Ask, Code, LoadMode, PACKET_MAX, Reply};
use share::{Client, socket};
use types::Random;

use crate::support::{Daemon, Folder, key, open, signal, write_image};

#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
fn rounds() -> u64 {
    std::env::var("UPRD_FAULT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// The models: the budget holds the bystander's and one or two others.
const MODELS: [(&str, &[(u64, usize)]); 4] = [
    ("bystander", &[(1, 300_000)]),
    ("a", &[(2, 900_000), (3, 200_000)]),
    ("b", &[(4, 1_000_000)]),
    ("c", &[(2, 900_000), (5, 100_000)]),
];
const BUDGET: &str = "2500KiB";

/// A client whose bytes must never change.
struct Bystander {
    _client: Client,
    mapped: Mapped,
    expected: Vec<u8>,
}

impl Bystander {
    fn new(daemon: &Daemon, path: &Path, expected: &[u8]) -> Bystander {
        let mut client = daemon.client();
        let mapped = map(open(&mut client, path, Granularity::Model).expect("a fresh daemon has room"));
        Bystander { _client: client, mapped, expected: expected.to_vec() }
    }

    fn check(&self) {
        assert!(self.mapped.as_ref() == self.expected, "a bystander's bytes changed");
    }
}

fn map(attached: Attached) -> Mapped {
    match attached.weights {
        AttachedWeights::Section { file, size } => Mapped::whole(file.into(), size).expect("it is sealed"),
        AttachedWeights::Tensors { mapped, .. } => mapped,
        AttachedWeights::Device { .. } => unreachable!("host memory was requested"),
    }
}

/// Repeats a request that is refused while loads of dead clients still hold a part of the budget.
fn patiently<T>(mut request: impl FnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    for _ in 0..5000 {
        match request() {
            Err(ClientError::Refused { code: Code::Exhausted, .. }) => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
    request()
}

/// A connection without the library.
fn raw(daemon: &Daemon) -> std::os::fd::OwnedFd {
    let socket = socket::new(SocketFlags::empty()).expect("there are descriptors");
    rustix::net::connect(&socket, &socket::address(&daemon.socket).expect("it is short")).expect("it listens");
    socket
}

#[test]
fn kills_stops_and_garbage_at_every_step_leak_nothing_and_change_nobody() {
    let folder = Folder::new();
    let mut sections = Vec::new();
    for (name, tensors) in MODELS {
        sections.push(write_image(&folder.file(name), tensors));
    }
    let arguments = ["--budget", BUDGET];
    let mut daemon = Daemon::start(&folder, "", &arguments);
    // A daemon that answers has opened everything; the connection that asked is closed a moment later.
    daemon.wait_for("/clients", 1);
    std::thread::sleep(Duration::from_millis(20));
    let at_start = daemon.descriptors();
    let mut bystander = Bystander::new(&daemon, &folder.file("bystander"), &sections[0]);
    let (mut random, mut counts, mut restarts) = (Random::for_name(25, "faults"), [0u64; 14], 0);
    let rounds = rounds();
    for round in 0..rounds {
        let fault = random.below(counts.len() as u64) as usize;
        counts[fault] += 1;
        let model = 1 + random.below(3) as usize;
        let path = folder.file(MODELS[model].0);
        let granularity = [Granularity::Model, Granularity::Layer][random.below(2) as usize];
        let mode = [LoadMode::Wait, LoadMode::Behind][random.below(2) as usize];
        let ask = |load| {
            let (file, key) = key(&path, granularity);
            (file, Ask::Open { key, internal: 0, name: String::new(), load }.encode(7))
        };
        match fault {
            // A process of its own, killed anywhere between its start and its end.
            0 => {
                let mut child = daemon.command(&["attach", "--count", "50", "--granularity", granularity.name()]);
                let mut child =
                    child.arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
                std::thread::sleep(Duration::from_micros(random.below(6000)));
                child.kill().expect("it is ours");
                child.wait().expect("it was killed");
            }
            // The death of a client after each step: connected, sent, received, mapped.
            1 => drop(raw(&daemon)),
            2 => {
                let (socket, (file, packet)) = (raw(&daemon), ask(mode));
                socket::send(&socket, &packet, &[file.as_fd()]).expect("the daemon reads");
            }
            3 => {
                let (socket, (file, packet)) = (raw(&daemon), ask(mode));
                socket::send(&socket, &packet, &[file.as_fd()]).expect("the daemon reads");
                let mut buffer = vec![0; PACKET_MAX];
                drop(socket::receive(&socket, &mut buffer).expect("the daemon replies"));
            }
            4 => {
                let mut client = daemon.client();
                let mapped = map(patiently(|| open(&mut client, &path, granularity)).expect("one model fits"));
                let sum: u64 = mapped.as_ref().iter().map(|byte| u64::from(*byte)).sum();
                assert!(0 < sum);
            }
            // Garbage, half a header, a packet without its descriptor, descriptors without sense.
            5 => {
                let bytes: Vec<u8> = (0..1 + random.below(3000)).map(|_| random.bits() as u8).collect();
                socket::send(raw(&daemon), &bytes, &[]).expect("the daemon reads");
            }
            6 => socket::send(raw(&daemon), &Ask::Status.encode(1)[..9], &[]).expect("the daemon reads"),
            7 => {
                let (socket, (_, packet)) = (raw(&daemon), ask(mode));
                let null = File::open("/dev/null").expect("it exists");
                let descriptors = vec![null.as_fd(); random.below(40) as usize];
                socket::send(&socket, &packet, &descriptors).expect("the daemon reads");
                let mut buffer = vec![0; PACKET_MAX];
                if let Ok(socket::Received::Packet { length, .. }) = socket::receive(&socket, &mut buffer) {
                    // Resident models need no file.
                    let reply = Reply::decode(&buffer[..length]).expect("it is a reply").1;
                    let is_hit = matches!(reply, Reply::Opened { .. } | Reply::Filling { .. });
                    assert!(is_hit || matches!(reply, Reply::Refused { .. }), "{reply:?}");
                }
            }
            // A file that shrinks while it is read.
            8 => {
                let copy = folder.file("shrinking");
                std::fs::copy(&path, &copy).expect("the folder is writable");
                let (file, key) = key(&copy, granularity);
                let socket = raw(&daemon);
                let packet = Ask::Open { key, internal: 0, name: String::new(), load: mode }.encode(1);
                socket::send(&socket, &packet, &[file.as_fd()]).expect("the daemon reads");
                let length = random.below(1_000_000);
                OpenOptions::new().write(true).open(&copy).and_then(|file| file.set_len(length)).expect("it is ours");
                let mut buffer = vec![0; PACKET_MAX];
                drop(socket::receive(&socket, &mut buffer).expect("the daemon replies"));
            }
            // The daemon dies at each step; those who hold memory keep it; a new daemon serves.
            9 => {
                let step = random.below(5);
                let mut client = Client::connect(&daemon.socket, true).ok().filter(|_| 0 < step);
                let mut held = None;
                match (step, &mut client) {
                    (2, _) => {
                        let (socket, (file, packet)) = (raw(&daemon), ask(mode));
                        socket::send(&socket, &packet, &[file.as_fd()]).expect("the daemon reads");
                    }
                    (3 | 4, Some(client)) => {
                        held =
                            Some(map(patiently(|| open(client, &path, Granularity::Model)).expect("one model fits")));
                    }
                    _ => {}
                }
                daemon.kill();
                if let Some(mapped) = &held {
                    assert!(mapped.as_ref() == sections[model], "bytes outlive the daemon");
                }
                if let Some(client) = &mut client {
                    assert!(matches!(client.text(&Ask::Status), Err(ClientError::Closed)));
                }
                bystander.check();
                daemon = Daemon::start(&folder, "", &arguments);
                bystander = Bystander::new(&daemon, &folder.file("bystander"), &sections[0]);
                restarts += 1;
            }
            // The daemon stops for a while: clients wait.
            10 => {
                daemon.signal("STOP");
                let waiting = std::thread::scope(|scope| {
                    let waiting =
                        scope.spawn(|| patiently(|| open(&mut daemon.client(), &path, granularity).map(drop)));
                    std::thread::sleep(Duration::from_millis(2));
                    daemon.signal("CONT");
                    waiting.join().expect("it does not panic")
                });
                waiting.expect("the daemon goes on");
            }
            // A client stops: others are served; its model stays.
            11 => {
                let mut child = daemon.command(&["attach", "--hold"]);
                child.arg(folder.file("bystander")).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
                let mut child = child.spawn().expect("it starts");
                std::thread::sleep(Duration::from_micros(random.below(4000)));
                signal(child.id(), "STOP");
                patiently(|| open(&mut daemon.client(), &path, granularity)).expect("others are served");
                child.kill().expect("it is ours");
                child.wait().expect("it was killed");
            }
            // Operators at work.
            12 => {
                let (file, key) = key(&path, granularity);
                let mut client = daemon.client();
                let preload = Ask::Preload { key, name: "p".into(), pin: random.below(2) == 0 };
                patiently(|| client.done(&preload, &[file.as_fd()], Duration::from_secs(20))).expect("one model fits");
                client.done(&Ask::Verify { model: "p".into() }, &[], Duration::from_secs(20)).expect("it is right");
                client.done(&Ask::Unpin { model: "p".into() }, &[], Duration::from_secs(20)).expect("it is resident");
                let evict = Ask::Evict { model: "p".into(), drain: true };
                client.done(&evict, &[], Duration::from_secs(20)).expect("it is resident");
            }
            // Many at once, gone at once.
            _ => drop((0..40).map(|_| daemon.client()).collect::<Vec<_>>()),
        }
        bystander.check();
        if round % 50 == 49 || round + 1 == rounds {
            daemon.wait_for("/clients", 2);
            daemon.wait_for("/leases", 1);
            daemon.wait_for("/models/RW", 0);
            let list = daemon.run(&["list", "--json"]);
            let list: serde_json::Value = serde_json::from_slice(&list.stdout).expect("it is JSON");
            for row in list.as_array().expect("it is a list") {
                if row["state"] == "COMMITTED" {
                    assert!(daemon.run(&["evict", &row["model"].to_string()]).status.success());
                }
            }
            daemon.wait_for("/clients", 2);
            // The connection that asked for figures is closed a moment later.
            let mut memory = daemon.descriptors();
            for _ in 0..2000 {
                if memory.0 <= at_start.0 + 3 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                memory = daemon.descriptors();
            }
            // The bystander's connection and its memory are left, and the source of the name.
            assert_eq!(memory.1, 1, "sealed memory of dead models is gone");
            assert!(memory.0 <= at_start.0 + 3, "{} at the start: {:?}", at_start.0, daemon.targets());
            assert_eq!(daemon.mappings(), 0, "the daemon maps no weights");
            assert_eq!(daemon.figure("/tiers/host/resident_bytes"), sections[0].len() as u64);
        }
    }
    if 300 <= rounds {
        assert!(counts.iter().all(|count| 0 < *count) && 0 < restarts, "every fault occurred: {counts:?}");
    }
}

#[test]
fn exhausted_descriptors_refuse_newcomers_and_heal() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 10_000)]);
    let daemon = Daemon::start(&folder, "ulimit -n 40;", &[]);
    let mut old = daemon.client();
    open(&mut old, &folder.file("m"), Granularity::Model).expect("there are descriptors");
    let mut many: Vec<Client> = (0..100).map(|_| daemon.client()).collect();
    let is_refused = |client: &mut Client| match client.text(&Ask::Status) {
        Err(ClientError::Refused { code, .. }) => code == Code::Exhausted,
        other => other.is_err(),
    };
    let refused: usize = many.iter_mut().map(|client| usize::from(is_refused(client))).sum();
    assert!((50..100).contains(&refused), "{refused} of 100 are refused");
    open(&mut old, &folder.file("m"), Granularity::Model).expect("clients that are in are served");
    let other = folder.file("n");
    write_image(&other, &[(2, 10_000)]);
    let outcome = open(&mut old, &other, Granularity::Layer);
    // A part of the descriptors is kept for memory, so even a new model has room.
    outcome.expect("descriptors for memory are left");
    drop(many);
    daemon.wait_for("/clients", 2);
    daemon.client().text(&Ask::Status).expect("newcomers are served again");
}

#[test]
fn no_room_for_memory_is_a_refusal_and_the_daemon_lives() {
    let folder = Folder::new();
    write_image(&folder.file("small"), &[(1, 10_000)]);
    write_image(&folder.file("large"), &[(1, 4_000_000)]);
    // Blocks of 512 bytes or of 1024, by the shell: at most 2 MB.
    let daemon = Daemon::start(&folder, "ulimit -f 2000;", &[]);
    match open(&mut daemon.client(), &folder.file("large"), Granularity::Model) {
        Err(ClientError::Refused { code, .. }) => assert_eq!(code, Code::Exhausted),
        other => panic!("a refusal was expected, got {other:?}"),
    }
    open(&mut daemon.client(), &folder.file("small"), Granularity::Model).expect("the daemon lives");
    assert_eq!(daemon.descriptors().1, 1);
}

#[test]
fn another_user_is_refused_by_the_folder_and_by_its_credentials() {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED: another_user_is_refused: needs root, to become another user");
        return;
    }
    let folder = Folder::new();
    write_image(&folder.file("m"), &[(1, 10_000)]);
    let program = folder.file("uprd-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_uprd"), &program).expect("the folder is writable");
    let attach = |daemon: &Daemon, user: u32| {
        let mut command = Command::new(&program);
        command.arg("--socket").arg(&daemon.socket).arg("attach").arg(folder.file("m"));
        command.uid(user).gid(user).output().expect("it starts")
    };
    let closed = Daemon::start(&folder, "", &[]);
    let done = attach(&closed, 65_534);
    assert_eq!(done.status.code(), Some(2), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(text.contains("this user may not connect to") && text.contains("--allow 65534"), "{text}");
    drop(closed);
    // The folder is closed to others, so it must be made anew for a daemon that others may reach.
    std::fs::remove_dir_all(folder.file("run")).expect("it is ours");
    let open_to_one = Daemon::start(&folder, "", &["--allow", "12345"]);
    let done = attach(&open_to_one, 65_534);
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("PERMISSION") && text.contains("user 65534 is not allowed"), "{text}");
    let done = attach(&open_to_one, 12_345);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(open_to_one.figure("/strangers"), 1);

    // A user that is allowed has its own models and no commands of operators.
    open(&mut open_to_one.client(), &folder.file("m"), Granularity::Model).expect("it loads");
    assert_eq!(open_to_one.figure("/loads"), 2, "users do not provide each other's weights");
    let mut evict = Command::new(&program);
    evict.arg("--socket").arg(&open_to_one.socket).args(["evict", "1"]).uid(12_345).gid(12_345);
    assert_eq!(evict.output().expect("it starts").status.code(), Some(1));
}

#[test]
fn process_that_stores_into_shared_weights_dies_alone() {
    let folder = Folder::new();
    let section = write_image(&folder.file("m"), &[(1, 100_000)]);
    let daemon = Daemon::start(&folder, "", &[]);
    let bystander = Bystander::new(&daemon, &folder.file("m"), &section);
    let mut child = daemon.command(&["attach", "--hold"]);
    child.arg(folder.file("m")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("it starts");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("it prints when it holds the lease");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("it runs");
    let own: Vec<&str> = maps.lines().filter(|line| line.contains("memfd:uprd")).collect();
    assert!(!own.is_empty() && own.iter().all(|line| line.contains(" r--s ")), "{own:?}");
    // Root may write through /proc/PID/mem where a mapping can be made writable; sealed memory cannot.
    let at = u64::from_str_radix(own[0].split('-').next().expect("a range"), 16).expect("an address");
    let memory = OpenOptions::new().write(true).open(format!("/proc/{}/mem", child.id())).expect("it is our child");
    let written = std::os::unix::fs::FileExt::write_at(&memory, &[0xff; 8], at);
    assert!(written.is_err(), "{written:?}");
    child.kill().expect("it is ours");
    assert_eq!(child.wait().expect("it was killed").signal(), Some(9));
    bystander.check();
    daemon.wait_for("/leases", 1);
}
