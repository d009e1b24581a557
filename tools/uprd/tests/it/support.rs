//! A daemon as a process, and files for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plan::{Constant, Plan, image};
use serde_json::Value;
use share::Client;
use share::client::{Attached, ClientError};
use share::core::{Granularity, ModelKey};
use share::load::identify;
use share::wire::Ask;
use types::{Bytes, DType, Random, Role, Scope, Shape, Tag};

/// A fresh folder, removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("prestow-uprd-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder for temporary files is writable");
        Folder(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes an executable without a runner whose one plan has constants of these sizes, by seed. Returns the section.
pub(crate) fn write_image(path: &Path, tensors: &[(u64, usize)]) -> Vec<u8> {
    let (mut plan, mut section) = (Plan { model: "test".into(), ..Plan::default() }, Vec::new());
    for (ix, (seed, size)) in tensors.iter().enumerate() {
        section.resize(section.len().next_multiple_of(64), 0);
        plan.constants.push(Constant {
            tag: Tag { scope: Scope::new(&format!("t{ix}")), role: Role::Weight },
            dtype: DType::U8,
            shape: Shape::from([*size]),
            offset: Bytes(section.len() as u64),
            size: Bytes(*size as u64),
            recipe: None,
        });
        let mut random = Random::new(*seed);
        section.extend(std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(*size));
    }
    plan.constants_size = Bytes(section.len() as u64);
    let mut file = File::create(path).expect("the folder is writable");
    image::write(&mut file, b"runner", &[plan], &section).expect("the plan is valid");
    section
}

/// A daemon. Dropping it kills it.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon in a folder; `prefix` is shell text in front of it, as `ulimit -n 50;`.
    pub(crate) fn start(folder: &Folder, prefix: &str, arguments: &[&str]) -> Daemon {
        let socket = folder.file("run/uprd.sock");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{prefix} exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_uprd"));
        command.arg("--socket").arg(&socket).arg("serve").args(arguments);
        command.env("UPR_BASE_DIR", &folder.0).env("UPR_PROFILE_TARGET", folder.file("server.json"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the daemon starts");
        let mut daemon = Daemon { child, socket };
        for _ in 0..20_000 {
            if Client::connect(&daemon.socket, true).is_ok() {
                return daemon;
            }
            if let Ok(Some(status)) = daemon.child.try_wait() {
                panic!("the daemon ended: {status}");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        panic!("the daemon does not listen");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket, true).expect("the daemon listens")
    }

    pub(crate) fn status(&self) -> Value {
        self.try_status().expect("the daemon answers")
    }

    fn try_status(&self) -> Result<Value, ClientError> {
        let (text, _) = self.client().text(&Ask::Status)?;
        Ok(serde_json::from_str(&text).expect("it is JSON"))
    }

    /// A figure of the status; 0 if it is absent.
    pub(crate) fn figure(&self, pointer: &str) -> u64 {
        self.status().pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Waits until a figure has a value. A daemon that has not yet noticed that clients left may refuse to answer.
    pub(crate) fn wait_for(&self, pointer: &str, value: u64) {
        let is_reached = |status: Value| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0) == value;
        for _ in 0..20_000 {
            if self.try_status().is_ok_and(is_reached) {
                return;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        panic!("{pointer} must become {value}: {}", self.status());
    }

    /// Descriptors of the daemon by the beginning of their targets: all, and those of sealed memory.
    pub(crate) fn descriptors(&self) -> (usize, usize) {
        let targets = self.targets();
        let memory = targets.iter().filter(|path| path.to_string_lossy().starts_with("/memfd:uprd")).count();
        (targets.len(), memory)
    }

    /// The targets of the daemon's descriptors.
    pub(crate) fn targets(&self) -> Vec<PathBuf> {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder)
            .expect("the daemon runs")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .collect()
    }

    /// Mappings of sealed memory in the daemon.
    pub(crate) fn mappings(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).expect("the daemon runs");
        maps.lines().filter(|line| line.contains("memfd:uprd")).count()
    }

    /// `uprd` with this daemon's socket.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uprd"));
        command.arg("--socket").arg(&self.socket).args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("uprd starts")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(process: u32, name: &str) {
    let done = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(done.expect("kill is a program").success());
}

pub(crate) fn key(path: &Path, granularity: Granularity) -> (File, ModelKey) {
    let file = File::open(path).expect("it exists");
    let key = identify(&file, path, granularity).expect("it is an executable");
    (file, key)
}

pub(crate) fn open(client: &mut Client, path: &Path, granularity: Granularity) -> Result<Attached, ClientError> {
    let (file, key) = key(path, granularity);
    client.open(&key, Some(&file), 0, "")
}
