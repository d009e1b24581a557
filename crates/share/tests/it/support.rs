//! A daemon in a thread, and files for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use plan::{Constant, Plan, image};
use prestow_share::Client;
use prestow_share::client::{Attached, AttachedWeights, ClientError};
use prestow_share::core::Granularity;
use prestow_share::load::identify;
use prestow_share::memory::Mapped;
use prestow_share::server::{Binding, Server, ServerOptions};
use prestow_share::wire::Ask;
use types::{Bytes, DType, Random, Role, Scope, Shape, Tag};

/// A fresh folder below the system's for temporary files, removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("prestow-share-{}-{count}", std::process::id()));
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

/// Tensors of given sizes; equal seeds give equal bytes.
pub(crate) fn tensors(specs: &[(u64, usize)]) -> Vec<Vec<u8>> {
    let tensor = |(seed, size): &(u64, usize)| {
        let mut random = Random::new(*seed);
        (0..*size).map(|_| random.bits() as u8).collect()
    };
    specs.iter().map(tensor).collect()
}

/// Writes an executable without a runner whose plan has these tensors as constants, aligned to 64 bytes. Returns its
/// section.
pub(crate) fn write_image(path: &Path, tensors: &[Vec<u8>]) -> Vec<u8> {
    let (mut plan, mut section) = (Plan { model: "test".into(), ..Plan::default() }, Vec::new());
    for (ix, bytes) in tensors.iter().enumerate() {
        section.resize(section.len().next_multiple_of(64), 0);
        plan.constants.push(Constant {
            tag: Tag { scope: Scope::new(&format!("t{ix}")), role: Role::Weight },
            dtype: DType::U8,
            shape: Shape::from([bytes.len()]),
            offset: Bytes(section.len() as u64),
            size: Bytes(bytes.len() as u64),
            recipe: None,
        });
        section.extend_from_slice(bytes);
    }
    plan.constants_size = Bytes(section.len() as u64);
    let mut file = File::create(path).expect("the folder is writable");
    image::write(&mut file, b"runner", &[plan], &section).expect("the plan is valid");
    section
}

/// A daemon in this process.
pub(crate) struct Daemon {
    pub(crate) socket: PathBuf,
    thread: Option<JoinHandle<()>>,
    _folder: Folder,
}

impl Daemon {
    pub(crate) fn start(options: ServerOptions) -> Daemon {
        let folder = Folder::new();
        let socket = folder.file("run/uprd.sock");
        let binding = Binding::new(&socket, false).expect("the folder is fresh");
        let run = move || Server::new(binding, options, None).expect("there are descriptors").run().expect("it serves");
        let thread = std::thread::spawn(run);
        Daemon { socket, thread: Some(thread), _folder: folder }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket, true).expect("the daemon listens")
    }

    /// Waits for the end of a daemon that drains.
    pub(crate) fn join(&mut self) {
        self.thread.take().expect("it runs").join().expect("the daemon does not panic");
    }

    /// A figure of `status`.
    pub(crate) fn figure(&self, pointer: &str) -> u64 {
        let (text, _) = self.client().text(&Ask::Status).expect("the daemon answers");
        let status: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        status.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }

    /// Waits until a figure has a value.
    pub(crate) fn wait_for(&self, pointer: &str, value: u64) {
        for _ in 0..2000 {
            if self.figure(pointer) == value {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{pointer} must become {value}, is {}", self.figure(pointer));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A connection may be refused while those of the test are not gone yet.
        while let Ok(mut client) = Client::connect(&self.socket, true) {
            if client.done(&Ask::Drain, &[], std::time::Duration::from_secs(20)).is_ok() {
                break;
            }
        }
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the daemon panicked");
        }
    }
}

/// Leases the weights of a file.
pub(crate) fn open(client: &mut Client, path: &Path, granularity: Granularity) -> Result<Attached, ClientError> {
    let file = File::open(path).expect("the file exists");
    let key = identify(&file, path, granularity).expect("it is an executable");
    client.open(&key, Some(&file), 0, "")
}

/// The bytes of each tensor as the client sees them.
pub(crate) fn bytes_of(attached: Attached, ranges: &[(u64, u64)]) -> Vec<Vec<u8>> {
    match attached.weights {
        AttachedWeights::Section { file, size } => {
            let mapped = Mapped::whole(file.into(), size).expect("it is sealed");
            ranges.iter().map(|(at, size)| mapped.as_ref()[*at as usize..(at + size) as usize].to_vec()).collect()
        }
        AttachedWeights::Tensors { mapped, manifest } => ranges
            .iter()
            .map(|(at, size)| {
                let at = manifest.find(*at, *size).expect("every tensor has a place");
                mapped.as_ref()[at as usize..(at + size) as usize].to_vec()
            })
            .collect(),
        AttachedWeights::Device { parts, manifest, .. } => {
            // The fake device's memory is files.
            let all: Vec<u8> = parts
                .into_iter()
                .flat_map(|(part, size)| {
                    let file = File::from(part);
                    let mut bytes = vec![0; size.min(file.metadata().expect("it is a memfd").len()) as usize];
                    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("it is a memfd");
                    bytes
                })
                .collect();
            let place = |at: u64, size: u64| match &manifest {
                None => at,
                Some(manifest) => manifest.find(at, size).expect("every tensor has a place"),
            };
            ranges.iter().map(|(at, size)| all[place(*at, *size) as usize..][..*size as usize].to_vec()).collect()
        }
    }
}

/// Offsets and sizes of tensors as [`write_image`] places them.
pub(crate) fn ranges(tensors: &[Vec<u8>]) -> Vec<(u64, u64)> {
    let mut at = 0u64;
    tensors
        .iter()
        .map(|bytes| {
            let start = at.next_multiple_of(64);
            at = start + bytes.len() as u64;
            (start, bytes.len() as u64)
        })
        .collect()
}
